// SPDX-License-Identifier: Apache-2.0
//! Everything that reads bytes of somebody else.

use std::io::Write;

use mint_api::frame::{FRAME_BYTES_MAX, FrameKind, read_frame, write_frame};
use mint_fuzz::fuzz;
use mint_node::cpio::Archive;
use mint_node::initrd::InitrdFault;
use mint_node::kernel_image::ImageFault;
use mint_node::{initrd, kernel_image};

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
