// SPDX-License-Identifier: Apache-2.0
//! A memory server on this host's loopback, and main hosts that are played.

use std::io::Write;
use std::path::Path;

use mint_split::{
    Greeting, Lease, LeaseEnd, NodeStart, PAGE_BYTES, PageNo, PageRun, Pages, Version,
};
use tempfile::TempDir;

use super::*;

const UUID: [u8; 16] = [7; 16];
const SECRET: [u8; 16] = [9; 16];
const MEMORY: u64 = 1024 * PAGE_BYTES;

fn lease(limit_pages: u64) -> Lease {
    Lease {
        uuid: UUID,
        secret: SECRET,
        epoch: 1,
        memory_bytes: MEMORY,
        limit_bytes: limit_pages * PAGE_BYTES,
        main: NodeStart { node: 1, boots: 1 },
        stays: false,
        mirror: None,
        machine: None,
    }
}

fn greeting(epoch: u64) -> Greeting {
    Greeting {
        uuid: UUID,
        secret: SECRET,
        epoch,
        memory_bytes: MEMORY,
        main: None,
        takes_ages: false,
    }
}

fn end(secret: [u8; 16], epoch: Option<u64>) -> LeaseEnd {
    LeaseEnd { uuid: UUID, secret, epoch }
}

struct Server {
    folder: TempDir,
    guests: Arc<Guests>,
    address: std::net::SocketAddr,
}

