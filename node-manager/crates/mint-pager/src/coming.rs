// SPDX-License-Identifier: Apache-2.0
//! A guest that comes (S-memV, 4-1): its last host sends what it has, again and again as it
//! changes, and at last where each page is. Until then nobody sees what is here: QEMU waits at
//! each page.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mint_split::files::{COMING, ENTERING, GIVEN_UP, GOING, GONE, HAS_ALL, LEFT_OUT, READY};
use mint_split::{
    Ages, ArrivalView, ChunkNo, Frame, Greeting, HearError, MemoryView, PageNo, Place, Places,
    Source, SplitGuest, hear, say,
};
use mint_sys::{Faults, Watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{info, warn};

use crate::early::{Early, punch};
use crate::monitor::Monitor;
use crate::share::Share;
use crate::shared::{Server, Stage};
use crate::step::step;

const CONNECT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(500);
/// So many conversations may end for a reason that asking again does not mend. A connection that
/// breaks is none: whoever was killed is started again.
const TRIES: u32 = 3;

/// A guest that is not here yet.
pub struct Coming<'a> {
    /// As it will be here.
    pub guest: &'a SplitGuest,
    /// Its folder.
    pub folder: &'a Path,
    /// Where its pages come from.
    pub source: Source,
    /// Its memory servers, as many as `guest` has.
    pub servers: &'a [Server],
    /// Its memory here.
    pub ram: &'a File,
    /// Where QEMU has mapped it.
    pub base: u64,
    /// Of QEMU's mapping.
    pub faults: &'a Faults,
}

