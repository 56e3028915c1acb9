// SPDX-License-Identifier: Apache-2.0
//! Frames, one after the other, on whatever carries bytes.

use std::io::{self, Read, Write};

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
    let mut payload = vec![0; header.payload_bytes];
    from.read_exact(&mut payload)?;
    Ok(header.frame(&payload)?)
}

/// Says a frame, whole.
///
/// # Errors
/// When it is none that can be said ([`Frame::bytes`]), or cannot be sent.
pub fn say(mut to: impl Write, frame: &Frame) -> io::Result<()> {
    let bytes = frame.bytes().ok_or_else(|| io::Error::other("what is to be said is no frame"))?;
    to.write_all(&bytes)
}
