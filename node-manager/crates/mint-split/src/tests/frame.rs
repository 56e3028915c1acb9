// SPDX-License-Identifier: Apache-2.0
//! Frames as they go over the wire.

use proptest::prelude::*;

use super::*;
use crate::geometry::PAGE_BYTES;

fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
    let (head, payload) = bytes.split_at(HEADER_BYTES);
    Header::read(head.try_into().unwrap())?.frame(payload)
}

fn pages() -> Pages {
    let mut pages = Pages::from(PageNo(7 << 32));
    pages.push(Version(3), &[0; PAGE]);
    pages.push(Version::MAX, &[0xa5; PAGE]);
    pages.push(Version(1), &[1; PAGE]);
    pages
}

fn greeting(main: Option<NodeStart>) -> Greeting {
    Greeting {
        uuid: [1; 16],
        secret: [2; 16],
        epoch: 1 << 40,
        memory_bytes: 3 << 40,
        main,
        takes_ages: main.is_some(),
    }
}

fn all() -> Vec<Frame> {
    let versions = vec![(PageNo(9), Version(4)), (PageNo(5), Version::MAX)];
    let run = PageRun { first: PageNo(6), count: 2 };
    vec![
        Frame::Hello(greeting(None)),
        Frame::Hello(greeting(Some(NodeStart { node: 0, boots: 0 }))),
        Frame::Look(greeting(Some(NodeStart { node: 63, boots: u32::MAX }))),
        Frame::Welcome,
        Frame::Out(pages()),
        Frame::Kept(versions.clone()),
        Frame::In(run),
        Frame::Data(pages()),
        Frame::Missing(run),
        Frame::Drop(versions.clone()),
        Frame::List,
        Frame::Listed(versions),
        Frame::Listed(Vec::new()),
        Frame::Refused(Reason::Full),
        Frame::Copy(pages()),
        Frame::Ready,
        Frame::Words(PageNo(7 << 32), vec![0, u32::MAX, 5]),
        Frame::Ages(PageNo(7 << 32), vec![0, 255, 128]),
        Frame::Subs(1 << 40, vec![SubNo(0), SubNo(u16::MAX)]),
        Frame::Final,
        Frame::Taken,
    ]
}

#[test]
fn frame_is_read_as_it_was_said() {
    for frame in all() {
        let bytes = frame.bytes().unwrap();
        assert_eq!(read(&bytes), Ok(frame));
    }
    let said: Vec<_> = pages()
        .each()
        .map(|(page, version, bytes)| (page.0, version.0, bytes.map(|b| b[0])))
        .collect();
    assert_eq!(
        said,
        [
            (7 << 32, 3, None),
            ((7 << 32) + 1, Version::MAX.0, Some(0xa5)),
            ((7 << 32) + 2, 1, Some(1))
        ]
    );
    // zeros are not sent
    assert_eq!(
        Frame::Out(pages()).bytes().unwrap().len(),
        HEADER_BYTES + 3 * ENTRY_BYTES + 2 * PAGE
    );
}

#[test]
fn bit_that_changes_on_its_way_is_seen() {
    for frame in all() {
        let bytes = frame.bytes().unwrap();
        for bit in (0..bytes.len() * 8).filter(|bit| bit / 8 < 64 || bit % 1009 == 0) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(read(&changed), Ok(frame.clone()), "bit {bit} of {frame:?}");
            assert!(read(&changed).is_err(), "bit {bit} of {frame:?}");
        }
    }
}

#[test]
fn what_is_no_frame_says_why() {
    let good = Frame::Welcome.bytes().unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read(&bytes)
    };
    assert_eq!(with(0, b'X'), Err(FrameError::Magic(*b"XS")));
    assert_eq!(with(2, 2), Err(FrameError::Protocol(2)));
    assert_eq!(with(3, 99), Err(FrameError::Kind(99)));
    assert_eq!(with(7, 0x7f), Err(FrameError::Size(0x7f00_0000)));
    assert_eq!(with(20, 1), Err(FrameError::Crc));
}

#[test]
fn page_that_was_never_taken_out_is_not_understood() {
    let mut pages = Pages::from(PageNo(1));
    pages.push(Version(0), &[1; PAGE]);
    assert_eq!(read(&Frame::Out(pages).bytes().unwrap()), Err(FrameError::Payload));
}

#[test]
fn frame_that_is_too_large_is_not_made() {
    let mut pages = Pages::from(PageNo(0));
    for _ in 0..CHUNK_MAX {
        pages.push(Version(1), &[1; PAGE]);
    }
    let largest = Frame::Out(pages.clone());
    assert_eq!(read(&largest.bytes().unwrap()), Ok(largest));
    pages.push(Version(1), &[1; PAGE]);
    assert_eq!(Frame::Out(pages).bytes(), None);
    assert_eq!(Frame::Out(Pages::from(PageNo(0))).bytes(), None, "it brings nothing");
    let far = vec![(PageNo(0), Version(1)), (PageNo(1 << 32), Version(1))];
    assert_eq!(Frame::Kept(far).bytes(), None);
}

#[test]
fn pages_of_another_guest_or_of_two_chunks_do_not_fit() {
    let geometry = Geometry::new(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
    let run = |first, count| Frame::In(PageRun { first: PageNo(first), count });
    assert!(run(4, 4).fits(geometry));
    assert!(!run(3, 2).fits(geometry) && !run(8, 1).fits(geometry) && !run(0, 0).fits(geometry));
    assert!(!Frame::Out(pages()).fits(geometry));
    assert!(Frame::Kept(vec![(PageNo(7), Version(1))]).fits(geometry));
    assert!(!Frame::Kept(vec![(PageNo(8), Version(1))]).fits(geometry));
}

#[test]
fn words_beyond_a_guest_do_not_fit() {
    let geometry = Geometry::new(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
    assert!(Frame::Ages(PageNo(6), vec![1, 1]).fits(geometry));
    assert!(!Frame::Ages(PageNo(7), vec![1, 1]).fits(geometry));
    assert!(Frame::Words(PageNo(6), vec![1, 1]).fits(geometry));
    assert!(!Frame::Words(PageNo(7), vec![1, 1]).fits(geometry));
    assert!(!Frame::Words(PageNo(u64::MAX), vec![1, 1]).fits(geometry));
    assert!(Frame::Subs(0, vec![SubNo(1); 2]).fits(geometry));
    assert!(!Frame::Subs(1, vec![SubNo(1); 2]).fits(geometry));
    assert_eq!(Frame::Words(PageNo(0), vec![0; WORDS_MAX + 1]).bytes(), None);
    assert_eq!(Frame::Ages(PageNo(0), vec![0; AGES_MAX + 1]).bytes(), None);
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(head in proptest::array::uniform32(any::<u8>()), rest in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..20u8) {
        let mut head = head;
        head[..4].copy_from_slice(&[b'M', b'S', 1, kind]);
        head[4..8].copy_from_slice(&u32::try_from(rest.len()).unwrap().to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..CRC_AT]), &rest);
        head[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        // whatever is understood is said again in the same way
        if let Ok(frame) = Header::read(&head).and_then(|header| header.frame(&rest)) {
            prop_assert!(frame.bytes().is_some());
            let again = frame.bytes().unwrap();
            prop_assert_eq!(read(&again), Ok(frame));
        }
    }
}
