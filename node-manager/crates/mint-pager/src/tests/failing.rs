// SPDX-License-Identifier: Apache-2.0
//! A guest that does not come: its next host says why, and asks its last host for nothing any more.

use std::io::{ErrorKind, Read};
use std::thread::sleep;
use std::time::Instant;

use super::*;

const SOON: Duration = Duration::from_millis(10);

/// Who plays the host that the guest leaves says this, to whoever asks; how often it was asked.
fn always_says(frames: Vec<Frame>) -> (Source, Arc<Mutex<u32>>) {
    says_after(|_| {}, frames)
}

/// The same; this is done before that, and told how often it was asked before.
fn says_after(
    before: impl Fn(u32) + Send + 'static,
    frames: Vec<Frame>,
) -> (Source, Arc<Mutex<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<u32>> = Arc::default();
    let counted = asked.clone();
    std::thread::spawn(move || {
        for (stream, count) in listener.incoming().flatten().zip(0..) {
            before(count);
            *counted.lock().unwrap() += 1;
            if hear(&mut &stream).is_ok() {
                frames.iter().for_each(|frame| _ = say(&stream, frame));
                // until the other side ends it
                _ = hear(&mut &stream);
            }
        }
    });
    (Source { address, secret: [9; 16], bandwidth_bytes_s: None }, asked)
}

/// Who opens this for writing waits for somebody who reads.
fn pipe(path: &Path) {
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, pipe, 0o600.into(), 0).unwrap();
}

/// A guest comes that has so many memory servers, and does not get here: why, and how often its
/// last host was asked. Its QEMU ends then.
fn does_not_come(to: Host, frames: Vec<Frame>, is_bare: bool) -> (String, u32) {
    let (source, asked) = always_says(frames);
    let mut guest = to.guest(2);
    if is_bare {
        guest.servers.clear();
    }
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
    let (mut places, qemu, process) = (places(), to.qemu, &to.process);
    let why = std::thread::scope(|scope| {
        let taken = scope.spawn(|| coming.take(&mut places, &mut ages(), process, status));
        let began = Instant::now();
        let why = loop {
            if let Some(why) = view(folder).failed {
                break why;
            }
            let (asked, late) = (*asked.lock().unwrap(), began.elapsed().as_secs() > 10);
            // else this would wait for it for ever
            if late {
                drop(qemu);
                panic!("it was asked {asked} times");
            }
            sleep(SOON);
        };
        let before = *asked.lock().unwrap();
        sleep(Duration::from_millis(1200));
        assert_eq!(*asked.lock().unwrap(), before, "it is asked still");
        drop(qemu);
        assert!(!taken.join().unwrap().unwrap());
        why
    });
    assert!(!folder.join(files::HAS_ALL).exists());
    let asked = *asked.lock().unwrap();
    (why, asked)
}

fn all(word: u32, sub: u16) -> Vec<Frame> {
    let words = (0..PAGES).map(|page| if page == 1 { word } else { 0 }).collect();
    let subs = vec![SubNo(sub); usize::try_from(PAGES / CHUNK).unwrap()];
    let last = vec![Frame::Words(PageNo(0), words), Frame::Subs(0, subs), Frame::Final];
    [vec![Frame::Welcome, copy(1, &[5]), Frame::Ready], last].concat()
}

#[test]
fn last_host_that_is_not_understood_is_not_asked_for_ever() {
    let (remote, local) = (3 | 5 << 3, 1);
    let early = vec![Frame::Welcome, copy(1, &[5]), Frame::Ready, Frame::Final];
    for (says, is_bare, words) in [
        (vec![Frame::Ready], false, "its answer is ready"),
        (vec![Frame::Welcome, copy(PAGES, &[1])], false, "copy of pages that there are not"),
        (early, false, "final out of its turn"),
        (all(4, 0), false, "page 1 is at 0x4"),
        (all(local, 1), false, "chunk 0 is at 1 of 1"),
        (all(remote, 0), true, "pages are elsewhere, and it has no memory server"),
    ] {
        let to = Host::new(|_| {}, Watch::All);
        let (why, asked) = does_not_come(to, says, is_bare);
        assert_eq!(why, format!("what it says is not understood: {words}"));
        assert_eq!(asked, 3, "{words}");
    }
}

#[test]
fn guest_that_is_refused_does_not_come() {
    for says in [vec![], vec![Frame::Welcome]] {
        let to = Host::new(|_| {}, Watch::All);
        let refused = Frame::Refused(mint_split::Reason::Stranger);
        let (why, asked) = does_not_come(to, [says, vec![refused]].concat(), false);
        assert_eq!((why.as_str(), asked), ("it does not send it any more", 1));
    }
}

#[test]
fn guest_whose_memory_cannot_be_written_does_not_come() {
    let mut to = Host::new(|_| {}, Watch::All);
    to.ram = std::fs::File::open(to.folder.path().join("ram")).unwrap();
    let (why, _) = does_not_come(to, all(1, 0), false);
    assert!(why.starts_with("the guest's memory, or its QEMU: "), "{why}");
}

#[test]
fn last_host_that_is_not_there_is_asked_until_the_guests_qemu_ends() {
    let to = Host::new(|_| {}, Watch::All);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = Source { address, secret: [9; 16], bandwidth_bytes_s: None };
    let refused = std::net::TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
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
    let (mut places, qemu, process) = (places(), to.qemu, &to.process);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| coming.take(&mut places, &mut ages(), process, status));
        // more often than one that is not understood
        sleep(Duration::from_secs(3));
        assert_eq!(view(folder).failed, None);
        drop(qemu);
        assert!(!taken.join().unwrap().unwrap());
    });
}

