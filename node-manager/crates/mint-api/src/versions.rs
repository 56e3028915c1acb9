// SPDX-License-Identifier: Apache-2.0
//! Which versions of the interface a daemon speaks.

use std::fmt;
use std::str::FromStr;

use crate::{API_OLDEST, API_VERSION};

/// Versions from the oldest to the newest that a daemon understands. Two daemons can
/// work together if their ranges meet; they then speak the newest that both know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

/// A header's text is no range of versions.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no range of versions: it is written 1-3")]
pub struct ParseVersionsError(String);

impl Versions {
    /// Of this program.
    pub const OURS: Self = Self { oldest: API_OLDEST, newest: API_VERSION };

    /// The newest version that both understand.
    pub fn meet(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.oldest, self.newest)
    }
}

impl FromStr for Versions {
    type Err = ParseVersionsError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range = text.split_once('-').and_then(|(oldest, newest)| {
            Some(Self { oldest: oldest.parse().ok()?, newest: newest.parse().ok()? })
        });
        range
            .filter(|range| range.oldest <= range.newest)
            .ok_or_else(|| ParseVersionsError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_at_the_newest_that_both_know() {
        let range = |text: &str| text.parse::<Versions>().unwrap();
        assert_eq!(range("1-3").meet(range("2-5")), Some(3));
        assert_eq!(range("2-5").meet(range("1-3")), Some(3));
        assert_eq!(range("1-1").meet(range("1-9")), Some(1));
        assert_eq!(range("1-2").meet(range("3-4")), None);
        assert_eq!(range("3-4").meet(range("1-2")), None);
        assert_eq!(range("1-3").to_string(), "1-3");
        for bad in ["", "1", "3-1", "-1-2", "1-2-3", "a-b"] {
            assert!(bad.parse::<Versions>().is_err(), "{bad}");
        }
    }
}
