// SPDX-License-Identifier: Apache-2.0
//! Amounts of memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// So much memory, from one NUMA node of the machine or from any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemoryRequest {
    /// As asked for; the planner rounds it up to whole blocks.
    pub bytes: u64,
    /// NUMA node of the machine that it has to come from.
    pub numa: Option<u32>,
}

/// The text is no amount of memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no amount of memory: write e.g. 768M, 1G or 1G@numa1")]
pub struct ParseMemoryError(String);

/// Bytes of `1G`, `768M`, `4096K`, `2T` (powers of 1024; `GiB`, `GB`, `g` too)
/// or a bare number of bytes.
///
/// # Errors
/// When the text is anything else, is zero, or does not fit 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseMemoryError> {
    let bad = || ParseMemoryError(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or_else(bad)
}

/// Bytes of a setting that bounds something: `0` allows nothing, no text sets no bound.
///
/// # Errors
/// When the text is neither that nor an amount of memory.
pub fn parse_bound(text: &str) -> Result<Option<u64>, ParseMemoryError> {
    match text {
        "" => Ok(None),
        "0" => Ok(Some(0)),
        text => parse_bytes(text).map(Some),
    }
}

/// Bytes with the largest unit that divides them: `1G`, `768M`, `1536M`.
pub fn format_bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A comma-separated list of requests: `1G@numa0,512M@numa1`.
///
/// # Errors
/// When one of them is no amount of memory.
pub fn parse_memory_list(text: &str) -> Result<Vec<MemoryRequest>, ParseMemoryError> {
    text.split(',').map(str::parse).collect()
}

impl FromStr for MemoryRequest {
    type Err = ParseMemoryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseMemoryError(text.to_owned());
        let (amount, numa) = match text.split_once('@') {
            None => (text, None),
            Some((amount, place)) => {
                let digits = place.strip_prefix("numa").unwrap_or(place);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(bad());
                }
                (amount, Some(digits.parse().map_err(|_| bad())?))
            }
        };
        Ok(Self { bytes: parse_bytes(amount).map_err(|_| bad())?, numa })
    }
}

impl fmt::Display for MemoryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_bytes(self.bytes))?;
        match self.numa {
            Some(numa) => write!(f, "@numa{numa}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for MemoryRequest {
    type Error = ParseMemoryError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MemoryRequest> for String {
    fn from(request: MemoryRequest) -> Self {
        request.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_and_places() {
        let request: MemoryRequest = "1G@numa1".parse().unwrap();
        assert_eq!(request, MemoryRequest { bytes: 1 << 30, numa: Some(1) });
        assert_eq!("768MiB@0".parse::<MemoryRequest>().unwrap().to_string(), "768M@numa0");
        assert_eq!(parse_memory_list("1G@numa0,512M").unwrap().len(), 2);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "G", "1Q", "-1G", "0", "0M", "1G@", "1G@numa", "1G@x", "99999999T", "1.5G"]
        {
            assert!(text.parse::<MemoryRequest>().is_err(), "{text}");
        }
    }

    #[test]
    fn bound_may_be_nothing_or_none() {
        assert_eq!(parse_bound(""), Ok(None));
        assert_eq!((parse_bound("0"), parse_bound("2G")), (Ok(Some(0)), Ok(Some(2 << 30))));
        assert!(parse_bound("much").is_err());
    }

    proptest! {
        #[test]
        fn text_round_trips(bytes in 1u64.., numa in proptest::option::of(0u32..64)) {
            let request = MemoryRequest { bytes, numa };
            prop_assert_eq!(request.to_string().parse::<MemoryRequest>().unwrap(), request);
        }

        #[test]
        fn parser_never_panics(text in "\\PC*") {
            let _ = text.parse::<MemoryRequest>();
        }
    }
}
