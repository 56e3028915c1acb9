// SPDX-License-Identifier: Apache-2.0
//! The control area's slots for intents, as the running kernel gives them.

use std::io;
use std::path::Path;

use mint_ops::{Area, Content, Holder, Place, Seen, Took};
use mint_sys::{Device, IntentContent, IntentHolder, IntentLimits, SysError};
use mint_types::{NodeId, NodeStatus};
use tracing::warn;

/// `EAGAIN`.
const NOT_PARKED: i32 = 11;

/// `/dev/mint`, of this life of this node.
struct KernelArea {
    device: Device,
    limits: IntentLimits,
    here: NodeId,
    nodes: u32,
    boots: u32,
}

/// None where there is no room for intents: operations go on by their files alone.
///
/// # Errors
/// When the kernel's device cannot be used.
pub(crate) fn open(device: &Path) -> Result<Option<Box<dyn Area>>, SysError> {
    let device = Device::open(device)?;
    let info = device.info()?;
    let Some(limits) = device.intent_limits()? else {
        warn!(
            "this kernel, or the one of node 0 that laid the control area out, has no room for \
             intents: if this node dies with its state folder, nobody ends what it was at"
        );
        return Ok(None);
    };
    let boots = device.node(info.node)?.map_or(0, |node| node.boots);
    let area = KernelArea { device, limits, here: info.node, nodes: info.node_max, boots };
    Ok(Some(Box::new(area)))
}

impl Area for KernelArea {
    fn here(&self) -> NodeId {
        self.here
    }

    fn name(&self) -> String {
        let status = self.device.node(self.here).ok().flatten();
        status.as_ref().map_or_else(|| format!("node{}", self.here), NodeStatus::display_name)
    }

    fn boots(&self) -> u32 {
        self.boots
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn slots(&self) -> u32 {
        self.limits.slots
    }

    fn room(&self) -> usize {
        self.limits.bytes as usize
    }

    fn read(&self, place: Place) -> io::Result<Seen> {
        let slot = self.device.intent_read(place.node, place.slot, self.limits.bytes);
        let slot = slot.map_err(io::Error::other)?;
        let holder = match slot.holder {
            IntentHolder::Nobody => Holder::Nobody,
            IntentHolder::Us => Holder::Us,
            IntentHolder::Live(node) => Holder::Live(node),
            IntentHolder::Gone(node) => Holder::Gone(node),
        };
        let content = match slot.content {
            IntentContent::Empty => Content::Empty,
            IntentContent::Damaged => Content::Damaged,
            IntentContent::Data(data) => Content::Data(data),
        };
        Ok(Seen { holder, content })
    }

    fn write(&self, place: Place, data: &[u8]) -> io::Result<bool> {
        self.device.intent_write(place.node, place.slot, data).map_err(io::Error::other)
    }

    fn clear(&self, place: Place) -> io::Result<()> {
        self.device.intent_clear(place.node, place.slot).map_err(io::Error::other)
    }

    fn take(&self, place: Place) -> io::Result<Took> {
        match self.device.intent_take(place.node, place.slot) {
            Ok(true) => Ok(Took::Ours),
            Ok(false) => Ok(Took::Lost),
            Err(error) if error.errno() == Some(NOT_PARKED) => Ok(Took::NotYet),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}
