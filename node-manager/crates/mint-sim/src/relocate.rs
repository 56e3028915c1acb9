// SPDX-License-Identifier: Apache-2.0
//! A plan that is being carried out.

use mint_layout::{Plan, Snapshot, Topology};

/// A snapshot when so many bytes of a plan have been relocated, in the plan's order, and all vCPUs have their CPUs. A
/// region that has gone in part counts by its parts.
pub fn so_far(plan: &Plan, bytes: u64, snapshot: &Snapshot, topology: &Topology) -> Snapshot {
    let mut left = bytes;
    let mut gone = Vec::new();
    for one in &plan.relocations {
        let now = one.bytes.min(left);
        left -= now;
        if now > 0 {
            let mut part = one.clone();
            part.bytes = now;
            gone.push(part);
        }
    }
    Plan { relocations: gone, ..plan.clone() }.done(snapshot, topology)
}

#[cfg(test)]
#[path = "tests/relocate.rs"]
mod tests;