fn start(folder: TempDir) -> Server {
    let guests = Arc::new(Guests::open(folder.path()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = guests.clone();
    std::thread::spawn(move || serve(&listener, &served));
    Server { folder, guests, address }
}

fn server(limit_pages: u64) -> Server {
    let server = start(tempfile::tempdir().unwrap());
    server.guests.lease(lease(limit_pages)).unwrap();
    server
}

struct Main(TcpStream);

impl Main {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(stream)
    }

    fn hello(server: &Server, epoch: u64) -> (Self, Frame) {
        let main = Self::connect(server);
        let answer = main.ask(&Frame::Hello(greeting(epoch)));
        (main, answer)
    }

    fn welcome(server: &Server) -> Self {
        let (main, answer) = Self::hello(server, 1);
        assert_eq!(answer, Frame::Welcome);
        main
    }

    fn say(&self, frame: &Frame) {
        say(&self.0, frame).unwrap();
    }

    fn hear(&self) -> Frame {
        hear(&mut &self.0).unwrap()
    }

    fn ask(&self, frame: &Frame) -> Frame {
        self.say(frame);
        self.hear()
    }

    fn is_over(&self) -> bool {
        let over = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        matches!(hear(&mut &self.0), Err(HearError::Io(error)) if over.contains(&error.kind()))
    }
}

fn pages(first: u64, version: u32, bytes: &[u8]) -> Pages {
    let mut pages = Pages::from(PageNo(first));
    for &byte in bytes {
        pages.push(Version(version), &[byte; 4096]);
    }
    pages
}

fn run(first: u64, count: u32) -> PageRun {
    PageRun { first: PageNo(first), count }
}

#[test]
fn pages_go_out_come_back_and_are_dropped() {
    let server = server(100);
    let main = Main::welcome(&server);
    let kept = [8, 9, 10].map(|page| (PageNo(page), Version(1))).to_vec();
    assert_eq!(main.ask(&Frame::Out(pages(8, 1, &[1, 0, 3]))), Frame::Kept(kept.clone()));
    assert_eq!(main.ask(&Frame::In(run(7, 2))), Frame::Missing(run(7, 1)));
    assert_eq!(main.hear(), Frame::Data(pages(8, 1, &[1])));
    assert_eq!(main.ask(&Frame::In(run(8, 3))), Frame::Data(pages(8, 1, &[1, 0, 3])));
    main.say(&Frame::Drop(kept[..1].to_vec()));
    assert_eq!(main.ask(&Frame::List), Frame::Listed(kept[1..].to_vec()));
    assert_eq!(main.hear(), Frame::Listed(Vec::new()));
    assert_eq!(server.guests.list(), [(lease(100), PAGE_BYTES, None)]);
}

#[test]
fn next_process_has_what_was_kept_and_nothing_of_strangers() {
    let first = server(100);
    Main::welcome(&first).ask(&Frame::Out(pages(0, 1, &[5])));
    let folder = first.folder;
    std::fs::write(folder.path().join("00.pages"), "x").unwrap();
    let second = start(folder);
    assert!(!second.folder.path().join("00.pages").exists());
    let main = Main::welcome(&second);
    assert_eq!(main.ask(&Frame::In(run(0, 1))), Frame::Data(pages(0, 1, &[5])));
    second.guests.end(&end([1; 16], None)).unwrap();
    assert_eq!(second.guests.list().len(), 1, "another life's");
    second.guests.end(&end(SECRET, Some(1))).unwrap();
    assert!(main.is_over(), "its guest has no lease any more");
    assert_eq!(Main::hello(&second, 1).1, Frame::Refused(Reason::Stranger));
    assert_eq!(std::fs::read_dir::<&Path>(second.folder.path()).unwrap().count(), 0);
}

#[test]
fn host_that_a_guest_comes_to_looks_first_and_then_has_it() {
    let server = server(100);
    let main = Main::welcome(&server);
    let kept = Frame::Kept(vec![(PageNo(8), Version(1))]);
    assert_eq!(main.ask(&Frame::Out(pages(8, 1, &[1]))), kept);
    let there = NodeStart { node: 2, boots: 5 };
    let next = || Greeting { main: Some(there), ..greeting(2) };
    let looks = Main::connect(&server);
    assert_eq!(looks.ask(&Frame::Look(next())), Frame::Welcome);
    assert_eq!(looks.ask(&Frame::In(run(8, 1))), Frame::Data(pages(8, 1, &[1])));
    // who speaks for the guest is still the one before
    assert_eq!(
        main.ask(&Frame::Out(pages(8, 2, &[3]))),
        Frame::Kept(vec![(PageNo(8), Version(2))])
    );
    assert_eq!(looks.ask(&Frame::In(run(8, 1))), Frame::Data(pages(8, 2, &[3])));
    assert_eq!(looks.ask(&Frame::List), Frame::Listed(vec![(PageNo(8), Version(2))]));
    assert_eq!(hear(&mut &looks.0).unwrap(), Frame::Listed(Vec::new()));
    assert_eq!(server.guests.list()[0].0, lease(100));
    for changes in [Frame::Drop(vec![(PageNo(8), Version(2))]), Frame::Out(pages(9, 1, &[1]))] {
        let looks = Main::connect(&server);
        assert_eq!(looks.ask(&Frame::Look(next())), Frame::Welcome);
        assert_eq!(looks.ask(&changes), Frame::Refused(Reason::Confused));
        assert!(looks.is_over());
    }
    let (new, answer) = {
        let new = Main::connect(&server);
        let answer = new.ask(&Frame::Hello(next()));
        (new, answer)
    };
    assert_eq!(answer, Frame::Welcome);
    assert!(main.is_over());
    assert_eq!(server.guests.list()[0].0, Lease { epoch: 2, main: there, ..lease(100) });
    assert_eq!(new.ask(&Frame::In(run(8, 1))), Frame::Data(pages(8, 2, &[3])));
    // the one before is not asked whether the guest has ended
    server.guests.end(&end(SECRET, Some(1))).unwrap();
    assert_eq!(server.guests.list().len(), 1);
    server.guests.end(&end(SECRET, Some(2))).unwrap();
    assert_eq!(server.guests.list(), []);
}

#[test]
fn who_looks_sees_nothing_once_a_later_main_host_is_there() {
    let server = server(100);
    let looks = Main::connect(&server);
    assert_eq!(looks.ask(&Frame::Look(greeting(2))), Frame::Welcome);
    let (_main, answer) = Main::hello(&server, 3);
    assert_eq!(answer, Frame::Welcome);
    assert_eq!(looks.ask(&Frame::In(run(8, 1))), Frame::Refused(Reason::OldEpoch));
    assert_eq!(
        Main::connect(&server).ask(&Frame::Look(greeting(2))),
        Frame::Refused(Reason::OldEpoch)
    );
}

#[test]
fn main_host_that_may_not_is_told_why() {
    let server = server(100);
    let hello = |uuid, secret, epoch, memory_bytes| {
        let main = Main::connect(&server);
        let answer = main.ask(&Frame::Hello(Greeting {
            uuid,
            secret,
            epoch,
            memory_bytes,
            main: None,
            takes_ages: false,
        }));
        assert!(answer == Frame::Welcome || main.is_over());
        answer
    };
    assert_eq!(hello([1; 16], SECRET, 1, MEMORY), Frame::Refused(Reason::Stranger));
    assert_eq!(hello(UUID, [1; 16], 1, MEMORY), Frame::Refused(Reason::Stranger));
    assert_eq!(hello(UUID, SECRET, 1, MEMORY / 2), Frame::Refused(Reason::OtherSize));
    assert_eq!(hello(UUID, SECRET, 0, MEMORY), Frame::Refused(Reason::OldEpoch));
    assert_eq!(hello(UUID, SECRET, 3, MEMORY), Frame::Welcome);
    // the guest has another main host by now, also for a memory server that has died since
    assert_eq!(hello(UUID, SECRET, 2, MEMORY), Frame::Refused(Reason::OldEpoch));
    let again = start(server.folder);
    assert_eq!(Main::hello(&again, 2).1, Frame::Refused(Reason::OldEpoch));
}

#[test]
fn new_connection_ends_the_one_before() {
    let server = server(100);
    let old = Main::welcome(&server);
    let new = Main::welcome(&server);
    assert!(old.is_over());
    assert_eq!(new.ask(&Frame::In(run(0, 1))), Frame::Missing(run(0, 1)));
}

#[test]
fn more_than_the_guest_may_is_refused_and_what_is_kept_stays() {
    let server = server(2);
    let main = Main::welcome(&server);
    main.ask(&Frame::Out(pages(0, 1, &[1, 2])));
    assert_eq!(main.ask(&Frame::Out(pages(2, 1, &[3]))), Frame::Refused(Reason::Full));
    assert!(main.is_over());
    let again = Main::welcome(&server);
    assert_eq!(again.ask(&Frame::In(run(0, 3))), Frame::Data(pages(0, 1, &[1, 2])));
    assert_eq!(again.hear(), Frame::Missing(run(2, 1)));
    // with a larger lease it goes on
    server.guests.lease(lease(3)).unwrap();
    assert_eq!(
        again.ask(&Frame::Out(pages(2, 1, &[3]))),
        Frame::Kept(vec![(PageNo(2), Version(1))])
    );
}

#[test]
fn what_makes_no_sense_ends_the_connection_and_nothing_else() {
    let server = server(100);
    let quiet = Main::welcome(&server);
    quiet.ask(&Frame::Out(pages(0, 1, &[1])));
    drop(quiet);
    for bytes in [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n....".to_vec(), vec![0; 64]] {
        let main = Main::connect(&server);
        (&main.0).write_all(&bytes).unwrap();
        assert_eq!(main.hear(), Frame::Refused(Reason::Confused));
    }
    let early = Main::connect(&server);
    assert_eq!(early.ask(&Frame::List), Frame::Refused(Reason::Confused));
    for (frame, reason) in [
        (Frame::In(run(1023, 2)), Reason::OtherSize),
        (Frame::In(run(u64::MAX, 1)), Reason::OtherSize),
        (Frame::Out(pages(511, 1, &[1, 1])), Reason::OtherSize),
        (Frame::Drop(vec![(PageNo(1024), Version(1))]), Reason::OtherSize),
        (Frame::Welcome, Reason::Confused),
        (Frame::Data(pages(0, 9, &[9])), Reason::Confused),
    ] {
        let main = Main::welcome(&server);
        assert_eq!(main.ask(&frame), Frame::Refused(reason), "{frame:?}");
        assert!(main.is_over());
    }
    assert_eq!(Main::welcome(&server).ask(&Frame::In(run(0, 1))), Frame::Data(pages(0, 1, &[1])));
}

/// Another memory server that has what the first one has, and the first one with it.
fn mirrored() -> (Server, Server) {
    let second = start(tempfile::tempdir().unwrap());
    second.guests.lease(Lease { secret: [5; 16], ..lease(100) }).unwrap();
    let first = start(tempfile::tempdir().unwrap());
    first.guests.lease(with_mirror(second.address)).unwrap();
    (first, second)
}

fn with_mirror(address: std::net::SocketAddr) -> Lease {
    Lease { mirror: Some(mint_split::Mirror { address, secret: [5; 16] }), ..lease(100) }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn has(server: &Server) -> u64 {
    server.guests.list()[0].1 / PAGE_BYTES
}

#[test]
fn page_is_kept_once_its_mirror_has_it() {
    let (first, second) = mirrored();
    let main = Main::welcome(&first);
    let kept = [8, 9, 10].map(|page| (PageNo(page), Version(1))).to_vec();
    assert_eq!(main.ask(&Frame::Out(pages(8, 1, &[1, 0, 3]))), Frame::Kept(kept.clone()));
    assert_eq!(has(&second), 2, "told before it was there");
    main.say(&Frame::Drop(kept[..1].to_vec()));
    until("it is dropped there, too", || has(&second) == 1);
    // another main host is known there, too
    let there = NodeStart { node: 2, boots: 3 };
    let next = Main::connect(&first);
    let hello = Frame::Hello(Greeting { main: Some(there), ..greeting(4) });
    assert_eq!(next.ask(&hello), Frame::Welcome);
    let its = || second.guests.list()[0].0.clone();
    until("its epoch", || (its().epoch, its().main) == (4, there));
}

#[test]
fn mirror_that_takes_over_has_all_that_was_kept_and_hears_of_the_first_no_more() {
    let (first, second) = mirrored();
    let main = Main::welcome(&first);
    main.ask(&Frame::Out(pages(8, 1, &[1, 2, 3])));
    second.guests.lease(Lease { secret: SECRET, stays: true, ..lease(100) }).unwrap();
    let main = Main::welcome(&second);
    assert_eq!(main.ask(&Frame::In(run(8, 3))), Frame::Data(pages(8, 1, &[1, 2, 3])));
    // the first one has the old secret, is refused, and waits for it no more
    let other = Main::welcome(&first);
    other.ask(&Frame::Out(pages(20, 1, &[4])));
    assert_eq!(main.ask(&Frame::In(run(20, 1))), Frame::Missing(run(20, 1)));
}

#[test]
fn mirror_that_comes_later_gets_all_and_one_that_is_not_named_any_more_is_not_waited_for() {
    let first = server(100);
    let main = Main::welcome(&first);
    main.ask(&Frame::Out(pages(8, 1, &[1, 2, 3])));
    let second = start(tempfile::tempdir().unwrap());
    second.guests.lease(Lease { secret: [5; 16], ..lease(100) }).unwrap();
    first.guests.lease(Lease { stays: true, ..with_mirror(second.address) }).unwrap();
    until("all of it is there", || has(&second) == 3);
    let view = || first.guests.list()[0].2;
    let known = Some(mint_split::MirrorView { is_connected: true, behind_pages: 0 });
    until("that is known", || view() == known);
    // nobody listens there
    let shut = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    first.guests.lease(Lease { stays: true, ..with_mirror(shut) }).unwrap();
    main.say(&Frame::Out(pages(20, 1, &[4])));
    until("it is here", || has(&first) == 4);
    first.guests.lease(Lease { stays: true, ..lease(100) }).unwrap();
    assert_eq!(main.hear(), Frame::Kept(vec![(PageNo(20), Version(1))]));
    assert_eq!(view(), None);
}

#[test]
fn guest_of_another_machine_gets_nothing_that_is_kept_of_one_of_that_name() {
    let server = server(100);
    let main = Main::welcome(&server);
    main.ask(&Frame::Out(pages(8, 1, &[1])));
    let machine = serde_json::from_value(serde_json::json!("03".repeat(16))).unwrap();
    let foreign = Lease { secret: [1; 16], machine, ..lease(100) };
    for stays in [false, true] {
        let foreign = Lease { stays, ..foreign.clone() };
        let given = match stays {
            true => server.guests.lease(foreign),
            false => server.guests.begin(foreign),
        };
        assert!(matches!(given, Err(crate::LeaseError::Foreign)), "{given:?}");
    }
    assert_eq!(main.ask(&Frame::In(run(8, 1))), Frame::Data(pages(8, 1, &[1])));
    assert_eq!(server.guests.list(), [(lease(100), PAGE_BYTES, None)]);
}
