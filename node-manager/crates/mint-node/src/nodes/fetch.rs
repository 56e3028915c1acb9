// SPDX-License-Identifier: Apache-2.0
//! Cores of nodes: those that a dead one has not parked, and the end by force.

use std::thread;
use std::time::{Duration, Instant};

use mint_ops::Op;
use mint_types::{Kind, NodeState, NodeStatus, OperationKind};
use tracing::{info, warn};

use crate::nodes::{Nodes, about};
use crate::outcome::OpError;

/// A panic says so before it stops the other cores, and prints.
const PARKS_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 2000 });
const LOOK: Duration = Duration::from_millis(50);

impl Nodes {
    /// Whether a kernel ended there, and left a core outside the park loop.
    pub(crate) fn is_stranded(&self, node: &NodeStatus) -> Result<bool, OpError> {
        let ended = matches!(
            node.state,
            NodeState::Halted | NodeState::Reboot | NodeState::Crashed | NodeState::Killed
        );
        Ok(ended && {
            let inventory = self.inventory()?;
            inventory.owned(node.id, Kind::Cpu).any(|cpu| !cpu.flags.parked)
        })
    }

    /// Brings the cores of a node that ended to the park loop, if they do not get
    /// there themselves. Gives what is to be told, in words.
    ///
    /// # Errors
    /// When one stays away, and may still run.
    pub(crate) fn fetch_cores(&self, op: &Op, node: &NodeStatus) -> Result<Vec<String>, OpError> {
        let began = Instant::now();
        while self.is_stranded(node)? {
            if began.elapsed() > PARKS_WITHIN {
                op.progress(&format!("fetch the cores that {} left behind", node.label()));
                return self.kill_node(op, node);
            }
            thread::sleep(LOOK);
        }
        Ok(Vec::new())
    }

    /// All its cores in the park loop, whether it runs or has ended. Gives what is
    /// to be told, in words.
    ///
    /// # Errors
    /// When one stays away, and may still run.
    pub(crate) fn kill_node(&self, op: &Op, node: &NodeStatus) -> Result<Vec<String>, OpError> {
        op.check()?;
        let kills = op.entry().kind == OperationKind::Kill;
        if kills {
            op.begin(about(node), true)?;
        }
        let report = self.machine.kill(node.id, node.boots).map_err(|source| OpError::Kernel {
            action: format!("kill {}", node.label()),
            source,
        })?;
        info!(node = %node.id, parked = report.parked, cpus = report.cpus, "killed");
        if kills {
            op.commit()?;
        }
        if report.parked < report.cpus {
            return Err(OpError::NotParked {
                node: node.label(),
                parked: report.parked,
                cpus: report.cpus,
            });
        }
        if report.fenced == 0 {
            return Ok(Vec::new());
        }
        warn!(node = %node.id, fenced = report.fenced, "cores do not come to the park loop");
        Ok(vec![format!(
            "{} of the cores of {} answered neither NMI nor INIT and can be nobody's until they do, or the machine \
             restarts: mintctl cpu list shows them as fenced",
            report.fenced,
            node.label()
        )])
    }
}
