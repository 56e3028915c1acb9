// SPDX-License-Identifier: Apache-2.0
//! What `mint-kvm-config` does: files for libvirt, their check, and the node made so.

use std::fs;
use std::io;
use std::path::Path;

use crate::bridge;
use crate::description::Description;
use crate::dhcp;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::guest::GuestRequest;
use crate::tools::{Tools, must, virsh_limited};
use crate::vxlan;
use crate::xml;

/// What libvirt's schemas call the content of each file.
const FILES: [(&str, &str); 3] =
    [("pool.xml", "storagepool"), ("network.xml", "network"), ("domain.xml", "domain")];

/// dnsmasq's configuration, where the node gives guests their addresses.
const DHCP: &str = "dnsmasq.conf";

/// Writes pool.xml, network.xml, domain.xml (the demo guest), dnsmasq.conf where the node gives
/// guests their addresses, and node.toml, whose text is `description`, into a folder.
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
    let failed = |what: &Path, error: io::Error| {
        Failure::Failed(format!("cannot write {}: {error}", what.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    let path = folder.join(DHCP);
    if dhcp::serves(node) {
        let text = dhcp::config(node, Path::new(dhcp::LEASES));
        return fs::write(&path, text).map_err(|error| failed(&path, error));
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path, error)),
        _ => Ok(()),
    }
}

/// Validates the files of [`generate`] against libvirt's schemas, and by dnsmasq itself.
///
/// # Errors
/// When a file is not what its reader understands, or the program that looks is not there.
pub fn check(folder: &Path, tools: &mut dyn Tools) -> Result<(), Failure> {
    for (name, schema) in FILES {
        let path = folder.join(name).display().to_string();
        let words = ["virt-xml-validate", &path, schema];
        validate(&words, &path, "libvirt", "libvirt-clients", tools)?;
    }
    if folder.join(DHCP).exists() {
        let path = folder.join(DHCP).display().to_string();
        let file = format!("--conf-file={path}");
        validate(&["dnsmasq", "--test", &file], &path, "dnsmasq", "dnsmasq-base", tools)?;
    }
    Ok(())
}

/// One file, by the program that reads it.
fn validate(
    words: &[&str],
    path: &str,
    reader: &str,
    package: &str,
    tools: &mut dyn Tools,
) -> Result<(), Failure> {
    let ended = tools.run(words, "").map_err(|error| {
        Failure::Failed(format!("{} is not here ({error}); it is in Debian's {package}", words[0]))
    })?;
    if ended.ok {
        return Ok(());
    }
    let said = format!("{}{}", ended.out, ended.err);
    Err(Failure::Failed(format!("{path} is not what {reader} understands: {}", said.trim())))
}

/// Makes the node what the description says: files, bridge, pool and network. What is
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
    let steps = bridge::plan(node, &facts.bridge(node))?;
    let folder = facts.path("run/mint/kvm");
    generate(node, description, &folder)?;
    check(&folder, tools)?;
    let serves = dhcp::serves(node);
    // before the bridge is on another Ethernet
    if !serves && facts.path(dhcp::PID_FILE).exists() {
        control_dhcp("stop", facts, tools)?;
    }
    for step in &steps {
        take(step, &node.bridge, facts, tools)?;
    }
    if serves {
        control_dhcp("restart", facts, tools)?;
    }
    for (kind, file) in [("pool", "pool.xml"), ("net", "network.xml")] {
        define(kind, &folder.join(file), tools)?;
    }
    vxlan::apply(facts, tools)
}

/// Tells the node's service manager to restart or stop dnsmasq.
fn control_dhcp(action: &str, facts: &Facts, tools: &mut dyn Tools) -> Result<(), Failure> {
    let own = ["mint-service", action, "dnsmasq"];
    // the unit waits for the one that calls this
    let systemd = ["systemctl", "--no-block", action, "mint-dhcp"];
    let systemd_stop = ["systemctl", action, "mint-dhcp"];
    let words: &[&str] = match action {
        _ if facts.path("usr/sbin/mint-service").exists() => &own,
        "stop" => &systemd_stop,
        _ => &systemd,
    };
    must(tools, words, "", || {
        format!("cannot {action} dnsmasq, which gives guests their addresses: {}", words.join(" "))
    })?;
    Ok(())
}

