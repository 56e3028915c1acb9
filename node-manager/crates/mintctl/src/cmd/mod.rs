// SPDX-License-Identifier: Apache-2.0
//! Commands.

mod console;
mod context;
mod dump;
mod exec;
mod import;
mod kept;
mod layout;
mod layout_measured;
mod layout_picture;
mod layout_view;
mod list;
mod machine;
mod map;
mod node;
mod node_path;
mod node_result;
mod operation;
mod other;
mod resize;
mod rolling;
mod top;
mod vm;
mod vm_map;
mod vm_memory;
mod vm_view;

use mint_api::Client;

use self::context::{Context, Outcome};
use crate::args::{Args, Command, ConfigCommand, DeviceCommand, ListCommand, MemoryCommand};

/// Runs a command.
pub async fn run(args: Args) -> Outcome {
    let context = Context { client: Client::unix(args.socket), json: args.json };
    match args.command {
        Command::Node(command) => node::run(&context, command).await,
        Command::Vm(command) => vm::run(&context, command).await,
        Command::Layout(command) => layout::run(&context, command).await,
        Command::Operation(command) => operation::run(&context, command).await,
        Command::Device(DeviceCommand::List) => list::devices(&context).await,
        Command::Device(DeviceCommand::Move { device, to, dry_run }) => {
            node::move_device(&context, device, &to, dry_run).await
        }
        Command::Cpu(ListCommand::List) => list::cpus(&context).await,
        Command::Memory(MemoryCommand::List) => list::memory(&context).await,
        Command::Memory(MemoryCommand::Evacuate { node, dry_run, bandwidth }) => {
            kept::evacuate(&context, &node, dry_run, bandwidth).await
        }
        Command::Map { svg, output } => map::run(&context, svg, output.as_deref()).await,
        Command::Machine(command) => machine::run(&context, command).await,
        Command::Doctor { repair } => other::doctor(&context, repair).await,
        Command::Events { follow, since } => other::events(&context, follow, since).await,
        Command::Apply { dir, wait } => other::apply(&context, dir, wait).await,
        Command::Config(ConfigCommand::Show) => other::config(&context).await,
        Command::Version => other::version(&context).await,
        Command::Completions { shell } => other::completions(shell),
        Command::Man { folder } => other::man(&folder),
    }
}
