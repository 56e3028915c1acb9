// SPDX-License-Identifier: Apache-2.0
//! Time limits that people give: checked when they are read, before any work is done.

use serde::{Deserialize, Deserializer, de::Error};

/// The longest limit, in seconds: a year. What is added to a clock cannot overflow it.
pub const LIMIT_S_MAX: u64 = 365 * 24 * 60 * 60;

fn check<E: Error>(seconds: u64) -> Result<u64, E> {
    if seconds <= LIMIT_S_MAX {
        return Ok(seconds);
    }
    Err(E::custom(format_args!(
        "{seconds} s is too long a time limit: at most {LIMIT_S_MAX} s (a year)"
    )))
}

/// Reads a limit in seconds: `#[serde(deserialize_with = "mint_types::limit_s")]`.
///
/// # Errors
/// When it is longer than [`LIMIT_S_MAX`].
pub fn limit_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    check(u64::deserialize(deserializer)?)
}

/// The same where none may be given; needs `#[serde(default)]`, too.
///
/// # Errors
/// When it is longer than [`LIMIT_S_MAX`].
pub fn limit_s_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    Option::<u64>::deserialize(deserializer)?.map(check).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    struct Limits {
        #[serde(deserialize_with = "limit_s")]
        one: u64,
        #[serde(default, deserialize_with = "limit_s_or_none")]
        two: Option<u64>,
    }

    #[test]
    fn limit_beyond_a_year_is_refused() {
        let read = |text: &str| serde_json::from_str::<Limits>(text);
        let limits = read(r#"{"one":31536000,"two":31536000}"#).unwrap();
        assert_eq!((limits.one, limits.two), (LIMIT_S_MAX, Some(LIMIT_S_MAX)));
        assert_eq!(read(r#"{"one":0}"#).unwrap().two, None);
        assert_eq!(read(r#"{"one":0,"two":null}"#).unwrap().two, None);
        for text in [r#"{"one":31536001}"#, r#"{"one":0,"two":18446744073709551615}"#] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("at most 31536000 s"), "{error}");
        }
    }
}
