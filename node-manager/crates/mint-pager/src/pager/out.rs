// SPDX-License-Identifier: Apache-2.0
//! Pages as frames for memory servers: those that follow each other in a chunk are one, if they are
//! not too many.

use std::io;

use mint_split::{Frame, Geometry, PAGE, PageNo, Pages, Version};

/// What asks for a page waits for the end of a frame.
const FRAME_PAGES: usize = 8;

/// What is said of these pages, in order; `read` gives what so many of them from one on have.
///
/// # Errors
/// When they cannot be read.
pub(super) fn frames(
    geometry: Geometry,
    pages: &[(PageNo, Version)],
    mut read: impl FnMut(PageNo, &mut [[u8; PAGE]]) -> io::Result<()>,
) -> io::Result<Vec<Frame>> {
    let follows = |(one, _): &(PageNo, Version), (other, _): &(PageNo, Version)| {
        one.0 + 1 == other.0 && geometry.chunk_of(*one) == geometry.chunk_of(*other)
    };
    let mut all = Vec::new();
    for run in pages.chunk_by(follows).flat_map(|run| run.chunks(FRAME_PAGES)) {
        let Some(&(first, _)) = run.first() else { continue };
        let mut bytes = vec![[0; PAGE]; run.len()];
        read(first, &mut bytes)?;
        let mut out = Pages::from(first);
        run.iter().zip(&bytes).for_each(|((_, version), bytes)| out.push(*version, bytes));
        all.push(Frame::Out(out));
    }
    Ok(all)
}
