// SPDX-License-Identifier: Apache-2.0
//! Commands and consoles: what is passed both ways, and what goes when a client goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_frame, write_json};
use mint_api::{Client, ErrorBody, ErrorCode};
use mint_node::fake::FakeMachine;
use mint_types::{NodeId, NodeState, RefusalCode};

use super::{Daemon, STUCK, body, test, until};
use crate::streams;

async fn exec(client: &Client, argv: &[&str], input: &[u8]) -> Result<(i32, String), ErrorBody> {
    let io = client.upgrade("/v1/nodes/0/exec").await.map_err(body)?;
    let (mut reader, mut writer) = tokio::io::split(io);
    let argv = argv.iter().map(|&text| text.to_owned()).collect();
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await.unwrap();
    let input = input.to_vec();
    let sending = tokio::spawn(async move {
        // a command may end before it has read everything
        _ = write_frame(&mut writer, FrameKind::Stdin, &input).await;
        _ = write_frame(&mut writer, FrameKind::StdinEnd, &[]).await;
        writer
    });
    let mut output = String::new();
    loop {
        let frame = read_frame(&mut reader).await.unwrap().expect("ends with a last frame");
        let text = String::from_utf8_lossy(&frame.data).into_owned();
        match frame.kind {
            FrameKind::Stdout => output.push_str(&text),
            FrameKind::Stderr => output.push_str(&format!("E:{text}")),
            FrameKind::Exit => {
                let exit: ExecExit = serde_json::from_str(&text).unwrap();
                drop(sending.await.unwrap());
                return Ok((exit.status, output));
            }
            FrameKind::Error => return Err(serde_json::from_str(&text).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn exec_passes_input_output_and_status() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let client = &daemon.client;
        let script = ["sh", "-c", "cat; echo bad >&2; exit 7"];
        let (status, output) = exec(client, &script, b"hello\n").await.unwrap();
        assert_eq!(status, 7);
        assert!(output.contains("hello\n") && output.contains("E:bad\n"), "{output}");
        let (status, _) = exec(client, &["sh", "-c", "kill -TERM $$"], b"").await.unwrap();
        assert_eq!(status, 128 + 15);
        let big = vec![b'x'; 1 << 20];
        let (status, output) = exec(client, &["wc", "-c"], &big).await.unwrap();
        assert_eq!((status, output.trim()), (0, "1048576"));
        // input that nobody reads
        assert_eq!(exec(client, &["true"], &big).await.unwrap().0, 0);
        let error = exec(client, &["/nonexistent/command"], b"").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ExecFailed);
        // a process left behind does not hold the connection
        let (status, output) = exec(client, &["sh", "-c", "sleep 60 & echo x"], b"").await.unwrap();
        assert_eq!((status, output.as_str()), (0, "x\n"));
    });
}

#[test]
fn command_goes_when_its_client_goes() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mark = daemon.path("mark");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 1000", mark.display());
        let io = daemon.client.upgrade("/v1/nodes/0/exec").await.unwrap();
        let (reader, mut writer) = tokio::io::split(io);
        let argv = vec!["sh".into(), "-c".into(), script];
        write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await.unwrap();
        let is = |exists: bool, path: &Path| path.exists() == exists;
        until(|| is(true, &mark)).await;
        let pid = std::fs::read_to_string(&mark).unwrap();
        drop((reader, writer));
        let process = PathBuf::from(format!("/proc/{}", pid.trim()));
        until(|| is(false, &process)).await;
    });
}

/// More than all pipes, sockets and queues on the way hold.
const MANY_BYTES: usize = 32 << 20;

/// Writes frames of input to `cat`, and counts what comes back.
async fn through_cat(io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let argv = vec!["cat".into()];
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await.unwrap();
    let input: Vec<u8> = (0..MANY_BYTES).map(|at| (at >> 12).to_le_bytes()[0]).collect();
    let sent = input.clone();
    let sending = tokio::spawn(async move {
        write_frame(&mut writer, FrameKind::Stdin, &sent).await.unwrap();
        write_frame(&mut writer, FrameKind::StdinEnd, &[]).await.unwrap();
        writer
    });
    let mut output = Vec::new();
    loop {
        let frame = read_frame(&mut reader).await.unwrap().expect("ends with a last frame");
        match frame.kind {
            FrameKind::Stdout => output.extend(frame.data),
            FrameKind::Exit => break,
            other => panic!("{other:?}: {}", String::from_utf8_lossy(&frame.data)),
        }
    }
    assert_eq!(output.len(), MANY_BYTES);
    assert!(output == input);
    drop(sending.await.unwrap());
}

/// What a client of another node's exec talks to: its own daemon, that daemon's connection
/// to the other one, and the command.
fn forwarded(daemon: &Daemon) -> tokio::io::DuplexStream {
    let (client, here) = tokio::io::duplex(1 << 16);
    let (there, far) = tokio::io::duplex(1 << 16);
    let sent = streams::Sent::Dropped;
    tokio::spawn(streams::forward(daemon.app.clone(), NodeId::ZERO, sent, here, there));
    tokio::spawn(streams::exec(far));
    client
}

#[test]
fn exec_passes_more_both_ways_than_is_held_on_the_way() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let io = daemon.client.upgrade("/v1/nodes/0/exec").await.unwrap();
        tokio::time::timeout(STUCK, through_cat(io)).await.expect("exec does not deadlock");
        let io = forwarded(&daemon);
        tokio::time::timeout(STUCK, through_cat(io)).await.expect("nor does a forwarded one");
    });
}

