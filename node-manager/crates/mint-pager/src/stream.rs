// SPDX-License-Identifier: Apache-2.0
//! A connection to a memory server: to that of another node, or through mintd to that of a linked
//! machine's, under TLS.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use mint_types::{SOCKET_PATH, UPGRADE};
use rustix::net::sockopt;

const CONNECT: Duration = Duration::from_secs(5);
/// What is on its way to be sent: who asks for a page waits behind no more pages that go.
const SEND_BYTES: usize = 32 << 10;
/// For mintd, and that of the other machine, to reach the memory server.
const SWITCH: Duration = Duration::from_secs(30);
/// mintd's answer to that.
const HEAD_BYTES_MAX: usize = 4096;

/// Both ways; who clones it has the same connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Mintd(UnixStream),
}

impl Stream {
    /// Connects to an address, or by what mintd is asked for.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn connect(address: &SocketAddr, way: Option<&str>) -> io::Result<Self> {
        match way {
            None => {
                let stream = TcpStream::connect_timeout(address, CONNECT)?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_send_buffer_size(&stream, SEND_BYTES)?;
                Ok(Self::Tcp(stream))
            }
            Some(path) => through(UnixStream::connect(SOCKET_PATH)?, path).map(Self::Mintd),
        }
    }

    /// The same connection.
    ///
    /// # Errors
    /// When there are too many.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Mintd(stream) => Self::Mintd(stream.try_clone()?),
        })
    }

    /// Ends it, for all who have it.
    pub fn end(&self) {
        // it may have ended by itself
        _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Mintd(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Mintd(stream) => stream.read(bytes),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Mintd(stream) => (&*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write_vectored(parts),
            Stream::Mintd(stream) => (&*stream).write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As long as so many bytes take.
pub(crate) fn rest_for(bytes: u64, bandwidth_bytes_s: Option<u64>) {
    if let Some(rate) = bandwidth_bytes_s {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        thread::sleep(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)));
    }
}

/// Has mintd carry what is said from here on (HTTP/1.1's Upgrade, RFC 9110, 7.8).
fn through(stream: UnixStream, path: &str) -> io::Result<UnixStream> {
    stream.set_read_timeout(Some(SWITCH))?;
    let asked = format!(
        "GET {path} HTTP/1.1\r\nHost: mint\r\nConnection: upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
    );
    (&stream).write_all(asked.as_bytes())?;
    // not a byte more: what follows is the memory server's
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        (&stream).read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("mintd answers without end"));
        }
    }
    let line = String::from_utf8_lossy(head.split(|byte| *byte == b'\r').next().unwrap_or(&[]));
    if line.split(' ').nth(1) != Some("101") {
        return Err(io::Error::other(format!("mintd does not reach it: {line}")));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(answer: &'static str) -> (io::Result<UnixStream>, String) {
        let (here, there) = UnixStream::pair().unwrap();
        let mintd = thread::spawn(move || {
            let mut asked = Vec::new();
            let mut byte = [0];
            while !asked.ends_with(b"\r\n\r\n") {
                (&there).read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            (&there).write_all(answer.as_bytes()).unwrap();
            String::from_utf8(asked).unwrap()
        });
        let stream = through(here, "/v1/nodes/b%2F0/pages");
        (stream, mintd.join().unwrap())
    }

    #[test]
    fn mintd_carries_what_follows_its_answer_and_nothing_of_that_is_lost() {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: mint-frames\r\n\r\nMS and more";
        let (stream, asked) = answered(answer);
        assert!(asked.starts_with("GET /v1/nodes/b%2F0/pages HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nUpgrade: mint-frames\r\n"), "{asked}");
        let mut rest = String::new();
        stream.unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "MS and more");
    }

    #[test]
    fn refusal_and_endless_answers_are_told() {
        let (refused, _) = answered("HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}");
        assert!(refused.unwrap_err().to_string().contains("HTTP/1.1 409 Conflict"));
        let (cut, _) = answered("HTTP/1.1 101 ");
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
