// SPDX-License-Identifier: Apache-2.0
//! The door to guests: what is asked of them is passed on to this node's `mint-guestd`, or
//! to the daemon of the node that is asked for. Nothing here knows libvirt.
//!
//! - `/v1/vms…`: guests wherever they are; this node's `mint-guestd` finds them.
//! - `/v1/nodes/{node}/vms…`: those of one node; its `mint-guestd` serves them as
//!   `/v1/local/vms…`, which is also what one mintd asks another for.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{Method, Uri};
use axum::response::Response;
use mint_api::{
    Client, ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, HostLeaves, ImportRequest,
    KeptGone, LayoutRequest, LayoutResult, MeasureRequest, MeasureResult, MigrateRequest,
    MigrateResult, NodeKeeps, NodeLayout, PinRequest, VmLayout, VmList, VmMemory, VmMemoryMap,
    VmView,
};
use mint_serve::{Failure, pass_on, upgraded};
use tokio::time::timeout;

use crate::app::App;
use crate::caller::Caller;
use crate::guestd::{guestd, guestd_down};
use crate::handlers::{Shared, Who, no_frames, operate, parse};
use crate::openapi::{Route, get, post};
use crate::peer_clients::peer_error;
use crate::request::Request as Asked;
use crate::resolve::{Place, place};
use crate::streams::{self, Sent};

/// For another node's daemon to begin its answer, where it is asked what guests are there. A
/// migration answers at once, too: with lines.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// Paths of requests about one node, and those that its own daemons serve.
const OF_NODE: &str = "/v1/nodes/";
const LOCAL: &str = "/v1/local";
const LEASES: &str = "/v1/local/leases";
const PAGES: &str = "/v1/local/pages";

