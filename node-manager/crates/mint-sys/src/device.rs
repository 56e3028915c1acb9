// SPDX-License-Identifier: Apache-2.0
//! `/dev/mint`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use mint_types::{Kind, MachineInfo, NodeId, NodeState, NodeStatus, Resource, ResourceKey};

use crate::convert::{kind_number, node_id, node_state, node_status, resource};
use crate::deadline::Deadline;
use crate::error::{MoveFailure, REASON_TIMEOUT, SysError};
use crate::uapi;

/// Entries asked for at a time; a machine with more gives them in several calls.
const RESOURCES_AT_A_TIME: usize = 256;

/// An open `/dev/mint`. Closing it has no effect on any node.
#[derive(Debug)]
pub struct Device {
    file: File,
}

/// `MINT_TIMEOUT_MS_DEFAULT`: what a move may take if it is not said.
const MOVE_MS: u32 = 10_000;
/// How a kill ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KillReport {
    /// Cores in the park loop at the end.
    pub parked: u32,
    /// Cores that the node owns.
    pub cpus: u32,
    /// Cores that it owned, and that answered neither NMI nor INIT: nobody's now.
    pub fenced: u32,
}

/// A piece of a node's console.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsoleChunk {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Position after the last of them: where to read on.
    pub next: u64,
    /// Start of the node that they are of.
    pub boots: u32,
}

/// A change of a node's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Number, growing by one.
    pub seq: u64,
    /// Wall clock, ns since 1970.
    pub time_ns: u64,
    /// Which node.
    pub node: NodeId,
    /// From this.
    pub old: NodeState,
    /// To this.
    pub new: NodeState,
    /// How many events were dropped before this one.
    pub lost: u32,
}