/// Runs a script that tells its process id and never reads; sends input until nothing takes
/// it any more; then the client goes.
async fn goes_while_input_is_stuck(
    daemon: &Daemon,
    io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
) {
    let mark = daemon.path("mark");
    _ = std::fs::remove_file(&mark);
    // silent, so that nothing else shows that the client has gone
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", mark.display());
    let (reader, mut writer) = tokio::io::split(io);
    let argv = vec!["sh".into(), "-c".into(), script];
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await.unwrap();
    until(|| mark.exists()).await;
    let process =
        PathBuf::from(format!("/proc/{}", std::fs::read_to_string(&mark).unwrap().trim()));
    let input = vec![b'x'; MANY_BYTES];
    let sending = write_frame(&mut writer, FrameKind::Stdin, &input);
    let sent = tokio::time::timeout(Duration::from_secs(2), sending).await;
    assert!(sent.is_err(), "somebody took it all");
    assert!(process.exists());
    drop((reader, writer));
    until(|| !process.exists()).await;
}

#[test]
fn command_goes_when_its_client_goes_behind_input_that_nobody_reads() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let io = daemon.client.upgrade("/v1/nodes/0/exec").await.unwrap();
        goes_while_input_is_stuck(&daemon, io).await;
        goes_while_input_is_stuck(&daemon, forwarded(&daemon)).await;
    });
}

#[test]
fn exec_on_a_node_that_cannot_be_reached_says_so() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &[])).await;
        let error = daemon.client.upgrade("/v1/nodes/web/exec").await.map(drop).unwrap_err();
        assert_eq!(body(error).code, ErrorCode::PeerUnreachable);
        daemon.fake.set_state(NodeId::new(1).unwrap(), NodeState::Halted);
        let error = daemon.client.upgrade("/v1/nodes/web/exec").await.map(drop).unwrap_err();
        assert_eq!(body(error).refusals[0].code, RefusalCode::NodeNotRunning);
    });
}

#[test]
fn console_shows_what_is_buffered_and_takes_keys() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &[])).await;
        // the fake echoes, as a shell does
        let io = daemon.client.upgrade("/v1/nodes/web/console?follow=true").await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(io);
        write_frame(&mut writer, FrameKind::Stdin, b"ls\n").await.unwrap();
        let frame = read_frame(&mut reader).await.unwrap().unwrap();
        assert_eq!((frame.kind, frame.data.as_slice()), (FrameKind::Stdout, &b"ls\n"[..]));
        drop((reader, writer));
        let io = daemon.client.upgrade("/v1/nodes/1/console").await.unwrap();
        let (mut reader, _writer) = tokio::io::split(io);
        assert_eq!(read_frame(&mut reader).await.unwrap().unwrap().data, b"ls\n");
        assert_eq!(read_frame(&mut reader).await.unwrap().unwrap().kind, FrameKind::Exit);
        let absent = daemon.client.upgrade("/v1/nodes/3/console").await.map(drop).unwrap_err();
        assert_eq!(body(absent).refusals[0].code, RefusalCode::NodeAbsent);
        // an id may be waited for
        assert!(daemon.client.upgrade("/v1/nodes/3/console?follow=true").await.is_ok());
    });
}

#[test]
fn what_was_typed_arrives_also_when_who_typed_it_has_left() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &[])).await;
        let typed = async |text: String| {
            let io = daemon.client.upgrade("/v1/nodes/1/console?follow=true").await.unwrap();
            let (reader, mut writer) = tokio::io::split(io);
            write_frame(&mut writer, FrameKind::Stdin, text.as_bytes()).await.unwrap();
            drop((reader, writer));
        };
        // there is something to be shown, which it does not wait for
        typed(".".repeat(60 << 10)).await;
        for number in 0..40 {
            typed(format!("typed {number};")).await;
        }
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let io = daemon.client.upgrade("/v1/nodes/1/console").await.unwrap();
            let (mut reader, _writer) = tokio::io::split(io);
            let mut shown = Vec::new();
            while let Some(frame) = read_frame(&mut reader).await.unwrap() {
                if frame.kind == FrameKind::Exit {
                    break;
                }
                shown.extend(frame.data);
            }
            let shown = String::from_utf8(shown).unwrap();
            let lost: Vec<_> =
                (0..40).filter(|number| !shown.contains(&format!("typed {number};"))).collect();
            if lost.is_empty() {
                return;
            }
            assert!(std::time::Instant::now() < end, "lost: {lost:?}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn what_was_typed_goes_on_to_another_node_also_when_who_typed_it_has_left() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mut lost = Vec::new();
        for number in 0..40 {
            let (client, here) = tokio::io::duplex(1 << 16);
            let (there, far) = tokio::io::duplex(1 << 16);
            let (mut reader, mut writer) = tokio::io::split(far);
            // there is something to be shown, which it does not wait for
            write_frame(&mut writer, FrameKind::Stdout, &[b'.'; 4096]).await.unwrap();
            let (left, mut typing) = tokio::io::split(client);
            write_frame(&mut typing, FrameKind::Stdin, b"typed").await.unwrap();
            drop((left, typing));
            let sent = streams::Sent::Typed;
            tokio::spawn(streams::forward(daemon.app.clone(), NodeId::ZERO, sent, here, there));
            match tokio::time::timeout(STUCK, read_frame(&mut reader)).await.unwrap() {
                Ok(Some(frame)) => assert_eq!(frame.data, b"typed"),
                Ok(None) | Err(_) => lost.push(number),
            }
        }
        assert_eq!(lost, [] as [usize; 0], "of 40");
    });
}
