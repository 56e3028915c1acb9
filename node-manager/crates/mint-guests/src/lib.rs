// SPDX-License-Identifier: Apache-2.0
//! KVM and libvirt on one node: what the node is, what libvirt is told of it, what a guest
//! may have of it.
//!
//! ```text
//!   /proc, /sys, kvm.toml --facts--> Description --guest--> Guest --xml--> domain XML
//!                                        |   \--xml--> pool, network
//!                                        |--bridge, ethernet, vxlan--> steps for ip
//!                                        \--dhcp--> dnsmasq.conf
//! ```
//! `cpus`, `description`, `settings`, `guest`, `xml`, `bridge`, `ethernet`, `dhcp`, `seed`, `arrival`,
//! `landing`, `pins`, `prepare`, `repin`, `residents`, `room` and `split` are pure. `facts`, `numa`, `running`, `vcpus`
//! and `cpu_events` read the node's files below a root that tests choose; `tools` runs programs and `counters` counts
//! what vCPUs do, each behind a trait. `setup` and `demo_guest` are what the two commands do with all of it.

pub mod arrival;
pub mod bridge;
pub mod cli;
pub mod counters;
pub mod cpu_events;
pub mod cpus;
pub mod demo_guest;
pub mod description;
pub mod dhcp;
pub mod domain;
pub mod ethernet;
pub mod facts;
pub mod failure;
pub mod guest;
pub mod hook;
pub mod landing;
pub mod marks;
pub mod numa;
pub mod pins;
pub mod prepare;
pub mod repin;
pub mod residents;
pub mod room;
pub mod running;
pub mod seed;
pub mod settings;
pub mod setup;
pub mod split;
pub mod tools;
pub mod vcpus;
pub mod vxlan;
pub mod xml;

pub use description::Description;
pub use failure::Failure;
pub use guest::{Guest, GuestRequest};
