// SPDX-License-Identifier: Apache-2.0
//! A guest that goes to another host (S-memV, 4-1; its memory servers stay, 3-2): that gets what
//! is here, again and again as it changes, while the guest runs on. Once QEMU has stopped it for
//! the switch-over it gets the rest, and where each page is.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mint_split::files::{GOING, GONE};
use mint_split::{
    Frame, HearError, Leave, PagerAnswer, PagerCall, Reason, Source, SplitGuest, hear, say,
};
use tracing::{info, warn};

use crate::giving::{Given, Giving, Stop};
use crate::pager::Budget;
use crate::shared::Shared;
use crate::step::step;

const LOOK: Duration = Duration::from_millis(100);
/// Between looks whether a guest that has gone runs here again.
const COMES_BACK: Duration = Duration::from_millis(500);
/// For who connects to say who it is.
const HELLO: Duration = Duration::from_secs(10);

/// The one that goes on, if any.
#[derive(Default)]
pub(crate) struct Goings(Mutex<Option<Going>>);

struct Going {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Goings {
    /// Goes on with what a pager before this one was asked for.
    ///
    /// # Errors
    /// When its file cannot be read, or nobody can connect.
    pub fn again(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let folder = &shared.home.folder;
        if folder.join(GONE).exists() {
            let stop = Arc::new(Stop::default());
            let (shared, its) = (shared.clone(), stop.clone());
            let look = move || {
                let giving = Giving::new(&shared, &its, None, None);
                comes_back(&shared, giving, &its);
            };
            let thread = thread::Builder::new().name("gone".into()).spawn(look)?;
            *lock(&self.0) = Some(Going { stop, thread });
            return Ok(());
        }
        match fs::read(folder.join(GOING)) {
            Ok(text) => {
                let asked: Leave = serde_json::from_slice(&text)?;
                info!(address = %asked.source.address, "the guest goes, still");
                self.begin(shared, TcpListener::bind(asked.source.address)?, asked)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn begin(&self, shared: &Arc<Shared>, listener: TcpListener, asked: Leave) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let stop = Arc::new(Stop::default());
        let (shared, its) = (shared.clone(), stop.clone());
        let go = move || give(&shared, &listener, &asked, &its);
        let thread = thread::Builder::new().name("gives".into()).spawn(go)?;
        *lock(&self.0) = Some(Going { stop, thread });
        Ok(())
    }

    /// Waits until nothing goes on.
    pub fn wait(&self) {
        while lock(&self.0).as_ref().is_some_and(|going| !going.thread.is_finished()) {
            thread::sleep(LOOK);
        }
    }

    /// Ends what goes on: the guest stays.
    fn stay(&self, shared: &Shared) {
        if let Some(Going { stop, thread }) = lock(&self.0).take() {
            stop.ask();
            // one that panicked has ended, too
            _ = thread.join();
        }
        let path = shared.home.folder.join(GOING);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(path = %path.display(), %error, "is left behind");
            }
            _ => {}
        }
    }

