// SPDX-License-Identifier: Apache-2.0
//! A guest that comes to have all of its memory here (S-memV, 3-2): what memory servers keep comes
//! from all of them while its last main host sends what that has. Nobody is told: the guest still
//! pages there. What has come of a page counts if at last its copy is still the page, which its
//! version tells; else it comes later, as of any guest that ran here.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mint_split::{
    Frame, Geometry, HearError, PAGE_BYTES, PageNo, PageRun, Pages, Version, hear, say,
};
use rustix::fs::{FallocateFlags, fallocate};
use tracing::info;

use crate::share::Share;
use crate::shared::Server;
use crate::stream::Stream;

/// What is asked for and has not come, of one memory server.
const WINDOW_PAGES: u64 = 512;

/// Of a page: nobody has sent it; the last main host has; or a memory server has, in the version
/// that is so much less.
const NOBODY: u32 = 0;
const SOURCE: u32 = 1;
const SERVER: u32 = 2;

/// Who has sent what is here of each page.
pub(crate) struct Marks(Vec<u32>);

/// The memory of a guest that comes. What others write there they write under its lock.
pub(crate) struct Early {
    ram: File,
    geometry: Geometry,
    /// None: nothing of memory servers is wanted (any more).
    marks: Mutex<Option<Marks>>,
    /// To memory servers.
    streams: Mutex<Vec<Stream>>,
    /// What the last main host and memory servers may send, together.
    pub share: Share,
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the connection")]
    Hear(#[from] HearError),
    #[error("it says {0:?}")]
    Said(Box<Frame>),
    #[error("the guest's memory")]
    Own(#[source] io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Hear(error.into())
    }
}

impl Marks {
    /// Whether a memory server's copy of this version is here.
    pub fn has(&self, page: PageNo, version: Version) -> bool {
        self.0.get(index(page)).copied() == Some(version.0 + SERVER)
    }

