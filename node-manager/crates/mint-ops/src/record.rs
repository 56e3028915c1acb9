// SPDX-License-Identifier: Apache-2.0
//! An operation as the control area has it: what another node needs to end it, compressed.
//! Steps that differ by a number that counts up or down are one run: a node's memory may be
//! thousands of blocks.

use std::fmt;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use mint_types::{OperationKind, Step};
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Origin, Unreadable};

/// Version of the format.
const RECORD_FORMAT: u32 = 1;
/// What a record may unpack to: another node wrote it.
const BYTES_MAX: u64 = 1 << 20;
const STEPS_MAX: usize = 1 << 16;

/// A step, and how many follow it whose resources' numbers count up (or, below 0, down).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Run(Step, i64);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    from: Origin,
    operation: Entry,
    runs: Vec<Run>,
}

/// The step that is `by` further.
fn further(step: &Step, by: i64) -> Option<Step> {
    let mut next = step.clone();
    match &mut next {
        Step::Release { key, .. } | Step::Claim { key, .. } => {
            key.id = u32::try_from(i64::from(key.id).checked_add(by)?).ok()?;
        }
        Step::Create { .. } | Step::Destroy { .. } => return None,
    }
    Some(next)
}

fn runs_of(steps: &[Step]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for step in steps {
        if let Some(Run(first, more)) = runs.last_mut() {
            let longer = |by: i64| further(first, by).as_ref() == Some(step);
            if let Some(by) = [*more + 1, *more - 1]
                .into_iter()
                .find(|&by| (*more == 0 || by.signum() == more.signum()) && longer(by))
                .filter(|by| by.abs() > more.abs())
            {
                *more = by;
                continue;
            }
        }
        runs.push(Run(step.clone(), 0));
    }
    runs
}

fn steps_of(runs: &[Run]) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for Run(first, more) in runs {
        let count = usize::try_from(more.unsigned_abs()).ok()?.checked_add(1)?;
        if steps.len().checked_add(count)? > STEPS_MAX {
            return None;
        }
        steps.push(first.clone());
        for by in 1..=more.abs() {
            steps.push(further(first, by * more.signum())?);
        }
    }
    Some(steps)
}

/// As it is written.
pub(crate) fn encode(entry: &Entry, from: &Origin) -> Vec<u8> {
    let mut operation = Entry {
        progress: Vec::new(),
        dropped_lines: 0,
        result: None,
        error: None,
        ..entry.clone()
    };
    if !matches!(entry.kind, OperationKind::Stop | OperationKind::Restart) {
        // only these go on with their requests
        operation.request = serde_json::Value::Null;
    }
    let steps = operation.open.as_mut().map(|open| std::mem::take(&mut open.steps));
    let runs = runs_of(&steps.unwrap_or_default());
    let file = File { version: RECORD_FORMAT, from: from.clone(), operation, runs };
    let text = serde_json::to_vec(&file).expect("plain data is always JSON");
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed
        .write_all(&text)
        .and_then(|()| packed.finish())
        .expect("memory takes all that is written")
}

/// Reads one, and where its operation was begun.
///
/// # Errors
/// When it is not one of this version, whole and of a sensible length.
pub fn decode_record(data: &[u8]) -> Result<(Entry, Origin), Unreadable> {
    let broken = |why: &dyn fmt::Display| Unreadable::Broken(why.to_string());
    let mut text = Vec::new();
    let mut unpacked = DeflateDecoder::new(data).take(BYTES_MAX + 1);
    unpacked.read_to_end(&mut text).map_err(|error| broken(&error))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(broken(&format_args!("it unpacks to more than {BYTES_MAX} bytes")));
    }
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
    if version != RECORD_FORMAT {
        return Err(Unreadable::Version(version));
    }
    let file: File = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
    let mut entry = file.operation;
    let steps = steps_of(&file.runs).ok_or_else(|| broken(&"its steps make no sense"))?;
    if let Some(open) = &mut entry.open {
        open.steps = steps;
    }
    Ok((entry, file.from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Intent;
    use crate::entry::tests::{entry, intent};
    use mint_types::{NodeId, OperationId, ResourceKey};
    use proptest::prelude::*;

    fn origin() -> Origin {
        let node = NodeId::new(1).unwrap();
        Origin { node, name: "web".into(), id: OperationId(7) }
    }

    fn with(steps: Vec<Step>) -> Entry {
        Entry { open: Some(Intent { steps, ..intent() }), ..entry() }
    }

    fn release(id: u32) -> Step {
        let node = NodeId::new(1).unwrap();
        Step::Release { key: ResourceKey::memory(id), node, driver: None }
    }

    #[test]
    fn what_is_written_is_read_without_what_nobody_needs() {
        let steps = vec![
            Step::Create { node: NodeId::new(1).unwrap(), name: "web".parse().unwrap() },
            release(5),
            release(6),
            release(7),
            release(3),
            release(2),
            release(2),
        ];
        let (read, from) = decode_record(&encode(&with(steps.clone()), &origin())).unwrap();
        assert_eq!(from, origin());
        assert_eq!(read.open.as_ref().unwrap().steps, steps);
        assert_eq!((read.progress.len(), &read.request), (0, &serde_json::Value::Null));
        let same = Entry { progress: Vec::new(), request: read.request.clone(), ..with(steps) };
        assert_eq!(read, same);
        let stop = Entry { kind: OperationKind::Stop, ..entry() };
        let (read, _) = decode_record(&encode(&stop, &origin())).unwrap();
        assert_eq!(read.request, stop.request, "it goes on by it");
    }

    /// A TiB in one piece, and 64 GiB of which every other block is somebody else's.
    #[test]
    fn many_blocks_fit_into_a_slot() {
        let whole = encode(&with((0..8192).map(release).collect()), &origin()).len();
        assert!(whole < 500, "{whole}");
        let scattered = encode(&with((0..512).map(|id| release(2 * id)).collect()), &origin());
        assert!(scattered.len() < 4000, "{}", scattered.len());
    }

    #[test]
    fn records_that_cannot_be_are_told() {
        let pack = |text: &[u8]| {
            let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
            packed.write_all(text).unwrap();
            packed.finish().unwrap()
        };
        // a few kB that would be a GB
        let bomb = pack(&vec![b' '; 4 << 20]);
        assert!(bomb.len() < 8192);
        assert!(matches!(decode_record(&bomb), Err(Unreadable::Broken(_))));
        let text = serde_json::json!({
            "version": RECORD_FORMAT, "from": origin(), "operation": with(vec![]),
            "runs": [Run(release(0), 1 << 40)],
        });
        assert!(matches!(
            decode_record(&pack(text.to_string().as_bytes())),
            Err(Unreadable::Broken(_))
        ));
        let newer = text.to_string().replace("\"version\":1", "\"version\":2");
        assert_eq!(decode_record(&pack(newer.as_bytes())), Err(Unreadable::Version(2)));
        assert!(matches!(decode_record(b""), Err(Unreadable::Broken(_))));
    }

    proptest! {
        #[test]
        fn any_steps_come_back(ids in prop::collection::vec(0u32..12, 0..60)) {
            let steps: Vec<Step> = ids.into_iter().map(release).collect();
            prop_assert_eq!(steps_of(&runs_of(&steps)), Some(steps));
        }

        #[test]
        fn changed_records_never_panic(at in 0usize..400, bit in 0u8..8, cut in 0usize..400) {
            let mut data = encode(&entry(), &origin());
            let length = data.len();
            data[at % length] ^= 1 << bit;
            _ = decode_record(&data);
            _ = decode_record(&data[..cut % length]);
        }
    }
}
