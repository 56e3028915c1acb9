// SPDX-License-Identifier: Apache-2.0
//! The pager at work: a thread for faults, and two for each memory server. No async here: a
//! fault waits for nothing but its page.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mint_split::{Frame, HearError, PAGE_BYTES, PageNo, Reason, SubNo, hear, say};
use mint_sys::MemoryEvent;
use mint_types::PagingPolicy;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, error, info, warn};

use crate::entering::enter;
use crate::going::Goings;
use crate::looks::look;
use crate::outbox::{Said, outbox};
use crate::pace::pace;
use crate::pager::{Budget, Fault, PagerError, Sub};
use crate::shared::{FilePager, Home, Locked, Server, Shared, Stage, Way, say_all};
use crate::step::step;
use crate::stream::Stream;

const AGAIN: Duration = Duration::from_millis(500);

/// A guest's memory servers, and what each may keep.
pub type Servers = Vec<(Server, Sub)>;

/// What a guest's file says of where its memory is to be.
pub struct Terms {
    /// On which memory servers.
    pub servers: Servers,
    /// How much here.
    pub budget: Budget,
    /// What goes.
    pub policy: PagingPolicy,
    /// In chunks of so many bytes.
    pub chunk_bytes: u64,
    /// How fast what a memory server that leaves has is asked for, in bytes a second; none: as fast as
    /// it goes.
    pub drain_bytes_s: Option<u64>,
}

/// Reads them again: they may have changed.
pub type Reread = Box<dyn Fn() -> io::Result<Terms> + Send>;

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Hear(#[from] HearError),
    #[error("it says {0:?}")]
    Said(Frame),
    #[error(transparent)]
    Pager(#[from] PagerError),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Hear(error.into())
    }
}

/// Where a pager is asked for something.
pub struct Sockets {
    /// Where everything is.
    pub status: UnixListener,
    /// The same, as a picture.
    pub map: UnixListener,
    /// To read the guest's memory servers again.
    pub again: UnixListener,
    /// It is to go, or to stay.
    pub go: UnixListener,
}

/// Pages until the guest's QEMU has ended.
///
/// # Errors
/// When it cannot go on: a successor may.
pub fn run(
    mut pager: FilePager,
    home: Home,
    stage: Stage,
    servers: Servers,
    reread: Reread,
    sockets: Sockets,
) -> Result<(), PagerError> {
    let (waiting, waited, waits) = (HashMap::new(), Duration::ZERO, 0);
    let looks = matches!(stage, Stage::Looks | Stage::Goes);
    pager.hold(looks);
    let locked = Mutex::new(Locked { pager, ways: Vec::new(), looks, waiting, waited, waits });
    let (told, tells) = UnixStream::pair()?;
    let shared = Arc::new(Shared {
        locked,
        home,
        departure: Mutex::default(),
        looks: Mutex::default(),
        broken: Mutex::default(),
        tells,
    });
    let drain_bytes_s = shared.home.guest.drain_bytes_s;
    shared.lock().pager.bound_drain(drain_bytes_s.is_some());
    talk_to(&shared, servers)?;
    let tell_pace = pace(&shared)?;
    _ = tell_pace.send(drain_bytes_s);
    let Sockets { status, map, again, go } = sockets;
    let asked = shared.clone();
    thread::Builder::new()
        .name("status".into())
        .spawn(move || tell(&status, || serde_json::to_vec(&asked.view())))?;
    let asked = shared.clone();
    thread::Builder::new()
        .name("map".into())
        .spawn(move || tell(&map, || serde_json::to_vec(&asked.map())))?;
    if matches!(stage, Stage::Looks | Stage::Enters) {
        let coming = shared.clone();
        thread::Builder::new().name("enter".into()).spawn(move || enter(&coming, stage))?;
    }
    let goings = Arc::new(Goings::default());
    goings.again(&shared)?;
    let (asked, goes) = (shared.clone(), goings.clone());
    let going = move || goes.listen(&asked, &go);
    thread::Builder::new().name("go".into()).spawn(going)?;
    let looking = shared.clone();
    thread::Builder::new().name("look".into()).spawn(move || look(&looking))?;
    let asked = shared.clone();
    let changing = move || change(&asked, &again, &reread, &tell_pace);
    thread::Builder::new().name("again".into()).spawn(changing)?;
    serve(&shared, &goings, &told)
}

