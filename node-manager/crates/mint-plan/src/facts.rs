// SPDX-License-Identifier: Apache-2.0
//! What a plan asks beyond the ledger. Nothing is changed by an answer.

use mint_types::{Bdf, NodeId, NodeSpec, Refusal, ResourceKey};

use crate::inventory::Inventory;

/// Answers about this node, of its kernel, and of peers.
#[expect(clippy::missing_errors_doc, reason = "each says why not")]
pub trait Facts {
    /// Driver that is bound to a function of this node.
    fn driver(&self, bdf: Bdf) -> Option<String>;
    /// Who uses a function of this node, in words: empty when it can be given away.
    fn users(&self, bdf: Bdf) -> Vec<String>;
    /// Other functions of the same IOMMU group, without bridges.
    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf>;
    /// Whether a resource of this node, or of one that does not run, could be released.
    fn can_release(
        &self,
        inventory: &Inventory,
        key: ResourceKey,
        owner: NodeId,
    ) -> Result<(), Refusal>;
    /// Whether a running peer could release these, for each of them; or why it cannot be
    /// asked, in words.
    fn releasable(
        &self,
        peer: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, String>;
    /// Whether a node of that many bytes can boot what the description says: what is to be
    /// told of it, and every reason why not.
    fn check_images(&self, spec: &NodeSpec, memory_bytes: u64) -> (Vec<String>, Vec<Refusal>);
}
