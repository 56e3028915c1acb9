// SPDX-License-Identifier: Apache-2.0
//! How far memory of NUMA nodes is, in words.

use std::collections::BTreeSet;

use mint_api::{MeasureResult, NumaMeasured, NumaPair};
use mint_types::format_bytes;

use crate::output::{Table, time};

/// What a node's distances are from.
pub fn shown(measured: Option<&NumaMeasured>) -> String {
    match measured {
        None => "distances: the kernel's table".to_owned(),
        Some(measured) => format!(
            "distances: measured {}\n\n{}",
            time(measured.at_s),
            matrix(measured).join("\n")
        ),
    }
}

/// What was measured, or that it was forgotten.
pub fn result(done: &MeasureResult) -> Vec<String> {
    let Some(measured) = &done.measured else {
        return vec![format!("node {}: layout plans go by the kernel's table", done.node)];
    };
    let mut lines = matrix(measured);
    lines.push(format!("node {}: layout plans go by this from now on", done.node));
    lines
}

/// A line for each NUMA node with CPUs, a column for each one with memory.
fn matrix(measured: &NumaMeasured) -> Vec<String> {
    let of = |number: fn(&NumaPair) -> u32| -> BTreeSet<u32> {
        measured.pairs.iter().map(number).collect()
    };
    let (cpus, memories) = (of(|one| one.cpus_of), of(|one| one.memory_of));
    let heading: Vec<String> =
        memories.iter().map(|numa| format!("MEMORY OF numa{numa}")).collect();
    let mut names = vec!["CPUS OF"];
    names.extend(heading.iter().map(String::as_str));
    let mut table = Table::new(&names);
    for cpus_of in cpus {
        let cell = |memory_of: &u32| {
            let mut pairs = measured.pairs.iter();
            let found = pairs.find(|one| one.cpus_of == cpus_of && one.memory_of == *memory_of);
            found.map_or_else(
                || "-".to_owned(),
                |one| format!("{:.1} ns, {} MB/s", one.latency_ns, one.read_mb_s),
            )
        };
        table.row(std::iter::once(format!("numa{cpus_of}")).chain(memories.iter().map(cell)));
    }
    let mut lines: Vec<String> = table.text().lines().map(str::to_owned).collect();
    let cached = measured.pairs.iter().filter(|one| one.may_be_cached);
    if let Some(bytes) = cached.map(|one| one.buffer_bytes).min() {
        lines.push(format!(
            "of {} caches may have much: this may be how far they are, not memory",
            format_bytes(bytes)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use mint_types::NodeId;

    use super::*;

    fn measured(may_be_cached: bool) -> NumaMeasured {
        let pair = |cpus_of, memory_of, latency_ns| NumaPair {
            cpus_of,
            memory_of,
            cpu: 2,
            buffer_bytes: 4 << 20,
            may_be_cached,
            latency_ns,
            read_mb_s: 12_000,
        };
        NumaMeasured {
            at_s: 0,
            cpu_model: "EPYC".into(),
            numas: vec![0, 2, 3],
            pairs: vec![pair(0, 0, 80.04), pair(0, 2, 164.5), pair(3, 0, 1000.0)],
        }
    }

    #[test]
    fn matrix_has_a_line_for_cpus_and_a_column_for_memory() {
        let lines = [
            "CPUS OF  MEMORY OF numa0        MEMORY OF numa2",
            "numa0    80.0 ns, 12000 MB/s    164.5 ns, 12000 MB/s",
            "numa3    1000.0 ns, 12000 MB/s  -",
        ];
        assert_eq!(matrix(&measured(false)), lines);
        let said = shown(Some(&measured(true)));
        assert!(said.starts_with("distances: measured 1970-01-01T00:00:00Z\n\nCPUS OF"), "{said}");
        assert!(
            said.ends_with("of 4M caches may have much: this may be how far they are, not memory")
        );
    }

    #[test]
    fn result_says_what_plans_go_by() {
        let node = NodeId::new(2).unwrap();
        let done = MeasureResult { node, measured: Some(measured(false)) };
        let lines = result(&done);
        assert_eq!(
            (lines.len(), lines[3].as_str()),
            (4, "node 2: layout plans go by this from now on")
        );
        let lines = result(&MeasureResult { node, measured: None });
        assert_eq!(lines, ["node 2: layout plans go by the kernel's table"]);
    }
}
