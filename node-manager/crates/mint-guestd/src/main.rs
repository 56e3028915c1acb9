// SPDX-License-Identifier: Apache-2.0
//! `mint-guestd`: runs in the foreground until it gets SIGTERM or SIGINT.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mint_guestd::{Options, run};
use tracing_subscriber::EnvFilter;

/// Mint's daemon for guests: one on every node, beside mintd.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Socket for this node's mintd.
    #[arg(long, value_name = "FILE", default_value = mint_api::GUESTD_SOCKET_PATH)]
    socket: PathBuf,
    /// This node's mintd.
    #[arg(long, value_name = "FILE", default_value = mint_api::SOCKET_PATH)]
    mintd: PathBuf,
    /// This node's memory server.
    #[arg(long, value_name = "FILE", default_value = mint_api::STORE_SOCKET_PATH)]
    store: PathBuf,
    /// This node's libvirt.
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    libvirt: String,
    /// Folder for migrations that may leave something behind.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/mint/guests")]
    state: PathBuf,
    /// Write the log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("MINT_GUESTD_LOG");
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    if args.log_json {
        log.json().init();
    } else {
        log.with_target(false).with_ansi(false).init();
    }
    let options = Options {
        socket: args.socket,
        mintd: args.mintd,
        store: args.store,
        libvirt: args.libvirt,
        state: args.state,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("mint-guestd: {error}");
            let mut next = std::error::Error::source(&error);
            while let Some(cause) = next {
                text.push_str(&format!(": {cause}"));
                next = cause.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
