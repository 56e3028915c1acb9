// SPDX-License-Identifier: Apache-2.0
//! Which memory blocks a new node gets.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use mint_types::{
    Kind, MemoryRequest, NodeId, NodeSpec, Refusal, RefusalCode, ResState, Resource, ResourceKey,
    format_bytes,
};

use crate::planner::{Draft, Planner};

impl Planner<'_> {
    /// Steps for all requests of the description, or refusals.
    pub(crate) fn memory(&self, draft: &mut Draft, spec: &NodeSpec, cpus: &[u32]) {
        if spec.memory.is_empty() {
            draft.refusals.push(
                Refusal::new(RefusalCode::MemoryShort, "memory", "a node needs memory")
                    .hint("give --memory 1G or --memory 1G@numa1"),
            );
        }
        self.take_memory(draft, &spec.memory, spec.numa, cpus);
    }

    /// Steps that bring so much memory to the node; `numa` is the place of
    /// requests without one, and without both it is near those cores.
    pub(crate) fn take_memory(
        &self,
        draft: &mut Draft,
        requests: &[MemoryRequest],
        numa: Option<u32>,
        cpus: &[u32],
    ) {
        let block = self.inventory.info.mem_block_bytes;
        let mut taken: BTreeSet<u32> = BTreeSet::new();
        for request in requests {
            let numa = request.numa.or(numa);
            if let Some(numa) = numa.filter(|&numa| numa >= self.inventory.info.numa_nodes) {
                draft.refusals.push(
                    Refusal::new(
                        RefusalCode::MemoryAbsent,
                        format_args!("memory of numa{numa}"),
                        format_args!(
                            "numa{numa} does not exist: this machine has numa0 to numa{}",
                            self.inventory.info.numa_nodes.saturating_sub(1)
                        ),
                    )
                    .hint("see mintctl memory list"),
                );
                continue;
            }
            let Ok(count) = usize::try_from(request.bytes.div_ceil(block)) else { continue };
            draft.notes.extend(self.rounding("", request.bytes, count));
            let numas: Vec<u32> = match numa {
                Some(numa) => vec![numa],
                None => self.numas_near(cpus),
            };
            self.memory_request(draft, *request, count, &numas, &mut taken);
        }
    }

    /// That `sign` (`-` for less) so many bytes became `count` whole blocks; none if
    /// that is the same.
    pub(crate) fn rounding(&self, sign: &str, bytes: u64, count: usize) -> Option<String> {
        let block = self.inventory.info.mem_block_bytes;
        let got = (count as u64).saturating_mul(block);
        let way = match got.cmp(&bytes) {
            Ordering::Equal => return None,
            Ordering::Greater => "up",
            Ordering::Less => "down",
        };
        let [asked, got, block] = [bytes, got, block].map(format_bytes);
        Some(format!("memory {sign}{asked} is rounded {way} to {got} (blocks of {block})"))
    }

    /// NUMA nodes of the chosen cores first, then the others.
    fn numas_near(&self, cpus: &[u32]) -> Vec<u32> {
        let mut near: Vec<u32> = cpus
            .iter()
            .filter_map(|&cpu| self.inventory.find(ResourceKey::cpu(cpu))?.numa)
            .collect();
        near.extend(0..self.inventory.info.numa_nodes.max(1));
        let mut seen = BTreeSet::new();
        near.retain(|&numa| seen.insert(numa));
        near
    }

    fn memory_request(
        &self,
        draft: &mut Draft,
        request: MemoryRequest,
        count: usize,
        numas: &[u32],
        taken: &mut BTreeSet<u32>,
    ) {
        let on = |numa: u32| {
            self.inventory.memory.iter().filter(move |block| block.numa.unwrap_or(0) == numa)
        };
        let mut chosen: Vec<&Resource> = Vec::new();
        for &numa in numas {
            let free: Vec<&Resource> = on(numa)
                .filter(|block| block.state == ResState::Free && !taken.contains(&block.key.id))
                .collect();
            chosen.extend(choose_blocks(&free, count - chosen.len()));
        }
        for &numa in numas {
            if chosen.len() == count {
                break;
            }
            // of a donor that runs only if it was named: its kernel gives memory up
            // block by block, and cannot say before whether it will
            let is_giver = |owner: NodeId| {
                draft.donors.contains(&owner)
                    && (draft.from_running.contains(&owner) || !self.inventory.is_live(owner))
            };
            let owned: Vec<&Resource> = on(numa)
                .filter(|block| block.state == ResState::Owned && !taken.contains(&block.key.id))
                .filter(|block| block.owner.is_some_and(is_giver))
                .collect();
            chosen.extend(self.likely_to_go(&owned, count - chosen.len()));
        }
        if chosen.len() < count {
            draft.refusals.push(self.memory_short(request, count, chosen.len(), numas));
            return;
        }
        chosen.sort_by_key(|block| block.key.id);
        for block in chosen {
            taken.insert(block.key.id);
            self.take(draft, block, None);
        }
    }

    fn memory_short(
        &self,
        request: MemoryRequest,
        count: usize,
        found: usize,
        numas: &[u32],
    ) -> Refusal {
        let block = self.inventory.info.mem_block_bytes;
        let bytes = |blocks: usize| format_bytes((blocks as u64).saturating_mul(block));
        let owners: Vec<String> = self
            .inventory
            .nodes
            .iter()
            .filter_map(|node| {
                let owned = self
                    .inventory
                    .owned(node.id, Kind::Memory)
                    .filter(|block| numas.contains(&block.numa.unwrap_or(0)))
                    .count();
                (owned > 0).then(|| format!("{} {}", node.label(), bytes(owned)))
            })
            .collect();
        let place = match numas {
            [numa] => format!(" on numa{numa}"),
            _ => String::new(),
        };
        Refusal::new(
            RefusalCode::MemoryShort,
            format_args!("memory {request}"),
            format_args!(
                "{} wanted{place}, {} free or can be released there",
                bytes(count),
                if found == 0 { "none is".to_owned() } else { format!("{} is", bytes(found)) },
            ),
        )
        .owned_by(owners.join(", "))
        .hint("ask for less or elsewhere (mintctl memory list), remove a node, let running nodes give some (--from NODE), or boot node 0 with a larger pool (mem= of the mint= option)")
    }
}

/// `count` of the free blocks, or all if there are fewer: the shortest run of
/// neighbours that is long enough, else the longest runs.
pub fn choose_blocks<'a>(free: &[&'a Resource], count: usize) -> Vec<&'a Resource> {
    let mut runs: Vec<Vec<&'a Resource>> = Vec::new();
    for &block in free {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.key.id + 1 == block.key.id) => {
                run.push(block);
            }
            _ => runs.push(vec![block]),
        }
    }
    runs.sort_by_key(Vec::len);
    if let Some(run) = runs.iter().find(|run| run.len() >= count) {
        return run[..count].to_vec();
    }
    runs.into_iter().rev().flatten().take(count).collect()
}
