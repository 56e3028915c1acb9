// SPDX-License-Identifier: Apache-2.0
//! The daemons of the played machine's other nodes: they do as they are told, by the ledger.

use std::sync::MutexGuard;

use mint_types::{Kind, NodeId, Refusal, ResState, ResourceKey};

use super::{FakeMachine, State};
use crate::peers::{PeerError, Peers};

impl FakeMachine {
    /// As the peer's daemon sees it, if it answers.
    fn reach(&self, node: NodeId) -> Result<MutexGuard<'_, State>, PeerError> {
        let state = self.lock();
        match state.faults.contains(&format!("peer {node}")) {
            true => Err(PeerError::Unreachable { node, source: "no route".into() }),
            false => Ok(state),
        }
    }
}

impl Peers for FakeMachine {
    fn release(&self, node: NodeId, key: ResourceKey) -> Result<Option<String>, PeerError> {
        let mut state = self.reach(node)?;
        let stuck = state.stuck.clone();
        let resource = state.resources.get_mut(&key).expect("planner found it");
        if resource.owner != Some(node) {
            return Err(PeerError::Failed { node, message: "not mine".into() });
        }
        if key.kind == Kind::Memory && stuck.contains(&key.id) {
            let refusal = Box::new(crate::planner::not_movable(key, "a peer"));
            return Err(PeerError::Refused { node, refusal });
        }
        resource.state = ResState::Free;
        resource.owner = None;
        state.calls.push(format!("peer {node} releases {key}"));
        Ok(None)
    }

    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError> {
        let mut state = self.reach(node)?;
        state.calls.push(format!("peer {node} is asked for {}", keys.len()));
        let pinned = |key: &ResourceKey| key.kind == Kind::Memory && state.pinned.contains(&key.id);
        let answer = |&key: &ResourceKey| match pinned(&key) {
            true => Err(crate::planner::not_movable(key, "a peer")),
            false => Ok(()),
        };
        Ok(keys.iter().map(answer).collect())
    }

    fn claim(&self, node: NodeId, key: ResourceKey, _: Option<&str>) -> Result<(), PeerError> {
        let mut state = self.lock();
        if state.faults.contains(&format!("peer {node}")) {
            return Err(PeerError::Unreachable { node, source: "no route".into() });
        }
        let resource = state.resources.get_mut(&key).expect("planner found it");
        resource.state = ResState::Owned;
        resource.owner = Some(node);
        state.calls.push(format!("peer {node} claims {key}"));
        Ok(())
    }
}
