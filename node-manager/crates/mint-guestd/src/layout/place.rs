// SPDX-License-Identifier: Apache-2.0
//! A guest that may come is given a place in its plan (L, 4.3). Changes nothing.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode};
use mint_guests::arrival::{LayoutWish, OVERHEAD_BYTES, Placement, Plan};
use mint_guests::domain::Domain;
use mint_guests::pins::keep_to;
use mint_layout::{Landing, LandingError, Limits, Topology, land, policy};
use mint_types::{CpuSet, Refusal, RefusalCode, format_bytes};

use super::host::Host;
use crate::app::App;

/// Puts a guest's place into its plan.
///
/// # Errors
/// When there is none, or what its host says of it makes no sense.
pub(crate) async fn place(
    app: &Arc<App>,
    wish: LayoutWish,
    plan: &mut Plan,
) -> Result<(), ErrorBody> {
    let bad = |error: &dyn std::error::Error| ErrorBody::from_error(ErrorCode::BadRequest, error);
    wish.profile.check().map_err(|error| bad(&error))?;
    let domain = Domain::parse(&plan.xml).map_err(|error| bad(&error))?;
    let allowed = allowed(domain, wish.profile.vcpus.len());
    let policy = wish.policy;
    let found = find(app, wish, allowed).await?.map_err(|error| refused(&plan.name, &error))?;
    let (_, landing) = found;
    plan.xml = keep_to(&plan.xml, &landing.pins).map_err(|error| bad(&error))?;
    plan.changes.extend(words(&landing));
    plan.layout = Some(Placement {
        policy,
        pins: landing.pins,
        binds: landing.binds,
        evictions: landing.evictions,
        gain: landing.plan.gain,
    });
    Ok(())
}

/// CPUs that a guest's owner keeps each of so many vCPUs to; none: any.
pub(super) fn allowed(domain: Domain, vcpus: usize) -> Vec<CpuSet> {
    let mut allowed = vec![CpuSet::default(); vcpus];
    for pin in domain.vcpu_pins {
        if let Some(own) = usize::try_from(pin.vcpu).ok().and_then(|at| allowed.get_mut(at)) {
            *own = pin.cpus;
        }
    }
    allowed
}

/// Finds it, among guests that run and those that have a place already.
pub(super) async fn find(
    app: &Arc<App>,
    wish: LayoutWish,
    allowed: Vec<CpuSet>,
) -> Result<Result<(Host, Landing), LandingError>, ErrorBody> {
    let asked = app.clone();
    let found = app.call(move |_| {
        Ok(Host::look(&asked).map(|host| {
            let mut others = host.snapshot();
            let running: Vec<_> = others.guests.iter().map(|guest| guest.id.clone()).collect();
            let coming = asked.layouts.places.guests(&host.topology).into_iter();
            others.guests.extend(coming.filter(|guest| !running.contains(&guest.id)));
            let mut policy = policy(wish.policy);
            let (topology, limits) = (&with_room(&asked, &host.topology), Limits::default());
            let landing = land(&mut *policy, topology, &others, &wish.profile, &allowed, &limits);
            landing.map(|mut landing| {
                free_of_all(&mut landing.pins, &host.topology);
                (host, landing)
            })
        }))
    });
    found.await?
}

/// A vCPU that may have all CPUs that there are is kept to none: there may be more of them tomorrow.
pub(super) fn free_of_all(pins: &mut [CpuSet], topology: &Topology) {
    let all: CpuSet = topology.domains().iter().flat_map(|domain| domain.cpus.iter()).collect();
    for cpus in pins.iter_mut().filter(|cpus| **cpus == all) {
        *cpus = CpuSet::default();
    }
}

/// The host without what QEMUs need beside their guests' memory, of any NUMA node: of one guest more than is to come.
pub(super) fn with_room(app: &App, topology: &Topology) -> Topology {
    topology.without(OVERHEAD_BYTES * (1 + app.layouts.places.count() as u64))
}

fn refused(name: &str, error: &LandingError) -> ErrorBody {
    let (code, hint) = match error {
        LandingError::NoRoom { .. } => {
            (RefusalCode::MemoryShort, "move a guest away first, or give the node more memory")
        }
        LandingError::Policy(_) => (
            RefusalCode::SignalAbsent,
            "wait some seconds, or move it without a layout: --layout none",
        ),
    };
    let text = format!("vm {name} gets no place: {error}");
    ErrorBody::refused(vec![Refusal::new(code, format_args!("vm {name}"), text).hint(hint)])
}

/// For people.
fn words(landing: &Landing) -> Vec<String> {
    let each = landing.pins.iter().enumerate().filter(|(_, cpus)| !cpus.is_empty());
    let mut lines: Vec<String> =
        each.map(|(vcpu, cpus)| format!("vCPU {vcpu}: kept to CPUs {cpus}")).collect();
    let mut there = std::collections::BTreeMap::new();
    for bind in &landing.binds {
        *there.entry(bind.numa).or_insert(0) += bind.bytes;
    }
    let there = there.iter().map(|(numa, bytes)| format!("{} on {numa}", format_bytes(*bytes)));
    lines.push(format!("memory: {}", there.collect::<Vec<_>>().join(", ")));
    let evicted: u64 = landing.evictions.iter().map(|one| one.bytes).sum();
    if evicted > 0 {
        lines.push(format!("{} of other guests go to other NUMA nodes", format_bytes(evicted)));
    }
    lines
}
