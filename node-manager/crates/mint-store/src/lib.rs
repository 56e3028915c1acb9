// SPDX-License-Identifier: Apache-2.0
//! `mint-store`, a node's memory server (S-memV, 4-2): it keeps pages of guests that other hosts
//! run, and gives them back.
//!
//! It may die at any time: what it keeps lies in a tmpfs, where its successor finds it. It does
//! what the main host of a guest says that knows the guest's secret; nobody else gets a page.

mod api;
mod guests;
mod kept;
mod mirror;
mod mirrored;
mod serve;
mod step;

pub use api::router;
pub use guests::{Guest, Guests, LeaseError, Session};
pub use kept::{KeepError, Kept};
pub use serve::{Ended, answers, serve};