    fn set(&mut self, page: PageNo, mark: u32) {
        if let Some(at) = self.0.get_mut(index(page)) {
            *at = mark;
        }
    }
}

impl Early {
    /// Nothing has come; memory servers may be asked for what they keep.
    pub fn new(ram: File, geometry: Geometry, merges: bool, share: Share) -> Self {
        let marks = merges.then(|| Marks(vec![NOBODY; index(PageNo(geometry.pages()))]));
        Self { ram, geometry, marks: Mutex::new(marks), streams: Mutex::default(), share }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Marks>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last main host has sent pages: that is what they are.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub fn copied(&self, pages: &Pages) -> io::Result<()> {
        let mut marks = self.lock();
        for (run, bytes) in pages.runs() {
            put(&self.ram, run, bytes)?;
            if let Some(marks) = &mut *marks {
                run.pages().for_each(|page| marks.set(page, SOURCE));
            }
        }
        Ok(())
    }

    /// What it has sent of these is not the page any more.
    ///
    /// # Errors
    /// When the memory cannot be changed.
    pub fn dropped(&self, pages: impl IntoIterator<Item = PageNo>) -> io::Result<()> {
        let mut marks = self.lock();
        for page in pages {
            punch(&self.ram, page.0, 1)?;
            if let Some(marks) = &mut *marks {
                marks.set(page, NOBODY);
            }
        }
        Ok(())
    }

    /// A memory server has sent pages: they may be those that nobody else has sent. Gives whether
    /// more is wanted.
    pub fn kept(&self, pages: &Pages) -> io::Result<bool> {
        let mut marks = self.lock();
        let Some(marks) = &mut *marks else { return Ok(false) };
        for (page, version, bytes) in pages.each() {
            if marks.0.get(index(page)).is_some_and(|&mark| mark == NOBODY) {
                put(&self.ram, PageRun { first: page, count: 1 }, bytes)?;
                marks.set(page, version.0 + SERVER);
            }
        }
        Ok(true)
    }

    /// Whether nobody has sent some of these; none if nothing is wanted any more.
    fn lacks(&self, run: PageRun) -> Option<bool> {
        let marks = self.lock();
        let marks = marks.as_ref()?;
        let is_free = |page| marks.0.get(index(page)).is_some_and(|&mark| mark == NOBODY);
        Some(run.pages().any(is_free))
    }

    /// The guest stands still: nothing that memory servers send from here on is written down. Gives
    /// what has come of them.
    pub fn end(&self) -> Marks {
        let marks = self.lock().take();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.drain(..).for_each(|stream| stream.end());
        marks.unwrap_or(Marks(Vec::new()))
    }

    /// Begins to ask a memory server for all that it keeps, at its part of what may come. That ends
    /// by itself.
    ///
    /// # Errors
    /// When there are too many threads.
    pub fn ask(self: &Arc<Self>, server: Server) -> io::Result<()> {
        let early = self.clone();
        let ask = move || match early.fetch(&server) {
            Ok(pages) => info!(server = %server.address, pages, "what it keeps has come meanwhile"),
            // it comes later
            Err(ended) => {
                let ended = &ended as &dyn std::error::Error;
                info!(server = %server.address, ended, "what it keeps comes later");
            }
        };
        thread::Builder::new().name("early".into()).spawn(ask).map(drop)
    }

    fn fetch(&self, server: &Server) -> Result<u64, Ended> {
        let stream = Stream::connect(&server.address, server.way.as_deref())?;
        let mut from = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        {
            // who ends this ends all that are there then
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            if self.lock().is_none() {
                return Ok(0);
            }
            streams.push(stream.try_clone()?);
        }
        say(&stream, &Frame::Look(server.greeting.clone()))?;
        match self.hear(&mut from)? {
            Frame::Welcome => {}
            other => return Err(Ended::Said(Box::new(other))),
        }
        let mut runs = self.list(&stream, &mut from)?.into_iter();
        let (mut asked, mut came) = (0, 0);
        loop {
            while asked < WINDOW_PAGES {
                let Some(run) = runs.next() else { break };
                match self.lacks(run) {
                    Some(true) => {
                        say(&stream, &Frame::In(run))?;
                        asked += u64::from(run.count);
                    }
                    Some(false) => {}
                    None => return Ok(came),
                }
            }
            if asked == 0 {
                return Ok(came);
            }
            match self.hear(&mut from)? {
                Frame::Data(pages) => {
                    if !self.kept(&pages).map_err(Ended::Own)? {
                        return Ok(came);
                    }
                    let count = pages.entries.len() as u64;
                    (asked, came) = (asked.saturating_sub(count), came + count);
                    self.share.wait(pages.bytes.len() as u64);
                }
                Frame::Missing(run) => asked = asked.saturating_sub(u64::from(run.count)),
                other => return Err(Ended::Said(Box::new(other))),
            }
        }
    }

    fn hear(&self, from: &mut BufReader<Stream>) -> Result<Frame, Ended> {
        let frame = hear(from)?;
        if frame.fits(self.geometry) { Ok(frame) } else { Err(Ended::Said(Box::new(frame))) }
    }

    /// What a memory server keeps, as runs within chunks.
    fn list(&self, stream: &Stream, from: &mut BufReader<Stream>) -> Result<Vec<PageRun>, Ended> {
        say(stream, &Frame::List)?;
        let mut runs: Vec<PageRun> = Vec::new();
        loop {
            let pages = match self.hear(from)? {
                Frame::Listed(pages) if pages.is_empty() => return Ok(runs),
                Frame::Listed(pages) => pages,
                other => return Err(Ended::Said(Box::new(other))),
            };
            for (page, _) in pages {
                let follows = |run: &&mut PageRun| {
                    run.first.0 + u64::from(run.count) == page.0
                        && self.geometry.chunk_of(run.first) == self.geometry.chunk_of(page)
                };
                match runs.last_mut().filter(follows) {
                    Some(run) => run.count += 1,
                    None => runs.push(PageRun { first: page, count: 1 }),
                }
            }
        }
    }
}

fn put(ram: &File, run: PageRun, bytes: Option<&[u8]>) -> io::Result<()> {
    match bytes {
        Some(bytes) => ram.write_all_at(bytes, run.first.0 * PAGE_BYTES),
        None => punch(ram, run.first.0, run.count.into()),
    }
}

/// Pages become holes.
///
/// # Errors
/// When the file cannot be changed.
pub(crate) fn punch(ram: &File, page: u64, count: u64) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(ram, how, page * PAGE_BYTES, count * PAGE_BYTES)?)
}

fn index(page: PageNo) -> usize {
    usize::try_from(page.0).unwrap_or(usize::MAX)
}
