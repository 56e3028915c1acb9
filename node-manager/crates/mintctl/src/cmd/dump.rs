// SPDX-License-Identifier: Apache-2.0
//! `mintctl node dump`: the memory of a node that ended, into a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use mint_api::{ErrorBody, ErrorCode};
use mint_types::format_bytes;
use serde_json::json;

use super::{Context, Outcome};
use crate::failure::Failure;
use crate::output::{print, print_json};

/// Memory that was never written is zero: such pieces become holes of the file.
const HOLE_BYTES: usize = 4096;

/// A file that is written from its beginning to its end, with holes.
struct Sparse {
    file: File,
    bytes: u64,
    written: u64,
}

impl Sparse {
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

/// Asks for the dump and writes it; what is not whole is removed.
pub async fn run(context: &Context, path: &str, output: &Path, force: bool) -> Outcome {
    // first, so that nothing is written over when there is nothing to be had
    let mut reader = context.client.bytes(path).await?;
    let mut options = OpenOptions::new();
    options.write(true).truncate(force).create(force).create_new(!force);
    let file = options.open(output).map_err(|error| failed(output, &error))?;
    let mut sparse = Sparse { file, bytes: 0, written: 0 };
    let taken = async {
        while let Some(data) = reader.next().await? {
            sparse.write(&data).map_err(|error| failed(output, &error))?;
        }
        sparse.finish().map_err(|error| failed(output, &error))
    }
    .await;
    if let Err(failure) = taken {
        // half a dump looks like a whole one
        _ = std::fs::remove_file(output);
        return Err(failure);
    }
    if context.json {
        print_json(
            &json!({ "file": output, "bytes": sparse.bytes, "data_bytes": sparse.written }),
        )?;
    } else {
        print(&format!(
            "{}: {}, of which {} are not zero",
            output.display(),
            format_bytes(sparse.bytes),
            format_bytes(sparse.written)
        ))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_pieces_are_holes_and_the_content_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmcore");
        let mut sparse = Sparse { file: File::create(&path).unwrap(), bytes: 0, written: 0 };
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
}
