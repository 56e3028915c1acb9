// SPDX-License-Identifier: Apache-2.0
//! `doctor --repair`: what the doctor finds half done is brought to an end.

use mint_types::{Kind, NodeStatus, ResState};
use tracing::warn;

use crate::nodes::Nodes;
use crate::outcome::OpError;
use crate::settle::Settled;

impl Nodes {
    /// Settles operations that could not be settled when they ended, parks cores that dead
    /// nodes have not, and gives what a dead kernel was moving back to its owner. Gives what
    /// was done, in words; nothing of it touches a node that runs.
    ///
    /// # Errors
    /// When the ledger or the journal cannot be read. What cannot be healed is no
    /// error: the doctor goes on telling of it.
    pub fn repair(&self) -> Result<Vec<String>, OpError> {
        let mut told = Vec::new();
        for op in self.ops.unsettled() {
            let label = op.entry().label();
            match self.settle(&op) {
                Ok(Settled::TakenBack(left) | Settled::Finished(left)) if left.is_empty() => {
                    told.push(format!("{label} is settled"));
                }
                Ok(Settled::Held(other)) => told.push(format!("{label} is not settled: {other}")),
                Ok(Settled::TakenBack(left) | Settled::Finished(left)) => {
                    told.push(format!("{label} is not settled: {}", left.join("; ")));
                }
                Ok(Settled::Void | Settled::GoOn) => {}
                Err(error) => told.push(format!("{label} is not settled: {error}")),
            }
            op.put_down();
        }
        let inventory = self.inventory()?;
        let dead = |node: &&NodeStatus| {
            !node.state.is_live()
                && inventory.owned(node.id, Kind::Cpu).any(|cpu| !cpu.flags.parked)
        };
        for node in inventory.nodes.iter().filter(dead) {
            match self.machine.kill(node.id, node.boots) {
                Ok(report) => told.push(format!(
                    "{}: {} of {} cores are parked",
                    node.label(),
                    report.parked,
                    report.cpus
                )),
                Err(error) => warn!(node = %node.id, %error, "cores are not parked"),
            }
        }
        let moving = Kind::ALL
            .into_iter()
            .flat_map(|kind| inventory.of_kind(kind))
            .filter(|resource| resource.state == ResState::Moving);
        for resource in moving {
            let Some(owner) = resource.owner.filter(|&owner| !inventory.is_live(owner)) else {
                continue;
            };
            // any call for it takes the dead kernel's move back; this one does no more
            if let Err(error) = self.machine.release(resource.key, owner, true) {
                warn!(key = %resource.key, %error, "stays as it is");
                continue;
            }
            let label = resource.label(&inventory.info);
            told.push(format!("{label} is {}'s, as before it was moved", inventory.label(owner)));
        }
        Ok(told)
    }
}
