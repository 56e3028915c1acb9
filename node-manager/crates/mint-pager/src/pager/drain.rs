// SPDX-License-Identifier: Apache-2.0
//! What a memory server that leaves has, on its way here.

use std::collections::BTreeSet;

use mint_split::ChunkNo;

/// What comes to go elsewhere.
#[derive(Default)]
pub(super) struct Drain {
    /// Chunks that are on their way, and that nobody waits for.
    pub chunks: BTreeSet<ChunkNo>,
    /// How far the round through the guest's memory has come.
    pub to: u64,
    /// Pages that may be asked for still; less than none: so many too many were, as a chunk comes
    /// whole. None: any number.
    pub may_pages: Option<i64>,
}
