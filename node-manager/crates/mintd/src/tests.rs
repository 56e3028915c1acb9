// SPDX-License-Identifier: Apache-2.0
//! The daemon on a fake machine, asked over a real Unix socket: everything but
//! the kernel.

mod machine;
mod model;
mod peers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_frame, write_json};
use mint_api::{
    AddRequest, ApplyRequest, ApplyResult, Client, ClientError, DeviceList, DoctorReport,
    ErrorBody, ErrorCode, EventView, Hello, Line, NodeDetail, NodeList, NodeResult, ROUTES,
    RemoveRequest, StartRequest, Versions, WaitFor,
};
use mint_image::kernel_image;
use mint_node::Config;
use mint_node::fake::FakeMachine;
use mint_sys::Event;
use mint_types::{NodeId, NodeSpec, NodeState, RefusalCode, ResourceKey, RestartPolicy};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::app::App;
use crate::caller::Caller;
use crate::run::Parts;
use crate::{changes, restart, server, streams};

/// A daemon with its own root folder.
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    pub fake: Arc<FakeMachine>,
    pub app: Arc<App>,
    pub client: Client,
    /// What another node's daemon asks with.
    pub peer: Client,
}

/// As on mint0, without TLS: who comes here is node 2's daemon.
async fn serve_peer(listener: UnixListener, router: axum::Router) {
    let caller = Caller::Peer { node: NodeId::new(2).unwrap() };
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(server::serve(stream, router.clone(), caller.clone()));
    }
}

/// A daemon's parts, with a folder for its root.
pub(crate) fn parts(folder: &Path, fake: &Arc<FakeMachine>) -> Parts {
    let mut config = Config::default();
    config.node.kernel = folder.join("bzImage");
    config.node.initrd = folder.join("initrd");
    // no mint0 here: waiting for a node means waiting for its kernel
    config.network.enabled = false;
    config.ssh.manage = false;
    std::fs::write(&config.node.kernel, kernel_image::pretend_kernel()).unwrap();
    std::fs::write(&config.node.initrd, mint_image::cpio::Archive::new().finish()).unwrap();
    Parts {
        machine: fake.clone(),
        host: fake.clone(),
        config: Arc::new(config),
        root: folder.to_owned(),
        bundle: folder.join("bundle"),
        area: None,
        versions: Versions::OURS,
    }
}

impl Daemon {
    /// Several may share a machine: each has a folder of its own.
    pub async fn start(fake: impl Into<Arc<FakeMachine>>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), fake.into()).await
    }

    /// After another one that lived there, maybe.
    pub async fn start_in(folder: tempfile::TempDir, fake: Arc<FakeMachine>) -> Self {
        let parts = parts(folder.path(), &fake);
        Self::start_parts(folder, fake, parts).await
    }

    pub async fn start_parts(
        folder: tempfile::TempDir,
        fake: Arc<FakeMachine>,
        parts: Parts,
    ) -> Self {
        let started = parts.start().await.unwrap();
        let socket = folder.path().join("mintd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(server::serve_unix(listener, started.router.clone()));
        let far = folder.path().join("peer.sock");
        tokio::spawn(serve_peer(UnixListener::bind(&far).unwrap(), started.router));
        let (client, peer) = (Client::unix(socket), Client::unix(far));
        Self { folder, fake, app: started.app, client, peer }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn operate<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
    ) -> Result<T, ErrorBody> {
        self.client.operate(path, request, |_| {}).await.map_err(body)
    }

    pub async fn add(&self, request: AddRequest) -> Result<NodeResult, ErrorBody> {
        self.operate("/v1/nodes", &serde_json::to_value(request).unwrap()).await
    }
}

pub(crate) fn body(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => panic!("{other}"),
    }
}

pub(crate) fn web() -> AddRequest {
    let mut spec = NodeSpec::named("web".parse().unwrap());
    spec.cpus = Some("3-4".parse().unwrap());
    spec.memory = vec!["1G@numa1".parse().unwrap()];
    spec.devices = vec!["0000:03:00.0".parse().unwrap()];
    AddRequest { spec, dry_run: false, wait: WaitFor::Mintd, wait_s: None }
}