#[test]
fn what_is_here_stays_when_the_last_host_does_not_hear_so_at_first() {
    let to = Host::new(|_| {}, Watch::All);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let source = Source { address, secret: [9; 16], bandwidth_bytes_s: None };
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
    let has_all = folder.join(files::HAS_ALL);
    let again = std::thread::scope(|scope| {
        let last = scope.spawn(|| {
            let (stream, _) = listener.accept().unwrap();
            pipe(&has_all);
            all(1, 0).iter().for_each(|frame| say(&stream, frame).unwrap());
            sleep(Duration::from_millis(500));
            // one that ends with what it has not heard resets its connection
            drop(stream);
            sleep(Duration::from_millis(100));
            std::fs::File::open(&has_all).unwrap().read_to_end(&mut Vec::new()).unwrap();
            std::fs::remove_file(&has_all).unwrap();
            std::fs::write(&has_all, "").unwrap();
            let (stream, _) = listener.accept().unwrap();
            let said = hear(&mut &stream).unwrap();
            // one that asked for all again would get it
            all(1, 0).iter().for_each(|frame| _ = say(&stream, frame));
            said
        });
        assert!(coming.take(&mut places(), &mut ages(), &to.process, status).unwrap());
        last.join().unwrap()
    });
    assert!(matches!(again, Frame::Look(_)), "{again:?}");
    assert_eq!(to.bytes()[PAGE], 5);
    drop(to.qemu);
}

/// A guest is given up before all of it has come, or while that is written down.
fn is_given_up(is_late: bool) {
    let to = Host::new(|_| {}, Watch::All);
    let (guest, folder) = (to.guest(2), to.folder.path());
    let [given_up, has_all] = [files::GIVEN_UP, files::HAS_ALL].map(|name| folder.join(name));
    let (mark, slow) = (given_up.clone(), has_all.clone());
    let first = move |count| match (count, is_late) {
        (0, true) => pipe(&slow),
        (0, false) => std::fs::write(&mark, "").unwrap(),
        _ => {}
    };
    let (source, asked) = says_after(first, all(1, 0));
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
    let process = &to.process;
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| coming.take(&mut places(), &mut ages(), process, status));
        if is_late {
            sleep(Duration::from_millis(500));
            std::fs::write(&given_up, "").unwrap();
            std::fs::File::open(&has_all).unwrap().read_to_end(&mut Vec::new()).unwrap();
        }
        sleep(Duration::from_millis(1200));
        let is_here = has_all.exists();
        // somebody takes that back
        std::fs::remove_file(&given_up).unwrap();
        assert!(taken.join().unwrap().unwrap());
        assert!(!is_here && has_all.exists());
    });
    assert_eq!(*asked.lock().unwrap(), 2);
    drop(to.qemu);
}

#[test]
fn guest_that_is_given_up_does_not_come_before_that_is_taken_back() {
    is_given_up(false);
}

#[test]
fn guest_that_is_given_up_while_its_end_is_written_down_does_not_come() {
    is_given_up(true);
}

#[test]
fn guest_that_its_next_host_never_takes_stays_once_it_runs_again_and_not_before() {
    let touch = |memory: &mut [u32]| (0..100).for_each(|page| write(memory, page, 1));
    let from = Host::new(touch, Watch::Holes);
    let shared = Arc::new(leaves(&from, 0));
    let goings = Arc::new(Goings::default());
    let go = UnixListener::bind(from.folder.path().join("go.sock")).unwrap();
    let its = shared.clone();
    std::thread::spawn(move || goings.listen(&its, &go));
    let ask = |call: &PagerCall| -> PagerAnswer {
        let mut pager = UnixStream::connect(from.folder.path().join("go.sock")).unwrap();
        pager.write_all((serde_json::to_string(call).unwrap() + "\n").as_bytes()).unwrap();
        serde_json::from_reader(pager).unwrap()
    };
    let ip = "127.0.0.1".parse().unwrap();
    let call = PagerCall::Go { ip, secret: [9; 16], bandwidth_bytes_s: None, main_bytes: None };
    let PagerAnswer::Goes(address) = ask(&call) else { panic!("it does not go") };
    // a pager before this one has watched what is written
    from.faults.watch(from.base, PAGES * PAGE_BYTES, Watch::HolesAndWrites).unwrap();
    *from.state.lock().unwrap() = ("postmigrate", "completed");
    for asked in 1..3 {
        let stream = std::net::TcpStream::connect(address).unwrap();
        let SplitGuest { uuid, memory_bytes, .. } = from.guest(2);
        let (secret, main, takes_ages) = ([9; 16], None, false);
        let hello = Greeting { uuid, secret, epoch: 2, memory_bytes, main, takes_ages };
        say(&stream, &Frame::Hello(hello)).unwrap();
        while hear(&mut &stream).unwrap() != Frame::Final {}
        assert_eq!(shared.view().departure.unwrap().finals, asked);
    }
    // it may have written down that it has all, and be about to say so
    for call in [&PagerCall::Stay, &call] {
        assert!(matches!(ask(call), PagerAnswer::Cannot(_)), "{call:?}");
    }
    sleep(Duration::from_millis(300));
    let goes = || from.folder.path().join(files::GOING).exists();
    assert!(goes() && shared.lock().pager.is_held());
    // libvirt lets it go on here
    *from.state.lock().unwrap() = ("running", "completed");
    while goes() {
        sleep(SOON);
    }
    assert!(!shared.lock().pager.is_held());
    assert_eq!(ask(&PagerCall::Stay), PagerAnswer::Stays);
    drop(from.qemu);
}
