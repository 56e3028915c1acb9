// SPDX-License-Identifier: Apache-2.0
//! Steps in words. A node of 64 GiB has 512 blocks of memory: neighbours are
//! told as one.

use mint_types::{Kind, ResourceKey, Step, format_bytes};

use crate::inventory::Inventory;

/// All steps in words, runs of memory blocks as one.
pub fn describe(steps: &[Step], inventory: &Inventory) -> Vec<String> {
    let mut told = Vec::new();
    let mut rest = steps;
    while let Some(first) = rest.first() {
        let count = 1 + rest.windows(2).take_while(|pair| follows(&pair[0], &pair[1])).count();
        told.push(match memory(first) {
            Some(_) => memory_text(first, count, inventory),
            None => first.to_string(),
        });
        rest = &rest[count..];
    }
    told
}

/// The memory block that a step moves.
fn memory(step: &Step) -> Option<ResourceKey> {
    match step {
        Step::Claim { key, .. } | Step::Release { key, .. } if key.kind == Kind::Memory => {
            Some(*key)
        }
        _ => None,
    }
}

/// Whether the second step does to the next block what the first did to its own.
fn follows(first: &Step, second: &Step) -> bool {
    alike(first, second)
        && memory(first).zip(memory(second)).is_some_and(|(one, two)| one.id + 1 == two.id)
}

/// Whether both move memory in the same way.
fn alike(first: &Step, second: &Step) -> bool {
    match (first, second) {
        (Step::Claim { key: a, node: x, .. }, Step::Claim { key: b, node: y, .. })
        | (Step::Release { key: a, node: x, .. }, Step::Release { key: b, node: y, .. }) => {
            x == y && a.kind == Kind::Memory && b.kind == Kind::Memory
        }
        _ => false,
    }
}

fn memory_text(first: &Step, count: usize, inventory: &Inventory) -> String {
    let bytes = inventory.info.mem_block_bytes.saturating_mul(count as u64);
    let phys = memory(first)
        .and_then(|key| inventory.find(key))
        .map_or(String::new(), |block| format!(" at {:#x}", block.phys));
    let size = format_bytes(bytes);
    match first {
        Step::Release { node, .. } => format!("release memory {size}{phys} from node {node}"),
        Step::Claim { node, .. } => format!("claim memory {size}{phys} for node {node}"),
        other => other.to_string(),
    }
}

/// What to tell before the step of that index is done; nothing when it goes on with
/// memory, as the step before did.
pub fn progress(steps: &[Step], index: usize) -> Option<String> {
    let step = steps.get(index)?;
    let goes_on = index > 0 && alike(&steps[index - 1], step);
    match step {
        _ if goes_on => None,
        Step::Claim { node, .. } if memory(step).is_some() => {
            Some(format!("claim memory for node {node}"))
        }
        Step::Release { node, .. } if memory(step).is_some() => {
            Some(format!("release memory from node {node}"))
        }
        other => Some(other.to_string()),
    }
}
