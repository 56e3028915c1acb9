// SPDX-License-Identifier: Apache-2.0
//! `mint-keeper`: one for each guest whose memory is split. It holds the userfaultfd of the
//! guest's QEMU, whose last reference must never go while pages are elsewhere, and starts the
//! pager, again and again, until QEMU has ended. It does nothing else, so that nothing else can
//! end it.

mod ram;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use mint_split::{SplitGuest, files};
use mint_sys::{Faults, MemoryDevice, Watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::ram::{Ram, RamError, in_maps};

/// After a pager that ended, at first and at most.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// Files of the folder that are the pager's alone.
const DATA: [&str; 7] =
    ["copies", "places", "subs", "pager.sock", "again.sock", "go.sock", PAGER_PID];
const PAGER_PID: &str = "pager.pid";
const LOCK: &str = "keeper.lock";

/// Keeps what a guest's pager must not lose, and starts the pager again. mint-guestd starts it
/// when the guest's QEMU runs; it says "armed" once the guest's memory is watched.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Folder of the guest, in a tmpfs, with guest.json.
    folder: PathBuf,
    /// Folder that QEMU has its guests' memory in.
    #[arg(long, value_name = "FOLDER", default_value = "/run/mint/ram")]
    ram: PathBuf,
    /// A keeper has gone, and the pager that it started has not: take over what that holds.
    #[arg(long)]
    adopt: bool,
    /// The guest comes from another host: what is written to its memory is not to be seen yet.
    #[arg(long, conflicts_with = "adopt")]
    coming: bool,
    /// The pager.
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/sbin/mint-pager")]
    pager: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum KeeperError {
    #[error("cannot read what guest this is")]
    Guest(#[source] io::Error),
    #[error("QEMU of guest {0} has ended")]
    Gone(String),
    #[error(transparent)]
    Ram(#[from] RamError),
    #[error("this kernel has no {} (Mint's series, mint=on)", mint_sys::MEMORY_DEVICE)]
    Device(#[source] io::Error),
    #[error("another keeper is there")]
    Kept,
    #[error("there is no pager to take over from")]
    NoPager(#[source] io::Error),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

/// What must not go before QEMU does.
struct Kept {
    qemu: OwnedFd,
    device: MemoryDevice,
    faults: Faults,
    ram: Ram,
    /// One that another keeper has started.
    pager: Option<OwnedFd>,
    /// Who has its lock is the keeper.
    _place: File,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("MINT_KEEPER_LOG");
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter);
    log.with_target(false).with_ansi(false).init();
    match arm(&args) {
        Ok(kept) => {
            // whoever waits for it may have gone meanwhile
            _ = writeln!(io::stdout(), "armed");
            keep(&args, &kept);
            tidy(&args.folder);
            ExitCode::SUCCESS
        }
        Err(fault) => {
            let because = std::error::Error::source(&fault);
            let because = because.map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("mint-keeper: {fault}{because}");
            ExitCode::FAILURE
        }
    }
}

/// From here on who touches a hole of the guest's memory waits; nobody gets zeros any more.
fn arm(args: &Args) -> Result<Kept, KeeperError> {
    // the guest's memory depends on it: the kernel ends others first
    fs::write("/proc/self/oom_score_adj", "-1000")
        .map_err(|error| KeeperError::Io("be kept when memory is short", error))?;
    let read = || Ok(serde_json::from_slice(&fs::read(args.folder.join(files::GUEST))?)?);
    let guest: SplitGuest = read().map_err(KeeperError::Guest)?;
    let gone = || KeeperError::Gone(guest.name.clone());
    let pid = i32::try_from(guest.qemu).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let qemu = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.qemu)).map_err(|_| gone())?;
    let place = in_maps(&maps, &args.ram, guest.memory_bytes)?;
    let ram = Ram::open(guest.qemu, &place)?;
    let cannot = |what| move |error| KeeperError::Io(what, error);
    let device = MemoryDevice::open().map_err(KeeperError::Device)?;
    if args.adopt {
        let _place = take_place(&args.folder)?;
        let (pager, faults) = adopt(&args.folder).map_err(KeeperError::NoPager)?;
        info!(guest = guest.name, qemu = guest.qemu, "took over from a keeper that has gone");
        return Ok(Kept { qemu, device, faults, ram, pager: Some(pager), _place });
    }
    for name in DATA {
        _ = fs::remove_file(args.folder.join(name));
    }
    let copies =
        private(&args.folder.join("copies")).and_then(|copies| copies.set_len(guest.memory_bytes));
    copies.map_err(|error| KeeperError::Io("make the file of copies", error))?;
    let faults = device.faults(qemu.as_fd()).and_then(Faults::new);
    let faults = faults.map_err(cannot("watch QEMU's memory"))?;
    let what = if args.coming { Watch::All } else { Watch::Holes };
    faults.watch(ram.base, ram.bytes, what).map_err(cannot("watch the guest's memory"))?;
    device.holes_stay(&ram.file, true).map_err(cannot("forbid to fill holes"))?;
    let _place = take_place(&args.folder)?;
    info!(guest = guest.name, qemu = guest.qemu, bytes = ram.bytes, "armed");
    Ok(Kept { qemu, device, faults, ram, pager: None, _place })
}

/// The lock that a keeper has: the file is never there without it.
fn take_place(folder: &Path) -> Result<File, KeeperError> {
    let cannot = |error| KeeperError::Io("take the keeper's place", error);
    let path = folder.join(LOCK);
    if let Ok(before) = File::open(&path) {
        flock(&before, FlockOperation::NonBlockingLockExclusive).map_err(|_| KeeperError::Kept)?;
    }
    let new = folder.join(format!("{LOCK}.{}", std::process::id()));
    let place = private(&new).map_err(cannot)?;
    flock(&place, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| cannot(error.into()))?;
    fs::rename(new, path).map_err(cannot)?;
    Ok(place)
}

/// The pager that runs, and the userfaultfd that it has.
fn adopt(folder: &Path) -> io::Result<(OwnedFd, Faults)> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let number = fs::read_to_string(folder.join(PAGER_PID))?;
    let pid = number.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(bad)?;
    let pager = pidfd_open(pid, PidfdFlags::empty())?;
    // opened first: what is read is that process's
    let line = fs::read_to_string(format!("/proc/{}/cmdline", number.trim()))?;
    let words: Vec<&str> = line.split('\0').collect();
    if words.get(1).map(Path::new) != Some(folder) {
        return Err(bad());
    }
    let faults = words.windows(2).find_map(|pair| match pair {
        ["--faults", number] => number.parse().ok(),
        _ => None,
    });
    let faults = pidfd_getfd(&pager, faults.ok_or_else(bad)?, PidfdGetfdFlags::empty())?;
    Ok((pager, Faults::used(faults)))
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A pager after the other, until QEMU has ended; that of a guest that goes to another host, until
/// that one has all of it.
fn keep(args: &Args, kept: &Kept) {
    let mut pause = AGAIN;
    let goes =
        || args.folder.join(files::GOING).exists() && !args.folder.join(files::GONE).exists();
    let is_over = || has_ended(&kept.qemu, Duration::ZERO) && !goes();
    if let Some(pager) = &kept.pager {
        while !has_ended(pager, AGAIN_MAX) && !is_over() {}
        warn!("the pager has ended");
    }
    while !is_over() {
        match start(args, kept) {
            Ok(mut pager) => {
                info!(pid = pager.id(), "a pager runs");
                let pid = pager.id().to_string();
                if let Err(error) = fs::write(args.folder.join(PAGER_PID), pid) {
                    error!(%error, "nobody could take this keeper's place");
                }
                match pager.wait() {
                    Ok(status) => warn!(%status, "the pager has ended"),
                    Err(error) => error!(%error, "the pager cannot be waited for"),
                }
            }
            Err(error) => error!(%error, pager = %args.pager.display(), "no pager"),
        }
        if is_over() {
            break;
        }
        if has_ended(&kept.qemu, pause) {
            sleep(AGAIN);
        }
        pause = AGAIN_MAX.min(pause * 2);
    }
    info!("QEMU has ended");
}

fn start(args: &Args, kept: &Kept) -> io::Result<Child> {
    let all = [
        ("--faults", kept.faults.as_fd()),
        ("--device", kept.device.file().as_fd()),
        ("--qemu", kept.qemu.as_fd()),
        ("--ram", kept.ram.file.as_fd()),
    ];
    let mut command = Command::new(&args.pager);
    command.arg(&args.folder).arg("--base").arg(kept.ram.base.to_string());
    for (option, fd) in all {
        // it stays open in the pager, which closes it in what that starts
        fcntl_setfd(fd, FdFlags::empty())?;
        command.arg(option).arg(fd.as_raw_fd().to_string());
    }
    command.spawn()
}

/// Whether a process has ended, or ends within a while.
fn has_ended(process: impl AsFd, within: Duration) -> bool {
    let mut ready = [PollFd::new(&process, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    match poll(&mut ready, within.as_ref()) {
        Ok(_) => !ready[0].revents().is_empty(),
        Err(error) => {
            warn!(%error, "cannot see whether QEMU runs");
            sleep(AGAIN);
            false
        }
    }
}

/// guest.json stays: mint-guestd ends the leases that it names.
fn tidy(folder: &Path) {
    for name in DATA {
        if let Err(error) = fs::remove_file(folder.join(name)) {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(name, %error, "is left behind");
            }
        }
    }
}
