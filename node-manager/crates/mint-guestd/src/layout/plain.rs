// SPDX-License-Identifier: Apache-2.0
//! Guests that come by plain `virsh migrate`: nobody plans their arrival or writes it down. libvirt asks its hook on this
//! node, and waits: what the hook waits for asks this node's libvirt nothing.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, ErrorCode, vm_path};
use mint_guests::arrival::LayoutWish;
use mint_guests::domain::Domain;
use mint_guests::hook;
use mint_guests::landing::land;
use mint_guests::pins::keep_to;
use mint_guests::running::running;
use mint_layout::Profile;
use mint_types::LayoutPolicy;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::{info, warn};

use super::bring::{give_way, landed, make_way, place_of};
use super::host::Host;
use super::place::{allowed, find, free_of_all};
use super::places::{ByHook, Place};
use super::reasons::now_s;
use crate::app::{App, path_of};
use crate::journal::Side;

/// For the node that a guest comes from to be found, and to say what the guest is like.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The XML that a guest that is about to come gets here, with its place, for which room is made meanwhile; none: as without
/// one. One whose arrival is written down has its place by its plan already.
///
/// # Errors
/// When its XML cannot be read, or there is no place for it.
pub(crate) async fn comes(app: &Arc<App>, xml: &str) -> Result<Option<String>, ErrorBody> {
    let bad = |error: &dyn std::error::Error| ErrorBody::from_error(ErrorCode::BadRequest, error);
    let domain = Domain::parse(xml).map_err(|error| bad(&error))?;
    let Some(uuid) = domain.uuid.clone() else { return Ok(None) };
    let before = app.layouts.places.get(&uuid);
    if app.journal.get(Side::Arrival, &uuid).is_some() {
        // what its plan keeps its vCPUs to would pass for what its last host did
        return Ok(before.map(|_| xml.to_owned()));
    }
    if app.gate.is_closed() || domain.is_split {
        return Ok(None);
    }
    // first, as that takes out what a layout of its last host kept it to
    let here = land(xml, &hook::host(&app.host.path("/"))).map_err(|error| bad(&error))?.xml;
    let pins = match before {
        Some(before) => again(app, before).await?,
        None => first(app, &uuid, &here).await?,
    };
    let Some(pins) = pins else { return Ok(None) };
    keep_to(&here, &pins).map(Some).map_err(|error| bad(&error))
}

type Pins = Vec<mint_types::CpuSet>;

/// libvirt asked a moment ago, and asks again. A place that is about to be given back is none.
async fn again(app: &Arc<App>, place: Place) -> Result<Option<Pins>, ErrorBody> {
    if place.by_hook.is_none() || place.has_come {
        return Ok(None);
    }
    app.layouts.places.of_hook_now(&place.uuid, ByHook { at_s: now_s(), is_there: false });
    let asked = app.clone();
    let host = app.call(move |_| Ok(Host::look(&asked))).await??;
    let domains = host.topology.domains().len();
    let vcpus = place.guest.vcpus.iter().filter(|vcpu| vcpu.domain.0 < domains);
    let mut pins: Pins = vcpus.map(|vcpu| vcpu.cpus(&host.topology, vcpu.domain)).collect();
    free_of_all(&mut pins, &host.topology);
    Ok(Some(pins))
}

async fn first(app: &Arc<App>, uuid: &str, here: &str) -> Result<Option<Pins>, ErrorBody> {
    let Ok(profile) = timeout(TOLD_WITHIN, told(app, uuid)).await else {
        let text = format!("no node says within {} s what it is like", TOLD_WITHIN.as_secs());
        return Err(ErrorBody::new(ErrorCode::PeerUnreachable, text));
    };
    let profile = profile.ok_or_else(|| {
        ErrorBody::new(ErrorCode::Failed, "no node that answers says what it is like")
    })?;
    let domain = Domain::parse(here)
        .map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?;
    let (samples, policy) = (profile.vcpus.clone(), LayoutPolicy::default());
    let allowed = allowed(domain, samples.len());
    let found = find(app, LayoutWish { policy, profile }, allowed).await?;
    let found = found.map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let pins = found.1.pins.clone();
    let (place, others, moving) = place_of(app, found, samples, policy);
    let by_hook = Some(ByHook { at_s: now_s(), is_there: false });
    let place = Place { uuid: uuid.to_owned(), by_hook, ..place };
    let (making, evicted) = (place.making.clone(), place.evicted.clone());
    if !app.layouts.places.add(place) {
        // its arrival was planned meanwhile
        return Ok(None);
    }
    let (asked, gives) = (app.clone(), making.clone());
    // libvirt gives others their CPUs, and it waits for us
    tokio::spawn(async move {
        give_way(&asked, &others, &gives).await;
        drop(moving);
    });
    make_way(app, evicted, making).await?;
    Ok(Some(pins))
}

/// What the node that has a guest says of it, the first that does, of this machine or a linked one. What comes is a
/// peer's.
async fn told(app: &Arc<App>, uuid: &str) -> Option<Profile> {
    let live = app.nodes().await.ok()?.into_iter().filter(|node| node.state.is_live());
    let mut nodes: Vec<String> =
        live.filter(|node| !node.is_self).map(|node| path_of(None, node.id)).collect();
    // a machine whose links are not known has its own nodes all the same
    let links = app.links().await.map(|machine| machine.links).unwrap_or_default();
    for link in links.iter().filter(|link| link.is_up) {
        nodes.extend(link.nodes.iter().map(|node| path_of(Some(link.machine), node.id)));
    }
    let mut asked = JoinSet::new();
    for node in nodes {
        let (mintd, path) = (app.clone(), vm_path(&format!("{node}/vms"), uuid) + "/profile");
        asked.spawn(async move { mintd.mintd.get::<Profile>(&path).await.ok() });
    }
    while let Some(answer) = asked.join_next().await {
        let Ok(Some(profile)) = answer else { continue };
        match profile.check() {
            Ok(()) if profile.id.0 == uuid => return Some(profile),
            Ok(()) => warn!(uuid, other = profile.id.0, "a node tells of another guest"),
            Err(error) => warn!(uuid, %error, "what a node tells of a guest makes no sense"),
        }
    }
    None
}

/// Looks whether such guests have come, by libvirt's records: those are brought to their places.
pub(super) fn tend(app: &Arc<App>, now_s: u64) -> Vec<JoinHandle<()>> {
    let places = app.layouts.places.of_hook();
    if places.is_empty() {
        return Vec::new();
    }
    let running = running(&app.host.path("/"));
    let mut landing = Vec::new();
    for place in places {
        let Some(one) = running.iter().find(|one| one.uuid == place.uuid) else { continue };
        app.layouts.places.of_hook_now(&place.uuid, ByHook { at_s: now_s, is_there: true });
        if !one.is_coming && place.making.lands() {
            landing.push(tokio::spawn(lands(app.clone(), place.uuid)));
        }
    }
    landing
}

async fn lands(app: Arc<App>, uuid: String) {
    match landed(&app, &uuid).await {
        Ok(figures) => info!(uuid, ?figures, "came by plain virsh migrate, and was given a place"),
        Err(error) => warn!(uuid, %error, "it stays where it came to"),
    }
    app.layouts.places.landed(&uuid);
}
