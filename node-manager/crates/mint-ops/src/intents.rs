// SPDX-License-Identifier: Apache-2.0
//! Intents of open operations, written into the control area as well as into their files: a
//! node that dies with its folder leaves them to whoever takes them.
//!
//! ```text
//!   begin     slot ─▶ file          a slot is never older than its file
//!   commit    slot (over) ─▶ file ─▶ slot empty
//!   the daemon died   its successor goes by the slot, or by the file if that is damaged
//!   the node died     who takes the slot goes by it; its own daemon, back again, looks
//!                     whether it still can take it, and leaves it to the other if not
//! ```

use std::io;
use std::path::PathBuf;

use tracing::warn;

use crate::area::{Area, Content, Holder, NoRoom, Place, Seen, Took};
use crate::entry::{Entry, Origin};
use crate::record::{decode_record, encode};
use crate::slot::Slot;
use crate::store::JournalError;

pub(crate) fn failed(
    action: &'static str,
    place: Option<Place>,
) -> impl FnOnce(io::Error) -> JournalError {
    let path = place.map_or_else(|| "control area".into(), |place| place.to_string());
    move |source| JournalError { action, path: PathBuf::from(path), source }
}

/// A slot that somebody holds, as far as it can be read.
pub(crate) struct Found {
    pub place: Place,
    pub holder: Holder,
    pub record: Option<(Entry, Origin)>,
}

pub(crate) fn look(
    area: &dyn Area,
    place: Place,
) -> Result<(Seen, Option<(Entry, Origin)>), JournalError> {
    let seen = area.read(place).map_err(failed("read it", Some(place)))?;
    let record = match &seen.content {
        Content::Data(data) if seen.holder != Holder::Nobody => decode_record(data).ok(),
        _ => None,
    };
    Ok((seen, record))
}

pub(crate) fn found(area: &dyn Area) -> Result<Vec<Found>, JournalError> {
    let mut all = Vec::new();
    for place in area.places() {
        let (Seen { holder, .. }, record) = look(area, place)?;
        if holder != Holder::Nobody {
            all.push(Found { place, holder, record });
        }
    }
    Ok(all)
}

/// A slot of this node that nobody holds: this node neither. One that was written over is
/// of no use to anybody else.
fn empty(area: &dyn Area) -> Result<Option<Place>, JournalError> {
    let own = || (0..area.slots()).map(|slot| Place { node: area.here(), slot });
    for place in own() {
        if look(area, place)?.0.holder == Holder::Nobody {
            return Ok(Some(place));
        }
    }
    for place in own() {
        let (seen, _) = look(area, place)?;
        if matches!(
            (seen.holder, &seen.content),
            (Holder::Gone(_), Content::Empty | Content::Damaged)
        ) {
            let took = area.take(place).map_err(failed("take it", Some(place)))?;
            if took == Took::Ours {
                area.clear(place).map_err(failed("clear it", Some(place)))?;
                return Ok(Some(place));
            }
        }
    }
    Ok(None)
}

/// Who began an operation of this daemon's, as its slot says it.
fn origin(entry: &Entry, area: &dyn Area) -> Origin {
    let own = || Origin { node: area.here(), name: area.name(), id: entry.id };
    entry.taken_from.clone().unwrap_or_else(own)
}

fn is_of(record: Option<&(Entry, Origin)>, wanted: &Origin) -> bool {
    record.is_some_and(|(_, from)| (from.node, from.id) == (wanted.node, wanted.id))
}

/// Goes on with what the slot says, which is never older than the file.
fn adopt(slot: &mut Slot, place: Place, record: Entry) {
    slot.place = Some(place);
    slot.entry.open = record.open;
    slot.entry.past_no_return |= record.past_no_return;
}

pub(crate) fn is_unreadable(area: &dyn Area, place: Place) -> Result<bool, JournalError> {
    let (seen, record) = look(area, place)?;
    Ok(record.is_none() && seen.content != Content::Empty)
}

