// SPDX-License-Identifier: Apache-2.0
//! A guest's memory goes from one mapping of this process to another, by both sides' own code and
//! the kernel's userfaultfd, while somebody writes to it. QEMU and libvirt are played.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use mint_split::{
    Ages, ArrivalView, Greeting, MemoryView, PagerAnswer, PagerCall, Places, Policy, Server,
    Source, files, hear,
};
use mint_sys::{Faults, MemoryDevice, shared_words};
use mint_types::PagingPolicy;
use tempfile::TempDir;

use super::*;
use crate::coming::Coming;
use crate::file::{GuestMemory, Took};
use crate::going::Goings;
use crate::outbox::{Said, outbox};
use crate::pager::{Budget, Pager};
use crate::shared::{Home, Locked, Way, say_all};

const PAGES: u64 = 2048;
const CHUNK: u64 = 16;
const WORDS: usize = PAGE / 4;
/// Pages that are there at the beginning: the first of these.
const TOUCHED: usize = 1500;

type Memory = &'static mut [u32];

/// A host of the guest.
struct Host {
    folder: TempDir,
    memory: Memory,
    base: u64,
    ram: std::fs::File,
    faults: Arc<Faults>,
    /// What its QEMU's monitor says: its state, and its migration's.
    state: Arc<Mutex<(&'static str, &'static str)>>,
    /// As long as this lives, its QEMU does.
    qemu: UnixStream,
    process: OwnedFd,
}

impl Host {
    fn new(touch: impl FnOnce(&mut [u32]), watch: Watch) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("ram");
        let memory = shared_words::<u32>(&path, usize::try_from(PAGES).unwrap() * WORDS).unwrap();
        let base = memory.as_ptr().addr() as u64;
        touch(memory);
        let faults = Arc::new(Faults::own().unwrap());
        faults.watch(base, PAGES * PAGE_BYTES, watch).unwrap();
        let ram = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let state = Arc::new(Mutex::new(("running", "")));
        monitor(&folder.path().join("qmp"), state.clone());
        let (qemu, process) = UnixStream::pair().unwrap();
        Self { folder, memory, base, ram, faults, state, qemu, process: process.into() }
    }

    fn guest(&self, epoch: u64) -> SplitGuest {
        SplitGuest {
            name: "big".into(),
            uuid: [1; 16],
            memory_bytes: PAGES * PAGE_BYTES,
            main_bytes: 2 * PAGES * PAGE_BYTES,
            chunk_bytes: CHUNK * PAGE_BYTES,
            epoch,
            qemu: std::process::id(),
            servers: vec![Server {
                node: "sub".into(),
                address: "127.0.0.1:1".parse().unwrap(),
                secret: [4; 16],
                limit_bytes: PAGES * PAGE_BYTES,
                leaves: true,
                start: None,
                mirror: None,
                machine: None,
            }],
            main: None,
            monitor: Some(self.folder.path().join("qmp")),
            policy: PagingPolicy::Aging,
            copies: 1,
            left: Vec::new(),
            drain_bytes_s: None,
            lent: None,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(PAGES).unwrap() * PAGE];
        self.ram.read_exact_at(&mut all, 0).unwrap();
        all
    }
}

/// QEMU, as far as it is asked.
fn monitor(path: &Path, state: Arc<Mutex<(&'static str, &'static str)>>) {
    let listener = UnixListener::bind(path).unwrap();
    let talk = move |stream: UnixStream| {
        let say = |line: String| (&stream).write_all(format!("{line}\n").as_bytes());
        say(r#"{"QMP": {}}"#.into())?;
        for line in BufReader::new(&stream).lines() {
            let line = line?;
            let (run, migration) = *state.lock().unwrap();
            let status = if line.contains("query-status") { run } else { migration };
            say(format!(r#"{{"return": {{"status": "{status}"}}}}"#))?;
        }
        Ok::<(), io::Error>(())
    };
    let talk = Arc::new(talk);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let talk = talk.clone();
            std::thread::spawn(move || talk(stream));
        }
    });
}

fn geometry() -> Geometry {
    Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap()
}

fn places() -> Places<'static> {
    let (pages, chunks) =
        (usize::try_from(PAGES).unwrap(), usize::try_from(PAGES / CHUNK).unwrap());
    Places::open(geometry(), vec![0; pages].leak(), vec![0; chunks].leak()).unwrap()
}

