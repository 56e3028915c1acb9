// SPDX-License-Identifier: Apache-2.0
//! A guest's memory server is real: a guest comes to have all of its memory at one host, and the one that
//! it leaves is played; or its memory server does not know it any more.

use std::thread::sleep;

use mint_split::{Lease, NodeStart};
use mint_store::Guests;

use super::*;

const SECRET: [u8; 16] = [4; 16];

fn lease() -> Lease {
    Lease {
        uuid: [1; 16],
        secret: SECRET,
        epoch: 1,
        memory_bytes: PAGES * PAGE_BYTES,
        limit_bytes: PAGES * PAGE_BYTES,
        main: NodeStart { node: 1, boots: 1 },
        stays: false,
        mirror: None,
        machine: None,
    }
}

/// A memory server that keeps these pages, each of one byte: as its main host's messages say.
struct Keeps {
    _folder: TempDir,
    address: std::net::SocketAddr,
    main: std::net::TcpStream,
}

impl Keeps {
    fn new(pages: &[(u64, u32, u8)]) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let guests = Arc::new(Guests::open(folder.path()).unwrap());
        guests.lease(lease()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || mint_store::serve(&listener, &guests));
        let main = std::net::TcpStream::connect(address).unwrap();
        let keeps = Self { _folder: folder, address, main };
        assert_eq!(keeps.ask(&Frame::Hello(greeting(1))), Frame::Welcome);
        for &(page, version, byte) in pages {
            keeps.out(page, version, byte);
        }
        keeps
    }

    fn ask(&self, frame: &Frame) -> Frame {
        say(&self.main, frame).unwrap();
        hear(&mut &self.main).unwrap()
    }

    fn out(&self, page: u64, version: u32, byte: u8) {
        let mut pages = Pages::from(PageNo(page));
        pages.push(Version(version), &[byte; PAGE]);
        let kept = Frame::Kept(vec![(PageNo(page), Version(version))]);
        assert_eq!(self.ask(&Frame::Out(pages)), kept);
    }

    fn server(&self) -> crate::Server {
        let greeting = greeting(2);
        crate::Server {
            address: self.address,
            way: None,
            greeting,
            is_over: false,
            has_mirror: false,
        }
    }
}

fn greeting(epoch: u64) -> Greeting {
    Greeting {
        uuid: [1; 16],
        secret: SECRET,
        epoch,
        memory_bytes: PAGES * PAGE_BYTES,
        main: None,
        takes_ages: false,
    }
}

/// Waits until a page at the next host is all of this byte.
fn until(to: &Host, page: usize, byte: u8) {
    while to.bytes()[page * PAGE] != byte {
        sleep(Duration::from_millis(5));
    }
}

/// The words of a guest, of which these are not virgin.
fn words(of: &[(u64, u32)]) -> Vec<Frame> {
    let mut words = vec![0; usize::try_from(PAGES).unwrap()];
    of.iter().for_each(|&(page, word)| words[index(page)] = word);
    let subs = vec![SubNo(0); usize::try_from(PAGES / CHUNK).unwrap()];
    vec![Frame::Words(PageNo(0), words), Frame::Subs(0, subs), Frame::Final]
}

const LOCAL: u32 = 1;

fn remote(version: u32) -> u32 {
    3 | version << 3
}

