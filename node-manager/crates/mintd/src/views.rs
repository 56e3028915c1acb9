// SPDX-License-Identifier: Apache-2.0
//! The ledger as replies show it.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{
    CpuList, DeviceList, DeviceView, ErrorBody, ErrorCode, Link, MemoryList, NodeDetail, NodeList,
    NodeResources, NodeView, ResourceView,
};
use mint_plan::Inventory;
use mint_types::{Kind, NodeId, NodeState, NodeStatus, ResState, Resource};

use crate::app::App;
use crate::links::address;
use crate::peer_clients::peer_error;
use crate::resolve::{Place, place};

/// For a peer to say that it is there, when nodes are only listed.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// And for one of a linked machine.
const LINKED_WITHIN: Duration = Duration::from_secs(20);

/// All nodes; asks every running peer whether it answers.
pub(crate) async fn node_list(app: &Arc<App>) -> Result<NodeList, ErrorBody> {
    let inventory = app.inventory()?;
    let mut asked = Vec::new();
    for node in &inventory.nodes {
        asked.push(node_view(app, &inventory, node, HELLO_WITHIN));
    }
    let mut nodes = Vec::new();
    // all at once: one that is dead must not delay the others
    let tasks: Vec<_> = asked.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        if let Ok(view) = task.await {
            nodes.push(view);
        }
    }
    Ok(NodeList { nodes })
}

/// One node, with what it owns.
pub(crate) async fn node_detail(app: &Arc<App>, reference: &str) -> Result<NodeDetail, ErrorBody> {
    let node = &match place(app, reference)? {
        Place::Own(node) => node,
        Place::Linked(link, node) => return linked_detail(app, &link, node).await,
    };
    let inventory = app.inventory()?;
    let of = |kind| inventory.owned(node.id, kind);
    let resources = NodeResources {
        cpus: of(Kind::Cpu).map(|resource| resource_view(&inventory, resource)).collect(),
        memory: of(Kind::Memory).map(|resource| resource_view(&inventory, resource)).collect(),
        devices: of(Kind::Device).map(|resource| device_view(app, &inventory, resource)).collect(),
    };
    let spec = app.specs.get(&inventory, node.id);
    Ok(NodeDetail { node: node_view(app, &inventory, node, HELLO_WITHIN).await, resources, spec })
}

/// A node of a linked machine, as that one's own daemon shows it.
async fn linked_detail(app: &App, link: &Link, node: NodeId) -> Result<NodeDetail, ErrorBody> {
    let client = app.peers.linked(link, node)?;
    let asked = tokio::time::timeout(LINKED_WITHIN, client.get::<NodeDetail>("/v1/local/node"));
    let Ok(answer) = asked.await else {
        let text = format!("node {}/{node} does not answer", link.view.name);
        return Err(ErrorBody::new(ErrorCode::PeerUnreachable, text));
    };
    let mut detail = answer.map_err(peer_error)?;
    let view = &mut detail.node;
    view.name = format!("{}/{}", link.view.name, view.name);
    view.machine = Some(link.view.machine);
    view.is_self = false;
    // what it is reached at is what this machine says
    view.address = address(link, node).to_string();
    Ok(detail)
}

/// One node, whose daemon is given `within` to say that it is there. The future
/// holds no borrow, so that many can be asked at once.
pub(crate) fn node_view(
    app: &Arc<App>,
    inventory: &Inventory,
    node: &NodeStatus,
    within: Duration,
) -> impl Future<Output = NodeView> + Send + 'static {
    let cpus = inventory.cpus_of(node.id);
    let live = node.state.is_live();
    let runs = node.state == NodeState::Running;
    let health = app.marks().health_of(node.id).word();
    let mut view = NodeView {
        id: node.id,
        name: node.display_name(),
        machine: None,
        state: node.state,
        health: if live { health } else { "-" }.into(),
        is_self: node.id == app.here,
        cpus: cpus.to_string(),
        cpu_count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        cpus_online: node.cpus_online,
        memory_bytes: node.memory_bytes,
        numa: inventory.numa_of(node.id).into_iter().collect(),
        devices: inventory
            .owned(node.id, Kind::Device)
            .filter(|device| !device.flags.bridge && !device.flags.platform)
            .filter_map(|device| device.key.bdf())
            .map(|bdf| bdf.to_string())
            .collect(),
        address: app.config.network.address(node.id).to_string(),
        mintd: "-".into(),
        boots: node.boots,
        heartbeat: node.heartbeat,
        state_change_ns: node.state_change_ns,
        release: node.release.clone(),
        reason: if live { String::new() } else { node.reason.clone() },
    };
    let peers = app.peers.clone();
    async move {
        if view.is_self {
            view.mintd = "ok".into();
        } else if runs {
            let answers = peers.answers(view.id, view.boots, within).await;
            let silent = if peers.is_apart(view.id) { "other version" } else { "no answer" };
            view.mintd = if answers { "ok" } else { silent }.into();
        } else if live {
            view.mintd = "no answer".into();
        }
        view
    }
}

