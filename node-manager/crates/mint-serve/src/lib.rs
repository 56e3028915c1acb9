// SPDX-License-Identifier: Apache-2.0
//! What Mint's daemons serve their interfaces with: a private socket, errors as answers,
//! one daemon of a kind, answers that grow line by line, answers passed on from another daemon, and connections that
//! carry frames.

mod failure;
mod frames;
pub mod lines;
mod listen;
mod lock;
mod pass;

pub use failure::Failure;
pub use frames::upgraded;
pub use listen::{ListenError, listen, serve};
pub use lock::{LockError, lock};
pub use pass::pass_on;
