// SPDX-License-Identifier: Apache-2.0
//! Moves of guests as operations: the `mint-guestd` of the guest's node carries them out, and
//! goes on when this daemon ends.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{
    Client, ClientError, ErrorBody, ErrorCode, EvacuateRequest, EventView, LayoutRequest,
    MigrateRequest, MigrateResult, VmVerb, VmView, vm_path,
};
use mint_node::OpError;
use mint_ops::{End, Op};
use mint_types::{NodeId, NodeStatus, OperationKind};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::pin;
use tracing::warn;

use crate::app::App;
use crate::ending::{end_with, op_error, value};
use crate::events;
use crate::guestd::{guestd, guestd_down};
use crate::peer_clients::peer_error;
use crate::resolve::{Place, place};

/// Between looks whether somebody wants the end of a move, and whether its node lives.
const LOOK: Duration = Duration::from_millis(300);
const HERE: &str = "/v1/local";

/// Whether operations of that kind are carried out by `mint-guestd`.
pub(crate) fn is_one(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Migrate | OperationKind::Evacuate | OperationKind::Layout)
}

/// A move in the middle of which this daemon ended. Nothing is taken back: it goes on.
pub(crate) fn leave(op: &Op) {
    let text = format!(
        "mintd ended in the middle of {}, and mint-guestd went on: mintctl vm list tells where \
         guests are",
        op.entry().label()
    );
    warn!("{text}");
    end_with(op, End::Failed(value(&ErrorBody::new(ErrorCode::Failed, text))));
}

/// Moves a guest to another node.
///
/// # Errors
/// As `mint-guestd` says, and when its node cannot be reached.
pub(crate) async fn migrate(
    app: &Arc<App>,
    op: &Op,
    node: Option<&str>,
    vm: &str,
    how: &MigrateRequest,
) -> Result<Value, ErrorBody> {
    op.running().map_err(|error| op_error(OpError::Journal(error)))?;
    let view: VmView = match node {
        None => {
            let found = guestd(app).get(&vm_path("/v1/vms", vm)).await;
            found.map_err(|error| guestd_down(app, error))?
        }
        Some(node) => {
            let door = Door::of(app, place(app, node)?)?;
            let found = door.client.get(&vm_path(&format!("{HERE}/vms"), vm)).await;
            found.map_err(|error| door.error(app, error))?
        }
    };
    let at = match view.machine {
        None => node.map_or_else(|| view.node.to_string(), str::to_owned),
        Some(machine) => format!("{machine}/{}", view.node),
    };
    let at = place(app, &at)?;
    let how = &MigrateRequest { to: destination(app, &at, &how.to)?, ..how.clone() };
    let door = Door::of(app, at)?;
    let guest = vm_path(&format!("{HERE}/vms"), &view.uuid);
    let cancel = format!("{guest}/{}", VmVerb::Cancel.word());
    let moved = door.carry(app, op, &format!("{guest}/migrate"), how, Some(&cancel)).await?;
    tell(app, &moved);
    Ok(moved)
}

/// What the guest's own node calls the destination.
fn destination(app: &App, at: &Place, to: &str) -> Result<String, ErrorBody> {
    let Place::Linked(from, _) = at else { return Ok(to.to_owned()) };
    Ok(match place(app, to)? {
        Place::Linked(there, node) if there.view.machine == from.view.machine => node.to_string(),
        Place::Linked(there, node) => format!("{}/{node}", there.view.machine),
        Place::Own(node) => {
            let own = app.peers.tls.as_ref().map(|pki| pki.here().machine);
            let own = own.ok_or_else(|| {
                ErrorBody::new(ErrorCode::Failed, "this node has no keys, and reaches no machine")
            })?;
            format!("{own}/{}", node.id)
        }
    })
}

/// Counts a guest that has moved, and tells those who listen of it, as far as the result is
/// understood.
fn tell(app: &App, moved: &Value) {
    app.move_metrics.done(moved);
    app.layout_metrics.came(moved);
    let Ok(MigrateResult { name, from, to, to_name, to_machine, .. }) =
        serde_json::from_value(moved.clone())
    else {
        return;
    };
    // of a linked machine's node nobody here knows the state
    let away = to_machine.is_some();
    let label = |node: NodeId| {
        let status = app.machine.node(node).ok().flatten();
        (status.as_ref().map_or_else(|| format!("node{node}"), NodeStatus::display_name), status)
    };
    let ((left, here), (came, there)) = (label(from), label(to));
    let (node, status, came) = if away { (from, here, to_name) } else { (to, there, came) };
    let told = events::view("migrated", node, status.as_ref(), events::now_ns());
    app.events.tell(EventView {
        old: Some(left),
        new: Some(came),
        reason: format!("vm {name}"),
        ..told
    });
}

