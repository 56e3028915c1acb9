// SPDX-License-Identifier: Apache-2.0
//! Safe facade over the kernel's interface: `/dev/mint`, `/dev/mint-memory`, userfaultfd, memory policies, perf events and
//! `kexec_file_load(2)`. The only crate with `unsafe`.
//!
//! Everything read from the kernel is an allegation until it is checked: a
//! number that is no valid state, node or kind becomes an error, not a panic.
//! No threads and no locks; a [`Device`] may be used from several threads, as
//! the kernel serialises what has to be.

mod bound;
mod convert;
mod deadline;
mod device;
mod error;
mod faults;
mod inherit;
mod intent;
mod kexec;
mod memfd;
mod memory;
mod mempolicy;
mod perf;
mod process;
mod reboot;
mod shared;
pub mod uapi;
mod written;

pub use bound::{BoundMemory, run_on};
pub use device::{ConsoleChunk, Device, Event, KillReport};
pub use error::{MoveFailure, SysError, errno_name};
pub use faults::{Faults, MemoryEvent, Watch};
pub use inherit::inherited;
pub use intent::{IntentContent, IntentHolder, IntentLimits, IntentSlot};
pub use kexec::{load_node_image, unload_node_image};
pub use memfd::{sealed_copy, sealed_file};
pub use memory::{ACCESSED_MAX, MEMORY_DEVICE, MemoryDevice, TAKE_MAX};
pub use mempolicy::{PageAt, prefer, relocate_pages, where_pages_are};
pub use perf::{PerfCounts, PerfEvent, PerfGroup, PerfScope};
pub use process::kill_process_group;
pub use reboot::leave_machine;
pub use shared::{Plain, shared_words};
pub use written::Written;
