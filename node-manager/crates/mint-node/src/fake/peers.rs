// SPDX-License-Identifier: Apache-2.0
//! The daemons of the played machine's other nodes: they do as they are told, by the ledger.

use std::sync::MutexGuard;

use mint_types::{Gift, Kind, NodeId, Refusal, ResState, ResourceKey};

use super::FakeMachine;
use super::state::State;
use crate::peers::{PeerError, Peers, Stopped, in_turn};

fn unreachable(node: NodeId, why: &str) -> PeerError {
    PeerError::Unreachable { node, source: why.into() }
}

impl FakeMachine {
    /// As the peer's daemon sees it, if it answers.
    fn reach(&self, node: NodeId) -> Result<MutexGuard<'_, State>, PeerError> {
        let state = self.lock();
        match state.faults.contains(&format!("peer {node}")) {
            true => Err(unreachable(node, "no route")),
            false => Ok(state),
        }
    }

    fn release_one(&self, node: NodeId, key: ResourceKey) -> Result<(), PeerError> {
        self.fuse.act();
        let mut state = self.reach(node)?;
        let stuck = state.stuck.clone();
        let resource = state.resources.get_mut(&key).expect("planner found it");
        if resource.owner != Some(node) {
            return Err(PeerError::Failed { node, message: "not mine".into() });
        }
        if key.kind == Kind::Memory && stuck.contains(&key.id) {
            let refusal = Box::new(mint_plan::not_movable(key, "a peer", None));
            return Err(PeerError::Refused { node, refusal });
        }
        resource.state = ResState::Free;
        resource.owner = None;
        state.calls.push(format!("peer {node} releases {key}"));
        Ok(())
    }
}

impl Peers for FakeMachine {
    fn release(&self, node: NodeId, keys: &[ResourceKey]) -> Result<(), Stopped<PeerError>> {
        in_turn(keys, |&key| self.release_one(node, key))?;
        match self.lock().faults.remove(&format!("answer of peer {node}")) {
            true => Err(Stopped { at: 0, error: unreachable(node, "connection reset") }),
            false => Ok(()),
        }
    }

    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError> {
        let mut state = self.reach(node)?;
        state.calls.push(format!("peer {node} is asked for {}", keys.len()));
        let answer = |&key: &ResourceKey| match state.immovable(key.id) {
            kinds @ Some(_) if key.kind == Kind::Memory => {
                Err(mint_plan::not_movable(key, "a peer", kinds))
            }
            _ => Ok(()),
        };
        Ok(keys.iter().map(answer).collect())
    }

    fn claim(&self, node: NodeId, gifts: &[Gift]) -> Result<(), Stopped<PeerError>> {
        in_turn(gifts, |gift| {
            self.fuse.act();
            if self.lock().faults.contains(&format!("claims of peer {node}")) {
                return Err(unreachable(node, "connection reset"));
            }
            let mut state = self.reach(node)?;
            let resource = state.resources.get_mut(&gift.key).expect("planner found it");
            resource.state = ResState::Owned;
            resource.owner = Some(node);
            state.calls.push(format!("peer {node} claims {}", gift.key));
            if state.faults.remove(&format!("peer {node} after its claim")) {
                state.faults.insert(format!("peer {node}"));
                return Err(unreachable(node, "connection reset"));
            }
            Ok(())
        })
    }
}
