// SPDX-License-Identifier: Apache-2.0
//! How a guest's pager chooses what goes to other hosts (S-memV, 4-3 and 4-5).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which chunk goes next, once a guest has more on its main host than it may.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PagingPolicy {
    /// One whose last use is longest ago: each page has eight bits, one for each of the last
    /// periods, and a chunk is as young as its youngest page.
    #[default]
    Aging,
    /// A hand goes round; of the chunks that it passes, one of which the fewest pages were used
    /// since it passed last.
    Clock,
    /// The one that came first.
    Fifo,
    /// Any.
    Random,
    /// The one with the highest address.
    Address,
}

/// No policy has that name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no policy: want {names}", names = names())]
pub struct ParsePolicyError(String);

fn names() -> String {
    PagingPolicy::ALL.map(PagingPolicy::name).join(", ")
}

impl PagingPolicy {
    /// All there are.
    pub const ALL: [Self; 5] = [Self::Aging, Self::Clock, Self::Fifo, Self::Random, Self::Address];

    /// As users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aging => "aging",
            Self::Clock => "clock",
            Self::Fifo => "fifo",
            Self::Random => "random",
            Self::Address => "address",
        }
    }
}

impl fmt::Display for PagingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PagingPolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_refused_with_all_of_them() {
        for policy in PagingPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(json, format!("\"{policy}\""));
        }
        let error = "lru".parse::<PagingPolicy>().unwrap_err().to_string();
        assert_eq!(error, "'lru' is no policy: want aging, clock, fifo, random, address");
    }
}
