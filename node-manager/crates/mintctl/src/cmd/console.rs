// SPDX-License-Identifier: Apache-2.0
//! `mintctl node console`, `mintctl vm console`: a terminal far away.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use mint_api::ErrorBody;
use mint_api::frame::{FrameKind, read_frame, write_frame};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Stdin, split};

use super::context::{Context, Outcome};
use crate::failure::Failure;

/// Ctrl-]: leaves the console.
const ESCAPE: u8 = 0x1d;

/// At a terminal interactive; else prints, and with `write` sends standard input.
pub async fn run(context: &Context, path: &str, follow: bool, write: bool) -> Outcome {
    let interactive = is_terminal() && !follow;
    let follows = follow || write || interactive;
    let mut keys = Keys { interactive, write, goes_on: follow, stdin: tokio::io::stdin() };
    keys.attach(context, &format!("{path}?follow={follows}")).await?;
    Ok(0)
}

fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Why a console was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// By the user, or because all was sent.
    Left,
    /// It has no more to say.
    Over,
}

/// Where keys come from, over as many connections as it takes.
pub struct Keys {
    interactive: bool,
    write: bool,
    /// Output is shown on when all is sent.
    goes_on: bool,
    /// One for all connections: what it has read and not given yet would be lost with it.
    stdin: Stdin,
}

impl Keys {
    /// At a terminal interactive; else, with `write`, standard input's.
    pub fn new(write: bool) -> Self {
        Self { interactive: is_terminal(), write, goes_on: false, stdin: tokio::io::stdin() }
    }

    /// Shows a console and sends keys to it.
    ///
    /// # Errors
    /// When it cannot be had, or the connection breaks.
    pub async fn attach(&mut self, context: &Context, path: &str) -> Result<Ended, Failure> {
        let io = context.client.upgrade(path).await?;
        let (mut reader, mut writer) = split(io);
        if self.interactive {
            eprintln!("console; Ctrl-] leaves it");
            let _raw = RawTerminal::enter(io::stdin())?;
            return tokio::select! {
                shown = show(&mut reader) => shown,
                sent = send_keys(&mut self.stdin, &mut writer, true) => sent,
            };
        }
        if !self.write {
            return show(&mut reader).await;
        }
        tokio::select! {
            shown = show(&mut reader) => shown,
            sent = send_keys(&mut self.stdin, &mut writer, false) => {
                let sent = sent?;
                self.write = false;
                if self.goes_on { show(&mut reader).await } else { Ok(sent) }
            }
        }
    }
}

async fn show(reader: &mut (impl AsyncRead + Unpin)) -> Result<Ended, Failure> {
    while let Some(frame) = read_frame(reader).await? {
        match frame.kind {
            FrameKind::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&frame.data)?;
                out.flush()?;
            }
            FrameKind::Exit => return Ok(Ended::Over),
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
async fn send_keys(
    stdin: &mut Stdin,
    writer: &mut (impl AsyncWrite + Unpin),
    escape: bool,
) -> Result<Ended, Failure> {
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
            return Ok(Ended::Left);
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