pub(crate) fn test(work: impl AsyncFnOnce()) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work());
}

#[test]
fn server_serves_exactly_the_table() {
    let table: BTreeSet<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
    assert_eq!(table.len(), ROUTES.len(), "a route is there twice");
    for &(method, path) in &table {
        assert!(server::handler(method, path).is_some(), "nothing serves {method} {path}");
    }
    // and what is served is in the table: only that is in the document
    let arms: BTreeSet<_> = include_str!("server.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split_once("\") =>"))
        .map(|(arm, _)| arm.split_once("\", \"").expect("method and path"))
        .collect();
    assert_eq!(arms, table);
}

#[test]
fn life_of_a_node() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();

        let mut dry = web();
        dry.dry_run = true;
        let planned = daemon.add(dry).await.unwrap();
        assert!(planned.dry_run && planned.node.is_none());
        assert_eq!(daemon.fake.ledger(), before);

        let added = daemon.add(web()).await.unwrap();
        let node = added.node.unwrap();
        assert_eq!((node.name.as_str(), node.state), ("web", NodeState::Running));
        assert_eq!((node.cpus.as_str(), node.address.as_str()), ("3-4", "10.77.0.11"));
        assert!(added.times.running_ms.is_some());

        let list: NodeList = daemon.client.get("/v1/nodes").await.unwrap();
        assert_eq!(list.nodes.len(), 2);
        assert!(list.nodes[0].is_self && list.nodes[0].mintd == "ok");
        let detail: NodeDetail = daemon.client.get("/v1/nodes/web").await.unwrap();
        assert_eq!(detail.resources.memory.len(), 8);
        assert_eq!(detail.spec.unwrap().name.as_str(), "web");

        let again = daemon.add(web()).await.unwrap_err();
        assert_eq!(again.exit_status(), 3);
        assert_eq!(again.refusals[0].code, RefusalCode::NameTaken);

        let killed: NodeResult = daemon.operate("/v1/nodes/1/kill", &json!({})).await.unwrap();
        assert_eq!(killed.node.unwrap().state, NodeState::Killed);
        let start = serde_json::to_value(StartRequest::default()).unwrap();
        let started: NodeResult = daemon.operate("/v1/nodes/web/start", &start).await.unwrap();
        assert_eq!(started.node.unwrap().boots, 2);
        // no peer answers here: the kernel is asked
        let stopped: NodeResult = daemon.operate("/v1/nodes/web/stop", &json!({})).await.unwrap();
        assert_eq!(stopped.node.unwrap().state, NodeState::Halted);
        let request = serde_json::to_value(RemoveRequest::default()).unwrap();
        let removed: NodeResult = daemon.operate("/v1/nodes/web/remove", &request).await.unwrap();
        assert_eq!((removed.removed.as_deref(), removed.id), (Some("web"), Some(1)));
        let gone: Result<NodeDetail, _> = daemon.client.get("/v1/nodes/web").await;
        assert_eq!(body(gone.unwrap_err()).refusals[0].code, RefusalCode::NodeAbsent);
    });
}

#[test]
fn stop_of_a_deaf_node_ends_in_a_kill() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        daemon.fake.fail("shutdown node 1");
        let stopped: NodeResult =
            daemon.operate("/v1/nodes/web/stop", &json!({"timeout_s": 1})).await.unwrap();
        assert_eq!(stopped.node.unwrap().state, NodeState::Killed);
        assert!(stopped.notes[0].contains("was killed"), "{:?}", stopped.notes);
    });
}

#[test]
fn node_0_and_ourselves_are_not_stopped() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let stop: Result<NodeResult, _> = daemon.operate("/v1/nodes/0/stop", &json!({})).await;
        assert_eq!(stop.unwrap_err().refusals[0].code, RefusalCode::NodeSelf);
    });
}

