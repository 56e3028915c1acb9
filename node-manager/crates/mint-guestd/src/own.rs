// SPDX-License-Identifier: Apache-2.0
//! Guests of this node.

use mint_api::{ErrorBody, ErrorCode, NodeView, VmList, VmVerb, VmView};
use mint_guests::prepare::{self, PrepareError};
use tracing::info;

use crate::app::App;
use crate::breaks;
use crate::hypervisor::GuestFacts;
use crate::moves;

fn view(app: &App, facts: GuestFacts, here: &NodeView) -> VmView {
    VmView {
        node: here.id,
        node_name: here.name.clone(),
        machine: None,
        state: facts.state.to_owned(),
        vcpus: facts.vcpus,
        memory_bytes: facts.memory_bytes,
        persistent: facts.persistent,
        autostart: facts.autostart,
        is_busy: facts.has_job || app.is_moving(&facts.uuid),
        name: facts.name,
        uuid: facts.uuid,
    }
}

/// All of them.
///
/// # Errors
/// When libvirt or mintd of this node do not answer.
pub(crate) async fn list(app: &App) -> Result<VmList, ErrorBody> {
    let here = app.here().await?;
    let guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    let vms = guests.into_iter().map(|facts| view(app, facts, &here)).collect();
    Ok(VmList { vms, silent: Vec::new() })
}

/// One of them.
///
/// # Errors
/// When there is none, or libvirt or mintd of this node do not answer.
pub(crate) async fn show(app: &App, vm: String) -> Result<VmView, ErrorBody> {
    let here = app.here().await?;
    let facts = app.ask(move |hypervisor| hypervisor.guest(&vm)).await?;
    Ok(view(app, facts, &here))
}

/// Does something with one of them; gives it as it is afterwards.
///
/// # Errors
/// As [`show`], and as libvirt says.
pub(crate) async fn act(app: &App, vm: String, verb: VmVerb) -> Result<VmView, ErrorBody> {
    let name = vm.clone();
    if let VmVerb::Prepare = verb {
        prepare(app, name).await?;
        return show(app, vm).await;
    }
    if let VmVerb::Cancel = verb {
        cancel(app, name).await?;
        return show(app, vm).await;
    }
    // QEMU's start takes what it takes
    app.call(move |hypervisor| match verb {
        VmVerb::Start => hypervisor.start(&name),
        VmVerb::Shutdown => hypervisor.shutdown(&name),
        VmVerb::Destroy => hypervisor.destroy(&name),
        VmVerb::Cancel | VmVerb::Prepare => Ok(()),
    })
    .await?;
    show(app, vm).await
}

/// Ends its move.
async fn cancel(app: &App, name: String) -> Result<(), ErrorBody> {
    let uuid = show(app, name.clone()).await?.uuid;
    if app.ask_to_end(&uuid) {
        return Ok(());
    }
    app.call(move |hypervisor| hypervisor.cancel(&name)).await?;
    // it moves by libvirt alone, or a daemon before this one began that
    if moves::is_going(app, &uuid) {
        if let Err(error) = breaks::end_there(app, &uuid).await {
            info!(uuid, %error, "its next host does not end its move");
        }
    }
    Ok(())
}

/// Its definition changes; if it runs, it goes on as it was started.
async fn prepare(app: &App, name: String) -> Result<(), ErrorBody> {
    let reference = name.clone();
    let xml = app.ask(move |hypervisor| hypervisor.definition(&reference)).await?;
    let prepared = prepare::prepare(&xml).map_err(|error| match error {
        PrepareError::Refused(refusals) => ErrorBody::refused(refusals),
        error @ PrepareError::Domain(_) => ErrorBody::from_error(ErrorCode::Failed, &error),
    })?;
    let Some(new) = prepared else { return Ok(()) };
    info!(vm = name, "its memory can be split from its next start");
    app.ask(move |hypervisor| hypervisor.define(&new)).await
}
