// SPDX-License-Identifier: Apache-2.0
//! The command line of `mintctl layout`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use mint_types::LayoutPolicy;

use super::VmArgs;

/// `layout …`. Places of guests on the NUMA nodes of their node.
#[derive(Subcommand, Debug)]
pub enum LayoutCommand {
    /// NUMA nodes of a node, and which guests have CPUs and memory there
    Show {
        #[command(flatten)]
        node: NodeArgs,
        /// Again each second
        #[arg(long)]
        watch: bool,
        /// Draw it into a file
        #[arg(long, value_name = "FILE", conflicts_with = "watch")]
        svg: Option<PathBuf>,
    },
    /// Why a guest is where it is: what was expected of it, what came of it, what was moved for it
    Explain(VmArgs),
    /// What was measured of a guest, second by second
    Counters {
        #[command(flatten)]
        vm: VmArgs,
        /// Again each second
        #[arg(long)]
        watch: bool,
    },
    /// What a policy would change
    Plan(PolicyArgs),
    /// Change it: guests get other CPUs, and their memory other NUMA nodes
    Apply(PolicyArgs),
    /// Give guests what they had before the last apply
    Undo {
        #[command(flatten)]
        node: NodeArgs,
        /// Only say what that would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Measure how far memory of each NUMA node is: plans go by that from then on, instead of the kernel's table
    Measure {
        #[command(flatten)]
        node: NodeArgs,
        /// Read so many MiB of each NUMA node; of few, caches have much [default: four times what the last-level caches
        /// have, 64 to 512]
        #[arg(long, value_name = "N", conflicts_with = "forget")]
        mib: Option<u32>,
        /// Measure nothing: plans go by the kernel's table again
        #[arg(long)]
        forget: bool,
    },
}

/// A node.
#[derive(ClapArgs, Debug)]
pub struct NodeArgs {
    /// Name, nodeN or id [default: the node that mintctl runs on]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

/// A node, and who arranges its guests.
#[derive(ClapArgs, Debug)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Who gets which place
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: LayoutPolicy,
}