#[test]
fn requests_that_make_no_sense_are_usage_errors() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        for (path, request) in [
            ("/v1/nodes", json!({"spec": {"name": "web", "cores": 2}})),
            ("/v1/nodes", json!({"spec": {"name": "Web"}})),
            ("/v1/nodes/web/stop", json!({"timeout": 2})),
        ] {
            let error = daemon.operate::<Value>(path, &request).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::BadRequest, "{path} {request}");
            assert_eq!(error.exit_status(), 2);
        }
        let nowhere: Result<Value, _> = daemon.client.get("/v1/nowhere").await;
        assert_eq!(body(nowhere.unwrap_err()).code, ErrorCode::NotFound);
    });
}

/// A limit that no clock can be set to is refused before anything is done.
#[test]
fn endless_time_limits_are_usage_errors_and_change_nothing() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        let before = daemon.fake.ledger();
        let endless = u64::MAX;
        for (path, request) in [
            ("/v1/nodes/web/stop", json!({ "timeout_s": endless })),
            ("/v1/nodes/web/restart", json!({ "timeout_s": endless })),
            ("/v1/nodes/0/restart", json!({ "timeout_s": endless })),
            ("/v1/nodes/web/start", json!({ "wait_s": endless })),
            ("/v1/nodes", json!({ "spec": { "name": "db" }, "wait_s": endless })),
        ] {
            let error = daemon.operate::<Value>(path, &request).await.unwrap_err();
            assert_eq!((error.code, error.exit_status()), (ErrorCode::BadRequest, 2), "{path}");
            assert!(error.message.contains("at most 31536000 s"), "{}", error.message);
            assert_eq!(daemon.fake.ledger(), before, "{path}");
        }
    });
}

#[test]
fn gift_with_a_driver_that_leads_elsewhere_is_not_taken() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        let gift = |driver: &str| {
            let key = ResourceKey::device("0000:03:00.0".parse().unwrap());
            let key = serde_json::to_value(key).unwrap();
            json!({"gifts": [{"key": key, "driver": driver}]})
        };
        for driver in ["../../../../tmp/x", "", "a/b"] {
            let claimed: Result<Value, _> =
                daemon.peer.post("/v1/local/claim", &gift(driver)).await;
            assert_eq!(body(claimed.unwrap_err()).code, ErrorCode::BadRequest, "{driver}");
        }
        assert_eq!(daemon.fake.ledger(), before);
        // a good one comes as far as the kernel, which says that it is not free
        let claimed: Value = daemon.peer.post("/v1/local/claim", &gift("nvme")).await.unwrap();
        assert_eq!(claimed["stopped"]["at"], 0, "{claimed}");
    });
}

#[test]
fn lists_and_documents_are_served() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let devices: DeviceList = daemon.client.get("/v1/devices").await.unwrap();
        let disk = devices.devices.iter().find(|device| device.bdf == "0000:03:00.0").unwrap();
        assert_eq!((disk.class_name.as_str(), disk.driver.as_deref()), ("NVMe disk", Some("nvme")));
        let raw: Value = daemon.client.get("/v1/devices").await.unwrap();
        let keys = raw["devices"][0].as_object().unwrap();
        for key in ["bdf", "class", "driver", "owner", "state", "numa"] {
            assert!(keys.contains_key(key), "{key}");
        }
        let report: DoctorReport = daemon.client.get("/v1/doctor").await.unwrap();
        assert!(report.ok, "{report:?}");
        let hello: Hello = daemon.client.get("/v1/hello").await.unwrap();
        assert_eq!((hello.node, hello.name.as_str()), (NodeId::ZERO, "node0"));
        let document: Value = daemon.client.get("/v1/openapi.json").await.unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let config: Value = daemon.client.get("/v1/config").await.unwrap();
        assert_eq!(config["wait"]["hung_s"], 10);
    });
}

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

