// SPDX-License-Identifier: Apache-2.0
//! A guest whose memory is split gets all of it at one host (S-memV, 3-2): at its main host, or at
//! the next one, once it has moved there. What sub hosts keep is fetched while it runs; their leases
//! end then ([`crate::hosts`]). Or its memory is split anew, and it stays.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{
    ErrorBody, ErrorCode, Line, MigrateFigures, MigrateRequest, MigrateResult, NodeView, VmMemory,
};
use mint_guests::split::Split;
use mint_serve::lines::Lines;
use mint_split::SplitGuest;
use mint_types::{NodeId, Refusal, RefusalCode, format_bytes};
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::app::{App, Moving, client_error, path_of};
use crate::auto::{self, AUTO};
use crate::hosts::running;
use crate::leases::{self, RESERVE_BYTES};
use crate::memory::failed;
use crate::moves::whole;
use crate::rewrite::{self, Unchanged};
use crate::split::{self, Besides};

/// Between looks at what is elsewhere, and how long that may stay as it is.
const LOOK: Duration = Duration::from_millis(500);
const STALLED: Duration = Duration::from_secs(120);

/// A guest that can be merged, or split anew, where it is.
pub(crate) struct Merge {
    here: NodeView,
    name: String,
    uuid: String,
    memory_bytes: u64,
    is_dry_run: bool,
    bandwidth_bytes_s: Option<u64>,
    /// How it is split; none: merged.
    split: Option<Split>,
    /// No other operation changes its hosts as long as this is here.
    moving: Moving,
}

/// Looks whether a guest can be merged or split on this node; none if it is to move for that, or
/// only to move. Changes nothing.
///
/// # Errors
/// With the reason why it cannot.
pub(crate) async fn prepare(
    app: &Arc<App>,
    vm: &str,
    request: &MigrateRequest,
) -> Result<Option<Merge>, ErrorBody> {
    let here = app.here().await?;
    let is_wanted = request.merge || request.split.is_some();
    if !is_wanted || !is_called(&here, &request.to) {
        return Ok(None);
    }
    let reference = vm.to_owned();
    let facts = app.ask(move |hypervisor| hypervisor.guest(&reference)).await?;
    let (name, uuid) = (facts.name, facts.uuid);
    let moving = app.begin_after(&uuid).await.ok_or_else(|| {
        failed(format_args!("guest {name} is being moved: ask again when it is not"))
    })?;
    let auto = match request.split.as_deref() {
        Some(AUTO) => Some(auto::resolve(app, &uuid, &name, &here, Besides::of(request)).await?),
        _ => None,
    };
    let words = match &auto {
        Some(resolved) => resolved.as_deref(),
        None => request.split.as_deref(),
    };
    let split = words
        .map(|words| split::parse(app, &uuid, &name, words, Besides::of(request)))
        .transpose()?;
    let Some((_, guest)) = running(app, &uuid) else { return Err(not_split(&name)) };
    let memory_bytes = match &split {
        Some(split) => split.main_bytes,
        None => guest.memory_bytes,
    };
    check_room(app, &here, &guest, memory_bytes).await?;
    let (is_dry_run, bandwidth_bytes_s) = (request.dry_run, request.bandwidth_bytes_s);
    Ok(Some(Merge { here, name, uuid, memory_bytes, is_dry_run, bandwidth_bytes_s, split, moving }))
}

fn is_called(node: &NodeView, name: &str) -> bool {
    node.name == name || node.id.to_string() == name || format!("node{}", node.id) == name
}

/// Nothing of a guest is at other hosts by anybody's wish.
pub(crate) fn not_split(name: &str) -> ErrorBody {
    let text = format!("the memory of vm {name} is not split: all of it is where it runs");
    let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {name}"), text)
        .hint("mintctl vm memory tells where the memory of a running guest is");
    ErrorBody::refused(vec![refusal])
}

