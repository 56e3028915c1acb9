// SPDX-License-Identifier: Apache-2.0
//! A guest's serial console: its terminal on this host, carried as frames. libvirt's own stream
//! for it cannot be ended while it waits for the guest to say something.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mint_api::frame::{ExecExit, FrameKind, read_frame, write_frame, write_json};
use mint_api::{ErrorBody, ErrorCode};
use mint_types::{Refusal, RefusalCode};
use rustix::fs::{Mode, OFlags, open};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::unix::pipe::{Receiver, Sender};
use tracing::debug;

use crate::app::App;

/// Of a terminal's output at once.
const CHUNK_BYTES: usize = 4096;
/// For what somebody has typed who has left then: a guest may not read it.
const TYPED: Duration = Duration::from_secs(60);

/// A guest's console, held by one client.
pub(crate) struct Console {
    output: Receiver,
    keys: Sender,
    _lock: Lock,
}

impl Console {
    /// Opens it.
    ///
    /// # Errors
    /// When there is no such guest or console, or somebody else has it.
    pub async fn open(app: &App, vm: String) -> Result<Self, ErrorBody> {
        let name = vm.clone();
        let path = app
            .ask(move |hypervisor| {
                let is_active = hypervisor.guest(&name)?.active;
                is_active.then(|| hypervisor.console(&name)).transpose()
            })
            .await?;
        let path = path.ok_or_else(|| {
            let text = format!("vm {vm} does not run");
            let refusal = Refusal::new(RefusalCode::VmNotRunning, format_args!("vm {vm}"), text)
                .hint(format!("mintctl vm start {vm}"));
            ErrorBody::refused(vec![refusal])
        })?;
        let lock = Lock::take(&app.host.path("/run/lock"), &path).map_err(|why| match why {
            Held::By(pid) => {
                let text = format!("the console of vm {vm} is open elsewhere (process {pid})");
                let refusal = Refusal::new(RefusalCode::VmBusy, format_args!("vm {vm}"), text)
                    .hint("leave it there first: a console that two have loses half of it");
                ErrorBody::refused(vec![refusal])
            }
            Held::Not(error) => failed(&vm, &error),
        })?;
        let (output, keys) = ends(&path).map_err(|error| failed(&vm, &error))?;
        Ok(Self { output, keys, _lock: lock })
    }

    /// Passes output and keys until the client goes, or the guest does.
    pub async fn carry(self, io: impl AsyncRead + AsyncWrite + Unpin + Send) {
        let Self { mut output, mut keys, _lock } = self;
        let (mut reader, mut writer) = split(io);
        let typing = async {
            while let Ok(Some(frame)) = read_frame(&mut reader).await {
                if frame.kind == FrameKind::Stdin && keys.write_all(&frame.data).await.is_err() {
                    // the guest has gone: its output's end tells
                    std::future::pending::<()>().await;
                }
            }
        };
        let showing = async {
            let mut buffer = [0; CHUNK_BYTES];
            while let Ok(length @ 1..) = output.read(&mut buffer).await {
                let data = &buffer[..length];
                if write_frame(&mut writer, FrameKind::Stdout, data).await.is_err() {
                    // who has left may have typed before: `typing` ends behind that
                    tokio::time::sleep(TYPED).await;
                    return;
                }
            }
            let ended = write_json(&mut writer, FrameKind::Exit, &ExecExit { status: 0 }).await;
            if let Err(error) = ended.and(writer.shutdown().await) {
                debug!(%error, "console: client is gone");
            }
        };
        tokio::select! {
            () = typing => {}
            () = showing => {}
        }
    }
}

/// Both ends of a terminal. Nothing is read or written that has to be waited for.
fn ends(path: &str) -> io::Result<(Receiver, Sender)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let terminal = open(path, flags, Mode::empty())?;
    let keys = Sender::from_owned_fd_unchecked(terminal.try_clone()?)?;
    Ok((Receiver::from_owned_fd_unchecked(terminal)?, keys))
}

fn failed(vm: &str, error: &io::Error) -> ErrorBody {
    ErrorBody::new(ErrorCode::Failed, format_args!("cannot open the console of vm {vm}: {error}"))
}

/// Why a terminal cannot be had.
#[derive(Debug)]
enum Held {
    /// That process has it.
    By(u32),
    /// The lock cannot be written.
    Not(io::Error),
}

/// The lock file of a terminal, as UUCP had it (FHS 3.0, 5.9), under libvirt's name for it:
/// whoever opens a terminal writes down its process there.
#[derive(Debug)]
struct Lock(PathBuf);

impl Lock {
    fn take(folder: &Path, terminal: &str) -> Result<Self, Held> {
        let name = terminal.trim_start_matches("/dev").replace('/', "_");
        let path = folder.join(format!("LCK..{name}"));
        fs::create_dir_all(folder).map_err(Held::Not)?;
        // once more, when who held it is no more
        for _ in 0..2 {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    let lock = Self(path);
                    writeln!(file, "{:>10}", std::process::id()).map_err(Held::Not)?;
                    return Ok(lock);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    let holder = text.trim().parse::<u32>().ok();
                    if let Some(pid) = holder.filter(|pid| is_alive(*pid)) {
                        return Err(Held::By(pid));
                    }
                    _ = fs::remove_file(&path);
                }
                Err(error) => return Err(Held::Not(error)),
            }
        }
        Err(Held::Not(io::ErrorKind::AlreadyExists.into()))
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

impl Drop for Lock {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_is_one_clients_until_that_lets_it_go_or_dies() {
        let folder = tempfile::tempdir().unwrap();
        let take = || Lock::take(folder.path(), "/dev/pts/3");
        let first = take().unwrap();
        let own = std::process::id();
        let text = fs::read_to_string(folder.path().join("LCK.._pts_3")).unwrap();
        assert_eq!(text, format!("{own:>10}\n"));
        assert!(matches!(take(), Err(Held::By(pid)) if pid == own));
        Lock::take(folder.path(), "/dev/pts/4").unwrap();
        drop(first);
        take().unwrap();
        // whoever held it died: no process has this id
        fs::write(folder.path().join("LCK.._pts_3"), "4194305\n").unwrap();
        take().unwrap();
    }
}
