// SPDX-License-Identifier: Apache-2.0
//! Where intents are that any node can read: slots which outlive the node that wrote them.

use std::fmt;
use std::io;

use mint_types::NodeId;

/// A slot for one intent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The node whose slot it is, whoever holds it.
    pub node: NodeId,
    /// Its number.
    pub slot: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "intent {} of node {} in the control area", self.slot, self.node)
    }
}

/// Who may write a slot: a node, in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// This node, since it was started.
    Us,
    /// Another node, which runs.
    Live(NodeId),
    /// A life that is over: of that node, if it is still known.
    Gone(Option<NodeId>),
}

/// What is in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing.
    Empty,
    /// Somebody wrote over it.
    Damaged,
    /// What was last written whole.
    Data(Vec<u8>),
}

/// A slot at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Who holds it.
    pub holder: Holder,
    /// What is in it.
    pub content: Content,
}

/// How a try to take a slot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Took {
    /// It is this node's.
    Ours,
    /// It is another one's.
    Lost,
    /// Cores of the node that died may still write it.
    NotYet,
}

/// The slots, as this node sees them.
#[expect(clippy::missing_errors_doc, reason = "each fails when the kernel's call fails")]
pub trait Area: Send + Sync {
    /// This node.
    fn here(&self) -> NodeId;
    /// Its name.
    fn name(&self) -> String;
    /// Which of its starts this is.
    fn boots(&self) -> u32;
    /// How many node ids there are.
    fn nodes(&self) -> u32;
    /// Slots of each node.
    fn slots(&self) -> u32;
    /// Bytes that fit into one.
    fn room(&self) -> usize;
    /// A slot of any node.
    fn read(&self, place: Place) -> io::Result<Seen>;
    /// A slot that this node holds, or one of its own that nobody does: all of it, or
    /// nothing. False: it is another one's.
    fn write(&self, place: Place, data: &[u8]) -> io::Result<bool>;
    /// Empties a slot that this node holds; nobody's from then on.
    fn clear(&self, place: Place) -> io::Result<()>;
    /// A slot whose holder's life is over is this node's. Of several that try, one gets it.
    fn take(&self, place: Place) -> io::Result<Took>;

    /// All slots there are.
    fn places(&self) -> Vec<Place> {
        let nodes = (0..self.nodes()).filter_map(|node| NodeId::new(node).ok());
        nodes.flat_map(|node| (0..self.slots()).map(move |slot| Place { node, slot })).collect()
    }
}

/// There is no room for an intent: its operation has changed nothing yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoom {
    /// It is too long.
    #[error(
        "what it is going to change takes {bytes} bytes to write down, and an intent in the \
         control area has room for {room}"
    )]
    TooLong {
        /// Length of the intent, in bytes.
        bytes: usize,
        /// What a slot has room for.
        room: usize,
    },
    /// All slots are in use.
    #[error(
        "{slots} operations of this node have begun, and the control area has no room for more"
    )]
    Full {
        /// How many there are.
        slots: u32,
    },
}
