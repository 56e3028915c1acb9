// SPDX-License-Identifier: Apache-2.0
//! `mintctl map`: the machine, and who owns what of it, as a picture.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use mint_api::{CpuList, DeviceList, DeviceView, MemoryList, ResourceView};
use serde_json::json;

use super::context::{Context, Outcome};
use crate::output::{print, print_json};
use crate::svg::{COLOURS, escaped, picture, square, write};

const FREE: &str = "#ffffff";
const MOVING: &str = "#000000";
/// Sides, in pixels.
const CORE: u32 = 34;
const BLOCK: u32 = 12;
const LINE: u32 = 20;
const MARGIN: u32 = 16;
const BOX_WIDTH: u32 = 34 * BLOCK;

/// All that is drawn.
struct Machine {
    cpus: Vec<ResourceView>,
    memory: Vec<ResourceView>,
    devices: Vec<DeviceView>,
}

/// What is on one NUMA node.
#[derive(Default)]
struct Place<'a> {
    cpus: Vec<&'a ResourceView>,
    memory: Vec<&'a ResourceView>,
    devices: Vec<&'a DeviceView>,
}

/// Prints the picture, or writes it to a file.
pub async fn run(context: &Context, as_svg: bool, output: Option<&Path>) -> Outcome {
    let cpus: CpuList = context.client.get("/v1/cpus").await?;
    let memory: MemoryList = context.client.get("/v1/memory").await?;
    let devices: DeviceList = context.client.get("/v1/devices").await?;
    if context.json {
        print_json(&json!({
            "cpus": cpus.cpus, "memory": memory.memory, "devices": devices.devices
        }))?;
        return Ok(0);
    }
    let machine = Machine { cpus: cpus.cpus, memory: memory.memory, devices: devices.devices };
    let picture = if as_svg { machine.svg() } else { machine.text() };
    match output {
        Some(path) => write(path, &picture)?,
        None => print(picture.trim_end())?,
    }
    Ok(0)
}

/// One sign for an owner: its id, `.` for nobody, `?` for a resource that is being moved.
fn sign(resource: &ResourceView) -> String {
    match (resource.state.as_str(), resource.owner) {
        ("owned", Some(owner)) => char::from_digit(owner, 36).unwrap_or('#').to_string(),
        ("free", _) => ".".to_owned(),
        _ => "?".to_owned(),
    }
}

fn colour(resource: &ResourceView) -> &'static str {
    match (resource.state.as_str(), resource.owner) {
        ("owned", Some(owner)) => COLOURS[owner as usize % COLOURS.len()],
        ("free", _) => FREE,
        _ => MOVING,
    }
}

fn owner(resource: &ResourceView) -> String {
    match (&resource.owner_name, resource.state.as_str()) {
        (Some(name), "owned") => name.clone(),
        (Some(name), state) => format!("{state} ({name})"),
        (None, state) => state.to_owned(),
    }
}

impl Machine {
    /// Everything but bridges and the platform, by NUMA node of the machine.
    fn by_numa(&self) -> BTreeMap<u32, Place<'_>> {
        let mut places: BTreeMap<u32, Place<'_>> = BTreeMap::new();
        for cpu in &self.cpus {
            places.entry(cpu.numa.unwrap_or(0)).or_default().cpus.push(cpu);
        }
        for block in &self.memory {
            places.entry(block.numa.unwrap_or(0)).or_default().memory.push(block);
        }
        for device in self.devices.iter().filter(|device| !device.bridge && !device.platform) {
            places.entry(device.resource.numa.unwrap_or(0)).or_default().devices.push(device);
        }
        places
    }

    /// Owners by id.
    fn owners(&self) -> BTreeMap<u32, String> {
        let devices = self.devices.iter().map(|device| &device.resource);
        self.cpus
            .iter()
            .chain(&self.memory)
            .chain(devices)
            .filter_map(|resource| Some((resource.owner?, resource.owner_name.clone()?)))
            .collect()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (numa, Place { cpus, memory, devices }) in self.by_numa() {
            let cores: Vec<String> =
                cpus.iter().map(|cpu| format!("{}:{}", cpu.id, sign(cpu))).collect();
            let blocks: String = memory.iter().map(|block| sign(block)).collect();
            _ = writeln!(text, "numa{numa}\n  cpus     {}", cores.join(" "));
            _ = writeln!(text, "  memory   {blocks}");
            for device in devices {
                let (name, sign) = (&device.class_name, sign(&device.resource));
                _ = writeln!(text, "  device   {} {name}: {sign}", device.bdf);
            }
        }
        let names: Vec<String> = self
            .owners()
            .iter()
            .map(|(id, name)| format!("{} {name}", char::from_digit(*id, 36).unwrap_or('#')))
            .collect();
        _ = writeln!(text, "{}, . free, ? being moved", names.join(", "));
        text
    }

    fn svg(&self) -> String {
        let mut body = String::new();
        let mut left = MARGIN;
        let mut bottom = 0;
        for (numa, Place { cpus, memory, devices }) in self.by_numa() {
            let mut top = MARGIN + LINE;
            _ = writeln!(body, "<text x=\"{left}\" y=\"{top}\">numa{numa}</text>");
            top += LINE / 2;
            top = grid(&mut body, &cpus, (left, top), CORE, |cpu| {
                (cpu.id.to_string(), format!("cpu {}: {}", cpu.id, owner(cpu)))
            });
            top = grid(&mut body, &memory, (left, top), BLOCK, |block| {
                let phys = block.phys.unwrap_or(0);
                (String::new(), format!("memory at {phys:#x}: {}", owner(block)))
            });
            for device in devices {
                let text =
                    format!("{} {}: {}", device.bdf, device.class_name, owner(&device.resource));
                square(&mut body, (left, top), BLOCK, colour(&device.resource), &text);
                let (x, y) = (left + LINE, top + BLOCK - 1);
                _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(&text));
                top += LINE;
            }
            bottom = bottom.max(top);
            left += BOX_WIDTH + MARGIN;
        }
        let mut x = MARGIN;
        let legend = self
            .owners()
            .into_iter()
            .map(|(id, name)| (COLOURS[id as usize % COLOURS.len()], name))
            .chain([(FREE, "free".to_owned()), (MOVING, "being moved".to_owned())]);
        for (colour, name) in legend {
            square(&mut body, (x, bottom), BLOCK, colour, &name);
            let (text_x, y) = (x + LINE, bottom + BLOCK - 1);
            _ = writeln!(body, "<text x=\"{text_x}\" y=\"{y}\">{}</text>", escaped(&name));
            x += LINE + 9 * u32::try_from(name.chars().count()).unwrap_or(0) + MARGIN;
        }
        picture((left.max(x), bottom + LINE + MARGIN), &body)
    }
}