/// How far a guest is that is not here for sure.
///
/// # Errors
/// When its folder cannot be read.
pub fn stage(folder: &Path) -> io::Result<(Stage, Option<Source>)> {
    let source = match fs::read(folder.join(COMING)) {
        Ok(text) => Some(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let stage = match source {
        Some(_) => Stage::Looks,
        None if folder.join(ENTERING).exists() => Stage::Enters,
        None if [GOING, GONE].iter().any(|name| folder.join(name).exists()) => Stage::Goes,
        None => Stage::Main,
    };
    Ok((stage, source))
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the connection")]
    Broken(#[from] io::Error),
    #[error("it does not send it any more")]
    Refused,
    #[error("what it says is not understood: {0}")]
    Confused(String),
    #[error("the guest's memory, or its QEMU")]
    Own(#[source] io::Error),
    #[error("somebody has given it up")]
    GivenUp,
}

impl From<HearError> for Ended {
    fn from(error: HearError) -> Self {
        match error {
            HearError::Io(error) => Self::Broken(error),
            HearError::Frame(error) => Self::Confused(error.to_string()),
        }
    }
}

impl Ended {
    /// How many of [`TRIES`] that was.
    fn tries(&self) -> u32 {
        match self {
            Self::Broken(_) | Self::GivenUp => 0,
            Self::Confused(_) | Self::Own(_) => 1,
            Self::Refused => TRIES,
        }
    }

    /// In words, with what caused it.
    fn text(&self) -> String {
        let cause = std::error::Error::source(self);
        cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }
}

fn confused<T>(what: impl std::fmt::Display) -> Result<T, Ended> {
    Err(Ended::Confused(what.to_string()))
}

impl Coming<'_> {
    fn greeting(&self) -> Greeting {
        let SplitGuest { uuid, epoch, memory_bytes, main, .. } = *self.guest;
        let secret = self.source.secret;
        Greeting { uuid, secret, epoch, memory_bytes, main, takes_ages: true }
    }

    /// Takes all of it; gives whether it is here. If not, its QEMU has ended. One that will not come
    /// is told as such, and its last host is asked for nothing any more: so whoever hears of it may
    /// end this QEMU.
    ///
    /// # Errors
    /// When all of it is here, and its memory cannot be shown to its QEMU: a successor may.
    pub fn take(
        &self,
        places: &mut Places<'_>,
        ages: &mut Ages<'_>,
        qemu: impl AsFd,
        status: UnixListener,
    ) -> io::Result<bool> {
        if self.folder.join(HAS_ALL).exists() {
            self.tell_again();
            return Ok(true);
        }
        let view = Arc::new(Mutex::new(ArrivalView::default()));
        let told = view.clone();
        thread::Builder::new().name("status".into()).spawn(move || tell(&told, &status))?;
        let (mut last, mut tries) = (String::new(), 0);
        loop {
            if tries < TRIES && !self.is_given_up() {
                match self.session(places, ages, &qemu, &view) {
                    Ok(()) => return Ok(true),
                    Err(Ended::Own(error)) if self.folder.join(HAS_ALL).exists() => {
                        return Err(error);
                    }
                    Err(ended) => {
                        let (source, text) = (self.source.address, ended.text());
                        if text != last {
                            warn!(%source, ended = text, "the guest does not come");
                        }
                        tries += ended.tries();
                        last.clone_from(&text);
                        if tries >= TRIES {
                            warn!(%source, "is asked for it no more");
                            lock(&view).failed = Some(text);
                        }
                    }
                }
            }
            if has_ended(&qemu, AGAIN) {
                return Ok(false);
            }
        }
    }

    /// From the beginning to the end: what came before is worth nothing.
    fn session(
        &self,
        places: &mut Places<'_>,
        ages: &mut Ages<'_>,
        qemu: impl AsFd,
        view: &Mutex<ArrivalView>,
    ) -> Result<(), Ended> {
        let geometry = places.geometry();
        punch(self.ram, 0, geometry.pages()).map_err(Ended::Own)?;
        let ram = self.ram.try_clone().map_err(Ended::Own)?;
        let share = Share::new(self.source.bandwidth_bytes_s);
        let early = Arc::new(Early::new(ram, geometry, self.is_merged(), share));
        let stream = TcpStream::connect_timeout(&self.source.address, CONNECT)?;
        stream.set_nodelay(true)?;
        let mut from = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        say(&stream, &Frame::Hello(self.greeting()))?;
        match hear(&mut from)? {
            Frame::Welcome => {}
            Frame::Refused(_) => return Err(Ended::Refused),
            other => return confused(format_args!("its answer is {}", other.name())),
        }
        self.leave_memory_out().map_err(Ended::Own)?;
        info!(source = %self.source.address, merged = self.is_merged(), "the guest comes");
        if self.is_merged() {
            for server in self.servers.iter().filter(|server| !server.is_over) {
                early.ask(server.clone())?;
            }
        }
        // whose end is not heard of otherwise
        let (qemu, (done, hears)) = (qemu.as_fd(), UnixStream::pair()?);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut ready =
                    [PollFd::new(&qemu, PollFlags::IN), PollFd::new(&done, PollFlags::IN)];
                while poll(&mut ready, None).is_err() {}
                _ = stream.shutdown(Shutdown::Read);
            });
            let heard = self.hear_all(&mut from, places, ages, view, &early);
            drop(hears);
            // of a session that has ended nothing counts
            early.end();
            heard
        })?;
        self.is_here(places)?;
        step("pager-has-all");
        if let Err(error) = say(&stream, &Frame::Taken) {
            // what is here is the guest's by now, and never taken out again
            info!(%error, "the guest's last host has not heard that all is here");
            self.tell_again();
        }
        let early = lock(view).early_pages;
        info!(early, counts = ?places.counts(), "all of the guest's memory is here, or where it was");
        Ok(())
    }

    /// Whether all of its memory is to be here, and some of it is at memory servers.
    pub(crate) fn is_merged(&self) -> bool {
        let its = self.guest.servers.iter().filter(|server| !server.is_over());
        let leaves: Vec<bool> = its.map(|server| server.leaves).collect();
        let is_whole = self.guest.main_bytes >= self.guest.memory_bytes;
        is_whole && !leaves.is_empty() && leaves.into_iter().all(|leaves| leaves)
    }

    fn leave_memory_out(&self) -> io::Result<()> {
        let done = self.folder.join(LEFT_OUT);
        if done.exists() {
            return Ok(());
        }
        let path = self.guest.monitor.as_deref();
        let path = path.ok_or_else(|| io::Error::other("QEMU has no monitor for us"))?;
        Monitor::open(path)?.leave_memory_out(true)?;
        File::create(done).map(drop)
    }

    fn hear_all(
        &self,
        from: &mut BufReader<TcpStream>,
        places: &mut Places<'_>,
        ages: &mut Ages<'_>,
        view: &Mutex<ArrivalView>,
        early: &Early,
    ) -> Result<(), Ended> {
        let geometry = places.geometry();
        let (mut words, mut subs, mut marks, mut early_pages) = (0, 0, None, 0);
        // also by what a pager before this one has heard
        let mut is_let_through = self.folder.join(READY).exists();
        loop {
            let frame = hear(from)?;
            if !frame.fits(geometry) {
                return confused(format_args!("{} of pages that there are not", frame.name()));
            }
            match frame {
                Frame::Copy(pages) => {
                    step("pager-copied");
                    early.copied(&pages).map_err(Ended::Own)?;
                    lock(view).pages += pages.entries.len() as u64;
                    let bytes = pages.bytes.len() as u64;
                    match is_let_through {
                        // it may stand still for these
                        true => drop(early.share.count(bytes, Instant::now())),
                        false => early.share.wait(bytes),
                    }
                }
                Frame::Drop(pages) => {
                    early.dropped(pages.into_iter().map(|(page, _)| page)).map_err(Ended::Own)?;
                }
                Frame::Ages(first, all) => ages.take(first, &all),
                Frame::Ready => {
                    is_let_through = true;
                    let ready = File::create(self.folder.join(READY)).map_err(Ended::Own);
                    lock(view).is_ready = true;
                    ready?;
                }
                // each once, in their order
                Frame::Words(first, all) if first.0 == words => {
                    words += all.len() as u64;
                    let marks = marks.get_or_insert_with(|| early.end());
                    for (page, word) in (first.0..).map(PageNo).zip(all) {
                        if !places.take_word(page, word) {
                            return confused(format_args!("{page} is at {word:#x}"));
                        }
                        if let Some(Place::Remote { version, .. }) = places.place(page) {
                            if marks.has(page, version) {
                                places.found(page);
                                early_pages += 1;
                            }
                        }
                    }
                    lock(view).early_pages = early_pages;
                }
                Frame::Subs(first, all) if first == subs => {
                    subs += all.len() as u64;
                    let servers = self.guest.servers.len();
                    let mut each = (first..).map(ChunkNo).zip(all);
                    let odd = each.find(|&(chunk, sub)| !places.take_sub(chunk, sub, servers));
                    if let Some((ChunkNo(chunk), sub)) = odd {
                        let at = sub.0;
                        return confused(format_args!("chunk {chunk} is at {at} of {servers}"));
                    }
                }
                Frame::Final if words == geometry.pages() && subs == geometry.chunks() => {
                    let is_anywhere = !self.guest.servers.is_empty() || places.counts().remote == 0;
                    if is_anywhere {
                        return Ok(());
                    }
                    return confused("pages are elsewhere, and it has no memory server");
                }
                Frame::Refused(_) => return Err(Ended::Refused),
                other => return confused(format_args!("{} out of its turn", other.name())),
            }
        }
    }

    /// What is here is the guest's: who waits looks again, and waits at holes alone from now on.
    fn is_here(&self, places: &Places<'_>) -> Result<(), Ended> {
        let pages = places.geometry().pages();
        let mut hole = 0;
        for page in 0..=pages {
            // what was sent and went elsewhere since
            if page == pages || places.place(PageNo(page)) == Some(Place::Local) {
                punch(self.ram, hole, page - hole).map_err(Ended::Own)?;
                hole = page + 1;
            }
        }
        if self.is_given_up() {
            return Err(Ended::GivenUp);
        }
        // a successor takes it for what it is
        let has_all = self.folder.join(HAS_ALL);
        File::create(&has_all).map_err(Ended::Own)?;
        if self.is_given_up() {
            fs::remove_file(has_all).map_err(Ended::Own)?;
            return Err(Ended::GivenUp);
        }
        self.seen().map_err(Ended::Own)
    }

    /// Somebody may take that back.
    fn is_given_up(&self) -> bool {
        self.folder.join(GIVEN_UP).exists()
    }

    fn seen(&self) -> io::Result<()> {
        self.faults.watch(self.base, self.guest.memory_bytes, Watch::HolesAndWrites)?;
        self.faults.wake(self.base, self.guest.memory_bytes)
    }

    /// The one before may have died before it had told that all is here; if the guest's last host
    /// does not listen any more, it has heard.
    fn tell_again(&self) {
        let told = self.seen().and_then(|()| {
            let stream = TcpStream::connect_timeout(&self.source.address, CONNECT)?;
            say(&stream, &Frame::Look(self.greeting()))
        });
        if let Err(error) = told {
            info!(%error, "the guest's last host is not told again that all is here");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a process has ended, or ends within a while.
fn has_ended(process: impl AsFd, within: Duration) -> bool {
    let mut ready = [PollFd::new(&process, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    poll(&mut ready, within.as_ref()).is_ok() && !ready[0].revents().is_empty()
}

/// A document for who connects, until the guest is here.
fn tell(view: &Mutex<ArrivalView>, status: &UnixListener) {
    for stream in status.incoming() {
        let view = MemoryView { arrival: Some(lock(view).clone()), ..MemoryView::default() };
        let told = stream.and_then(|mut stream| {
            stream.write_all(&serde_json::to_vec(&view).map_err(io::Error::other)?)
        });
        if told.is_err() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
