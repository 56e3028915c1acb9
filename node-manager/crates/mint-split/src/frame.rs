// SPDX-License-Identifier: Apache-2.0
//! What the main host of a guest says to a memory server (4-2, 4-5), and to the host that the
//! guest moves to (4-1), and what they answer.
//!
//! A frame is a header of [`HEADER_BYTES`] bytes, all numbers little-endian, and a payload:
//!
//! | bytes | |
//! | --- | --- |
//! | 0–1 | `MS` |
//! | 2 | version of the protocol: 1 |
//! | 3 | what it is |
//! | 4–7 | bytes of the payload |
//! | 8–15 | the first page |
//! | 16–19 | how many pages, a reason, or what who begins understands: bit 0: [`Frame::Ages`] |
//! | 20–27 | 0 |
//! | 28–31 | CRC-32C of the payload, after that of bytes 0–27 |
//!
//! Pages of a frame are of one chunk. Where it brings them, its payload begins with an [`Entry`]
//! of four bytes for each, and those that are not all zeros follow in that order.

use crate::geometry::{CHUNK_MAX, Geometry, PAGE, PageNo, PageRun};
use crate::guest::NodeStart;
use crate::pages::{ENTRY_BYTES, Entry, Pages};
use crate::places::{SubNo, Version};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;

/// Bytes of the largest payload: a whole chunk.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_MAX * (ENTRY_BYTES + PAGE);

const MAGIC: [u8; 2] = *b"MS";
const PROTOCOL: u8 = 1;
const CRC_AT: usize = 28;
const HELLO_BYTES: usize = 16 + 16 + 8 + 8;
/// Pages whose words a frame brings, at most.
pub const WORDS_MAX: usize = 64 << 10;
const SUB_BYTES: usize = 2;
/// Pages whose history a frame brings, at most.
pub const AGES_MAX: usize = 256 << 10;
const TAKES_AGES: u32 = 1;

/// Why a memory server does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    /// There is no such guest, or this is not its secret.
    Stranger = 1,
    /// A later main host has been here.
    OldEpoch = 2,
    /// The guest has another size.
    OtherSize = 3,
    /// It may not keep more.
    Full = 4,
    /// A frame was not understood.
    Confused = 5,
}

impl Reason {
    fn of(number: u32) -> Option<Self> {
        use Reason::{Confused, Full, OldEpoch, OtherSize, Stranger};
        let all = [Stranger, OldEpoch, OtherSize, Full, Confused];
        all.into_iter().find(|&reason| reason as u32 == number)
    }
}

/// Who begins a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// Of the guest.
    pub uuid: [u8; 16],
    /// What the other side was told beforehand.
    pub secret: [u8; 16],
    /// Grows with each host that the guest comes to.
    pub epoch: u64,
    /// Bytes of the guest's memory.
    pub memory_bytes: u64,
    /// The start of the node that says so; none where that is not told.
    pub main: Option<NodeStart>,
    /// It understands [`Frame::Ages`].
    pub takes_ages: bool,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Main: this guest, as its host of this epoch. To a host that the guest leaves: it comes.
    Hello(Greeting),
    /// A host that the guest comes to: as its main host, but it only asks for pages, and does not
    /// become that yet.
    Look(Greeting),
    /// Server: go on.
    Welcome,
    /// Main: keep these.
    Out(Pages),
    /// Server: it has them, in these versions.
    Kept(Vec<(PageNo, Version)>),
    /// Main: send these.
    In(PageRun),
    /// Server: here they are.
    Data(Pages),
    /// Server: it has none of these.
    Missing(PageRun),
    /// Main: these are not wanted any more, up to these versions.
    Drop(Vec<(PageNo, Version)>),
    /// Main: which pages are there?
    List,
    /// Server: these are some of them; none: that is all.
    Listed(Vec<(PageNo, Version)>),
    /// Server: it ends the connection.
    Refused(Reason),
    /// The host that the guest leaves: what these pages have now. A version may be 0.
    Copy(Pages),
    /// The same: little is left; the guest can go on at the other host any time now.
    Ready,
    /// The same: of pages that follow each other, the words of [`crate::Places`].
    Words(PageNo, Vec<u32>),
    /// The same: of pages that follow each other, the bytes of [`crate::Ages`].
    Ages(PageNo, Vec<u8>),
    /// The same: of all chunks, who has pages of it that are elsewhere; some at a time, from the
    /// chunk of this number on.
    Subs(u64, Vec<SubNo>),
    /// The same: nothing changes any more, and all has been said.
    Final,
    /// The host that the guest comes to: it has all of it.
    Taken,
}