async fn check_room(
    app: &App,
    here: &NodeView,
    guest: &SplitGuest,
    bytes: u64,
) -> Result<(), ErrorBody> {
    let wants = bytes.saturating_sub(guest.main_bytes);
    let promised = leases::promised_bytes(app).await;
    let free = app.host.free_memory_bytes().saturating_sub(promised).saturating_sub(RESERVE_BYTES);
    if wants <= free {
        return Ok(());
    }
    let text = format!(
        "the memory of vm {} takes {} more, and {} has {} free",
        guest.name,
        format_bytes(wants),
        here.name,
        format_bytes(free)
    );
    let refusal = Refusal::new(RefusalCode::MemoryShort, format_args!("vm {}", guest.name), text)
        .hint("give the node more (mintctl node resize --memory), or name another one");
    Err(ErrorBody::refused(vec![refusal]))
}

impl Merge {
    /// Merges it, or splits it, and tells how far that is.
    ///
    /// # Errors
    /// When its pager does not do so: it goes on as before. When it does not get on: it goes on, and
    /// comes to its end when it can.
    pub async fn carry_out(
        self,
        app: &Arc<App>,
        lines: &Lines,
    ) -> Result<MigrateResult, ErrorBody> {
        let Self { here, name, uuid, memory_bytes, is_dry_run, bandwidth_bytes_s, split, moving } =
            self;
        let began = Instant::now();
        let mut result = MigrateResult {
            name: name.clone(),
            uuid: uuid.clone(),
            from: here.id,
            to: here.id,
            to_name: here.name,
            to_machine: None,
            memory_bytes,
            disks: Vec::new(),
            changes: Vec::new(),
            took: None,
            merged: split.is_none(),
            layout: None,
        };
        let took = |began: Instant| {
            let total_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            Some(MigrateFigures { total_ms, ..MigrateFigures::default() })
        };
        if is_dry_run {
            return Ok(result);
        }
        if let Some(split) = split {
            split::apply(app, &uuid, &split, here.id, bandwidth_bytes_s, lines).await?;
            result.took = took(began);
            return Ok(result);
        }
        let gone = || failed(format_args!("guest {name} does not run here any more"));
        let (folder, guest) = running(app, &uuid).ok_or_else(gone)?;
        let new = whole(guest.clone(), bandwidth_bytes_s);
        rewrite::change(&folder, &guest, &new).await.map_err(|error| match error {
            Unchanged::Undone(why) => {
                failed(format_args!("the memory of guest {name} stays where it is: {why}"))
            }
            Unchanged::Later(error) => {
                failed(format_args!("guest {name} is merged when its pager answers: {error}"))
            }
        })?;
        info!(guest = name, "all of its memory comes here");
        // leases that are over end meanwhile
        drop(moving);
        wait(app, here.id, &uuid, lines).await?;
        result.took = took(began);
        Ok(result)
    }
}

/// Waits until all memory of a guest is at its main host, a node of this machine.
///
/// # Errors
/// When it does not get on.
pub(crate) async fn wait(
    app: &App,
    node: NodeId,
    uuid: &str,
    lines: &Lines,
) -> Result<(), ErrorBody> {
    let path = format!("{}/vms/{uuid}/memory", path_of(None, node));
    let (mut last, mut since) = (u64::MAX, Instant::now());
    loop {
        let view: Result<VmMemory, ErrorBody> = app.mintd.get(&path).await.map_err(client_error);
        if let Ok(view) = &view {
            if view.hosts.is_empty() {
                return Ok(());
            }
            let rest = view.elsewhere_bytes.saturating_add(view.coming_bytes);
            if rest != last {
                let what = format!("{} of vm {} are elsewhere", format_bytes(rest), view.name);
                lines.send(&Line::Progress(what)).await;
                (last, since) = (rest, Instant::now());
            }
        }
        if since.elapsed() > STALLED {
            let what = format!(
                "the memory of the guest has come no further for {} s; it goes on",
                STALLED.as_secs()
            );
            let mut error = ErrorBody::new(ErrorCode::Failed, what);
            error.causes.extend(view.err().map(|error| error.to_string()));
            return Err(error.hint("mintctl vm memory tells where it is"));
        }
        sleep(LOOK).await;
    }
}