/// The pager of the host that it leaves, with two pages at a memory server, which may keep so many.
fn leaves(host: &Host, limit_pages: u64) -> Shared {
    let mut places = places();
    for page in [1600, 1601] {
        assert!(places.take_word(PageNo(page), 3 | 7 << 3));
    }
    let memory = GuestMemory {
        ram: host.ram.try_clone().unwrap(),
        copies: tempfile::tempfile_in("/dev/shm").unwrap(),
        faults: host.faults.clone(),
        device: MemoryDevice::opened(
            OpenOptions::new().read(true).open("/dev/null").unwrap().into(),
        ),
        base: host.base,
        pages: PAGES,
        took: Took::default(),
    };
    let budget = Budget { pages: 2 * PAGES, leaving_pages: 64 };
    let sub = crate::Sub { limit_pages, leaves: false };
    let mut ages = ages();
    ages.take(PageNo(5), &[0x41]);
    let policy = Policy::new(PagingPolicy::Aging, ages);
    let pager = Pager::new(places, memory, policy, budget, &[sub]).unwrap();
    let (waiting, waited, waits) = Default::default();
    let locked = Locked { pager, ways: Vec::new(), looks: false, waiting, waited, waits };
    let home = Home {
        guest: host.guest(1),
        folder: host.folder.path().to_owned(),
        qemu: Qemu::new(host.process.try_clone().unwrap(), host.guest(1).monitor),
        faults: host.faults.clone(),
    };
    let (tells, _) = UnixStream::pair().unwrap();
    Shared {
        locked: Mutex::new(locked),
        home,
        departure: Mutex::default(),
        looks: Mutex::default(),
        broken: Mutex::default(),
        tells,
    }
}

fn ages() -> Ages<'static> {
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    let bytes = vec![0; usize::try_from(PAGES).unwrap()];
    Ages::open(geometry, Box::leak(bytes.into_boxed_slice())).unwrap()
}

/// What has come, to the host that it comes to.
fn view(folder: &Path) -> ArrivalView {
    let asked = UnixStream::connect(folder.join("pager.sock")).unwrap();
    let view: MemoryView = serde_json::from_reader(asked).unwrap();
    view.arrival.unwrap()
}

fn write(memory: &mut [u32], page: usize, value: u32) {
    memory[page * WORDS..(page + 1) * WORDS].fill(value);
}

/// A memory server that the pager has a connection to: what it keeps.
type Kept = BTreeMap<PageNo, (Version, Vec<u8>)>;

/// Keeps what it is told, until nobody talks to it any more.
fn keeps(shared: &Shared, frames: &Said) -> Kept {
    let mut kept = Kept::new();
    while let Some(frame) = frames.next() {
        let answers = match frame {
            Frame::Out(pages) => {
                let each = pages.each().map(|(page, version, bytes)| {
                    let bytes = bytes.map_or_else(|| vec![0; PAGE], <[u8]>::to_vec);
                    let before = kept.insert(page, (version, bytes));
                    assert!(before.is_none_or(|(before, _)| before < version), "{page} again");
                    (page, version)
                });
                vec![Frame::Kept(each.collect())]
            }
            Frame::Drop(pages) => {
                for (page, to) in pages {
                    if kept.get(&page).is_some_and(|(version, _)| *version <= to) {
                        kept.remove(&page);
                    }
                }
                Vec::new()
            }
            Frame::List => vec![
                Frame::Listed(vec![(PageNo(1600), Version(7)), (PageNo(1601), Version(7))]),
                Frame::Listed(Vec::new()),
            ],
            other => panic!("nobody says {other:?}"),
        };
        for answer in answers {
            let mut locked = shared.lock();
            let (orders, fault) = locked.pager.heard(SubNo(0), answer).unwrap();
            assert_eq!(fault, None);
            say_all(&locked.ways, locked.pager.is_held(), orders);
        }
    }
    kept
}

