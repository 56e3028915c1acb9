// SPDX-License-Identifier: Apache-2.0
//! Everything that reads bytes of somebody else.

use std::io::Write;

use mint_api::frame::{FRAME_BYTES_MAX, FrameKind, read_frame, write_frame};
use mint_fuzz::{fuzz, fuzz_json};
use mint_image::cpio::Archive;
use mint_image::initrd::InitrdFault;
use mint_image::kernel_image::ImageFault;
use mint_image::{initrd, kernel_image};
use mint_ops::{Entry, Intent, Unreadable, decode, encode};
use mint_types::{Asker, NodeId, OperationId, OperationKind, OperationState, ResourceKey, Step};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

#[test]
fn frames() {
    let stream = |parts: &[(FrameKind, &[u8])]| {
        let mut wire = Vec::new();
        for (kind, data) in parts {
            run(write_frame(&mut wire, *kind, data)).unwrap();
        }
        wire
    };
    let exec: &[u8] = br#"{"argv":["sh","-c","true"]}"#;
    let seeds = [
        stream(&[(FrameKind::Request, exec), (FrameKind::StdinEnd, b"")]),
        stream(&[(FrameKind::Stdout, b"out"), (FrameKind::Stderr, b"err")]),
        stream(&[(FrameKind::Stdout, &[7; 3000]), (FrameKind::Exit, br#"{"status":0}"#)]),
    ];
    let tally = fuzz("frames", &seeds, |bytes| {
        let mut reader = bytes;
        let mut read = 0;
        loop {
            match run(read_frame(&mut reader)) {
                Ok(Some(frame)) => {
                    assert!(frame.data.len() <= FRAME_BYTES_MAX);
                    // a frame that was read is written as it was
                    let mut again = Vec::new();
                    run(write_frame(&mut again, frame.kind, &frame.data)).unwrap();
                    assert_eq!(again, bytes[read..read + again.len()]);
                    read += again.len();
                }
                Ok(None) => return "end".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    });
    tally.must_have(&["end", "unknown kind of frame", "frame is too long", "early eof"]);
}

/// An initrd in each format, and several behind each other.
fn initrds() -> Vec<Vec<u8>> {
    let mut archive = Archive::new();
    archive.folder("etc", 0o755);
    archive.file("etc/motd", 0o644, &vec![b'x'; 500]);
    archive.file("init", 0o755, b"#!/bin/sh\n");
    let plain = archive.finish();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain).expect("memory takes it");
    let gzip = encoder.finish().expect("memory takes it");
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(plain.as_slice(), level);
    let both = [plain.clone(), gzip.clone()].concat();
    vec![plain, gzip, zstd, both]
}

#[test]
fn initrd_and_its_cpio_archives() {
    let tally = fuzz("initrd", &initrds(), |bytes| match initrd::check_bytes(bytes) {
        Ok(_) => "good".to_owned(),
        Err(InitrdFault::Unknown { at: 0 }) => "unknown".to_owned(),
        Err(InitrdFault::Unknown { .. }) => "unknown behind a good one".to_owned(),
        Err(InitrdFault::TooLarge) => "too large".to_owned(),
        // the words of it: the decoders tell numbers, too
        Err(InitrdFault::Broken { why, .. }) => {
            let words = why.split(['(', '{']).next().unwrap_or_default().split_whitespace();
            words.take(5).collect::<Vec<_>>().join(" ")
        }
    });
    tally.must_have(&["good", "unknown", "unknown behind a good one"]);
    tally.must_have(&["a cpio header is damaged", "the cpio archive ends early"]);
    // gzip's and zstd's decoders, behind their headers
    tally.must_have(&["corrupt deflate stream", "Failed to parse block header:"]);
}

#[test]
fn kernel_image() {
    let seeds = [kernel_image::pretend_kernel()];
    let tally = fuzz("kernel image", &seeds, |bytes| match kernel_image::check_bytes(bytes) {
        Ok(()) => "good".to_owned(),
        Err(ImageFault::NotKernel(why) | ImageFault::NoMint(why)) => why.to_owned(),
        Err(ImageFault::Truncated { expected, found }) => {
            assert!(expected > found, "{expected} bytes wanted, {found} there");
            "truncated".to_owned()
        }
    });
    tally.must_have(&["good", "truncated", "it carries no Mint mark"]);
}

/// The number under which the journal keeps what is read.
const OPERATION: OperationId = OperationId(7);

/// Operations that wait, are in the middle, and are over; another one's, and one of
/// another version.
fn operations() -> Vec<Vec<u8>> {
    let queued = Entry {
        id: OPERATION,
        kind: OperationKind::Add,
        subject: "web".into(),
        asked_by: Asker::User(Some(0)),
        boot_id: 0xfeed_beef,
        created_ns: 1_700_000_000_000_000_000,
        started_ns: None,
        ended_ns: None,
        state: OperationState::Queued,
        cancel: false,
        past_no_return: false,
        open: None,
        request: serde_json::json!({"add": {"spec": {"name": "web", "cpus": "3-4"}}}),
        progress: Vec::new(),
        dropped_lines: 0,
        result: None,
        error: None,
        in_area: None,
        taken_from: None,
    };
    let node = NodeId::new(1).expect("a good id");
    let disk = ResourceKey::device("0000:03:00.0".parse().expect("a good address"));
    let steps = vec![
        Step::Create { node, name: "web".parse().expect("a good name") },
        Step::Release { key: disk, node: NodeId::ZERO, driver: Some("nvme".into()) },
        Step::Claim { key: ResourceKey::cpu(3), node, driver: None },
    ];
    let running = Entry {
        state: OperationState::Running,
        started_ns: Some(1_700_000_000_000_000_001),
        open: Some(Intent {
            node,
            name: "web".parse().expect("a good name"),
            boots: Some(2),
            steps,
            names: [(NodeId::ZERO, "node0".to_owned()), (node, "web".to_owned())].into(),
        }),
        progress: vec!["release 0000:03:00.0".into(), "claim cpu 3".into()],
        ..queued.clone()
    };
    let over = Entry {
        kind: OperationKind::Remove,
        asked_by: Asker::Peer(Some(node)),
        state: OperationState::Failed,
        cancel: true,
        past_no_return: true,
        ended_ns: Some(u64::MAX),
        dropped_lines: 3,
        error: Some(serde_json::json!({"code": "failed", "message": "no"})),
        ..running.clone()
    };
    let misplaced = Entry { id: OperationId(8), ..queued.clone() };
    let write = |entry: Entry| {
        let bytes = encode(&entry);
        assert_eq!(decode(entry.id, &bytes), Ok(entry));
        bytes
    };
    let mut seeds: Vec<_> = [queued, running, over, misplaced].map(write).into();
    let text = String::from_utf8(seeds[0].clone()).expect("JSON is text");
    seeds.push(text.replace("\"version\": 1", "\"version\": 2").into_bytes());
    seeds
}

/// In a word, what the journal's reader makes of a file.
fn read_entry(bytes: &[u8]) -> String {
    match decode(OPERATION, bytes) {
        Ok(entry) => {
            assert_eq!(entry.id, OPERATION, "another operation's");
            // what was taken for an entry is one: the next daemon reads the same
            assert_eq!(decode(OPERATION, &encode(&entry)).as_ref(), Ok(&entry));
            "read".to_owned()
        }
        Err(Unreadable::Version(version)) => {
            assert_ne!(version, mint_ops::FORMAT);
            "another version".to_owned()
        }
        Err(Unreadable::Misplaced(_, found)) => {
            assert_ne!(found, OPERATION);
            "another operation's".to_owned()
        }
        // its first words: the rest names fields, numbers and places
        Err(Unreadable::Broken(why)) if !why.starts_with(char::is_alphabetic) => {
            "not a value of that type".to_owned()
        }
        Err(Unreadable::Broken(why)) => {
            why.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn journal() {
    let tally = fuzz("journal", &operations(), read_entry);
    tally.must_have(&["read", "another version", "another operation's", "unknown field"]);
    tally.must_have(&["missing field", "invalid type:", "EOF while"]);
}

#[test]
fn journal_of_good_json() {
    let tally = fuzz_json("journal, by its fields", &operations(), read_entry);
    tally.must_have(&["read", "another version", "another operation's", "unknown field"]);
    tally.must_have(&["missing field", "invalid type:", "invalid value:", "unknown variant"]);
}
