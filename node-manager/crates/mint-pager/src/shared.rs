// SPDX-License-Identifier: Apache-2.0
//! What the pager's threads share.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_split::{
    ChunkNo, DepartureView, Frame, Greeting, LooksView, MapCell, MemoryMap, MemoryView, PAGE_BYTES,
    PageNo, Place, Policy, SplitGuest, SubNo, cell_chunks,
};
use mint_sys::Faults;
use tracing::error;

use crate::file::GuestMemory;
use crate::outbox::Sayer;
use crate::pager::{Order, Pager, PagerError};
use crate::qemu::Qemu;
use crate::stream::Stream;

/// The pager of a guest whose memory is files.
pub type FilePager = Pager<'static, GuestMemory, Policy<'static>>;

/// A guest of this host.
pub struct Home {
    /// The guest.
    pub guest: SplitGuest,
    /// Its folder.
    pub folder: PathBuf,
    /// Its QEMU.
    pub qemu: Qemu,
    /// Of its memory in QEMU.
    pub faults: Arc<Faults>,
}

/// Whether the guest is this host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It is, and all know.
    Main,
    /// It is, and its memory servers are to hear so.
    Enters,
    /// All of it is here, and it may run here, or at its last host.
    Looks,
    /// It was about to go when the pager before this one died: its next host may have it.
    Goes,
}

/// To a memory server, while there is a connection.
pub(crate) struct Way {
    /// Where it is, and what it wants to hear. Another one may take its place, with all that it has.
    pub server: Server,
    pub writer: Option<Sayer>,
    pub stream: Option<Stream>,
    /// Its end was wanted: the next one begins at once.
    pub is_renewed: bool,
    /// It was welcome as the guest's main host.
    pub is_entered: bool,
    pub lost_pages: u64,
}

impl Way {
    /// Nobody has talked to it.
    pub fn new(server: Server) -> Self {
        Self {
            server,
            writer: None,
            stream: None,
            is_renewed: false,
            is_entered: false,
            lost_pages: 0,
        }
    }

    /// The next connection begins at once, and this one ends.
    pub fn renew(&mut self) {
        self.is_renewed = true;
        if let Some(stream) = self.stream.take() {
            stream.end();
        }
    }
}

/// A memory server, and what to say there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its address.
    pub address: SocketAddr,
    /// Of one of a linked machine: what mintd is asked for, to reach it.
    pub way: Option<String>,
    /// As which main host.
    pub greeting: Greeting,
    /// It keeps nothing any more: nobody talks to it.
    pub is_over: bool,
    /// Another one has the same, and takes its place if need be.
    pub has_mirror: bool,
}

/// What threads share, one at a time.
pub(crate) struct Locked {
    pub pager: FilePager,
    pub ways: Vec<Way>,
    /// The guest comes: memory servers are only asked for pages.
    pub looks: bool,
    /// Pages that were asked for because of a fault, since when.
    pub waiting: HashMap<PageNo, Instant>,
    pub waited: Duration,
    pub waits: u64,
}

/// What threads share.
pub(crate) struct Shared {
    pub locked: Mutex<Locked>,
    /// The guest and its folder.
    pub home: Home,
    /// How far the guest is that goes; none of one that does not.
    pub departure: Mutex<Option<DepartureView>>,
    /// What is known of the use of its pages; none: nothing.
    pub looks: Mutex<Option<LooksView>>,
    /// Why the pager cannot go on.
    pub broken: Mutex<Option<PagerError>>,
    /// To who waits for faults, when it cannot.
    pub tells: UnixStream,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Locked> {
        // what is behind it is whole after each step, or the process ends
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody comes between two main hosts any more: memory servers hear from this one.
    pub fn goes_on(&self) {
        let mut locked = self.lock();
        locked.looks = false;
        locked.pager.hold(false);
        for way in &mut locked.ways {
            way.renew();
        }
    }

    /// Memory servers hear from this main host, which may not have known whether it is the guest's:
    /// its next one has asked for all of it, and so has not got it.
    pub fn speaks(&self) {
        let mut locked = self.lock();
        if std::mem::take(&mut locked.looks) {
            locked.ways.iter_mut().for_each(Way::renew);
        }
    }

    /// A memory server knows nothing of the guest any more: what it kept is lost.
    pub fn is_lost(&self, sub: SubNo) {
        let mut locked = self.lock();
        let places = locked.pager.places();
        let is_there = |page: &u64| {
            let place = places.place(PageNo(*page));
            matches!(place, Some(Place::Remote { at: its, .. } | Place::Coming { from: its, .. }) if its == sub)
        };
        let pages = (0..places.geometry().pages()).filter(is_there).count() as u64;
        let Some(way) = locked.ways.get_mut(usize::from(sub.0)) else { return };
        if way.lost_pages != pages {
            error!(server = %way.server.address, pages, "knows nothing of the guest: they are lost");
            way.lost_pages = pages;
        }
    }

    /// Whether each memory server knows this main host.
    pub fn is_entered(&self) -> bool {
        self.lock().ways.iter().all(|way| way.server.is_over || way.is_entered)
    }

    /// The pager ends; its keeper starts another one, which reads the guest's file.
    pub fn begins_anew(&self) {
        _ = (&self.tells).write_all(b"!");
    }

    /// The pager cannot go on.
    pub fn end(&self, error: PagerError) {
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        _ = (&self.tells).write_all(b"!");
    }

    pub fn view(&self) -> MemoryView {
        let locked = self.lock();
        let Locked { pager, ways, .. } = &*locked;
        let (counts, done, took) = (pager.places().counts(), pager.done(), pager.memory().took);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        MemoryView {
            virgin_pages: counts.virgin,
            local_pages: counts.local,
            leaving_pages: counts.leaving,
            remote_pages: counts.remote,
            coming_pages: counts.coming,
            faults: done.faults,
            page_ins: done.page_ins,
            page_outs: done.page_outs,
            prefetches: done.prefetches,
            waited_ns: ns(locked.waited),
            waits: locked.waits,
            taking_ns: ns(took.taking),
            filling_ns: ns(took.filling),
            lost_pages: ways.iter().map(|way| way.lost_pages).sum(),
            servers: pager.servers().collect(),
            policy: pager.victims().policy(),
            chunk_bytes: Some(pager.places().geometry().chunk_pages() * PAGE_BYTES),
            looks: *self.looks.lock().unwrap_or_else(PoisonError::into_inner),
            arrival: None,
            departure: *self.departure.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Shared {
    /// Where everything is, and when it was used; the pager goes on meanwhile.
    pub fn map(&self) -> MemoryMap {
        let geometry = self.lock().pager.places().geometry();
        let chunks = cell_chunks(geometry);
        let cell = |chunk| {
            let pager = &self.lock().pager;
            MapCell::of(pager.places(), pager.victims().ages(), ChunkNo(chunk))
        };
        let step = usize::try_from(chunks).unwrap_or(usize::MAX);
        let cells = (0..geometry.chunks()).step_by(step).map(cell).collect();
        MemoryMap { cell_pages: chunks * geometry.chunk_pages(), cells }
    }
}

/// Under the pager's lock: who has said something first is heard first. Between two main hosts
/// nothing is changed.
pub(crate) fn say_all(ways: &[Way], is_held: bool, orders: Vec<Order>) {
    for order in orders {
        if is_held && !matches!(order.frame, Frame::In(_) | Frame::List) {
            continue;
        }
        let way = ways.get(usize::from(order.to.0)).and_then(|way| way.writer.as_ref());
        if let Some(writer) = way {
            // one that has ended is replaced, and all is said again
            writer.say(order.frame);
        }
    }
}