/// A guest that writes to its memory moves to a host that has so much for it (none: as much as
/// there is), and is as it was there, but for what a memory server keeps. Or it stands still already,
/// for a pager before.
fn moves(main_pages: Option<u64>, is_stopped: bool) -> (mint_split::Counts, Kept, DepartureView) {
    let touch = |memory: &mut [u32]| (0..TOUCHED).for_each(|page| write(memory, page, 1));
    let from = Host::new(touch, Watch::Holes);
    let to = Host::new(|_| {}, Watch::All);
    let shared = leaves(&from, main_pages.map_or(0, |_| PAGES));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source {
        address: listener.local_addr().unwrap(),
        secret: [9; 16],
        bandwidth_bytes_s: None,
    };
    let (guest, folder) = (to.guest(2), to.folder.path());
    let coming = Coming {
        guest: &guest,
        folder,
        source,
        servers: &[],
        ram: &to.ram,
        base: to.base,
        faults: &to.faults,
    };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let (mut there, mut used) = (places(), ages());
    // a process of its own looks at a page before it is the guest's
    let looks = to.memory.as_ptr().addr();
    assert_eq!(looks as u64, to.base);
    let next = main_pages.map(|pages| Budget { pages, leaving_pages: 64 });
    let (sayer, frames) = outbox();
    {
        let mut locked = shared.lock();
        let address = "127.0.0.1:1".parse().unwrap();
        let SplitGuest { uuid, memory_bytes, main, .. } = from.guest(1);
        let greeting =
            Greeting { uuid, secret: [4; 16], epoch: 1, memory_bytes, main, takes_ages: false };
        let server =
            crate::Server { address, way: None, greeting, is_over: false, has_mirror: false };
        locked.ways.push(Way { writer: Some(sayer), ..Way::new(server) });
        let orders = locked.pager.connected(SubNo(0));
        say_all(&locked.ways, false, orders);
    }
    if is_stopped {
        from.faults.watch(from.base, PAGES * PAGE_BYTES, Watch::HolesAndWrites).unwrap();
        *from.state.lock().unwrap() = ("finish-migrate", "pre-switchover");
    }
    let kept = std::thread::scope(|scope| {
        let memory = &mut *from.memory;
        let state = from.state.clone();
        let at_sub = &shared;
        let keeps = scope.spawn(move || keeps(at_sub, &frames));
        scope.spawn(move || {
            let mut random = 7_u32;
            for value in 2..if is_stopped { 2 } else { 60_000 } {
                random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
                // a few pages, and then all of them
                let range = if value % 1000 < 900 { 40 } else { TOUCHED };
                write(memory, (random >> 8) as usize % range, value);
            }
            // QEMU's stream begins when little is left
            while !is_stopped && !view(folder).is_ready {
                std::thread::sleep(Duration::from_millis(5));
            }
            *state.lock().unwrap() = ("finish-migrate", "pre-switchover");
        });
        let given = scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            let Frame::Hello(greeting) = hear(&mut &stream).unwrap() else {
                panic!("no hello");
            };
            let Greeting { secret, epoch, takes_ages, .. } = greeting;
            assert_eq!((secret, epoch), ([9; 16], 2));
            say(&stream, &Frame::Welcome).unwrap();
            let stop = Stop::default();
            let mut giving = Giving::new(&shared, &stop, None, next);
            assert_eq!(giving.give(&stream, takes_ages).unwrap(), Given::All);
            assert_eq!(hear(&mut &stream).unwrap(), Frame::Taken);
        });
        assert!(coming.take(&mut there, &mut used, &to.process, status).unwrap());
        given.join().unwrap();
        shared.lock().ways.clear();
        keeps.join().unwrap()
    });
    assert!(shared.lock().pager.is_held());
    let told = shared.view().departure.unwrap();
    let is_enough = is_stopped || (told.rounds > 0 && told.sent_pages > TOUCHED as u64);
    assert!(is_enough && told.sent_pages >= TOUCHED as u64, "{told:?}");
    let (here, mut all) = (from.bytes(), to.bytes());
    for page in (0..TOUCHED as u64).map(PageNo) {
        if let Some(Place::Remote { version, .. }) = there.place(page) {
            let (kept, bytes) = &kept[&page];
            assert_eq!(*kept, version, "{page}");
            let at = index(page.0) * PAGE;
            all[at..at + PAGE].copy_from_slice(bytes);
        }
    }
    assert!(all == here, "what is there is not what was here");
    assert!(folder.join(files::HAS_ALL).exists());
    assert!(is_stopped || used.told(PageNo(4), 3) == [0, 0x41, 0]);
    let counts = there.counts();
    assert_eq!(
        (counts.local + counts.remote, counts.virgin),
        (TOUCHED as u64 + 2, PAGES - TOUCHED as u64 - 2)
    );
    let at = there.place(PageNo(1601));
    assert_eq!(at, Some(Place::Remote { at: SubNo(0), version: Version(7) }));
    // who touches it now sees it
    assert_eq!(to.memory[3 * WORDS], from.memory[3 * WORDS]);
    // nothing went or came for that at the host that it left
    let done = shared.lock().pager.done();
    assert_eq!((done.page_ins, done.page_outs), (0, 0));
    drop((from.qemu, to.qemu));
    (counts, kept, told)
}

