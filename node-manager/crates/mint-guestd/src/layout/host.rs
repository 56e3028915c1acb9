// SPDX-License-Identifier: Apache-2.0
//! This node and its guests, as a layout policy sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode, NumaMeasured};
use mint_guests::arrival::{Departure, LayoutWish};
use mint_guests::domain::Domain;
use mint_guests::numa::{self, HostNuma};
use mint_guests::residents::{Piece, Resident, bytes_there};
use mint_guests::running::running;
use mint_guests::vcpus::{ram, threads};
use mint_layout::{Profile, Snapshot, Topology};
use mint_types::{LayoutPolicy, Refusal, RefusalCode};

use super::measured::{FILE, cpu_model, with_measured};
use crate::app::{App, no_guest};

/// What was read at a moment.
pub(super) struct Host {
    pub numa: Vec<HostNuma>,
    pub topology: Topology,
    /// What its distances and bandwidths are from, if it is not the kernel's table.
    pub measured: Option<NumaMeasured>,
    pub residents: Vec<(Resident, Vec<Piece>)>,
}

impl Host {
    /// Looks at all of it. Blocks.
    ///
    /// # Errors
    /// When the kernel's files do not make sense together.
    pub fn look(app: &App) -> Result<Self, ErrorBody> {
        let root = app.host.path("/");
        let mut residents = Vec::new();
        for running in running(&root) {
            let resident = resident(app, running);
            // one that ends meanwhile has none
            let pieces = resident.pieces(&*app.layouts.memory).unwrap_or_default();
            residents.push((resident, pieces));
        }
        let there = bytes_there(residents.iter().flat_map(|(_, pieces)| pieces));
        let numa = numa::read(&root);
        let topology = numa::topology(&numa, &there).map_err(|error| {
            ErrorBody::from_error(ErrorCode::Failed, &error)
                .hint("the files are /sys/devices/system/node/node*")
        })?;
        let cpu = cpu_model(&root);
        let host = (numa.as_slice(), cpu.as_str());
        let (topology, measured) =
            with_measured(&app.host.path(FILE), &app.layouts.told, host, topology);
        Ok(Self { numa, topology, measured, residents })
    }

    /// The guests that run.
    pub fn snapshot(&self) -> Snapshot {
        let guest =
            |(resident, pieces): &(Resident, Vec<Piece>)| resident.guest(&self.topology, pieces);
        Snapshot { guests: self.residents.iter().map(guest).collect() }
    }

    /// The guests, by their UUIDs.
    pub fn by_uuid(&self) -> BTreeMap<&str, &Resident> {
        let each = self.residents.iter().map(|(resident, _)| resident);
        each.map(|resident| (resident.running.uuid.as_str(), resident)).collect()
    }
}

pub(super) fn resident(app: &App, running: mint_guests::running::Running) -> Resident {
    let root = app.host.path("/");
    let threads = threads(&root, running.qemu);
    let samples = app.layouts.samples.of(&running.uuid, &threads);
    Resident { ram: ram(&root, running.qemu), threads, samples, running }
}

/// What the next host of a guest of this node is told, for it to have a place there before it comes (L, 4.2).
///
/// # Errors
/// When it does not run, or its memory cannot be given a place by parts.
pub(crate) async fn wish(
    app: &Arc<App>,
    uuid: &str,
    departure: &Departure,
    policy: LayoutPolicy,
) -> Result<LayoutWish, ErrorBody> {
    let domain = Domain::parse(&departure.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let name = &domain.name;
    let tied = |text: String| {
        let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {name}"), text)
            .hint("move it without a layout: --layout none");
        ErrorBody::refused(vec![refusal])
    };
    if departure.spread.as_ref().is_some_and(|spread| spread.main_bytes < domain.memory_bytes) {
        return Err(tied(format!("vm {name} has a part of its memory on other hosts")));
    }
    match measured(app, uuid).await? {
        None => Err(tied(format!("vm {name} does not run here, as libvirt's records say"))),
        Some((true, _)) => Err(tied(fixed(name))),
        Some((false, profile)) => Ok(LayoutWish { policy, profile }),
    }
}

fn fixed(name: &str) -> String {
    format!(
        "vm {name} has a device of its host, locked memory or huge pages: it gets no place by parts"
    )
}

/// What a guest of this node is like, for a node that it comes to by plain `virsh migrate`. libvirt is not asked: it may
/// wait for the answer.
///
/// # Errors
/// When it does not run here, or its memory cannot be given a place by parts.
pub(crate) async fn profile(app: &Arc<App>, uuid: &str) -> Result<Profile, ErrorBody> {
    match measured(app, uuid).await? {
        None => Err(no_guest(uuid, &format!("no guest {uuid} runs here"))),
        Some((true, _)) => {
            let text = fixed(uuid);
            let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {uuid}"), text)
                .hint("it comes without a place");
            Err(ErrorBody::refused(vec![refusal]))
        }
        Some((false, profile)) => Ok(profile),
    }
}

/// Whether the memory of a guest that runs here stays where it is, and what the guest is like; none of another one, and of
/// one that is about to come.
async fn measured(app: &Arc<App>, uuid: &str) -> Result<Option<(bool, Profile)>, ErrorBody> {
    let (asked, own) = (app.clone(), uuid.to_owned());
    app.call(move |_| {
        let all = running(&asked.host.path("/"));
        let running = all.into_iter().find(|one| one.uuid == own && !one.is_coming);
        Ok(running.map(|running| {
            let resident = resident(&asked, running);
            let pieces = resident.pieces(&*asked.layouts.memory).unwrap_or_default();
            (resident.running.is_fixed, resident.profile(&pieces))
        }))
    })
    .await
}
