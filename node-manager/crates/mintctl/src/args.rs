// SPDX-License-Identifier: Apache-2.0
//! The command line.

mod layout;
mod machine;
mod vm;

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use mint_types::{Bdf, CpuChange, CpuSet, MemoryChange, MemoryRequest, NodeName, parse_bytes};

pub use layout::{LayoutCommand, NodeArgs};
pub use machine::{LinkArgs, MachineCommand};
pub use vm::{ImportArgs, MigrateArgs, MigrateHow, VmArgs, VmCommand};

/// OS nodes of this machine: several Linux kernels side by side.
///
/// Exit status: 0 done, 1 failed, 2 wrong usage, 3 refused (nothing was
/// changed); `node exec` that of the command.
#[derive(Parser, Debug)]
#[command(name = "mintctl", version, max_term_width = 100)]
pub struct Args {
    /// Print JSON, for scripts; errors too, on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of this node's mintd
    #[arg(long, global = true, value_name = "FILE", default_value = mint_api::SOCKET_PATH,
          hide_default_value = true, env = "MINTD_SOCKET")]
    pub socket: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make, start, stop, look at nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// Guests of all nodes: list, start, move to another node
    #[command(subcommand)]
    Vm(VmCommand),
    /// Places of guests on NUMA nodes: look at them, change them
    #[command(subcommand)]
    Layout(LayoutCommand),
    /// What this node's mintd changes and has changed: list, wait for, cancel
    #[command(subcommand)]
    Operation(OperationCommand),
    /// PCI functions of the machine
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Cores of the machine
    #[command(subcommand)]
    Cpu(ListCommand),
    /// Memory blocks of the machine; what nodes keep of other nodes' guests
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// The machine by owner: one sign for each core, memory block and PCI function
    Map {
        /// Draw it: an SVG document, coloured by owner
        #[arg(long)]
        svg: bool,
        /// File to write it to [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// This machine as a whole: those that it is linked with, its end
    #[command(subcommand)]
    Machine(MachineCommand),
    /// Check whether the machine is in order
    Doctor {
        /// Heal what dead daemons and kernels left half done; nodes that run are not
        /// touched
        #[arg(long)]
        repair: bool,
    },
    /// What happened to nodes
    Events {
        /// Go on with what happens from now on
        #[arg(long, short)]
        follow: bool,
        /// Only what came after event number SEQ
        #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
        since: u64,
    },
    /// Bring the nodes up that /etc/mint/nodes.d/*.toml describe
    Apply {
        /// Folder with descriptions
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
        /// What to wait for, for each node
        #[arg(long, value_name = "WHAT", value_enum, default_value_t = Wait::Mintd)]
        wait: Wait,
    },
    /// Settings of this node's mintd
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Versions of mintctl and of this node's mintd
    Version,
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder
    Man {
        /// Where to
        folder: PathBuf,
    },
}

/// `node …`.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Make a node and start it
    Add(Box<AddArgs>),
    /// Start a node that does not run
    Start {
        /// Name, nodeN or id
        node: String,
        /// Boot the kernel, initrd and command line of mint.toml, whatever it was added with
        #[arg(long)]
        default_image: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// End a node in an orderly way
    Stop {
        /// Name, nodeN or id
        #[arg(required_unless_present = "all")]
        node: Option<String>,
        /// All nodes that run, but node 0 and the one that this is said on
        #[arg(long, conflicts_with = "node")]
        all: bool,
        /// Also when virtual functions (SR-IOV) that other nodes have, or memory of their guests,
        /// end with it
        #[arg(long, conflicts_with = "all")]
        force: bool,
        /// Move its guests to other nodes first
        #[arg(long, conflicts_with = "all")]
        evacuate: bool,
        /// Kill it after so many seconds
        #[arg(long, value_name = "S")]
        timeout_s: Option<u64>,
    },
    /// Stop a node and start it
    Restart {
        /// Name, nodeN or id
        node: String,
        /// Kill it if it has not stopped after so many seconds
        #[arg(long, value_name = "S")]
        timeout_s: Option<u64>,
        /// Boot the kernel, initrd and command line of mint.toml, whatever it was added with
        #[arg(long)]
        default_image: bool,
        /// Also when it keeps memory of other nodes' guests, which is lost
        #[arg(long)]
        force: bool,
        /// Move its guests to other nodes first, and back when it runs again
        #[arg(long, conflicts_with = "no_wait")]
        evacuate: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// End a node by force
    Kill {
        /// Name, nodeN or id
        node: String,
    },
    /// Free all that a node owns, and the node
    #[command(alias = "rm")]
    Remove {
        /// Name, nodeN or id
        node: String,
        /// Kill it first if it runs
        #[arg(long)]
        force: bool,
        /// Node that gets its cores and devices [default: node 0]
        #[arg(long, value_name = "NODE", conflicts_with = "keep_free")]
        to: Option<String>,
        /// Leave its cores and devices free
        #[arg(long)]
        keep_free: bool,
        /// Move its guests to other nodes first
        #[arg(long)]
        evacuate: bool,
    },
    /// Change what a node owns, while it runs: all of the request, or nothing
    Resize(Box<ResizeArgs>),
    /// All nodes
    #[command(alias = "ls")]
    List,
    /// What running nodes use: cores, memory, interrupts, guests
    Top {
        /// Seconds between two looks
        #[arg(long, short, value_name = "S", default_value_t = 2,
              value_parser = clap::value_parser!(u64).range(1..))]
        interval_s: u64,
        /// Look so many times [default: for ever]; with --json 1
        #[arg(long, short = 'n', value_name = "N",
              value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// One node, and what it owns
    Show {
        /// Name, nodeN or id
        node: String,
    },
    /// Console of a node; at a terminal Ctrl-] leaves it
    Console {
        /// Name, nodeN or id
        node: String,
        /// Go on with what comes, for ever; an id may be waited for
        #[arg(long, short)]
        follow: bool,
        /// Send standard input as keys
        #[arg(long, short)]
        write: bool,
    },
    /// Memory of a node that ended, as an ELF core file for crash or drgn
    Dump {
        /// Name, nodeN or id
        node: String,
        /// File to write it to; zero pages take no room
        #[arg(long, short, value_name = "FILE", default_value = "vmcore")]
        output: PathBuf,
        /// Write over a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Run a command on a node
    ///
    /// As ssh does, it reads its standard input for the command. In a script that is itself
    /// read from standard input, and in a loop over lines of it (`while read`), it would take
    /// what follows: give it --no-stdin there. It ends with the command's status, or 128 +
    /// the signal's number.
    Exec {
        /// Name, nodeN or id
        node: String,
        /// Give the command our standard input [default]
        #[arg(long, short = 'i', overrides_with = "no_stdin")]
        stdin: bool,
        /// Give it an empty one: in a loop or script that is read from standard input
        #[arg(long, short = 'n')]
        no_stdin: bool,
        /// Program and arguments; no shell in between
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "COMMAND"
        )]
        command: Vec<String>,
    },
}

