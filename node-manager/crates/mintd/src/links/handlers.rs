// SPDX-License-Identifier: Apache-2.0
//! What serves `/v1/machine…`, and what daemons ask of each other about links.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use mint_api::{
    ErrorBody, ErrorCode, Introduction, Link, LinkRequest, LinkView, LinkedNode, Links,
    MachineIntroduction, MachineNews, MachineView, NodeDetail,
};
use mint_serve::Failure;
use mint_types::{NODE_MAX, Refusal, RefusalCode};
use serde_json::{Value, json};

use super::{no_link, routes, watch};
use crate::app::App;
use crate::caller::Caller;
use crate::handlers::{Shared, parse};
use crate::openapi::{Route, get, post};
use crate::pki::{Pki, is_one_certificate};
use crate::views;

/// A peer's certificate is not longer, as PEM.
const PEM_BYTES_MAX: usize = 16 << 10;

/// All routes about linked machines.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get("/v1/machine", "This machine, and those that it is linked with", show)
            .gives::<MachineView>(),
        get("/v1/machine/introduction", "What another machine has to know of this", introduction)
            .gives::<MachineIntroduction>(),
        post("/v1/machine/links", "Link another machine; this node has the wire", link)
            .takes::<LinkRequest>()
            .gives::<LinkView>(),
        post("/v1/machine/links/{name}/remove", "Forget a linked machine", unlink),
        get("/v1/local/machine", "What a linked machine is to know", news).gives::<MachineNews>(),
        get("/v1/local/node", "The answering node", node).gives::<NodeDetail>(),
        post("/v1/local/links", "Links of another node of this machine", told).takes::<Links>(),
    ]
}

async fn show(State(app): Shared) -> Json<MachineView> {
    Json(MachineView {
        id: app.peers.tls.as_ref().map(|pki| pki.here().machine),
        subnet: app.config.network.subnet,
        links: app.links.all().into_iter().map(|link| link.view).collect(),
    })
}

fn keys(app: &App) -> Result<&Pki, ErrorBody> {
    app.peers.tls.as_deref().ok_or_else(|| {
        let text = "this node has no keys and serves no others: it cannot be linked";
        ErrorBody::new(ErrorCode::Failed, text).hint("see the log of mintd")
    })
}

async fn introduction(State(app): Shared) -> Result<Json<MachineIntroduction>, Failure> {
    let pki = keys(&app)?;
    let authority = pki.authority().ok_or_else(|| {
        let text =
            "this machine has no authority for libvirt's TLS: its node 0 runs an older mintd";
        ErrorBody::new(ErrorCode::Failed, text).hint("update node 0, and restart this node")
    })?;
    Ok(Json(MachineIntroduction {
        node: pki.ourselves(),
        subnet: app.config.network.subnet,
        port: app.config.network.port,
        authority: authority.certificate().to_owned(),
    }))
}

/// Why two machines cannot be linked.
fn refusals(app: &App, pki: &Pki, request: &LinkRequest) -> Vec<Refusal> {
    let LinkRequest { name, introduction, .. } = request;
    let resource = format!("machine {name}");
    let mut found = Vec::new();
    let mut refuse = |code, text: String, hint: &str| {
        found.push(Refusal::new(code, &resource, text).hint(hint));
    };
    let machine = introduction.node.machine;
    if machine == pki.here().machine {
        let text = format!("machine {name} is this machine itself");
        refuse(RefusalCode::MachineSelf, text, "give the file that the other machine printed");
    }
    let others: Vec<Link> =
        app.links.all().into_iter().filter(|link| link.view.machine != machine).collect();
    if others.iter().any(|link| link.view.name == *name) {
        let text = format!("another machine is called {name} here");
        refuse(RefusalCode::NameTaken, text, "choose another name: mintctl machine show");
    }
    let own = ("this machine".to_owned(), app.config.network.subnet);
    let linked =
        others.iter().map(|link| (format!("machine {}", link.view.name), link.view.subnet));
    for (whose, subnet) in std::iter::once(own).chain(linked) {
        let theirs = introduction.subnet;
        if subnet.contains(&theirs) || theirs.contains(&subnet) {
            let text = format!(
                "nodes of machine {name} have addresses of {theirs}, and those of {whose} of {subnet}"
            );
            let hint = "give one of them another network.subnet (mint.toml of its node 0)";
            refuse(RefusalCode::MachineSubnet, text, hint);
        }
    }
    found
}

