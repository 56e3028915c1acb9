// SPDX-License-Identifier: Apache-2.0
//! The slots of a machine's control area in memory, by the kernel's rules.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mint_types::NodeId;

use crate::area::{Area, Content, Holder, Place, Seen, Took};
use crate::fake::Fuse;

const SLOTS: u32 = 16;
const NODES: u32 = 8;
const EBUSY: i32 = 16;
const EPERM: i32 = 1;

/// A node and the number of its start.
type Life = (NodeId, u32);

#[derive(Default)]
struct State {
    /// Who holds a slot, and what is in it; damaged ones hold nothing.
    slots: BTreeMap<Place, (Life, Option<Vec<u8>>)>,
    live: BTreeMap<NodeId, u32>,
    boots: BTreeMap<NodeId, u32>,
    unparked: Vec<NodeId>,
}

/// The slots of a machine; clones are the same ones.
#[derive(Clone, Default)]
pub struct Slots(Arc<Mutex<State>>);

impl Slots {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node starts; its daemon sees the slots so, and each change is an act of the
    /// fuse's.
    pub fn start(&self, node: NodeId, fuse: &Fuse) -> SlotsOf {
        let mut state = self.lock();
        let boots = state.boots.get(&node).map_or(1, |last| last + 1);
        state.boots.insert(node, boots);
        state.live.insert(node, boots);
        SlotsOf { slots: self.clone(), node, boots, fuse: fuse.clone() }
    }

    /// The node ends.
    pub fn end(&self, node: NodeId) {
        self.lock().live.remove(&node);
    }

    /// Whether a core of a node that ended may still write.
    pub fn set_unparked(&self, node: NodeId, unparked: bool) {
        let all = &mut self.lock().unparked;
        all.retain(|other| *other != node);
        if unparked {
            all.push(node);
        }
    }

    /// Somebody writes over all that is held.
    pub fn scribble(&self) {
        self.lock().slots.values_mut().for_each(|(_, data)| *data = None);
    }

    /// Replaces what is in a slot by what its holder writes in another version.
    pub fn put(&self, place: Place, data: &[u8]) {
        self.lock().slots.get_mut(&place).expect("a slot that is held").1 = Some(data.to_vec());
    }

    /// Slots that somebody holds.
    pub fn held(&self) -> Vec<Place> {
        self.lock().slots.keys().copied().collect()
    }
}

/// The slots, as one node sees them in one of its lives.
#[derive(Clone)]
pub struct SlotsOf {
    slots: Slots,
    node: NodeId,
    boots: u32,
    fuse: Fuse,
}

impl Area for SlotsOf {
    fn here(&self) -> NodeId {
        self.node
    }

    fn name(&self) -> String {
        format!("node{}", self.node)
    }

    fn boots(&self) -> u32 {
        self.boots
    }

    fn nodes(&self) -> u32 {
        NODES
    }

    fn slots(&self) -> u32 {
        SLOTS
    }

    fn room(&self) -> usize {
        4080
    }

    fn read(&self, place: Place) -> io::Result<Seen> {
        let state = self.slots.lock();
        let Some((holder, data)) = state.slots.get(&place) else {
            return Ok(Seen { holder: Holder::Nobody, content: Content::Empty });
        };
        let content = data.clone().map_or(Content::Damaged, Content::Data);
        let holder = match *holder {
            own if own == (self.node, self.boots) => Holder::Us,
            (node, boots) if state.live.get(&node) == Some(&boots) => Holder::Live(node),
            (node, _) => Holder::Gone(Some(node)),
        };
        Ok(Seen { holder, content })
    }

    fn write(&self, place: Place, data: &[u8]) -> io::Result<bool> {
        self.fuse.act();
        let mut state = self.slots.lock();
        let own = (self.node, self.boots);
        match state.slots.get(&place) {
            None if place.node != self.node => return Err(io::Error::from_raw_os_error(EPERM)),
            Some((holder, _)) if *holder != own => return Ok(false),
            _ => {}
        }
        assert!(data.len() <= self.room());
        state.slots.insert(place, (own, Some(data.to_vec())));
        Ok(true)
    }

    fn clear(&self, place: Place) -> io::Result<()> {
        self.fuse.act();
        let mut state = self.slots.lock();
        match state.slots.get(&place) {
            Some((holder, _)) if *holder != (self.node, self.boots) => {
                Err(io::Error::from_raw_os_error(EBUSY))
            }
            _ => {
                state.slots.remove(&place);
                Ok(())
            }
        }
    }

    fn take(&self, place: Place) -> io::Result<Took> {
        self.fuse.act();
        let mut state = self.slots.lock();
        let own = (self.node, self.boots);
        let Some(&(holder, _)) = state.slots.get(&place) else { return Ok(Took::Lost) };
        let (node, boots) = holder;
        if holder == own {
            return Ok(Took::Ours);
        }
        if state.live.get(&node) == Some(&boots) {
            return Ok(Took::Lost);
        }
        if state.unparked.contains(&node) {
            return Ok(Took::NotYet);
        }
        if let Some(slot) = state.slots.get_mut(&place) {
            slot.0 = own;
        }
        Ok(Took::Ours)
    }
}
