// SPDX-License-Identifier: Apache-2.0
//! What serves a route, where that is more than a call.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use mint_api::{
    ClaimRequest, ClientError, ErrorBody, ErrorCode, EventView, FORWARDED_HEADER, Hello,
    Introduced, Introductions, Moved, Releasable, ReleasableRequest, ReleaseRequest, Repaired,
    SpecReply, StoppedAt, tolerant,
};
use mint_node::{OpError, Stopped};
use mint_serve::{Failure, lines, upgraded};
use mint_types::{Asker, NodeId, NodeStatus};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tracing::info;

use crate::app::App;
use crate::caller::Caller;
use crate::ending::op_error;
use crate::peer_clients::peer_error;
use crate::request::Request;
use crate::resolve::resolve;
use crate::{doctor, operate, ssh, streams, takeover, vmcore};

pub(crate) type Shared = State<Arc<App>>;

/// A request's body; an empty one means the request with all defaults.
pub(crate) fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Failure> {
    let text = if body.trim().is_empty() { "{}" } else { body };
    // a peer may be newer and say more; a user who says more is mistaken
    let parsed = match Caller::current() {
        Some(Caller::Peer { .. } | Caller::Linked { .. }) => tolerant::from_slice(text.as_bytes()),
        _ => serde_json::from_str(text),
    };
    parsed.map_err(|error| {
        Failure(ErrorBody::new(ErrorCode::BadRequest, format_args!("bad request: {error}")))
    })
}

pub(crate) async fn hello(State(app): Shared) -> Json<Hello> {
    let status = app.machine.node(app.here).ok().flatten();
    Json(Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        api_version: app.peers.versions.newest,
        api_oldest: app.peers.versions.oldest,
        node: app.here,
        machine: app.peers.tls.as_ref().map(|pki| pki.here().machine),
        name: status.map_or_else(|| format!("node{}", app.here), |status| status.display_name()),
        ssh_host_keys: ssh::host_keys(&app.root, &app.bundle),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsoleQuery {
    #[serde(default)]
    follow: bool,
}

pub(crate) async fn console(
    State(app): Shared,
    Path(node): Path<String>,
    Query(query): Query<ConsoleQuery>,
    request: axum::extract::Request,
) -> Result<Response, Failure> {
    let node = match resolve(&app, &node) {
        Ok(status) => status.id,
        Err(error) => {
            // an id may be waited for before the node is there
            let id = node.parse().ok().and_then(|id| NodeId::new(id).ok());
            id.filter(|_| query.follow).ok_or(Failure(error))?
        }
    };
    upgraded(request, move |io| streams::console(app, node, query.follow, io))
}

pub(crate) async fn exec(
    State(app): Shared,
    Path(node): Path<String>,
    headers: HeaderMap,
    request: axum::extract::Request,
) -> Result<Response, Failure> {
    let node = resolve(&app, &node)?;
    if node.id == app.here {
        if !app.config.exec.enabled {
            let text = format!("{} runs no commands: exec is switched off there", node.label());
            let hint = "exec.enabled of its mint.toml; or log in with ssh";
            return Err(Failure(ErrorBody::new(ErrorCode::NotAllowed, text).hint(hint)));
        }
        return upgraded(request, streams::exec);
    }
    if headers.contains_key(FORWARDED_HEADER) {
        let error = format!("this is node {}, not {}", app.here, node.label());
        return Err(Failure(ErrorBody::new(ErrorCode::BadRequest, error)));
    }
    if !node.state.is_live() {
        return Err(Failure(ErrorBody::refused(vec![mint_node::not_running(&node)])));
    }
    let client = app.peers.client(node.id)?;
    let path = format!("/v1/nodes/{}/exec", node.id);
    let there = client.upgrade(&path).await.map_err(|error| no_frames(&node, error))?;
    upgraded(request, move |here| {
        streams::forward(app, node.id, streams::Sent::Dropped, here, there)
    })
}

/// Why a node's daemon does not carry frames.
pub(crate) fn no_frames(node: &NodeStatus, error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => {
            let mut body = ErrorBody::from_error(ErrorCode::PeerUnreachable, &other);
            body.causes.insert(0, body.message.clone());
            body.message = format!("mintd of {} does not answer", node.label());
            body
        }
    }
}

pub(crate) async fn vmcore(
    State(app): Shared,
    Path(node): Path<String>,
) -> Result<Response, Failure> {
    let node = resolve(&app, &node)?;
    Ok(vmcore::respond(app, node).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    since: u64,
}

pub(crate) async fn events(State(app): Shared, Query(query): Query<EventsQuery>) -> Response {
    lines::respond(move |lines| async move {
        let (kept, mut later) = app.events.subscribe(query.since);
        for event in &kept {
            if !lines.send(event).await {
                return;
            }
        }
        if !query.follow {
            return;
        }
        loop {
            let event = match later.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(count)) => EventView {
                    seq: 0,
                    time_ns: 0,
                    seen_ns: 0,
                    event: "lost".into(),
                    node: app.here.as_u32(),
                    name: String::new(),
                    old: None,
                    new: None,
                    reason: format!("{count} events were not read in time"),
                },
                Err(RecvError::Closed) => return,
            };
            if !lines.send(&event).await {
                return;
            }
        }
    })
}

