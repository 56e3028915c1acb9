// SPDX-License-Identifier: Apache-2.0
//! Operations as replies show them.

use mint_types::{OperationKind, OperationState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ErrorBody;

/// A node that died in the middle of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct TakenFrom {
    /// Its id.
    pub node: u32,
    /// Its name then.
    pub name: String,
    /// The operation's number there.
    pub id: u64,
}

/// An operation of the daemon that answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Its number.
    pub id: u64,
    /// What it changes.
    pub kind: OperationKind,
    /// Which node it is about, as the asker called it; empty if none.
    pub subject: String,
    /// Who asked: `root`, `uid 1000`, `node 2`, `mintd`.
    pub asked_by: String,
    /// Where it was begun, if this daemon took it over: that node died.
    #[serde(default)]
    pub taken_from: Option<TakenFrom>,
    /// How far it is, or how it ended.
    pub state: OperationState,
    /// Somebody wants it to end.
    pub cancel: bool,
    /// It is past its point of no return: it will be finished, not taken back.
    pub past_no_return: bool,
    /// It is over and a part of it is neither finished nor taken back: `doctor` tells.
    pub unsettled: bool,
    /// When it was asked for, ns since 1970.
    pub created_ns: u64,
    /// When its turn came, ns since 1970.
    pub started_ns: Option<u64>,
    /// When it was over, ns since 1970.
    pub ended_ns: Option<u64>,
    /// What it said: the last lines.
    pub progress: Vec<String>,
    /// Lines that it said before those.
    pub dropped_lines: u64,
    /// Its result, once it is done; what it is depends on what was asked for.
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    /// Why it is not.
    pub error: Option<ErrorBody>,
}

/// A file of the journal that the daemon does not understand, and keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnreadableView {
    /// Where the file is.
    pub path: String,
    /// Why it does not.
    pub why: String,
}

/// Operations of the daemon that answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct OperationList {
    /// By rising number: those that go on, and the last ones that are over.
    pub operations: Vec<OperationView>,
    /// What the journal holds and nobody here understands.
    pub unreadable: Vec<UnreadableView>,
}