/// Begins to talk to those that are new: behind those there were.
pub(crate) fn talk_to(shared: &Arc<Shared>, servers: Servers) -> io::Result<()> {
    let known = shared.lock().ways.len();
    for (number, (server, _)) in (0..).map(SubNo).zip(servers).skip(known) {
        let is_over = server.is_over;
        shared.lock().ways.push(Way::new(server));
        if is_over {
            continue;
        }
        let shared = shared.clone();
        let name = format!("server {}", number.0);
        thread::Builder::new().name(name).spawn(move || keep_talking(&shared, number))?;
    }
    Ok(())
}

/// The guest's memory servers have changed, says who connects; is told "done", or why they cannot
/// be: then those before are still.
fn change(
    shared: &Arc<Shared>,
    again: &UnixListener,
    reread: &Reread,
    tell_pace: &Sender<Option<u64>>,
) {
    for stream in again.incoming() {
        let changed = changed(shared, reread, tell_pace);
        let is_anew = matches!(changed, Ok(Change::Anew));
        let said = match changed {
            Ok(Change::Done | Change::Anew) => "done".to_owned(),
            // it may have begun: a successor reads the same
            Err(PagerError::Memory(error)) => {
                shared.end(PagerError::Memory(error));
                return;
            }
            Err(error) => error.to_string(),
        };
        info!(said, "its memory servers were read again");
        if let Err(error) = stream.and_then(|mut stream| stream.write_all(said.as_bytes())) {
            debug!(%error, "who asked has gone");
            thread::sleep(Duration::from_millis(10));
        }
        if is_anew {
            shared.begins_anew();
            return;
        }
    }
}

/// What was read is so.
enum Change {
    /// From now on.
    Done,
    /// Of the next pager.
    Anew,
}

fn changed(
    shared: &Arc<Shared>,
    reread: &Reread,
    tell_pace: &Sender<Option<u64>>,
) -> Result<Change, PagerError> {
    let Terms { servers, budget, policy, chunk_bytes, drain_bytes_s } = reread()?;
    if shared.lock().pager.is_of_other_chunks(chunk_bytes)? {
        info!(chunk_bytes, "its chunks have another size: another pager begins with them");
        return Ok(Change::Anew);
    }
    let subs: Vec<Sub> = servers.iter().map(|(_, sub)| *sub).collect();
    {
        let mut locked = shared.lock();
        let Locked { pager, ways, .. } = &mut *locked;
        pager.follow(policy);
        let orders = pager.change(&subs, budget)?;
        for (way, (server, _)) in ways.iter_mut().zip(&servers) {
            let known = &way.server;
            if (server.address, &server.way, server.greeting.secret)
                != (known.address, &known.way, known.greeting.secret)
            {
                info!(from = %way.server.address, to = %server.address, "has what another one had");
                way.renew();
            }
            way.server = server.clone();
        }
        // not before: they may be refused
        pager.bound_drain(drain_bytes_s.is_some());
        say_all(ways, pager.is_held(), orders);
    }
    // it ends with the pager alone
    _ = tell_pace.send(drain_bytes_s);
    talk_to(shared, servers)?;
    Ok(Change::Done)
}

