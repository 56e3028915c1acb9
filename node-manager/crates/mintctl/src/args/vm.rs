// SPDX-License-Identifier: Apache-2.0
//! The command line of `mintctl vm`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use mint_types::{LayoutWhen, parse_bytes};

/// `vm …`. A guest is looked for on all nodes.
#[derive(Subcommand, Debug)]
pub enum VmCommand {
    /// Guests, and the nodes that they are on
    #[command(alias = "ls")]
    List {
        /// Those of one node: name, nodeN or id [default: all]
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// One guest
    Show(VmArgs),
    /// Make a guest of a disk image (raw, qcow2, vmdk, vdi, vhdx, vpc)
    ///
    /// The image is copied, to another node over mint0 if need be; it stays as it is. The guest
    /// gets a card on the guests' Ethernet and a serial console, and is not started.
    Import(ImportArgs),
    /// Where the memory of a running guest is that is split over several nodes
    Memory {
        #[command(flatten)]
        vm: VmArgs,
        /// Again each second, with what has happened since
        #[arg(long)]
        watch: bool,
        /// Draw where each part of it is, and how lately it was used, into a file
        #[arg(long, value_name = "FILE", conflicts_with = "watch")]
        svg: Option<PathBuf>,
    },
    /// Start a guest on the node that it is defined on
    Start(VmArgs),
    /// Ask a guest's system to end
    Shutdown(VmArgs),
    /// End a guest at once, as if its power was cut
    Destroy(VmArgs),
    /// Define a guest anew: from its next start its memory can be split over several nodes
    Prepare(VmArgs),
    /// Serial console of a running guest, wherever it goes; at a terminal Ctrl-] leaves it
    ///
    /// One client at a time has it. When the guest moves to another node, the console goes
    /// after it.
    Console {
        #[command(flatten)]
        vm: VmArgs,
        /// Send standard input as keys
        #[arg(long, short)]
        write: bool,
    },
    /// Move a running guest to another node; its own disks go with it
    Migrate {
        #[command(flatten)]
        args: MigrateArgs,
        /// Split its memory anew first: what its new node has of it, and others, which keep the rest
        ///
        /// For guests whose memory can be split: mint-guest --split makes one. Its new node may
        /// be the one that it is on. `auto`: its new node has what there is room for, others the rest.
        #[arg(long, value_name = "main=SIZE,NODE=SIZE|rest,…|auto")]
        split: Option<String>,
        /// With --split how its pager chooses what goes to other nodes: aging, clock, fifo, random, address; else who
        /// finds its place: simple, dino, asymsched, carrefour, brm
        #[arg(long, value_name = "POLICY")]
        policy: Option<String>,
        /// Nodes that have each page that its own has not: with 2 one of them may end
        #[arg(long, value_name = "N", requires = "split", value_parser = clap::value_parser!(u32).range(1..=2))]
        copies: Option<u32>,
        /// Pages go and come in chunks of this size from now on: a power of two from 4K to 2M
        ///
        /// For guests of which no other node keeps anything: new ones, and those that were merged.
        #[arg(long, value_name = "SIZE", requires = "split", value_parser = parse_bytes)]
        chunk: Option<u64>,
        /// What other nodes keep of its memory stays there, and there is some
        #[arg(long, conflicts_with = "split")]
        main_only: bool,
        /// When it gets its place on the NUMA nodes of its new node: before it comes, after, or never [default: before,
        /// if it can have one]
        ///
        /// Before: the new node finds CPUs and NUMA nodes for it by what it was measured to do, makes room there, and
        /// keeps its vCPUs and its memory to them. After: the new node measures it for ten seconds, and then arranges its
        /// guests as `mintctl layout apply` does. Without this, and without --policy, a guest that can have no place goes
        /// all the same, and is told why; with it, it stays where it is.
        #[arg(long, value_name = "before|after|none", conflicts_with = "split")]
        layout: Option<LayoutWhen>,
    },
    /// Bring all memory of a running guest that is split over several nodes to one
    ///
    /// The guest moves to that node first, unless it is there; what other nodes keep follows while
    /// it runs. At its next start its memory is split again, as its domain says.
    Merge(MigrateArgs),
    /// Move all guests that run on a node to others: each gets a place first, or none goes
    Evacuate {
        /// Name, nodeN or id
        node: String,
        #[command(flatten)]
        how: MigrateHow,
    },
}

/// A guest.
#[derive(ClapArgs, Debug)]
pub struct VmArgs {
    /// Name or UUID
    pub vm: String,
    /// Node that it is on [default: it is looked for]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

/// `vm import`.
#[derive(ClapArgs, Debug)]
pub struct ImportArgs {
    /// The image, on the node that mintctl runs on
    pub image: PathBuf,
    /// Name of the guest
    #[arg(long)]
    pub name: String,
    /// Node that gets it [default: the one that mintctl runs on]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// How many vCPUs it gets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub vcpus: u32,
    /// Its memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Size of its disk [default: the image's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub disk: Option<u64>,
    /// What its cloud-init is told at the first boot (user data: a #cloud-config, a script)
    #[arg(long, value_name = "FILE")]
    pub cloud_init: Option<PathBuf>,
    /// Start it by UEFI (OVMF, without Secure Boot), not by a BIOS
    #[arg(long)]
    pub uefi: bool,
}

/// `vm migrate`.
#[derive(ClapArgs, Debug)]
pub struct MigrateArgs {
    #[command(flatten)]
    pub vm: VmArgs,
    /// Node that it goes to: name, nodeN or id
    #[arg(long, value_name = "NODE")]
    pub to: String,
    #[command(flatten)]
    pub how: MigrateHow,
}

/// How guests are moved.
#[derive(ClapArgs, Debug)]
pub struct MigrateHow {
    /// Only check, and say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// At most so many bytes a second, e.g. 100M
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub bandwidth: Option<u64>,
    /// The guest may stand still for so long
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub downtime_ms: Option<u64>,
    /// Send by so many streams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub parallel: Option<u32>,
    /// Compress memory on its way, by two streams unless --parallel says how many
    ///
    /// For a slow wire between machines: it takes time of both nodes' cores.
    #[arg(long)]
    pub compress: bool,
    /// After S seconds it goes on there, and fetches the rest of its memory as it needs it
    ///
    /// For a guest that changes memory faster than it can be sent. Until all is there, the guest
    /// is lost if either node ends.
    #[arg(long, value_name = "S", conflicts_with_all = ["parallel", "compress"])]
    pub post_copy_after: Option<u64>,
}