/// All routes about guests.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get("/v1/vms", "Guests of all nodes", here).gives::<VmList>(),
        get("/v1/vms/{vm}", "A guest, wherever it is", here).gives::<VmView>(),
        get("/v1/vms/{vm}/memory", "Where its memory is", here).gives::<VmMemory>(),
        get("/v1/vms/{vm}/memory/map", "A picture of that", here).gives::<VmMemoryMap>(),
        post("/v1/vms/{vm}/start", "Start it", here).gives::<VmView>(),
        post("/v1/vms/{vm}/shutdown", "Ask it to end", here).gives::<VmView>(),
        post("/v1/vms/{vm}/destroy", "End it at once", here).gives::<VmView>(),
        post("/v1/vms/{vm}/prepare", "Its memory can be split from its next start", here)
            .gives::<VmView>(),
        post("/v1/vms/{vm}/migrate", "Move it to another node while it runs", migrate)
            .takes::<MigrateRequest>()
            .lines::<MigrateResult>(),
        get("/v1/vms/{vm}/layout", "Where it is on NUMA nodes, and why", here).gives::<VmLayout>(),
        get("/v1/nodes/{node}/layout", "A node's guests on its NUMA nodes", there)
            .gives::<NodeLayout>(),
        post("/v1/nodes/{node}/layout", "Arrange them anew, or as they were", layout)
            .takes::<LayoutRequest>()
            .lines::<LayoutResult>(),
        post("/v1/nodes/{node}/layout/measure", "Measure memory of its NUMA nodes", there)
            .takes::<MeasureRequest>()
            .gives::<MeasureResult>(),
        get("/v1/nodes/{node}/vms/{vm}/layout", "Where it is on NUMA nodes, and why", there_one)
            .gives::<VmLayout>(),
        get("/v1/nodes/{node}/vms", "Guests of a node", there).gives::<VmList>(),
        post("/v1/nodes/{node}/vms", "Make a guest of a disk image", there)
            .takes::<ImportRequest>()
            .lines::<VmView>(),
        get("/v1/nodes/{node}/vms/{vm}", "A guest of it", there_one).gives::<VmView>(),
        get("/v1/nodes/{node}/vms/{vm}/profile", "What it is like, for its next node", there_one),
        get("/v1/nodes/{node}/vms/{vm}/memory", "Where its memory is", there_one)
            .gives::<VmMemory>(),
        get("/v1/nodes/{node}/vms/{vm}/memory/map", "A picture of that", there_one)
            .gives::<VmMemoryMap>(),
        post("/v1/nodes/{node}/vms/{vm}/memory/leave", "A node keeps none any more", there_one)
            .takes::<HostLeaves>()
            .gives::<KeptGone>(),
        post("/v1/nodes/{node}/vms/{vm}/start", "Start it", there_one).gives::<VmView>(),
        post("/v1/nodes/{node}/vms/{vm}/shutdown", "Ask it to end", there_one).gives::<VmView>(),
        post("/v1/nodes/{node}/vms/{vm}/destroy", "End it at once", there_one).gives::<VmView>(),
        post(
            "/v1/nodes/{node}/vms/{vm}/prepare",
            "Its memory can be split from its next start",
            there_one,
        )
        .gives::<VmView>(),
        post("/v1/nodes/{node}/vms/{vm}/migrate", "Move it to another node", migrate_there)
            .takes::<MigrateRequest>()
            .lines::<MigrateResult>(),
        get("/v1/nodes/{node}/vms/{vm}/console", "A guest's serial console", console_there)
            .frames(),
        post("/v1/nodes/{node}/evacuate", "Move its guests to other nodes", evacuate)
            .takes::<EvacuateRequest>()
            .lines::<EvacuateResult>(),
        post("/v1/nodes/{node}/pins", "Give its guests CPUs", there).takes::<PinRequest>(),
        post("/v1/nodes/{node}/arrivals", "Could a guest come to this node, and how?", there),
        get("/v1/nodes/{node}/arrivals/{vm}", "Did it come?", there_one),
        post("/v1/nodes/{node}/arrivals/{vm}/expect", "It is about to come", there_one),
        post("/v1/nodes/{node}/arrivals/{vm}/undo", "It does not come", there_one),
        get("/v1/nodes/{node}/leases", "What it keeps of other nodes' guests", there)
            .gives::<NodeKeeps>(),
        post("/v1/nodes/{node}/leases", "May a guest of another node keep memory there?", there),
        post("/v1/nodes/{node}/leases/end", "It does not any more", there),
        get("/v1/nodes/{node}/pages", "To its memory server", pages_there).frames(),
        get("/v1/local/layout", "This node's guests on its NUMA nodes", here).gives::<NodeLayout>(),
        post("/v1/local/layout", "Arrange them anew, or as they were", here)
            .takes::<LayoutRequest>()
            .lines::<LayoutResult>(),
        post("/v1/local/layout/measure", "Measure memory of this node's NUMA nodes", here)
            .takes::<MeasureRequest>()
            .gives::<MeasureResult>(),
        get("/v1/local/vms/{vm}/layout", "Where it is on NUMA nodes, and why", here)
            .gives::<VmLayout>(),
        get("/v1/local/vms", "Guests of this node", here).gives::<VmList>(),
        post("/v1/local/vms", "Make a guest of a disk image", here)
            .takes::<ImportRequest>()
            .lines::<VmView>(),
        get("/v1/local/vms/{vm}", "A guest of it", here).gives::<VmView>(),
        get("/v1/local/vms/{vm}/profile", "What it is like, for its next node", here),
        get("/v1/local/vms/{vm}/memory", "Where its memory is", here).gives::<VmMemory>(),
        get("/v1/local/vms/{vm}/memory/map", "A picture of that", here).gives::<VmMemoryMap>(),
        post("/v1/local/vms/{vm}/memory/leave", "A node keeps none any more", here)
            .takes::<HostLeaves>()
            .gives::<KeptGone>(),
        post("/v1/local/vms/{vm}/start", "Start it", here).gives::<VmView>(),
        post("/v1/local/vms/{vm}/shutdown", "Ask it to end", here).gives::<VmView>(),
        post("/v1/local/vms/{vm}/destroy", "End it at once", here).gives::<VmView>(),
        post("/v1/local/vms/{vm}/prepare", "Its memory can be split from its next start", here)
            .gives::<VmView>(),
        post("/v1/local/vms/{vm}/cancel", "End its move", here).gives::<VmView>(),
        post("/v1/local/vms/{vm}/migrate", "Move it to another node", here)
            .takes::<MigrateRequest>()
            .lines::<MigrateResult>(),
        get("/v1/local/vms/{vm}/console", "A guest's serial console", console_here).frames(),
        post("/v1/local/evacuate", "Move its guests to other nodes", here)
            .takes::<EvacuateRequest>()
            .lines::<EvacuateResult>(),
        post("/v1/local/pins", "Give guests CPUs", here).takes::<PinRequest>(),
        get("/v1/local/leases", "What this node keeps of other nodes' guests", here)
            .gives::<NodeKeeps>(),
        post("/v1/local/leases", "May a guest of another node keep memory here?", lease_here),
        post("/v1/local/leases/end", "It does not any more", here),
        get("/v1/local/pages", "To this node's memory server", pages_here).frames(),
        post("/v1/local/arrivals", "Could a guest come to this node, and how?", here),
        get("/v1/local/arrivals/{vm}", "Did it come?", here),
        post("/v1/local/arrivals/{vm}/expect", "It is about to come", here),
        post("/v1/local/arrivals/{vm}/undo", "It does not come", here),
    ]
}

