// SPDX-License-Identifier: Apache-2.0
//! What is asked of a policy.

use crate::ages::Ages;
use crate::geometry::{ChunkNo, PageNo};

/// What a pager takes out next. It is told what comes and what is used, and asked what goes.
pub trait Victims {
    /// Pages of this chunk have come, because somebody waited for them; it may have some already.
    fn came(&mut self, chunk: ChunkNo);

    /// A page has come that nobody waited for: it looks used, and was not.
    fn came_unasked(&mut self, _page: PageNo) {}

    /// The next one that goes; none if none is known. One that could not go is told as one that
    /// has come.
    fn next(&mut self) -> Option<ChunkNo>;

    /// What a chunk that is here is worth: one with a lower rank goes before it. Policies that know
    /// nothing of the use of pages rank all the same.
    fn rank(&self, _chunk: ChunkNo) -> u64 {
        0
    }
}

/// Which of the chunks that are here goes next.
pub(super) trait Order {
    fn came(&mut self, chunk: ChunkNo);
    fn next(&mut self, ages: &mut Ages<'_>) -> Option<ChunkNo>;
    /// As [`Victims::rank`].
    fn rank(&self, _ages: &Ages<'_>, _chunk: ChunkNo) -> u64 {
        0
    }
    /// All pages were looked at: what is known of their use is of now.
    fn looked(&mut self, _ages: &Ages<'_>) {}
    /// Another period is about to begin for all pages.
    fn period(&mut self) {}
}