/// Whether what another machine says of itself can be read.
fn check(introduction: &MachineIntroduction) -> Result<(), ErrorBody> {
    let bad = |text: &str| Err(ErrorBody::new(ErrorCode::BadRequest, text));
    let pems = [&introduction.authority, &introduction.node.certificate];
    if pems.into_iter().any(|pem| pem.len() > PEM_BYTES_MAX || !is_one_certificate(pem)) {
        return bad("bad request: a certificate of the other machine cannot be read");
    }
    let network = mint_node::config::Network {
        subnet: introduction.subnet,
        ..mint_node::config::Network::default()
    };
    if !network.has_room(introduction.node.node.as_u32() + 1) {
        return bad("bad request: the other machine's subnet has no room for its nodes");
    }
    Ok(())
}

async fn link(State(app): Shared, body: String) -> Result<Json<LinkView>, Failure> {
    let request: LinkRequest = parse(&body)?;
    let pki = keys(&app)?;
    check(&request.introduction)?;
    let refusals = refusals(&app, pki, &request);
    if !refusals.is_empty() {
        return Err(Failure(ErrorBody::refused(refusals)));
    }
    let LinkRequest { name, address, introduction } = request;
    let root = app.root.clone();
    let mtu = tokio::task::spawn_blocking(move || routes::wire_mtu(&root, address)).await;
    let mtu = mtu.unwrap_or_else(|fault| Err(fault.to_string())).map_err(|why| {
        let text = format!("machine {name} is not linked: {why}");
        ErrorBody::new(ErrorCode::Failed, text)
            .hint("give this node's card an address of the wire's network, or link on another node")
    })?;
    let machine = introduction.node.machine;
    let new = Link {
        view: LinkView {
            name,
            machine,
            via: app.here,
            address,
            subnet: introduction.subnet,
            is_up: false,
            reason: "not asked yet".into(),
            nodes: Vec::new(),
        },
        port: introduction.port,
        gateway: introduction.node.node,
        mtu,
        authority: introduction.authority,
        known: vec![introduction.node],
    };
    let failed = |error: std::io::Error| ErrorBody::from_error(ErrorCode::Failed, &error);
    app.links.keep(new).map_err(failed)?;
    watch::begin(&app).await;
    let found = app.links.find(&machine.to_string());
    let found =
        found.ok_or_else(|| ErrorBody::new(ErrorCode::Failed, "it was unlinked meanwhile"))?;
    Ok(Json(found.view))
}

async fn unlink(State(app): Shared, Path(name): Path<String>) -> Result<Json<Value>, Failure> {
    let failed = |error: std::io::Error| ErrorBody::from_error(ErrorCode::Failed, &error);
    if app.links.forget(&name).map_err(failed)? {
        return Ok(Json(json!({ "removed": name })));
    }
    // another node of this machine may have its wire
    let Some(link) = app.links.find(&name).filter(|link| link.view.via != app.here) else {
        return Err(Failure(no_link(&name)));
    };
    let client = app.peers.client(link.view.via)?;
    let path = format!("/v1/machine/links/{}/remove", link.view.name);
    let answer = client.post::<Value>(&path, &json!({})).await;
    Ok(Json(answer.map_err(crate::peer_clients::peer_error)?))
}

async fn news(State(app): Shared) -> Result<Json<MachineNews>, Failure> {
    if let Some(Caller::Linked { machine, .. }) = Caller::current() {
        // it knows us by now
        let is_down = |link: &Link| link.view.machine == machine && !link.view.is_up;
        if app.links.own().iter().any(is_down) {
            app.links.changed.notify_one();
        }
    }
    let inventory = app.inventory()?;
    let nodes: Vec<LinkedNode> = inventory
        .nodes
        .iter()
        .filter(|node| node.state.is_live())
        .map(|node| LinkedNode { id: node.id, name: node.display_name() })
        .collect();
    let known: BTreeMap<_, Introduction> =
        keys(&app)?.known().into_iter().map(|known| (known.id(), known)).collect();
    let known = known.into_values().take(NODE_MAX as usize).collect();
    Ok(Json(MachineNews { nodes, known }))
}

async fn node(State(app): Shared) -> Result<Json<NodeDetail>, Failure> {
    Ok(Json(views::node_detail(&app, &app.here.to_string()).await?))
}

async fn told(State(app): Shared, body: String) -> Result<Json<Value>, Failure> {
    let Links { via, links } = parse(&body)?;
    let is_news = app.links.told(via, links);
    Ok(Json(json!({ "is_news": is_news })))
}
