// SPDX-License-Identifier: Apache-2.0
//! What a running node shall have more or less of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Bdf, CpuSet, MemoryRequest};

/// Other cores for a node: `4-5` (these and no others), `+1`, `-1`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CpuChange {
    /// These and no others, by machine CPU number.
    To(CpuSet),
    /// So many more, whichever are free or can be released.
    More(u32),
    /// So many less: ones that can go, of the highest numbers.
    Less(u32),
}

/// Other memory for a node: `2G` (in all), `+512M@numa1`, `-512M`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemoryChange {
    /// So much in all; with a place, so much there.
    To(MemoryRequest),
    /// So much more.
    More(MemoryRequest),
    /// So much less.
    Less(MemoryRequest),
}

/// The text is no change of cores or of memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseChangeError {
    /// Of cores.
    #[error("`{0}` is no change of cores: write a list like 4-5, or +1, or -1")]
    Cpus(String),
    /// Of memory.
    #[error("`{0}` is no change of memory: write e.g. 2G, +512M, -512M or +1G@numa1")]
    Memory(String),
}

impl FromStr for CpuChange {
    type Err = ParseChangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseChangeError::Cpus(text.to_owned());
        let count = |digits: &str| -> Result<u32, ParseChangeError> {
            let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|&n| all_digits && n > 0).ok_or_else(bad)
        };
        if let Some(more) = text.strip_prefix('+') {
            return Ok(Self::More(count(more)?));
        }
        if let Some(less) = text.strip_prefix('-') {
            return Ok(Self::Less(count(less)?));
        }
        let list: CpuSet = text.parse().map_err(|_| bad())?;
        if list.is_empty() { Err(bad()) } else { Ok(Self::To(list)) }
    }
}

impl FromStr for MemoryChange {
    type Err = ParseChangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let request = |text: &str| -> Result<MemoryRequest, ParseChangeError> {
            text.parse().map_err(|_| ParseChangeError::Memory(text.to_owned()))
        };
        Ok(match text.split_at_checked(1) {
            Some(("+", more)) => Self::More(request(more)?),
            Some(("-", less)) => Self::Less(request(less)?),
            _ => Self::To(request(text)?),
        })
    }
}

impl fmt::Display for CpuChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(list) => list.fmt(f),
            Self::More(count) => write!(f, "+{count}"),
            Self::Less(count) => write!(f, "-{count}"),
        }
    }
}

impl fmt::Display for MemoryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(request) => request.fmt(f),
            Self::More(request) => write!(f, "+{request}"),
            Self::Less(request) => write!(f, "-{request}"),
        }
    }
}

macro_rules! text_form {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = ParseChangeError;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(change: $type) -> Self {
                change.to_string()
            }
        }
    };
}

text_form!(CpuChange);
text_form!(MemoryChange);

/// One request to change what a node owns: all of it is done, or none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeSpec {
    /// Which cores it is to own, or how many more or fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuChange>,
    /// How much memory it is to own, or how much more or less.
    #[serde(default)]
    pub memory: Vec<MemoryChange>,
    /// PCI functions that it gets.
    #[serde(default)]
    pub devices: Vec<Bdf>,
    /// PCI functions that it gives up.
    #[serde(default)]
    pub drop_devices: Vec<Bdf>,
    /// NUMA node for cores of `+N`, and for memory without a place of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Nodes that what it gets is taken from, while they run, too, if it is not
    /// free; none named: the node where the plan is made.
    #[serde(default)]
    pub from: Vec<String>,
    /// Node that gets what it gives up; else node 0 gets cores and functions,
    /// and memory stays free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl ResizeSpec {
    /// Whether it asks for anything at all.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_none()
            && self.memory.is_empty()
            && self.devices.is_empty()
            && self.drop_devices.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn changes_are_read_as_they_are_written() {
        assert_eq!("+1".parse(), Ok(CpuChange::More(1)));
        assert_eq!("-2".parse(), Ok(CpuChange::Less(2)));
        assert_eq!("4-5".parse(), Ok(CpuChange::To("4-5".parse().unwrap())));
        let half = |numa| MemoryRequest { bytes: 512 << 20, numa };
        assert_eq!("512M".parse(), Ok(MemoryChange::To(half(None))));
        assert_eq!("+512M@numa1".parse(), Ok(MemoryChange::More(half(Some(1)))));
        assert_eq!("-512M".parse(), Ok(MemoryChange::Less(half(None))));
    }

    #[test]
    fn nonsense_is_no_change() {
        for text in ["", "+", "-", "+0", "--1", "+-1", "+1-2", "1,", "x"] {
            assert!(text.parse::<CpuChange>().is_err(), "{text}");
        }
        for text in ["", "+", "-", "+0", "--1G", "1Q", "+x"] {
            assert!(text.parse::<MemoryChange>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(count in 1u32.., bytes in 1u64..) {
            for change in [CpuChange::More(count), CpuChange::Less(count)] {
                prop_assert_eq!(change.to_string().parse::<CpuChange>().unwrap(), change);
            }
            let request = MemoryRequest { bytes, numa: Some(1) };
            for change in
                [MemoryChange::To(request), MemoryChange::More(request), MemoryChange::Less(request)]
            {
                prop_assert_eq!(change.to_string().parse::<MemoryChange>().unwrap(), change);
            }
        }

        #[test]
        fn parsers_never_panic(text in "\\PC*") {
            let _ = text.parse::<CpuChange>();
            let _ = text.parse::<MemoryChange>();
        }
    }
}
