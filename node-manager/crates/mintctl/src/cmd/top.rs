// SPDX-License-Identifier: Apache-2.0
//! `mintctl node top`: what running nodes use, refreshed.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

use mint_api::{LoadList, NodeLoad};
use mint_types::{GuestLoad, Load};

use super::context::{Context, Outcome};
use crate::output::{Table, print, print_json};

/// Cursor home, and clear what is below.
const CLEAR: &str = "\x1b[H\x1b[J";
const MIB: u64 = 1 << 20;

/// Looks `count` times, or until it is ended.
pub async fn run(context: &Context, interval_s: u64, count: Option<u64>) -> Outcome {
    let mut before: BTreeMap<u32, Load> = BTreeMap::new();
    let mut left = if context.json { count.or(Some(1)) } else { count };
    loop {
        let list: LoadList = context.client.get("/v1/loads").await?;
        if context.json {
            print_json(&list)?;
        } else {
            let clear = if stdout().is_terminal() { CLEAR } else { "" };
            print(&format!("{clear}{}", tables(&list.nodes, &before)))?;
        }
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(0);
        }
        let loads = list.nodes.into_iter().filter_map(|node| Some((node.id.as_u32(), node.load?)));
        before = loads.collect();
        tokio::time::sleep(Duration::from_secs(interval_s)).await;
    }
}

/// The first look has none before it: its rates are those since the node's boot.
fn tables(nodes: &[NodeLoad], before: &BTreeMap<u32, Load>) -> String {
    let mut all = Table::new(&["ID", "NAME", "CPUS", "BUSY", "MEMORY", "USED", "IRQ/S", "GUESTS"]);
    let mut guests = Table::new(&["NODE", "GUEST", "VCPUS", "BUSY", "MEMORY"]);
    let mut guest_count = 0;
    for node in nodes {
        let id = node.id.as_u32();
        let Some(load) = &node.load else {
            let silent = ["?", "?", "?", "?", "?"].map(str::to_owned);
            all.row(
                [id.to_string(), node.name.clone(), node.cpus.clone()].into_iter().chain(silent),
            );
            continue;
        };
        // another boot of the node counts from 0 again
        let then = before.get(&id).filter(|then| then.uptime_ms < load.uptime_ms);
        let since = then.cloned().unwrap_or_default();
        let past_ms = load.uptime_ms.saturating_sub(since.uptime_ms).max(1);
        let busy = load.cpu_busy_ms.saturating_sub(since.cpu_busy_ms);
        let idle = load.cpu_idle_ms.saturating_sub(since.cpu_idle_ms);
        all.row([
            id.to_string(),
            node.name.clone(),
            node.cpus.clone(),
            percent(busy, busy + idle),
            mib(load.memory_bytes),
            mib(load.memory_bytes.saturating_sub(load.memory_available_bytes)),
            (load.interrupts.saturating_sub(since.interrupts) * 1000 / past_ms).to_string(),
            load.guests.len().to_string(),
        ]);
        for guest in &load.guests {
            let then = since.guests.iter().find(|then| then.name == guest.name);
            let ran = guest.cpu_ms.saturating_sub(then.map_or(0, |then| then.cpu_ms));
            guests.row(guest_row(&node.name, guest, percent(ran, past_ms)));
            guest_count += 1;
        }
    }
    let mut text = all.text();
    if guest_count > 0 {
        text.push('\n');
        text.push_str(&guests.text());
    }
    text.trim_end().to_owned()
}

fn guest_row(node: &str, guest: &GuestLoad, busy: String) -> [String; 5] {
    let vcpus = guest.vcpus.to_string();
    [node.to_owned(), guest.name.clone(), vcpus, busy, mib(guest.memory_bytes)]
}

fn mib(bytes: u64) -> String {
    format!("{}M", bytes / MIB)
}

fn percent(part: u64, whole: u64) -> String {
    format!("{}%", part * 100 / whole.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mint_types::NodeId;

    fn node(id: u32, load: Option<Load>) -> NodeLoad {
        NodeLoad { id: NodeId::new(id).unwrap(), name: format!("n{id}"), cpus: "2-3".into(), load }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let guest = |cpu_ms| GuestLoad { name: "g".into(), vcpus: 1, memory_bytes: MIB, cpu_ms };
        let first = Load {
            uptime_ms: 10_000,
            cpu_busy_ms: 1000,
            cpu_idle_ms: 9000,
            memory_bytes: 100 * MIB,
            memory_available_bytes: 40 * MIB,
            interrupts: 1000,
            guests: vec![guest(100)],
        };
        let second = Load {
            uptime_ms: 12_000,
            cpu_busy_ms: 2000,
            cpu_idle_ms: 10_000,
            interrupts: 5000,
            guests: vec![guest(1100)],
            ..first.clone()
        };
        let text = tables(&[node(1, Some(first.clone())), node(2, None)], &BTreeMap::new());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].split_whitespace().eq(["1", "n1", "2-3", "10%", "100M", "60M", "100", "1"])
        );
        assert!(lines[2].split_whitespace().eq(["2", "n2", "2-3", "?", "?", "?", "?", "?"]));
        let text = tables(&[node(1, Some(second))], &BTreeMap::from([(1, first)]));
        let lines: Vec<&str> = text.lines().collect();
        let fields = ["1", "n1", "2-3", "50%", "100M", "60M", "2000", "1"];
        assert!(lines[1].split_whitespace().eq(fields), "{text}");
        assert!(lines[4].split_whitespace().eq(["n1", "g", "1", "50%", "1M"]), "{text}");
    }
}
