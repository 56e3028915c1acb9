// SPDX-License-Identifier: Apache-2.0
//! The interface: each route with what serves it, what it takes and what it gives. The
//! server and the OpenAPI document are made of this one table.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::{Json, Router};
use mint_api::{
    AddRequest, ApplyRequest, ApplyResult, BootView, ClaimRequest, CpuList, DeviceList,
    DoctorReport, ErrorBody, ErrorCode, EventView, Hello, Introduced, Introductions, Line,
    LoadList, MemoryList, Moved, NodeDetail, NodeList, NodeResult, OperationList, OperationView,
    OrderedEnd, Releasable, ReleasableRequest, ReleaseRequest, RemoveRequest, Repaired, ResizePlan,
    ResizeRequest, SpecReply, StartRequest, StopRequest,
};
use mint_serve::Failure;
use serde_json::json;

use crate::app::App;
use crate::gate::guard;
use crate::handlers::{
    Shared, Who, claim, console, end_here, events, exec, hello, introductions, local_spec, machine,
    operate as carry_out, parse, releasable, release, repair, vmcore,
};
use crate::openapi::{self, Route, get, post};
use crate::request::Request;
use crate::{doctor, guests, links, loads, metrics, node0, nodes, operate, views};

/// Requests are small; a description is the largest.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Serves all routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for route in routes() {
        router = router.route(route.path, route.handler);
    }
    let router = router
        .fallback(|| async {
            Failure(ErrorBody::new(ErrorCode::NotFound, "there is no such path"))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app.clone());
    guard(router, app)
}

/// All routes. `/v1/local/…` are about the answering node itself.
pub(crate) fn routes() -> Vec<Route> {
    let mut all = guests::routes();
    all.extend(links::handlers::routes());
    all.extend(own_routes());
    all
}

