// SPDX-License-Identifier: Apache-2.0
//! `mintctl vm memory --svg`: where each part of a guest's memory is, and how lately it was used.

use std::fmt::Write;
use std::path::Path;

use mint_api::{VmMemoryCell, VmMemoryMap};
use mint_types::format_bytes;

use super::context::{Context, Outcome};
use crate::output::print_json;
use crate::svg::{COLOURS, escaped, picture, square, write};

const UNTOUCHED: &str = "#ffffff";
/// Sides, in pixels.
const CELL: u32 = 12;
const MARGIN: u32 = 16;
const LINE: u32 = 20;
/// Cells in a row.
const COLUMNS: u32 = 64;

/// Writes the picture.
pub async fn run(context: &Context, path: &str, file: &Path) -> Outcome {
    let map: VmMemoryMap = context.client.get(path).await?;
    write(file, &svg(&map))?;
    if context.json {
        print_json(&map)?;
    }
    Ok(0)
}

/// Number of who has most of a cell: 0 is the main host, then the others; none: nobody has touched
/// it.
fn owner(cell: &VmMemoryCell) -> Option<u32> {
    let others = cell.elsewhere.iter().map(|share| (share.bytes, share.host.saturating_add(1)));
    let most = others.chain([(cell.here_bytes, 0)]).max_by_key(|(bytes, _)| *bytes);
    most.filter(|(bytes, _)| *bytes > 0).map(|(_, host)| host)
}

fn colour(host: u32) -> &'static str {
    // not grey, which is no colour of its own
    COLOURS[1 + host as usize % (COLOURS.len() - 1)]
}

fn words(map: &VmMemoryMap, number: u32, cell: &VmMemoryCell) -> String {
    let at = u64::from(number).saturating_mul(map.cell_bytes);
    let mut text =
        format!("at {}: {} on {}", format_bytes(at), format_bytes(cell.here_bytes), map.node_name);
    for share in &cell.elsewhere {
        let host = map.hosts.get(share.host as usize).map_or("?", String::as_str);
        _ = write!(text, ", {} on {host}", format_bytes(share.bytes));
    }
    _ = write!(text, ", {} untouched; heat {}", format_bytes(cell.untouched_bytes), cell.heat);
    text
}

fn svg(map: &VmMemoryMap) -> String {
    let mut body = String::new();
    let mut top = MARGIN + LINE;
    let title = format!(
        "vm {}: {} a square, from left to right; the larger the dark part, the later it was used",
        map.name,
        format_bytes(map.cell_bytes)
    );
    _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{MARGIN}\">{}</text>", escaped(&title));
    for (number, cell) in (0_u32..).zip(&map.cells) {
        let at = (MARGIN + number % COLUMNS * CELL, top + number / COLUMNS * CELL);
        let fill = owner(cell).map_or(UNTOUCHED, colour);
        square(&mut body, at, CELL - 2, fill, &words(map, number, cell));
        // the hotter, the larger
        let side = u32::from(cell.heat.min(8));
        if side > 0 {
            let inset = (CELL - 2 - side) / 2;
            let (x, y) = (at.0 + inset, at.1 + inset);
            _ = writeln!(
                body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" fill=\"#202020\" pointer-events=\"none\"/>"
            );
        }
    }
    let cells = u32::try_from(map.cells.len()).unwrap_or(u32::MAX);
    top += cells.div_ceil(COLUMNS) * CELL + LINE / 2;
    let mut left = MARGIN;
    let main = (colour(0), format!("{} (main)", map.node_name));
    let hosts = (1_u32..).zip(&map.hosts).map(|(host, name)| (colour(host), name.clone()));
    let legend = std::iter::once(main).chain(hosts).chain([(UNTOUCHED, "untouched".to_owned())]);
    for (fill, name) in legend {
        square(&mut body, (left, top), CELL - 2, fill, &name);
        let (x, y) = (left + LINE, top + CELL - 2);
        _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(&name));
        left += LINE + 9 * u32::try_from(name.chars().count()).unwrap_or(0) + MARGIN;
    }
    picture((left.max(2 * MARGIN + COLUMNS * CELL), top + LINE + MARGIN), &body)
}

#[cfg(test)]
mod tests {
    use mint_api::VmMemoryShare;

    use super::*;

    fn map() -> VmMemoryMap {
        let share = |host, bytes| VmMemoryShare { host, bytes };
        let cell = |here_bytes, elsewhere, heat| VmMemoryCell {
            untouched_bytes: 4096,
            here_bytes,
            elsewhere,
            heat,
        };
        VmMemoryMap {
            name: "a<b".into(),
            node_name: "one".into(),
            hosts: vec!["two".into(), "node0".into()],
            cell_bytes: 64 << 10,
            cells: vec![
                cell(61440, Vec::new(), 8),
                cell(4096, vec![share(0, 8192), share(1, 49152)], 3),
                cell(0, Vec::new(), 0),
            ],
        }
    }

    #[test]
    fn each_square_has_the_colour_of_who_has_most_and_tells_the_rest() {
        let map = map();
        assert_eq!(map.cells.iter().map(owner).collect::<Vec<_>>(), [Some(0), Some(2), None]);
        assert_eq!(
            words(&map, 1, &map.cells[1]),
            "at 64K: 4K on one, 8K on two, 48K on node0, 4K untouched; heat 3"
        );
        let picture = svg(&map);
        // three cells; three hosts, untouched
        assert_eq!(picture.matches("<title>").count(), 3 + 4, "{picture}");
        assert_eq!(picture.matches(&format!("fill=\"{}\"", colour(2))).count(), 1 + 1);
        assert_eq!(picture.matches("fill=\"#202020\"").count(), 2, "what is hot at all");
        assert!(picture.contains("vm a&lt;b: 64K a square"));
    }
}
