// SPDX-License-Identifier: Apache-2.0
//! What the ledger holds.

use mint_api::{CpuList, DeviceList, DeviceView, MemoryList, NodeDetail, ResourceView};
use mint_types::{CpuSet, format_bytes};

use super::context::{Context, Outcome};
use crate::output::{Table, or_dash, print, print_json};

fn owner(resource: &ResourceView) -> String {
    match &resource.owner_name {
        Some(name) => name.clone(),
        None => "-".to_owned(),
    }
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// `device list`.
pub async fn devices(context: &Context) -> Outcome {
    let list: DeviceList = context.client.get("/v1/devices").await?;
    if context.json {
        print_json(&list)?;
    } else {
        device_table(&list.devices).print()?;
    }
    Ok(0)
}

fn device_table(devices: &[DeviceView]) -> Table {
    let mut table =
        Table::new(&["DEVICE", "CLASS", "ID", "STATE", "OWNER", "DRIVER", "NUMA", "FLAGS"]);
    for device in devices {
        table.row([
            device.bdf.clone(),
            device.class_name.clone(),
            format!("{}:{}", device.vendor, device.device),
            device.resource.state.clone(),
            owner(&device.resource),
            or_dash(device.driver.clone().unwrap_or_default()),
            number(device.resource.numa),
            or_dash(flags(device)),
        ]);
    }
    table
}

/// What is special about it; of a virtual function also whose it is.
fn flags(device: &DeviceView) -> String {
    let mut words = device.resource.flags.join(" ");
    if let Some(physfn) = &device.physfn {
        words += &format!(" of {physfn}");
    }
    words
}

/// `cpu list`.
pub async fn cpus(context: &Context) -> Outcome {
    let list: CpuList = context.client.get("/v1/cpus").await?;
    if context.json {
        print_json(&list)?;
    } else {
        cpu_table(&list.cpus).print()?;
    }
    Ok(0)
}

fn cpu_table(cpus: &[ResourceView]) -> Table {
    let mut table =
        Table::new(&["CPU", "APIC", "PACKAGE", "CORE", "NUMA", "STATE", "OWNER", "FLAGS"]);
    for cpu in cpus {
        table.row([
            cpu.id.to_string(),
            number(cpu.apic_id),
            number(cpu.package),
            number(cpu.core),
            number(cpu.numa),
            cpu.state.clone(),
            owner(cpu),
            or_dash(cpu.flags.join(" ")),
        ]);
    }
    table
}

/// `memory list`: neighbours of one owner in one line.
pub async fn memory(context: &Context) -> Outcome {
    let list: MemoryList = context.client.get("/v1/memory").await?;
    if context.json {
        print_json(&list)?;
    } else {
        memory_table(&list.memory).print()?;
    }
    Ok(0)
}

fn memory_table(blocks: &[ResourceView]) -> Table {
    let mut table = Table::new(&["MEMORY", "SIZE", "BLOCKS", "NUMA", "STATE", "OWNER"]);
    let mut rest = blocks;
    while let Some(first) = rest.first() {
        let alike = |index: usize, block: &ResourceView| {
            u64::from(block.id) == u64::from(first.id) + index as u64
                && (block.numa, &block.state, block.owner)
                    == (first.numa, &first.state, first.owner)
        };
        let count =
            rest.iter().enumerate().take_while(|(index, block)| alike(*index, block)).count();
        let (run, later) = rest.split_at(count.max(1));
        rest = later;
        let bytes: u64 = run.iter().filter_map(|block| block.bytes).sum();
        let phys = first.phys.unwrap_or(0);
        table.row([
            format!("{phys:#012x}-{:#012x}", phys.saturating_add(bytes)),
            format_bytes(bytes),
            run.len().to_string(),
            number(first.numa),
            first.state.clone(),
            owner(first),
        ]);
    }
    table
}

/// `node show`.
pub async fn show(context: &Context, path: &str) -> Outcome {
    let detail: NodeDetail = context.client.get(path).await?;
    if context.json {
        print_json(&detail)?;
        return Ok(0);
    }
    let node = &detail.node;
    let cpus: CpuSet = detail.resources.cpus.iter().map(|cpu| cpu.id).collect();
    for (what, value) in [
        ("node", format!("{} ({})", node.id, node.name)),
        ("state", format!("{}, heartbeat {}", node.state, node.health)),
        ("last words", or_dash(node.reason.clone())),
        ("kernel", or_dash(node.release.clone())),
        ("starts", node.boots.to_string()),
        ("address", format!("{}, mintd: {}", node.address, node.mintd)),
        ("cpus", format!("{} ({} online)", or_dash(cpus.to_string()), node.cpus_online)),
        ("memory", format_bytes(node.memory_bytes)),
    ] {
        print(&format!("{what:<11} {value}"))?;
    }
    print("")?;
    cpu_table(&detail.resources.cpus).print()?;
    print("")?;
    memory_table(&detail.resources.memory).print()?;
    if !detail.resources.devices.is_empty() {
        print("")?;
        device_table(&detail.resources.devices).print()?;
    }
    if let Some(spec) = &detail.spec {
        let text = toml::to_string(spec).unwrap_or_default();
        print(&format!("\nas it was added:\n{}", text.trim_end()))?;
    }
    Ok(0)
}
