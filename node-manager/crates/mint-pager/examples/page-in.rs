// SPDX-License-Identifier: Apache-2.0
//! How fast pages come back from a memory server: figures of `bench/figures_paging.py`.
//!
//! The memory server is a process of its own on this host's loopback, the pager that of this one,
//! whose memory comes. All of it is there at the beginning. Says one line of JSON:
//!
//! * `page-in latency PAGES`: one page a chunk, touched in random order: nanoseconds of each touch;
//! * `page-in bulk PAGES CHUNK_PAGES`: one after the other: nanoseconds of all;
//! * `page-in plain-latency PAGES`, `page-in plain-bulk PAGES CHUNK_PAGES`: the same bytes, asked for and
//!   read from a socket: what nobody who asks another process for pages is faster than.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use mint_pager::{
    Budget, FilePager, GuestMemory, Home, Qemu, Server, Sockets, Stage, Sub, Took, run,
};
use mint_split::{
    Ages, Frame, Geometry, Greeting, Lease, NodeStart, PAGE, PAGE_BYTES, PageNo, Pages, Places,
    Policy, SplitGuest, Version, hear, say,
};
use mint_store::Guests;
use mint_sys::{Faults, MemoryDevice, Watch, shared_words};
use mint_types::PagingPolicy;

type Failed = Box<dyn std::error::Error>;

const UUID: [u8; 16] = [1; 16];
const SECRET: [u8; 16] = [2; 16];
const WORDS: usize = PAGE / 4;
/// Pages whose places are theirs in an order that nobody foresees: a prime.
const STEP: u64 = 1_000_003;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["store", folder, pages] => store(Path::new(folder), pages.parse()?),
        ["answer"] => answer(),
        ["plain-latency", pages] => plain(pages.parse()?, 1, false),
        ["plain-bulk", pages, chunk_pages] => plain(pages.parse()?, chunk_pages.parse()?, true),
        ["latency", pages] => measure(pages.parse()?, 1, false),
        ["bulk", pages, chunk_pages] => measure(pages.parse()?, chunk_pages.parse()?, true),
        _ => Err("page-in [plain-]latency PAGES | [plain-]bulk PAGES CHUNK_PAGES".into()),
    }
}

fn greeting(pages: u64) -> Greeting {
    let memory_bytes = pages * PAGE_BYTES;
    Greeting { uuid: UUID, secret: SECRET, epoch: 1, memory_bytes, main: None, takes_ages: false }
}

/// A memory server that has a lease for one guest; says where it is, and ends when nobody listens.
fn store(folder: &Path, pages: u64) -> Result<(), Failed> {
    let guests = Arc::new(Guests::open(folder)?);
    guests.lease(Lease {
        uuid: UUID,
        secret: SECRET,
        epoch: 1,
        memory_bytes: pages * PAGE_BYTES,
        limit_bytes: pages * PAGE_BYTES,
        main: NodeStart { node: 1, boots: 1 },
        stays: false,
        mirror: None,
        machine: None,
    })?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(move || mint_store::serve(&listener, &guests));
    // until who has started this ends
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Bytes of what is asked and of what comes before pages in an answer: as a frame has them.
const ASKED: usize = 32;
const HEAD: usize = 36;

/// Answers with as many pages as each question says.
fn answer() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut asked = [0; ASKED];
    let mut bytes = Vec::new();
    while stream.read_exact(&mut asked).is_ok() {
        bytes.resize(HEAD + usize::from(u16::from_le_bytes([asked[0], asked[1]])) * PAGE, 7);
        stream.write_all(&bytes)?;
    }
    Ok(())
}

fn plain(pages: u64, chunk_pages: u16, is_bulk: bool) -> Result<(), Failed> {
    let (_answers, address) = start(&["answer"])?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut asked = [0; ASKED];
    asked[..2].copy_from_slice(&chunk_pages.to_le_bytes());
    let mut bytes = vec![0; HEAD + usize::from(chunk_pages) * PAGE];
    let mut ask = || -> Result<u64, Failed> {
        let begin = Instant::now();
        stream.write_all(&asked)?;
        stream.read_exact(&mut bytes)?;
        Ok(u64::try_from(begin.elapsed().as_nanos())?)
    };
    ask()?;
    let begin = Instant::now();
    let each =
        (1..pages / u64::from(chunk_pages)).map(|_| ask()).collect::<Result<Vec<u64>, _>>()?;
    tell(each.len() as u64 * u64::from(chunk_pages), begin, if is_bulk { Vec::new() } else { each })
}

fn tell(pages: u64, begin: Instant, each: Vec<u64>) -> Result<(), Failed> {
    let all_ns = u64::try_from(begin.elapsed().as_nanos())?;
    println!("{}", serde_json::json!({ "pages": pages, "all_ns": all_ns, "each_ns": each }));
    Ok(())
}

fn start(words: &[&str]) -> Result<(Running, SocketAddr), Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("it says nothing")?;
    let running = Running(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    Ok((running, line.trim().parse()?))
}

/// What a page begins with.
fn mark(page: u64) -> u32 {
    u32::try_from(page + 1).unwrap_or(u32::MAX)
}