#[test]
fn memory_that_is_written_to_is_at_the_next_host_as_it_was_last() {
    let (counts, kept, told) = moves(None, false);
    assert_eq!((counts.remote, kept.len(), told.ahead_pages), (2, 0, 0));
}

#[test]
fn memory_that_the_next_host_has_no_room_for_is_at_a_memory_server_as_it_was_last() {
    let main_pages = 500;
    let (counts, kept, told) = moves(Some(main_pages), false);
    // what is written to lies in the first chunks, and is worth most
    assert!(counts.local <= main_pages - 64, "{counts:?}");
    assert!(counts.local >= main_pages - 64 - 64, "{counts:?}");
    assert!(kept.len() as u64 >= counts.remote - 2 && told.ahead_pages > 900, "{told:?}");
}

#[test]
fn pager_that_begins_when_the_guest_stands_still_gives_its_next_host_no_more_than_it_may_have() {
    let main_pages = 500;
    let (counts, kept, _) = moves(Some(main_pages), true);
    assert!(counts.local <= main_pages - 64, "{counts:?}");
    // what is late there, the next host has as well, within what it may have
    assert!(kept.len() as u64 >= counts.remote - 2, "{counts:?}");
}

#[test]
fn guest_that_went_and_runs_here_again_is_this_hosts() {
    let touch = |memory: &mut [u32]| (0..100).for_each(|page| write(memory, page, 1));
    let from = Host::new(touch, Watch::Holes);
    let to = Host::new(|_| {}, Watch::All);
    let shared = Arc::new(leaves(&from, 0));
    let goings = Arc::new(Goings::default());
    let go = UnixListener::bind(from.folder.path().join("go.sock")).unwrap();
    let (calls, its) = (goings.clone(), shared.clone());
    std::thread::spawn(move || calls.listen(&its, &go));
    let ask = |call: PagerCall| -> PagerAnswer {
        let mut pager = UnixStream::connect(from.folder.path().join("go.sock")).unwrap();
        pager.write_all((serde_json::to_string(&call).unwrap() + "\n").as_bytes()).unwrap();
        serde_json::from_reader(pager).unwrap()
    };
    let ip = "127.0.0.1".parse().unwrap();
    let call = PagerCall::Go { ip, secret: [9; 16], bandwidth_bytes_s: None, main_bytes: None };
    let PagerAnswer::Goes(address) = ask(call) else { panic!("it does not go") };
    let (guest, folder) = (to.guest(2), to.folder.path());
    let source = Source { address, secret: [9; 16], bandwidth_bytes_s: None };
    let coming = Coming {
        guest: &guest,
        folder,
        source,
        servers: &[],
        ram: &to.ram,
        base: to.base,
        faults: &to.faults,
    };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let state = from.state.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        *state.lock().unwrap() = ("finish-migrate", "pre-switchover");
    });
    assert!(coming.take(&mut places(), &mut ages(), &to.process, status).unwrap());
    let is_there = |name: &str| from.folder.path().join(name).exists();
    let until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until(&|| is_there(files::GONE));
    *from.state.lock().unwrap() = ("postmigrate", "completed");
    std::thread::sleep(Duration::from_millis(1200));
    assert!(matches!(ask(PagerCall::Stay), PagerAnswer::Cannot(_)));
    assert!(is_there(files::GONE) && shared.lock().pager.is_held());
    // its next host has ended, and libvirt lets it go on here
    *from.state.lock().unwrap() = ("running", "completed");
    until(&|| !is_there(files::GONE));
    assert!(!is_there(files::GOING) && !shared.lock().pager.is_held());
    assert!(matches!(ask(PagerCall::Stay), PagerAnswer::Stays));
    drop((from.qemu, to.qemu));
}