/// Longer than any of these takes, however slow the machine.
pub(crate) const STUCK: Duration = Duration::from_secs(120);

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
    tokio::spawn(streams::forward(daemon.app.clone(), NodeId::ZERO, here, there));
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

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + STUCK;
    while !condition() {
        assert!(Instant::now() < deadline, "did not come true within {} s", STUCK.as_secs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
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

fn event(old: NodeState, new: NodeState) -> Event {
    Event { seq: 1, time_ns: 5, node: NodeId::new(1).unwrap(), old, new, lost: 0 }
}

#[test]
fn events_are_told_written_and_followed() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &[])).await;
        changes::state_changed(&daemon.app, &event(NodeState::Starting, NodeState::Running));
        let mut lines = daemon.client.lines("/v1/events?follow=true", None).await.unwrap();
        let first: EventView = lines.next().await.unwrap().unwrap();
        assert_eq!((first.seq, first.new.as_deref()), (1, Some("running")));
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Crashed));
        let second: EventView = lines.next().await.unwrap().unwrap();
        assert_eq!((second.seq, second.name.as_str()), (2, "web"));
        assert_eq!(second.old.as_deref(), Some("running"));
        let text = std::fs::read_to_string(daemon.path("run/mint/events.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 2);
        let mut later = daemon.client.lines("/v1/events?since=1", None).await.unwrap();
        let only: EventView = later.next().await.unwrap().unwrap();
        assert_eq!(only.seq, 2);
        assert!(later.next::<EventView>().await.unwrap().is_none());
    });
}

#[test]
fn node_that_ends_is_started_again_as_its_policy_says() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        for (policy, end, boots) in [
            (RestartPolicy::OnReboot, NodeState::Reboot, 2),
            (RestartPolicy::OnReboot, NodeState::Crashed, 1),
            (RestartPolicy::OnCrash, NodeState::Crashed, 2),
            (RestartPolicy::OnCrash, NodeState::Killed, 1),
            (RestartPolicy::Never, NodeState::Reboot, 1),
            (RestartPolicy::Always, NodeState::Halted, 2),
        ] {
            let daemon = Daemon::start(FakeMachine::new()).await;
            let mut request = web();
            request.spec.restart = policy;
            daemon.add(request).await.unwrap();
            daemon.fake.set_state(one, end);
            // what the event's task does, to its end
            crate::restart::start_again(daemon.app.clone(), one, end).await;
            let node = mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap();
            let state = if boots == 2 { NodeState::Running } else { end };
            assert_eq!((node.state, node.boots), (state, boots), "{policy:?} {end}");
        }
    });
}

#[test]
fn event_of_an_end_starts_the_node_again() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        daemon.fake.set_state(one, NodeState::Reboot);
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Reboot));
        let fake = daemon.fake.clone();
        until(|| {
            let node = mint_node::Machine::node(&*fake, one).unwrap().unwrap();
            node.state == NodeState::Running && node.boots == 2
        })
        .await;
    });
}

#[test]
fn node_whose_end_a_peer_ordered_stays_down() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mut request = web();
        request.spec.restart = RestartPolicy::Always;
        daemon.add(request).await.unwrap();
        daemon.app.marks().ordered.note(one, 1);
        daemon.fake.set_state(one, NodeState::Halted);
        crate::restart::start_again(daemon.app.clone(), one, NodeState::Halted).await;
        let node = mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap();
        assert_eq!((node.state, node.boots), (NodeState::Halted, 1));
    });
}

#[test]
fn node_made_after_a_removed_one_of_its_id_is_started_again() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        // of the node that was here before: its first start was ended on request
        daemon.app.marks().ordered.note(one, 1);
        changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        let mut request = web();
        request.spec.restart = RestartPolicy::OnCrash;
        daemon.add(request).await.unwrap();
        daemon.fake.set_state(one, NodeState::Crashed);
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Crashed));
        let fake = daemon.fake.clone();
        until(|| mint_node::Machine::node(&*fake, one).unwrap().unwrap().boots == 2).await;
    });
}