/// An operation's intent, into the control area: before its file is written.
pub(crate) fn publish(area: Option<&dyn Area>, slot: &mut Slot) -> Result<(), JournalError> {
    let Some(area) = area else { return Ok(()) };
    if slot.dry_run || (slot.entry.open.is_none() && slot.place.is_none()) {
        return Ok(());
    }
    slot.entry.in_area = Some(area.boots());
    let data = encode(&slot.entry, &origin(&slot.entry, area));
    let place = slot.place;
    let no_room = |why: NoRoom| failed("write it", place)(io::Error::other(why));
    if data.len() > area.room() {
        return Err(no_room(NoRoom::TooLong { bytes: data.len(), room: area.room() }));
    }
    let place = match place {
        Some(place) => place,
        None => empty(area)?.ok_or_else(|| no_room(NoRoom::Full { slots: area.slots() }))?,
    };
    if !area.write(place, &data).map_err(failed("write it", Some(place)))? {
        // nobody takes what a node holds that runs
        let source = io::Error::other("another node has it");
        return Err(failed("write it", Some(place))(source));
    }
    slot.place = Some(place);
    Ok(())
}

/// Its file could not be written: the slot says again what it said.
pub(crate) fn unpublish(area: Option<&dyn Area>, slot: &mut Slot, was_in: Option<Place>) {
    let (Some(area), Some(place)) = (area, slot.place) else { return };
    let undone = if was_in.is_none() {
        slot.place = None;
        area.clear(place)
    } else {
        let data = encode(&slot.entry, &origin(&slot.entry, area));
        area.write(place, &data).map(|_| ())
    };
    if let Err(error) = undone {
        warn!(%place, %error, "is newer than its file");
    }
}

/// Its file says that nothing is open any more.
pub(crate) fn withdraw(area: Option<&dyn Area>, slot: &mut Slot) {
    let (Some(area), Some(place)) = (area, slot.place) else { return };
    if slot.entry.open.is_some() {
        return;
    }
    match area.clear(place) {
        Ok(()) => slot.place = None,
        Err(error) => warn!(%place, %error, "is not given back"),
    }
}

/// Of operations that are open in their files: whether this node still has them.
pub(crate) fn look_at_area<'a>(
    area: Option<&dyn Area>,
    boot_id: u64,
    all: impl Iterator<Item = &'a mut Slot>,
) -> Result<(), JournalError> {
    let open = all.filter(|slot| slot.entry.open.is_some() && slot.entry.boot_id == boot_id);
    let open = open.filter(|slot| slot.entry.in_area.is_some());
    let Some(area) = area else {
        for slot in open {
            // whether another node has taken it nobody can tell here
            slot.unknown = slot.entry.in_area.is_some();
        }
        return Ok(());
    };
    let all = found(area)?;
    for slot in open {
        let wanted = origin(&slot.entry, area);
        let same_life = slot.entry.in_area == Some(area.boots());
        let its = all.iter().find(|found| is_of(found.record.as_ref(), &wanted));
        let damaged = || all.iter().any(|found| found.record.is_none());
        match its.map(|found| (found.place, found.holder)) {
            Some((place, Holder::Us | Holder::Gone(_))) => {
                let took = area.take(place).map_err(failed("take it", Some(place)))?;
                let (_, record) = look(area, place)?;
                match record.filter(|record| is_of(Some(record), &wanted)) {
                    Some((record, _)) if took == Took::Ours => adopt(slot, place, record),
                    _ => slot.elsewhere = Some(None),
                }
            }
            Some((_, Holder::Live(node))) => slot.elsewhere = Some(Some(node)),
            // nobody takes from a node that runs: the slot was written over
            Some((_, Holder::Nobody)) | None if same_life => {}
            None if damaged() => slot.unknown = true,
            Some((_, Holder::Nobody)) | None => slot.elsewhere = Some(None),
        }
        if slot.elsewhere.is_some() {
            slot.entry.open = None;
        }
    }
    Ok(())
}