/// A header that was understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    kind: Kind,
    /// Bytes that follow.
    pub payload_bytes: usize,
    first: PageNo,
    number: u32,
    crc: u32,
    begin: [u8; CRC_AT],
}

/// What came is no frame: nothing that follows can be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// It does not begin as one.
    #[error("this is no frame: it begins with {0:02x?}")]
    Magic([u8; 2]),
    /// Of another version.
    #[error("the other side speaks version {0} of the protocol, this one {PROTOCOL}")]
    Protocol(u8),
    /// Nobody says that.
    #[error("nothing is said with number {0}")]
    Kind(u8),
    /// Larger than a frame can be.
    #[error("a payload of {0} bytes is larger than any")]
    Size(u32),
    /// It does not hold what it says.
    #[error("the payload is not what the header says")]
    Payload,
    /// It was changed on its way.
    #[error("the frame was changed on its way")]
    Crc,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Welcome = 2,
    Out = 3,
    Kept = 4,
    In = 5,
    Data = 6,
    Missing = 7,
    Drop = 8,
    List = 9,
    Listed = 10,
    Refused = 11,
    Look = 12,
    Copy = 13,
    Ready = 14,
    Words = 15,
    Subs = 16,
    Final = 17,
    Taken = 18,
    Ages = 19,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        use Kind::{
            Ages, Copy, Data, Drop, Final, Hello, In, Kept, List, Listed, Look, Missing, Out,
        };
        use Kind::{Ready, Refused, Subs, Taken, Welcome, Words};
        let server = [Hello, Welcome, Out, Kept, In, Data, Missing, Drop, List, Listed, Refused];
        let move_ = [Look, Copy, Ready, Words, Subs, Final, Taken, Ages];
        server.into_iter().chain(move_).find(|&kind| kind as u8 == number)
    }
}