#[test]
fn silence_of_a_removed_node_says_nothing_of_the_next() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        let (peers, within) = (&daemon.app.peers, Duration::from_secs(3));
        // no daemon of the fake machine's other nodes is there to answer
        assert!(!peers.answers(one, 1, within).await);
        assert_eq!(peers.patience(one, 1, within), within, "it may be starting");
        peers.note(one, 1, true);
        assert!(!peers.answers(one, 1, within).await);
        assert!(peers.patience(one, 1, within) < within);
        changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        assert_eq!(peers.patience(one, 1, within), within);
    });
}

/// Another daemon removed what this one added, and made the next node of that id.
#[test]
fn node_of_another_daemon_is_not_started_again_by_an_old_description() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let ours = Daemon::start(FakeMachine::new()).await;
        let theirs = Daemon::start(ours.fake.clone()).await;
        let mut request = web();
        request.spec.restart = RestartPolicy::Always;
        ours.add(request).await.unwrap();
        let force = json!({ "force": true });
        theirs.operate::<NodeResult>("/v1/nodes/web/remove", &force).await.unwrap();
        let mut request = web();
        request.spec.restart = RestartPolicy::Never;
        theirs.add(request).await.unwrap();
        let end = NodeState::Crashed;
        ours.fake.set_state(one, end);
        restart::start_again(ours.app.clone(), one, end).await;
        restart::start_again(theirs.app.clone(), one, end).await;
        let node = mint_node::Machine::node(&*ours.fake, one).unwrap().unwrap();
        assert_eq!((node.state, node.boots), (end, 1));
        // nor is the old one told to anybody
        let stale: mint_api::SpecReply = ours.peer.get("/v1/local/specs/1").await.unwrap();
        assert_eq!(stale.spec, None);
        let kept = |daemon: &Daemon| {
            let (root, dir) = (&daemon.app.root, &daemon.app.config.state.dir);
            crate::identity::state_dir(root, dir).unwrap().join("nodes/1.json").exists()
        };
        for daemon in [&ours, &theirs] {
            changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        }
        assert_eq!((kept(&ours), kept(&theirs)), (false, true));
    });
}

#[test]
fn node_without_a_description_is_started_with_default_images_only_if_asked_for() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let fake = FakeMachine::new()
            .with_node(1, "web", &[ResourceKey::cpu(3), ResourceKey::memory(16)])
            .with_node(2, "db", &[ResourceKey::cpu(4)]);
        let daemon = Daemon::start(fake).await;
        let state = || mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap().state;
        let refused = async |path: &str| {
            let error = daemon.operate::<NodeResult>(path, &json!({})).await.unwrap_err();
            assert_eq!(error.exit_status(), 3, "{path}");
            let refusal = error.refusals.into_iter().next().unwrap();
            assert_eq!(refusal.code, RefusalCode::DescriptionMissing);
            refusal.to_string()
        };
        // before it is stopped
        let text = refused("/v1/nodes/web/restart").await;
        assert_eq!(state(), NodeState::Running);
        assert!(text.contains("node 2 (db) does not answer"), "{text}");
        assert!(text.contains("mintctl node start web --default-image"), "{text}");
        daemon.fake.set_state(one, NodeState::Halted);
        refused("/v1/nodes/web/start").await;
        assert_eq!(state(), NodeState::Halted);
        assert_eq!(daemon.fake.calls(), Vec::<String>::new());
        let default = json!({ "default_image": true });
        daemon.operate::<NodeResult>("/v1/nodes/web/start", &default).await.unwrap();
        let loads = format!("load 1 {}", daemon.app.config.node.cmdline);
        // the fake's cores come to the park loop only when somebody fetches them
        assert_eq!(daemon.fake.calls(), ["kill 1", loads.as_str(), "start 1"]);
    });
}