/// Who plays the host that the guest leaves: it says this, to one after the other.
fn says(sessions: Vec<Vec<Frame>>) -> (Source, std::thread::JoinHandle<Vec<Option<Frame>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source {
        address: listener.local_addr().unwrap(),
        secret: [9; 16],
        bandwidth_bytes_s: None,
    };
    let talks = std::thread::spawn(move || {
        let talk = |frames: Vec<Frame>| {
            let (stream, _) = listener.accept().unwrap();
            hear(&mut &stream).unwrap();
            for frame in &frames {
                _ = say(&stream, frame);
            }
            // one that is cut off hears nothing
            if frames.last() == Some(&Frame::Ready) { None } else { hear(&mut &stream).ok() }
        };
        sessions.into_iter().map(talk).collect()
    });
    (source, talks)
}

fn copy(first: u64, bytes: &[u8]) -> Frame {
    let mut pages = Pages::from(PageNo(first));
    bytes.iter().for_each(|&byte| pages.push(Version(0), &[byte; PAGE]));
    Frame::Copy(pages)
}

#[test]
fn what_came_before_a_connection_broke_is_not_the_guests() {
    let to = Host::new(|_| {}, Watch::All);
    let word = |page: u64| match page {
        1 | 3 => 1,
        2 => 3 | 5 << 3,
        _ => 0,
    };
    let words = |bad: u32| {
        let all = (0..PAGES).map(word).collect::<Vec<u32>>();
        let subs = vec![SubNo(0); usize::try_from(PAGES / CHUNK).unwrap()];
        let mut all = vec![Frame::Words(PageNo(0), all), Frame::Subs(0, subs), Frame::Final];
        if bad > 0 {
            all.insert(0, Frame::Words(PageNo(0), vec![bad]));
        }
        all
    };
    let start = |pages: Frame| vec![Frame::Welcome, pages, Frame::Ready];
    let good = [start(copy(1, &[5, 6, 7])), vec![copy(1, &[8])], words(0)].concat();
    let (source, talks) = says(vec![
        start(copy(1, &[1, 1, 1, 1, 1])),
        // a place that no other host tells
        [start(copy(1, &[2])), words(4)].concat(),
        [start(copy(1, &[2])), vec![Frame::Final]].concat(),
        good,
    ]);
    let guest = to.guest(2);
    let folder = to.folder.path();
    let coming = Coming {
        guest: &guest,
        folder,
        source,
        servers: &[],
        ram: &to.ram,
        base: to.base,
        faults: &to.faults,
    };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let mut places = places();
    assert!(coming.take(&mut places, &mut ages(), &to.process, status).unwrap());
    let said = talks.join().unwrap();
    assert_eq!(said, [None, None, None, Some(Frame::Taken)]);
    let page = |page: usize| to.bytes()[page * PAGE];
    assert_eq!([0, 1, 2, 3, 4, 5].map(page), [0, 8, 0, 7, 0, 0]);
    assert_eq!((places.counts().local, places.counts().remote), (2, 1));
    // its last host is not asked again
    let status = UnixListener::bind(folder.join("again.sock")).unwrap();
    assert!(coming.take(&mut places, &mut ages(), &to.process, status).unwrap());
    drop(to.qemu);
}

#[test]
fn guest_that_never_had_a_memory_server_comes_and_has_nothing_elsewhere() {
    let to = Host::new(|_| {}, Watch::All);
    let all = |word: u32| {
        let words = (0..PAGES).map(|page| if page == 1 { word } else { 0 }).collect();
        let subs = vec![SubNo(0); usize::try_from(PAGES / CHUNK).unwrap()];
        let last = vec![Frame::Words(PageNo(0), words), Frame::Subs(0, subs), Frame::Final];
        [vec![Frame::Welcome, copy(1, &[5]), Frame::Ready], last].concat()
    };
    let (remote, local) = (3 | 5 << 3, 1);
    let (source, talks) = says(vec![all(remote), all(local)]);
    let guest = SplitGuest { servers: Vec::new(), ..to.guest(2) };
    let folder = to.folder.path();
    let coming = Coming {
        guest: &guest,
        folder,
        source,
        servers: &[],
        ram: &to.ram,
        base: to.base,
        faults: &to.faults,
    };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let mut places = places();
    assert!(coming.take(&mut places, &mut ages(), &to.process, status).unwrap());
    assert_eq!(talks.join().unwrap(), [None, Some(Frame::Taken)]);
    assert_eq!((to.bytes()[PAGE], places.counts().local), (5, 1));
    drop(to.qemu);
}

#[path = "merging.rs"]
mod merging;

#[path = "failing.rs"]
mod failing;
