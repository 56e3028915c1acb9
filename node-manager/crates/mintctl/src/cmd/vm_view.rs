// SPDX-License-Identifier: Apache-2.0
//! Guests as people read them.

use mint_api::{EvacuateResult, MigrateResult, VmView};
use mint_types::format_bytes;

use super::context::{Context, Outcome};
use crate::output::{Table, or_dash, print, print_json};

/// Guests, as a table.
pub fn table(vms: &[VmView]) -> Table {
    let mut table = Table::new(&["VM", "NODE", "STATE", "VCPUS", "MEMORY", "FLAGS", "UUID"]);
    for vm in vms {
        let flags =
            [(!vm.persistent, "transient"), (vm.autostart, "autostart"), (vm.is_busy, "busy")];
        let flags: Vec<&str> =
            flags.iter().filter(|(is_so, _)| *is_so).map(|(_, word)| *word).collect();
        table.row([
            vm.name.clone(),
            vm.node_name.clone(),
            vm.state.clone(),
            vm.vcpus.to_string(),
            format_bytes(vm.memory_bytes),
            or_dash(flags.join(" ")),
            vm.uuid.clone(),
        ]);
    }
    table
}

/// One guest.
pub fn show(context: &Context, view: &VmView) -> Outcome {
    if context.json {
        print_json(view)?;
    } else {
        table(std::slice::from_ref(view)).print()?;
    }
    Ok(0)
}

/// Progress for people.
pub fn tell(context: &Context) -> impl FnMut(&str) + use<> {
    let is_told = !context.json;
    move |line| {
        if is_told {
            eprintln!("{line}");
        }
    }
}

/// A guest that has moved, or could.
pub fn moved(context: &Context, result: &MigrateResult) -> Outcome {
    if context.json {
        print_json(result)?;
    } else {
        words(result).iter().try_for_each(|line| print(line))?;
    }
    Ok(0)
}

/// A node's guests that have moved, or could.
pub fn evacuated(context: &Context, result: &EvacuateResult) -> Outcome {
    if context.json {
        print_json(result)?;
        return Ok(0);
    }
    for line in result.vms.iter().flat_map(words) {
        print(&line)?;
    }
    if result.vms.is_empty() {
        print(&format!("no guest runs on node {}", result.node))?;
    }
    Ok(0)
}

/// What was done, or would be.
pub fn words(result: &MigrateResult) -> Vec<String> {
    let MigrateResult { name, from, memory_bytes, disks, changes, took, .. } = result;
    if result.merged && *from == result.to {
        let all = format_bytes(*memory_bytes);
        let can = if took.is_some() { "is" } else { "can be" };
        return vec![format!("all memory of vm {name}, {all}, {can} on node {from}")];
    }
    if *from == result.to {
        let own = format_bytes(*memory_bytes);
        let has = if took.is_some() { "has" } else { "can have" };
        return vec![format!("node {from} {has} {own} of the memory of vm {name}")];
    }
    let to = match result.to_machine {
        None => result.to.to_string(),
        Some(_) => result.to_name.clone(),
    };
    let Some(took) = took else {
        let memory = format_bytes(*memory_bytes);
        let mut lines =
            vec![format!("vm {name} can go from node {from} to node {to}: {memory} of memory")];
        lines.extend(disks.iter().map(|disk| {
            format!("disk {} is copied: {} ({})", disk.target, disk.path, format_bytes(disk.bytes))
        }));
        lines.extend(changes.iter().cloned());
        return lines;
    };
    // of one that went before its memory, nobody counts how long it stood still
    let still = match took.downtime_ms {
        0 => String::new(),
        still_ms => format!(", {still_ms} ms of them it stood still"),
    };
    let all = if result.merged { ", all of its memory" } else { "" };
    let mut lines =
        vec![format!("vm {name} is on node {to}{all}: {} ms in all{still}", took.total_ms)];
    if let Some(layout) = result.layout.and_then(|layout| layout.took) {
        lines.push(format!(
            "{} of its memory are on the NUMA nodes that they were to be on, {} elsewhere",
            format_bytes(layout.placed_bytes),
            format_bytes(layout.elsewhere_bytes)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use mint_api::{DiskCopyView, LayoutFigures, LayoutView, MigrateFigures};
    use mint_types::{LayoutPolicy, NodeId};

    use super::*;

    #[test]
    fn plan_and_result_say_what_goes_where() {
        let node = |id| NodeId::new(id).unwrap();
        let plan = MigrateResult {
            name: "web".into(),
            uuid: "u".into(),
            from: node(1),
            to: node(2),
            to_name: "node2".into(),
            to_machine: None,
            memory_bytes: 512 << 20,
            disks: vec![DiskCopyView { target: "vda".into(), path: "/d".into(), bytes: 1 << 20 }],
            changes: vec!["vCPU 0: CPU 2 -> CPU 0".into()],
            took: None,
            merged: false,
            layout: None,
        };
        assert_eq!(
            words(&plan),
            [
                "vm web can go from node 1 to node 2: 512M of memory",
                "disk vda is copied: /d (1M)",
                "vCPU 0: CPU 2 -> CPU 0"
            ]
        );
        let took = MigrateFigures { total_ms: 900, downtime_ms: 40, ..MigrateFigures::default() };
        let done = MigrateResult { took: Some(took), ..plan };
        assert_eq!(
            words(&done),
            ["vm web is on node 2: 900 ms in all, 40 ms of them it stood still"]
        );
        let figures = LayoutFigures { placed_bytes: 96 << 20, ..LayoutFigures::default() };
        let layout = LayoutView {
            policy: LayoutPolicy::Simple,
            expected_gain: 0.2,
            to_evict_bytes: 0,
            took: Some(figures),
        };
        let placed = MigrateResult { layout: Some(layout), ..done.clone() };
        assert_eq!(
            words(&placed)[1],
            "96M of its memory are on the NUMA nodes that they were to be on, 0 elsewhere"
        );
        let merged = MigrateResult { merged: true, ..done };
        assert!(words(&merged)[0].starts_with("vm web is on node 2, all of its memory: 900 ms"));
        let here = MigrateResult { from: merged.to, ..merged };
        assert_eq!(words(&here), ["all memory of vm web, 512M, is on node 2"]);
    }
}