#[test]
fn daemon_that_cannot_come_is_not_waited_for() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        // told apart by what it says: without mint0 here nobody waits for a daemon anyhow
        let waits_for = async |devices: &[&str], cmdline: Option<&str>| {
            let mut request = web();
            request.spec.devices = devices.iter().map(|bdf| bdf.parse().unwrap()).collect();
            request.spec.cmdline = cmdline.map(str::to_owned);
            let mut told = Vec::new();
            let take = |text: &str| told.push(text.to_owned());
            let _: NodeResult = daemon.client.operate("/v1/nodes", &request, take).await.unwrap();
            let take = |text: &str| told.push(text.to_owned());
            let stop = json!({ "timeout_s": 1 });
            daemon.operate::<NodeResult>("/v1/nodes/web/stop", &stop).await.unwrap();
            let path = "/v1/nodes/web/start";
            let _: NodeResult = daemon.client.operate(path, &json!({}), take).await.unwrap();
            let force = json!({ "force": true });
            daemon.operate::<NodeResult>("/v1/nodes/web/remove", &force).await.unwrap();
            told.retain(|text| text.contains("waiting for the kernel only: "));
            told
        };
        let disk = "0000:03:00.0";
        assert_eq!(waits_for(&[disk], None).await, Vec::<String>::new());
        let told = waits_for(&[], None).await;
        assert!(told.len() == 2 && told[0].contains("no disk or network card"), "{told:?}");
        let told = waits_for(&[disk], Some("console=hvc0 mint.root=initrd")).await;
        assert!(told.len() == 2 && told[1].contains("by mint.root=initrd"), "{told:?}");
        let mut initrd = mint_image::cpio::Archive::new();
        initrd.file("sbin/mintd", 0o755, b"x");
        std::fs::write(&daemon.app.config.node.initrd, initrd.finish()).unwrap();
        assert_eq!(waits_for(&[], None).await, Vec::<String>::new());
        std::fs::write(&daemon.app.config.node.initrd, b"\xfd7zXZ\0abc").unwrap();
        assert_eq!(waits_for(&[], None).await, Vec::<String>::new(), "who knows");
    });
}

#[test]
fn apply_is_idempotent_and_starts_what_has_stopped() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let dir = daemon.path("nodes.d");
        std::fs::create_dir(&dir).unwrap();
        let text = "name = \"web\"\ncpus = \"3-4\"\nmemory = \"1G@numa1\"\n";
        std::fs::write(dir.join("web.toml"), text).unwrap();
        std::fs::write(dir.join("bad.toml"), "name = \"bad\"\ncpus = \"9\"\nmemory = \"1G\"\n")
            .unwrap();
        let request =
            ApplyRequest { dir: Some(dir.to_string_lossy().into_owned()), wait: WaitFor::Running };
        let request = serde_json::to_value(request).unwrap();
        let apply = async || {
            let result: Result<ApplyResult, _> = daemon.operate("/v1/apply", &request).await;
            result.map(|result| {
                result.nodes.into_iter().map(|node| node.result).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(apply().await.unwrap(), "failed added");
        assert_eq!(apply().await.unwrap(), "failed unchanged");
        daemon.fake.set_state(NodeId::new(1).unwrap(), NodeState::Halted);
        assert_eq!(apply().await.unwrap(), "failed started");
        let before = daemon.fake.ledger();
        std::fs::write(dir.join("bad.toml"), "name = \"bad\"\ncolour = \"red\"\n").unwrap();
        let error = apply().await.unwrap_err();
        assert_eq!((error.code, error.exit_status()), (ErrorCode::ConfigBad, 2));
        assert!(error.causes[0].contains("colour"), "{error:?}");
        assert_eq!(daemon.fake.ledger(), before);
    });
}

#[test]
fn apply_starts_a_node_by_its_file_where_nobody_else_describes_it() {
    test(async || {
        let owned = [ResourceKey::cpu(3), ResourceKey::memory(16)];
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &owned)).await;
        daemon.fake.set_state(NodeId::new(1).unwrap(), NodeState::Halted);
        let dir = daemon.path("nodes.d");
        std::fs::create_dir(&dir).unwrap();
        let text = "name = \"web\"\ncpus = \"3\"\nmemory = \"128M\"\ncmdline = \"of the file\"\n";
        std::fs::write(dir.join("web.toml"), text).unwrap();
        let request = json!({ "dir": dir, "wait": "running" });
        let result: ApplyResult = daemon.operate("/v1/apply", &request).await.unwrap();
        assert_eq!(result.nodes[0].result, "started", "{:?}", result.nodes[0].error);
        assert_eq!(daemon.fake.calls(), ["kill 1", "load 1 of the file", "start 1"]);
    });
}

