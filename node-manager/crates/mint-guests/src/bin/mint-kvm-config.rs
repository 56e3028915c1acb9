// SPDX-License-Identifier: Apache-2.0
//! Generates and checks the KVM and libvirt configuration of a node from the node's description.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use mint_guests::facts::Facts;
use mint_guests::guest::{Firmware, GuestRequest, Network};
use mint_guests::{Description, Failure, cli, setup, tools, vxlan, xml};

const PROGRAM: &str = "mint-kvm-config";

/// Generates and checks the KVM and libvirt configuration of a node from the node's description.
///
/// A description is TOML; `describe` prints this node's. Settings: /etc/mint/kvm.toml.
/// Exit: 0 done, 1 failed, 2 usage (a bad description too), 3 refused.
#[derive(Parser)]
#[command(name = PROGRAM, version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the description of the node it runs on.
    Describe,
    /// Writes pool.xml, network.xml, domain.xml (the demo guest), node.toml.
    Generate {
        #[command(flatten)]
        node: NodeArgument,
        /// Folder to write to.
        #[arg(long)]
        output: PathBuf,
    },
    /// Validates those against libvirt's schemas.
    Check {
        /// Folder that `generate` wrote.
        directory: PathBuf,
    },
    /// Generates, checks, makes the bridge, starts dnsmasq, defines and starts pool and network;
    /// what is there already stays.
    Apply {
        #[command(flatten)]
        node: NodeArgument,
    },
    /// Joins the guests' Ethernet with those of linked machines, as mintd says (it runs this).
    Link,
    /// Prints a guest's domain XML.
    Domain(Domain),
}

#[derive(Args)]
struct NodeArgument {
    /// The node's description (default: of the node it runs on).
    #[arg(long, value_name = "FILE")]
    description: Option<PathBuf>,
}

#[derive(Args)]
struct Domain {
    /// Name of the guest.
    name: String,
    #[command(flatten)]
    node: NodeArgument,
    /// How many vCPUs.
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    vcpus: String,
    /// Its memory.
    #[arg(long, value_name = "SIZE", default_value = "128M", allow_hyphen_values = true)]
    memory: String,
    /// CPUs of the node for its vCPUs, in this order (default: the node's, the first last).
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pin: Option<String>,
    /// Kernel to boot.
    #[arg(long, value_name = "FILE")]
    kernel: Option<String>,
    /// Initrd to boot with it.
    #[arg(long, value_name = "FILE")]
    initrd: Option<String>,
    /// Its kernel command line.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cmdline: Option<String>,
    /// Its disk: a file or block device.
    #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
    disk: Option<String>,
    /// A card on the node's bridge.
    #[arg(long, overrides_with = "user_network")]
    network: bool,
    /// A card of QEMU's own, behind the node's addresses.
    #[arg(long, overrides_with = "network")]
    user_network: bool,
    /// MAC address of the card.
    #[arg(long, allow_hyphen_values = true)]
    mac: Option<String>,
    /// Its disk's system is started by UEFI, not by a BIOS.
    #[arg(long, conflicts_with = "kernel")]
    uefi: bool,
}

impl NodeArgument {
    /// The description and its text.
    fn load(&self, facts: &Facts) -> Result<(Description, String), Failure> {
        let Some(path) = &self.description else {
            let node = facts.describe()?;
            node.check().map_err(Failure::Usage)?;
            let text = node.to_toml()?;
            return Ok((node, text));
        };
        let node = Description::load(path)?;
        // as it was written, comments too
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))?;
        Ok((node, text))
    }
}

impl Domain {
    fn request(self) -> GuestRequest {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let network = match (self.network, self.user_network) {
            (true, _) => Network::Bridge,
            (_, true) => Network::User,
            _ => Network::None,
        };
        GuestRequest {
            name: self.name,
            vcpus: self.vcpus,
            memory: self.memory,
            pin: filled(self.pin),
            kernel: filled(self.kernel),
            initrd: filled(self.initrd),
            cmdline: filled(self.cmdline),
            disk: filled(self.disk),
            network,
            mac: filled(self.mac),
            firmware: if self.uefi { Firmware::Uefi } else { Firmware::Bios },
            ..GuestRequest::new("")
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    let facts = Facts::new(Path::new("/"));
    match command {
        Command::Describe => print!("{}", facts.describe()?.to_toml()?),
        Command::Generate { node, output } => {
            let (node, text) = node.load(&facts)?;
            setup::generate(&node, &text, &output)?;
        }
        Command::Check { directory } => setup::check(&directory, &mut tools::Path)?,
        Command::Apply { node } => {
            let (node, text) = node.load(&facts)?;
            setup::apply(&node, &text, &facts, &mut tools::Path)?;
        }
        Command::Link => vxlan::apply(&facts, &mut tools::Path)?,
        Command::Domain(domain) => {
            let (node, _) = domain.node.load(&facts)?;
            print!("{}", xml::domain(&domain.request().on(&node)?));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match cli::parse::<Cli>(PROGRAM) {
        Ok(cli) => cli::end(PROGRAM, run(cli.command)),
        Err(code) => code,
    }
}
