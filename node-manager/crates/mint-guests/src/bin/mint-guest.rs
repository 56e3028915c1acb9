// SPDX-License-Identifier: Apache-2.0
//! Defines and starts the demo guest on this node: the node's kernel, the guest image, a disk
//! in the node's pool, a card on the node's bridge.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use mint_guests::demo_guest::{DemoGuest, Until};
use mint_guests::facts::Facts;
use mint_guests::{Failure, cli, tools};
use mint_types::PagingPolicy;

const PROGRAM: &str = "mint-guest";

/// Defines and starts the demo guest on this node: the node's kernel, the guest image, a disk in
/// the node's pool, a card on the node's bridge.
///
/// A guest of that name that does not run is defined anew. Console: virsh console NAME, or
/// /var/log/libvirt/qemu/NAME-console.log.
/// Exit: 0 done, 1 failed, 2 usage, 3 refused.
#[derive(Parser)]
#[command(name = PROGRAM, version)]
struct Cli {
    /// Name of the guest.
    name: String,
    /// How many vCPUs.
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    vcpus: String,
    /// Its memory.
    #[arg(long, value_name = "SIZE", default_value = "128M", allow_hyphen_values = true)]
    memory: String,
    /// Hosts of its memory and their shares, like main=256M,node2=rest: "main" is this node, which
    /// has so much of it at a time, "rest" what is left (default: this node has all of it).
    #[arg(long, value_name = "HOST=SIZE,…", allow_hyphen_values = true)]
    split: Option<String>,
    /// Chunks that pages of a split memory go and come by.
    #[arg(long, value_name = "SIZE", default_value = mint_guests::split::CHUNK, requires = "split")]
    chunk: String,
    /// How its pager chooses what goes to other hosts: aging, clock, fifo, random, address.
    #[arg(long, value_name = "POLICY", default_value_t, requires = "split")]
    policy: PagingPolicy,
    /// Hosts that have each page that this node has not: with 2 one of them may end.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "split",
        value_parser = clap::value_parser!(u32).range(1..=2))]
    copies: u32,
    /// CPUs of the node for its vCPUs, in this order (default: the node's, the first last).
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pin: Option<String>,
    /// Kernel to boot.
    #[arg(long, value_name = "FILE", default_value = "/boot/vmlinuz-mint")]
    kernel: String,
    /// Initrd to boot.
    #[arg(long, value_name = "FILE", default_value = "/boot/guest.initrd")]
    initrd: String,
    /// More words for its kernel command line.
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Size of its disk, made when it is not there.
    #[arg(long, value_name = "SIZE", default_value = "64M", conflicts_with = "no_disk")]
    disk: String,
    /// No disk.
    #[arg(long, conflicts_with_all = ["disk_test", "disk_load"])]
    no_disk: bool,
    /// No network card.
    #[arg(long, conflicts_with = "net_test")]
    no_network: bool,
    /// It tests its disk with fio for so many seconds and prints the result.
    // Both write the same blocks.
    #[arg(long, value_name = "SECONDS", conflicts_with = "disk_load")]
    disk_test: Option<String>,
    /// It writes and compares so many blocks a second, for ever (fio).
    #[arg(long, value_name = "RATE")]
    disk_load: Option<String>,
    /// It writes so many KiB of memory anew again and again, and compares them, for ever.
    #[arg(long, value_name = "KIB")]
    memory_load: Option<String>,
    /// It pings this address ("node": this node) and prints the result.
    #[arg(long, value_name = "ADDRESS")]
    net_test: Option<String>,
    /// It sends numbers by TCP to the echo service of the demo guest at this address and compares
    /// each reply, for ever.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_network")]
    net_echo: Option<String>,
    /// Only print the domain XML.
    #[arg(long, conflicts_with = "no_start")]
    print: bool,
    /// Define it, do not start it.
    #[arg(long)]
    no_start: bool,
}

impl Cli {
    fn guest(self) -> DemoGuest {
        let until = match (self.print, self.no_start) {
            (true, _) => Until::Printed,
            (_, true) => Until::Defined,
            _ => Until::Started,
        };
        DemoGuest {
            name: self.name,
            vcpus: self.vcpus,
            memory: self.memory,
            split: self.split,
            chunk: self.chunk,
            policy: self.policy,
            copies: self.copies,
            pin: self.pin,
            kernel: self.kernel,
            initrd: self.initrd,
            append: self.append,
            disk: (!self.no_disk).then_some(self.disk),
            network: !self.no_network,
            disk_test: self.disk_test,
            disk_load: self.disk_load,
            memory_load: self.memory_load,
            net_test: self.net_test,
            net_echo: self.net_echo,
            until,
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let node = Facts::new(Path::new("/")).describe()?;
    node.check().map_err(Failure::Usage)?;
    let guest = cli.guest();
    let domain = guest.carry_out(&node, &mut tools::Path)?;
    if guest.until == Until::Printed {
        print!("{domain}");
    }
    Ok(())
}

fn main() -> ExitCode {
    match cli::parse::<Cli>(PROGRAM) {
        Ok(cli) => cli::end(PROGRAM, run(cli)),
        Err(code) => code,
    }
}
