// SPDX-License-Identifier: Apache-2.0
//! What users ask for, as the journal keeps it: a daemon that finds an operation in the
//! middle knows from it how to go on.

use mint_api::{
    AddRequest, ApplyRequest, EvacuateRequest, LayoutRequest, MigrateRequest, RemoveRequest,
    ResizeRequest, StartRequest, StopRequest,
};
use mint_types::OperationKind;
use serde::{Deserialize, Serialize};

/// A request that becomes an operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", content = "with", rename_all = "snake_case")]
pub(crate) enum Request {
    Add(Box<AddRequest>),
    Start(String, StartRequest),
    Stop(String, StopRequest),
    Restart(String, StartRequest),
    Kill(String),
    Remove(String, RemoveRequest),
    Resize(String, ResizeRequest),
    Apply(ApplyRequest),
    Repair,
    /// The guest, and the node that it is on if that was said.
    Migrate {
        vm: String,
        node: Option<String>,
        how: MigrateRequest,
    },
    Evacuate(String, EvacuateRequest),
    Layout(String, LayoutRequest),
}

impl Request {
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Add(_) => OperationKind::Add,
            Self::Start(..) => OperationKind::Start,
            Self::Stop(..) => OperationKind::Stop,
            Self::Restart(..) => OperationKind::Restart,
            Self::Kill(_) => OperationKind::Kill,
            Self::Remove(..) => OperationKind::Remove,
            Self::Resize(..) => OperationKind::Resize,
            Self::Apply(_) => OperationKind::Apply,
            Self::Repair => OperationKind::Repair,
            Self::Migrate { .. } => OperationKind::Migrate,
            Self::Evacuate(..) => OperationKind::Evacuate,
            Self::Layout(..) => OperationKind::Layout,
        }
    }

    /// Which node or guest it is about, as the asker calls it.
    pub fn subject(&self) -> String {
        match self {
            Self::Add(request) => request.spec.name.to_string(),
            Self::Start(node, _)
            | Self::Stop(node, _)
            | Self::Restart(node, _)
            | Self::Kill(node)
            | Self::Remove(node, _)
            | Self::Resize(node, _)
            | Self::Evacuate(node, _)
            | Self::Layout(node, _) => node.clone(),
            Self::Migrate { vm, .. } => vm.clone(),
            Self::Apply(_) | Self::Repair => String::new(),
        }
    }

    /// Whether only what would be done is wanted.
    pub fn is_dry_run(&self) -> bool {
        match self {
            Self::Add(request) => request.dry_run,
            Self::Resize(_, request) => request.dry_run,
            _ => false,
        }
    }
}
