// SPDX-License-Identifier: Apache-2.0
//! The interface: routes, and the two places where they are served.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::header::{CONNECTION, UPGRADE as UPGRADE_HEADER};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mint_api::{
    ClaimRequest, ErrorBody, ErrorCode, EventView, FORWARDED_HEADER, Hello, Introduced,
    Introductions, Moved, OrderedEnd, ROUTES, Releasable, ReleasableRequest, ReleaseRequest,
    Repaired, SpecReply, StoppedAt, UPGRADE, openapi, tolerant,
};
use mint_node::{OpError, Stopped};
use mint_types::{Asker, NodeId, NodeStatus};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::broadcast::error::RecvError;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::app::App;
use crate::caller::Caller;
use crate::ending::op_error;
use crate::failure::Failure;
use crate::gate::guard;
use crate::peer_clients::peer_error;
use crate::pki::Pki;
use crate::request::Request;
use crate::{doctor, lines, loads, metrics, node0, operate, ssh, streams, takeover, views, vmcore};

/// Requests are small; a description is the largest.
const BODY_BYTES_MAX: usize = 1 << 20;
/// For a peer's TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

type Shared = State<Arc<App>>;

/// All routes of [`ROUTES`].
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let handler = handler(route.method, route.path);
        let handler = handler.expect("server_serves_exactly_the_table tests that none is missing");
        router = router.route(route.path, handler);
    }
    let router = router
        .fallback(|| async {
            Failure(ErrorBody::new(ErrorCode::NotFound, "there is no such path"))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app.clone());
    guard(router, app)
}

/// What serves a route of the table.
pub(crate) fn handler(method: &str, path: &str) -> Option<MethodRouter<Arc<App>>> {
    Some(match (method, path) {
        ("get", "/v1/hello") => get(hello),
        ("get", "/v1/openapi.json") => get(|| async { Json(openapi()) }),
        ("get", "/v1/config") => {
            get(|State(app): Shared| async move { Json((*app.config).clone()) })
        }
        ("get", "/v1/nodes") => get(|State(app): Shared| async move {
            views::node_list(&app).await.map(Json).map_err(Failure)
        }),
        ("post", "/v1/nodes") => {
            post(|State(app): Shared, Who(who): Who, body: String| async move {
                operate(app, who, Request::Add(parse(&body)?)).await
            })
        }
        ("get", "/v1/nodes/{node}") => {
            get(|State(app): Shared, Path(node): Path<String>| async move {
                views::node_detail(&app, &node).await.map(Json).map_err(Failure)
            })
        }
        ("post", "/v1/nodes/{node}/start") => post(
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                operate(app, who, Request::Start(node, parse(&body)?)).await
            },
        ),
        ("post", "/v1/nodes/{node}/stop") => post(
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                operate(app, who, Request::Stop(node, parse(&body)?)).await
            },
        ),
        ("post", "/v1/nodes/{node}/restart") => post(
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                operate(app, who, Request::Restart(node, parse(&body)?)).await
            },
        ),
        ("post", "/v1/nodes/{node}/kill") => {
            post(|State(app): Shared, Who(who): Who, Path(node): Path<String>| async move {
                operate(app, who, Request::Kill(node)).await
            })
        }
        ("post", "/v1/nodes/{node}/remove") => post(
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                operate(app, who, Request::Remove(node, parse(&body)?)).await
            },
        ),
        ("post", "/v1/nodes/{node}/resize") => post(
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                operate(app, who, Request::Resize(node, parse(&body)?)).await
            },
        ),
        ("get", "/v1/nodes/{node}/console") => get(console),
        ("get", "/v1/nodes/{node}/exec") => get(exec),
        ("get", "/v1/nodes/{node}/vmcore") => get(vmcore),
        ("get", "/v1/cpus") => {
            get(
                |State(app): Shared| async move { views::cpu_list(&app).map(Json).map_err(Failure) },
            )
        }
        ("get", "/v1/memory") => {
            get(
                |State(app): Shared| async move { views::memory_list(&app).map(Json).map_err(Failure) },
            )
        }
        ("get", "/v1/devices") => {
            get(
                |State(app): Shared| async move { views::device_list(&app).map(Json).map_err(Failure) },
            )
        }
        ("get", "/v1/loads") => {
            get(
                |State(app): Shared| async move { loads::all(&app).await.map(Json).map_err(Failure) },
            )
        }
        ("get", "/v1/local/load") => {
            get(|State(app): Shared| async move { Json(loads::own(&app).await) })
        }
        ("get", "/metrics") => {
            get(|State(app): Shared| async move { metrics::respond(&app).map_err(Failure) })
        }
        ("get", "/v1/doctor") => get(|State(app): Shared| async move {
            doctor::doctor(&app).await.map(Json).map_err(Failure)
        }),
        ("post", "/v1/repair") => post(repair),
        ("get", "/v1/events") => get(events),
        ("post", "/v1/apply") => {
            post(|State(app): Shared, Who(who): Who, body: String| async move {
                operate(app, who, Request::Apply(parse(&body)?)).await
            })
        }
        ("get", "/v1/operations") => {
            get(|State(app): Shared| async move { Json(operate::list(&app)) })
        }
        ("get", "/v1/operations/{id}") => {
            get(|State(app): Shared, Path(id): Path<String>| async move {
                operate::id(&id).and_then(|id| operate::show(&app, id)).map(Json).map_err(Failure)
            })
        }
        ("get", "/v1/operations/{id}/wait") => {
            get(|State(app): Shared, Path(id): Path<String>| async move {
                operate::wait(&app, operate::id(&id)?).await.map_err(Failure)
            })
        }
        ("post", "/v1/operations/{id}/cancel") => {
            post(|State(app): Shared, Path(id): Path<String>| async move {
                operate::id(&id).and_then(|id| operate::cancel(&app, id)).map(Json).map_err(Failure)
            })
        }
        ("post", "/v1/local/release") => post(release),
        ("post", "/v1/local/releasable") => post(releasable),
        ("post", "/v1/local/claim") => post(claim),
        ("post", "/v1/machine/poweroff") => post(|State(app): Shared| machine(app, "poweroff")),
        ("post", "/v1/machine/reboot") => post(|State(app): Shared| machine(app, "reboot")),
        ("post", "/v1/local/poweroff") => {
            post(|State(app): Shared| async move { end_here(&app.config.commands.poweroff) })
        }
        ("get", "/v1/local/boot") => {
            get(
                |State(app): Shared| async move { node0::boot_view(&app).map(Json).map_err(Failure) },
            )
        }
        ("get", "/v1/local/boot/kernel") => get(|State(app): Shared| async move {
            node0::file(&app.config.node0.kernel, &app.config.node.kernel).await.map_err(Failure)
        }),
        ("get", "/v1/local/boot/initrd") => get(|State(app): Shared| async move {
            node0::file(&app.config.node0.initrd, &app.config.node.initrd).await.map_err(Failure)
        }),
        ("post", "/v1/local/leave") => post(|State(app): Shared| async move {
            node0::leave_here(&app).map_err(Failure)?;
            end_here(&app.config.commands.leave)
        }),
        ("post", "/v1/local/reboot") => {
            post(|State(app): Shared| async move { end_here(&app.config.commands.reboot) })
        }
        ("post", "/v1/local/ordered") => post(|State(app): Shared, body: String| async move {
            let end: OrderedEnd = parse(&body)?;
            app.marks().ordered.note(end.node, end.boots);
            Ok::<_, Failure>(Json(json!({})))
        }),
        ("get", "/v1/local/introductions") => get(|State(app): Shared| async move {
            let known = app.peers.tls.as_ref().map(|pki| pki.known()).unwrap_or_default();
            Json(Introductions { known })
        }),
        ("post", "/v1/local/introductions") => post(introductions),
        ("get", "/v1/local/specs/{node}") => get(local_spec),
        _ => return None,
    })
}