#[test]
fn what_a_memory_server_keeps_comes_meanwhile_and_counts_if_it_is_still_the_page() {
    let keeps =
        Keeps::new(&[(1, 1, 7), (10, 5, 10), (11, 5, 11), (12, 3, 12), (13, 2, 13), (14, 1, 0)]);
    let to = Host::new(|_| {}, Watch::All);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source {
        address: listener.local_addr().unwrap(),
        secret: [9; 16],
        bandwidth_bytes_s: None,
    };
    let (guest, folder) = (to.guest(2), to.folder.path());
    let servers = [keeps.server()];
    let coming = Coming {
        guest: &guest,
        folder,
        source,
        servers: &servers,
        ram: &to.ram,
        base: to.base,
        faults: &to.faults,
    };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let (mut there, mut used) = (places(), ages());
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| coming.take(&mut there, &mut used, &to.process, status));
        let (stream, _) = listener.accept().unwrap();
        assert!(matches!(hear(&mut &stream).unwrap(), Frame::Hello(_)));
        // the guest has page 1 already
        say(&stream, &Frame::Welcome).unwrap();
        say(&stream, &copy(1, &[1])).unwrap();
        for (page, byte) in [(1, 1), (10, 10), (11, 11), (12, 12), (13, 13)] {
            until(&to, page, byte);
        }
        // it has fetched 12 and written to it, 11 has come back and gone again, 13 was given back
        say(&stream, &copy(12, &[99])).unwrap();
        until(&to, 12, 99);
        keeps.out(11, 6, 66);
        say(&stream, &Frame::Ready).unwrap();
        let last = words(&[
            (1, LOCAL),
            (10, remote(5)),
            (11, remote(6)),
            (12, LOCAL | 3 << 3),
            (14, remote(1)),
            (20, remote(1)),
        ]);
        last.iter().for_each(|frame| say(&stream, frame).unwrap());
        assert_eq!(hear(&mut &stream).unwrap(), Frame::Taken);
        assert!(taken.join().unwrap().unwrap());
    });
    let byte = |page: usize| to.bytes()[page * PAGE];
    assert_eq!([1, 10, 11, 12, 13, 14, 20].map(byte), [1, 10, 0, 99, 0, 0, 0]);
    let remote = |version| Some(Place::Remote { at: SubNo(0), version: Version(version) });
    let local = Some(Place::Local);
    let places = [1, 10, 11, 12, 13, 14, 20].map(|page| there.place(PageNo(page)));
    assert_eq!(places, [local, local, remote(6), local, Some(Place::Virgin), local, remote(1)]);
    assert_eq!(view(folder).early_pages, 2);
    // who speaks for the guest still does
    assert!(matches!(
        keeps.ask(&Frame::In(mint_split::PageRun { first: PageNo(11), count: 1 })),
        Frame::Data(_)
    ));
    drop(to.qemu);
}

#[test]
fn only_what_is_to_be_at_one_host_comes_early() {
    let to = Host::new(|_| {}, Watch::All);
    let address = "127.0.0.1:1".parse().unwrap();
    let source = Source { address, secret: [9; 16], bandwidth_bytes_s: None };
    let whole = to.guest(2);
    let stays = mint_split::Server { leaves: false, ..whole.servers[0].clone() };
    let limited = SplitGuest { main_bytes: whole.memory_bytes - 1, ..whole.clone() };
    let kept = SplitGuest { servers: vec![whole.servers[0].clone(), stays], ..whole.clone() };
    let none = SplitGuest { servers: Vec::new(), ..whole.clone() };
    for (guest, merges) in [(&whole, true), (&limited, false), (&kept, false), (&none, false)] {
        let (folder, servers) = (to.folder.path(), &[]);
        let (ram, base, faults) = (&to.ram, to.base, &to.faults);
        let coming = Coming { guest, folder, source, servers, ram, base, faults };
        assert_eq!(coming.is_merged(), merges, "{guest:?}");
    }
}

#[test]
fn what_the_last_main_host_sends_is_the_page_whatever_comes_late() {
    let to = Host::new(|_| {}, Watch::All);
    let early = crate::early::Early::new(
        to.ram.try_clone().unwrap(),
        geometry(),
        true,
        crate::share::Share::new(None),
    );
    let pages = |first: u64, bytes: &[u8]| match copy(first, bytes) {
        Frame::Copy(mut pages) => {
            pages.entries.iter_mut().for_each(|entry| entry.version = Version(3));
            pages
        }
        other => panic!("{other:?}"),
    };
    let byte = |page: usize| to.bytes()[page * PAGE];
    early.copied(&pages(5, &[1])).unwrap();
    assert!(early.kept(&pages(4, &[2, 2, 2])).unwrap());
    assert_eq!([4, 5, 6].map(byte), [2, 1, 2]);
    early.dropped([PageNo(5)]).unwrap();
    assert!(early.kept(&pages(8, &[2])).unwrap());
    early.copied(&pages(8, &[0])).unwrap();
    assert_eq!([4, 5, 6, 8].map(byte), [2, 0, 2, 0]);
    let marks = early.end();
    let has = |page| marks.has(PageNo(page), Version(3));
    assert_eq!([4, 5, 6, 7, 8].map(has), [true, false, true, false, false]);
    assert!(!marks.has(PageNo(4), Version(2)));
    // the guest may run
    assert!(!early.kept(&pages(10, &[2])).unwrap());
    assert_eq!(byte(10), 0);
}

