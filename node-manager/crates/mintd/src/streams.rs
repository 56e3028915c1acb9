// SPDX-License-Identifier: Apache-2.0
//! Connections that carry frames: commands on a node, and consoles.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mint_api::frame::{
    ExecExit, ExecRequest, Frame, FrameKind, read_frame, write_frame, write_json,
};
use mint_api::{ErrorBody, ErrorCode};
use mint_types::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tracing::debug;

use crate::app::App;

/// Used where our own environment has none: an init may start us without.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What is left in the pipes of a command that has ended comes within this
/// time; a process that it left behind may hold them open for ever.
const DRAIN: Duration = Duration::from_millis(500);
/// How often a client that may be gone is sent output of no bytes.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked whether the node of a silent connection still lives.
const LIFE_PERIOD: Duration = Duration::from_millis(250);
/// For a client to take the last frame and hang up.
const LINGER: Duration = Duration::from_secs(5);
/// For what somebody has typed who has left then.
const TYPED: Duration = Duration::from_secs(60);
/// Console: shortest and longest time between looks for more.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// Console of a node that does not run: the same, should an event of its start be missed.
const LOOK_ENDED: Duration = Duration::from_secs(1);
/// Console: so often a node may take no key before the rest is dropped, each time after
/// [`LOOK`]'s first pause. Its kernel takes what fits, and the rest when somebody read that.
const KEY_TRIES: u32 = 3000;

/// Runs a command here, as the first frame says.
pub(crate) async fn exec(io: impl AsyncRead + AsyncWrite + Unpin + Send) {
    let (mut reader, mut writer) = split(io);
    let result = exec_framed(&mut reader, &mut writer).await;
    let ended = match result {
        Ok(Some(exit)) => write_json(&mut writer, FrameKind::Exit, &exit).await,
        Ok(None) => Ok(()),
        Err(error) => write_json(&mut writer, FrameKind::Error, &error).await,
    };
    if let Err(error) = ended.and(writer.shutdown().await) {
        debug!(%error, "exec: client is gone");
        return;
    }
    // closed with input unread, the connection would be reset, and the last
    // frames lost on their way
    _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
}

fn exec_error(text: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::ExecFailed, text)
}

async fn exec_framed(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<ExecExit>, ErrorBody> {
    let broken = |error: io::Error| ErrorBody::from_error(ErrorCode::ExecFailed, &error);
    let Some(first) = read_frame(reader).await.map_err(broken)? else { return Ok(None) };
    let request: ExecRequest = match first.kind {
        FrameKind::Request => serde_json::from_slice(&first.data)
            .map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?,
        _ => return Err(ErrorBody::new(ErrorCode::BadRequest, "the first frame is no request")),
    };
    let Some((program, arguments)) = request.argv.split_first() else {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "there is no command"));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        // it goes when its client goes, not when we go: it may be `reboot`
        .process_group(0);
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH);
    }
    if std::env::var_os("HOME").is_none() {
        command.env("HOME", "/root");
    }
    let child = command
        .spawn()
        .map_err(|error| exec_error(format_args!("cannot run {program}: {error}")))?;
    Ok(talk(child, reader, writer).await)
}

