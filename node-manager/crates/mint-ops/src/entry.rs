// SPDX-License-Identifier: Apache-2.0
//! An operation as the journal has it.

use std::collections::BTreeMap;
use std::fmt;

use mint_types::{Asker, NodeId, NodeName, OperationId, OperationKind, OperationState, Step};
use serde::{Deserialize, Serialize};

/// Version of the format. A daemon reads this one only: what another one wrote it tells
/// of, and keeps.
pub const FORMAT: u32 = 1;
/// Lines of progress that are kept of an operation: the last ones.
pub const PROGRESS_KEPT: usize = 200;

/// What an operation changes, written before it is changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The node that it is about.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Which start of the node it is about; none where that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boots: Option<u32>,
    /// All its steps, in order.
    pub steps: Vec<Step>,
    /// Names of the nodes that the steps are about: an id is used again, and what a node
    /// gave up is not for the next one of its id.
    #[serde(default)]
    pub names: BTreeMap<NodeId, String>,
}

/// Where an operation was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// By the daemon of that node.
    pub node: NodeId,
    /// Its name then.
    pub name: String,
    /// Its number there.
    pub id: OperationId,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, name, id } = self;
        write!(f, "operation {id} of node {node} ({name})")
    }
}

/// An operation. What is not known when it is read is refused, not dropped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its number.
    pub id: OperationId,
    /// What it changes.
    pub kind: OperationKind,
    /// Which node it is about, as the asker called it; empty if none.
    pub subject: String,
    /// Who asked.
    pub asked_by: Asker,
    /// Boot of the machine that it belongs to.
    pub boot_id: u64,
    /// When it was asked for, ns since 1970.
    pub created_ns: u64,
    /// When its turn came, ns since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ns: Option<u64>,
    /// When it was over, ns since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ns: Option<u64>,
    /// How far it is.
    pub state: OperationState,
    /// Somebody wants it to end.
    #[serde(default)]
    pub cancel: bool,
    /// It is past its point of no return: it is finished, not taken back.
    #[serde(default)]
    pub past_no_return: bool,
    /// What it changes, as long as that is not settled: neither finished nor taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Intent>,
    /// In which start of this node the intent was last written into the control area, too:
    /// should the node die, another one ends the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_area: Option<u32>,
    /// Where it was begun, if that was on another node, or in another life of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_from: Option<Origin>,
    /// The request, as its daemon understands it: to go on with it.
    #[serde(default)]
    pub request: serde_json::Value,
    /// What it said so far: the last lines.
    #[serde(default)]
    pub progress: Vec<String>,
    /// Lines before those.
    #[serde(default)]
    pub dropped_lines: u64,
    /// Its result, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<serde_json::Value>,
}

impl Entry {
    /// How messages call it: `operation 7 (resize web, asked for by root)`.
    pub fn label(&self) -> String {
        let space = if self.subject.is_empty() { "" } else { " " };
        let Self { id, kind, subject, asked_by, .. } = self;
        format!("operation {id} ({kind}{space}{subject}, asked for by {asked_by})")
    }

    pub(crate) fn say(&mut self, text: String) {
        if self.progress.len() >= PROGRESS_KEPT {
            self.progress.remove(0);
            self.dropped_lines += 1;
        }
        self.progress.push(text);
    }
}

#[derive(Serialize, Deserialize)]
struct File<T> {
    version: u32,
    operation: T,
}

/// Why an entry of the journal is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is of another version.
    #[error("it has format {0}, this mintd reads {FORMAT}")]
    Version(u32),
    /// It is broken.
    #[error("{0}")]
    Broken(String),
    /// It is another operation's.
    #[error("it is named after operation {0} and holds operation {1}")]
    Misplaced(OperationId, OperationId),
}

/// An entry as it is written.
///
/// # Panics
/// Never: an entry is plain data.
pub fn encode(entry: &Entry) -> Vec<u8> {
    let file = File { version: FORMAT, operation: entry };
    let mut text = serde_json::to_vec_pretty(&file).expect("plain data is always JSON");
    text.push(b'\n');
    text
}

/// Reads an entry.
///
/// # Errors
/// When it is not one of this version, whole.
pub fn decode(id: OperationId, data: &[u8]) -> Result<Entry, Unreadable> {
    let broken = |error: serde_json::Error| Unreadable::Broken(error.to_string());
    let file: File<serde_json::Value> = serde_json::from_slice(data).map_err(broken)?;
    if file.version != FORMAT {
        return Err(Unreadable::Version(file.version));
    }
    let entry: Entry = serde_json::from_value(file.operation).map_err(broken)?;
    if entry.id == id { Ok(entry) } else { Err(Unreadable::Misplaced(id, entry.id)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mint_types::ResourceKey;
    use proptest::prelude::*;

    pub(crate) fn intent() -> Intent {
        let node = NodeId::new(1).unwrap();
        Intent {
            node,
            name: "web".parse().unwrap(),
            boots: None,
            steps: vec![Step::Claim { key: ResourceKey::cpu(2), node, driver: None }],
            names: [(node, "web".to_owned())].into(),
        }
    }

    pub(crate) fn entry() -> Entry {
        Entry {
            id: OperationId(7),
            kind: OperationKind::Resize,
            subject: "web".into(),
            asked_by: Asker::User(Some(0)),
            boot_id: 42,
            created_ns: 5,
            started_ns: Some(6),
            ended_ns: None,
            state: OperationState::Running,
            cancel: false,
            past_no_return: false,
            open: Some(intent()),
            in_area: None,
            taken_from: None,
            request: serde_json::json!({"resize": {}}),
            progress: vec!["claim cpu 2".into()],
            dropped_lines: 0,
            result: None,
            error: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(OperationId(7), &encode(&entry())), Ok(entry()));
        let other = decode(OperationId(8), &encode(&entry()));
        assert_eq!(other, Err(Unreadable::Misplaced(OperationId(8), OperationId(7))));
    }

    #[test]
    fn other_version_and_unknown_field_are_told() {
        let text = String::from_utf8(encode(&entry())).unwrap();
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        assert_ne!(newer, text);
        assert_eq!(decode(OperationId(7), newer.as_bytes()), Err(Unreadable::Version(2)));
        let unknown = text.replace("\"kind\"", "\"colour\": 1, \"kind\"");
        let error = decode(OperationId(7), unknown.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut entry = entry();
        entry.progress.clear();
        for line in 0..PROGRESS_KEPT + 3 {
            entry.say(line.to_string());
        }
        assert_eq!((entry.progress.len(), entry.dropped_lines), (PROGRESS_KEPT, 3));
        assert_eq!(entry.progress[0], "3");
    }

    proptest! {
        /// A part of an entry is an error, never another entry.
        #[test]
        fn cut_and_changed_entries_are_told(cut in 0usize..400, flip in 0usize..400, bit in 0u8..8) {
            let whole = encode(&entry());
            let cut = cut.min(whole.len() - 2);
            prop_assert!(decode(OperationId(7), &whole[..cut]).is_err());
            let mut changed = whole.clone();
            changed[flip % whole.len()] ^= 1 << bit;
            // a changed letter of a text may be read: but never as a panic
            _ = decode(OperationId(7), &changed);
        }
    }
}
