// SPDX-License-Identifier: Apache-2.0
//! What a node's kernel and guests use. Counters since its boot: two samples give
//! rates, whatever the time between them.

use serde::{Deserialize, Serialize};

/// Use of a node, as its own kernel counts it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// Since its boot, milliseconds.
    pub uptime_ms: u64,
    /// Time that its cores did something, added up, milliseconds.
    pub cpu_busy_ms: u64,
    /// Time that its cores had nothing to do, added up, milliseconds.
    pub cpu_idle_ms: u64,
    /// Memory that its kernel manages.
    pub memory_bytes: u64,
    /// Memory that programs could have without swapping.
    pub memory_available_bytes: u64,
    /// Interrupts of all kinds that its cores took.
    pub interrupts: u64,
    /// Its KVM guests, by name.
    pub guests: Vec<GuestLoad>,
}

/// Use of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuestLoad {
    /// Its name.
    pub name: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Memory of the host that it has now.
    pub memory_bytes: u64,
    /// Time that its QEMU ran, all threads added up, milliseconds.
    pub cpu_ms: u64,
}
