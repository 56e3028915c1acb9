// SPDX-License-Identifier: Apache-2.0
//! Operations: typed, persistent, cancelled or carried out, taken back or finished after
//! the death of whoever carried them out. No HTTP, no kernel.
//!
//! ```text
//!   submit ─▶ queued ─take locks─▶ running ─begin(intent)─ steps ─commit─▶ done
//!                │                    │          │            │
//!              cancel               cancel    point of     a daemon that finds it open
//!                ▼                    ▼       no return    finishes it after that point,
//!            cancelled        taken back                   takes it back before
//! ```
//! [`Operations`] owns every entry and every lock; nothing else writes either. Who
//! carries an operation out has an [`Op`]; who only wants to know follows it.

mod area;
mod entry;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(any(test, feature = "fake"))]
pub mod fake_area;
mod follow;
mod intents;
mod locks;
mod op;
mod operations;
mod record;
mod shared;
mod slot;
mod store;
mod taken;

pub use area::{Area, Content, Holder, NoRoom, Place, Seen, Took};
pub use entry::{Entry, FORMAT, Intent, Origin, PROGRESS_KEPT, Unreadable, decode, encode};
pub use follow::{Follower, News};
pub use locks::{Held, Lock};
pub use op::{Cancelled, End, Locks, Op};
pub use operations::{CancelError, Operations, Request, SubmitError};
pub use record::decode_record;
pub use store::{BadEntry, Folder, JournalError, Kept, Store};
pub use taken::{Elsewhere, TakenOver};

#[cfg(test)]
mod tests;
