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
    Budget, FilePager, GuestMemory, Reread, Server, Servers, Sockets, Sub, Took, run,
};
use mint_split::{Fifo, Frame, PAGE_BYTES, Places, SplitGuest};
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
    let subs = shared_words(&args.folder.join("subs"), usize::try_from(geometry.chunks())?)?;
    let places = Places::open(geometry, words, subs)?;
    let (base, pages) = (args.base, geometry.pages());
    let memory = GuestMemory {
        ram,
        copies,
        faults: faults.clone(),
        device,
        base,
        pages,
        took: Took::default(),
    };
    let budget = Budget { pages: guest.budget_pages(), leaving_pages: guest.leaving_pages() };
    let chunks = usize::try_from(geometry.chunks())?;
    let its = servers(&guest);
    let subs: Vec<Sub> = its.iter().map(|(_, sub)| *sub).collect();
    let pager: FilePager = FilePager::new(places, memory, Fifo::new(chunks), budget, &subs)?;
    let bind = |name: &str| {
        let socket = args.folder.join(name);
        _ = remove_file(&socket);
        UnixListener::bind(&socket)
    };
    let sockets = Sockets { status: bind("pager.sock")?, again: bind("again.sock")? };
    // whom the pager before has heard of and not answered looks again, and is told again
    faults.wake(base, pages * PAGE_BYTES)?;
    info!(guest = guest.name, pages, counts = ?pager.places().counts(), "begins");
    let folder = args.folder.clone();
    let reread: Reread = Box::new(move || Ok(servers(&read(&folder)?)));
    Ok(run(pager, &faults, &qemu, its, reread, sockets)?)
}

fn read(folder: &Path) -> io::Result<SplitGuest> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join("guest.json"))?)?)
}

/// A guest's memory servers.
fn servers(guest: &SplitGuest) -> Servers {
    let each = guest.servers.iter().map(|server| {
        let hello = Frame::Hello {
            uuid: guest.uuid,
            secret: server.secret,
            epoch: guest.epoch,
            memory_bytes: guest.memory_bytes,
        };
        let sub = Sub { limit_pages: server.limit_bytes / PAGE_BYTES, leaves: server.leaves };
        (Server { address: server.address, hello, is_over: server.is_over() }, sub)
    });
    each.collect()
}