/// Faults, one after the other.
fn serve(shared: &Shared, goings: &Goings, told: &UnixStream) -> Result<(), PagerError> {
    let Home { faults, qemu, .. } = &shared.home;
    loop {
        let mut ready = [
            PollFd::new(&**faults, PollFlags::IN),
            PollFd::new(&qemu.process, PollFlags::IN),
            PollFd::new(told, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map_err(io::Error::from)?,
        };
        if !ready[1].revents().is_empty() {
            info!("QEMU has ended");
            // its next host may want what is left here
            goings.wait();
            return Ok(());
        }
        if !ready[2].revents().is_empty() {
            let broken = shared.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
            return broken.map_or(Ok(()), Err);
        }
        for event in faults.read()? {
            let mut locked = shared.lock();
            let Locked { pager, ways, waiting, .. } = &mut *locked;
            let page = |address| pager.memory().page_at(address);
            let orders = match event {
                MemoryEvent::Fault { address } => match page(address) {
                    Some(page) => {
                        let orders = pager.fault(page)?;
                        if orders.iter().any(|order| matches!(order.frame, Frame::In(_))) {
                            waiting.insert(page, Instant::now());
                        }
                        // the page is asked for before room is made for it
                        say_all(ways, pager.is_held(), orders);
                        pager.make_room_again()?
                    }
                    None => Vec::new(),
                },
                MemoryEvent::Removed { start, end } => {
                    match (page(start), page(end.saturating_sub(PAGE_BYTES))) {
                        (Some(PageNo(first)), Some(PageNo(last))) => {
                            pager.given_back(first..last + 1)?
                        }
                        _ => Vec::new(),
                    }
                }
            };
            say_all(ways, pager.is_held(), orders);
        }
    }
}

/// A connection after the other.
fn keep_talking(shared: &Shared, sub: SubNo) {
    let mut last = String::new();
    loop {
        let way =
            |locked: &Locked| locked.ways.get(usize::from(sub.0)).map(|way| way.server.clone());
        let Some(server) = way(&shared.lock()) else { return };
        let ended = match talk(shared, sub, &server) {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        {
            let mut locked = shared.lock();
            locked.pager.disconnected(sub);
            if let Some(way) = locked.ways.get_mut(usize::from(sub.0)) {
                (way.writer, way.stream) = (None, None);
                if way.server.is_over {
                    info!(server = %server.address, "keeps nothing any more");
                    return;
                }
                if std::mem::take(&mut way.is_renewed) {
                    continue;
                }
            }
        }
        let ended = match ended {
            // the guest's memory cannot be changed: a successor has all that is needed
            Ended::Pager(error) => {
                shared.end(error);
                return;
            }
            ended => ended,
        };
        let text = format!("{ended}: {}", cause(&ended));
        if text != last {
            warn!(server = %server.address, text, "no connection");
            last = text;
        }
        thread::sleep(AGAIN);
    }
}

fn cause(error: &Ended) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

fn talk(shared: &Shared, sub: SubNo, server: &Server) -> Result<Infallible, Ended> {
    let stream = Stream::connect(&server.address, server.way.as_deref())?;
    let mut from = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let looks = shared.lock().looks;
    let greeting = server.greeting.clone();
    say(&stream, &if looks { Frame::Look(greeting) } else { Frame::Hello(greeting) })?;
    match hear(&mut from)? {
        Frame::Welcome => {}
        other => {
            // it has started anew, or its lease is over: nobody else has what it kept
            if other == Frame::Refused(Reason::Stranger) && !server.has_mirror {
                shared.is_lost(sub);
            }
            return Err(Ended::Said(other));
        }
    }
    let own = stream.try_clone()?;
    let (sayer, said) = outbox();
    thread::Builder::new().name("writer".into()).spawn(move || write(&stream, &said))?;
    {
        let mut locked = shared.lock();
        let Locked { pager, ways, looks: locked_looks, .. } = &mut *locked;
        if let Some(way) = ways.get_mut(usize::from(sub.0)) {
            // the guest has become this host's meanwhile
            if looks != *locked_looks || way.is_renewed {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
            (way.writer, way.stream) = (Some(sayer), Some(own));
            // its list says what it lacks
            way.lost_pages = 0;
            way.is_entered = !looks;
        }
        let orders = if looks { pager.looks(sub)? } else { pager.connected(sub) };
        say_all(ways, pager.is_held(), orders);
    }
    info!(server = %server.address, "connected");
    loop {
        let frame = match hear(&mut from)? {
            frame @ Frame::Refused(_) => return Err(Ended::Said(frame)),
            frame => frame,
        };
        step("pager-heard");
        let mut locked = shared.lock();
        let Locked { pager, ways, waiting, waited, waits, .. } = &mut *locked;
        let came = match &frame {
            Frame::Data(pages) => pages.each().map(|(page, ..)| page).collect(),
            _ => Vec::new(),
        };
        let (orders, fault) = pager.heard(sub, frame)?;
        for since in came.iter().filter_map(|page| waiting.remove(page)) {
            *waited += since.elapsed();
            *waits += 1;
        }
        say_all(ways, pager.is_held(), orders);
        if let Some(Fault { lost, .. }) = fault {
            if let Some(way) = ways.get_mut(usize::from(sub.0)) {
                way.lost_pages = lost.len() as u64;
            }
            error!(server = %server.address, pages = lost.len(), first = %lost[0], "pages are lost");
        }
    }
}

fn write(stream: &Stream, frames: &Said) {
    while let Some(frame) = frames.next() {
        step("pager-say");
        if let Err(error) = say(stream, &frame) {
            debug!(%error, "cannot write");
            break;
        }
    }
    // its reader ends, too
    stream.end();
}

/// A document for who connects.
fn tell(socket: &UnixListener, document: impl Fn() -> serde_json::Result<Vec<u8>>) {
    for stream in socket.incoming() {
        let told =
            stream.and_then(|mut stream| stream.write_all(&document().map_err(io::Error::other)?));
        if let Err(error) = told {
            debug!(%error, "a question was not answered");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