/// What a handler holds, and whether it still does: when the connection ends, it is dropped.
fn somebody_waits() -> (Arc<()>, impl Fn() -> bool + Send + 'static) {
    let held = Arc::new(());
    let seen = Arc::downgrade(&held);
    (held, move || seen.strong_count() > 0)
}

fn moved(result: Result<(), Stopped<OpError>>) -> Json<Moved> {
    let stopped = |Stopped { at, error }| StoppedAt { at, error: op_error(error) };
    Json(Moved { stopped: result.err().map(stopped) })
}

pub(crate) async fn release(
    State(app): Shared,
    Who(who): Who,
    body: String,
) -> Result<Json<Moved>, Failure> {
    let request: ReleaseRequest = parse(&body)?;
    let (_waits, waits) = somebody_waits();
    let waits = takeover::asker_waits(app.machine.clone(), who, waits);
    Ok(moved(app.blocking(move |nodes| nodes.release_here(&request.keys, &waits)).await?))
}

pub(crate) async fn releasable(
    State(app): Shared,
    body: String,
) -> Result<Json<Releasable>, Failure> {
    let request: ReleasableRequest = parse(&body)?;
    let said = app.blocking(move |nodes| nodes.releasable_here(&request.keys)).await?;
    let said = said.map_err(op_error)?;
    Ok(Json(Releasable { refusals: said.into_iter().map(Result::err).collect() }))
}

pub(crate) async fn claim(
    State(app): Shared,
    Who(who): Who,
    body: String,
) -> Result<Json<Moved>, Failure> {
    let request: ClaimRequest = parse(&body)?;
    let (_waits, waits) = somebody_waits();
    let waits = takeover::asker_waits(app.machine.clone(), who, waits);
    Ok(moved(app.blocking(move |nodes| nodes.claim_here(&request.gifts, &waits)).await?))
}

pub(crate) async fn repair(State(app): Shared, Who(who): Who) -> Result<Json<Repaired>, Failure> {
    let done = operate::repair(&app, who).await?;
    Ok(Json(Repaired { done, report: doctor::doctor(&app).await? }))
}

/// Who asks, as the listener knows it.
pub(crate) struct Who(pub Asker);

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(match parts.extensions.get() {
            Some(Caller::User { uid, .. }) => Asker::User(Some(*uid)),
            Some(Caller::Peer { node }) => Asker::Peer(Some(*node)),
            // as an operation's asker only this machine's nodes count
            Some(Caller::Linked { .. }) => Asker::Peer(None),
            None => Asker::User(None),
        }))
    }
}

pub(crate) async fn operate(
    app: Arc<App>,
    who: Asker,
    request: Request,
) -> Result<Response, Failure> {
    Ok(operate::respond(app, who, request).await?)
}

/// The end of node 0 is the end of the machine: its own poweroff stops the others.
pub(crate) async fn machine(app: Arc<App>, what: &'static str) -> Result<Json<Value>, Failure> {
    if app.here == NodeId::ZERO {
        let commands = &app.config.commands;
        return end_here(if what == "reboot" { &commands.reboot } else { &commands.poweroff });
    }
    let client = app.peers.client(NodeId::ZERO)?;
    let path = format!("/v1/local/{what}");
    client.post(&path, &json!({})).await.map(Json).map_err(|error| Failure(peer_error(error)))
}

pub(crate) fn end_here(command: &[String]) -> Result<Json<Value>, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        let text = "commands.poweroff or commands.reboot of mint.toml is empty";
        return Err(Failure(ErrorBody::new(ErrorCode::ConfigBad, text)));
    };
    // a group of its own: it outlives us, as it stops us on its way
    let spawned = tokio::process::Command::new(program).args(arguments).process_group(0).spawn();
    match spawned {
        Ok(mut child) => {
            info!("this node ends: asked for");
            tokio::spawn(async move { child.wait().await });
            Ok(Json(json!({ "runs": program })))
        }
        Err(error) => {
            let mut body = ErrorBody::from_error(ErrorCode::Failed, &error);
            body.message = format!("cannot run {program}: {}", body.message);
            Err(Failure(body))
        }
    }
}

pub(crate) async fn introductions(
    State(app): Shared,
    body: String,
) -> Result<Json<Introduced>, Failure> {
    let Introductions { known } = parse(&body)?;
    let mut refused = Vec::new();
    for introduction in known.into_iter().filter(|known| known.node != app.here) {
        let node = introduction.node;
        if let Some(Err(error)) = app.peers.tls.as_ref().map(|pki| pki.meet(introduction)) {
            refused.push(format!("node {node}: {error}"));
        }
    }
    Ok(Json(Introduced { refused }))
}

pub(crate) async fn local_spec(
    State(app): Shared,
    Path(node): Path<String>,
) -> Result<Json<SpecReply>, Failure> {
    let inventory = app.inventory()?;
    let node = inventory.resolve(&node).map_err(|refusal| ErrorBody::refused(vec![refusal]))?;
    Ok(Json(SpecReply { spec: app.specs.get(&inventory, node.id) }))
}
