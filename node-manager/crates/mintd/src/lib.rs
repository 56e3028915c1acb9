// SPDX-License-Identifier: Apache-2.0
//! Mint's daemon. One on every node; all are equal.
//!
//! ```text
//!   unix socket ─┐                       ┌─ operations: Nodes, journal, locks (threads)
//!   mTLS, mint0 ─┴─ server ── handlers ──┼─ steps for peers: one lock each, nobody waits
//!                                        └─ reads: /dev/mint, sysfs (any thread)
//!   events: /dev/mint ─ watcher ─ log (/run/mint/events.jsonl) ─ subscribers
//! ```
//! Operations run beside each other, each with a lock on all that it changes (`mint-ops`);
//! a client that hangs up ends none. What takes long and changes nothing (a started
//! node's boot, a stopping node's end) is waited for without a lock.

mod app;
mod apply;
mod audit;
mod caller;
mod changes;
mod description;
mod doctor;
mod ending;
mod events;
mod facts;
mod gate;
mod guestd;
mod guests;
mod handlers;
mod heal;
mod health;
mod heartbeats;
mod identity;
mod instance;
mod intents;
mod interrupted;
mod keeps;
mod layout_metrics;
mod libvirt_tls;
mod links;
mod loads;
mod marks;
mod metrics;
mod move_metrics;
mod moves;
mod network;
mod node0;
mod nodes;
mod openapi;
mod operate;
mod peer_clients;
mod pki;
mod request;
mod resolve;
mod restart;
mod routes;
mod run;
mod run_error;
mod server;
mod settle;
mod ssh;
mod streams;
mod takeover;
mod views;
mod vmcore;
mod waiting;

pub use run::{Options, run};
pub use run_error::RunError;

#[cfg(test)]
mod tests;