/// Takes one step towards the bridge.
fn take(
    step: &bridge::Step,
    bridge: &str,
    facts: &Facts,
    tools: &mut dyn Tools,
) -> Result<(), Failure> {
    match step {
        bridge::Step::Ip(command) => {
            let words: Vec<&str> = ["ip"].into_iter().chain(command.split(' ')).collect();
            must(tools, &words, "", || {
                format!("cannot set up the bridge {bridge}: {}", words.join(" "))
            })?;
            Ok(())
        }
        bridge::Step::Set(path, value) => {
            let path = facts.path(path);
            fs::write(&path, format!("{value}\n")).map_err(|error| {
                let text = format!("cannot set {} to {value}: {error}", path.display());
                Failure::Failed(text)
            })
        }
    }
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

    fn applied(facts: &Facts, uplink: &str, tools: &mut Played) -> Result<(), Failure> {
        let node = Description { uplink: uplink.to_owned(), ..facts.describe().unwrap() };
        apply(&node, &node.to_toml().unwrap(), facts, tools)
    }

    #[test]
    fn all_is_made_once() {
        let (folder, facts) = tree();
        let mut tools = Played::default();
        applied(&facts, "", &mut tools).unwrap();
        let ran = tools.lines.join("\n");
        for wanted in [
            "dnsmasq --test",
            "ip link add mintbr0",
            "ip link set mint0.78 up master mintbr0",
            "ip address replace 10.78.0.11/16 dev mintbr0",
            "pool-define",
            "pool-start mint",
            "net-define",
            "net-start mint",
        ] {
            assert!(ran.contains(wanted), "{wanted}:\n{ran}");
        }
        for (setting, value) in [
            ("ipv4/ip_forward", "1\n"),
            ("ipv4/conf/mintbr0/arp_announce", "2\n"),
            ("ipv6/conf/mintbr0/accept_ra", "0\n"),
        ] {
            let path = folder.path().join("proc/sys/net").join(setting);
            assert_eq!(fs::read_to_string(path).unwrap(), value, "{setting}");
        }
        let config = folder.path().join("run/mint/kvm/dnsmasq.conf");
        assert!(fs::read_to_string(&config).unwrap().contains("interface=mintbr0\n"));

        let mut again = Played::default().answer("-list --all", true, " mint   active   no\n");
        applied(&facts, "", &mut again).unwrap();
        assert!(!again.lines.iter().any(|line| line.contains("define") || line.contains("-start")));

        let restarts = |tools: &Played| {
            tools.lines.iter().position(|line| line == "systemctl --no-block restart mint-dhcp")
        };
        let up = again.lines.iter().position(|line| line == "ip link set mintbr0 up");
        assert!(restarts(&again) > up && up.is_some());

        // an uplink since: its Ethernet has a DHCP server of its own
        fs::remove_file(folder.path().join("sys/class/net/eth1/master")).unwrap();
        fs::write(folder.path().join(dhcp::PID_FILE), "7\n").unwrap();
        let mut joining = Played::default();
        applied(&facts, "eth1", &mut joining).unwrap();
        assert!(!config.exists() && restarts(&joining).is_none());
        let at = |wanted: &str| joining.lines.iter().position(|line| line == wanted);
        let joins = at("ip link set eth1 up master mintbr0");
        assert!(at("systemctl stop mint-dhcp") < joins && at("systemctl stop mint-dhcp").is_some());
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

        let mut tools = Played::default().answer("dnsmasq", false, "bad option at line 3");
        let Err(Failure::Failed(text)) = applied(&facts, "", &mut tools) else { panic!() };
        assert!(text.contains("dnsmasq.conf is not what dnsmasq understands"), "{text}");
        assert!(!tools.lines.iter().any(|line| line.starts_with("ip ")));
    }

    #[test]
    fn libvirt_that_does_not_answer_is_told() {
        let (_folder, facts) = tree();
        let mut tools = Played::default().answer("pool-list", false, "timed out");
        let Err(Failure::Failed(text)) = applied(&facts, "", &mut tools) else { panic!() };
        assert!(text.contains("libvirt does not answer") && text.contains("timed out"), "{text}");
    }
}
