// SPDX-License-Identifier: Apache-2.0
//! What its kernel does.

use std::fs::File;
use std::io::{Read, Seek};

use mint_sys::{ConsoleChunk, KillReport, SysError};
use mint_types::{
    Kind, MachineInfo, NodeId, NodeState, NodeStatus, ResState, Resource, ResourceKey,
};

use super::FakeMachine;
use super::state::{
    BLOCK_BYTES, EBUSY, EEXIST, ENODATA, ENOENT, EOPNOTSUPP, EPERM, ESTALE, errno, refuse,
};
use crate::machine::Machine;

impl Machine for FakeMachine {
    fn info(&self) -> Result<MachineInfo, SysError> {
        Ok(MachineInfo {
            node: NodeId::new(self.here).expect("constant"),
            node_max: self.lock().node_max,
            numa_nodes: 2,
            mem_block_bytes: BLOCK_BYTES,
            boot_id: 42,
            abi_version: 1,
        })
    }

    fn resources(&self, kind: Kind) -> Result<Vec<Resource>, SysError> {
        Ok(self.lock().resources.values().filter(|r| r.key.kind == kind).cloned().collect())
    }

    fn node(&self, id: NodeId) -> Result<Option<NodeStatus>, SysError> {
        Ok(self.lock().nodes.get(&id).cloned())
    }

