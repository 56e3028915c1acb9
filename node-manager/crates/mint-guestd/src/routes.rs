// SPDX-License-Identifier: Apache-2.0
//! What mintd passes on: `/v1/vms…` of guests wherever they are, `/v1/local/…` of this node's.
//! Which document each takes and gives is in mintd's table of routes (`mintd/src/guests.rs`).

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mint_api::{
    ErrorBody, ErrorCode, EvacuateRequest, ImportRequest, KeptGone, LayoutRequest, Line,
    MeasureRequest, MeasureResult, MigrateRequest, NodeKeeps, NodeLayout, VmLayout, VmList,
    VmMemory, VmMemoryMap, VmVerb, VmView, vm_path,
};
use mint_guests::arrival::Plan;
use mint_layout::Profile;
use mint_serve::{Failure, lines, pass_on, upgraded};
use mint_split::ServerAddress;
use mint_types::MachineId;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tracing::{debug, warn};

use crate::app::{App, client_error, path_of};
use crate::wire::{Arrived, Lands, Told, Undo, Undone};
use crate::{
    arrivals, console, evacuate, hosts, import, layout, leases, memory, merge, migrate, moves, own,
    pins, shows, vacate, wide,
};

/// A guest's XML, twice, is the largest that is sent.
const BODY_BYTES_MAX: usize = 4 << 20;

type Shared = State<Arc<App>>;

