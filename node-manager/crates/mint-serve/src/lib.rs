// SPDX-License-Identifier: Apache-2.0
//! What Mint's daemons serve their interfaces with: a private socket, errors as answers,
//! answers that grow line by line, and answers passed on from another daemon.

mod failure;
pub mod lines;
mod listen;
mod pass;

pub use failure::Failure;
pub use listen::{ListenError, listen};
pub use pass::pass_on;