    /// What is asked for on a socket: a [`PagerCall`] each, which gets a [`PagerAnswer`].
    pub fn listen(&self, shared: &Arc<Shared>, socket: &UnixListener) {
        for stream in socket.incoming() {
            let answered = stream.and_then(|stream| {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line)?;
                let answer = match serde_json::from_str(&line) {
                    Ok(call) => self.answer(shared, call),
                    Err(error) => PagerAnswer::Cannot(error.to_string()),
                };
                info!(?answer, "was asked for a move");
                (&stream).write_all(&serde_json::to_vec(&answer)?)
            });
            if let Err(error) = answered {
                warn!(%error, "a call was not answered");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn answer(&self, shared: &Arc<Shared>, call: PagerCall) -> PagerAnswer {
        if shared.home.folder.join(GONE).exists() {
            return PagerAnswer::Cannot("the guest has gone".into());
        }
        let qemu = &shared.home.qemu;
        // it ends if it runs here again, and is to be told so then
        if shared.lock().pager.is_held() && qemu.stands_still() {
            let why = "it stands still, and its next host may have all of it".into();
            return PagerAnswer::Cannot(why);
        }
        // from here on QEMU's stream does not fit its other side, which waits for no memory then
        if lock(&self.0).is_some() {
            if let Err(error) = qemu.leave_memory_out(false) {
                if !qemu.has_ended() {
                    return PagerAnswer::Cannot(format!("its migration is on: {error}"));
                }
            }
        }
        self.stay(shared);
        let PagerCall::Go { ip, secret, bandwidth_bytes_s, main_bytes } = call else {
            return PagerAnswer::Stays;
        };
        let begun = || {
            if shared.home.guest.monitor.is_none() {
                return Err(io::Error::other("its QEMU has no monitor for this"));
            }
            let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
            let address = listener.local_addr()?;
            let source = Source { address, secret, bandwidth_bytes_s };
            let asked = Leave { source, bandwidth_bytes_s, main_bytes };
            write(&shared.home.folder.join(GOING), &asked)?;
            self.begin(shared, listener, asked)?;
            Ok(address)
        };
        match begun() {
            Ok(address) => PagerAnswer::Goes(address),
            Err(error) => {
                self.stay(shared);
                PagerAnswer::Cannot(error.to_string())
            }
        }
    }
}

fn write(path: &PathBuf, asked: &Leave) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(asked)?)?;
    fs::rename(new, path)
}

/// To one after the other who knows the secret, until the guest has gone or is to stay.
fn give(shared: &Shared, listener: &TcpListener, asked: &Leave, stop: &Stop) {
    let next = asked.main_bytes.map(|main_bytes| {
        let next = SplitGuest { main_bytes, ..shared.home.guest.clone() };
        Budget { pages: next.budget_pages(), leaving_pages: next.leaving_pages() }
    });
    let mut giving = Giving::new(shared, stop, asked.bandwidth_bytes_s, next);
    giving.go_on_if_it_runs();
    while !stop.is_asked() {
        let given = match listener.accept() {
            Ok((stream, peer)) => {
                let given = converse(&mut giving, &stream, asked, stop);
                stop.stream(None);
                given.unwrap_or_else(|error| {
                    let error = &error as &dyn std::error::Error;
                    warn!(%peer, error, "the guest's next host does not get it");
                    Given::Not
                })
            }
            Err(_) => {
                thread::sleep(LOOK);
                Given::Not
            }
        };
        match given {
            Given::All => {
                while let Err(error) = File::create(shared.home.folder.join(GONE)) {
                    warn!(%error, "cannot write down that the guest has gone");
                    thread::sleep(LOOK);
                }
                info!("the guest's next host has all of it");
                step("pager-gone");
                comes_back(shared, giving, stop);
                return;
            }
            Given::Failed => {
                info!("the guest's migration has failed: it stays");
                break;
            }
            Given::Not if giving.has_failed() => break,
            Given::Not => {}
        }
    }
    giving.stays();
    _ = fs::remove_file(shared.home.folder.join(GOING));
}

/// Waits for the end of the QEMU of a guest that has gone. If its next host ended before the guest
/// ran there, libvirt lets it go on here: then it is this host's, as before.
fn comes_back(shared: &Shared, giving: Giving<'_>, stop: &Stop) {
    while !shared.home.qemu.has_ended() && !stop.is_asked() {
        if shared.home.qemu.runs() {
            warn!("the guest runs here again: its next host has not got it");
            giving.stays();
            for name in [GOING, GONE] {
                _ = fs::remove_file(shared.home.folder.join(name));
            }
            return;
        }
        thread::sleep(COMES_BACK);
    }
}

fn converse(
    giving: &mut Giving<'_>,
    stream: &TcpStream,
    asked: &Leave,
    stop: &Stop,
) -> Result<Given, HearError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO))?;
    let mut from = BufReader::new(stream.try_clone()?);
    let hello = hear(&mut from)?;
    let (Frame::Hello(who) | Frame::Look(who)) = &hello else {
        say(stream, &Frame::Refused(Reason::Confused))?;
        return Ok(Given::Not);
    };
    let guest = giving.guest();
    if who.secret != asked.source.secret || who.uuid != guest.uuid {
        say(stream, &Frame::Refused(Reason::Stranger))?;
        return Ok(Given::Not);
    }
    if who.memory_bytes != guest.memory_bytes || who.epoch <= guest.epoch {
        say(stream, &Frame::Refused(Reason::OtherSize))?;
        return Ok(Given::Not);
    }
    stop.stream(Some(stream.try_clone()?));
    stream.set_read_timeout(None)?;
    say(stream, &Frame::Welcome)?;
    if matches!(hello, Frame::Look(_)) {
        // its pager died before it could say so
        return Ok(Given::All);
    }
    let given = giving.give(stream, who.takes_ages)?;
    if given != Given::All {
        return Ok(given);
    }
    match hear(&mut from)? {
        Frame::Taken => Ok(Given::All),
        _ => Ok(Given::Not),
    }
}
