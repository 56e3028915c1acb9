// SPDX-License-Identifier: Apache-2.0
//! Other nodes' daemons, as far as plans need them: a running node's resources
//! can be given up by its own kernel only.

use mint_types::{NodeId, Refusal, ResourceKey};

/// A peer did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It was not reached.
    #[error("the mintd of node {node} cannot be reached")]
    Unreachable {
        /// Which.
        node: NodeId,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It refused.
    #[error("node {node} refused: {refusal}")]
    Refused {
        /// Which.
        node: NodeId,
        /// Why.
        refusal: Box<Refusal>,
    },
    /// It tried and failed.
    #[error("node {node} failed: {message}")]
    Failed {
        /// Which.
        node: NodeId,
        /// What it said.
        message: String,
    },
}

/// Daemons of other running nodes.
#[expect(clippy::missing_errors_doc, reason = "each fails when the peer does not do it")]
pub trait Peers: Send + Sync {
    /// The peer releases a resource of its own; gives the driver that was bound.
    fn release(&self, node: NodeId, key: ResourceKey) -> Result<Option<String>, PeerError>;
    /// Whether the peer could release these resources: an answer for each, in that order.
    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError>;
    /// The peer claims a free resource for itself and binds the driver.
    fn claim(&self, node: NodeId, key: ResourceKey, driver: Option<&str>) -> Result<(), PeerError>;
}
