// SPDX-License-Identifier: Apache-2.0
//! Other nodes' daemons, as far as plans need them: a running node's resources
//! can be given up by its own kernel only.

use mint_types::{Gift, NodeId, Refusal, ResourceKey};

/// A peer did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It was not reached.
    #[error("the mintd of node {node} cannot be reached")]
    Unreachable {
        /// The node whose daemon was asked.
        node: NodeId,
        /// What the connection said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It refused.
    #[error("node {node} refused: {refusal}")]
    Refused {
        /// The node whose daemon was asked.
        node: NodeId,
        /// Its reason.
        refusal: Box<Refusal>,
    },
    /// It tried and failed.
    #[error("node {node} failed: {message}")]
    Failed {
        /// The node whose daemon was asked.
        node: NodeId,
        /// What it said.
        message: String,
    },
}

/// The first of several resources that was not moved; those before it were.
#[derive(Debug)]
pub struct Stopped<E> {
    /// Which of them, counted from 0.
    pub at: usize,
    /// Why it was not done.
    pub error: E,
}

/// Does the same for one after the other, up to the first that fails.
pub(crate) fn in_turn<T, E>(
    all: &[T],
    mut act: impl FnMut(&T) -> Result<(), E>,
) -> Result<(), Stopped<E>> {
    for (at, one) in all.iter().enumerate() {
        act(one).map_err(|error| Stopped { at, error })?;
    }
    Ok(())
}

/// Daemons of other running nodes.
#[expect(clippy::missing_errors_doc, reason = "each fails when the peer does not do it")]
pub trait Peers: Send + Sync {
    /// The peer releases resources of its own, in this order.
    fn release(&self, node: NodeId, keys: &[ResourceKey]) -> Result<(), Stopped<PeerError>>;
    /// Whether the peer could release these resources: an answer for each, in that order.
    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError>;
    /// The peer claims free resources for itself, in this order, and binds drivers.
    fn claim(&self, node: NodeId, gifts: &[Gift]) -> Result<(), Stopped<PeerError>>;
}