impl Header {
    /// Of the first bytes of a frame.
    ///
    /// # Errors
    /// When they are none.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let magic = [bytes[0], bytes[1]];
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if bytes[2] != PROTOCOL {
            return Err(FrameError::Protocol(bytes[2]));
        }
        let kind = Kind::of(bytes[3]).ok_or(FrameError::Kind(bytes[3]))?;
        let payload_bytes = usize::try_from(word(4)).unwrap_or(usize::MAX);
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::Size(word(4)));
        }
        let first = PageNo(u64::from(word(12)) << 32 | u64::from(word(8)));
        let mut begin = [0; CRC_AT];
        begin.copy_from_slice(&bytes[..CRC_AT]);
        Ok(Self { kind, payload_bytes, first, number: word(16), crc: word(CRC_AT), begin })
    }

    /// The frame, with its payload.
    ///
    /// # Errors
    /// When that is not what the header says, or was changed.
    pub fn frame(&self, payload: &[u8]) -> Result<Frame, FrameError> {
        let (head, rest) = payload.split_at(self.head_bytes().min(payload.len()));
        self.frame_of(head, rest.to_vec())
    }

    /// Bytes of the payload before what pages have.
    pub(crate) fn head_bytes(&self) -> usize {
        let count = usize::try_from(self.number).unwrap_or(usize::MAX);
        match self.kind {
            Kind::Out | Kind::Data | Kind::Copy => {
                count.saturating_mul(ENTRY_BYTES).min(self.payload_bytes)
            }
            _ => self.payload_bytes,
        }
    }

    /// The frame, with its payload in two parts: so many bytes ([`Header::head_bytes`]), and the rest.
    pub(crate) fn frame_of(&self, payload: &[u8], rest: Vec<u8>) -> Result<Frame, FrameError> {
        if payload.len() + rest.len() != self.payload_bytes {
            return Err(FrameError::Payload);
        }
        let crc = crc32c::crc32c(&self.begin);
        if [payload, &rest].into_iter().fold(crc, crc32c::crc32c_append) != self.crc {
            return Err(FrameError::Crc);
        }
        let run = PageRun { first: self.first, count: self.number };
        let empty = |frame| if payload.is_empty() { Ok(frame) } else { Err(FrameError::Payload) };
        match self.kind {
            Kind::Hello => self.greeting(payload).map(Frame::Hello),
            Kind::Look => self.greeting(payload).map(Frame::Look),
            Kind::Welcome => empty(Frame::Welcome),
            // a page that was never taken out is nowhere else
            Kind::Out => self.pages(payload, rest, Version(1)).map(Frame::Out),
            Kind::Data => self.pages(payload, rest, Version(1)).map(Frame::Data),
            Kind::Copy => self.pages(payload, rest, Version(0)).map(Frame::Copy),
            Kind::Words => self.words(payload).map(|all| Frame::Words(self.first, all)),
            Kind::Subs => self.subs(payload).map(|all| Frame::Subs(self.first.0, all)),
            Kind::Ages if usize::try_from(self.number) == Ok(payload.len()) => {
                Ok(Frame::Ages(self.first, payload.to_vec()))
            }
            Kind::Ages => Err(FrameError::Payload),
            Kind::Ready => empty(Frame::Ready),
            Kind::Final => empty(Frame::Final),
            Kind::Taken => empty(Frame::Taken),
            Kind::Kept => self.versions(payload).map(Frame::Kept),
            Kind::Drop => self.versions(payload).map(Frame::Drop),
            Kind::Listed => self.versions(payload).map(Frame::Listed),
            Kind::In => empty(Frame::In(run)),
            Kind::Missing => empty(Frame::Missing(run)),
            Kind::List => empty(Frame::List),
            Kind::Refused => Reason::of(self.number).map(Frame::Refused).ok_or(FrameError::Payload),
        }
    }

    fn pages(&self, head: &[u8], bytes: Vec<u8>, least: Version) -> Result<Pages, FrameError> {
        let count = usize::try_from(self.number).map_err(|_| FrameError::Payload)?;
        if count == 0 || count.checked_mul(ENTRY_BYTES) != Some(head.len()) {
            return Err(FrameError::Payload);
        }
        let entries: Option<Vec<Entry>> = words(head).map(|word| Entry::of(word, least)).collect();
        let entries = entries.ok_or(FrameError::Payload)?;
        let full = entries.iter().filter(|entry| !entry.is_zero).count();
        if bytes.len() != full * PAGE {
            return Err(FrameError::Payload);
        }
        Ok(Pages { first: self.first, entries, bytes })
    }

    fn words(&self, payload: &[u8]) -> Result<Vec<u32>, FrameError> {
        let count = usize::try_from(self.number).map_err(|_| FrameError::Payload)?;
        let fits = count <= WORDS_MAX && count * ENTRY_BYTES == payload.len();
        if fits { Ok(words(payload).collect()) } else { Err(FrameError::Payload) }
    }

    fn subs(&self, payload: &[u8]) -> Result<Vec<SubNo>, FrameError> {
        let count = usize::try_from(self.number).map_err(|_| FrameError::Payload)?;
        if count > WORDS_MAX || count * SUB_BYTES != payload.len() {
            return Err(FrameError::Payload);
        }
        let each = payload.chunks_exact(SUB_BYTES);
        Ok(each.map(|sub| SubNo(u16::from_le_bytes([sub[0], sub[1]]))).collect())
    }

    fn greeting(&self, payload: &[u8]) -> Result<Greeting, FrameError> {
        let payload: &[u8; HELLO_BYTES] = payload.try_into().map_err(|_| FrameError::Payload)?;
        let (mut uuid, mut secret) = ([0; 16], [0; 16]);
        uuid.copy_from_slice(&payload[..16]);
        secret.copy_from_slice(&payload[16..32]);
        let number =
            |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| payload[at + i]));
        let main = start(self.first.0);
        let takes_ages = self.number & TAKES_AGES != 0;
        let (epoch, memory_bytes) = (number(32), number(40));
        Ok(Greeting { uuid, secret, epoch, memory_bytes, main, takes_ages })
    }

    /// Pairs of a page's distance from the first, and its version.
    fn versions(&self, payload: &[u8]) -> Result<Vec<(PageNo, Version)>, FrameError> {
        let count = usize::try_from(self.number).map_err(|_| FrameError::Payload)?;
        if count.checked_mul(2 * ENTRY_BYTES) != Some(payload.len()) {
            return Err(FrameError::Payload);
        }
        let all: Vec<u32> = words(payload).collect();
        let pairs = all.chunks_exact(2).map(|pair| {
            let page = self.first.0.checked_add(u64::from(pair[0]))?;
            (Version(pair[1]) <= Version::MAX).then_some((PageNo(page), Version(pair[1])))
        });
        pairs.collect::<Option<_>>().ok_or(FrameError::Payload)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// A node's start as a number; 0 is none.
fn start(number: u64) -> Option<NodeStart> {
    let [node, boots] = [number >> 32, number & u64::from(u32::MAX)].map(u32::try_from);
    Some(NodeStart { node: node.ok()?.checked_sub(1)?, boots: boots.ok()? })
}

fn number(start: Option<NodeStart>) -> u64 {
    start.map_or(0, |start| (u64::from(start.node) + 1) << 32 | u64::from(start.boots))
}

impl Frame {
    /// What it is, for people: what it brings may be much.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Look(_) => "look",
            Self::Welcome => "welcome",
            Self::Out(_) => "out",
            Self::Kept(_) => "kept",
            Self::In(_) => "in",
            Self::Data(_) => "data",
            Self::Missing(_) => "missing",
            Self::Drop(_) => "drop",
            Self::List => "list",
            Self::Listed(_) => "listed",
            Self::Refused(_) => "refused",
            Self::Copy(_) => "copy",
            Self::Ready => "ready",
            Self::Words(..) => "words",
            Self::Ages(..) => "ages",
            Self::Subs(..) => "subs",
            Self::Final => "final",
            Self::Taken => "taken",
        }
    }

    /// The whole frame as it goes over the wire. One with more pages than a chunk can have, or
    /// with pages further apart than 32 bits tell, is not made: none is then.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let (mut bytes, rest) = self.parts()?;
        bytes.extend(rest);
        Some(bytes)
    }

    /// The same in two parts: the second one is what pages have.
    pub(crate) fn parts(&self) -> Option<(Vec<u8>, &[u8])> {
        let (kind, first, number, payload) = match self {
            Self::Hello(greeting) => greeting.parts(Kind::Hello),
            Self::Look(greeting) => greeting.parts(Kind::Look),
            Self::Copy(pages) => of_pages(Kind::Copy, pages)?,
            Self::Words(first, words) => {
                let payload = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                (Kind::Words, *first, count(words, WORDS_MAX)?, payload)
            }
            Self::Subs(first, subs) => {
                let payload = subs.iter().flat_map(|sub| sub.0.to_le_bytes()).collect();
                (Kind::Subs, PageNo(*first), count(subs, WORDS_MAX)?, payload)
            }
            Self::Ages(first, ages) => (Kind::Ages, *first, count(ages, AGES_MAX)?, ages.clone()),
            Self::Ready => (Kind::Ready, PageNo(0), 0, Vec::new()),
            Self::Final => (Kind::Final, PageNo(0), 0, Vec::new()),
            Self::Taken => (Kind::Taken, PageNo(0), 0, Vec::new()),
            Self::Welcome => (Kind::Welcome, PageNo(0), 0, Vec::new()),
            Self::List => (Kind::List, PageNo(0), 0, Vec::new()),
            Self::Out(pages) => of_pages(Kind::Out, pages)?,
            Self::Data(pages) => of_pages(Kind::Data, pages)?,
            Self::Kept(pages) => versions(Kind::Kept, pages)?,
            Self::Drop(pages) => versions(Kind::Drop, pages)?,
            Self::Listed(pages) => versions(Kind::Listed, pages)?,
            Self::In(run) => (Kind::In, run.first, run.count, Vec::new()),
            Self::Missing(run) => (Kind::Missing, run.first, run.count, Vec::new()),
            Self::Refused(reason) => (Kind::Refused, PageNo(0), *reason as u32, Vec::new()),
        };
        let rest = match self {
            Self::Copy(pages) | Self::Out(pages) | Self::Data(pages) => &pages.bytes[..],
            _ => &[],
        };
        let payload_bytes = payload.len() + rest.len();
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend(MAGIC);
        bytes.extend([PROTOCOL, kind as u8]);
        bytes.extend(u32::try_from(payload_bytes).ok()?.to_le_bytes());
        bytes.extend(first.0.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.resize(CRC_AT, 0);
        let crc =
            [&payload[..], rest].into_iter().fold(crc32c::crc32c(&bytes), crc32c::crc32c_append);
        bytes.extend(crc.to_le_bytes());
        bytes.extend(payload);
        Some((bytes, rest))
    }

    /// Whether all pages that it names are of a guest with this memory, those that it brings
    /// or asks for of one chunk.
    #[must_use]
    pub fn fits(&self, geometry: Geometry) -> bool {
        match self {
            Self::Out(pages) | Self::Data(pages) | Self::Copy(pages) => {
                let count = u32::try_from(pages.entries.len()).unwrap_or(u32::MAX);
                geometry.has_run(PageRun { first: pages.first, count })
            }
            Self::In(run) | Self::Missing(run) => geometry.has_run(*run),
            Self::Kept(pages) | Self::Drop(pages) | Self::Listed(pages) => {
                pages.iter().all(|&(page, _)| geometry.has(page))
            }
            Self::Words(first, words) => {
                first.0.checked_add(words.len() as u64).is_some_and(|end| end <= geometry.pages())
            }
            Self::Ages(first, ages) => {
                first.0.checked_add(ages.len() as u64).is_some_and(|end| end <= geometry.pages())
            }
            Self::Subs(first, subs) => {
                first.checked_add(subs.len() as u64).is_some_and(|end| end <= geometry.chunks())
            }
            Self::Hello(_)
            | Self::Look(_)
            | Self::Welcome
            | Self::List
            | Self::Refused(_)
            | Self::Ready
            | Self::Final
            | Self::Taken => true,
        }
    }
}