impl Device {
    /// Opens the device for calls and, without blocking, for events.
    ///
    /// # Errors
    /// When it is not there (no Mint), may not be opened, or speaks another
    /// version.
    pub fn open(path: &Path) -> Result<Self, SysError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)
            .map_err(|source| SysError::Open { path: path.display().to_string(), source })?;
        let device = Self { file };
        let version = device.info()?.abi_version;
        if version != uapi::ABI_VERSION {
            return Err(SysError::Version { kernel: version, ours: uapi::ABI_VERSION });
        }
        Ok(device)
    }

    /// `MINT_IOC_INFO`.
    ///
    /// # Errors
    /// When the call fails.
    pub fn info(&self) -> Result<MachineInfo, SysError> {
        let call = "MINT_IOC_INFO";
        let mut info = uapi::Info { size: size_of_u32::<uapi::Info>(), ..Default::default() };
        self.call(call, uapi::IOC_INFO, &mut info, || "this machine".into())?;
        if !info.mem_block_bytes.is_power_of_two() {
            return Err(SysError::Answer {
                call,
                field: "mem_block_bytes",
                value: info.mem_block_bytes,
            });
        }
        Ok(MachineInfo {
            node: node_id(call, "node", info.node)?,
            node_max: info.node_max.min(uapi::NODE_NONE),
            numa_nodes: info.numa_nodes,
            mem_block_bytes: info.mem_block_bytes,
            boot_id: info.boot_id,
            abi_version: info.abi_version,
        })
    }

    /// `MINT_IOC_RESOURCES`: all entries of a kind that are not absent.
    ///
    /// # Errors
    /// When the call fails or an entry makes no sense.
    pub fn resources(&self, kind: Kind) -> Result<Vec<Resource>, SysError> {
        let mut found = Vec::new();
        let mut first = 0;
        loop {
            let mut entries = vec![uapi::ResourceEntry::default(); RESOURCES_AT_A_TIME];
            let room = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            let mut request = uapi::Resources {
                size: size_of_u32::<uapi::Resources>(),
                kind: kind_number(kind),
                first,
                count: room,
                entries: entries.as_mut_ptr().expose_provenance() as u64,
                ..Default::default()
            };
            self.call("MINT_IOC_RESOURCES", uapi::IOC_RESOURCES, &mut request, || {
                format!("{kind:?}")
            })?;
            let count = request.count.min(room);
            for entry in entries.iter().take(count as usize) {
                let resource = resource(kind, entry)?;
                if resource.state != mint_types::ResState::Absent || resource.flags.fenced {
                    found.push(resource);
                }
            }
            if count < room {
                return Ok(found);
            }
            first += count;
        }
    }

    /// `MINT_IOC_NODE_GET`; `None` when there is no such node.
    ///
    /// # Errors
    /// When the call fails or the answer makes no sense.
    pub fn node(&self, id: NodeId) -> Result<Option<NodeStatus>, SysError> {
        let mut node = node_request(id.as_u32());
        match self.node_call("MINT_IOC_NODE_GET", uapi::IOC_NODE_GET, &mut node) {
            Ok(()) => {}
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        let status = node_status(&node)?;
        Ok((status.state != NodeState::Unused).then_some(status))
    }

    /// `MINT_IOC_NODE_CREATE` with that id and name.
    ///
    /// # Errors
    /// When the id or the name is taken.
    pub fn node_create(&self, id: NodeId, name: &str) -> Result<(), SysError> {
        let mut node = node_request(id.as_u32());
        for (to, from) in node.name[..uapi::NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        self.node_call("MINT_IOC_NODE_CREATE", uapi::IOC_NODE_CREATE, &mut node)
    }

    /// `MINT_IOC_NODE_DESTROY`.
    ///
    /// # Errors
    /// When the node runs or owns something.
    pub fn node_destroy(&self, id: NodeId) -> Result<(), SysError> {
        let mut node = node_request(id.as_u32());
        self.node_call("MINT_IOC_NODE_DESTROY", uapi::IOC_NODE_DESTROY, &mut node)
    }

    /// `MINT_IOC_NODE_START`: a loaded node's first core leaves the park loop.
    ///
    /// # Errors
    /// When nothing is loaded or the core does not answer.
    pub fn node_start(&self, id: NodeId) -> Result<(), SysError> {
        let mut node = node_request(id.as_u32());
        self.node_call("MINT_IOC_NODE_START", uapi::IOC_NODE_START, &mut node)
    }

    /// `MINT_IOC_NODE_SHUTDOWN`: asks the node's kernel for an orderly poweroff.
    ///
    /// # Errors
    /// When the node does not run.
    pub fn node_shutdown(&self, id: NodeId) -> Result<(), SysError> {
        let mut node = node_request(id.as_u32());
        self.node_call("MINT_IOC_NODE_SHUTDOWN", uapi::IOC_NODE_SHUTDOWN, &mut node)
    }

    /// `MINT_IOC_NODE_KILL`, of start number `boots` of the node (0: whichever).
    ///
    /// # Errors
    /// When there is no such node; `ESTALE` when it has been started again since.
    /// That not all its cores could be parked is no error here: the report tells.
    pub fn node_kill(
        &self,
        id: NodeId,
        boots: u32,
        timeout_ms: u32,
    ) -> Result<KillReport, SysError> {
        let mut kill = uapi::Kill {
            size: size_of_u32::<uapi::Kill>(),
            node: id.as_u32(),
            boots,
            timeout_ms,
            ..Default::default()
        };
        match self
            .call("MINT_IOC_NODE_KILL", uapi::IOC_NODE_KILL, &mut kill, || format!("node {id}"))
        {
            Err(error) if error.errno() != Some(libc::ETIMEDOUT) => return Err(error),
            _ => {}
        }
        Ok(KillReport { parked: kill.parked, cpus: kill.cpus, fenced: kill.fenced })
    }

    /// `MINT_IOC_NODE_VMCORE`: the memory of a node that ended, as an ELF core
    /// file that can be read and sought in, and its length in bytes.
    ///
    /// # Errors
    /// `EBUSY` when it runs, `EAGAIN` when not all its cores are parked, `ENODATA`
    /// when no kernel has ended in its memory. Reading fails with `ESTALE` as soon
    /// as the memory gets another use.
    pub fn node_vmcore(&self, id: NodeId) -> Result<(File, u64), SysError> {
        let call = "MINT_IOC_NODE_VMCORE";
        let mut request = uapi::Vmcore {
            size: size_of_u32::<uapi::Vmcore>(),
            node: id.as_u32(),
            fd: -1,
            ..Default::default()
        };
        self.call(call, uapi::IOC_NODE_VMCORE, &mut request, || format!("node {id}"))?;
        if request.fd < 0 {
            let value = u64::from(request.fd.unsigned_abs());
            return Err(SysError::Answer { call, field: "fd", value });
        }
        // SAFETY: the call succeeded, so the kernel has just opened this descriptor
        // for us; nobody else knows of it.
        let file = unsafe { File::from_raw_fd(request.fd) };
        Ok((file, request.bytes))
    }

    /// `MINT_IOC_CLAIM`: free -> owned by `node`.
    ///
    /// # Errors
    /// [`SysError::Move`] with the kernel's reason.
    pub fn claim(
        &self,
        key: ResourceKey,
        node: NodeId,
        flags: u32,
        timeout_ms: u32,
    ) -> Result<(), SysError> {
        self.move_call("claim", uapi::IOC_CLAIM, key, node, flags, timeout_ms)
    }

    /// `MINT_IOC_RELEASE`: owned by `node` -> free. Of memory, `timeout_ms` is what
    /// moving its content away may take.
    ///
    /// # Errors
    /// [`SysError::Move`] with the kernel's reason.
    pub fn release(
        &self,
        key: ResourceKey,
        node: NodeId,
        flags: u32,
        timeout_ms: u32,
    ) -> Result<(), SysError> {
        self.move_call("release", uapi::IOC_RELEASE, key, node, flags, timeout_ms)
    }

    /// `MINT_IOC_CONSOLE_READ`: up to `room` bytes from position `pos` on.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn console_read(
        &self,
        id: NodeId,
        pos: u64,
        room: usize,
    ) -> Result<ConsoleChunk, SysError> {
        let mut bytes = vec![0u8; room];
        let mut request = uapi::Console {
            size: size_of_u32::<uapi::Console>(),
            node: id.as_u32(),
            pos,
            buf: bytes.as_mut_ptr().expose_provenance() as u64,
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            boots: 0,
        };
        self.call("MINT_IOC_CONSOLE_READ", uapi::IOC_CONSOLE_READ, &mut request, || {
            format!("node {id}")
        })?;
        bytes.truncate(request.len as usize);
        Ok(ConsoleChunk { bytes, next: request.pos, boots: request.boots })
    }

    /// `MINT_IOC_CONSOLE_WRITE`: how many of the bytes were taken.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn console_write(&self, id: NodeId, bytes: &[u8]) -> Result<usize, SysError> {
        let mut request = uapi::Console {
            size: size_of_u32::<uapi::Console>(),
            node: id.as_u32(),
            buf: bytes.as_ptr().expose_provenance() as u64,
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            ..Default::default()
        };
        self.call("MINT_IOC_CONSOLE_WRITE", uapi::IOC_CONSOLE_WRITE, &mut request, || {
            format!("node {id}")
        })?;
        Ok((request.len as usize).min(bytes.len()))
    }

    /// Waits until there is an event, at most `timeout_ms`.
    ///
    /// # Errors
    /// When the kernel cannot wait.
    pub fn wait_for_event(&self, timeout_ms: i32) -> Result<(), SysError> {
        let mut wanted =
            libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `wanted` is one pollfd, exclusively ours, as the count says.
        let result = unsafe { libc::poll(std::ptr::from_mut(&mut wanted), 1, timeout_ms) };
        let source = io::Error::last_os_error();
        if result < 0 && source.kind() != io::ErrorKind::Interrupted {
            return Err(SysError::Call {
                call: "poll of /dev/mint",
                subject: "events".into(),
                source,
            });
        }
        Ok(())
    }

    /// The next event, or `None` when there is none yet.
    ///
    /// # Errors
    /// When reading fails or the event makes no sense.
    pub fn read_event(&self) -> Result<Option<Event>, SysError> {
        let call = "read of /dev/mint";
        let mut raw = [0u8; size_of::<uapi::EventRecord>()];
        let failed = |source| SysError::Call { call, subject: "events".into(), source };
        match (&self.file).read(&mut raw) {
            Ok(0) => return Ok(None),
            Ok(length) if length == raw.len() => {}
            Ok(length) => {
                return Err(SysError::Answer { call, field: "length", value: length as u64 });
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        }
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&raw[at..at + 4]);
            u32::from_ne_bytes(bytes)
        };
        let long = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&raw[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        Ok(Some(Event {
            seq: long(0),
            time_ns: long(8),
            node: node_id(call, "node", word(16))?,
            old: node_state(call, word(20))?,
            new: node_state(call, word(24))?,
            lost: word(28),
        }))
    }

    fn node_call(
        &self,
        call: &'static str,
        request: u64,
        node: &mut uapi::Node,
    ) -> Result<(), SysError> {
        let id = node.node;
        self.call(call, request, node, || format!("node {id}"))
    }

    fn move_call(
        &self,
        call: &'static str,
        request: u64,
        key: ResourceKey,
        node: NodeId,
        flags: u32,
        timeout_ms: u32,
    ) -> Result<(), SysError> {
        let mut argument = uapi::Move {
            size: size_of_u32::<uapi::Move>(),
            kind: kind_number(key.kind),
            id: key.id,
            node: node.as_u32(),
            flags,
            timeout_ms,
            owner: uapi::NODE_NONE,
            reason: 0,
        };
        // The kernel tries for ever to move pages that somebody holds.
        let empties = key.kind == Kind::Memory && request == uapi::IOC_RELEASE;
        let limit_ms = if timeout_ms == 0 { MOVE_MS } else { timeout_ms };
        let deadline = empties.then(|| Deadline::new(Duration::from_millis(limit_ms.into())));
        let deadline = deadline.transpose().map_err(|source| SysError::Call {
            call: "timer_create",
            subject: key.to_string(),
            source,
        })?;
        let result =
            self.call_until(deadline.as_ref(), call, request, &mut argument, || key.to_string());
        result.map_err(|error| {
            let errno = error.errno().unwrap_or(0);
            let reason = if errno == libc::EINTR { REASON_TIMEOUT } else { argument.reason };
            let owner = NodeId::new(argument.owner).ok();
            SysError::Move { call, key, failure: MoveFailure { errno, reason, owner } }
        })
    }

    /// One ioctl. `T` is one of [`uapi`]'s structures, and `request` the number
    /// that was computed from it: both ends agree on the size.
    pub(crate) fn call<T: Copy>(
        &self,
        call: &'static str,
        request: u64,
        argument: &mut T,
        subject: impl Fn() -> String,
    ) -> Result<(), SysError> {
        self.call_until(None, call, request, argument, subject)
    }

    /// The same, and a signal ends it once its time is over.
    fn call_until<T: Copy>(
        &self,
        deadline: Option<&Deadline>,
        call: &'static str,
        request: u64,
        argument: &mut T,
        subject: impl Fn() -> String,
    ) -> Result<(), SysError> {
        debug_assert_eq!(request >> 16 & 0x3fff, size_of::<T>() as u64);
        loop {
            // SAFETY: `file` is open for as long as `self` lives; `argument` is
            // an exclusive reference to a structure without padding whose size
            // is part of `request`; pointers inside of it were made by the
            // callers in this module from buffers that live through the call
            // and are as long as the structure says.
            let result = unsafe {
                libc::ioctl(self.file.as_raw_fd(), request, std::ptr::from_mut(argument))
            };
            if result >= 0 {
                return Ok(());
            }
            let source = io::Error::last_os_error();
            let over = deadline.is_some_and(Deadline::is_over);
            if over || source.kind() != io::ErrorKind::Interrupted {
                return Err(SysError::Call { call, subject: subject(), source });
            }
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

fn node_request(id: u32) -> uapi::Node {
    uapi::Node { size: size_of_u32::<uapi::Node>(), node: id, ..Default::default() }
}

#[expect(clippy::cast_possible_truncation, reason = "asserted; TryFrom is not const")]
pub(crate) const fn size_of_u32<T>() -> u32 {
    let size = size_of::<T>();
    assert!(size <= u32::MAX as usize);
    size as u32
}
