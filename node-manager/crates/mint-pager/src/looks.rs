// SPDX-License-Identifier: Apache-2.0
//! Which pages the guest uses (4-3): the kernel is asked for the accessed bits of all that is here,
//! each second, also while nothing of the guest is elsewhere.

use std::io;
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use mint_split::{ChunkNo, LooksView, PAGE_BYTES, PageNo, Policy};
use mint_sys::{ACCESSED_MAX, MemoryDevice};
use mint_types::PagingPolicy;
use rustix::io::Errno;
use tracing::{info, warn};

use crate::memory::Memory;
use crate::pager::Pager;
use crate::shared::Shared;

/// Between looks.
const LOOK: Duration = Duration::from_secs(1);
/// A look takes this part of a core at most: a guest so large that it would take more is looked at
/// less often.
const CORE_PART: u32 = 20;
/// Looks of a period: eight periods are what is known of a page.
const PERIOD_LOOKS: u64 = 4;
/// Pages whose history moves on under the pager's lock at a time.
const AT_ONCE: u64 = 256 << 10;

impl<M: Memory> Pager<'_, M, Policy<'_>> {
    /// Chooses by this policy from now on.
    pub fn follow(&mut self, policy: PagingPolicy) {
        if self.victims().policy() == policy {
            return;
        }
        let all = (0..self.places().geometry().chunks()).map(ChunkNo);
        let here: Vec<ChunkNo> = all.filter(|&chunk| self.places().local_in(chunk) > 0).collect();
        self.victims_mut().change(policy, here.into_iter());
    }
}

/// Until the guest's QEMU has ended, or the kernel does not tell.
pub(crate) fn look(shared: &Shared) {
    let device = shared.lock().pager.memory().device.file().try_clone();
    let device = match device {
        Ok(device) => MemoryDevice::opened(device.into()),
        Err(error) => {
            warn!(%error, "nothing is known of the use of pages");
            return;
        }
    };
    let mut view = LooksView::default();
    while !shared.home.qemu.has_ended() {
        let begun = Instant::now();
        match look_at_all(shared, &device) {
            Ok(()) => {}
            // an older kernel: what came first goes first then
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
                let policy = shared.home.guest.policy;
                info!(%policy, "this kernel does not tell which pages are used: first in, first out");
                return;
            }
            Err(error) => {
                if !shared.home.qemu.has_ended() {
                    warn!(%error, "the use of pages is not told any more");
                }
                return;
            }
        }
        view.count += 1;
        if view.count % PERIOD_LOOKS == 0 {
            view.used_pages = next_period(shared);
        }
        shared.lock().pager.victims_mut().looked();
        let took = begun.elapsed();
        view.took_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        *shared.looks.lock().unwrap_or_else(PoisonError::into_inner) = Some(view);
        thread::sleep(LOOK.max(took * CORE_PART));
    }
}

fn look_at_all(shared: &Shared, device: &MemoryDevice) -> io::Result<()> {
    let (pages, base) = {
        let locked = shared.lock();
        (locked.pager.places().geometry().pages(), locked.pager.memory().base)
    };
    let process = shared.home.qemu.process.as_fd();
    for first in (0..pages).step_by(usize::try_from(ACCESSED_MAX).unwrap_or(usize::MAX)) {
        let count = u32::try_from(pages - first).unwrap_or(u32::MAX).min(ACCESSED_MAX);
        let bits = device.accessed(process, base + first * PAGE_BYTES, count)?;
        shared.lock().pager.victims_mut().used(PageNo(first), &bits);
    }
    Ok(())
}

/// Gives how many pages were used in the last eight.
fn next_period(shared: &Shared) -> u64 {
    let pages = shared.lock().pager.places().geometry().pages();
    let parts = (0..pages).step_by(usize::try_from(AT_ONCE).unwrap_or(usize::MAX));
    parts.map(|first| shared.lock().pager.victims_mut().period(first..first + AT_ONCE)).sum()
}
