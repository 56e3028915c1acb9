// SPDX-License-Identifier: Apache-2.0
//! The command line of `mintctl machine`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use mint_types::NodeName;

/// `machine …`.
#[derive(Subcommand, Debug)]
pub enum MachineCommand {
    /// This machine, and those that it is linked with
    Show,
    /// Print what another machine needs to be linked with this one; nothing of it is secret
    Introduce,
    /// Link another machine: its nodes are NAME/node0, NAME/node1, …
    ///
    /// Say it on the node that is on a network with a node of the other machine, and the same
    /// there. Each needs what `mintctl machine introduce` printed on the other.
    Link(LinkArgs),
    /// Forget a linked machine
    Unlink {
        /// What this machine calls it
        name: NodeName,
    },
    /// End the whole machine in an orderly way: guests, nodes, node 0
    Poweroff,
    /// End it, and start it again
    Reboot,
}

/// `machine link`.
#[derive(ClapArgs, Debug)]
pub struct LinkArgs {
    /// What this machine is to call it
    pub name: NodeName,
    /// Address of its node on the network that both are on
    #[arg(long)]
    pub address: Ipv4Addr,
    /// What that node's `mintctl machine introduce` printed; - for standard input
    #[arg(long, value_name = "FILE")]
    pub ca: PathBuf,
}