/// An operation; only a plan is none.
async fn migrate(
    State(app): Shared,
    Who(who): Who,
    Path(vm): Path<String>,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    let how: MigrateRequest = parse(&body)?;
    if how.dry_run {
        return Ok(to_guestd(&app, Method::POST, uri.path(), body).await?);
    }
    operate(app, who, Asked::Migrate { vm, node: None, how }).await
}

async fn migrate_there(
    State(app): Shared,
    Who(who): Who,
    Path((node, vm)): Path<(String, String)>,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    let how: MigrateRequest = parse(&body)?;
    if how.dry_run {
        return Ok(to_node(&app, &node, Method::POST, &uri, body).await?);
    }
    operate(app, who, Asked::Migrate { vm, node: Some(node), how }).await
}

async fn evacuate(
    State(app): Shared,
    Who(who): Who,
    Path(node): Path<String>,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    let how: EvacuateRequest = parse(&body)?;
    if how.dry_run {
        return Ok(to_node(&app, &node, Method::POST, &uri, body).await?);
    }
    operate(app, who, Asked::Evacuate(node, how)).await
}

async fn layout(
    State(app): Shared,
    Who(who): Who,
    Path(node): Path<String>,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    let how: LayoutRequest = parse(&body)?;
    if how.dry_run {
        return Ok(to_node(&app, &node, Method::POST, &uri, body).await?);
    }
    operate(app, who, Asked::Layout(node, how)).await
}

/// To this node's `mint-guestd`, as it was asked for.
async fn here(
    State(app): Shared,
    method: Method,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    Ok(to_guestd(&app, method, uri.path(), body).await?)
}

/// A linked machine's guest is told by the path that it is one: by what it says itself, it could have
/// what is kept of another one.
async fn lease_here(State(app): Shared, body: String) -> Result<Response, Failure> {
    let path = match Caller::current() {
        Some(Caller::Linked { machine, .. }) => format!("/v1/local/linked/{machine}/leases"),
        _ => LEASES.to_owned(),
    };
    Ok(to_guestd(&app, Method::POST, &path, body).await?)
}

async fn there(
    State(app): Shared,
    Path(node): Path<String>,
    method: Method,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    Ok(to_node(&app, &node, method, &uri, body).await?)
}

async fn there_one(
    State(app): Shared,
    Path((node, _)): Path<(String, String)>,
    method: Method,
    uri: Uri,
    body: String,
) -> Result<Response, Failure> {
    Ok(to_node(&app, &node, method, &uri, body).await?)
}

async fn console_here(State(app): Shared, uri: Uri, request: Request) -> Result<Response, Failure> {
    let path = uri.path().to_owned();
    let there = guestd(&app).upgrade(&path).await.map_err(|error| guestd_down(&app, error))?;
    let node = app.here;
    upgraded(request, move |here| streams::forward(app, node, Sent::Typed, here, there))
}

/// Pages are no frames of ours: they pass as they are.
async fn pages_here(State(app): Shared, request: Request) -> Result<Response, Failure> {
    let there = guestd(&app).upgrade(PAGES).await.map_err(|error| guestd_down(&app, error))?;
    upgraded(request, move |here| streams::carry(here, there))
}