/// `node add`.
#[derive(ClapArgs, Debug)]
pub struct AddArgs {
    /// Name; also its host name
    pub name: NodeName,
    /// These cores, by machine CPU number, e.g. 2-3,5
    #[arg(
        long,
        value_name = "LIST",
        required_unless_present = "cpu_count",
        conflicts_with = "cpu_count"
    )]
    pub cpus: Option<CpuSet>,
    /// So many cores, whichever are free or can be released
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpu_count: Option<u32>,
    /// NUMA node for --cpu-count, and for memory without a place of its own
    #[arg(long, value_name = "N")]
    pub numa: Option<u32>,
    /// Memory, e.g. 1G, 1G@numa1; several by comma or repetition
    #[arg(long, value_name = "SIZE[@numaN]", required = true, value_delimiter = ',',
          action = ArgAction::Append)]
    pub memory: Vec<MemoryRequest>,
    /// PCI function, e.g. 0000:02:00.0; may be repeated
    #[arg(long = "device", value_name = "BDF", value_delimiter = ',', action = ArgAction::Append)]
    pub devices: Vec<Bdf>,
    /// Kernel image [default: that of mint.toml]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Initrd [default: that of mint.toml]
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Kernel command line [default: that of mint.toml]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub cmdline: Option<String>,
    /// Node whose resources may be taken, too, while it runs; may be repeated
    #[arg(long, value_name = "NODE", value_delimiter = ',', action = ArgAction::Append)]
    pub from: Vec<String>,
    /// When to start it again by itself
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Restart::OnReboot)]
    pub restart: Restart,
    /// Only make it
    #[arg(long)]
    pub no_start: bool,
    /// Only check, and say what would be done
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `node resize`.
#[derive(ClapArgs, Debug)]
pub struct ResizeArgs {
    /// Name, nodeN or id
    pub node: String,
    /// These cores and no others (4-5), or so many more (+1) or less (-1)
    #[arg(long, value_name = "LIST|+N|-N", allow_hyphen_values = true)]
    pub cpus: Option<CpuChange>,
    /// So much memory in all (2G), more (+512M@numa1) or less (-512M); several by
    /// comma or repetition
    #[arg(long, value_name = "[+|-]SIZE[@numaN]", value_delimiter = ',',
          action = ArgAction::Append, allow_hyphen_values = true)]
    pub memory: Vec<MemoryChange>,
    /// PCI function that it gets; may be repeated
    #[arg(long = "device", value_name = "BDF", value_delimiter = ',', action = ArgAction::Append)]
    pub devices: Vec<Bdf>,
    /// PCI function that it gives up; may be repeated
    #[arg(long = "drop-device", value_name = "BDF", value_delimiter = ',',
          action = ArgAction::Append)]
    pub drop_devices: Vec<Bdf>,
    /// NUMA node for cores of +N, and for memory without a place of its own
    #[arg(long, value_name = "N")]
    pub numa: Option<u32>,
    /// Node that it is taken from, while that runs, too, if it is not free; may be
    /// repeated [default: this node]
    #[arg(long, value_name = "NODE", value_delimiter = ',', action = ArgAction::Append)]
    pub from: Vec<String>,
    /// Node that gets what it gives up [default: node 0; memory stays free]
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// First give guests other cores than those that go, and move guests to other nodes for whom
    /// too little memory stays
    #[arg(long)]
    pub evacuate: bool,
    /// Also take memory from a node that keeps memory of other nodes' guests
    #[arg(long)]
    pub force: bool,
    /// Only check, and say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// What to wait for after a start.
