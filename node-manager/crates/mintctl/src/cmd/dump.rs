// SPDX-License-Identifier: Apache-2.0
//! `mintctl node dump`: the memory of a node that ended, into a file. It holds keys and
//! whatever else that node's programs knew, so only its owner may read it; and half a dump
//! looks like a whole one, so the file gets its name when it is whole.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use mint_api::{ErrorBody, ErrorCode};
use mint_types::format_bytes;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

use super::context::{Context, Outcome};
use crate::failure::Failure;
use crate::output::{print, print_json};

/// Memory that was never written is zero: such pieces become holes of the file.
const HOLE_BYTES: usize = 4096;

/// A file that is written from its beginning to its end, with holes.
struct Sparse<'a> {
    file: &'a File,
    bytes: u64,
    written: u64,
}

impl Sparse<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(HOLE_BYTES) {
            if piece.iter().all(|&byte| byte == 0) {
                self.file.seek(SeekFrom::Current(i64::try_from(piece.len()).unwrap_or(0)))?;
            } else {
                self.file.write_all(piece)?;
                self.written += piece.len() as u64;
            }
            self.bytes += piece.len() as u64;
        }
        Ok(())
    }

    /// Its length counts a hole at the end, too.
    fn finish(&mut self) -> io::Result<()> {
        self.file.set_len(self.bytes)?;
        self.file.sync_all()
    }
}

fn failed(output: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AlreadyExists => ": it is there already; --force writes over it",
        _ => "",
    };
    let mut body = ErrorBody::from_error(ErrorCode::Failed, error);
    body.message = format!("cannot write {}{hint}: {}", output.display(), body.message);
    body.into()
}

/// Where the dump goes: a file that does not have its name yet.
struct Output {
    part: NamedTempFile,
    path: PathBuf,
    force: bool,
}

impl Output {
    fn create(path: &Path, force: bool) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(_) if !force => return Err(io::ErrorKind::AlreadyExists.into()),
            Ok(found) if !found.is_file() => {
                let why = "it is there, and no regular file";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            // a link stays one
            Ok(_) => fs::canonicalize(path)?,
            Err(_) => path.to_owned(),
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut prefix = path.file_name().unwrap_or_default().to_owned();
        prefix.push(".part-");
        // of mode 0600, which it keeps
        let part = tempfile::Builder::new()
            .prefix(&prefix)
            .tempfile_in(folder.unwrap_or_else(|| Path::new(".")))?;
        Ok(Self { part, path, force })
    }

    fn keep(self) -> io::Result<()> {
        let kept = if self.force {
            self.part.persist(&self.path)
        } else {
            self.part.persist_noclobber(&self.path)
        };
        kept.map(drop).map_err(|error| error.error)
    }
}

/// Exit status when a signal ends us: as a shell tells it.
async fn ended_by_a_signal() -> io::Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => 128 + 2,
        _ = terminate.recv() => 128 + 15,
        _ = hang_up.recv() => 128 + 1,
    })
}

/// Asks for the dump and writes it; what is not whole is removed.
pub async fn run(context: &Context, path: &str, output: &Path, force: bool) -> Outcome {
    tokio::select! {
        outcome = take(context, path, output, force) => outcome,
        ended = ended_by_a_signal() => Ok(ended?),
    }
}

