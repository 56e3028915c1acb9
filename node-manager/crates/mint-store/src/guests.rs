// SPDX-License-Identifier: Apache-2.0
//! The guests that may keep pages here: each has a lease, which this node's `mint-guestd` gives.
//! Name of a guest's files: its UUID as libvirt writes it, without hyphens.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mint_split::{
    CHUNK_PAGES_MAX, Frame, Geometry, GeometryError, Greeting, Lease, LeaseEnd, Mirror, MirrorView,
    PAGE_BYTES, PageNo, Reason, Uuid, Version, say,
};
use tempfile::NamedTempFile;
use tracing::{info, warn};

use crate::kept::Kept;
use crate::mirror::Mirroring;
use crate::mirrored::{Mirrored, keep_mirrored};

/// A lease cannot be given, or files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// No guest has such memory.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The guest has one, for another memory.
    #[error("the guest has a lease here for {0} bytes of memory: end that first")]
    Other(u64),
    /// The guest has one, of another machine's main host.
    #[error("a guest of another machine has a lease here by that UUID")]
    Foreign,
    /// What was kept before.
    #[error("the files in {}", folder.display())]
    Io {
        /// Where they are.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A guest with a lease.
#[derive(Debug)]
pub struct Guest {
    folder: PathBuf,
    inner: Mutex<Inner>,
    /// The mirror is to be told something, or nothing any more.
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    lease: Lease,
    kept: Kept,
    /// The connection that speaks for it now; each new one ends the one before.
    session: u64,
    stream: Option<(TcpStream, Writer)>,
    mirror: Option<Mirroring>,
    /// Grows with each change of the mirror.
    mirrors: u64,
}

/// The end of a connection that frames are written to, one after the other.
type Writer = Arc<Mutex<TcpStream>>;

/// All of them.
#[derive(Debug)]
pub struct Guests {
    folder: PathBuf,
    guests: Mutex<BTreeMap<Uuid, Arc<Guest>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // what is behind it is whole after each step
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(uuid: &Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Pages of a frame are of one chunk, whatever the guest's is: none is larger than this.
fn geometry(memory_bytes: u64) -> Result<Geometry, GeometryError> {
    Geometry::new(memory_bytes, CHUNK_PAGES_MAX * PAGE_BYTES)
}

fn open(folder: &Path, lease: Lease) -> Result<Guest, LeaseError> {
    let geometry = geometry(lease.memory_bytes)?;
    let kept = Kept::open(folder, &name(&lease.uuid), geometry, lease.limit_bytes / PAGE_BYTES)
        .map_err(|source| LeaseError::Io { folder: folder.to_owned(), source })?;
    let inner = Inner { lease, kept, session: 0, stream: None, mirror: None, mirrors: 0 };
    let changed = Condvar::new();
    Ok(Guest { folder: folder.to_owned(), inner: Mutex::new(inner), changed })
}

fn write(folder: &Path, lease: &Lease) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(lease).map_err(io::Error::other)?)?;
    file.persist(folder.join(format!("{}.lease", name(&lease.uuid))))?;
    Ok(())
}

impl Guests {
    /// Those whose leases lie in a folder, which is made if it is not there. Files of others are
    /// deleted.
    ///
    /// # Errors
    /// When the folder or one of its files cannot be used.
    pub fn open(folder: &Path) -> Result<Self, LeaseError> {
        let broken = |source| LeaseError::Io { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(broken)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(broken)?;
        let mut guests = BTreeMap::new();
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(broken)? {
            names.push(entry.map_err(broken)?.file_name().to_string_lossy().into_owned());
        }
        for of in names.iter().filter_map(|name| name.strip_suffix(".lease")) {
            let bytes = fs::read(folder.join(format!("{of}.lease"))).map_err(broken)?;
            let lease: Lease =
                serde_json::from_slice(&bytes).map_err(io::Error::other).map_err(broken)?;
            let uuid = lease.uuid;
            let guest = open(folder, lease)?;
            info!(guest = %name(&uuid), bytes = guest.bytes(), "still kept");
            let guest = Arc::new(guest);
            guest.follow_mirror();
            guests.insert(uuid, guest);
        }
        for file in names {
            let of = file.split('.').next().unwrap_or_default();
            if !guests.keys().any(|uuid| name(uuid) == of) {
                warn!(file, "is nobody's");
                fs::remove_file(folder.join(&file)).map_err(broken)?;
            }
        }
        Ok(Self { folder: folder.to_owned(), guests: Mutex::new(guests) })
    }

    /// Gives a guest that starts a lease: what is kept of it from an earlier life is gone.
    ///
    /// # Errors
    /// When the guest has one of another machine, or the files cannot be used.
    pub fn begin(&self, lease: Lease) -> Result<(), LeaseError> {
        self.end_that(&lease.uuid, |before| before.machine == lease.machine)?;
        self.lease(lease)
    }

    /// Gives a lease, or changes what a guest may and who speaks for it.
    ///
    /// # Errors
    /// When the guest has one for another memory, or of another machine, or the files cannot be used.
    pub fn lease(&self, lease: Lease) -> Result<(), LeaseError> {
        let broken = |source| LeaseError::Io { folder: self.folder.clone(), source };
        let mut guests = lock(&self.guests);
        if let Some(guest) = guests.get(&lease.uuid).cloned() {
            let mut inner = lock(&guest.inner);
            if inner.lease.machine != lease.machine {
                return Err(LeaseError::Foreign);
            }
            if inner.lease.memory_bytes != lease.memory_bytes {
                return Err(LeaseError::Other(inner.lease.memory_bytes));
            }
            let epoch = lease.epoch.max(inner.lease.epoch);
            let lease = Lease { epoch, ..lease };
            write(&self.folder, &lease).map_err(broken)?;
            inner.kept.set_limit(lease.limit_bytes / PAGE_BYTES);
            let is_same = is_same(&inner.lease.secret, &lease.secret);
            inner.lease = lease;
            // who was told another secret speaks for it no more
            if !is_same {
                inner.take_over();
            }
            drop(inner);
            guest.follow_mirror();
            return Ok(());
        }
        let guest = Arc::new(open(&self.folder, lease.clone())?);
        write(&self.folder, &lease).map_err(broken)?;
        guest.follow_mirror();
        guests.insert(lease.uuid, guest);
        Ok(())
    }

    /// Ends a lease: the guest's pages are gone. None there is no error. One with another secret
    /// stays: it is of a later life; so does one that another main host has by now.
    ///
    /// # Errors
    /// When files stay.
    pub fn end(&self, end: &LeaseEnd) -> Result<(), LeaseError> {
        self.end_that(&end.uuid, |lease| {
            is_same(&lease.secret, &end.secret)
                && end.epoch.is_none_or(|epoch| epoch >= lease.epoch)
        })
    }

    fn end_that(&self, uuid: &Uuid, is_meant: impl Fn(&Lease) -> bool) -> Result<(), LeaseError> {
        let broken = |source| LeaseError::Io { folder: self.folder.clone(), source };
        let mut guests = lock(&self.guests);
        if !guests.get(uuid).is_some_and(|guest| is_meant(&lock(&guest.inner).lease)) {
            return Ok(());
        }
        let Some(guest) = guests.remove(uuid) else { return Ok(()) };
        {
            let mut inner = lock(&guest.inner);
            inner.take_over();
            inner.lease.mirror = None;
        }
        guest.follow_mirror();
        let of = name(uuid);
        // the lease first: pages without one are nobody's
        fs::remove_file(self.folder.join(format!("{of}.lease"))).map_err(broken)?;
        Kept::delete(&self.folder, &of).map_err(broken)
    }

    /// Each guest's lease, the bytes that are kept of it, and how far its mirror is.
    #[must_use]
    pub fn list(&self) -> Vec<(Lease, u64, Option<MirrorView>)> {
        let guests: Vec<Arc<Guest>> = lock(&self.guests).values().cloned().collect();
        let each = guests.iter().map(|guest| lock(&guest.inner));
        each.map(|inner| {
            let bytes = inner.kept.bytes();
            let mirror = inner.mirror.as_ref().map(|mirror| mirror.view(bytes / PAGE_BYTES));
            (inner.lease.clone(), bytes, mirror)
        })
        .collect()
    }

    /// The guest that somebody may speak for.
    fn greeted(&self, who: &Greeting) -> Result<Arc<Guest>, Reason> {
        let guest = lock(&self.guests).get(&who.uuid).cloned().ok_or(Reason::Stranger)?;
        let inner = lock(&guest.inner);
        if !is_same(&inner.lease.secret, &who.secret) {
            return Err(Reason::Stranger);
        }
        if inner.lease.memory_bytes != who.memory_bytes {
            return Err(Reason::OtherSize);
        }
        if who.epoch < inner.lease.epoch {
            return Err(Reason::OldEpoch);
        }
        drop(inner);
        Ok(guest)
    }

    /// A connection asks for pages of a guest that is about to come to its host. Who speaks for
    /// the guest goes on; it may have another main host when this one asks.
    ///
    /// # Errors
    /// When it may not.
    pub fn look(&self, who: &Greeting, stream: &TcpStream) -> Result<Session, Reason> {
        let guest = self.greeted(who)?;
        let stream = Arc::new(Mutex::new(stream.try_clone().map_err(|_| Reason::Full)?));
        Ok(Session { guest, right: Right::Look { epoch: who.epoch }, stream })
    }

    /// A connection speaks for a guest from now on, and no other one does.
    ///
    /// # Errors
    /// When it may not.
    pub fn enter(&self, who: &Greeting, stream: &TcpStream) -> Result<Session, Reason> {
        let guest = self.greeted(who)?;
        let mut inner = lock(&guest.inner);
        // others may have come meanwhile
        if who.epoch < inner.lease.epoch {
            return Err(Reason::OldEpoch);
        }
        let main = who.main.unwrap_or(inner.lease.main);
        let lease = Lease { epoch: who.epoch, main, ..inner.lease.clone() };
        if lease != inner.lease {
            if let Err(error) = write(&guest.folder, &lease) {
                warn!(%error, "a lease's epoch cannot be written");
                return Err(Reason::Full);
            }
            inner.lease = lease;
        }
        let clone = || stream.try_clone().map_err(|_| Reason::Full);
        let (ends, stream) = (clone()?, Arc::new(Mutex::new(clone()?)));
        inner.take_over();
        inner.stream = Some((ends, stream.clone()));
        let right = Right::Speak { session: inner.session };
        drop(inner);
        // its mirror is to hear of another main host
        guest.changed.notify_all();
        Ok(Session { guest, right, stream })
    }
}

/// Pages that a main host hears of in one frame.
const TOLD: usize = 4096;

/// Takes as long whatever the difference is.
fn is_same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

impl Guest {
    fn bytes(&self) -> u64 {
        lock(&self.inner).kept.bytes()
    }

    /// Its mirror is the one that its lease names, from now on.
    fn follow_mirror(self: &Arc<Self>) {
        let mut inner = lock(&self.inner);
        if inner.mirror.as_ref().map(|mirror| mirror.to) == inner.lease.mirror {
            return;
        }
        let owed = inner.mirror.as_mut().map(Mirroring::all_owed).unwrap_or_default();
        inner.mirrors += 1;
        inner.mirror = inner.lease.mirror.map(Mirroring::new);
        if let Some(mirror) = &mut inner.mirror {
            // what waited for one mirror waits for the next
            mirror.owes(owed);
            let (guest, number) = (self.clone(), inner.mirrors);
            let begun = std::thread::Builder::new().name("mirror".into()).spawn(move || {
                keep_mirrored(&*guest, number);
            });
            if let Err(error) = begun {
                warn!(%error, "a mirror is told nothing");
            }
            drop(inner);
        } else {
            drop(inner);
            self.tell(owed);
        }
        self.changed.notify_all();
    }

    /// Its main host hears that it has these pages.
    fn tell(&self, pages: Vec<(PageNo, Version)>) {
        let writer = lock(&self.inner).stream.as_ref().map(|(_, writer)| writer.clone());
        // one that is not there asks when it is back
        let Some(writer) = writer.filter(|_| !pages.is_empty()) else { return };
        for some in pages.chunks(TOLD) {
            if let Err(error) = say(&*lock(&writer), &Frame::Kept(some.to_vec())) {
                info!(%error, "a main host was not told what is kept");
                return;
            }
        }
    }
}

impl Mirrored for Guest {
    fn mirror(&self, number: u64) -> Option<(Mirror, Greeting)> {
        let inner = lock(&self.inner);
        let to = inner.mirror.as_ref().filter(|_| inner.mirrors == number)?.to;
        let Lease { uuid, epoch, memory_bytes, main, .. } = inner.lease;
        let (secret, main) = (to.secret, Some(main));
        let greeting = Greeting { uuid, secret, epoch, memory_bytes, main, takes_ages: false };
        Some((to, greeting))
    }

    fn with<T>(
        &self,
        number: u64,
        work: impl FnOnce(&mut Mirroring, &Kept) -> io::Result<(T, Vec<(PageNo, Version)>)>,
    ) -> Option<io::Result<T>> {
        let mut inner = lock(&self.inner);
        let Inner { mirror, mirrors, kept, .. } = &mut *inner;
        let mirror = mirror.as_mut().filter(|_| *mirrors == number)?;
        let done = work(mirror, kept);
        drop(inner);
        Some(done.map(|(done, told)| {
            self.tell(told);
            done
        }))
    }

    fn wait(&self, most: Duration) {
        let inner = lock(&self.inner);
        if inner.mirror.as_ref().is_some_and(Mirroring::has_nothing_to_tell) {
            // whoever wakes up looks by itself
            drop(self.changed.wait_timeout(inner, most));
        }
    }
}

impl Inner {
    /// Whoever speaks for it now does no more.
    fn take_over(&mut self) {
        self.session += 1;
        if let Some((stream, _)) = self.stream.take() {
            // it may have ended by itself
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What a connection may do for a guest.
#[derive(Debug)]
pub struct Session {
    guest: Arc<Guest>,
    right: Right,
    stream: Writer,
}

#[derive(Debug)]
enum Right {
    /// All, while no other one may.
    Speak { session: u64 },
    /// Ask for pages, while no later main host has been here.
    Look { epoch: u64 },
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut inner = lock(&self.guest.inner);
        if matches!(self.right, Right::Speak { session } if inner.session == session) {
            inner.take_over();
        }
    }
}

impl Session {
    /// Whether it changes nothing.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        matches!(self.right, Right::Look { .. })
    }

    /// Says a frame: another thread may have to say one, too.
    ///
    /// # Errors
    /// When it cannot be said.
    pub fn say(&self, frame: &Frame) -> io::Result<()> {
        say(&*lock(&self.stream), frame)
    }

    /// Does something with the guest's pages, which its mirror may have to hear of; none if it may
    /// not any more.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Kept, Option<&mut Mirroring>) -> T,
    ) -> Option<T> {
        let mut inner = lock(&self.guest.inner);
        let may = match self.right {
            Right::Speak { session } => inner.session == session,
            Right::Look { epoch } => inner.lease.epoch <= epoch,
        };
        let Inner { kept, mirror, .. } = &mut *inner;
        let done = may.then(|| work(kept, mirror.as_mut()));
        drop(inner);
        self.guest.changed.notify_all();
        done
    }
}
