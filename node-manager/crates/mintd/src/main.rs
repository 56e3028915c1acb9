// SPDX-License-Identifier: Apache-2.0
//! `mintd`: runs in the foreground until it gets SIGTERM or SIGINT.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mintd::{Options, run};
use tracing_subscriber::EnvFilter;

/// Mint's daemon: one on every node.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Settings; defaults hold where it is absent.
    #[arg(long, value_name = "FILE", default_value = "/etc/mint/mint.toml")]
    config: PathBuf,
    /// Socket for users of this node.
    #[arg(long, value_name = "FILE", default_value = mint_api::SOCKET_PATH)]
    socket: PathBuf,
    /// The kernel's device.
    #[arg(long, value_name = "FILE", default_value = "/dev/mint")]
    device: PathBuf,
    /// What the node that started us left for us.
    #[arg(long, value_name = "FOLDER", default_value = "/run/mint/bundle")]
    bundle: PathBuf,
    /// Write the log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
    /// Node 0 alone ends, at once: for its shutdown script, not for people.
    #[arg(long, hide = true)]
    leave: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.leave {
        // it does not come back else
        eprintln!("mintd: {}", mint_sys::leave_machine());
        return ExitCode::FAILURE;
    }
    let filter = EnvFilter::try_from_env("MINTD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    if args.log_json {
        log.json().init();
    } else {
        log.with_target(false).with_ansi(false).init();
    }
    let options = Options {
        config: args.config,
        socket: args.socket,
        device: args.device,
        bundle: args.bundle,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("mintd: {error}");
            let mut next = std::error::Error::source(&error);
            while let Some(cause) = next {
                text.push_str(&format!(": {cause}"));
                next = cause.source();
            }
            eprintln!("{text}");
            ExitCode::from(error.exit_status())
        }
    }
}
