// SPDX-License-Identifier: Apache-2.0
//! `mintctl node exec`: a command on a node, as if it ran here.

use std::io::Write;

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_frame, write_json};
use mint_api::{ErrorBody, ErrorCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWrite, split};

use super::context::{Context, Outcome};
use crate::failure::Failure;
use crate::output::print_json;

/// Runs it, with our standard input if `input`; the exit status is that of the
/// command.
pub async fn run(context: &Context, path: &str, argv: Vec<String>, input: bool) -> Outcome {
    let io = context.client.upgrade(path).await?;
    let (mut reader, mut writer) = split(io);
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await?;
    // ends with the process: a terminal cannot be read in any other way
    tokio::spawn(async move { send_input(&mut writer, input).await });
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        let Some(frame) = read_frame(&mut reader).await? else {
            return Err(lost());
        };
        match frame.kind {
            FrameKind::Stdout if context.json => stdout.extend(frame.data),
            FrameKind::Stderr if context.json => stderr.extend(frame.data),
            FrameKind::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&frame.data)?;
                out.flush()?;
            }
            FrameKind::Stderr => std::io::stderr().lock().write_all(&frame.data)?,
            FrameKind::Exit => {
                let exit: ExecExit = serde_json::from_slice(&frame.data).map_err(|_| lost())?;
                if context.json {
                    print_json(&json!({
                        "status": exit.status,
                        "stdout": String::from_utf8_lossy(&stdout),
                        "stderr": String::from_utf8_lossy(&stderr),
                    }))?;
                }
                return Ok(u8::try_from(exit.status & 0xff).unwrap_or(1));
            }
            FrameKind::Error => {
                let error: ErrorBody = serde_json::from_slice(&frame.data).map_err(|_| lost())?;
                return Err(error.into());
            }
            FrameKind::Request | FrameKind::Stdin | FrameKind::StdinEnd => {}
        }
    }
}

fn lost() -> Failure {
    ErrorBody::new(
        ErrorCode::ExecFailed,
        "the connection to the node broke: how the command ended is not known",
    )
    .into()
}

async fn send_input(writer: &mut (impl AsyncWrite + Unpin), input: bool) -> std::io::Result<()> {
    if input {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; 32 * 1024];
        // a closed standard input reads like an empty one
        while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
            write_frame(writer, FrameKind::Stdin, &buffer[..length]).await?;
        }
    }
    write_frame(writer, FrameKind::StdinEnd, &[]).await?;
    // the connection stays open for output
    std::future::pending().await
}
