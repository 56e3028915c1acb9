// SPDX-License-Identifier: Apache-2.0
//! The conversation with the main host of a guest (4-2). One thread a connection.

use std::io::{self, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mint_split::{Frame, HearError, Reason, hear, say};
use tracing::{debug, info, warn};

use crate::guests::{Guests, Session};
use crate::kept::{KeepError, Kept};
use crate::mirror::Mirroring;
use crate::step::step;

/// Until a connection has said who it is.
const HELLO_S: u64 = 10;
/// A main host that takes nothing for so long is gone.
const WRITE_S: u64 = 60;
/// At once.
const CONNECTIONS_MAX: usize = 128;
/// Pages of a list that are told in one frame.
const LISTED: usize = 4096;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection, or what came.
    #[error(transparent)]
    Hear(#[from] HearError),
    /// It may not, or what it says makes no sense: it is told so.
    #[error("refused: {0:?}")]
    Refused(Reason),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Hear(error.into())
    }
}

/// Serves whoever connects, for ever.
///
/// # Errors
/// When nobody can connect any more.
pub fn serve(listener: &TcpListener, guests: &Arc<Guests>) -> io::Result<()> {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // one that ended before it was taken, or no descriptors for now
            Err(error) => {
                warn!(%error, "a connection was not taken");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            warn!("too many connections");
            continue;
        }
        let (guests, left) = (guests.clone(), open.clone());
        std::thread::Builder::new().name("main host".into()).spawn(move || {
            let peer =
                stream.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string());
            match converse(&stream, &guests) {
                Err(Ended::Hear(HearError::Io(error))) => debug!(peer, %error, "gone"),
                Err(error) => info!(peer, %error, "ended"),
                Ok(never) => match never {},
            }
            left.fetch_sub(1, Ordering::Relaxed);
        })?;
    }
    Ok(())
}

/// Until it ends; a refusal is told first.
fn converse(stream: &TcpStream, guests: &Guests) -> Result<std::convert::Infallible, Ended> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(WRITE_S)))?;
    stream.set_read_timeout(Some(Duration::from_secs(HELLO_S)))?;
    let mut from = BufReader::with_capacity(1 << 16, stream);
    // whose end closes the connection
    let (_session, ended) = match enter(stream, &mut from, guests) {
        Ok(session) => loop {
            if let Err(ended) = answer(&mut from, &session) {
                break (Some(session), ended);
            }
        },
        Err(ended) => (None, ended),
    };
    let reason = match &ended {
        Ended::Hear(HearError::Io(_)) => return Err(ended),
        Ended::Hear(HearError::Frame(_)) => Reason::Confused,
        Ended::Refused(reason) => *reason,
    };
    say(stream, &Frame::Refused(reason))?;
    Err(ended)
}

fn enter(stream: &TcpStream, from: &mut impl Read, guests: &Guests) -> Result<Session, Ended> {
    let entered = match hear(from)? {
        Frame::Hello(who) => guests.enter(&who, stream),
        Frame::Look(who) => guests.look(&who, stream),
        _ => Err(Reason::Confused),
    };
    let session = entered.map_err(Ended::Refused)?;
    // from here on a main host may be silent
    stream.set_read_timeout(None)?;
    say(stream, &Frame::Welcome)?;
    Ok(session)
}

fn answer(from: &mut impl Read, session: &Session) -> Result<(), Ended> {
    let frame = hear(from)?;
    if session.only_looks() && !matches!(frame, Frame::In(_) | Frame::List) {
        return Err(Ended::Refused(Reason::Confused));
    }
    let done = match frame {
        Frame::Out(_) => "store-kept",
        Frame::In(_) => "store-given",
        Frame::Drop(_) => "store-dropped",
        _ => "store-listed",
    };
    step("store-heard");
    let answers = session.with(|kept, mirror| match mirror {
        Some(mirror) => mirrored_answers(kept, mirror, frame),
        None => answers(kept, frame),
    });
    step(done);
    for frame in answers.ok_or(Ended::Refused(Reason::OldEpoch))?? {
        session.say(&frame)?;
    }
    Ok(())
}

/// As [`answers`]; what was kept is told once the mirror has it, too.
fn mirrored_answers(
    kept: &mut Kept,
    mirror: &mut Mirroring,
    frame: Frame,
) -> Result<Vec<Frame>, Ended> {
    let drops = if let Frame::Drop(pages) = &frame { pages.clone() } else { Vec::new() };
    let told = answers(kept, frame)?.into_iter().filter_map(|answer| match answer {
        Frame::Kept(pages) => {
            let told = mirror.kept(pages);
            (!told.is_empty()).then_some(Frame::Kept(told))
        }
        other => Some(other),
    });
    let told = told.collect();
    mirror.dropped(&drops);
    Ok(told)
}

/// What a memory server answers to a frame of a guest's main host, once that is welcome.
///
/// # Errors
/// When the connection is to end.
pub fn answers(kept: &mut Kept, frame: Frame) -> Result<Vec<Frame>, Ended> {
    if !frame.fits(kept.geometry()) {
        return Err(Ended::Refused(Reason::OtherSize));
    }
    Ok(match frame {
        Frame::Out(pages) => {
            kept.keep(&pages).map_err(|error| match error {
                KeepError::Full { .. } => Ended::Refused(Reason::Full),
                KeepError::Io(error) => {
                    warn!(%error, "a page was not kept");
                    Ended::Refused(Reason::Full)
                }
            })?;
            let each = pages.each().map(|(page, version, _)| (page, version));
            vec![Frame::Kept(each.collect())]
        }
        Frame::In(run) => {
            let parts = kept.give(run)?.into_iter();
            parts.map(|part| part.map_or_else(Frame::Missing, Frame::Data)).collect()
        }
        Frame::Drop(pages) => {
            kept.drop_pages(&pages)?;
            Vec::new()
        }
        Frame::List => {
            let all = kept.list()?;
            let some = all.chunks(LISTED).map(|some| Frame::Listed(some.to_vec()));
            some.chain([Frame::Listed(Vec::new())]).collect()
        }
        _ => return Err(Ended::Refused(Reason::Confused)),
    })
}

#[cfg(test)]
#[path = "tests/serve.rs"]
mod tests;