/// All cores.
pub(crate) fn cpu_list(app: &App) -> Result<CpuList, ErrorBody> {
    let inventory = app.inventory()?;
    Ok(CpuList { cpus: inventory.cpus.iter().map(|r| resource_view(&inventory, r)).collect() })
}

/// All memory blocks.
pub(crate) fn memory_list(app: &App) -> Result<MemoryList, ErrorBody> {
    let inventory = app.inventory()?;
    Ok(MemoryList {
        memory: inventory.memory.iter().map(|r| resource_view(&inventory, r)).collect(),
    })
}

/// All PCI functions.
pub(crate) fn device_list(app: &App) -> Result<DeviceList, ErrorBody> {
    let inventory = app.inventory()?;
    let devices = inventory.devices.iter().map(|r| device_view(app, &inventory, r)).collect();
    Ok(DeviceList { devices })
}

fn resource_view(inventory: &Inventory, resource: &Resource) -> ResourceView {
    let kind = resource.key.kind;
    let is_cpu = kind == Kind::Cpu;
    let is_memory = kind == Kind::Memory;
    ResourceView {
        kind: match kind {
            Kind::Cpu => "cpu",
            Kind::Memory => "memory",
            Kind::Device => "device",
        }
        .into(),
        id: resource.key.id,
        state: match resource.state {
            ResState::Absent => "absent",
            ResState::Free => "free",
            ResState::Owned => "owned",
            ResState::Moving => "moving",
        }
        .into(),
        owner: resource.owner.map(mint_types::NodeId::as_u32),
        owner_name: resource.owner.map(|owner| {
            inventory.node(owner).map_or_else(|| format!("node{owner}"), NodeStatus::display_name)
        }),
        target: resource.target.map(mint_types::NodeId::as_u32),
        numa: resource.numa,
        flags: resource.flags.names().into_iter().map(str::to_owned).collect(),
        changes: resource.changes,
        apic_id: is_cpu.then_some(resource.hw_id),
        package: is_cpu.then_some(resource.hw_class >> 16),
        core: is_cpu.then_some(resource.hw_class & 0xffff),
        phys: is_memory.then_some(resource.phys),
        bytes: is_memory.then_some(inventory.info.mem_block_bytes),
    }
}

fn device_view(app: &App, inventory: &Inventory, resource: &Resource) -> DeviceView {
    let bdf = resource.key.bdf();
    let is_ours = resource.owner == Some(app.here);
    DeviceView {
        resource: resource_view(inventory, resource),
        bdf: bdf.map(|bdf| bdf.to_string()).unwrap_or_default(),
        class: format!("{:06x}", resource.hw_class & 0xff_ffff),
        class_name: class_name(resource.hw_class).into(),
        vendor: format!("{:04x}", resource.hw_id >> 16),
        device: format!("{:04x}", resource.hw_id & 0xffff),
        driver: bdf.filter(|_| is_ours).and_then(|bdf| app.host.driver(bdf)),
        physfn: resource.physfn.map(|physfn| physfn.to_string()),
        msi: resource.flags.msi || resource.flags.msix,
        bridge: resource.flags.bridge,
        platform: resource.flags.platform,
    }
}

/// Classes of the PCI code and ID assignment specification that servers have.
fn class_name(class: u32) -> &'static str {
    match (class >> 16 & 0xff, class >> 8 & 0xff) {
        (0x01, 0x00) => "disk",
        (0x01, 0x04) => "RAID controller",
        (0x01, 0x06) => "SATA controller",
        (0x01, 0x07) => "SAS controller",
        (0x01, 0x08) => "NVMe disk",
        (0x01, _) => "storage",
        (0x02, 0x00) => "Ethernet",
        (0x02, 0x07) => "InfiniBand",
        (0x02, _) => "network",
        (0x03, _) => "display",
        (0x04, _) => "multimedia",
        (0x05, _) => "memory",
        (0x06, 0x00) => "host bridge",
        (0x06, 0x01) => "ISA bridge",
        (0x06, 0x04) => "PCI bridge",
        (0x06, _) => "bridge",
        (0x07, 0x00) => "serial port",
        (0x07, _) => "communication",
        (0x08, _) => "system peripheral",
        (0x0c, 0x03) => "USB controller",
        (0x0c, 0x05) => "SMBus",
        (0x0c, _) => "serial bus",
        (0x12, _) => "accelerator",
        _ => "other",
    }
}
