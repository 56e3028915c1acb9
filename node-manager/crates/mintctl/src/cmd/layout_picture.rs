// SPDX-License-Identifier: Apache-2.0
//! A node's NUMA nodes as bars of their memory, coloured by guest.

use std::fmt::Write;

use mint_api::{NodeLayout, NumaView};
use mint_types::format_bytes;

use crate::svg::{COLOURS, escaped};

const LEFT: f64 = 110.0;
const WIDTH: f64 = 600.0;
const BAR: f64 = 28.0;
const ROW: f64 = 56.0;
const TOP: f64 = 40.0;
const FREE: &str = "#eeeeee";

/// Bars of all NUMA nodes on the same scale; below each the vCPUs that run there.
pub fn picture(layout: &NodeLayout) -> String {
    let most = layout.numa.iter().map(all_bytes).max().unwrap_or(0).max(1);
    let mut body = String::new();
    let title = escaped(&format!("guests of {} on its NUMA nodes", layout.node_name));
    _ = writeln!(body, "<text x=\"8\" y=\"22\">{title}</text>");
    for (row, numa) in layout.numa.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let cpus: Vec<String> = numa.caches.iter().map(ToString::to_string).collect();
        let label = escaped(&format!("numa{} ({})", numa.numa, cpus.join(" | ")));
        _ = writeln!(body, "<text x=\"8\" y=\"{:.0}\">{label}</text>", y + BAR * 0.7);
        let mut x = LEFT;
        let scale = |bytes: u64| WIDTH * bytes as f64 / most as f64;
        for (at, vm) in layout.vms.iter().enumerate() {
            let here = vm.memory.iter().filter(|one| one.numa == numa.numa);
            let bytes: u64 = here.map(|one| one.bytes).sum();
            if bytes > 0 {
                let text = format!("{}: {}", vm.name, format_bytes(bytes));
                bar(&mut body, (x, y), scale(bytes), COLOURS[1 + at % (COLOURS.len() - 1)], &text);
                x += scale(bytes);
            }
        }
        let text = format!("free: {}", format_bytes(numa.free_bytes));
        bar(&mut body, (x, y), scale(numa.free_bytes), FREE, &text);
        let vcpus = layout.vms.iter().flat_map(|vm| {
            let here = vm.vcpus.iter().filter(|vcpu| vcpu.numa == numa.numa);
            here.map(|vcpu| format!("{}/{}", vm.name, vcpu.vcpu))
        });
        let vcpus = escaped(&vcpus.collect::<Vec<_>>().join(" "));
        let below = y + BAR + 15.0;
        _ = writeln!(
            body,
            "<text x=\"{LEFT:.0}\" y=\"{below:.0}\" font-size=\"11\">{vcpus}</text>"
        );
    }
    let height = TOP + ROW * layout.numa.len() as f64;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        LEFT + WIDTH + 20.0
    )
}

fn all_bytes(numa: &NumaView) -> u64 {
    numa.free_bytes.saturating_add(numa.guests_bytes)
}

fn bar(body: &mut String, (x, y): (f64, f64), width: f64, fill: &str, title: &str) {
    _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\" \
         stroke=\"#404040\"><title>{}</title></rect>",
        escaped(title)
    );
}

#[cfg(test)]
mod tests {
    use mint_api::{KeptBy, NumaMemory, VcpuLayout, VmLayout};
    use mint_types::NodeId;

    use super::*;

    #[test]
    fn bars_are_as_long_as_memory_is_large() {
        let numa = |numa, guests_mib: u64, free_mib: u64| NumaView {
            numa,
            caches: vec!["0".parse().unwrap()],
            free_bytes: free_mib << 20,
            guests_bytes: guests_mib << 20,
            distances: vec![10, 20],
        };
        let vcpu = VcpuLayout {
            vcpu: 0,
            cpu: 0,
            numa: 2,
            allowed: "0".parse().unwrap(),
            kept_by: KeptBy::Nobody,
            samples: vec![],
        };
        let layout = NodeLayout {
            node: NodeId::new(1).unwrap(),
            node_name: "a&b".into(),
            numa: vec![numa(0, 256, 768), numa(2, 0, 512)],
            vms: vec![VmLayout {
                name: "web".into(),
                uuid: "u".into(),
                is_fixed: false,
                vcpus: vec![vcpu],
                memory: vec![NumaMemory { numa: 0, bytes: 256 << 20 }],
                near_bytes: 0,
                reason: None,
            }],
            undo_from_s: None,
            measured: None,
        };
        let text = picture(&layout);
        let bars: Vec<&str> = text.lines().filter(|line| line.contains("<title>")).collect();
        assert_eq!(bars.len(), 3, "{text}");
        assert!(
            bars[0].contains("x=\"110.0\" y=\"40.0\" width=\"150.0\"")
                && bars[0].contains("web: 256M")
        );
        assert!(
            bars[1].contains("x=\"260.0\" y=\"40.0\" width=\"450.0\"")
                && bars[1].contains("free: 768M")
        );
        assert!(bars[2].contains("x=\"110.0\" y=\"96.0\" width=\"300.0\""), "{text}");
        assert!(text.contains("a&amp;b") && text.contains(">web/0<"));
    }
}
