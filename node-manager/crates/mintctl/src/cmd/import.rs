// SPDX-License-Identifier: Apache-2.0
//! `mintctl vm import`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_frame, write_json};
use mint_api::{ErrorBody, ErrorCode, ImportRequest, NodeList, NodeView, UPLOAD_FOLDER, VmView};
use tokio::io::{AsyncWrite, split};

use super::context::{Context, Outcome};
use super::node_path::path;
use super::vm_view::{show, tell};
use crate::args::ImportArgs;
use crate::failure::Failure;

/// Of a file at once.
const CHUNK_BYTES: usize = 128 * 1024;
/// What the other node runs to take an image: nobody else's file is written over, and one that
/// does not come whole does not stay. The folder is $1, the file $2, its size $3.
const TAKE: &str = "set -eCu; umask 077; mkdir -p \"$1\"; cd \"$1\"; \
                    cat >\"$2\" && [ \"$(stat -c %s \"$2\")\" = \"$3\" ] || { rm -f \"$2\"; exit 1; }";

/// Copies the image to the guest's node, if that is another one, and has a guest made of it.
pub async fn run(context: &Context, args: ImportArgs) -> Outcome {
    let user_data = args.cloud_init.as_deref().map(read).transpose()?;
    let image = absolute(&args.image)?;
    let (node, here) = nodes(context, args.node.as_deref()).await?;
    let mut request = ImportRequest {
        name: args.name,
        image: text(&image)?,
        is_upload: false,
        vcpus: args.vcpus,
        memory_bytes: args.memory,
        disk_bytes: args.disk,
        user_data,
        uefi: args.uefi,
    };
    if node.id != here {
        request.image = send(context, &node, &image).await?;
        request.is_upload = true;
    }
    let vms = path(&node.id.to_string(), "vms")?;
    let view: VmView = context.client.operate(&vms, &request, tell(context)).await?;
    show(context, &view)
}

/// The node that is meant, and the one that we are on.
async fn nodes(
    context: &Context,
    wanted: Option<&str>,
) -> Result<(NodeView, mint_types::NodeId), Failure> {
    let all: NodeList = context.client.get("/v1/nodes").await?;
    let here = all.nodes.into_iter().find(|node| node.is_self);
    let here = here.ok_or_else(|| failed("mintd does not say which node this is"))?;
    let id = here.id;
    match wanted {
        None => Ok((here, id)),
        Some(wanted) => {
            let detail: mint_api::NodeDetail = context.client.get(&path(wanted, "")?).await?;
            Ok((detail.node, id))
        }
    }
}

fn failed(text: impl std::fmt::Display) -> Failure {
    ErrorBody::new(ErrorCode::Failed, text).into()
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::usage(format!("{} is no text", path.display())))
}

/// Sends a file to a node; gives its path there.
async fn send(context: &Context, node: &NodeView, image: &Path) -> Result<String, Failure> {
    let unreadable = |error| Failure::usage(format!("cannot read {}: {error}", image.display()));
    let mut file = File::open(image).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}", std::process::id(), now.as_nanos());
    let argv = ["sh", "-c", TAKE, "sh", UPLOAD_FOLDER, &name, &size.to_string()];
    let argv = argv.map(str::to_owned).to_vec();
    let io = context.client.upgrade(&path(&node.id.to_string(), "exec")?).await?;
    let (mut reader, mut writer) = split(io);
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await?;
    let sending = async {
        give(&mut file, size, &mut writer, tell(context)).await?;
        // until the other side has said how it went
        std::future::pending::<Result<(), Failure>>().await
    };
    let mut said = String::new();
    let answer = async {
        while let Some(frame) = read_frame(&mut reader).await? {
            match frame.kind {
                FrameKind::Stderr => said.push_str(&String::from_utf8_lossy(&frame.data)),
                FrameKind::Exit => {
                    let exit: ExecExit =
                        serde_json::from_slice(&frame.data).map_err(std::io::Error::other)?;
                    return Ok(exit.status);
                }
                FrameKind::Error => {
                    let error: ErrorBody =
                        serde_json::from_slice(&frame.data).map_err(std::io::Error::other)?;
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Err(failed(format_args!("the connection to {} broke", node.name)))
    };
    let status: i32 = tokio::select! {
        sent = sending => return Err(sent.err().unwrap_or_else(|| failed("nothing was sent"))),
        status = answer => status?,
    };
    if status != 0 {
        let text = format!("{} did not take {}: {}", node.name, image.display(), said.trim());
        return Err(failed(text));
    }
    Ok(format!("{UPLOAD_FOLDER}/{name}"))
}

/// The file, piece by piece.
async fn give(
    file: &mut File,
    size: u64,
    writer: &mut (impl AsyncWrite + Unpin),
    mut tell: impl FnMut(&str),
) -> Result<(), Failure> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut sent, mut told) = (0_u64, 0);
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            write_frame(writer, FrameKind::StdinEnd, &[]).await?;
            return Ok(());
        }
        write_frame(writer, FrameKind::Stdin, &buffer[..length]).await?;
        sent += length as u64;
        let percent = sent.saturating_mul(100) / size.max(1);
        if percent >= told + 10 {
            told = percent;
            tell(&format!("{percent} % of {} MiB sent", size >> 20));
        }
    }
}