#[test]
fn what_a_memory_server_kept_that_does_not_know_the_guest_is_lost_unless_another_one_has_it() {
    let keeps = Keeps::new(&[]);
    let from = Host::new(|_| {}, Watch::Holes);
    for (secret, has_mirror, lost_pages) in
        [(SECRET, false, 2), ([8; 16], false, 2), ([8; 16], true, 0)]
    {
        let shared = Arc::new(leaves(&from, PAGES));
        let known = keeps.server();
        let server =
            crate::Server { greeting: Greeting { secret, ..known.greeting }, has_mirror, ..known };
        let sub = crate::Sub { limit_pages: PAGES, leaves: false };
        crate::run::talk_to(&shared, vec![(server, sub)]).unwrap();
        let begin = std::time::Instant::now();
        while shared.view().lost_pages != lost_pages || begin.elapsed() < Duration::from_secs(1) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", shared.view());
            sleep(Duration::from_millis(10));
        }
        // the one that knows it has none of its pages, and says so
        assert_eq!(shared.view().servers[0].is_connected, secret == SECRET);
        shared.lock().ways[0].server.is_over = true;
    }
}

/// How long it takes until a guest may go on at its next host that gets as much from the host that it
/// leaves as from a memory server, and how long the rest takes for which it stands still.
fn takes(bandwidth_bytes_s: Option<u64>) -> (Duration, Duration) {
    let (early, count) = (100, 128_u8);
    let all: Vec<_> = (0..u64::from(count)).map(|page| (early + page, 1, 1)).collect();
    let keeps = Keeps::new(&all);
    let to = Host::new(|_| {}, Watch::All);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source =
        Source { address: listener.local_addr().unwrap(), secret: [9; 16], bandwidth_bytes_s };
    let (guest, folder) = (to.guest(2), to.folder.path());
    let servers = [keeps.server()];
    let (ram, base, faults) = (&to.ram, to.base, &to.faults);
    let coming = Coming { guest: &guest, folder, source, servers: &servers, ram, base, faults };
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let (mut there, mut used) = (places(), ages());
    let took = std::thread::scope(|scope| {
        let taken = scope.spawn(|| coming.take(&mut there, &mut used, &to.process, status));
        let (stream, _) = listener.accept().unwrap();
        assert!(matches!(hear(&mut &stream).unwrap(), Frame::Hello(_)));
        let began = std::time::Instant::now();
        say(&stream, &Frame::Welcome).unwrap();
        // no faster than a last host would
        let chunks = u64::from(count) / CHUNK;
        for chunk in 0..chunks {
            say(&stream, &copy(1600 + chunk * CHUNK, &[2; 16])).unwrap();
            crate::stream::rest_for(CHUNK * PAGE_BYTES, bandwidth_bytes_s);
        }
        until(&to, index(1600 + u64::from(count) - 1), 2);
        until(&to, index(early + u64::from(count) - 1), 1);
        let before = began.elapsed();
        say(&stream, &Frame::Ready).unwrap();
        let began = std::time::Instant::now();
        (0..chunks).for_each(|chunk| {
            say(&stream, &copy(1600 + chunk * CHUNK, &[3; 16])).unwrap();
        });
        words(&[]).iter().for_each(|frame| say(&stream, frame).unwrap());
        assert_eq!(hear(&mut &stream).unwrap(), Frame::Taken);
        assert!(taken.join().unwrap().unwrap());
        (before, began.elapsed())
    });
    drop(to.qemu);
    took
}

#[test]
fn bandwidth_is_that_of_all_who_send_until_the_guest_may_stand_still() {
    // half a MiB from each of the two
    let (before, after) = takes(Some(1 << 19));
    assert!(before > Duration::from_millis(1800), "{before:?}");
    assert!(after < Duration::from_millis(900), "{after:?}");
    let (before, _) = takes(None);
    assert!(before < Duration::from_millis(900), "{before:?}");
}
