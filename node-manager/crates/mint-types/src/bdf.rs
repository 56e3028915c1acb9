// SPDX-License-Identifier: Apache-2.0
//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Segment, bus, device and function of a PCI function, e.g. `0000:02:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bdf {
    segment: u16,
    bus: u8,
    device: u8,
    function: u8,
}

/// The text is not an address of a PCI function.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no PCI address: write SSSS:BB:DD.F, e.g. 0000:02:00.0")]
pub struct ParseBdfError(String);

impl Bdf {
    /// From the ledger's id: segment << 16 | bus << 8 | device << 3 | function.
    pub fn from_ledger_id(id: u32) -> Self {
        let [high, low, bus, devfn] = id.to_be_bytes();
        Self {
            segment: u16::from_be_bytes([high, low]),
            bus,
            device: devfn >> 3,
            function: devfn & 7,
        }
    }

    /// The ledger's id of this function.
    pub fn ledger_id(self) -> u32 {
        u32::from(self.segment) << 16
            | u32::from(self.bus) << 8
            | u32::from(self.device) << 3
            | u32::from(self.function)
    }
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.segment, self.bus, self.device, self.function)
    }
}

impl FromStr for Bdf {
    type Err = ParseBdfError;

    /// Takes `0000:02:00.0`, and `02:00.0` for segment 0, as lspci prints them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseBdfError(text.to_owned());
        let hex = |part: &str, digits: usize, max: u16| -> Result<u16, ParseBdfError> {
            let plain = part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u16::from_str_radix(part, 16).map_err(|_| bad())?;
            if plain && value <= max { Ok(value) } else { Err(bad()) }
        };
        let (address, function) = text.rsplit_once('.').ok_or_else(bad)?;
        let parts: Vec<&str> = address.split(':').collect();
        let (segment, bus, device) = match parts[..] {
            [bus, device] => ("0000", bus, device),
            [segment, bus, device] => (segment, bus, device),
            _ => return Err(bad()),
        };
        let byte = |value: u16| u8::try_from(value).map_err(|_| bad());
        Ok(Self {
            segment: hex(segment, 4, u16::MAX)?,
            bus: byte(hex(bus, 2, 0xff)?)?,
            device: byte(hex(device, 2, 31)?)?,
            function: byte(hex(function, 1, 7)?)?,
        })
    }
}

impl TryFrom<String> for Bdf {
    type Error = ParseBdfError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Bdf> for String {
    fn from(bdf: Bdf) -> Self {
        bdf.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_form_means_segment_zero() {
        assert_eq!("02:1f.7".parse::<Bdf>().unwrap().to_string(), "0000:02:1f.7");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "0", "0:0:0.0", "0000:02:20.0", "0000:02:00.8", "+000:02:00.0", "a:b:c:d.e"]
        {
            assert!(text.parse::<Bdf>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn ledger_id_and_text_round_trip(id: u32) {
            let bdf = Bdf::from_ledger_id(id);
            prop_assert_eq!(bdf.ledger_id(), id);
            prop_assert_eq!(bdf.to_string().parse::<Bdf>().unwrap(), bdf);
        }

        #[test]
        fn parser_never_panics(text in "\\PC*") {
            let _ = text.parse::<Bdf>();
        }
    }
}