/// Those that this daemon serves itself.
fn own_routes() -> Vec<Route> {
    vec![
        get("/v1/hello", "Who answers", hello).gives::<Hello>(),
        get("/v1/openapi.json", "This document", || async { Json(openapi::document(&routes())) }),
        get("/v1/config", "Effective settings of the daemon", |State(app): Shared| async move {
            Json((*app.config).clone())
        }),
        get("/v1/nodes", "All nodes", |State(app): Shared| async move {
            views::node_list(&app).await.map(Json).map_err(Failure)
        })
        .gives::<NodeList>(),
        post(
            "/v1/nodes",
            "Make a node",
            |State(app): Shared, Who(who): Who, body: String| async move {
                carry_out(app, who, Request::Add(parse(&body)?)).await
            },
        )
        .takes::<AddRequest>()
        .lines::<NodeResult>(),
        get(
            "/v1/nodes/{node}",
            "One node",
            |State(app): Shared, Path(node): Path<String>| async move {
                views::node_detail(&app, &node).await.map(Json).map_err(Failure)
            },
        )
        .gives::<NodeDetail>(),
        post(
            "/v1/nodes/{node}/start",
            "Start it",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                carry_out(app, who, Request::Start(node, parse(&body)?)).await
            },
        )
        .takes::<StartRequest>()
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/stop",
            "End it in an orderly way",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                carry_out(app, who, Request::Stop(node, parse(&body)?)).await
            },
        )
        .takes::<StopRequest>()
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/restart",
            "Stop it and start it",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                carry_out(app, who, Request::Restart(node, parse(&body)?)).await
            },
        )
        .takes::<StartRequest>()
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/kill",
            "End it by force",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>| async move {
                carry_out(app, who, Request::Kill(node)).await
            },
        )
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/remove",
            "Free what it owns, and itself",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                carry_out(app, who, Request::Remove(node, parse(&body)?)).await
            },
        )
        .takes::<RemoveRequest>()
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/resize",
            "Change what it owns",
            |State(app): Shared, Who(who): Who, Path(node): Path<String>, body: String| async move {
                carry_out(app, who, Request::Resize(node, parse(&body)?)).await
            },
        )
        .takes::<ResizeRequest>()
        .lines::<NodeResult>(),
        post(
            "/v1/nodes/{node}/resize/plan",
            "What that would do, and take from whom, if guests were in nobody's way",
            |State(app): Shared, Path(node): Path<String>, body: String| async move {
                nodes::plan_resize(&app, node, parse(&body)?).await.map(Json).map_err(Failure)
            },
        )
        .takes::<ResizeRequest>()
        .gives::<ResizePlan>(),
        get("/v1/nodes/{node}/console", "Its console; ?follow=true", console).frames(),
        get("/v1/nodes/{node}/vmcore", "Memory of a node that ended: an ELF core file", vmcore)
            .bytes(),
        get("/v1/nodes/{node}/exec", "Run a command on it", exec).frames(),
        get("/v1/cpus", "Cores of the machine", |State(app): Shared| async move {
            views::cpu_list(&app).map(Json).map_err(Failure)
        })
        .gives::<CpuList>(),
        get("/v1/memory", "Memory blocks of the machine", |State(app): Shared| async move {
            views::memory_list(&app).map(Json).map_err(Failure)
        })
        .gives::<MemoryList>(),
        get("/v1/devices", "PCI functions of the machine", |State(app): Shared| async move {
            views::device_list(&app).map(Json).map_err(Failure)
        })
        .gives::<DeviceList>(),
        get("/v1/loads", "What running nodes use", |State(app): Shared| async move {
            loads::all(&app).await.map(Json).map_err(Failure)
        })
        .gives::<LoadList>(),
        get("/metrics", "Nodes and resources, for Prometheus", |State(app): Shared| async move {
            metrics::respond(&app).map_err(Failure)
        })
        .text(),
        get("/v1/doctor", "Is the machine in order?", |State(app): Shared| async move {
            doctor::doctor(&app).await.map(Json).map_err(Failure)
        })
        .gives::<DoctorReport>(),
        post("/v1/repair", "Heal what the doctor finds half done", repair).gives::<Repaired>(),
        get("/v1/operations", "Operations of this daemon", |State(app): Shared| async move {
            Json(operate::list(&app))
        })
        .gives::<OperationList>(),
        get(
            "/v1/operations/{id}",
            "One operation",
            |State(app): Shared, Path(id): Path<String>| async move {
                operate::id(&id).and_then(|id| operate::show(&app, id)).map(Json).map_err(Failure)
            },
        )
        .gives::<OperationView>(),
        get(
            "/v1/operations/{id}/wait",
            "What it says, to its end",
            |State(app): Shared, Path(id): Path<String>| async move {
                operate::wait(&app, operate::id(&id)?).await.map_err(Failure)
            },
        )
        .lines::<Line>(),
        post(
            "/v1/operations/{id}/cancel",
            "End it before its point of no return",
            |State(app): Shared, Path(id): Path<String>| async move {
                operate::id(&id).and_then(|id| operate::cancel(&app, id)).map(Json).map_err(Failure)
            },
        )
        .gives::<OperationView>(),
        get("/v1/events", "Events; ?follow=true&since=SEQ", events).lines::<EventView>(),
        post(
            "/v1/apply",
            "Bring described nodes up",
            |State(app): Shared, Who(who): Who, body: String| async move {
                carry_out(app, who, Request::Apply(parse(&body)?)).await
            },
        )
        .takes::<ApplyRequest>()
        .lines::<ApplyResult>(),
        post("/v1/local/release", "A peer wants resources of this node", release)
            .takes::<ReleaseRequest>()
            .gives::<Moved>(),
        post("/v1/local/releasable", "Could this node release these resources?", releasable)
            .takes::<ReleasableRequest>()
            .gives::<Releasable>(),
        post("/v1/local/claim", "A peer gives this node resources", claim)
            .takes::<ClaimRequest>()
            .gives::<Moved>(),
        get("/v1/local/load", "What this node uses", |State(app): Shared| async move {
            Json(loads::own(&app).await)
        }),
        post("/v1/machine/poweroff", "Switch the machine off", |State(app): Shared| {
            machine(app, "poweroff")
        }),
        post("/v1/machine/reboot", "Reset the machine", |State(app): Shared| {
            machine(app, "reboot")
        }),
        post(
            "/v1/local/poweroff",
            "This node ends in an orderly way",
            |State(app): Shared| async move { end_here(&app.config.commands.poweroff) },
        ),
        get("/v1/local/boot", "What this node was started with", |State(app): Shared| async move {
            node0::boot_view(&app).map(Json).map_err(Failure)
        })
        .gives::<BootView>(),
        get("/v1/local/boot/kernel", "Kernel of its next start", |State(app): Shared| async move {
            node0::file(&app.config.node0.kernel, &app.config.node.kernel).await.map_err(Failure)
        })
        .bytes(),
        get("/v1/local/boot/initrd", "Initrd of its next start", |State(app): Shared| async move {
            node0::file(&app.config.node0.initrd, &app.config.node.initrd).await.map_err(Failure)
        })
        .bytes(),
        post("/v1/local/leave", "Node 0 ends alone", |State(app): Shared| async move {
            node0::leave_here(&app).map_err(Failure)?;
            end_here(&app.config.commands.leave)
        }),
        post("/v1/local/reboot", "The same, and starts again", |State(app): Shared| async move {
            end_here(&app.config.commands.reboot)
        }),
        post(
            "/v1/local/ordered",
            "A peer ends a node: it is not to be started again",
            |State(app): Shared, body: String| async move {
                let end: OrderedEnd = parse(&body)?;
                app.marks().ordered.note(end.node, end.boots);
                Ok::<_, Failure>(Json(json!({})))
            },
        )
        .takes::<OrderedEnd>(),
        get(
            "/v1/local/introductions",
            "The nodes that this one knows, and itself",
            |State(app): Shared| async move {
                let known = app.peers.tls.as_ref().map(|pki| pki.known()).unwrap_or_default();
                Json(Introductions { known })
            },
        )
        .gives::<Introductions>(),
        post("/v1/local/introductions", "A peer tells whom it knows", introductions)
            .takes::<Introductions>()
            .gives::<Introduced>(),
        get("/v1/local/specs/{node}", "A description that this daemon has", local_spec)
            .gives::<SpecReply>(),
    ]
}
