// SPDX-License-Identifier: Apache-2.0
//! `mintctl`: nodes, devices and events of a machine, from any of its nodes.
//! Everything is done by this node's `mintd`; this program parses, asks, shows.
//!
//! Exit status: 0 done, 1 failed, 2 usage, 3 refused; `node exec` that of the
//! command.

mod args;
mod cmd;
mod failure;
mod output;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    let json = args.json;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("mintctl: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let status = match runtime.block_on(cmd::run(args)) {
        Ok(status) => status,
        Err(failure) => failure.tell(json),
    };
    // a read of the terminal may still hang in a thread of its own
    runtime.shutdown_background();
    ExitCode::from(status)
}