    fn create(&self, id: NodeId, name: &str) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("create", &format!("node {id}"))?;
        if state.nodes.contains_key(&id) || state.nodes.values().any(|node| node.name == name) {
            return Err(errno("create", id, EEXIST));
        }
        state.calls.push(format!("create {id} {name}"));
        state.add_node(id.as_u32(), name, NodeState::Stopped);
        Ok(())
    }

    fn destroy(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("destroy", &format!("node {id}"))?;
        if state.resources.values().any(|r| r.owner == Some(id)) || state.is_live(id) {
            return Err(errno("destroy", id, EBUSY));
        }
        state.calls.push(format!("destroy {id}"));
        state.nodes.remove(&id).map(drop).ok_or_else(|| errno("destroy", id, ENOENT))
    }

    fn load(
        &self,
        id: NodeId,
        _: &File,
        initrd: Option<&File>,
        cmdline: &str,
    ) -> Result<(), SysError> {
        let read = |mut file: &File| {
            let mut bytes = Vec::new();
            let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
            read.map(|_| bytes).expect("what is loaded can be read")
        };
        let bytes = initrd.map(read).unwrap_or_default();
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("load", &format!("node {id}"))?;
        state.calls.push(format!("load {id} {cmdline}"));
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno("load", id, ENOENT))?;
        if node.state.is_live() {
            return Err(errno("load", id, EBUSY));
        }
        node.state = NodeState::Loaded;
        state.initrds.insert(id, bytes);
        Ok(())
    }

    fn unload(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        let mut state = self.lock();
        match state.nodes.get_mut(&id) {
            Some(node) if node.state == NodeState::Loaded => {
                node.state = NodeState::Stopped;
                Ok(())
            }
            _ => Err(errno("unload", id, ENOENT)),
        }
    }

    fn start(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("start", &format!("node {id}"))?;
        state.calls.push(format!("start {id}"));
        match state.nodes.get_mut(&id) {
            Some(node) if node.state == NodeState::Loaded => {
                node.state = NodeState::Running;
                node.boots += 1;
                Ok(())
            }
            _ => Err(errno("start", id, EBUSY)),
        }
    }

    fn shutdown(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        let mut state = self.lock();
        state.fault("shutdown", &format!("node {id}"))?;
        match state.nodes.get_mut(&id) {
            Some(node) if node.state.is_live() => {
                node.state = NodeState::Halted;
                Ok(())
            }
            _ => Err(errno("shutdown", id, EBUSY)),
        }
    }

    fn kill(&self, id: NodeId, boots: u32) -> Result<KillReport, SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("kill", &format!("node {id}"))?;
        state.calls.push(format!("kill {id}"));
        let cpus = state
            .resources
            .values()
            .filter(|r| r.key.kind == Kind::Cpu && r.owner == Some(id))
            .count();
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno("kill", id, ENOENT))?;
        if boots != 0 && boots != node.boots {
            return Err(errno("kill", id, ESTALE));
        }
        // one that has ended keeps its own word for it
        if node.state.is_live() {
            node.state = NodeState::Killed;
        }
        for cpu in state.resources.values_mut() {
            if cpu.key.kind == Kind::Cpu && cpu.owner == Some(id) {
                cpu.flags.parked = true;
            }
        }
        Ok(KillReport { parked: cpus, cpus, fenced: 0 })
    }

    fn claim(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        if !dry_run {
            self.fuse.act();
            self.doom.reached();
        }
        let mut state = self.lock();
        if !dry_run && state.panics.take_if(|call| *call == format!("claim {key} {node}")).is_some()
        {
            drop(state);
            panic!("a bug, on purpose");
        }
        let here = self.here;
        if node.as_u32() != here && state.is_live(node) {
            return Err(refuse("claim", key, EBUSY, 9, Some(node)));
        }
        state.move_fault("claim", key, node)?;
        let Some(resource) = state.resources.get_mut(&key) else {
            return Err(refuse("claim", key, ENOENT, 1, None));
        };
        if resource.state != ResState::Free {
            return Err(refuse("claim", key, EBUSY, 3, resource.owner));
        }
        if dry_run {
            return Ok(());
        }
        resource.state = ResState::Owned;
        resource.owner = Some(node);
        resource.changes += 1;
        state.calls.push(format!("claim {key} {node}"));
        Ok(())
    }

    fn release(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        if !dry_run {
            self.fuse.act();
            self.doom.reached();
        }
        let mut state = self.lock();
        let here = self.here;
        if node.as_u32() != here && state.is_live(node) {
            return Err(refuse("release", key, EBUSY, 9, Some(node)));
        }
        state.move_fault("release", key, node)?;
        let has_driver = key.bdf().is_some_and(|bdf| state.drivers.contains_key(&bdf));
        let refused = state.refused.get(&key).copied();
        let Some(resource) = state.resources.get_mut(&key) else {
            return Err(refuse("release", key, ENOENT, 1, None));
        };
        if resource.state == ResState::Moving && node.as_u32() != here {
            // the kernel that moved it has died
            resource.state = ResState::Owned;
        }
        if resource.owner != Some(node) {
            return Err(refuse("release", key, EPERM, 2, resource.owner));
        }
        if let Some(reason) = refused {
            return Err(refuse("release", key, EOPNOTSUPP, reason, Some(node)));
        }
        if node.as_u32() == here && has_driver {
            return Err(refuse("release", key, EBUSY, 6, Some(node)));
        }
        if key.kind == Kind::Memory && node == NodeId::ZERO {
            return Err(refuse("release", key, EBUSY, 5, Some(node)));
        }
        if dry_run {
            return Ok(());
        }
        state.move_fault("try release", key, node)?;
        let resource = state.resources.get_mut(&key).expect("found above");
        resource.state = ResState::Free;
        resource.owner = None;
        resource.changes += 1;
        state.calls.push(format!("release {key} {node}"));
        Ok(())
    }

    fn console_read(&self, id: NodeId, pos: u64) -> Result<ConsoleChunk, SysError> {
        let state = self.lock();
        if !state.nodes.contains_key(&id) {
            return Err(errno("console_read", id, ENOENT));
        }
        let all = state.consoles.get(&id).map_or(&[][..], Vec::as_slice);
        let at = usize::try_from(pos).unwrap_or(usize::MAX).min(all.len());
        Ok(ConsoleChunk { bytes: all[at..].to_vec(), next: all.len() as u64, boots: 1 })
    }

    /// What is written comes back, as from a shell that echoes.
    fn console_write(&self, id: NodeId, bytes: &[u8]) -> Result<usize, SysError> {
        let mut state = self.lock();
        state.consoles.entry(id).or_default().extend(bytes);
        Ok(bytes.len())
    }

    /// The console of a node that has ended stands for its memory.
    fn vmcore(&self, id: NodeId) -> Result<(File, u64), SysError> {
        let state = self.lock();
        if state.is_live(id) {
            return Err(errno("vmcore", id, EBUSY));
        }
        let Some(bytes) = state.consoles.get(&id) else {
            return Err(errno("vmcore", id, ENODATA));
        };
        let file = mint_sys::sealed_file(&[bytes]).expect("this system has memfd");
        Ok((file, bytes.len() as u64))
    }
}
