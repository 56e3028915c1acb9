// SPDX-License-Identifier: Apache-2.0
//! What the kernel says of nodes, and what follows from it: it is told, those who run are
//! met, those who ended are started again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mint_sys::{Device, Event};
use mint_types::NodeState;
use tokio::runtime::Handle;
use tracing::{error, info, warn};

use crate::app::App;
use crate::events::view;
use crate::restart::start_again;
use crate::{nodes, takeover};

/// How often the event thread looks whether the daemon ends.
const EVENT_WAIT_MS: i32 = 1000;
/// After an error of the kernel's.
const EVENT_RETRY: Duration = Duration::from_secs(1);

/// Reads the kernel's events until the daemon ends: a thread, as poll(2) blocks.
pub(crate) fn watch_kernel(app: Arc<App>, device: Device, runtime: Handle) {
    let watch = move || {
        // state_changed starts tasks
        let _runtime = runtime.enter();
        loop {
            match device.wait_for_event(EVENT_WAIT_MS).and_then(|()| device.read_event()) {
                Ok(Some(event)) => state_changed(&app, &event),
                Ok(None) if app.ending.load(Ordering::Relaxed) => return,
                Ok(None) => {}
                Err(error) => {
                    warn!(%error, "event dropped");
                    std::thread::sleep(EVENT_RETRY);
                }
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("events".into()).spawn(watch) {
        error!(%error, "no thread for events: none are told");
    }
}

/// A node's state changed.
pub(crate) fn state_changed(app: &Arc<App>, event: &Event) {
    let status = app.machine.node(event.node).ok().flatten();
    if event.lost > 0 {
        let mut lost = view("lost", event.node, status.as_ref(), event.time_ns);
        lost.reason = format!("{} events were dropped before this one", event.lost);
        app.events.tell(lost);
    }
    let mut told = view("state", event.node, status.as_ref(), event.time_ns);
    match &status {
        Some(_) => _ = app.marks().names.insert(event.node, told.name.clone()),
        None => {
            if let Some(name) = app.marks().names.remove(&event.node) {
                told.name = name;
            }
        }
    }
    told.old = Some(event.old.to_string());
    told.new = Some(event.new.to_string());
    let ended = matches!(
        event.new,
        NodeState::Halted | NodeState::Reboot | NodeState::Crashed | NodeState::Killed
    );
    if !ended {
        // last words of an earlier life
        told.reason = String::new();
    }
    info!(node = %event.node, name = %told.name, old = %event.old, new = %event.new,
        reason = %told.reason, "state");
    app.events.tell(told);
    // an event that was written over may say of a node that lives what is not so: who
    // forgot that node for it would not talk with it any more
    let lives = status.as_ref().map_or_else(
        || !app.machine.is_gone(event.node).unwrap_or(false),
        |status| status.state.is_live(),
    );
    if !event.new.is_live() && !lives {
        let mut marks = app.marks();
        marks.health.remove(&event.node);
        marks.ssh_host_keys.remove(&event.node);
    }
    if [event.old, event.new].contains(&NodeState::Unused) {
        let mut marks = app.marks();
        marks.ordered.forget(event.node);
        marks.restarts.forget(event.node);
        drop(marks);
        if !lives {
            app.peers.forget(event.node);
        }
        // another daemon may have removed it
        if let Err(error) = app.specs.forget_stale(event.node, || app.inventory().ok()) {
            warn!(%error, "a description is left behind");
        }
    }
    tokio::task::spawn_blocking({
        let app = app.clone();
        move || nodes::refresh_names(&app)
    });
    if !event.new.is_live() || event.lost > 0 {
        tokio::spawn(takeover::in_turn(app.clone()));
    }
    match event.new {
        NodeState::Running if event.node != app.here => {
            tokio::spawn(nodes::meet(app.clone(), event.node));
        }
        end => _ = tokio::spawn(start_again(app.clone(), event.node, end)),
    }
}
