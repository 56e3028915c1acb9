// SPDX-License-Identifier: Apache-2.0
//! `mint-store`: runs in the foreground until it is told to end. What it keeps stays.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use mint_serve::{ListenError, LockError, listen, lock, serve};
use mint_store::{Guests, LeaseError, router};
use rustix::fs::statfs;
use socket2::{Domain, Socket, Type};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

/// Connections that wait to be taken.
const BACKLOG: i32 = 64;
/// Between looks for a network device that is not there yet.
const LOOK: Duration = Duration::from_millis(500);
/// Of a tmpfs (<linux/magic.h>).
const TMPFS: i64 = 0x0102_1994;

/// Mint's memory server: keeps pages of guests that other nodes run.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Folder of what it keeps, in a tmpfs.
    #[arg(long, value_name = "FOLDER", default_value = "/run/mint/ram/store")]
    folder: PathBuf,
    /// Socket for this node's mint-guestd.
    #[arg(long, value_name = "FILE", default_value = mint_api::STORE_SOCKET_PATH)]
    socket: PathBuf,
    /// Main hosts of guests come through this network device alone.
    #[arg(long, value_name = "NAME", default_value = "mint0")]
    device: String,
    /// TCP port for them.
    #[arg(long, value_name = "N", default_value_t = mint_api::STORE_PORT)]
    port: u16,
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{} is in no tmpfs: what is kept there would be on a disk", .0.display())]
    NoTmpfs(PathBuf),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the system")]
    Io(#[from] io::Error),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("MINT_STORE_LOG");
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter);
    log.with_target(false).with_ansi(false).init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("mint-store: {error}");
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

fn run(args: Args) -> Result<(), RunError> {
    // the kernel ends others first when memory is short: what this keeps stays in any case
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-900") {
        warn!(%error, "the kernel may end this one as any other");
    }
    let _lock = lock(&args.socket.with_extension("lock"))?;
    std::fs::create_dir_all(&args.folder)?;
    if !is_tmpfs(&args.folder)? {
        return Err(RunError::NoTmpfs(args.folder));
    }
    let guests = Arc::new(Guests::open(&args.folder)?);
    let served = guests.clone();
    let (broke, breaks) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("listener".into()).spawn(move || {
        let listener = listener(&args.device, args.port);
        info!(device = args.device, port = args.port, "main hosts may come");
        // whoever waits for it has gone when this process ends
        _ = broke.send(mint_store::serve(&listener, &served));
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut ends = signal(SignalKind::terminate())?;
        let socket = listen(&args.socket)?;
        tokio::select! {
            () = serve(socket, router(guests)) => {}
            _ = ends.recv() => info!("ending"),
            // it is started again, and finds all that is kept
            Ok(broken) = breaks => broken?,
        }
        Ok(())
    })
}

fn is_tmpfs(folder: &Path) -> io::Result<bool> {
    Ok(statfs(folder)?.f_type == TMPFS)
}

/// Bound to a device, which may have to be waited for: mintd makes mint0.
fn listener(device: &str, port: u16) -> TcpListener {
    let mut is_told = false;
    loop {
        match bind(device, port) {
            Ok(listener) => return listener,
            Err(error) => {
                if !is_told {
                    warn!(device, %error, "nobody can connect yet");
                }
                is_told = true;
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn bind(device: &str, port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