/// Serves all routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/vms", get(all))
        .route("/v1/vms/{vm}", get(one))
        .route("/v1/vms/{vm}/layout", get(layout_of))
        .route("/v1/vms/{vm}/memory", get(memory_of))
        .route("/v1/vms/{vm}/memory/map", get(map_of))
        .route("/v1/vms/{vm}/{verb}", post(act))
        .route("/v1/local/vms", get(own_all).post(import_image))
        .route("/v1/local/vms/{vm}", get(own_one))
        .route("/v1/local/vms/{vm}/console", get(own_console))
        .route("/v1/local/vms/{vm}/layout", get(own_vm_layout))
        .route("/v1/local/vms/{vm}/profile", get(own_profile))
        .route("/v1/local/vms/{vm}/memory", get(own_memory))
        .route("/v1/local/vms/{vm}/memory/map", get(own_map))
        .route("/v1/local/vms/{vm}/memory/leave", post(leave_memory))
        .route("/v1/local/vms/{vm}/{verb}", post(own_act))
        .route("/v1/local/evacuate", post(evacuate))
        .route("/v1/local/pins", post(set_pins))
        .route("/v1/local/leases", get(keeps).post(give_lease))
        .route("/v1/local/linked/{machine}/leases", post(give_linked_lease))
        .route("/v1/local/pages", get(pages))
        .route("/v1/local/leases/end", post(end_lease))
        .route("/v1/local/memory/begin", post(begin_memory))
        .route("/v1/local/memory/expected", post(expected_memory))
        .route("/v1/local/memory/end", post(end_memory))
        .route("/v1/local/layout", get(own_layout).post(change_layout))
        .route("/v1/local/layout/arrival", post(layout_arrival))
        .route("/v1/local/layout/measure", post(measure))
        .route("/v1/local/layout/started", post(layout_started))
        .route("/v1/local/arrivals", post(consider))
        .route("/v1/local/arrivals/{vm}", get(arrived))
        .route("/v1/local/arrivals/{vm}/expect", post(expect))
        .route("/v1/local/arrivals/{vm}/undo", post(undo))
        .fallback(|| async {
            Failure(ErrorBody::new(ErrorCode::NotFound, "there is no such path"))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// A verb of a path.
enum Verb {
    Simple(VmVerb),
    Migrate,
}

fn verb(word: &str) -> Result<Verb, Failure> {
    use VmVerb::{Cancel, Destroy, Prepare, Shutdown, Start};
    let simple = [Start, Shutdown, Destroy, Cancel, Prepare];
    match simple.into_iter().find(|verb| verb.word() == word) {
        Some(verb) => Ok(Verb::Simple(verb)),
        None if word == "migrate" => Ok(Verb::Migrate),
        None => Err(Failure(ErrorBody::new(ErrorCode::NotFound, "there is no such path"))),
    }
}

/// A request; one with a field that nobody knows is mistaken.
fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Failure> {
    serde_json::from_str(body).map_err(|error| {
        Failure(ErrorBody::new(ErrorCode::BadRequest, format_args!("bad request: {error}")))
    })
}

async fn all(State(app): Shared) -> Result<Json<VmList>, Failure> {
    Ok(Json(wide::list(&app).await?))
}

async fn one(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmView>, Failure> {
    Ok(Json(wide::find(&app, &vm).await?))
}

/// Passes it on to the node that has the guest.
async fn act(
    State(app): Shared,
    Path((vm, word)): Path<(String, String)>,
    body: String,
) -> Result<Response, Failure> {
    verb(&word)?;
    let guest = wide::find(&app, &vm).await?;
    let node = path_of(guest.machine, guest.node);
    let path = vm_path(&format!("{node}/vms"), &guest.uuid);
    let body = (!body.is_empty()).then(|| body.into_bytes());
    let method = axum::http::Method::POST;
    let answer = app.mintd.pass(method, &format!("{path}/{word}"), body).await;
    Ok(answer.map(pass_on).map_err(client_error)?)
}

async fn memory_of(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmMemory>, Failure> {
    asked_there(&app, &vm, "/memory").await
}

async fn map_of(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmMemoryMap>, Failure> {
    asked_there(&app, &vm, "/memory/map").await
}

async fn layout_of(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmLayout>, Failure> {
    asked_there(&app, &vm, "/layout").await
}

/// What the node of a guest answers.
async fn asked_there<T: DeserializeOwned>(
    app: &Arc<App>,
    vm: &str,
    rest: &str,
) -> Result<Json<T>, Failure> {
    let guest = wide::find(app, vm).await?;
    let node = path_of(guest.machine, guest.node);
    let path = vm_path(&format!("{node}/vms"), &guest.uuid) + rest;
    Ok(Json(app.mintd.get(&path).await.map_err(client_error)?))
}

async fn own_map(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmMemoryMap>, Failure> {
    Ok(Json(shows::map(&app, vm).await?))
}

async fn own_memory(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmMemory>, Failure> {
    Ok(Json(shows::show(&app, vm).await?))
}

async fn own_layout(State(app): Shared) -> Result<Json<NodeLayout>, Failure> {
    Ok(Json(layout::all(&app).await?))
}

async fn own_vm_layout(
    State(app): Shared,
    Path(vm): Path<String>,
) -> Result<Json<VmLayout>, Failure> {
    Ok(Json(layout::one(&app, &vm).await?))
}

async fn own_profile(
    State(app): Shared,
    Path(uuid): Path<String>,
) -> Result<Json<Profile>, Failure> {
    Ok(Json(layout::profile(&app, &uuid).await?))
}

async fn change_layout(State(app): Shared, body: String) -> Result<Response, Failure> {
    let request: LayoutRequest = parse(if body.is_empty() { "{}" } else { &body })?;
    Ok(lines::respond(move |lines| async move {
        let done = layout::change(&app, &request, Some(&lines)).await;
        lines.send(&done.map_or_else(Line::Error, |done| Line::Result(json!(done)))).await;
    }))
}

async fn measure(State(app): Shared, body: String) -> Result<Json<MeasureResult>, Failure> {
    let request: MeasureRequest = parse(if body.is_empty() { "{}" } else { &body })?;
    // whoever hangs up leaves it to the end: nobody may begin another one meanwhile
    let measuring = tokio::spawn(async move { layout::measure(&app, request).await });
    Ok(Json(measuring.await.map_err(|fault| ErrorBody::from_error(ErrorCode::Failed, &fault))??))
}

async fn own_all(State(app): Shared) -> Result<Json<VmList>, Failure> {
    Ok(Json(own::list(&app).await?))
}

async fn own_one(State(app): Shared, Path(vm): Path<String>) -> Result<Json<VmView>, Failure> {
    Ok(Json(own::show(&app, vm).await?))
}

async fn own_act(
    State(app): Shared,
    Path((vm, word)): Path<(String, String)>,
    body: String,
) -> Result<Response, Failure> {
    match verb(&word)? {
        Verb::Simple(verb) => Ok(Json(own::act(&app, vm, verb).await?).into_response()),
        Verb::Migrate => {
            let request: MigrateRequest = parse(&body)?;
            if let Some(merge) = merge::prepare(&app, &vm, &request).await? {
                return Ok(lines::respond(move |lines| async move {
                    let done = merge.carry_out(&app, &lines).await;
                    let line = done.map_or_else(Line::Error, |done| Line::Result(json!(done)));
                    lines.send(&line).await;
                }));
            }
            let way = migrate::prepare(&app, vm, request).await?;
            // an operation answers with lines, also if there is only one
            Ok(lines::respond(move |lines| async move {
                let result = match way.is_dry_run() {
                    true => Ok(way.result()),
                    false => way.moved(&app, &lines).await,
                };
                lines
                    .send(&result.map_or_else(Line::Error, |done| Line::Result(json!(done))))
                    .await;
            }))
        }
    }
}

async fn import_image(State(app): Shared, body: String) -> Result<Response, Failure> {
    let request: ImportRequest = parse(&body)?;
    let import = import::Import::prepare(&app, request).await?;
    Ok(lines::respond(move |lines| async move {
        let result = import.carry_out(&app, &lines).await;
        lines.send(&result.map_or_else(Line::Error, |view| Line::Result(json!(view)))).await;
    }))
}

async fn own_console(
    State(app): Shared,
    Path(vm): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let console = console::Console::open(&app, vm).await?;
    upgraded(request, move |io| console.carry(io))
}

async fn evacuate(State(app): Shared, body: String) -> Result<Response, Failure> {
    let request: EvacuateRequest = parse(if body.is_empty() { "{}" } else { &body })?;
    if let Some(taken) = &request.taken {
        let way = vacate::way(&app, taken).await?;
        return Ok(lines::respond(move |lines| way.go(app, request, lines)));
    }
    if request.memory {
        return Ok(lines::respond(move |lines| async move {
            let line = match leases::evacuate(&app, &request, &lines).await {
                Ok(result) => Line::Result(json!(result)),
                Err(error) => Line::Error(error),
            };
            lines.send(&line).await;
        }));
    }
    let closed = (!request.dry_run).then(|| app.gate.close());
    let places = evacuate::places(&app).await?;
    Ok(lines::respond(move |lines| places.go(app, request, lines, closed)))
}

async fn set_pins(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    pins::set(&app, &parse(&body)?).await?;
    Ok(Json(json!({})))
}

async fn keeps(State(app): Shared) -> Result<Json<NodeKeeps>, Failure> {
    Ok(Json(leases::keeps(&app).await?))
}

async fn give_lease(State(app): Shared, body: String) -> Result<Json<ServerAddress>, Failure> {
    Ok(Json(leases::give(&app, parse(&body)?, None).await?))
}

async fn give_linked_lease(
    State(app): Shared,
    Path(machine): Path<MachineId>,
    body: String,
) -> Result<Json<ServerAddress>, Failure> {
    Ok(Json(leases::give(&app, parse(&body)?, Some(machine)).await?))
}

/// Carries what a linked machine's pager and this node's memory server say to each other.
async fn pages(State(app): Shared, request: Request) -> Result<Response, Failure> {
    let mut server = leases::connect(&app).await?;
    upgraded(request, async move |mut io| {
        if let Err(error) = copy_bidirectional(&mut io, &mut server).await {
            debug!(%error, "a linked machine's pager has gone");
        }
    })
}

async fn end_lease(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    leases::end(&app, &parse(&body)?).await?;
    Ok(Json(json!({})))
}

async fn leave_memory(
    State(app): Shared,
    Path(vm): Path<String>,
    body: String,
) -> Result<Json<KeptGone>, Failure> {
    Ok(Json(hosts::leave(&app, vm, parse(&body)?).await?))
}

/// Of libvirt's hook, which mintd does not pass on.
async fn begin_memory(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    let Told { xml } = parse(&body)?;
    moves::begin(&app, &xml).await?;
    Ok(Json(json!({})))
}

/// The same.
async fn expected_memory(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    let Told { xml } = parse(&body)?;
    moves::check_expected(&app, &xml)?;
    Ok(Json(json!({})))
}

/// The same.
async fn layout_arrival(State(app): Shared, body: String) -> Result<Json<Lands>, Failure> {
    let Told { xml } = parse(&body)?;
    let lands = layout::comes(&app, &xml).await.inspect_err(|error| {
        // libvirt keeps what its hook says to itself
        warn!(%error, "a guest gets no place before it comes");
    });
    Ok(Json(Lands { xml: lands? }))
}

/// The same.
async fn layout_started(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    let Told { xml } = parse(&body)?;
    layout::started(&app, &xml).await?;
    Ok(Json(json!({})))
}

async fn end_memory(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    let Told { xml } = parse(&body)?;
    // libvirt waits for its hook, other nodes may be slow
    tokio::spawn(async move { memory::ended(&app, &xml).await });
    Ok(Json(json!({})))
}

/// A peer's departure: what it says more than we know is left out.
async fn consider(State(app): Shared, body: String) -> Result<Json<Plan>, Failure> {
    Ok(Json(arrivals::consider(&app, parse(&body)?).await?))
}

async fn arrived(State(app): Shared, Path(vm): Path<String>) -> Result<Json<Arrived>, Failure> {
    Ok(Json(arrivals::arrived(&app, vm).await?))
}

async fn expect(
    State(app): Shared,
    Path(vm): Path<String>,
    body: String,
) -> Result<Json<Value>, Failure> {
    arrivals::expect(&app, vm, parse(&body)?).await?;
    Ok(Json(json!({})))
}

async fn undo(
    State(app): Shared,
    Path(vm): Path<String>,
    body: String,
) -> Result<Json<Undone>, Failure> {
    let Undo { attempt } = parse(if body.is_empty() { "{}" } else { &body })?;
    Ok(Json(arrivals::undo(&app, vm, attempt).await?))
}
