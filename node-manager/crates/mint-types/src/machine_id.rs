// SPDX-License-Identifier: Apache-2.0
//! Which machine: what tells its nodes from those of another one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// Id of a machine: 128 bits that node 0 drew once, written as 32 hexadecimal digits.
/// It stays the same as long as node 0's state does, and all nodes have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineId(u128);

/// Not the id of a machine.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no machine id: 32 digits of 0-9 and a-f, not all of them 0")]
pub struct ParseMachineIdError(String);

impl MachineId {
    /// From random bytes; `None` if they are all 0, as those of a broken source are.
    pub fn from_random(bytes: [u8; 16]) -> Option<Self> {
        Some(u128::from_be_bytes(bytes)).filter(|&id| id != 0).map(Self)
    }
}

/// A node among those of all machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PeerId {
    /// Its machine.
    pub machine: MachineId,
    /// The node.
    pub node: NodeId,
}

/// Its name in certificates.
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}.{}.mint", self.node, self.machine)
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for MachineId {
    type Err = ParseMachineIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let good = text.len() == 32 && text.bytes().all(digits);
        let id = good.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.filter(|&id| id != 0).map(Self).ok_or_else(|| ParseMachineIdError(text.to_owned()))
    }
}

impl TryFrom<String> for MachineId {
    type Error = ParseMachineIdError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MachineId> for String {
    fn from(id: MachineId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_32_digits_and_not_nothing() {
        let text = "00ff0000000000000000000000000a01";
        let id: MachineId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{text}\""));
        let long = format!("{text}0");
        for bad in ["", "+0ff0000000000000000000000000a01", &text.to_uppercase(), &long] {
            assert!(bad.parse::<MachineId>().is_err(), "{bad}");
        }
        assert!("0".repeat(32).parse::<MachineId>().is_err());
        assert_eq!(MachineId::from_random([0; 16]), None);
    }
}