#[test]
fn two_adds_at_once_get_different_nodes() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mut db = web();
        db.spec.name = "db".parse().unwrap();
        db.spec.cpus = Some("5".parse().unwrap());
        db.spec.memory = vec!["512M@numa1".parse().unwrap()];
        db.spec.devices.clear();
        let (one, two) = tokio::join!(daemon.add(web()), daemon.add(db));
        assert_ne!(one.unwrap().node.unwrap().id, two.unwrap().node.unwrap().id);
    });
}

#[test]
fn driver_survives_a_panic_and_settles_the_journal() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        // a bug, in the middle of an operation: some of its steps are done
        daemon.fake.panic_at("claim cpu 4 1");
        let lost = daemon.add(web()).await.unwrap_err();
        assert_eq!(lost.code, ErrorCode::Failed, "{lost}");
        let calls = daemon.fake.calls();
        assert!(calls.contains(&"claim cpu 3 1".to_owned()), "{calls:?}");
        until(|| daemon.fake.ledger() == before).await;
        daemon.add(web()).await.unwrap();
    });
}

#[test]
fn memory_is_dumped_of_a_node_that_ended_and_of_no_other() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let path = "/v1/nodes/web/vmcore";
        daemon.add(web()).await.unwrap();
        let refused = async || match daemon.client.bytes(path).await.unwrap_err() {
            ClientError::Refused(body) => (body.exit_status(), body.to_string()),
            other => panic!("{other}"),
        };
        let (status, text) = refused().await;
        assert_eq!(status, 3);
        assert!(text.contains("runs") && text.contains("mintctl node kill web"), "{text}");
        let one = NodeId::new(1).unwrap();
        daemon.fake.set_state(one, NodeState::Crashed);
        assert_eq!(refused().await.0, 3);
        let memory: Vec<u8> = (0..1_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
        mint_node::Machine::console_write(&*daemon.fake, one, &memory).unwrap();
        let mut reader = daemon.client.bytes(path).await.unwrap();
        assert_eq!(reader.length(), Some(1_000_000));
        let mut taken = Vec::new();
        while let Some(data) = reader.next().await.unwrap() {
            taken.extend_from_slice(&data);
        }
        assert!(taken == memory);
    });
}

#[test]
fn progress_comes_before_the_result() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let request = serde_json::to_vec(&web()).unwrap();
        let mut lines = daemon.client.lines("/v1/nodes", Some(request)).await.unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.next::<Line>().await.unwrap() {
            all.push(line);
        }
        let (last, before) = all.split_last().unwrap();
        assert!(matches!(last, Line::Result(_)));
        assert!(before.len() > 5 && before.iter().all(|line| matches!(line, Line::Progress(_))));
    });
}

#[test]
fn metrics_tell_of_nodes_and_resources() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        let mut reader = daemon.client.bytes("/metrics").await.unwrap();
        let mut text = Vec::new();
        while let Some(data) = reader.next().await.unwrap() {
            text.extend_from_slice(&data);
        }
        let text = String::from_utf8(text).unwrap();
        for line in [
            "mint_node_state{name=\"web\",node=\"1\",state=\"running\"} 1",
            "mint_node_cores{name=\"web\",node=\"1\"} 2",
            "# TYPE mint_node_boots_total counter",
            "mint_node_boots_total{name=\"web\",node=\"1\"} 1",
            "mint_resources{kind=\"cpu\",state=\"moving\"} 0",
        ] {
            assert!(text.lines().any(|got| got == line), "{line} is not in:\n{text}");
        }
        let loads: mint_api::LoadList = daemon.client.get("/v1/loads").await.unwrap();
        let own = loads.nodes.iter().find(|node| node.id == NodeId::ZERO).unwrap();
        assert_eq!(own.load.as_ref().unwrap().uptime_ms, 1000);
    });
}
