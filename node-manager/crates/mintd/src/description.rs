// SPDX-License-Identifier: Apache-2.0
//! What a node that is started again boots: what the mintd that added it wrote down.
//! Nothing else is booted in its place unless somebody asks for that.

use std::sync::Arc;

use mint_api::{ErrorBody, SpecReply, WaitFor};
use mint_image::initrd;
use mint_node::no_description;
use mint_ops::Op;
use mint_plan::Inventory;
use mint_types::{Kind, NodeId, NodeName, NodeSpec, NodeStatus, Refusal, RefusalCode};
use tokio::time::timeout;

use crate::app::App;
use crate::node0;
use crate::waiting::HELLO_WITHIN;

/// What to boot; `None`: this daemon has it.
///
/// # Errors
/// Refused when no daemon that answers knows.
pub(crate) async fn to_boot(
    app: &Arc<App>,
    inventory: &Inventory,
    node: &NodeStatus,
    default_image: bool,
) -> Result<Option<NodeSpec>, ErrorBody> {
    if node.id == NodeId::ZERO {
        return node0::fetched(app).ok_or_else(|| node0::not_fetched(node)).map(Some);
    }
    if default_image {
        let name: NodeName = node.display_name().parse().map_err(|error| {
            ErrorBody::refused(vec![Refusal::new(RefusalCode::NameBad, node.label(), error)])
        })?;
        return Ok(Some(NodeSpec::named(name)));
    }
    if app.specs.get(inventory, node.id).is_some() {
        return Ok(None);
    }
    let mut silent = Vec::new();
    let mut asked = Vec::new();
    for peer in inventory.nodes.iter().filter(|peer| peer.state.is_live()) {
        if peer.id == app.here || peer.id == node.id {
            continue;
        }
        let Ok(client) = app.peers.client(peer.id) else {
            silent.push(peer.label());
            continue;
        };
        let path = format!("/v1/local/specs/{}", node.id);
        let answer = async move { timeout(HELLO_WITHIN, client.get::<SpecReply>(&path)).await };
        asked.push((peer.label(), tokio::spawn(answer)));
    }
    for (label, answer) in asked {
        match answer.await {
            Ok(Ok(Ok(SpecReply { spec: Some(spec) }))) => return Ok(Some(spec)),
            Ok(Ok(Ok(SpecReply { spec: None }))) => {}
            _ => silent.push(label),
        }
    }
    Err(ErrorBody::refused(vec![no_description(node, &silent)]))
}

/// Whether that is why a node is not started.
pub(crate) fn is_missing(error: &ErrorBody) -> bool {
    error.refusals.iter().any(|refusal| refusal.code == RefusalCode::DescriptionMissing)
}

/// Classes of functions that a node may get more software through: mass storage, network,
/// serial buses (PCI Code and ID Assignment, base classes).
const SOURCES: [u32; 3] = [0x01, 0x02, 0x0c];
/// With this word on its command line, Mint's initrd stays what a node runs.
const ROOT_INITRD: &str = "mint.root=initrd";

/// What to wait for after a start: a daemon that cannot come is not waited for. `spec` is
/// what was booted, where that was not this daemon's own.
pub(crate) fn wait_for(
    app: &App,
    node: NodeId,
    spec: Option<&NodeSpec>,
    wait: WaitFor,
    op: &Op,
) -> WaitFor {
    let Ok(inventory) = app.inventory() else { return wait };
    let Some(spec) = spec.cloned().or_else(|| app.specs.get(&inventory, node)) else { return wait };
    if wait != WaitFor::Mintd || node == NodeId::ZERO {
        return wait;
    }
    let defaults = &app.config.node;
    let cmdline = spec.cmdline.as_ref().unwrap_or(&defaults.cmdline);
    let stays = cmdline.split_whitespace().any(|word| word == ROOT_INITRD);
    let source = inventory
        .owned(node, Kind::Device)
        .any(|device| SOURCES.contains(&(device.hw_class >> 16)));
    if source && !stays {
        return wait;
    }
    // it was just checked for the start: that is known
    let initrd = spec.initrd.as_ref().unwrap_or(&defaults.initrd);
    match initrd::check_initrd(initrd, u64::MAX) {
        Ok(initrd) if !initrd.may_have_mintd => {
            let why = if stays {
                format!("by {ROOT_INITRD} it stays in its initrd, which has no mintd")
            } else {
                "its initrd has no mintd, and it has no disk or network card to get one from".into()
            };
            op.progress(&format!("waiting for the kernel only: {why}"));
            WaitFor::Running
        }
        _ => wait,
    }
}