/// A request's body; an empty one means the request with all defaults.
fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Failure> {
    let text = if body.trim().is_empty() { "{}" } else { body };
    // a peer may be newer and say more; a user who says more is mistaken
    let parsed = match Caller::current() {
        Some(Caller::Peer { .. }) => tolerant::from_slice(text.as_bytes()),
        _ => serde_json::from_str(text),
    };
    parsed.map_err(|error| {
        Failure(ErrorBody::new(ErrorCode::BadRequest, format_args!("bad request: {error}")))
    })
}

async fn hello(State(app): Shared) -> Json<Hello> {
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

/// The node that a path means.
fn resolve(app: &App, reference: &str) -> Result<NodeStatus, ErrorBody> {
    app.inventory()?
        .resolve(reference)
        .cloned()
        .map_err(|refusal| ErrorBody::refused(vec![refusal]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsoleQuery {
    #[serde(default)]
    follow: bool,
}

async fn console(
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

async fn exec(
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
    let there = client.upgrade(&path).await.map_err(|error| match error {
        mint_api::ClientError::Refused(body) => *body,
        other => {
            let mut body = ErrorBody::from_error(ErrorCode::PeerUnreachable, &other);
            body.causes.insert(0, body.message.clone());
            body.message = format!("mintd of {} does not answer", node.label());
            body
        }
    })?;
    upgraded(request, move |here| streams::forward(app, node.id, here, there))
}

async fn vmcore(State(app): Shared, Path(node): Path<String>) -> Result<Response, Failure> {
    let node = resolve(&app, &node)?;
    Ok(vmcore::respond(app, node).await?)
}

/// Answers 101 and goes on with the connection in a task of its own.
fn upgraded<F>(
    mut request: axum::extract::Request,
    work: impl FnOnce(TokioIo<hyper::upgrade::Upgraded>) -> F + Send + 'static,
) -> Result<Response, Failure>
where
    F: Future<Output = ()> + Send,
{
    let asked = request.headers().get(UPGRADE_HEADER).map(HeaderValue::as_bytes);
    if asked != Some(UPGRADE.as_bytes()) {
        let text = format!("this path is for connections that are upgraded to {UPGRADE}");
        return Err(Failure(ErrorBody::new(ErrorCode::BadRequest, text)));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(io) => work(TokioIo::new(io)).await,
            Err(error) => debug!(%error, "no upgrade"),
        }
    });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE_HEADER, HeaderValue::from_static(UPGRADE));
    Ok(response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    since: u64,
}

async fn events(State(app): Shared, Query(query): Query<EventsQuery>) -> Response {
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

async fn release(State(app): Shared, Who(who): Who, body: String) -> Result<Json<Moved>, Failure> {
    let request: ReleaseRequest = parse(&body)?;
    let (_waits, waits) = somebody_waits();
    let waits = takeover::asker_waits(app.machine.clone(), who, waits);
    Ok(moved(app.blocking(move |nodes| nodes.release_here(&request.keys, &waits)).await?))
}

async fn releasable(State(app): Shared, body: String) -> Result<Json<Releasable>, Failure> {
    let request: ReleasableRequest = parse(&body)?;
    let said = app.blocking(move |nodes| nodes.releasable_here(&request.keys)).await?;
    let said = said.map_err(op_error)?;
    Ok(Json(Releasable { refusals: said.into_iter().map(Result::err).collect() }))
}

async fn claim(State(app): Shared, Who(who): Who, body: String) -> Result<Json<Moved>, Failure> {
    let request: ClaimRequest = parse(&body)?;
    let (_waits, waits) = somebody_waits();
    let waits = takeover::asker_waits(app.machine.clone(), who, waits);
    Ok(moved(app.blocking(move |nodes| nodes.claim_here(&request.gifts, &waits)).await?))
}

async fn repair(State(app): Shared, Who(who): Who) -> Result<Json<Repaired>, Failure> {
    let done = operate::repair(&app, who).await?;
    Ok(Json(Repaired { done, report: doctor::doctor(&app).await? }))
}

/// Who asks, as the listener knows it.
struct Who(Asker);

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(match parts.extensions.get() {
            Some(Caller::User { uid, .. }) => Asker::User(Some(*uid)),
            Some(Caller::Peer { node }) => Asker::Peer(Some(*node)),
            None => Asker::User(None),
        }))
    }
}

async fn operate(app: Arc<App>, who: Asker, request: Request) -> Result<Response, Failure> {
    Ok(operate::respond(app, who, request).await?)
}

/// The end of node 0 is the end of the machine: its own poweroff stops the others.
async fn machine(app: Arc<App>, what: &'static str) -> Result<Json<Value>, Failure> {
    if app.here == NodeId::ZERO {
        let commands = &app.config.commands;
        return end_here(if what == "reboot" { &commands.reboot } else { &commands.poweroff });
    }
    let client = app.peers.client(NodeId::ZERO)?;
    let path = format!("/v1/local/{what}");
    client.post(&path, &json!({})).await.map(Json).map_err(|error| Failure(peer_error(error)))
}

fn end_here(command: &[String]) -> Result<Json<Value>, Failure> {
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

async fn introductions(State(app): Shared, body: String) -> Result<Json<Introduced>, Failure> {
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

async fn local_spec(
    State(app): Shared,
    Path(node): Path<String>,
) -> Result<Json<SpecReply>, Failure> {
    let inventory = app.inventory()?;
    let node = inventory.resolve(&node).map_err(|refusal| ErrorBody::refused(vec![refusal]))?;
    Ok(Json(SpecReply { spec: app.specs.get(&inventory, node.id) }))
}

/// Serves one connection.
pub(crate) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    caller: Caller,
) {
    let service = TowerToHyperService::new(router.layer(Extension(caller)));
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        debug!(%error, "connection ended");
    }
}

/// Serves users of this node for ever.
pub(crate) async fn serve_unix(listener: UnixListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(user) => {
                    let caller = Caller::User { uid: user.uid(), pid: user.pid() };
                    tokio::spawn(serve(stream, router.clone(), caller));
                }
                Err(error) => debug!(%error, "gone already"),
            },
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// Serves peers for ever.
pub(crate) async fn serve_tls(listener: TcpListener, pki: Arc<Pki>, router: Router) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                accept_failed(&error).await;
                continue;
            }
        };
        let (pki, router) = (pki.clone(), router.clone());
        tokio::spawn(async move {
            _ = stream.set_nodelay(true);
            let acceptor = TlsAcceptor::from(pki.server());
            match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => match pki.caller(stream.get_ref().1) {
                    Some(caller) => serve(stream, router, caller).await,
                    None => debug!("peer with a certificate that names no node"),
                },
                Ok(Err(error)) => debug!(%error, "peer turned away"),
                Err(_) => debug!("peer did not finish its handshake"),
            }
        });
    }
}

/// E.g. too many open files: the next try needs a moment.
async fn accept_failed(error: &std::io::Error) {
    warn!(%error, "no connection accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
