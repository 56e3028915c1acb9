// SPDX-License-Identifier: Apache-2.0
//! Mint's daemon. One on every node; all are equal.
//!
//! ```text
//!   unix socket ─┐                       ┌─ state driver (thread): Nodes, journal
//!   mTLS, mint0 ─┴─ server ── handlers ──┤
//!                                        └─ reads: /dev/mint, sysfs (any thread)
//!   events: /dev/mint ─ watcher ─ log (/run/mint/events.jsonl) ─ subscribers
//! ```
//! The state driver alone changes the ledger; handlers queue and wait. What
//! takes long and changes nothing (a started node's boot, a stopping node's
//! end) is waited for in the handlers, so that others go on.

mod app;
mod apply;
mod description;
mod driver;
mod events;
mod facts;
mod health;
mod identity;
mod instance;
mod lines;
mod loads;
mod metrics;
mod network;
mod node0;
mod operations;
mod peers;
mod pki;
mod restart;
mod run;
mod server;
mod ssh;
mod streams;
mod views;
mod vmcore;

pub use run::{Options, RunError, run};

#[cfg(test)]
mod tests;
