// SPDX-License-Identifier: Apache-2.0
//! What all handlers share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mint_api::{ErrorBody, ErrorCode};
use mint_host::Host;
use mint_node::{Config, Machine, Nodes, OpError, SpecStore, read_ledger};
use mint_ops::{Op, Operations};
use mint_plan::Inventory;
use mint_types::{Asker, NodeId, OperationId};
use tracing::{error, warn};

use crate::audit::AuditLog;
use crate::ending::{op_error, value};
use crate::events::EventLog;
use crate::layout_metrics::LayoutMetrics;
use crate::links::Links;
use crate::marks::Marks;
use crate::move_metrics::MoveMetrics;
use crate::peer_clients::PeerClients;
use crate::request::Request;

/// Shared by all tasks.
pub(crate) struct App {
    pub machine: Arc<dyn Machine>,
    pub host: Arc<dyn Host>,
    pub config: Arc<Config>,
    /// What changes nodes; several threads may be in it.
    pub nodes: Arc<Nodes>,
    /// All operations: whoever changes something has one.
    pub ops: Operations,
    pub events: EventLog,
    pub move_metrics: MoveMetrics,
    pub layout_metrics: LayoutMetrics,
    pub audit: AuditLog,
    pub peers: Arc<PeerClients>,
    /// Machines that this one is linked with.
    pub links: Links,
    pub specs: SpecStore,
    /// Root of the file system, `/` but in tests.
    pub root: PathBuf,
    /// What the node that started us left.
    pub bundle: PathBuf,
    /// Our node.
    pub here: NodeId,
    pub marks: Mutex<Marks>,
    /// The daemon ends: threads that wait for the kernel do so, too.
    pub ending: AtomicBool,
}

impl App {
    /// The ledger, now.
    pub fn inventory(&self) -> Result<Inventory, ErrorBody> {
        read_ledger(&*self.machine)
            .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))
    }

    /// Writes down what somebody asks for; `part_of` an operation that it belongs to.
    ///
    /// # Errors
    /// When there are too many, the journal fails, or this daemon ends.
    pub fn submit(
        &self,
        asked_by: Asker,
        request: &Request,
        part_of: Option<OperationId>,
    ) -> Result<Op, ErrorBody> {
        if self.ending.load(Ordering::Relaxed) {
            return Err(ErrorBody::new(ErrorCode::MintdDown, "this mintd is on its way out"));
        }
        let request = mint_ops::Request {
            kind: request.kind(),
            subject: request.subject(),
            asked_by,
            body: value(request),
            part_of,
            dry_run: request.is_dry_run(),
        };
        self.ops.submit(request).map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))
    }

    /// Does what blocks in a thread of its own.
    ///
    /// # Errors
    /// When it panics: that is a bug.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Nodes) -> T + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let nodes = self.nodes.clone();
        let lost = "mintd lost the operation by a fault of its own; see its log and mintctl doctor";
        tokio::task::spawn_blocking(move || work(&nodes)).await.map_err(|fault| {
            error!(%fault, "a part of an operation panicked");
            ErrorBody::new(ErrorCode::Failed, lost)
        })
    }

    /// The part of an operation that changes things. One that panics is a bug: it is
    /// taken back or finished, as after a death of the daemon.
    ///
    /// # Errors
    /// As the part fails.
    pub async fn carry<T: Send + 'static>(
        &self,
        op: &Op,
        work: impl FnOnce(&Nodes, &Op) -> Result<T, OpError> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let its = op.clone();
        let lost = match self.blocking(move |nodes| work(nodes, &its)).await {
            Ok(result) => return result.map_err(op_error),
            Err(lost) => lost,
        };
        let its = op.clone();
        match self.blocking(move |nodes| nodes.settle(&its)).await {
            Ok(Ok(settled)) => warn!(operation = %op.id(), ?settled, "settled after a panic"),
            Ok(Err(error)) => warn!(operation = %op.id(), %error, "not settled after a panic"),
            Err(_) => {}
        }
        Err(lost)
    }

    /// Marks; the lock is held for moments only.
    pub fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
