// SPDX-License-Identifier: Apache-2.0
//! What users are told of guests on NUMA nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use mint_api::{
    ErrorBody, KeptBy, NodeLayout, NumaMemory, NumaView, VcpuLayout, VcpuSample, VmLayout,
};
use mint_guests::residents::{Piece, Resident, bytes_there};
use mint_layout::{Guest, NumaId, Ring, Topology, Vcpu};
use mint_types::{Refusal, RefusalCode};

use super::files::read;
use super::host::Host;
use super::kept::{FILE, Kept, Undo};
use crate::app::App;

/// All guests of this node that run.
///
/// # Errors
/// When mintd of this node does not answer, or the kernel's files make no sense.
pub(crate) async fn all(app: &Arc<App>) -> Result<NodeLayout, ErrorBody> {
    let here = app.here().await?;
    let asked = app.clone();
    let looked = app.call(move |_| {
        Ok(Host::look(&asked).map(|host| (host, read::<Kept>(&asked.host.path(FILE)))))
    });
    let (host, kept) = looked.await??;
    Ok(NodeLayout {
        node: here.id,
        node_name: here.name,
        numa: numas(&host),
        vms: host.residents.iter().map(|one| vm(one, &host.topology, &kept)).collect(),
        undo_from_s: kept.undo.filter(|undo| is_any_there(undo, &host)).map(|undo| undo.at_s),
        measured: host.measured,
    })
}

/// Whether a guest that was changed still runs as it did.
fn is_any_there(undo: &Undo, host: &Host) -> bool {
    let mut running = host.residents.iter().map(|(resident, _)| &resident.running);
    running.any(|one| undo.vms.iter().any(|was| was.uuid == one.uuid && was.qemu == one.qemu))
}

/// A guest of this node.
///
/// # Errors
/// When it does not run here, and as [`all`].
pub(crate) async fn one(app: &Arc<App>, reference: &str) -> Result<VmLayout, ErrorBody> {
    let vms = all(app).await?.vms;
    let mut found = vms.into_iter().filter(|vm| vm.uuid == reference || vm.name == reference);
    found.next().ok_or_else(|| {
        let text = format!("vm {reference} does not run on this node");
        let refusal = Refusal::new(RefusalCode::VmNotRunning, format_args!("vm {reference}"), text)
            .hint("mintctl vm list tells where guests are");
        ErrorBody::refused(vec![refusal])
    })
}

fn numas(host: &Host) -> Vec<NumaView> {
    let there = bytes_there(host.residents.iter().flat_map(|(_, pieces)| pieces));
    let each = host.numa.iter().zip(host.topology.nodes()).map(|(one, known)| NumaView {
        numa: one.id.0,
        caches: one.caches.clone(),
        free_bytes: one.free_bytes,
        guests_bytes: there.get(&one.id).copied().unwrap_or(0),
        distances: known.distances.clone(),
    });
    each.collect()
}

fn vm((resident, pieces): &(Resident, Vec<Piece>), topology: &Topology, kept: &Kept) -> VmLayout {
    let running = &resident.running;
    let guest = resident.guest(topology, pieces);
    let vcpus = resident.threads.iter().zip(&guest.vcpus).map(|(thread, vcpu)| {
        let has =
            |pins: &[mint_guests::domain::VcpuPin]| pins.iter().any(|pin| pin.vcpu == thread.vcpu);
        VcpuLayout {
            vcpu: thread.vcpu,
            cpu: thread.cpu,
            numa: numa_of(topology, vcpu).0,
            allowed: thread.allowed.clone(),
            kept_by: match (has(&running.pins), has(&running.marked)) {
                (true, _) => KeptBy::Owner,
                (false, true) => KeptBy::Layout,
                (false, false) => KeptBy::Nobody,
            },
            samples: samples(&vcpu.samples),
        }
    });
    let there = bytes_there(pieces);
    let reason = kept.reasons.get(&running.uuid).filter(|reason| reason.qemu == running.qemu);
    VmLayout {
        name: running.name.clone(),
        uuid: running.uuid.clone(),
        is_fixed: running.is_fixed,
        vcpus: vcpus.collect(),
        memory: there.iter().map(|(id, &bytes)| NumaMemory { numa: id.0, bytes }).collect(),
        near_bytes: near_bytes(topology, &guest, pieces),
        reason: reason.map(|reason| reason.reason.clone()),
    }
}

fn numa_of(topology: &Topology, vcpu: &Vcpu) -> NumaId {
    topology.id(topology.domains()[vcpu.domain.0].numa)
}

/// Memory of a guest on the NUMA nodes that its vCPUs run on.
pub(super) fn near_bytes(topology: &Topology, guest: &Guest, pieces: &[Piece]) -> u64 {
    let numas: BTreeSet<NumaId> = guest.vcpus.iter().map(|one| numa_of(topology, one)).collect();
    let there = bytes_there(pieces);
    there.iter().filter(|(numa, _)| numas.contains(numa)).map(|(_, bytes)| bytes).sum()
}

fn samples(ring: &Ring) -> Vec<VcpuSample> {
    let each = ring.iter().map(|sample| VcpuSample {
        span_ms: sample.span_ms,
        run_ms: sample.run_ms,
        instructions: sample.instructions,
        misses: sample.misses,
        fills: sample.fills.clone(),
    });
    each.collect()
}
