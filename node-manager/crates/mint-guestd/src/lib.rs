// SPDX-License-Identifier: Apache-2.0
//! Mint's daemon for guests. One on every node, beside `mintd`; the only process that links
//! libvirt. It never opens `/dev/mint`.
//!
//! ```text
//!   mintctl ── mintd ──/run/mint/guestd.sock── routes ─┬─ /v1/local/vms…: this node's libvirt
//!                ▲                                     └─ /v1/vms…: all nodes', through mintd
//!                └──────── other nodes' guests ────────┘
//! ```
//! Who may ask is mintd's matter: the socket is root's. libvirt's library blocks, so each call
//! of it has a thread of its own.

mod app;
mod arrivals;
mod auto;
mod breaks;
mod checks;
mod console;
mod copies;
mod evacuate;
mod facts;
mod gate;
mod given_up;
mod held;
mod hosts;
mod hypervisor;
mod image;
mod import;
mod journal;
mod layout;
mod leases;
mod libvirt;
mod memory;
mod merge;
mod migrate;
mod mirrors;
mod moves;
mod own;
mod pagers;
mod pins;
mod plans;
mod progress;
mod rewrite;
mod routes;
mod run;
mod servers;
mod settle;
mod shows;
mod split;
mod step;
mod tend;
mod vacate;
mod wide;
mod wire;

pub use run::{Options, RunError, run};

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