/// Squares in rows as wide as a NUMA node's box; gives where the next thing begins.
fn grid(
    body: &mut String,
    resources: &[&ResourceView],
    (left, top): (u32, u32),
    side: u32,
    words: impl Fn(&ResourceView) -> (String, String),
) -> u32 {
    let columns = BOX_WIDTH / side;
    let mut rows = 0;
    for (index, resource) in (0u32..).zip(resources) {
        let (x, y) = (left + index % columns * side, top + index / columns * side);
        let (label, title) = words(resource);
        square(body, (x, y), side - 2, colour(resource), &title);
        if !label.is_empty() {
            let (x, y) = (x + side / 4, y + side / 2 + 3);
            _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\">{label}</text>");
        }
        rows = index / columns + 1;
    }
    top + rows * side + LINE / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(kind: &str, id: u32, numa: u32, owner: Option<(u32, &str)>) -> ResourceView {
        ResourceView {
            kind: kind.into(),
            id,
            state: if owner.is_some() { "owned" } else { "free" }.into(),
            owner: owner.map(|(id, _)| id),
            owner_name: owner.map(|(_, name)| name.into()),
            target: None,
            numa: Some(numa),
            flags: Vec::new(),
            changes: 0,
            apic_id: None,
            package: None,
            core: None,
            phys: Some(u64::from(id) << 27),
            bytes: Some(1 << 27),
        }
    }

    fn machine() -> Machine {
        let zero = Some((0, "node0"));
        let web = Some((1, "web"));
        let device = |bdf: &str, bridge, owner| DeviceView {
            resource: resource("device", 0, 1, owner),
            bdf: bdf.into(),
            class: "010000".into(),
            class_name: "disk".into(),
            vendor: "1af4".into(),
            device: "1042".into(),
            driver: None,
            physfn: None,
            msi: true,
            bridge,
            platform: false,
        };
        let mut moving = resource("memory", 3, 1, web);
        moving.state = "moving".into();
        Machine {
            cpus: vec![resource("cpu", 0, 0, zero), resource("cpu", 1, 1, web)],
            memory: vec![
                resource("memory", 0, 0, zero),
                resource("memory", 1, 0, None),
                resource("memory", 2, 1, web),
                moving,
            ],
            devices: vec![device("0000:00:01.0", true, zero), device("0000:02:00.0", false, web)],
        }
    }

    #[test]
    fn text_has_a_sign_for_each_resource() {
        let want = "numa0\n  cpus     0:0\n  memory   0.\n\
                    numa1\n  cpus     1:1\n  memory   1?\n  device   0000:02:00.0 disk: 1\n\
                    0 node0, 1 web, . free, ? being moved\n";
        assert_eq!(machine().text(), want);
    }

    #[test]
    fn picture_has_a_square_for_each_resource_and_each_owner() {
        let picture = machine().svg();
        // two cores, four blocks, one function; two owners, free, moving
        assert_eq!(picture.matches("<title>").count(), 7 + 4, "{picture}");
        assert_eq!(picture.matches(COLOURS[1]).count(), 3 + 1);
        assert!(picture.contains("<title>cpu 1: web</title>"));
        assert!(!picture.contains("00:01.0"), "bridges are left out");
        let opened = picture.matches("<rect").count();
        assert_eq!(opened, picture.matches("</rect>").count() + 1, "the background closes itself");
    }
}
