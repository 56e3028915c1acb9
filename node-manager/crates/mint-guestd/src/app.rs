// SPDX-License-Identifier: Apache-2.0
//! What all handlers share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{
    Client, ClientError, ErrorBody, ErrorCode, Hello, MachineView, NodeList, NodeView, node_path,
};
use mint_types::{MachineId, NodeId, Refusal, RefusalCode, parse_bound};
use tokio::time::{sleep, timeout};
use tracing::error;

use crate::facts::HostFiles;
use crate::gate::Gate;
use crate::held::Held;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::journal::Journal;
use crate::layout::known::Layouts;

/// For libvirt to answer what takes no time by itself. It may be starting, and a node's vCPUs
/// may stall.
const ANSWERS_WITHIN: Duration = Duration::from_secs(50);
/// For what is over soon: another node may be slow to answer.
const SOON_WITHIN: Duration = Duration::from_secs(60);
/// Between looks whether an operation is to end.
const ASKED_LOOK: Duration = Duration::from_millis(200);

/// Shared by all tasks.
pub(crate) struct App {
    pub hypervisor: Arc<dyn Hypervisor>,
    /// This node's mintd: the way to other nodes.
    pub mintd: Client,
    /// This node's memory server.
    pub store: Client,
    /// This host's files.
    pub host: HostFiles,
    /// Migrations that may leave something behind.
    pub journal: Journal,
    /// UUIDs of guests that leave by an operation of this daemon, and whether that is to end.
    pub moving: Mutex<BTreeMap<String, Ending>>,
    /// Guests whose way here somebody ends.
    pub ending: Held,
    /// Whether guests may come.
    pub gate: Arc<Gate>,
    /// Where guests are on NUMA nodes.
    pub layouts: Layouts,
}

/// Whether an operation that moves a guest is to end before it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It is over soon: what else wants the guest waits for that.
    Soon,
    /// It does not listen to that: libvirt is asked.
    Deaf,
    /// Nobody has asked for it.
    No,
    /// Somebody has.
    Asked,
}

/// A guest leaves; while this is held, by this operation alone.
pub(crate) struct Moving {
    app: Arc<App>,
    uuid: String,
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.app.moving().remove(&self.uuid);
    }
}

impl App {
    fn moving(&self) -> MutexGuard<'_, BTreeMap<String, Ending>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an operation of this daemon moves that guest.
    pub fn is_moving(&self, uuid: &str) -> bool {
        self.moving().contains_key(uuid)
    }

    /// From now on the operation that moves a guest can be asked to end.
    pub fn listen_for_end(&self, uuid: &str) {
        if let Some(ending) = self.moving().get_mut(uuid) {
            *ending = Ending::No;
        }
    }

    /// Asks the operation that moves a guest to end. Gives whether there is one that listens.
    pub fn ask_to_end(&self, uuid: &str) -> bool {
        match self.moving().get_mut(uuid) {
            None | Some(Ending::Soon | Ending::Deaf) => false,
            Some(ending) => {
                *ending = Ending::Asked;
                true
            }
        }
    }

    /// Waits until somebody has asked for that.
    pub async fn is_to_end(&self, uuid: &str) {
        while self.moving().get(uuid) != Some(&Ending::Asked) {
            sleep(ASKED_LOOK).await;
        }
    }

    /// Keeps other operations from moving a guest; none if one does.
    pub fn begin(self: &Arc<Self>, uuid: &str) -> Option<Moving> {
        self.begin_as(uuid, Ending::Deaf)
    }

    /// The same for what nobody has asked for, and that is over soon: an operation that begins
    /// meanwhile waits for its end ([`App::begin_after`]).
    pub fn see_to(self: &Arc<Self>, uuid: &str) -> Option<Moving> {
        self.begin_as(uuid, Ending::Soon)
    }

    /// As [`App::begin`], once what is over soon is over.
    pub async fn begin_after(self: &Arc<Self>, uuid: &str) -> Option<Moving> {
        let began = Instant::now();
        loop {
            let moving = self.begin(uuid);
            let waits = self.moving().get(uuid) == Some(&Ending::Soon);
            if moving.is_some() || !waits || began.elapsed() > SOON_WITHIN {
                return moving;
            }
            sleep(ASKED_LOOK).await;
        }
    }

    fn begin_as(self: &Arc<Self>, uuid: &str, ending: Ending) -> Option<Moving> {
        let mut moving = self.moving();
        if moving.contains_key(uuid) {
            return None;
        }
        moving.insert(uuid.to_owned(), ending);
        Some(Moving { app: self.clone(), uuid: uuid.to_owned() })
    }