/// Passes input and output until the command has ended; `None` when the client
/// has gone, and then the command goes too.
async fn talk(
    mut child: Child,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Option<ExecExit> {
    let leader = child.id();
    let stdin = child.stdin.take();
    // neither waits for the other: a command may write before it reads on
    let exit = tokio::select! {
        exit = give_output(&mut child, writer) => exit,
        () = take_input(stdin, reader) => None,
    };
    // one that was waited for has no id any more: it may be another process's now
    if let (None, Some(_), Some(leader)) = (exit, child.id(), leader) {
        _ = mint_sys::kill_process_group(leader);
    }
    exit
}

/// The client's input, until the client has gone.
async fn take_input(mut stdin: Option<ChildStdin>, reader: &mut (impl AsyncRead + Unpin)) {
    while let Ok(Some(frame)) = read_frame(reader).await {
        match frame.kind {
            FrameKind::Stdin => {
                let taken = match &mut stdin {
                    Some(stdin) => stdin.write_all(&frame.data).await,
                    None => Ok(()),
                };
                // a command that does not read its input is no error
                if taken.is_err() {
                    stdin = None;
                }
            }
            FrameKind::StdinEnd => stdin = None,
            _ => {}
        }
    }
}

/// The command's output and how it ended; `None` when the client does not take it any more.
async fn give_output(
    child: &mut Child,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Option<ExecExit> {
    let (sender, mut output) = mpsc::channel::<(FrameKind, Vec<u8>)>(16);
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(pump(stdout, FrameKind::Stdout, sender.clone()));
    }
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(pump(stderr, FrameKind::Stderr, sender.clone()));
    }
    drop(sender);
    let mut status = None;
    let mut output_open = true;
    let mut probe = tokio::time::interval(PROBE_PERIOD);
    loop {
        let draining = status.is_some();
        tokio::select! {
            data = output.recv(), if output_open => match data {
                Some((kind, data)) => write_frame(writer, kind, &data).await.ok()?,
                None => output_open = false,
            },
            ended = child.wait(), if !draining => status = Some(exit_status(ended)),
            () = tokio::time::sleep(DRAIN), if draining && output_open => output_open = false,
            // behind input that the command does not read, the client's end is not seen
            _ = probe.tick(), if !draining => {
                write_frame(writer, FrameKind::Stdout, &[]).await.ok()?;
            }
        }
        if let (Some(status), false) = (status, output_open) {
            return Some(ExecExit { status });
        }
    }
}

/// Carries whatever both sides say, until either ends.
pub(crate) async fn carry(
    mut here: impl AsyncRead + AsyncWrite + Unpin + Send,
    mut there: impl AsyncRead + AsyncWrite + Unpin + Send,
) {
    if let Err(error) = tokio::io::copy_bidirectional(&mut here, &mut there).await {
        debug!(%error, "a connection that was carried has ended");
    }
}

/// What a client has sent that leaves before all of it has been passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Nobody wants it: the command goes with its client.
    Dropped,
    /// It was typed, and is passed on.
    Typed,
}

/// Passes frames between a client here and the daemon of another node, and tells
/// the client when that node ends: its half of the connection would stay silent
/// for ever.
pub(crate) async fn forward(
    app: Arc<App>,
    node: NodeId,
    sent: Sent,
    here: impl AsyncRead + AsyncWrite + Unpin + Send,
    there: impl AsyncRead + AsyncWrite + Unpin + Send,
) {
    let (mut from_client, mut to_client) = split(here);
    let (mut from_node, mut to_node) = split(there);
    let requests = async {
        _ = tokio::io::copy(&mut from_client, &mut to_node).await;
        _ = to_node.shutdown().await;
        // the client has gone; so does the command, and its daemon hangs up
        tokio::time::sleep(LINGER).await;
    };
    let (sender, mut replies) = mpsc::channel::<Frame>(4);
    let reading = async {
        while let Ok(Some(frame)) = read_frame(&mut from_node).await {
            if sender.send(frame).await.is_err() {
                break;
            }
        }
        drop(sender);
        // the client is told by `answers`
        std::future::pending::<()>().await;
    };
    let answers = async {
        loop {
            let next = tokio::select! {
                biased;
                frame = replies.recv() => frame,
                () = tokio::time::sleep(LIFE_PERIOD) => match app.machine.node(node) {
                    Ok(Some(status)) if status.state.is_live() => continue,
                    _ => None,
                },
            };
            let Some(frame) = next else { break };
            let last = matches!(frame.kind, FrameKind::Exit | FrameKind::Error);
            let is_told = write_frame(&mut to_client, frame.kind, &frame.data).await.is_ok();
            if !is_told && sent == Sent::Typed {
                // `requests` ends behind what was typed
                tokio::time::sleep(TYPED).await;
            }
            if !is_told || last {
                return;
            }
        }
        let why = match app.machine.node(node) {
            Ok(Some(status)) if !status.state.is_live() => {
                let reason = if status.reason.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", status.reason)
                };
                format!(
                    "{} ended while the command ran: it is {}{reason}",
                    status.label(),
                    status.state
                )
            }
            _ => format!("the connection to node {node} broke while the command ran"),
        };
        _ = write_json(&mut to_client, FrameKind::Error, &exec_error(why)).await;
    };
    tokio::select! {
        () = answers => {}
        () = requests => {}
        () = reading => {}
    }
    _ = to_client.shutdown().await;
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    kind: FrameKind,
    to: mpsc::Sender<(FrameKind, Vec<u8>)>,
) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.send((kind, buffer[..length].to_vec())).await.is_err() {
            break;
        }
    }
}

