// SPDX-License-Identifier: Apache-2.0
//! What the steps of a plan take from nodes that run.

use std::collections::BTreeMap;

use mint_types::{Kind, NodeId, ResourceKey, Step, Taken};

use crate::inventory::Inventory;

/// Cores and memory that nodes which run lose by these steps, by node. Memory that one gets by
/// them is set against what it loses.
pub fn taken(steps: &[Step], inventory: &Inventory) -> Vec<Taken> {
    let mut all: BTreeMap<NodeId, (Vec<u32>, usize, usize)> = BTreeMap::new();
    for step in steps {
        let (key, node, goes): (&ResourceKey, _, _) = match step {
            Step::Release { key, node, .. } => (key, *node, true),
            Step::Claim { key, node, .. } => (key, *node, false),
            Step::Create { .. } | Step::Destroy { .. } => continue,
        };
        if !inventory.is_live(node) {
            continue;
        }
        let (apic_ids, gone, come) = all.entry(node).or_default();
        match (key.kind, goes) {
            (Kind::Cpu, true) => apic_ids.extend(inventory.find(*key).map(|core| core.hw_id)),
            (Kind::Memory, true) => *gone += 1,
            (Kind::Memory, false) => *come += 1,
            (Kind::Cpu, false) | (Kind::Device, _) => {}
        }
    }
    let block_bytes = inventory.info.mem_block_bytes;
    let loses = all.into_iter().map(|(node, (apic_ids, gone, come))| Taken {
        node,
        apic_ids,
        memory_bytes: (gone.saturating_sub(come) as u64).saturating_mul(block_bytes),
    });
    loses.filter(|taken| !taken.apic_ids.is_empty() || taken.memory_bytes > 0).collect()
}
