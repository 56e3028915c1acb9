// SPDX-License-Identifier: Apache-2.0
//! The pager of one guest: what the main host of S-memV does (4-5).
//!
//! The guest's memory is a file of which parts are holes. Who touches a hole waits until the
//! pager has filled it: with zeros, or with the page that a memory server keeps. What comes
//! makes something else go, so that the guest never has more than its budget and a chunk.

mod file;
mod memory;
mod pager;
mod run;
mod step;

pub use file::{GuestMemory, Took};
pub use memory::Memory;
pub use pager::{Budget, Done, Fault, Order, Pager, PagerError, Sub};
pub use run::{FilePager, Reread, Server, Servers, Sockets, run};