async fn pages_there(
    State(app): Shared,
    Path(node): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let Place::Linked(link, id) = place(&app, &node)? else {
        let text = format!("the memory server of node {node} listens on mint0");
        return Err(Failure(ErrorBody::new(ErrorCode::BadRequest, text)));
    };
    let there = app.peers.linked(&link, id)?.upgrade(PAGES).await.map_err(peer_error)?;
    upgraded(request, move |here| streams::carry(here, there))
}

async fn console_there(
    State(app): Shared,
    Path((node, _)): Path<(String, String)>,
    uri: Uri,
    request: Request,
) -> Result<Response, Failure> {
    let path = local_path(uri.path())
        .ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "there is no such path"))?;
    let node = match place(&app, &node)? {
        Place::Own(node) => node,
        Place::Linked(link, id) => {
            let there = app.peers.linked(&link, id)?.upgrade(&path).await.map_err(peer_error)?;
            // a machine that goes takes the connection along
            let here = app.here;
            return upgraded(request, move |io| {
                streams::forward(app, here, Sent::Typed, io, there)
            });
        }
    };
    let there = if node.id == app.here {
        guestd(&app).upgrade(&path).await.map_err(|error| guestd_down(&app, error))?
    } else if node.state.is_live() {
        let client = app.peers.client(node.id)?;
        client.upgrade(&path).await.map_err(|error| no_frames(&node, error))?
    } else {
        return Err(Failure(ErrorBody::refused(vec![mint_node::not_running(&node)])));
    };
    upgraded(request, move |here| streams::forward(app, node.id, Sent::Typed, here, there))
}

/// The path that a node's own daemons know for `/v1/nodes/NODE/…`.
fn local_path(path: &str) -> Option<String> {
    let (_node, rest) = path.strip_prefix(OF_NODE)?.split_once('/')?;
    Some(format!("{LOCAL}/{rest}"))
}

async fn to_node(
    app: &App,
    node: &str,
    method: Method,
    uri: &Uri,
    body: String,
) -> Result<Response, ErrorBody> {
    let path = local_path(uri.path())
        .ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "there is no such path"))?;
    let node = match place(app, node)? {
        Place::Own(node) => node,
        Place::Linked(link, id) => {
            let client = app.peers.linked(&link, id)?;
            let label = format!("node {}/{id}", link.view.name);
            return pass(&client, method, &path, body, &label, BEGINS_WITHIN).await;
        }
    };
    if node.id == app.here {
        return to_guestd(app, method, &path, body).await;
    }
    if !node.state.is_live() {
        return Err(ErrorBody::refused(vec![mint_node::not_running(&node)]));
    }
    let client = app.peers.client(node.id)?;
    let within = app.peers.patience(node.id, node.boots, BEGINS_WITHIN);
    pass(&client, method, &path, body, &format!("node {}", node.id), within).await
}

async fn pass(
    client: &Client,
    method: Method,
    path: &str,
    body: String,
    label: &str,
    within: Duration,
) -> Result<Response, ErrorBody> {
    match timeout(within, client.pass(method, path, some(body))).await {
        Ok(answer) => answer.map(pass_on).map_err(peer_error),
        Err(_) => Err(silent(label, within)),
    }
}

fn silent(label: &str, within: Duration) -> ErrorBody {
    let text = format!("mintd of {label} does not answer within {} s", within.as_secs_f32());
    ErrorBody::new(ErrorCode::PeerUnreachable, text)
        .hint("mintctl node list tells whether the node is well")
}

/// A body, unless it is empty.
fn some(body: String) -> Option<Vec<u8>> {
    (!body.is_empty()).then(|| body.into_bytes())
}

async fn to_guestd(
    app: &App,
    method: Method,
    path: &str,
    body: String,
) -> Result<Response, ErrorBody> {
    let answer = guestd(app).pass(method, path, some(body)).await;
    answer.map(pass_on).map_err(|error| guestd_down(app, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_taken_out_of_a_path_and_the_rest_stays_as_it_came() {
        for (path, local) in [
            ("/v1/nodes/node2/vms", Some("/v1/local/vms")),
            ("/v1/nodes/2/vms/a%2Fb/start", Some("/v1/local/vms/a%2Fb/start")),
            ("/v1/nodes/web/arrivals", Some("/v1/local/arrivals")),
            ("/v1/nodes/web", None),
            ("/v1/vms/web", None),
        ] {
            assert_eq!(local_path(path).as_deref(), local, "{path}");
        }
    }
}
