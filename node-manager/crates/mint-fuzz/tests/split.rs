// SPDX-License-Identifier: Apache-2.0
//! What a memory server and a pager hear from each other: frames whose check sum is right, of
//! somebody who means no good.

use mint_fuzz::fuzz;
use mint_split::{
    Frame, Geometry, Greeting, HEADER_BYTES, Header, PAGE, PAGE_BYTES, PageNo, PageRun, Pages,
    SubNo, Version,
};
use mint_store::{Ended, Kept, answers};

const LIMIT_PAGES: u64 = 8;
const CRC_AT: usize = HEADER_BYTES - 4;

fn geometry() -> Geometry {
    Geometry::new(16 * PAGE_BYTES, 4 * PAGE_BYTES).expect("whole chunks")
}

fn pages(first: u64, bytes: &[u8]) -> Pages {
    let mut pages = Pages::from(PageNo(first));
    for &byte in bytes {
        pages.push(Version(2), &[byte; PAGE]);
    }
    pages
}

fn greeting() -> Greeting {
    Greeting {
        uuid: [1; 16],
        secret: [2; 16],
        epoch: 3,
        memory_bytes: 4,
        main: None,
        takes_ages: false,
    }
}

fn stream(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.bytes().expect("small frames")).collect()
}

/// The frames of a stream, as far as they can be read; their check sums are made right.
fn frames(bytes: &[u8]) -> (Vec<Frame>, String) {
    let (mut rest, mut all) = (bytes.to_vec(), Vec::new());
    loop {
        if rest.len() < HEADER_BYTES {
            return (all, "end".to_owned());
        }
        let claimed = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        let end = HEADER_BYTES.saturating_add(claimed).min(rest.len());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&rest[..CRC_AT]), &rest[HEADER_BYTES..end]);
        rest[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let head = rest.first_chunk().expect("it is long enough");
        let frame = Header::read(head).and_then(|header| header.frame(&rest[HEADER_BYTES..end]));
        match frame {
            Ok(frame) => {
                // what was understood is said as it was
                assert_eq!(frame_of(&frame.bytes().expect("it was read")), frame);
                all.push(frame);
            }
            Err(error) => return (all, error.to_string()),
        }
        rest.drain(..end);
    }
}

fn frame_of(bytes: &[u8]) -> Frame {
    let head = bytes.first_chunk().expect("a header");
    let header = Header::read(head).expect("a good one");
    header.frame(&bytes[HEADER_BYTES..]).expect("a good frame")
}

#[test]
fn memory_server() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let run = |first, count| PageRun { first: PageNo(first), count };
    let versions = |page| vec![(PageNo(page), Version(2)), (PageNo(page + 1), Version(1))];
    let seeds = [
        stream(&[Frame::Out(pages(0, &[1, 0, 3])), Frame::In(run(0, 4)), Frame::List]),
        stream(&[Frame::Out(pages(12, &[1])), Frame::Drop(versions(12)), Frame::In(run(13, 1))]),
        stream(&[Frame::Kept(versions(3)), Frame::Listed(versions(9)), Frame::Missing(run(4, 4))]),
        stream(&[
            Frame::Hello(greeting()),
            Frame::Welcome,
            Frame::Copy(pages(4, &[0, 2])),
            Frame::Words(PageNo(0), vec![0, 1, 11]),
            Frame::Ages(PageNo(1), vec![0, 128, 3]),
            Frame::Subs(0, vec![SubNo(0), SubNo(1)]),
        ]),
    ];
    let tally = fuzz("memory server", &seeds, |bytes| {
        Kept::delete(folder.path(), "guest").unwrap();
        let mut kept = Kept::open(folder.path(), "guest", geometry(), LIMIT_PAGES).unwrap();
        let (heard, mut word) = frames(bytes);
        for frame in heard {
            match answers(&mut kept, frame) {
                Ok(said) => {
                    for frame in said {
                        assert!(frame.fits(geometry()) && frame.bytes().is_some(), "{frame:?}");
                    }
                }
                Err(Ended::Refused(reason)) => {
                    word = format!("{reason:?}");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let listed = kept.list().unwrap();
        assert!(listed.iter().all(|&(page, _)| geometry().has(page)), "{listed:?}");
        assert!(kept.bytes() <= LIMIT_PAGES * PAGE_BYTES);
        let again = Kept::open(folder.path(), "guest", geometry(), LIMIT_PAGES).unwrap();
        assert_eq!(again.bytes(), kept.bytes());
        word
    });
    tally.must_have(&["end", "OtherSize", "Confused", "the payload is not what the header says"]);
}
