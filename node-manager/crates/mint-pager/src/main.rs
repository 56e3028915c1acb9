// SPDX-License-Identifier: Apache-2.0
//! `mint-pager`: pages of one guest go and come until its QEMU ends. Its keeper starts it, with
//! the descriptors that must outlive it.

use std::error::Error;
use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use mint_pager::{
    Budget, Coming, FilePager, GuestMemory, Home, PagerError, Qemu, Reread, Server, Servers,
    Sockets, Sub, Terms, Took, run, stage,
};
use mint_split::{Ages, Greeting, PAGE_BYTES, Places, Policy, SplitGuest, files};
use mint_sys::{Faults, MemoryDevice, inherited, shared_words};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Pages of one guest go to memory servers, and come back when they are touched. Its keeper
/// starts it.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Folder of the guest, with guest.json.
    folder: PathBuf,
    /// Descriptor: userfaultfd of the guest's QEMU.
    #[arg(long, value_name = "FD")]
    faults: RawFd,
    /// Descriptor: /dev/mint-memory.
    #[arg(long, value_name = "FD")]
    device: RawFd,
    /// Descriptor: the guest's QEMU.
    #[arg(long, value_name = "FD")]
    qemu: RawFd,
    /// Descriptor: the guest's memory.
    #[arg(long, value_name = "FD")]
    ram: RawFd,
    /// Where QEMU has mapped it.
    #[arg(long, value_name = "ADDRESS")]
    base: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("MINT_PAGER_LOG");
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter);
    log.with_target(false).with_ansi(false).init();
    match page(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            error!(%fault, because = %fault.source().map(ToString::to_string).unwrap_or_default(), "ends");
            ExitCode::FAILURE
        }
    }
}

fn page(args: &Args) -> Result<(), Box<dyn Error>> {
    // before anything else has descriptors
    let faults = Arc::new(Faults::used(inherited(args.faults)?));
    let device = MemoryDevice::opened(inherited(args.device)?);
    let qemu = inherited(args.qemu)?;
    let ram = File::from(inherited(args.ram)?);
    let guest = read(&args.folder)?;
    let geometry = guest.geometry()?;
    let copies = OpenOptions::new().read(true).write(true).open(args.folder.join("copies"))?;
    let words = shared_words(&args.folder.join("places"), usize::try_from(geometry.pages())?)?;
    let subs_file = args.folder.join("subs");
    let had_bytes = subs_file.metadata().map_or(0, |subs| subs.len());
    let subs = shared_words(&subs_file, usize::try_from(geometry.chunks())?)?;
    let has_others = had_bytes > 0 && had_bytes != size_of_val(subs) as u64;
    let mut places = Places::open(geometry, words, subs)?;
    if has_others && places.counts().elsewhere() > 0 {
        // who keeps what is told by the chunks that they had
        return Err(PagerError::Chunks(places.counts().elsewhere()).into());
    }
    let ages = shared_words(&args.folder.join("ages"), usize::try_from(geometry.pages())?)?;
    let mut ages = Ages::open(geometry, ages)?;
    let (base, pages) = (args.base, geometry.pages());
    let bind = |name: &str| {
        let socket = args.folder.join(name);
        _ = remove_file(&socket);
        UnixListener::bind(&socket)
    };
    let (stage, source) = stage(&args.folder)?;
    if let Some(source) = source {
        let (guest, folder, ram) = (&guest, args.folder.as_path(), &ram);
        let servers: Vec<Server> = servers(guest).into_iter().map(|(server, _)| server).collect();
        let servers = &servers[..];
        let coming = Coming { guest, folder, source, servers, ram, base, faults: &faults };
        if !coming.take(&mut places, &mut ages, &qemu, bind("pager.sock")?)? {
            info!(guest = guest.name, "QEMU has ended before the guest was here");
            return Ok(());
        }
    }
    let memory = GuestMemory {
        ram,
        copies,
        faults: faults.clone(),
        device,
        base,
        pages,
        took: Took::default(),
    };
    let its = servers(&guest);
    let subs: Vec<Sub> = its.iter().map(|(_, sub)| *sub).collect();
    let policy = Policy::new(guest.policy, ages);
    let pager: FilePager = FilePager::new(places, memory, policy, budget(&guest), &subs)?;
    let sockets = Sockets {
        status: bind("pager.sock")?,
        map: bind("map.sock")?,
        again: bind("again.sock")?,
        go: bind("go.sock")?,
    };
    // whom the pager before has heard of and not answered looks again, and is told again; of a
    // QEMU that has ended nobody waits
    if let Err(error) = faults.wake(base, pages * PAGE_BYTES) {
        info!(%error, "nobody is woken");
    }
    info!(guest = guest.name, pages, ?stage, counts = ?pager.places().counts(), "begins");
    let folder = args.folder.clone();
    let reread: Reread = Box::new(move || {
        let guest = read(&folder)?;
        Ok(Terms {
            servers: servers(&guest),
            budget: budget(&guest),
            policy: guest.policy,
            chunk_bytes: guest.chunk_bytes,
            drain_bytes_s: guest.drain_bytes_s,
        })
    });
    let qemu = Qemu::new(qemu, guest.monitor.clone());
    let home = Home { guest, folder: args.folder.clone(), qemu, faults };
    Ok(run(pager, home, stage, its, reread, sockets)?)
}

fn read(folder: &Path) -> io::Result<SplitGuest> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join(files::GUEST))?)?)
}

fn budget(guest: &SplitGuest) -> Budget {
    Budget { pages: guest.budget_pages(), leaving_pages: guest.leaving_pages() }
}

/// A guest's memory servers.
fn servers(guest: &SplitGuest) -> Servers {
    let each = guest.servers.iter().map(|server| {
        let SplitGuest { uuid, epoch, memory_bytes, main, .. } = *guest;
        let secret = server.secret;
        let greeting = Greeting { uuid, secret, epoch, memory_bytes, main, takes_ages: false };
        let sub = Sub { limit_pages: server.limit_bytes / PAGE_BYTES, leaves: server.leaves };
        let (address, way) = (server.address, server.way());
        let (is_over, has_mirror) = (server.is_over(), server.mirror.is_some());
        (Server { address, way, greeting, is_over, has_mirror }, sub)
    });
    each.collect()
}
