// SPDX-License-Identifier: Apache-2.0
//! What this node's own kernel says, in `/proc` and `/sys`: drivers and users of devices,
//! what is in a memory block, what is used. [`Host`] is all that others see of it.

mod host;
mod load;
mod pages;
mod tree;

pub use host::{Host, SysHost};
