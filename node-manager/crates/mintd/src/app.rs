// SPDX-License-Identifier: Apache-2.0
//! What all handlers share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use mint_api::{ErrorBody, ErrorCode};
use mint_node::{ApplyError, Config, Host, Inventory, Machine, OpError, SpecStore};
use mint_types::NodeId;

use crate::driver::{Driver, JobLost};
use crate::events::EventLog;
use crate::health::Health;
use crate::peers::PeerClients;
use crate::restart::{Ordered, Restarts};

/// Shared by all tasks.
pub(crate) struct App {
    pub machine: Arc<dyn Machine>,
    pub host: Arc<dyn Host>,
    pub config: Arc<Config>,
    pub driver: Driver,
    pub events: EventLog,
    pub peers: Arc<PeerClients>,
    pub specs: SpecStore,
    /// Folder with journal and descriptions.
    pub state_dir: PathBuf,
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

/// What is known of nodes beside the ledger.
#[derive(Default)]
pub(crate) struct Marks {
    /// How those are that run and are not well.
    pub health: BTreeMap<NodeId, Health>,
    /// Ends that somebody asked for.
    pub ordered: Ordered,
    /// Starts of nodes that ended by themselves.
    pub restarts: Restarts,
    /// Names as last seen: one that was removed has none any more.
    pub names: BTreeMap<NodeId, String>,
    /// Public host keys of their ssh servers.
    pub ssh_host_keys: BTreeMap<NodeId, Vec<String>>,
}

impl Marks {
    /// How a node is that runs.
    pub fn health_of(&self, node: NodeId) -> Health {
        self.health.get(&node).copied().unwrap_or(Health::Ok)
    }
}

impl App {
    /// The ledger, now.
    pub fn inventory(&self) -> Result<Inventory, ErrorBody> {
        Inventory::read(&*self.machine)
            .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))
    }

    /// Marks; the lock is held for moments only.
    pub fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// An operation's error on the wire.
pub(crate) fn op_error(error: OpError) -> ErrorBody {
    match error {
        OpError::Refused(refusals) => ErrorBody::refused(refusals),
        OpError::Apply(ApplyError::Step { ref refusals, .. }) => {
            let refusals = refusals.clone();
            ErrorBody { refusals, ..ErrorBody::from_error(ErrorCode::Failed, &error) }
        }
        other => ErrorBody::from_error(ErrorCode::Failed, &other),
    }
}

/// A lost job on the wire.
pub(crate) fn job_lost(error: JobLost) -> ErrorBody {
    ErrorBody::from_error(ErrorCode::Failed, &error)
}
