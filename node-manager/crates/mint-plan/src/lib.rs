// SPDX-License-Identifier: Apache-2.0
//! From facts to a plan, or to every reason why not. Nothing here touches anything: what a
//! plan asks beyond the ledger, [`Facts`] answers.

mod describe;
mod facts;
mod inventory;
mod memory;
mod planner;
mod refusals;
mod resize;
mod taken;

pub use describe::{describe, progress};
pub use facts::Facts;
pub use inventory::Inventory;
pub use memory::choose_blocks;
pub use planner::Planner;
pub use refusals::{being_moved, boot_core, busy, not_movable};
pub use taken::taken;
