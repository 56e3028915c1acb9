// SPDX-License-Identifier: Apache-2.0
//! CPU lists whose order counts: guests' vCPUs are pinned in it.

use std::fmt;

use mint_types::CpuSet;
use serde::{Deserialize, Serialize};

/// A list like `2,0-1`: the text as it was given, and its numbers in that order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList {
    text: String,
    numbers: Vec<u32>,
}

impl CpuList {
    /// Parses a list as Linux writes it; unlike in [`CpuSet`] its parts may come in any order,
    /// and more than once.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            numbers.extend(part.parse::<CpuSet>().ok()?.iter());
        }
        Some(Self { text: text.to_owned(), numbers })
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Linux CPU numbers, in the order of the text.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Whether a CPU is in it more than once.
    pub fn repeats(&self) -> bool {
        self.numbers.iter().copied().collect::<CpuSet>().len() != self.numbers.len()
    }

    /// The same CPUs, the first of them last.
    pub fn first_last(&self) -> Vec<u32> {
        let mut numbers = self.numbers.clone();
        numbers.rotate_left(1);
        numbers
    }
}

impl TryFrom<String> for CpuList {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
            .ok_or_else(|| format!("cpus must be a list like \"0-1,4\", not '{text}'"))
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.text
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_the_text_is_kept() {
        let list = CpuList::parse("5,0-2").unwrap();
        assert_eq!(list.numbers(), [5, 0, 1, 2]);
        assert_eq!(list.first_last(), [0, 1, 2, 5]);
        assert!(!list.repeats());
        assert!(CpuList::parse("0,0-1").unwrap().repeats());
    }

    #[test]
    fn nonsense_is_no_list() {
        for text in ["", "0-", "a", "1,,2", "3-2", "0-4294967295"] {
            assert_eq!(CpuList::parse(text), None, "{text}");
        }
    }
}
