// SPDX-License-Identifier: Apache-2.0
//! What plans act on: the kernel's side of the machine as a trait, so that
//! every plan, rollback and refusal can be tried without privilege.

use std::fs::File;
use std::path::Path;

use mint_plan::Inventory;
use mint_sys::{ConsoleChunk, Device, KillReport, SysError, uapi};
use mint_types::{Kind, MachineInfo, NodeId, NodeState, NodeStatus, Resource, ResourceKey};

/// The kernel's ledger and nodes. Calls may block for as long as a move takes;
/// they may come from several threads.
#[expect(clippy::missing_errors_doc, reason = "each fails when the kernel's call fails")]
pub trait Machine: Send + Sync {
    /// Facts of the machine and of the node that we are on.
    fn info(&self) -> Result<MachineInfo, SysError>;
    /// All resources of a kind.
    fn resources(&self, kind: Kind) -> Result<Vec<Resource>, SysError>;
    /// A node, if it exists.
    fn node(&self, id: NodeId) -> Result<Option<NodeStatus>, SysError>;
    /// Makes a node that owns nothing.
    fn create(&self, id: NodeId, name: &str) -> Result<(), SysError>;
    /// Removes a node that owns nothing.
    fn destroy(&self, id: NodeId) -> Result<(), SysError>;
    /// Puts kernel, initrd and command line into the node's memory.
    fn load(
        &self,
        id: NodeId,
        kernel: &File,
        initrd: Option<&File>,
        cmdline: &str,
    ) -> Result<(), SysError>;
    /// Drops the loaded image.
    fn unload(&self, id: NodeId) -> Result<(), SysError>;
    /// Starts the loaded image.
    fn start(&self, id: NodeId) -> Result<(), SysError>;
    /// Asks the node's kernel for an orderly end.
    fn shutdown(&self, id: NodeId) -> Result<(), SysError>;
    /// Ends the node by force, if it is still at start number `boots` (0: whichever).
    fn kill(&self, id: NodeId, boots: u32) -> Result<KillReport, SysError>;
    /// Free -> owned by `node`; `dry_run` only asks whether it would work.
    fn claim(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError>;
    /// Owned by `node` -> free; `dry_run` only asks whether it would work.
    fn release(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError>;
    /// Console of a node, from byte `pos` on.
    fn console_read(&self, id: NodeId, pos: u64) -> Result<ConsoleChunk, SysError>;
    /// Keys to a node's console; how many were taken.
    fn console_write(&self, id: NodeId, bytes: &[u8]) -> Result<usize, SysError>;
    /// The memory of a node that ended, as an ELF core file, and its length in bytes.
    fn vmcore(&self, id: NodeId) -> Result<(File, u64), SysError>;

    /// Whether there is no such node: it has no record, and owns nothing. Kernels remove only
    /// nodes that own nothing, so one that does and has no record was written over.
    fn is_gone(&self, id: NodeId) -> Result<bool, SysError> {
        if self.node(id)?.is_some() {
            return Ok(false);
        }
        for kind in Kind::ALL {
            if self.resources(kind)?.iter().any(|resource| resource.owner == Some(id)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All nodes that exist.
    fn nodes(&self) -> Result<Vec<NodeStatus>, SysError> {
        let max = self.info()?.node_max;
        let mut nodes = Vec::new();
        for id in NodeId::below(max) {
            nodes.extend(self.node(id)?);
        }
        Ok(nodes)
    }
}

/// The ledger, now: all resources and nodes, one after the other.
///
/// # Errors
/// When a call to the kernel fails.
pub fn read_ledger(machine: &dyn Machine) -> Result<Inventory, SysError> {
    Ok(Inventory {
        info: machine.info()?,
        cpus: machine.resources(Kind::Cpu)?,
        memory: machine.resources(Kind::Memory)?,
        devices: machine.resources(Kind::Device)?,
        nodes: machine.nodes()?,
    })
}

/// The running kernel's `/dev/mint`.
#[derive(Debug)]
pub struct KernelMachine {
    device: Device,
    move_timeout_ms: u32,
}

/// Console bytes asked for in one call.
const CONSOLE_CHUNK_BYTES: usize = 16 * 1024;

impl KernelMachine {
    /// Opens `/dev/mint`; a single move may take `move_timeout_ms`.
    ///
    /// # Errors
    /// When this kernel runs without Mint.
    pub fn open(path: &Path, move_timeout_ms: u32) -> Result<Self, SysError> {
        Ok(Self { device: Device::open(path)?, move_timeout_ms })
    }

    fn move_flags(dry_run: bool) -> u32 {
        if dry_run { uapi::MOVE_DRY_RUN } else { 0 }
    }
}

impl Machine for KernelMachine {
    fn info(&self) -> Result<MachineInfo, SysError> {
        self.device.info()
    }

    fn resources(&self, kind: Kind) -> Result<Vec<Resource>, SysError> {
        self.device.resources(kind)
    }

    fn node(&self, id: NodeId) -> Result<Option<NodeStatus>, SysError> {
        Ok(self.device.node(id)?.filter(|node| node.state != NodeState::Unused))
    }

    fn create(&self, id: NodeId, name: &str) -> Result<(), SysError> {
        self.device.node_create(id, name)
    }

    fn destroy(&self, id: NodeId) -> Result<(), SysError> {
        self.device.node_destroy(id)
    }

    fn load(
        &self,
        id: NodeId,
        kernel: &File,
        initrd: Option<&File>,
        cmdline: &str,
    ) -> Result<(), SysError> {
        mint_sys::load_node_image(id, kernel, initrd, cmdline)
    }

    fn unload(&self, id: NodeId) -> Result<(), SysError> {
        mint_sys::unload_node_image(id)
    }

    fn start(&self, id: NodeId) -> Result<(), SysError> {
        self.device.node_start(id)
    }

    fn shutdown(&self, id: NodeId) -> Result<(), SysError> {
        self.device.node_shutdown(id)
    }

    fn kill(&self, id: NodeId, boots: u32) -> Result<KillReport, SysError> {
        self.device.node_kill(id, boots, 0)
    }

    fn claim(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        self.device.claim(key, node, Self::move_flags(dry_run), self.move_timeout_ms)
    }

    fn release(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        self.device.release(key, node, Self::move_flags(dry_run), self.move_timeout_ms)
    }

    fn console_read(&self, id: NodeId, pos: u64) -> Result<ConsoleChunk, SysError> {
        self.device.console_read(id, pos, CONSOLE_CHUNK_BYTES)
    }

    fn console_write(&self, id: NodeId, bytes: &[u8]) -> Result<usize, SysError> {
        self.device.console_write(id, bytes)
    }

    fn vmcore(&self, id: NodeId) -> Result<(File, u64), SysError> {
        self.device.node_vmcore(id)
    }
}
