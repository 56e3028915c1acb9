// SPDX-License-Identifier: Apache-2.0
//! Intents in the control area, which another node wrote: damaged as they lie there, and
//! behind their compression, where no checksum is left.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use mint_fuzz::fuzz;
use mint_ops::fake::Memory;
use mint_ops::fake_area::Slots;
use mint_ops::{Area, Content, Intent, Operations, Place, Request, Unreadable, decode_record};
use mint_types::{Asker, NodeId, OperationKind, ResourceKey, Step};

/// What a daemon writes when an operation of that kind begins.
fn written(kind: OperationKind, steps: Vec<Step>) -> Vec<u8> {
    let node = NodeId::new(1).expect("good input");
    let store = Memory::default();
    let area = Slots::default().start(node, &store.fuse);
    let ops =
        Operations::open_with(store, Some(Box::new(area.clone())), 42, || 5).expect("good input");
    let request = Request {
        kind,
        subject: "web".into(),
        asked_by: Asker::User(Some(0)),
        body: serde_json::json!({"stop": ["web", {"timeout_s": 5}]}),
        part_of: None,
        dry_run: false,
    };
    let names = [(node, "web".to_owned())].into();
    let intent =
        Intent { node, name: "web".parse().expect("good input"), boots: Some(3), steps, names };
    ops.submit(request).expect("good input").begin(intent, false).expect("good input");
    match area.read(Place { node, slot: 0 }).expect("good input").content {
        Content::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let node = NodeId::new(1).expect("good input");
    let release = |id| Step::Release { key: ResourceKey::memory(id), node, driver: None };
    let steps = (10..20).chain([3, 2, 1]).map(release).collect();
    vec![written(OperationKind::Resize, steps), written(OperationKind::Stop, Vec::new())]
}

fn answer(data: &[u8]) -> String {
    match decode_record(data) {
        Ok((entry, _)) => {
            assert!(entry.open.is_none_or(|open| open.steps.len() <= 1 << 16));
            "good".to_owned()
        }
        Err(Unreadable::Version(_)) => "version".to_owned(),
        Err(Unreadable::Broken(why)) if why.contains("steps make no sense") => "steps".to_owned(),
        Err(Unreadable::Broken(why)) if why.contains("deflate") => "deflate".to_owned(),
        Err(other) => {
            other.to_string().split(['`', '(', ' ']).next().unwrap_or_default().to_owned()
        }
    }
}

#[test]
fn intents_as_they_lie_there() {
    fuzz("intents", &seeds(), answer).must_have(&["good", "deflate"]);
}

#[test]
fn intents_behind_their_compression() {
    let unpack = |data: Vec<u8>| {
        let mut text = Vec::new();
        DeflateDecoder::new(data.as_slice()).read_to_end(&mut text).unwrap();
        text
    };
    let texts: Vec<_> = seeds().into_iter().map(unpack).collect();
    let tally = fuzz("unpacked intents", &texts, |text| {
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text).unwrap();
        answer(&packed.finish().unwrap())
    });
    tally.must_have(&["good", "unknown", "missing"]);
}
