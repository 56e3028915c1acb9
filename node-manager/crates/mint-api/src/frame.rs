// SPDX-License-Identifier: Apache-2.0
//! Frames on an upgraded connection: one byte kind, four bytes length (big
//! endian), then so many bytes.
//!
//! ```text
//!   exec:    client: Request, Stdin…, StdinEnd      server: Stdout/Stderr…, Exit | Error
//!   console: client: Stdin…                         server: Stdout…, [Exit | Error]
//! ```
//! While a command runs, its server sends a Stdout frame of no bytes now and then: that
//! fails when the client has gone, whose end is not seen behind input that nobody reads.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// No frame is longer: a peer's length is not believed beyond it.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// [`ExecRequest`] as JSON.
    Request,
    /// Input of the command, or keys for the console.
    Stdin,
    /// End of the command's input.
    StdinEnd,
    /// Bytes of the command's output.
    Stdout,
    /// Error output.
    Stderr,
    /// [`ExecExit`] as JSON; the last frame.
    Exit,
    /// [`crate::ErrorBody`] as JSON; the last frame.
    Error,
}

impl FrameKind {
    const ALL: [Self; 7] = [
        Self::Request,
        Self::Stdin,
        Self::StdinEnd,
        Self::Stdout,
        Self::Stderr,
        Self::Exit,
        Self::Error,
    ];

    fn number(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Stdin => 1,
            Self::StdinEnd => 2,
            Self::Stdout => 3,
            Self::Stderr => 4,
            Self::Exit => 5,
            Self::Error => 6,
        }
    }
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What it holds.
    pub kind: FrameKind,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments; no shell in between.
    pub argv: Vec<String>,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExecExit {
    /// Exit status, or 128 + number of the signal that ended it.
    pub status: i32,
}

/// Reads a frame; `None` when the other side has closed the connection.
///
/// # Errors
/// When the connection breaks, or the frame is of an unknown kind or too long.
pub async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut header = [0; 5];
    match reader.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let [number, length @ ..] = header;
    let kind = FrameKind::ALL
        .into_iter()
        .find(|kind| kind.number() == number)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown kind of frame"))?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame is too long"));
    }
    let mut data = vec![0; length];
    reader.read_exact(&mut data).await?;
    Ok(Some(Frame { kind, data }))
}

/// Writes frames; data longer than a frame may be are split.
///
/// # Errors
/// When the connection breaks.
pub async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    data: &[u8],
) -> io::Result<()> {
    let mut rest = data;
    loop {
        let (now, later) = rest.split_at(rest.len().min(FRAME_BYTES_MAX));
        let length = u32::try_from(now.len()).expect("at most FRAME_BYTES_MAX");
        let mut bytes = Vec::with_capacity(5 + now.len());
        bytes.push(kind.number());
        bytes.extend(length.to_be_bytes());
        bytes.extend(now);
        writer.write_all(&bytes).await?;
        if later.is_empty() {
            return writer.flush().await;
        }
        rest = later;
    }
}

/// Writes a frame with a JSON document.
///
/// # Errors
/// When the connection breaks.
pub async fn write_json(
    writer: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    value: &impl Serialize,
) -> io::Result<()> {
    let data = serde_json::to_vec(value).map_err(io::Error::other)?;
    write_frame(writer, kind, &data).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn frames_round_trip_and_long_data_are_split() {
        run(async {
            let long = vec![7; FRAME_BYTES_MAX + 3];
            let mut wire = Vec::new();
            write_frame(&mut wire, FrameKind::Stdout, &long).await.unwrap();
            write_frame(&mut wire, FrameKind::StdinEnd, &[]).await.unwrap();
            let mut reader = wire.as_slice();
            let mut data = Vec::new();
            for _ in 0..2 {
                let frame = read_frame(&mut reader).await.unwrap().unwrap();
                assert_eq!(frame.kind, FrameKind::Stdout);
                data.extend(frame.data);
            }
            assert_eq!(data, long);
            let end = read_frame(&mut reader).await.unwrap().unwrap();
            assert_eq!(end, Frame { kind: FrameKind::StdinEnd, data: Vec::new() });
            assert_eq!(read_frame(&mut reader).await.unwrap(), None);
        });
    }

    #[test]
    fn lengths_and_kinds_are_not_believed() {
        run(async {
            assert!(read_frame(&mut &[3u8, 0xff, 0xff, 0xff, 0xff][..]).await.is_err());
            assert!(read_frame(&mut &[99u8, 0, 0, 0, 0][..]).await.is_err());
            assert!(read_frame(&mut &[3u8, 0, 0, 0, 9, 1][..]).await.is_err());
        });
    }
}
