// SPDX-License-Identifier: Apache-2.0
//! The pager of one guest: what the main host of S-memV does (4-5).
//!
//! The guest's memory is a file of which parts are holes. Who touches a hole waits until the
//! pager has filled it: with zeros, or with the page that a memory server keeps. What comes
//! makes something else go, so that the guest never has more than its budget and a chunk.

//!
//! A guest that moves to another host gives what it has here to that one's pager, and its memory
//! servers hear from that from then on (4-1): [`Stage`].

mod coming;
mod early;
mod entering;
mod file;
mod giving;
mod going;
mod going_ahead;
mod looks;
mod memory;
mod monitor;
mod outbox;
mod pace;
mod pager;
mod qemu;
mod run;
mod share;
mod shared;
mod step;
mod stream;

pub use coming::{Coming, stage};
pub use file::{GuestMemory, Took};
pub use memory::Memory;
pub use pager::{Budget, Done, Fault, Order, Pager, PagerError, Sub};
pub use qemu::Qemu;
pub use run::{Reread, Servers, Sockets, Terms, run};
pub use shared::{FilePager, Home, Server, Stage};