    /// Asks libvirt for something short.
    ///
    /// # Errors
    /// As the call, or when it does not come back in time; it may be done later then.
    pub async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Hypervisor) -> Result<T, HypervisorError> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let text =
            format!("libvirt of this node does not answer within {} s", ANSWERS_WITHIN.as_secs());
        timeout(ANSWERS_WITHIN, self.call(call))
            .await
            .unwrap_or_else(|_| Err(ErrorBody::new(ErrorCode::GuestdDown, text)))
    }

    /// Calls libvirt, however long that takes.
    ///
    /// # Errors
    /// As the call.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Hypervisor) -> Result<T, HypervisorError> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let hypervisor = self.hypervisor.clone();
        match tokio::task::spawn_blocking(move || call(&*hypervisor)).await {
            Ok(result) => result.map_err(hypervisor_error),
            Err(fault) => {
                error!(%fault, "a call of libvirt panicked");
                let text = "mint-guestd lost a call of libvirt by a fault of its own; see its log";
                Err(ErrorBody::new(ErrorCode::Failed, text))
            }
        }
    }

    /// All nodes of the machine.
    ///
    /// # Errors
    /// When mintd does not answer.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ErrorBody> {
        let list: NodeList = self.mintd.get("/v1/nodes").await.map_err(client_error)?;
        Ok(list.nodes)
    }

    /// What this node's settings let it keep of other nodes' guests; none: any amount.
    ///
    /// # Errors
    /// When mintd does not answer.
    pub async fn keep_max_bytes(&self) -> Result<Option<u64>, ErrorBody> {
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Settings {
            memory: Memory,
        }
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Memory {
            keep_max: String,
        }
        let settings: Settings = self.mintd.get("/v1/config").await.map_err(client_error)?;
        // mintd has read it as such
        Ok(parse_bound(&settings.memory.keep_max).unwrap_or(None))
    }

    /// Machines that this one is linked with.
    ///
    /// # Errors
    /// When mintd does not answer.
    pub async fn links(&self) -> Result<MachineView, ErrorBody> {
        self.mintd.get("/v1/machine").await.map_err(client_error)
    }

    /// Our machine, as linked ones know it.
    ///
    /// # Errors
    /// When mintd does not answer, or serves no other nodes.
    pub async fn machine(&self) -> Result<MachineId, ErrorBody> {
        let hello: Hello = self.mintd.get("/v1/hello").await.map_err(client_error)?;
        hello.machine.ok_or_else(|| {
            ErrorBody::new(ErrorCode::Failed, "mintd of this node serves no other nodes")
        })
    }

    /// The node that we are on.
    ///
    /// # Errors
    /// When mintd does not answer.
    pub async fn here(&self) -> Result<NodeView, ErrorBody> {
        let own = self.nodes().await?.into_iter().find(|node| node.is_self);
        own.ok_or_else(|| {
            ErrorBody::new(ErrorCode::Failed, "mintd does not say which node this is")
        })
    }
}

/// Path of a node of this machine, or of a linked one.
pub(crate) fn path_of(machine: Option<MachineId>, node: NodeId) -> String {
    match machine {
        None => node_path(&node.to_string()),
        Some(machine) => node_path(&format!("{machine}/{node}")),
    }
}

/// What mintd said, or that it could not be reached.
pub(crate) fn client_error(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => {
            let mut body = ErrorBody::from_error(ErrorCode::MintdDown, &other);
            body.causes.insert(0, body.message.clone());
            "mintd of this node does not answer".clone_into(&mut body.message);
            body
        }
    }
}

fn hypervisor_error(error: HypervisorError) -> ErrorBody {
    let text = error.to_string();
    match error {
        HypervisorError::NoGuest(name) => no_guest(&name, &text),
        HypervisorError::Silent(_) => ErrorBody::new(ErrorCode::GuestdDown, text)
            .hint("its log is /var/log/mint/libvirtd.log, or: journalctl -u libvirtd"),
        HypervisorError::Said(_) => ErrorBody::new(ErrorCode::Failed, text),
    }
}

/// There is no such guest.
pub(crate) fn no_guest(name: &str, text: &str) -> ErrorBody {
    let refusal = Refusal::new(RefusalCode::VmAbsent, format_args!("vm {name}"), text)
        .hint("mintctl vm list shows the guests of all nodes");
    ErrorBody::refused(vec![refusal])
}