/// Moves all guests of a node to others.
///
/// # Errors
/// As `mint-guestd` says, and when the node cannot be reached.
pub(crate) async fn evacuate(
    app: &Arc<App>,
    op: &Op,
    node: &str,
    how: &EvacuateRequest,
) -> Result<Value, ErrorBody> {
    op.running().map_err(|error| op_error(OpError::Journal(error)))?;
    let door = Door::of(app, place(app, node)?)?;
    // guests that are gone already stay where they are
    op.no_return().map_err(|error| op_error(OpError::Journal(error)))?;
    let gone = door.carry(app, op, &format!("{HERE}/evacuate"), how, None).await?;
    gone["vms"].as_array().into_iter().flatten().for_each(|moved| tell(app, moved));
    Ok(gone)
}

/// Arranges guests of a node anew on its NUMA nodes.
///
/// # Errors
/// As `mint-guestd` says, and when the node cannot be reached.
pub(crate) async fn layout(
    app: &Arc<App>,
    op: &Op,
    node: &str,
    how: &LayoutRequest,
) -> Result<Value, ErrorBody> {
    op.running().map_err(|error| op_error(OpError::Journal(error)))?;
    let door = Door::of(app, place(app, node)?)?;
    // what has gone to another NUMA node goes back by an operation of its own
    op.no_return().map_err(|error| op_error(OpError::Journal(error)))?;
    door.carry(app, op, &format!("{HERE}/layout"), how, None).await
}

/// The way to a node's `mint-guestd`.
struct Door {
    at: At,
    client: Client,
}

/// Whose daemon it is.
enum At {
    Own {
        node: NodeId,
        boots: u32,
    },
    /// Of a linked machine, by name.
    Linked(String),
}

impl Door {
    fn of(app: &App, place: Place) -> Result<Self, ErrorBody> {
        let node = match place {
            Place::Own(node) => node,
            Place::Linked(link, node) => {
                let client = app.peers.linked(&link, node)?;
                return Ok(Self { at: At::Linked(format!("{}/{node}", link.view.name)), client });
            }
        };
        let client = if node.id == app.here {
            guestd(app)
        } else if node.state.is_live() {
            app.peers.client(node.id)?
        } else {
            return Err(ErrorBody::refused(vec![mint_node::not_running(&node)]));
        };
        Ok(Self { at: At::Own { node: node.id, boots: node.boots }, client })
    }

    fn error(&self, app: &App, error: ClientError) -> ErrorBody {
        match self.at {
            At::Own { node, .. } if node == app.here => guestd_down(app, error),
            _ => peer_error(error),
        }
    }

    /// Has it carried out there; `cancel` is where its end is asked for.
    async fn carry(
        &self,
        app: &App,
        op: &Op,
        path: &str,
        request: &impl Serialize,
        cancel: Option<&str>,
    ) -> Result<Value, ErrorBody> {
        let work = self.client.operate::<Value>(path, request, |line: &str| op.progress(line));
        pin!(work);
        let mut is_cancelled = false;
        let mut looks = tokio::time::interval(LOOK);
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = looks.tick() => {}
            }
            if !self.lives(app) {
                let text = format!(
                    "node {} ended meanwhile; mintctl vm list tells where guests are",
                    self.name()
                );
                return Err(ErrorBody::new(ErrorCode::PeerUnreachable, text));
            }
            // before libvirt has begun there is nothing to end yet
            if let (Some(cancel), false, Err(_)) = (cancel, is_cancelled, op.check()) {
                is_cancelled = self.client.post::<Value>(cancel, &json!({})).await.is_ok();
            }
        };
        result.map_err(|error| {
            let error = self.error(app, error);
            if is_cancelled { ErrorBody { code: ErrorCode::Cancelled, ..error } } else { error }
        })
    }

    /// Whether the node is in the boot that it was in.
    fn lives(&self, app: &App) -> bool {
        // a linked machine's end ends the connection
        let At::Own { node, boots } = self.at else { return true };
        let status = app.machine.node(node).ok().flatten();
        status.is_some_and(|status| status.state.is_live() && status.boots == boots)
    }

    fn name(&self) -> String {
        match &self.at {
            At::Own { node, .. } => node.to_string(),
            At::Linked(name) => name.clone(),
        }
    }
}
