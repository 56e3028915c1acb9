// SPDX-License-Identifier: Apache-2.0
//! Guests make way for cores and memory that this node is about to lose: those that use the cores
//! get others of this node, and only for memory that is short some go to other nodes, the largest
//! first. If that is not enough, nothing is done.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, Line, VmPins};
use mint_guests::domain::Domain;
use mint_guests::repin::{Pinned, Repin, repin};
use mint_guests::room::{Held, Shortage};
use mint_guests::split::Split;
use mint_serve::lines::Lines;
use mint_types::{Refusal, RefusalCode, Taken, format_bytes};
use serde_json::json;

use crate::app::App;
use crate::evacuate::{Places, Search, running};
use crate::hypervisor::Leaving;
use crate::pins;

/// Who goes where, and who gets which CPUs.
#[derive(Debug)]
pub(crate) struct Way {
    places: Places,
    pins: Vec<VmPins>,
}

/// Looks for it. Changes nothing.
///
/// # Errors
/// When memory would be short whoever goes: with the reasons of every node against each guest
/// that has no place.
pub(crate) async fn way(app: &Arc<App>, taken: &Taken) -> Result<Way, ErrorBody> {
    let mut search = Search::begin(app).await?;
    if taken.node != search.here.id {
        let text = format!("bad request: what node {} loses is not ours", taken.node);
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    let mut guests = Vec::new();
    for guest in running(app).await? {
        let call = move |hypervisor: &dyn crate::hypervisor::Hypervisor| {
            Ok((hypervisor.leaving(&guest.uuid)?, hypervisor.resident_bytes(&guest.uuid)?))
        };
        let (leaving, resident_bytes) = app.ask(call).await?;
        guests.push((held(&leaving, resident_bytes)?, leaving));
    }
    let all: Vec<Held> = guests.iter().map(|(held, _)| *held).collect();
    let mut short = Shortage::of(&all, app.host.free_memory_bytes(), taken.memory_bytes);
    let (mut going, mut staying, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    for (held, leaving) in guests {
        if short.bytes() == 0 {
            staying.push(leaving);
            continue;
        }
        match search.place(app, leaving.clone()).await? {
            Ok(node) => {
                short = short.without(&held);
                going.push((leaving.guest.uuid, leaving.guest.name, node));
            }
            Err(why) => {
                refusals.extend(why);
                staying.push(leaving);
            }
        }
    }
    if short.bytes() > 0 {
        refusals.insert(0, too_little(&search.here.name, short, &staying));
        return Err(ErrorBody::refused(refusals));
    }
    let pins = repins(app, taken, staying)?;
    Ok(Way { places: Places { here: search.here, all: going }, pins })
}

fn held(leaving: &Leaving, resident_bytes: u64) -> Result<Held, ErrorBody> {
    let domain = Domain::parse(&leaving.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let split = Split::of_domain(&leaving.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let memory_bytes = match split {
        // the rest is on other nodes
        Some(split) => split.main_bytes,
        // huge pages are set aside, and no part of what is free
        None if domain.has_huge_pages => 0,
        None => domain.memory_bytes,
    };
    Ok(Held { memory_bytes, resident_bytes })
}

fn too_little(here: &str, short: Shortage, staying: &[Leaving]) -> Refusal {
    let names: Vec<&str> = staying.iter().map(|guest| guest.guest.name.as_str()).collect();
    let bytes = format_bytes(short.bytes());
    let text = match names.as_slice() {
        [] => format!("{here} would lack {bytes} of memory also without its guests"),
        names => format!(
            "{here} would lack {bytes} of memory for vm {}, which no other node can have",
            names.join(", vm ")
        ),
    };
    Refusal::new(RefusalCode::MemoryShort, format_args!("memory of node {here}"), text)
        .owned_by(here)
        .hint("take less, or end a guest")
}

fn repins(app: &App, taken: &Taken, staying: Vec<Leaving>) -> Result<Vec<VmPins>, ErrorBody> {
    let pinned = |Leaving { guest, xml, persistent_xml, .. }| Pinned {
        name: guest.name,
        uuid: guest.uuid,
        xml,
        persistent_xml,
    };
    let staying: Vec<Pinned> = staying.into_iter().map(pinned).collect();
    let going = app.host.cpus_of(&taken.apic_ids);
    let repins = repin(&staying, &app.host.online_cpus(), &going)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let view = |Repin { name, uuid, changes }| VmPins { name, uuid, changes };
    Ok(repins.into_iter().map(view).collect())
}

impl Way {
    /// Goes it, and says how that went.
    pub async fn go(self, app: Arc<App>, request: EvacuateRequest, lines: Lines) {
        let result = self.gone(&app, &request, &lines).await;
        lines.send(&result.map_or_else(Line::Error, |done| Line::Result(json!(done)))).await;
    }

    /// Guests go first: that takes long and may fail, and other CPUs are given in a moment.
    async fn gone(
        self,
        app: &Arc<App>,
        request: &EvacuateRequest,
        lines: &Lines,
    ) -> Result<EvacuateResult, ErrorBody> {
        let vms = self.places.moved(app, request, lines).await?;
        if !request.dry_run {
            for VmPins { name, changes, .. } in &self.pins {
                for change in changes {
                    lines.send(&Line::Progress(format!("vm {name}: {change}"))).await;
                }
            }
            pins::change(app, &self.pins).await.map_err(|error| {
                let gone: Vec<String> =
                    vms.iter().map(|vm| format!("vm {} is on node {}", vm.name, vm.to)).collect();
                if gone.is_empty() { error } else { error.hint(gone.join(", ")) }
            })?;
        }
        Ok(EvacuateResult { node: self.places.here.id, vms, repinned: self.pins, kept: Vec::new() })
    }
}
