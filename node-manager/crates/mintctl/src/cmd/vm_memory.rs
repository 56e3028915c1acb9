// SPDX-License-Identifier: Apache-2.0
//! `mintctl vm memory`: where the memory of a guest is.

use std::time::Duration;

use mint_api::{VmMemory, VmMemoryHost};
use mint_types::format_bytes;

use super::context::{Context, Outcome};
use crate::output::{Table, print, print_json};

const EVERY: Duration = Duration::from_secs(1);

/// Once, or again each second until it ends by a signal or the guest does.
pub async fn run(context: &Context, path: &str, watch: bool) -> Outcome {
    let mut before: Option<VmMemory> = None;
    loop {
        let now: VmMemory = context.client.get(path).await?;
        if context.json {
            print_json(&now)?;
        } else {
            match &before {
                None => whole(&now)?,
                Some(before) => print(&since(before, &now))?,
            }
        }
        if !watch {
            return Ok(0);
        }
        before = Some(now);
        tokio::time::sleep(EVERY).await;
    }
}

fn whole(memory: &VmMemory) -> Result<(), crate::failure::Failure> {
    let mut table = Table::new(&["HOST", "HAS", "MAY HAVE", "CHUNKS", "COPY", "STATE"]);
    let here = memory.here_bytes + memory.leaving_bytes;
    table.row([
        format!("{} (main)", memory.node_name),
        format_bytes(here),
        format_bytes(memory.main_bytes),
        "-".to_owned(),
        "-".to_owned(),
        "runs it".to_owned(),
    ]);
    for host in &memory.hosts {
        table.row(row(host, memory.chunk_bytes));
    }
    table.print()?;
    Ok(words(memory).iter().try_for_each(|line| print(line))?)
}

fn row(host: &VmMemoryHost, chunk_bytes: u64) -> [String; 6] {
    [
        host.node.clone(),
        // a chunk may be there in part
        format!("<= {}", format_bytes(host.chunks.saturating_mul(chunk_bytes))),
        format_bytes(host.limit_bytes),
        host.chunks.to_string(),
        copy(host),
        if host.is_connected { "connected" } else { "no connection" }.to_owned(),
    ]
}

/// Which node has the same, and how much it may lack.
fn copy(host: &VmMemoryHost) -> String {
    match (&host.mirror, host.mirror_behind_bytes) {
        (None, _) => "none".to_owned(),
        (Some(node), Some(0)) => node.clone(),
        (Some(node), Some(bytes)) => format!("{node}, without {}", format_bytes(bytes)),
        (Some(node), None) => format!("{node}?"),
    }
}

fn words(memory: &VmMemory) -> Vec<String> {
    let VmMemory { name, faults, page_ins, page_outs, prefetches, .. } = memory;
    let used = match memory.used_bytes {
        Some(bytes) => format!("{} used lately", format_bytes(bytes)),
        None => "nothing is known of its use".to_owned(),
    };
    let mut lines = vec![
        format!(
            "vm {name}: {} of {} are elsewhere, {} untouched; {used}; policy {}",
            format_bytes(memory.elsewhere_bytes + memory.coming_bytes),
            format_bytes(memory.memory_bytes),
            format_bytes(memory.untouched_bytes),
            memory.policy
        ),
        format!(
            "{faults} faults, {page_ins} pages came ({prefetches} chunks before they were asked for), \
             {page_outs} went since its pager began"
        ),
    ];
    if memory.lost_bytes > 0 {
        lines.push(format!(
            "{} are lost: the guest waits for them for ever; end it with mintctl vm destroy",
            format_bytes(memory.lost_bytes)
        ));
    }
    lines
}

/// What has happened; nothing of a pager before this one.
fn since(before: &VmMemory, now: &VmMemory) -> String {
    let more = |of: fn(&VmMemory) -> u64| of(now).saturating_sub(of(before));
    let waits = more(|memory| memory.waits);
    let each_us = more(|memory| memory.waited_ns).checked_div(waits).unwrap_or(0) / 1000;
    format!(
        "{} faults, {waits} waited {each_us} us for their page; {} pages came, {} went; {} here, {} elsewhere",
        more(|memory| memory.faults),
        more(|memory| memory.page_ins),
        more(|memory| memory.page_outs),
        format_bytes(now.here_bytes + now.leaving_bytes),
        format_bytes(now.elsewhere_bytes + now.coming_bytes)
    )
}

#[cfg(test)]
mod tests {
    use mint_types::{NodeId, PagingPolicy};

    use super::*;

    fn memory() -> VmMemory {
        let host = VmMemoryHost {
            node: "node2".into(),
            limit_bytes: 768 << 20,
            chunks: 16,
            is_connected: false,
            mirror: None,
            mirror_behind_bytes: None,
        };
        VmMemory {
            name: "big".into(),
            uuid: "u".into(),
            node: NodeId::new(1).unwrap(),
            node_name: "one".into(),
            memory_bytes: 1 << 30,
            main_bytes: 256 << 20,
            chunk_bytes: 64 << 10,
            policy: PagingPolicy::Aging,
            used_bytes: Some(100 << 20),
            untouched_bytes: 512 << 20,
            here_bytes: 255 << 20,
            leaving_bytes: 1 << 20,
            elsewhere_bytes: 255 << 20,
            coming_bytes: 1 << 20,
            faults: 10,
            page_ins: 20,
            page_outs: 30,
            prefetches: 4,
            waits: 7,
            waited_ns: 1_000,
            lost_bytes: 0,
            hosts: vec![host],
        }
    }

    #[test]
    fn people_read_where_it_is_and_what_is_lost() {
        let memory = memory();
        assert_eq!(
            row(&memory.hosts[0], memory.chunk_bytes),
            ["node2", "<= 1M", "768M", "16", "none", "no connection"]
        );
        let copies = |behind: Option<u64>| {
            let mirror = Some("node0".to_owned());
            copy(&VmMemoryHost { mirror, mirror_behind_bytes: behind, ..memory.hosts[0].clone() })
        };
        assert_eq!(
            [None, Some(0), Some(8192)].map(copies),
            ["node0?", "node0", "node0, without 8K"]
        );
        assert_eq!(
            words(&memory),
            [
                "vm big: 256M of 1G are elsewhere, 512M untouched; 100M used lately; policy aging",
                "10 faults, 20 pages came (4 chunks before they were asked for), 30 went since its \
                 pager began"
            ]
        );
        let blind = VmMemory { used_bytes: None, ..memory.clone() };
        assert!(words(&blind)[0].ends_with("; nothing is known of its use; policy aging"));
        let lost = VmMemory { lost_bytes: 4096, ..memory.clone() };
        assert!(words(&lost)[2].starts_with("4K are lost"));
        let later =
            VmMemory { faults: 12, page_ins: 5, waits: 9, waited_ns: 90_000, ..memory.clone() };
        assert_eq!(
            since(&memory, &later),
            "2 faults, 2 waited 44 us for their page; 0 pages came, 0 went; 256M here, 256M elsewhere"
        );
    }
}