async fn take(context: &Context, path: &str, output: &Path, force: bool) -> Outcome {
    let mut reader = context.client.bytes(path).await?;
    let file = Output::create(output, force).map_err(|error| failed(output, &error))?;
    let mut sparse = Sparse { file: file.part.as_file(), bytes: 0, written: 0 };
    while let Some(data) = reader.next().await? {
        sparse.write(&data).map_err(|error| failed(output, &error))?;
    }
    sparse.finish().map_err(|error| failed(output, &error))?;
    let Sparse { bytes, written, .. } = sparse;
    file.keep().map_err(|error| failed(output, &error))?;
    if context.json {
        print_json(&json!({ "file": output, "bytes": bytes, "data_bytes": written }))?;
    } else {
        print(&format!(
            "{}: {}, of which {} are not zero",
            output.display(),
            format_bytes(bytes),
            format_bytes(written)
        ))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    #[test]
    fn zero_pieces_are_holes_and_the_content_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmcore");
        let file = File::create(&path).unwrap();
        let mut sparse = Sparse { file: &file, bytes: 0, written: 0 };
        let mut data = vec![7u8; 4096];
        data.extend([0; 8192]);
        data.extend([9; 100]);
        data.extend([0; 4096]);
        sparse.write(&data).unwrap();
        sparse.write(&[0; 4096]).unwrap();
        sparse.finish().unwrap();
        data.extend([0; 4096]);
        assert_eq!(std::fs::read(&path).unwrap(), data);
        assert_eq!(sparse.bytes, data.len() as u64);
        assert_eq!(sparse.written, 4096 + 4096);
    }

    /// A daemon that gives so many bytes of a dump of 8192, and then nothing more.
    fn daemon(socket: &Path, bytes: usize) {
        let listener = UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8192\r\n\r\n").await.unwrap();
                stream.write_all(&vec![7; bytes]).await.unwrap();
                kept.push(stream);
            }
        });
    }

    fn test(work: impl AsyncFnOnce(&Path)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(folder.path()));
    }

    fn context(folder: &Path) -> Context {
        Context { client: mint_api::Client::unix(folder.join("socket")), json: true }
    }

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn dump_is_its_owners_alone_also_over_a_file_that_was_everybodys() {
        // without run(), which the other test's signal would end, too
        test(async |folder| {
            daemon(&folder.join("socket"), 8192);
            let (context, output) = (context(folder), folder.join("vmcore"));
            assert_eq!(take(&context, "/", &output, false).await.unwrap(), 0);
            assert_eq!(mode(&output), 0o600);
            assert!(fs::read(&output).unwrap() == [7; 8192]);
            fs::write(&output, "old").unwrap();
            fs::set_permissions(&output, fs::Permissions::from_mode(0o644)).unwrap();
            let error = take(&context, "/", &output, false).await.unwrap_err();
            let Failure::Error(error) = error else { panic!() };
            assert!(error.message.contains("--force writes over it"), "{error}");
            assert_eq!(fs::read(&output).unwrap(), b"old");
            assert_eq!(take(&context, "/", &output, true).await.unwrap(), 0);
            assert_eq!(mode(&output), 0o600);
            assert!(fs::read(&output).unwrap() == [7; 8192]);
            assert_eq!(names(folder), ["socket", "vmcore"]);
            // what is no file is not replaced by one
            fs::create_dir(folder.join("folder")).unwrap();
            assert!(take(&context, "/", &folder.join("folder"), true).await.is_err());
        });
    }

    #[test]
    fn ctrl_c_leaves_no_half_dump() {
        test(async |folder| {
            daemon(&folder.join("socket"), 4096);
            let (context, output) = (context(folder), folder.join("vmcore"));
            let interrupting = async {
                // its half is there, under another name
                let part = loop {
                    let found = names(folder).into_iter().find(|name| name.contains(".part-"));
                    if let Some(part) = found.map(|name| folder.join(name)) {
                        if fs::metadata(&part).unwrap().len() == 4096 {
                            break part;
                        }
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                };
                assert_eq!(mode(&part), 0o600);
                assert!(!output.exists());
                let us = std::process::id().to_string();
                let kill = std::process::Command::new("kill").args(["-INT", &us]).status();
                assert!(kill.unwrap().success());
                std::future::pending().await
            };
            let status = tokio::select! {
                outcome = run(&context, "/", &output, false) => outcome.unwrap(),
                () = interrupting => unreachable!(),
            };
            assert_eq!(status, 130);
            assert_eq!(names(folder), ["socket"]);
        });
    }
}
