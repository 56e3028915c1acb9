// SPDX-License-Identifier: Apache-2.0
//! `MINT_IOC_INTENT_*`: slots of the control area in which operations say what they are
//! about to change. They outlive their node.

use mint_types::NodeId;

use crate::device::{Device, size_of_u32};
use crate::error::SysError;
use crate::uapi;

/// What the machine has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntentLimits {
    /// Slots of each node.
    pub slots: u32,
    /// Bytes that fit into one.
    pub bytes: u32,
}

/// Who holds a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentHolder {
    /// Nobody.
    Nobody,
    /// This node's kernel.
    Us,
    /// Another kernel that runs: of that node.
    Live(NodeId),
    /// A kernel that runs no more: of that node, if it is still known.
    Gone(Option<NodeId>),
}

/// What is in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IntentContent {
    /// Nothing.
    Empty,
    /// It was written over: neither of its copies makes sense.
    Damaged,
    /// What was last written whole.
    Data(Vec<u8>),
}

/// A slot, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntentSlot {
    /// Who holds it.
    pub holder: IntentHolder,
    /// What is in it.
    pub content: IntentContent,
}

fn holder(request: &uapi::Intent) -> IntentHolder {
    let is = |flag| request.flags & flag != 0;
    // whatever is written there: a node that cannot be is gone
    match NodeId::new(request.holder).ok() {
        _ if !is(uapi::INTENTF_HELD) => IntentHolder::Nobody,
        _ if is(uapi::INTENTF_OURS) => IntentHolder::Us,
        Some(node) if is(uapi::INTENTF_LIVE) => IntentHolder::Live(node),
        node => IntentHolder::Gone(node),
    }
}

impl Device {
    /// What the machine has room for; none where an older node 0 laid its control area
    /// out, or this kernel knows nothing of intents.
    ///
    /// # Errors
    /// When the call fails.
    pub fn intent_limits(&self) -> Result<Option<IntentLimits>, SysError> {
        let mut info = uapi::Info { size: size_of_u32::<uapi::Info>(), ..Default::default() };
        self.call("MINT_IOC_INFO", uapi::IOC_INFO, &mut info, || "this machine".into())?;
        let limits = IntentLimits { slots: info.intent_slots, bytes: info.intent_bytes };
        Ok((limits.slots > 0 && limits.bytes > 0).then_some(limits))
    }

    fn intent_call(
        &self,
        call: &'static str,
        number: u64,
        request: &mut uapi::Intent,
    ) -> Result<(), SysError> {
        let (node, slot) = (request.node, request.slot);
        self.call(call, number, request, || format!("intent {slot} of node {node}"))
    }

    /// `MINT_IOC_INTENT_READ`: a slot of that node; `room` is [`IntentLimits::bytes`].
    ///
    /// # Errors
    /// When there is no such slot.
    pub fn intent_read(&self, node: NodeId, slot: u32, room: u32) -> Result<IntentSlot, SysError> {
        let mut bytes = vec![0u8; room as usize];
        let mut request = uapi::Intent {
            buf: bytes.as_mut_ptr().expose_provenance() as u64,
            len: room,
            ..intent_request(node, slot)
        };
        let done = self.intent_call("MINT_IOC_INTENT_READ", uapi::IOC_INTENT_READ, &mut request);
        let content = match done {
            Ok(()) => {
                bytes.truncate(request.len as usize);
                IntentContent::Data(bytes)
            }
            Err(error) if error.errno() == Some(libc::ENODATA) => IntentContent::Empty,
            Err(error) if error.errno() == Some(libc::EBADMSG) => IntentContent::Damaged,
            Err(error) => return Err(error),
        };
        Ok(IntentSlot { holder: holder(&request), content })
    }

    /// `MINT_IOC_INTENT_WRITE`: all of it is there afterwards, or what was there before.
    /// False: another node holds the slot.
    ///
    /// # Errors
    /// `EMSGSIZE` when it does not fit, `EPERM` for an empty slot of another node.
    pub fn intent_write(&self, node: NodeId, slot: u32, data: &[u8]) -> Result<bool, SysError> {
        let mut request = uapi::Intent {
            buf: data.as_ptr().expose_provenance() as u64,
            len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            ..intent_request(node, slot)
        };
        let done = self.intent_call("MINT_IOC_INTENT_WRITE", uapi::IOC_INTENT_WRITE, &mut request);
        match done {
            Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// `MINT_IOC_INTENT_WRITE` without data: the slot is empty, and nobody's.
    ///
    /// # Errors
    /// `EBUSY` when another node holds it.
    pub fn intent_clear(&self, node: NodeId, slot: u32) -> Result<(), SysError> {
        let mut request = intent_request(node, slot);
        match self.intent_call("MINT_IOC_INTENT_WRITE", uapi::IOC_INTENT_WRITE, &mut request) {
            Err(error) if error.errno() == Some(libc::ENODATA) => Ok(()),
            done => done,
        }
    }

    /// `MINT_IOC_INTENT_TAKE`: this kernel holds the slot from now on. False: its holder
    /// runs, or another node was quicker, or it is empty.
    ///
    /// # Errors
    /// `EAGAIN` when not all cores of its dead holder are parked.
    pub fn intent_take(&self, node: NodeId, slot: u32) -> Result<bool, SysError> {
        let mut request = intent_request(node, slot);
        let done = self.intent_call("MINT_IOC_INTENT_TAKE", uapi::IOC_INTENT_TAKE, &mut request);
        match done {
            Err(error) => match error.errno() {
                Some(libc::EBUSY | libc::ENODATA) => Ok(false),
                Some(libc::EALREADY) => Ok(true),
                _ => Err(error),
            },
            Ok(()) => Ok(true),
        }
    }
}

fn intent_request(node: NodeId, slot: u32) -> uapi::Intent {
    uapi::Intent {
        size: size_of_u32::<uapi::Intent>(),
        node: node.as_u32(),
        slot,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_that_cannot_be_are_gone() {
        let told =
            |node, flags| holder(&uapi::Intent { holder: node, flags, ..Default::default() });
        let one = NodeId::new(1).unwrap();
        let (held, live) = (uapi::INTENTF_HELD, uapi::INTENTF_HELD | uapi::INTENTF_LIVE);
        assert_eq!(told(uapi::NODE_NONE, 0), IntentHolder::Nobody);
        assert_eq!(told(uapi::NODE_NONE, held), IntentHolder::Gone(None), "it was removed");
        assert_eq!(told(1, held), IntentHolder::Gone(Some(one)));
        assert_eq!(told(1, live), IntentHolder::Live(one));
        assert_eq!(told(1, live | uapi::INTENTF_OURS), IntentHolder::Us);
        assert_eq!(told(300, live), IntentHolder::Gone(None), "no node has such an id");
    }
}
