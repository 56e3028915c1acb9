// SPDX-License-Identifier: Apache-2.0
//! The conversation with a guest's mirror: to that this memory server is the guest's main host.

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use mint_split::{Frame, Greeting, HearError, Mirror, PageNo, Reason, Version, hear, say};
use tracing::{info, warn};

use crate::kept::Kept;
use crate::mirror::Mirroring;
use crate::step::step;

const CONNECT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(500);
/// A mirror that says nothing for so long is gone.
const ANSWERS: Duration = Duration::from_secs(20);
/// Between looks whether it is still there, while there is nothing to tell.
const IDLE: Duration = Duration::from_secs(1);

/// A guest that may have a mirror.
pub(crate) trait Mirrored {
    /// Its mirror of that number, and how it is greeted; none: it has another one, or none.
    fn mirror(&self, number: u64) -> Option<(Mirror, Greeting)>;

    /// Does something with what is known of that mirror; then its main host is told what this gives
    /// besides. None as above.
    fn with<T>(
        &self,
        number: u64,
        work: impl FnOnce(&mut Mirroring, &Kept) -> io::Result<(T, Vec<(PageNo, Version)>)>,
    ) -> Option<io::Result<T>>;

    /// Waits until there may be something to tell.
    fn wait(&self, most: Duration);
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the connection")]
    Hear(#[from] HearError),
    #[error("it refuses: {0:?}")]
    Refused(Reason),
    #[error("it says what nobody says then")]
    Confused,
    #[error("the guest has another mirror, or another main host")]
    Over,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Hear(error.into())
    }
}

/// Until the guest has another mirror, or none.
pub(crate) fn keep_mirrored(guest: &impl Mirrored, number: u64) {
    let mut last = String::new();
    while let Some((to, greeting)) = guest.mirror(number) {
        let ended = match converse(guest, number, &to, &greeting) {
            Err(ended) => ended,
            Ok(never) => match never {},
        };
        // its lease may be another main host's by now, which this one hears of in a moment
        let has_refused = matches!(ended, Ended::Refused(reason) if reason != Reason::Stranger);
        let waits = guest.with(number, |mirror, _| {
            mirror.lost();
            let told = mirror.waits_no_more(has_refused);
            let is_over = !told.is_empty();
            Ok((is_over, told))
        });
        match waits {
            None => return,
            Some(Ok(true)) => {
                warn!(mirror = %to.address, "it is not waited for: pages have one copy");
            }
            Some(_) => {}
        }
        if matches!(ended, Ended::Over) {
            continue;
        }
        let text = format!("{ended}");
        if text != last {
            warn!(mirror = %to.address, because = &ended as &dyn std::error::Error, "no connection");
            last = text;
        }
        std::thread::sleep(AGAIN);
    }
}

fn converse(
    guest: &impl Mirrored,
    number: u64,
    to: &Mirror,
    greeting: &Greeting,
) -> Result<std::convert::Infallible, Ended> {
    let stream = TcpStream::connect_timeout(&to.address, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWERS))?;
    stream.set_write_timeout(Some(ANSWERS))?;
    let mut from = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    say(&stream, &Frame::Hello(greeting.clone()))?;
    match hear(&mut from)? {
        Frame::Welcome => {}
        Frame::Refused(reason) => return Err(Ended::Refused(reason)),
        _ => return Err(Ended::Confused),
    }
    say(&stream, &Frame::List)?;
    let mut has = BTreeMap::new();
    loop {
        match hear(&mut from)? {
            Frame::Listed(pages) if pages.is_empty() => break,
            Frame::Listed(pages) => {
                has.extend(pages.into_iter().map(|(page, version)| (page.0, version)));
            }
            Frame::Refused(reason) => return Err(Ended::Refused(reason)),
            _ => return Err(Ended::Confused),
        }
    }
    let synced = guest.with(number, |mirror, kept| Ok(((), mirror.synced(kept, &has)?)));
    synced.ok_or(Ended::Over)??;
    info!(mirror = %to.address, pages = has.len(), "connected");
    loop {
        // it is to hear of another main host
        if guest.mirror(number).is_none_or(|(_, now)| now != *greeting) {
            return Err(Ended::Over);
        }
        let next = guest.with(number, |mirror, kept| Ok((mirror.next(kept)?, Vec::new())));
        let (frames, answers) = next.ok_or(Ended::Over)??;
        if frames.is_empty() {
            is_there(&stream)?;
            guest.wait(IDLE);
            continue;
        }
        for frame in frames {
            step("store-mirrors");
            say(&stream, &frame)?;
        }
        for _ in 0..answers {
            let pages = match hear(&mut from)? {
                Frame::Kept(pages) => pages,
                Frame::Refused(reason) => return Err(Ended::Refused(reason)),
                _ => return Err(Ended::Confused),
            };
            step("store-mirrored");
            let heard = guest.with(number, |mirror, _| Ok(((), mirror.heard(&pages))));
            heard.ok_or(Ended::Over)??;
        }
    }
}

/// Whether the other side has not closed the connection: it says nothing by itself.
fn is_there(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}
