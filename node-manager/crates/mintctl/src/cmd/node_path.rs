// SPDX-License-Identifier: Apache-2.0
//! Paths of nodes.

use mint_api::node_path;

use crate::failure::Failure;

/// Path of a node, of a linked machine `MACHINE/NODE`; its name goes into a URL, so only
/// characters of names do.
pub fn path(node: &str, rest: &str) -> Result<String, Failure> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (machine, name) = node.split_once('/').map_or((None, node), |(m, n)| (Some(m), n));
    if !is_name(name) || !machine.is_none_or(is_name) {
        return Err(Failure::usage(format_args!("`{node}` is no node: give its name or id")));
    }
    let slash = if rest.is_empty() { "" } else { "/" };
    Ok(format!("{}{slash}{rest}", node_path(node)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_stay_inside_their_path() {
        assert_eq!(path("web", "kill").unwrap(), "/v1/nodes/web/kill");
        assert_eq!(path("1", "").unwrap(), "/v1/nodes/1");
        assert_eq!(path("b/node1", "vms").unwrap(), "/v1/nodes/b%2Fnode1/vms");
        for bad in ["", "a/b/c", "/b", "a/", "..", "../b", "a b", "a?b", "ü"] {
            assert!(path(bad, "").is_err(), "{bad}");
        }
    }
}