#[derive(ClapArgs, Debug)]
pub struct WaitArgs {
    /// Wait until the node's mintd answers, or only until its kernel runs
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Wait::Mintd,
          conflicts_with = "no_wait")]
    pub wait: Wait,
    /// Do not wait
    #[arg(long)]
    pub no_wait: bool,
    /// Wait so many seconds at most [default: that of mint.toml]
    #[arg(long, value_name = "S")]
    pub wait_s: Option<u64>,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Wait {
    /// Its mintd answers
    Mintd,
    /// Its kernel runs
    Running,
}

/// When a node is started again by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Restart {
    /// Never
    Never,
    /// When it reboots
    OnReboot,
    /// When it reboots or crashes, with growing pauses
    OnCrash,
    /// Whenever it ends by itself, after a poweroff inside it, too
    Always,
}

/// `operation …`. A command that is interrupted ends no operation.
#[derive(Subcommand, Debug)]
pub enum OperationCommand {
    /// Operations that go on, and the last ones that are over
    #[command(alias = "ls")]
    List,
    /// One operation, and what it said
    Show {
        /// Its number
        id: u64,
    },
    /// What an operation says, to its end; exits as the command that began it would
    Wait {
        /// Its number
        id: u64,
    },
    /// End an operation and take back what it did; refused after its point of no return
    Cancel {
        /// Its number
        id: u64,
    },
}

/// `device …`.
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// All of them, and who owns them
    #[command(alias = "ls")]
    List,
    /// Give a function to a node, from whoever owns it, while both run
    Move {
        /// PCI function, e.g. 0000:02:00.0
        device: Bdf,
        /// Node that gets it
        #[arg(long, value_name = "NODE")]
        to: String,
        /// Only check, and say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// `… list`.
#[derive(Subcommand, Debug)]
pub enum ListCommand {
    /// All of them, and who owns them
    #[command(alias = "ls")]
    List,
}

/// `memory …`.
#[derive(Subcommand, Debug)]
pub enum MemoryCommand {
    /// All of them, and who owns them
    #[command(alias = "ls")]
    List,
    /// Give what a node keeps of the memory of other nodes' guests to other nodes
    Evacuate {
        /// Name, nodeN or id
        node: String,
        /// Only say where it would go
        #[arg(long)]
        dry_run: bool,
        /// At most so many bytes a second, e.g. 100M
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        bandwidth: Option<u64>,
    },
}

/// `config …`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// The settings that are in effect
    Show,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn example_of_the_readme_is_understood() {
        let line = "mintctl node add web --cpus 2-3 --memory 1G@numa1 --device 0000:02:00.0";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Node(NodeCommand::Add(add)) = args.command else { panic!() };
        assert_eq!(add.cpus.unwrap().to_string(), "2-3");
        assert_eq!(add.memory[0].to_string(), "1G@numa1");
        assert_eq!(add.devices[0].to_string(), "0000:02:00.0");
    }

    #[test]
    fn command_of_exec_keeps_its_options() {
        let line = "mintctl node exec web -- sh -c true --json";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        assert!(!args.json);
        let Command::Node(NodeCommand::Exec { command, .. }) = args.command else { panic!() };
        assert_eq!(command, ["sh", "-c", "true", "--json"]);
        let input = |line: &str| {
            let args = Args::try_parse_from(line.split(' ')).unwrap();
            let Command::Node(NodeCommand::Exec { no_stdin, .. }) = args.command else { panic!() };
            !no_stdin
        };
        assert!(input("mintctl node exec web -- cat"));
        assert!(input("mintctl node exec --stdin web -- cat"));
        assert!(!input("mintctl node exec -n web -- cat"));
    }

    #[test]
    fn usage_errors_have_status_2() {
        for line in [
            "mintctl",
            "mintctl node add web --memory 1G",
            "mintctl node add web --cpus 2-3 --memory 1Q",
            "mintctl node add web --cpus x --memory 1G",
            "mintctl node add Web --cpus 1 --memory 1G",
            "mintctl node add web --cpus 1 --cpu-count 2 --memory 1G",
            "mintctl node add web --cpus 1 --memory 1G --device 5",
            "mintctl node remove web --to x --keep-free",
            "mintctl node stop --all --evacuate",
            "mintctl node restart web --evacuate --no-wait",
            "mintctl vm migrate web",
            "mintctl vm migrate web --to node1 --bandwidth fast",
            "mintctl vm migrate web --to node1 --parallel 0",
            "mintctl vm migrate web --to node1 --compress --post-copy-after 1",
        ] {
            let error = Args::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
