// SPDX-License-Identifier: Apache-2.0
//! `mintctl node console`.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use mint_api::ErrorBody;
use mint_api::frame::{FrameKind, read_frame, write_frame};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, split};

use super::context::{Context, Outcome};
use crate::failure::Failure;

/// Ctrl-]: leaves the console.
const ESCAPE: u8 = 0x1d;

/// At a terminal interactive; else prints, and with `write` sends standard input.
pub async fn run(context: &Context, path: &str, follow: bool, write: bool) -> Outcome {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let interactive = terminal && !follow;
    let follows = follow || write || interactive;
    let io = context.client.upgrade(&format!("{path}?follow={follows}")).await?;
    let (mut reader, mut writer) = split(io);
    if interactive {
        eprintln!("console; Ctrl-] leaves it");
        let _raw = RawTerminal::enter(std::io::stdin())?;
        return tokio::select! {
            outcome = show(&mut reader) => outcome,
            outcome = send_keys(&mut writer, true) => outcome,
        };
    }
    if write {
        return tokio::select! {
            outcome = show(&mut reader) => outcome,
            outcome = send_keys(&mut writer, false) => match (outcome, follow) {
                // all is sent; with --follow the output goes on
                (Ok(_), true) => show(&mut reader).await,
                (outcome, _) => outcome,
            },
        };
    }
    show(&mut reader).await
}

async fn show(reader: &mut (impl AsyncRead + Unpin)) -> Outcome {
    while let Some(frame) = read_frame(reader).await? {
        match frame.kind {
            FrameKind::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&frame.data)?;
                out.flush()?;
            }
            FrameKind::Exit => return Ok(0),
            FrameKind::Error => {
                let error: ErrorBody =
                    serde_json::from_slice(&frame.data).map_err(std::io::Error::other)?;
                return Err(error.into());
            }
            _ => {}
        }
    }
    let text = "the connection to mintd broke";
    Err(Failure::from(ErrorBody::new(mint_api::ErrorCode::Failed, text)))
}

/// Sends what is typed; ends at the escape key, or at the end of the input.
async fn send_keys(writer: &mut (impl AsyncWrite + Unpin), escape: bool) -> Outcome {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 4096];
    loop {
        let length = stdin.read(&mut buffer).await?;
        let keys = &buffer[..length];
        let end = keys.iter().position(|&key| escape && key == ESCAPE);
        let send = &keys[..end.unwrap_or(length)];
        if !send.is_empty() {
            write_frame(writer, FrameKind::Stdin, send).await?;
        }
        if end.is_some() || length == 0 {
            return Ok(0);
        }
    }
}

/// The terminal passes every key on for as long as this lives.
struct RawTerminal<T: AsFd> {
    terminal: T,
    before: Termios,
}

impl<T: AsFd> RawTerminal<T> {
    fn enter(terminal: T) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Drain, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl<T: AsFd> Drop for RawTerminal<T> {
    fn drop(&mut self) {
        // nothing to be done about a terminal that has gone
        _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
        eprintln!();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    #[test]
    fn terminal_is_raw_meanwhile_and_then_as_before() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let modes = || tcgetattr(&terminal).unwrap().local_modes;
        let before = modes();
        let keys = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        assert!(before.contains(keys));
        let raw = RawTerminal::enter(&terminal).unwrap();
        assert!(!modes().intersects(keys));
        drop(raw);
        assert_eq!(modes(), before);
    }
}
