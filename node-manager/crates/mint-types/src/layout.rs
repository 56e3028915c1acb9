// SPDX-License-Identifier: Apache-2.0
//! How guests are laid out on a host's NUMA nodes (L, "Resource layout optimization for live migration").

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// When a guest that moves gets its place on the NUMA nodes of its next host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LayoutWhen {
    /// Before it comes: what is in the way is gone by then (L, section 3).
    Before,
    /// After it has come and was measured there (L, section 2).
    After,
    /// Never: it comes to where it comes.
    None,
}

/// Who gets which place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LayoutPolicy {
    /// Guests that miss their last-level cache more often get the better places (L, table 1).
    #[default]
    Simple,
    /// Guests that miss it often are kept apart (DINO; L, table 1).
    Dino,
    /// Guests that read much of other NUMA nodes get more bandwidth (AsymSched; L, table 1).
    Asymsched,
    /// Memory goes to who reads it, or is spread (Carrefour; L, section 6).
    Carrefour,
    /// vCPUs go by lot to where they wait less (Bias Random vCPU Migration; L, section 6).
    Brm,
}

/// It is no such word.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is none: want before, after, none")]
pub struct ParseLayoutError(String);

/// There is no such policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{}' is no layout policy: want {}", .0, LayoutPolicy::ALL.map(LayoutPolicy::name).join(", "))]
pub struct ParseLayoutPolicyError(String);

impl LayoutWhen {
    /// As users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::None => "none",
        }
    }
}

impl LayoutPolicy {
    /// All that there are.
    pub const ALL: [Self; 5] =
        [Self::Simple, Self::Dino, Self::Asymsched, Self::Carrefour, Self::Brm];

    /// As users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Dino => "dino",
            Self::Asymsched => "asymsched",
            Self::Carrefour => "carrefour",
            Self::Brm => "brm",
        }
    }
}

impl fmt::Display for LayoutWhen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for LayoutPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for LayoutWhen {
    type Err = ParseLayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found =
            [Self::Before, Self::After, Self::None].into_iter().find(|when| when.name() == text);
        found.ok_or_else(|| ParseLayoutError(text.to_owned()))
    }
}

impl FromStr for LayoutPolicy {
    type Err = ParseLayoutPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| ParseLayoutPolicyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for when in [LayoutWhen::Before, LayoutWhen::After, LayoutWhen::None] {
            assert_eq!(when.to_string().parse(), Ok(when));
            assert_eq!(serde_json::to_string(&when).unwrap(), format!("\"{when}\""));
        }
        for policy in LayoutPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(serde_json::to_string(&policy).unwrap(), format!("\"{policy}\""));
        }
        let error = "now".parse::<LayoutWhen>().unwrap_err().to_string();
        assert_eq!(error, "'now' is none: want before, after, none");
        let error = "best".parse::<LayoutPolicy>().unwrap_err().to_string();
        let wanted = "'best' is no layout policy: want simple, dino, asymsched, carrefour, brm";
        assert_eq!(error, wanted);
    }
}
