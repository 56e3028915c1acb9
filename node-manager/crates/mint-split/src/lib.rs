// SPDX-License-Identifier: Apache-2.0
//! Memory of a guest that is split over several hosts (S-memV).
//!
//! The *main* host runs the guest; *sub* hosts keep pages of it that the main host has no room
//! for. A page is at one of them alone. This crate is the part of that which touches nothing:
//! [`Geometry`] (pages and chunks, 4-4), [`Places`] (the location database, 4-1), [`Ages`] (when
//! each page was used, 4-3), [`Policy`] (which chunk goes next, 4-5), [`Frame`] (what main and sub say to each other, 4-2), and
//! [`SplitGuest`] (what the processes of a host are told of a guest). Section numbers are those of the S-memV paper.

mod ages;
pub mod files;
mod frame;
mod geometry;
mod guest;
mod map;
mod pages;
mod places;
mod victims;
mod wire;

pub use ages::{Ages, AgesError};
pub use frame::{
    AGES_MAX, Frame, FrameError, Greeting, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, Reason,
    WORDS_MAX,
};
pub use geometry::{
    CHUNK_MAX, CHUNK_PAGES_MAX, ChunkNo, Geometry, GeometryError, PAGE, PAGE_BYTES, PageNo, PageRun,
};
pub use guest::{
    Arrival, ArrivalView, DepartureView, Lease, LeaseEnd, LeaseView, Leave, Lent, LooksView,
    MemoryView, Mirror, MirrorView, NodeStart, PagerAnswer, PagerCall, Server, ServerAddress,
    ServerMirror, ServerView, Source, SplitGuest, Uuid, limit_bytes, whole_bytes,
};
pub use map::{CELLS_MAX, MapCell, MemoryMap, cell_chunks};
pub use pages::{Entry, Pages};
pub use places::{Answer, Counts, Place, Places, PlacesError, SubNo, Version};
pub use victims::{Fifo, Policy, Victims};
pub use wire::{HearError, hear, say};
