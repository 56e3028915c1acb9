// SPDX-License-Identifier: Apache-2.0
//! What `mint-kvm-config` does: files for libvirt, their check, and the node made so.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::Deserialize;

use crate::bridge;
use crate::description::Description;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::guest::GuestRequest;
use crate::tools::{Tools, must, virsh_limited};
use crate::xml;

/// What libvirt's schemas call the content of each file.
const FILES: [(&str, &str); 3] =
    [("pool.xml", "storagepool"), ("network.xml", "network"), ("domain.xml", "domain")];

/// Writes pool.xml, network.xml, domain.xml (the demo guest) and node.toml, whose text is
/// `description`, into a folder.
///
/// # Errors
/// When the node is too small for the demo guest, or a file cannot be written.
pub fn generate(node: &Description, description: &str, folder: &Path) -> Result<(), Failure> {
    let demo = GuestRequest {
        kernel: Some("/boot/vmlinuz-mint".to_owned()),
        initrd: Some("/boot/guest.initrd".to_owned()),
        cmdline: Some("console=ttyS0".to_owned()),
        ..GuestRequest::new("demo")
    };
    let files = [
        ("pool.xml", xml::pool(&node.pool_path)),
        ("network.xml", xml::network(&node.bridge)),
        ("domain.xml", xml::domain(&demo.on(node)?)),
        ("node.toml", description.to_owned()),
    ];
    let failed = |what: &Path, error: std::io::Error| {
        Failure::Failed(format!("cannot write {}: {error}", what.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Validates the files of [`generate`] against libvirt's schemas.
///
/// # Errors
/// When a file is not what libvirt understands, or `virt-xml-validate` is not there.
pub fn check(folder: &Path, tools: &mut dyn Tools) -> Result<(), Failure> {
    for (name, schema) in FILES {
        let path = folder.join(name).display().to_string();
        let ended = tools.run(&["virt-xml-validate", &path, schema], "").map_err(|error| {
            Failure::Failed(format!(
                "virt-xml-validate is not here ({error}); it is in Debian's libvirt-clients"
            ))
        })?;
        if !ended.ok {
            let said = format!("{}{}", ended.out, ended.err);
            return Err(Failure::Failed(format!(
                "{path} is not what libvirt understands: {}",
                said.trim()
            )));
        }
    }
    Ok(())
}

/// Makes the node what the description says: files, bridge, routes, pool and network. What is
/// there already stays; nothing is changed unless all can be.
///
/// # Errors
/// As [`generate`], [`check`] and [`bridge::plan`]; and when `ip` or libvirt refuse.
pub fn apply(
    node: &Description,
    description: &str,
    facts: &Facts,
    tools: &mut dyn Tools,
) -> Result<(), Failure> {
    let commands = bridge::plan(node, &facts.bridge(node))?;
    let folder = facts.path("run/mint/kvm");
    generate(node, description, &folder)?;
    check(&folder, tools)?;
    for command in &commands {
        let words: Vec<&str> =
            ["ip"].into_iter().chain(command.iter().map(String::as_str)).collect();
        must(tools, &words, "", || {
            format!("cannot set up the bridge {}: {}", node.bridge, words.join(" "))
        })?;
    }
    let forward = facts.path("proc/sys/net/ipv4/ip_forward");
    fs::write(&forward, "1\n").map_err(|error| {
        Failure::Failed(format!(
            "cannot let packets of guests through ({}): {error}",
            forward.display()
        ))
    })?;
    if let Some(address) = address_on_mint0(tools) {
        must(tools, &["ip", "-batch", "-"], &bridge::routes(node.id, address), || {
            "cannot set the routes to the other nodes' guests".to_owned()
        })?;
    }
    for (kind, file) in [("pool", "pool.xml"), ("net", "network.xml")] {
        define(kind, &folder.join(file), tools)?;
    }
    Ok(())
}

/// What `ip -json address show` says of a device.
#[derive(Deserialize)]
struct Interface {
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    local: Ipv4Addr,
}

/// This node's own address on mint0, if it has that.
fn address_on_mint0(tools: &mut dyn Tools) -> Option<Ipv4Addr> {
    let shown = tools.run(&["ip", "-json", "-4", "address", "show", "dev", "mint0"], "").ok()?;
    let interfaces: Vec<Interface> = serde_json::from_str(&shown.out).ok()?;
    Some(interfaces.first().filter(|_| shown.ok)?.addr_info.first()?.local)
}

/// Defines and starts the pool or network, unless it is there or runs.
fn define(kind: &str, file: &Path, tools: &mut dyn Tools) -> Result<(), Failure> {
    let list = format!("{kind}-list");
    let known = must(tools, &virsh_limited(&[&list, "--all"]), "", || {
        format!("libvirt does not answer: virsh {list}")
    })?;
    let state = known.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(xml::POOL)).then(|| words.next().unwrap_or_default())
    });
    let path = file.display().to_string();
    let failed = || format!("libvirt could not start the {kind} '{}' of {path}", xml::POOL);
    let start = format!("{kind}-start {}", xml::POOL);
    match state {
        Some("active") => return Ok(()),
        // one virsh for both: each is a process and a connection
        None => {
            must(tools, &virsh_limited(&[&format!("{kind}-define {path}; {start}")]), "", failed)?
        }
        Some(_) => must(tools, &virsh_limited(&[&start]), "", failed)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::tree;
    use crate::tools::tests::Played;

    const MINT0: &str = r#"[{"ifname":"mint0","flags":["UP"],"addr_info":[{"family":"inet",
        "local":"10.77.0.11","prefixlen":24,"scope":"global"}]}]"#;

    fn applied(facts: &Facts, uplink: &str, tools: &mut Played) -> Result<(), Failure> {
        let node = Description { uplink: uplink.to_owned(), ..facts.describe().unwrap() };
        apply(&node, &node.to_toml().unwrap(), facts, tools)
    }

    #[test]
    fn all_is_made_once() {
        let (folder, facts) = tree();
        let mut tools = Played::default().answer("mint0", true, MINT0);
        applied(&facts, "", &mut tools).unwrap();
        let ran = tools.lines.join("\n");
        for wanted in [
            "ip link add mintbr0",
            "pool-define",
            "pool-start mint",
            "net-define",
            "net-start mint",
        ] {
            assert!(ran.contains(wanted), "{wanted}:\n{ran}");
        }
        let batch = tools.lines.iter().position(|line| line == "ip -batch -").unwrap();
        assert_eq!(tools.inputs[batch].lines().count(), 15);
        let forward = folder.path().join("proc/sys/net/ipv4/ip_forward");
        assert_eq!(fs::read_to_string(forward).unwrap(), "1\n");

        let mut again = Played::default().answer("-list --all", true, " mint   active   no\n");
        applied(&facts, "", &mut again).unwrap();
        assert!(!again.lines.iter().any(|line| line.contains("define") || line.contains("-start")));
        assert!(!again.lines.iter().any(|line| line.contains("-batch")), "no mint0, no routes");
    }

    #[test]
    fn mint0_without_an_address_has_no_routes() {
        for shown in ["[{}]", "[]", r#"[{"ifname":"mint0","addr_info":[]}]"#, ""] {
            let (_folder, facts) = tree();
            let mut tools = Played::default().answer("mint0", true, shown);
            applied(&facts, "", &mut tools).unwrap();
            assert!(!tools.lines.iter().any(|line| line.contains("-batch")), "{shown}");
        }
    }

    #[test]
    fn inactive_pool_is_started_not_defined() {
        let (_folder, facts) = tree();
        let mut tools = Played::default().answer("-list --all", true, " mint   inactive   no\n");
        applied(&facts, "", &mut tools).unwrap();
        let ran = tools.lines.join("\n");
        assert!(ran.contains("pool-start mint") && !ran.contains("define"), "{ran}");
    }

    #[test]
    fn refused_uplink_changes_nothing() {
        let (folder, facts) = tree();
        let mut tools = Played::default();
        let failure = applied(&facts, "eth0", &mut tools);
        assert!(matches!(failure, Err(Failure::Refused(_))), "{failure:?}");
        assert_eq!(tools.lines, Vec::<String>::new());
        assert!(!folder.path().join("run/mint/kvm").exists());
    }

    #[test]
    fn file_that_libvirt_does_not_take_stops_before_the_bridge() {
        let (_folder, facts) = tree();
        let mut tools = Played::default().answer("virt-xml-validate", false, "fails to validate");
        let Err(Failure::Failed(text)) = applied(&facts, "", &mut tools) else { panic!() };
        assert!(text.contains("pool.xml") && text.contains("fails to validate"), "{text}");
        assert_eq!(tools.lines.len(), 1);
    }

    #[test]
    fn libvirt_that_does_not_answer_is_told() {
        let (_folder, facts) = tree();
        let mut tools = Played::default().answer("pool-list", false, "timed out");
        let Err(Failure::Failed(text)) = applied(&facts, "", &mut tools) else { panic!() };
        assert!(text.contains("libvirt does not answer") && text.contains("timed out"), "{text}");
    }
}