fn exit_status(ended: io::Result<std::process::ExitStatus>) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    match ended {
        Ok(status) => {
            status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
        }
        Err(_) => 1,
    }
}

/// Shows a node's console from its oldest byte on, and takes keys. With
/// `follow` it goes on over ends and starts, and waits for a node that does not
/// exist yet.
pub(crate) async fn console(
    app: Arc<App>,
    node: NodeId,
    follow: bool,
    io: impl AsyncRead + AsyncWrite + Unpin + Send,
) {
    let (mut reader, mut writer) = split(io);
    let keys = async {
        while let Ok(Some(frame)) = read_frame(&mut reader).await {
            if frame.kind == FrameKind::Stdin {
                send_keys(&app, node, &frame.data).await;
            }
        }
    };
    let output = async {
        let end = show(&app, node, follow, &mut writer).await;
        let sent = match end {
            Ok(()) => write_json(&mut writer, FrameKind::Exit, &ExecExit { status: 0 }).await,
            Err(Some(error)) => write_json(&mut writer, FrameKind::Error, &error).await,
            // who has left may have typed before: `keys` ends behind that
            Err(None) => std::future::pending().await,
        };
        if sent.is_ok() {
            _ = writer.shutdown().await;
        }
    };
    tokio::select! {
        () = keys => {}
        () = output => {}
    }
}

/// A node that does not read its keys takes none; they are dropped then.
async fn send_keys(app: &App, node: NodeId, keys: &[u8]) {
    let mut rest = keys;
    let mut idle = 0;
    while !rest.is_empty() && idle < KEY_TRIES {
        match app.machine.console_write(node, rest) {
            Ok(0) => {
                idle += 1;
                tokio::time::sleep(LOOK.0).await;
            }
            Ok(taken) => {
                idle = 0;
                rest = &rest[taken.min(rest.len())..];
            }
            Err(error) => {
                debug!(%error, "keys dropped");
                return;
            }
        }
    }
}

/// `Err(None)`: the client has gone.
async fn show(
    app: &App,
    node: NodeId,
    follow: bool,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Option<ErrorBody>> {
    let mut pos = 0;
    let mut boots = None;
    let mut pause = LOOK.0;
    let (_, mut events) = app.events.subscribe(u64::MAX);
    loop {
        // before its console is read: what a node says last comes before its end
        let live = matches!(app.machine.node(node), Ok(Some(status)) if status.state.is_live());
        match app.machine.console_read(node, pos) {
            Ok(chunk) => {
                let begins = chunk.next - chunk.bytes.len() as u64;
                if boots.is_some_and(|boots| boots != chunk.boots) && begins != 0 && pos != 0 {
                    // another start of the node: positions count from its own
                    // beginning, and we asked in the middle of it
                    pos = 0;
                    boots = Some(chunk.boots);
                    continue;
                }
                boots = Some(chunk.boots);
                pos = chunk.next;
                if !chunk.bytes.is_empty() {
                    pause = LOOK.0;
                    write_frame(writer, FrameKind::Stdout, &chunk.bytes).await.map_err(|_| None)?;
                    continue;
                }
                if !follow {
                    return Ok(());
                }
            }
            Err(_) if follow => pos = 0,
            Err(error) => return Err(Some(ErrorBody::from_error(ErrorCode::Failed, &error))),
        }
        if live {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK.1);
        } else {
            // a console of a node that does not run must not keep this one awake
            _ = tokio::time::timeout(LOOK_ENDED, events.recv()).await;
            pause = LOOK.0;
        }
    }
}
