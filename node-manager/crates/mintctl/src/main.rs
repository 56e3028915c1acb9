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
mod svg;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
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

/// Help goes to standard output with status 0; wrong usage to standard error with
/// status 2, as JSON if that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args().take_while(|word| word != "--").any(|word| word == "--json");
    if error.use_stderr() && wants_json {
        let text = error.to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(&text);
        return ExitCode::from(failure::Failure::usage(text).tell(true));
    }
    // to a closed output there is nothing to say
    _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
