// SPDX-License-Identifier: Apache-2.0
//! Layouts in words.

use mint_api::{
    KeptBy, LayoutResult, NodeLayout, NumaView, VcpuLayout, VcpuSample, VmLayout, VmLayoutChange,
};
use mint_types::format_bytes;

use super::layout_measured;
use crate::output::{Table, or_dash, time};

/// A node's NUMA nodes and guests, as two tables.
pub fn shown(layout: &NodeLayout) -> String {
    let mut numas = Table::new(&["NUMA", "CPUS", "FREE", "GUESTS", "DISTANCES"]);
    for one in &layout.numa {
        numas.row(numa(one));
    }
    let heading =
        ["VM", "VCPU", "CPU", "NUMA", "KEPT TO", "BY", "BUSY", "MISSES/1000", "MEMORY", "NEAR"];
    let mut vms = Table::new(&heading);
    for vm in &layout.vms {
        for (at, one) in vm.vcpus.iter().enumerate() {
            vms.row(vcpu(vm, one, at == 0));
        }
    }
    let undo = match layout.undo_from_s {
        Some(at_s) => format!("mintctl layout undo puts back what was changed at {}\n", time(at_s)),
        None => String::new(),
    };
    let distances = layout_measured::shown(layout.measured.as_ref());
    format!("{}{distances}\n\n{}{undo}", numas.text(), vms.text()).trim_end().to_owned()
}

fn numa(one: &NumaView) -> [String; 5] {
    let caches: Vec<String> = one.caches.iter().map(ToString::to_string).collect();
    let distances: Vec<String> = one.distances.iter().map(ToString::to_string).collect();
    [
        format!("numa{}", one.numa),
        or_dash(caches.join(" | ")),
        format_bytes(one.free_bytes),
        format_bytes(one.guests_bytes),
        distances.join(" "),
    ]
}

fn vcpu(vm: &VmLayout, one: &VcpuLayout, is_first: bool) -> [String; 10] {
    let (kept, by) = match one.kept_by {
        KeptBy::Nobody => ("-".to_owned(), "-"),
        KeptBy::Owner => (one.allowed.to_string(), "owner"),
        KeptBy::Layout => (one.allowed.to_string(), "layout"),
    };
    let of_vm = |text: String| if is_first { text } else { String::new() };
    [
        of_vm(vm.name.clone()),
        one.vcpu.to_string(),
        one.cpu.to_string(),
        format!("numa{}", one.numa),
        kept,
        by.to_owned(),
        busy(&one.samples),
        misses(&one.samples),
        of_vm(memory(vm)),
        of_vm(near(vm.near_bytes, vm)),
    ]
}