type Parts = (Kind, PageNo, u32, Vec<u8>);

fn count<T>(all: &[T], most: usize) -> Option<u32> {
    u32::try_from(all.len()).ok().filter(|_| all.len() <= most)
}

impl Greeting {
    fn parts(&self, kind: Kind) -> Parts {
        let mut payload = self.uuid.to_vec();
        payload.extend(self.secret);
        payload.extend(self.epoch.to_le_bytes());
        payload.extend(self.memory_bytes.to_le_bytes());
        let knows = if self.takes_ages { TAKES_AGES } else { 0 };
        (kind, PageNo(number(self.main)), knows, payload)
    }
}

fn of_pages(kind: Kind, pages: &Pages) -> Option<Parts> {
    let payload = pages.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
    let count = u32::try_from(pages.entries.len()).ok()?;
    (count > 0).then_some((kind, pages.first, count, payload))
}

fn versions(kind: Kind, pages: &[(PageNo, Version)]) -> Option<Parts> {
    let first = pages.iter().map(|&(page, _)| page).min().unwrap_or(PageNo(0));
    let mut payload = Vec::with_capacity(pages.len() * 2 * ENTRY_BYTES);
    for &(page, version) in pages {
        payload.extend(u32::try_from(page.0 - first.0).ok()?.to_le_bytes());
        payload.extend(version.0.to_le_bytes());
    }
    Some((kind, first, u32::try_from(pages.len()).ok()?, payload))
}

#[cfg(test)]
#[path = "tests/frame.rs"]
mod tests;
