// SPDX-License-Identifier: Apache-2.0
//! Frames, one after the other, on whatever carries bytes.

use std::io::{self, IoSlice, Read, Write};

use crate::frame::{Frame, FrameError, HEADER_BYTES, Header};

/// No frame came.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// The other side has closed the connection, or it broke.
    #[error("the connection")]
    Io(#[from] io::Error),
    /// What came is not understood.
    #[error("what came")]
    Frame(#[from] FrameError),
}

/// The next frame.
///
/// # Errors
/// When none comes, or it is not understood: nothing after it can be, either.
pub fn hear(from: &mut impl Read) -> Result<Frame, HearError> {
    let mut head = [0; HEADER_BYTES];
    from.read_exact(&mut head)?;
    let header = Header::read(&head)?;
    // what pages have is not copied again
    let mut payload = vec![0; header.head_bytes()];
    from.read_exact(&mut payload)?;
    let mut rest = vec![0; header.payload_bytes - payload.len()];
    from.read_exact(&mut rest)?;
    Ok(header.frame_of(&payload, rest)?)
}

/// Says a frame, whole.
///
/// # Errors
/// When it is none that can be said ([`Frame::bytes`]), or cannot be sent.
pub fn say(mut to: impl Write, frame: &Frame) -> io::Result<()> {
    let parts = frame.parts();
    let (head, rest) = parts.ok_or_else(|| io::Error::other("what is to be said is no frame"))?;
    let mut parts = [IoSlice::new(&head), IoSlice::new(rest)];
    let mut parts = &mut parts[..];
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
