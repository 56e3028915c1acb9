// SPDX-License-Identifier: Apache-2.0
//! Sets of machine CPU numbers, written as Linux writes CPU lists.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Largest CPU number a list may name; far above what the ledger holds, so
/// that `0-4294967295` is an error and not an hour of work.
const CPU_NUMBER_MAX: u32 = 65_535;

/// A set of machine CPU numbers (node 0's numbering at boot).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// The text is not a CPU list.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no CPU list: write numbers and ranges, e.g. 2-3,5")]
pub struct ParseCpuSetError(String);

impl CpuSet {
    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Numbers in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseCpuSetError(text.to_owned());
        let number = |digits: &str| -> Result<u32, ParseCpuSetError> {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            digits.parse().ok().filter(|&cpu| cpu <= CPU_NUMBER_MAX).ok_or_else(bad)
        };
        let mut set = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(bad());
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseCpuSetError;
    /// Unlike [`FromStr`], takes the empty text: a node may own no CPU.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.is_empty() { Ok(Self::default()) } else { text.parse() }
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_written_as_linux_does() {
        assert_eq!("5,2-3,4,9".parse::<CpuSet>().unwrap().to_string(), "2-5,9");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", ",", "1-", "-1", "3-2", "a", "1,,2", "0-4294967295", "+1", "1 2"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(cpus in proptest::collection::btree_set(0u32..300, 1..40)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn parser_never_panics(text in "\\PC*") {
            let _ = text.parse::<CpuSet>();
        }
    }
}
