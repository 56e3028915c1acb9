// SPDX-License-Identifier: Apache-2.0
//! Paths of nodes.

use crate::failure::Failure;

/// Path of a node; its name goes into a URL, so only characters of names do.
pub fn path(node: &str, rest: &str) -> Result<String, Failure> {
    let good =
        !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !good {
        return Err(Failure::usage(format_args!("`{node}` is no node: give its name or id")));
    }
    let slash = if rest.is_empty() { "" } else { "/" };
    Ok(format!("/v1/nodes/{node}{slash}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_stay_inside_their_path() {
        assert_eq!(path("web", "kill").unwrap(), "/v1/nodes/web/kill");
        assert_eq!(path("1", "").unwrap(), "/v1/nodes/1");
        for bad in ["", "a/b", "..", "a b", "a?b", "ü"] {
            assert!(path(bad, "").is_err(), "{bad}");
        }
    }
}