/// The middle of what samples say; of an even number the lower one.
fn median(samples: &[VcpuSample], of: impl Fn(&VcpuSample) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

fn busy(samples: &[VcpuSample]) -> String {
    let part = |one: &VcpuSample| {
        (one.span_ms > 0).then(|| f64::from(one.run_ms) / f64::from(one.span_ms))
    };
    median(samples, part).map_or("-".to_owned(), percent)
}

fn misses(samples: &[VcpuSample]) -> String {
    let rate = |one: &VcpuSample| match (one.misses?, one.instructions?) {
        (_, 0) => None,
        (misses, instructions) => Some(misses as f64 * 1000.0 / instructions as f64),
    };
    median(samples, rate).map_or("-".to_owned(), |rate| format!("{rate:.1}"))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn memory(vm: &VmLayout) -> String {
    let each = vm.memory.iter().map(|one| format!("{} numa{}", format_bytes(one.bytes), one.numa));
    or_dash(each.collect::<Vec<_>>().join(", "))
}

fn bytes(vm: &VmLayout) -> u64 {
    vm.memory.iter().map(|one| one.bytes).sum()
}

fn near(near_bytes: u64, vm: &VmLayout) -> String {
    match bytes(vm) {
        0 => "-".to_owned(),
        all => percent(near_bytes as f64 / all as f64),
    }
}

/// What was measured of a guest, the oldest sample first.
pub fn counters(vm: &VmLayout) -> Table {
    let mut table =
        Table::new(&["VCPU", "CPU", "SPAN", "RAN", "INSTRUCTIONS", "MISSES", "LINES FROM"]);
    for one in &vm.vcpus {
        for sample in &one.samples {
            let number =
                |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
            let fills = sample.fills.iter().flatten().map(ToString::to_string);
            table.row([
                one.vcpu.to_string(),
                one.cpu.to_string(),
                format!("{} ms", sample.span_ms),
                format!("{} ms", sample.run_ms),
                number(sample.instructions),
                number(sample.misses),
                or_dash(fills.collect::<Vec<_>>().join(" | ")),
            ]);
        }
    }
    table
}

/// Why a guest is where it is.
pub fn explained(vm: &VmLayout) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for one in &vm.vcpus {
        let kept = match one.kept_by {
            KeptBy::Nobody => "nobody keeps it to any".to_owned(),
            KeptBy::Owner => format!("its owner keeps it to CPUs {}", one.allowed),
            KeptBy::Layout => format!("a layout keeps it to CPUs {}", one.allowed),
        };
        lines
            .push(format!("vCPU {} runs on CPU {} of numa{}; {kept}", one.vcpu, one.cpu, one.numa));
    }
    lines.push(format!("memory: {}; {} of it near its vCPUs", memory(vm), near(vm.near_bytes, vm)));
    if vm.is_fixed {
        lines.push(
            "its memory stays where it is: a device has it, it is locked, or of huge pages"
                .to_owned(),
        );
    }
    let Some(reason) = &vm.reason else {
        lines.push("no layout has placed it since it runs on this node".to_owned());
        return lines;
    };
    let when = if reason.before_it_came { "before it came, at" } else { "at" };
    lines.push(format!("placed by policy {} {when} {}", reason.policy, time(reason.at_s)));
    let guessed = if reason.is_guessed { "taken to miss" } else { "counted to miss" };
    let rank = match reason.rank {
        0 => "moved for another guest".to_owned(),
        rank => format!("number {rank} to choose"),
    };
    lines.push(format!(
        "{rank}: {guessed} its last-level cache {:.1} times in a thousand instructions",
        reason.misses_per_kilo
    ));
    lines.push(format!("its work was expected to cost {} less", percent(reason.expected_gain)));
    lines.push(format!(
        "cost: {} of its memory placed, {} of other guests' moved by the same plan",
        format_bytes(reason.placed_bytes),
        format_bytes(reason.evicted_bytes)
    ));
    lines.extend(seen(vm));
    lines
}

/// What came of it.
fn seen(vm: &VmLayout) -> Option<String> {
    let reason = vm.reason.as_ref()?;
    let was = reason.near_bytes_before.map(|bytes| near(bytes, vm));
    let rate = |vcpu: &VcpuLayout| {
        median(&vcpu.samples, |one| {
            (one.span_ms > 0).then_some(one.instructions? as f64 * 1000.0 / f64::from(one.span_ms))
        })
    };
    let now: Option<f64> = vm.vcpus.iter().map(rate).sum();
    let before = reason.instructions_s_before.filter(|before| *before > 0.0);
    let faster = before.zip(now).map(|(before, now)| percent(now / before - 1.0));
    match (was, faster) {
        (_, Some(faster)) => Some(format!("seen: it executes {faster} more instructions a second")),
        (Some(was), None) => {
            Some(format!("seen: {} of its memory is near, {was} was", near(vm.near_bytes, vm)))
        }
        (None, None) => Some(format!("seen: {} of its memory is near", near(vm.near_bytes, vm))),
    }
}

/// What was changed, or would be.
pub fn result(done: &LayoutResult) -> Vec<String> {
    let is = if done.is_done { "" } else { "would be " };
    let mut lines = Vec::new();
    match done.policy {
        _ if done.vms.is_empty() => {
            lines.push(format!("node {}: guests are where they are to be", done.node));
        }
        Some(policy) => lines.push(format!(
            "node {}: guests {is}arranged by policy {policy}; their work is to cost {} less",
            done.node,
            percent(done.expected_gain)
        )),
        None => lines.push(format!("node {}: guests {is}as they were", done.node)),
    }
    done.vms.iter().for_each(|vm| lines.extend(changed(vm)));
    lines
}

fn changed(vm: &VmLayoutChange) -> Vec<String> {
    let name = &vm.name;
    if let Some(why) = &vm.left_alone {
        return vec![format!("vm {name}: left alone, as {why}")];
    }
    let vcpus = vm.vcpus.iter();
    let vcpus = vcpus
        .map(|one| format!("vm {name}: vCPU {}: CPU {} -> CPU {}", one.vcpu, one.was, one.now));
    let memory = vm.memory.iter().map(|one| {
        format!("vm {name}: {}: numa{} -> numa{}", format_bytes(one.bytes), one.from, one.to)
    });
    let all: u64 = vm.memory.iter().map(|one| one.bytes).sum();
    let stayed = vm.went_bytes.filter(|went| *went < all).map(|went| {
        format!(
            "vm {name}: {} are there; the rest is untouched, or had no room",
            format_bytes(went)
        )
    });
    let waits = vm.waits.iter().map(|why| format!("vm {name}: some of it waits: {why}"));
    vcpus.chain(memory).chain(stayed).chain(waits).collect()
}

#[cfg(test)]
mod tests {
    use mint_api::{LayoutReason, MemoryGoes, NumaMemory, VcpuChange};
    use mint_types::{LayoutPolicy, NodeId};

    use super::*;

    fn vm() -> VmLayout {
        let sample = |run_ms, misses| VcpuSample {
            span_ms: 1000,
            run_ms,
            instructions: Some(2_000_000),
            misses: Some(misses),
            fills: Some(vec![7, 9]),
        };
        VmLayout {
            name: "web".into(),
            uuid: "u".into(),
            is_fixed: false,
            vcpus: vec![VcpuLayout {
                vcpu: 0,
                cpu: 3,
                numa: 1,
                allowed: "2-3".parse().unwrap(),
                kept_by: KeptBy::Layout,
                samples: vec![sample(900, 8000), sample(980, 24_000), sample(990, 25_000)],
            }],
            memory: vec![
                NumaMemory { numa: 0, bytes: 64 << 20 },
                NumaMemory { numa: 1, bytes: 192 << 20 },
            ],
            near_bytes: 192 << 20,
            reason: Some(LayoutReason {
                policy: LayoutPolicy::Simple,
                at_s: 0,
                before_it_came: true,
                rank: 1,
                misses_per_kilo: 12.0,
                is_guessed: false,
                expected_gain: 0.25,
                placed_bytes: 256 << 20,
                evicted_bytes: 16 << 20,
                near_bytes_before: None,
                instructions_s_before: Some(1_600_000.0),
            }),
        }
    }

    #[test]
    fn node_is_shown_by_numa_node_and_vcpu() {
        let layout = NodeLayout {
            node: NodeId::new(2).unwrap(),
            node_name: "node2".into(),
            numa: vec![NumaView {
                numa: 1,
                caches: vec!["2-3".parse().unwrap(), "4".parse().unwrap()],
                free_bytes: 1 << 30,
                guests_bytes: 192 << 20,
                distances: vec![20, 10],
            }],
            vms: vec![vm()],
            undo_from_s: Some(0),
            measured: None,
        };
        let text = shown(&layout);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[1], "numa1  2-3 | 4  1G    192M    20 10");
        assert!(
            lines[5].starts_with("web  0     3    numa1  2-3      layout  98 %  12.0"),
            "{text}"
        );
        assert_eq!(lines[2], "distances: the kernel's table");
        assert!(lines[5].ends_with("64M numa0, 192M numa1  75 %"), "{text}");
        assert_eq!(
            lines[6],
            "mintctl layout undo puts back what was changed at 1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn place_is_explained_by_rank_cost_and_what_came_of_it() {
        let lines = explained(&vm());
        assert_eq!(
            lines,
            [
                "vCPU 0 runs on CPU 3 of numa1; a layout keeps it to CPUs 2-3",
                "memory: 64M numa0, 192M numa1; 75 % of it near its vCPUs",
                "placed by policy simple before it came, at 1970-01-01T00:00:00Z",
                "number 1 to choose: counted to miss its last-level cache 12.0 times in a thousand \
                 instructions",
                "its work was expected to cost 25 % less",
                "cost: 256M of its memory placed, 16M of other guests' moved by the same plan",
                "seen: it executes 25 % more instructions a second",
            ]
        );
        let mut vm = vm();
        vm.reason.as_mut().unwrap().instructions_s_before = None;
        vm.reason.as_mut().unwrap().near_bytes_before = Some(0);
        assert_eq!(explained(&vm)[6], "seen: 75 % of its memory is near, 0 % was");
        vm.reason = None;
        assert_eq!(explained(&vm)[2], "no layout has placed it since it runs on this node");
    }

    #[test]
    fn counters_are_told_by_vcpu_and_second() {
        let text = counters(&vm()).text();
        let line = text.lines().nth(2).unwrap().trim_end();
        assert_eq!(line, "0     3    1000 ms  980 ms  2000000       24000   7 | 9");
    }

    #[test]
    fn result_tells_each_guest_and_what_could_not_go() {
        let change = VmLayoutChange {
            name: "web".into(),
            uuid: "u".into(),
            rank: 1,
            misses_per_kilo: 12.0,
            is_guessed: false,
            expected_gain: 0.25,
            vcpus: vec![VcpuChange {
                vcpu: 0,
                was: "0-3".parse().unwrap(),
                now: "2-3".parse().unwrap(),
            }],
            memory: vec![MemoryGoes { from: 0, to: 1, bytes: 64 << 20 }],
            went_bytes: Some(32 << 20),
            waits: Some("8M are too much".into()),
            left_alone: None,
        };
        let alone = VmLayoutChange {
            name: "db".into(),
            left_alone: Some("it is being moved to another node".into()),
            ..change.clone()
        };
        let mut done = LayoutResult {
            node: NodeId::new(2).unwrap(),
            policy: Some(LayoutPolicy::Simple),
            expected_gain: 0.125,
            vms: vec![change, alone],
            is_done: true,
        };
        assert_eq!(
            result(&done),
            [
                "node 2: guests arranged by policy simple; their work is to cost 12 % less",
                "vm web: vCPU 0: CPU 0-3 -> CPU 2-3",
                "vm web: 64M: numa0 -> numa1",
                "vm web: 32M are there; the rest is untouched, or had no room",
                "vm web: some of it waits: 8M are too much",
                "vm db: left alone, as it is being moved to another node",
            ]
        );
        done.vms.clear();
        assert_eq!(result(&done), ["node 2: guests are where they are to be"]);
    }
}