/// All pages go there, in version 1; each begins with its mark.
fn fill(address: SocketAddr, geometry: Geometry) -> Result<(), Failed> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream.try_clone()?);
    say(&stream, &Frame::Hello(greeting(geometry.pages())))?;
    if hear(&mut from)? != Frame::Welcome {
        return Err("the memory server does not say welcome".into());
    }
    let step = geometry.chunk_pages();
    for first in (0..geometry.pages()).step_by(usize::try_from(step)?) {
        let mut pages = Pages::from(PageNo(first));
        for page in first..(first + step).min(geometry.pages()) {
            let mut bytes = [7; PAGE];
            bytes[..4].copy_from_slice(&mark(page).to_le_bytes());
            pages.push(Version(1), &bytes);
        }
        say(&stream, &Frame::Out(pages))?;
        if !matches!(hear(&mut from)?, Frame::Kept(_)) {
            return Err("the memory server does not keep all pages".into());
        }
    }
    Ok(())
}

fn measure(pages: u64, chunk_pages: u64, is_bulk: bool) -> Result<(), Failed> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let folder = folder.path();
    let geometry = Geometry::new(pages * PAGE_BYTES, chunk_pages * PAGE_BYTES)?;
    let count = usize::try_from(pages)?;
    let (_store, address) =
        start(&["store", &folder.join("store").display().to_string(), &pages.to_string()])?;
    fill(address, geometry)?;

    let memory: &mut [u32] = shared_words(&folder.join("ram"), count * WORDS)?;
    let base = memory.as_ptr().addr() as u64;
    let faults = Arc::new(Faults::own()?);
    faults.watch(base, pages * PAGE_BYTES, Watch::Holes)?;
    let words = shared_words(&folder.join("places"), count)?;
    let subs = shared_words(&folder.join("subs"), usize::try_from(geometry.chunks())?)?;
    let mut places = Places::open(geometry, words, subs)?;
    if !(0..pages).all(|page| places.take_word(PageNo(page), 3 | 1 << 3)) {
        return Err("pages cannot be elsewhere".into());
    }
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join(name))
    };
    let memory_of = GuestMemory {
        ram: open("ram")?,
        copies: open("copies")?,
        faults: faults.clone(),
        // nothing goes
        device: MemoryDevice::opened(OpenOptions::new().read(true).open("/dev/null")?.into()),
        base,
        pages,
        took: Took::default(),
    };
    let budget = Budget { pages: 2 * pages, leaving_pages: 64 };
    let sub = Sub { limit_pages: pages, leaves: false };
    let ages = Ages::open(geometry, shared_words(&folder.join("ages"), count)?)?;
    let policy = Policy::new(PagingPolicy::Fifo, ages);
    let pager = FilePager::new(places, memory_of, policy, budget, &[sub])?;
    let bind = |name: &str| UnixListener::bind(folder.join(name));
    let sockets = Sockets {
        status: bind("pager.sock")?,
        map: bind("map.sock")?,
        again: bind("again.sock")?,
        go: bind("go.sock")?,
    };
    let guest = SplitGuest {
        name: "measured".into(),
        uuid: UUID,
        memory_bytes: pages * PAGE_BYTES,
        main_bytes: 2 * pages * PAGE_BYTES,
        chunk_bytes: chunk_pages * PAGE_BYTES,
        epoch: 1,
        qemu: std::process::id(),
        servers: Vec::new(),
        main: None,
        monitor: None,
        policy: PagingPolicy::Fifo,
        copies: 1,
        left: Vec::new(),
        drain_bytes_s: None,
        lent: None,
    };
    // as long as it is open, the guest lives
    let (_lives, process) = UnixStream::pair()?;
    let home =
        Home { guest, folder: folder.to_owned(), qemu: Qemu::new(process.into(), None), faults };
    let server =
        Server { address, way: None, greeting: greeting(pages), is_over: false, has_mirror: false };
    let reread = Box::new(|| Err(std::io::Error::other("nothing changes")));
    std::thread::spawn(move || {
        if let Err(error) = run(pager, home, Stage::Main, vec![(server, sub)], reread, sockets) {
            eprintln!("the pager has ended: {error}");
            std::process::abort();
        }
    });
    // the first one waits for the connection
    let order = |number: u64| if is_bulk { number } else { number * STEP % pages };
    let mut touch = |page: u64| -> Result<u64, Failed> {
        let begin = Instant::now();
        let seen = memory[usize::try_from(page)? * WORDS];
        let took = begin.elapsed();
        if seen != mark(page) {
            return Err(format!("page {page} begins with {seen}").into());
        }
        // the compiler may not read it earlier
        memory[usize::try_from(page)? * WORDS] = seen;
        Ok(u64::try_from(took.as_nanos())?)
    };
    touch(order(0))?;
    let begin = Instant::now();
    let each =
        (1..pages).map(|number| touch(order(number))).collect::<Result<Vec<u64>, Failed>>()?;
    tell(pages - 1, begin, if is_bulk { Vec::new() } else { each })?;
    fs::remove_dir_all(folder)?;
    Ok(())
}
