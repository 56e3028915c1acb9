// SPDX-License-Identifier: Apache-2.0
//! What a guest may have on each of its hosts.

use std::collections::BTreeSet;
use std::io;

use mint_split::{Geometry, PageNo};

/// What a guest may have on its main host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Pages of memory; a chunk more while one comes.
    pub pages: u64,
    /// Of these, as many as may be on their way to memory servers.
    pub leaving_pages: u64,
}

/// The pager cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// There is less room than the guest has memory.
    #[error("room for chunks of {room_pages} pages in all, for a guest of {pages} pages")]
    Room {
        /// On all hosts.
        room_pages: u64,
        /// Of the guest.
        pages: u64,
    },
    /// Less than a chunk stays, or leaves.
    #[error("a budget of {0} pages is too small: want four chunks of {1} pages")]
    Budget(u64, u64),
    /// Pages that were leaving are neither here nor have they a copy.
    #[error("{} pages that were leaving have no copy, the first is {}", .0.len(), .0[0])]
    Copies(Vec<PageNo>),
    /// Its chunks are to have another size.
    #[error("{0} pages are elsewhere, in the chunks that they have")]
    Chunks(u64),
    /// The kernel.
    #[error("the guest's memory")]
    Memory(#[from] io::Error),
}

/// A memory server, as the pager knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sub {
    /// Pages that it may keep of the guest.
    pub limit_pages: u64,
    /// What it has is to go elsewhere.
    pub leaves: bool,
}

/// The same, with what it has.
pub(super) struct SubState {
    pub room_chunks: u64,
    pub leaves: bool,
    /// Chunks of which pages are there, on their way there or back.
    pub used_chunks: u64,
    pub is_connected: bool,
    /// While it lists what it has: those that should be there and were not named yet.
    pub unlisted: Option<BTreeSet<PageNo>>,
}

impl SubState {
    pub fn new(sub: &Sub, chunk_pages: u64) -> Self {
        Self {
            room_chunks: sub.limit_pages / chunk_pages,
            leaves: sub.leaves,
            used_chunks: 0,
            is_connected: false,
            unlisted: None,
        }
    }
}

/// Whether the guest has room on its hosts: a memory server has room for all of a chunk that it
/// has something of.
pub(super) fn room(geometry: Geometry, budget: Budget, subs: &[Sub]) -> Result<(), PagerError> {
    let chunk = geometry.chunk_pages();
    // one chunk comes while another leaves, and something stays
    if budget.pages < 4 * chunk
        || budget.leaving_pages < chunk
        || budget.leaving_pages > budget.pages / 2
    {
        return Err(PagerError::Budget(budget.pages, chunk));
    }
    let stays = (budget.pages - budget.leaving_pages) / chunk - 1;
    let each = subs.iter().filter(|sub| !sub.leaves).map(|sub| sub.limit_pages / chunk);
    let chunks = each.fold(stays, u64::saturating_add);
    if chunks < geometry.chunks() {
        return Err(PagerError::Room { room_pages: chunks * chunk, pages: geometry.pages() });
    }
    Ok(())
}
