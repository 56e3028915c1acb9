// SPDX-License-Identifier: Apache-2.0
//! From the kernel's numbers to types, checked.

use mint_types::{
    Bdf, Kind, NodeId, NodeState, NodeStatus, ResState, Resource, ResourceFlags, ResourceKey,
};

use crate::error::SysError;
use crate::uapi;

pub(crate) fn kind_number(kind: Kind) -> u32 {
    match kind {
        Kind::Cpu => uapi::KIND_CPU,
        Kind::Memory => uapi::KIND_MEM,
        Kind::Device => uapi::KIND_PCI,
    }
}

pub(crate) fn node_state(call: &'static str, number: u32) -> Result<NodeState, SysError> {
    Ok(match number {
        0 => NodeState::Unused,
        1 => NodeState::Stopped,
        2 => NodeState::Loaded,
        3 => NodeState::Starting,
        4 => NodeState::Running,
        5 => NodeState::Halted,
        6 => NodeState::Reboot,
        7 => NodeState::Crashed,
        8 => NodeState::Killed,
        9 => NodeState::Loading,
        _ => return Err(SysError::Answer { call, field: "state", value: number.into() }),
    })
}

pub(crate) fn node_id(
    call: &'static str,
    field: &'static str,
    number: u32,
) -> Result<NodeId, SysError> {
    NodeId::new(number).map_err(|_| SysError::Answer { call, field, value: number.into() })
}

fn maybe_node(
    call: &'static str,
    field: &'static str,
    number: u32,
) -> Result<Option<NodeId>, SysError> {
    if number == uapi::NODE_NONE || number == uapi::NODE_ANY {
        return Ok(None);
    }
    node_id(call, field, number).map(Some)
}

/// Text of a field that ends with the first NUL. What is not UTF-8, or a
/// control character (a dying kernel wrote it), is replaced.
pub(crate) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned()
}

pub(crate) fn node_status(node: &uapi::Node) -> Result<NodeStatus, SysError> {
    let call = "MINT_IOC_NODE_GET";
    Ok(NodeStatus {
        id: node_id(call, "node", node.node)?,
        name: text(&node.name),
        state: node_state(call, node.state)?,
        boots: node.boots,
        heartbeat: node.heartbeat,
        state_change_ns: node.state_change_ns,
        cpus_online: node.cpus_online,
        boot_cpu: (node.boot_cpu != uapi::NODE_ANY).then_some(node.boot_cpu),
        memory_bytes: node.memory_bytes,
        release: text(&node.release),
        reason: text(&node.reason),
    })
}

pub(crate) fn resource(kind: Kind, entry: &uapi::ResourceEntry) -> Result<Resource, SysError> {
    let call = "MINT_IOC_RESOURCES";
    if entry.kind != kind_number(kind) {
        return Err(SysError::Answer { call, field: "kind", value: entry.kind.into() });
    }
    let state = match entry.state {
        0 => ResState::Absent,
        1 => ResState::Free,
        2 => ResState::Owned,
        3 => ResState::Moving,
        _ => return Err(SysError::Answer { call, field: "state", value: entry.state.into() }),
    };
    let has = |flag: u32| entry.flags & flag != 0;
    let is_vf = kind == Kind::Device && has(uapi::RESF_VF);
    let physfn = u32::try_from(entry.phys).ok().filter(|_| is_vf);
    Ok(Resource {
        key: ResourceKey { kind, id: entry.id },
        state,
        owner: maybe_node(call, "owner", entry.owner)?,
        target: maybe_node(call, "target", entry.target)?,
        numa: (entry.numa != uapi::NODE_NONE && entry.numa != uapi::NODE_ANY).then_some(entry.numa),
        flags: ResourceFlags {
            boot: has(uapi::RESF_BOOT_CPU),
            bridge: has(uapi::RESF_BRIDGE),
            platform: has(uapi::RESF_LEGACY),
            msi: has(uapi::RESF_MSI),
            msix: has(uapi::RESF_MSIX),
            flr: has(uapi::RESF_FLR),
            parked: has(uapi::RESF_PARKED),
            vf: is_vf,
            fenced: kind == Kind::Cpu && has(uapi::RESF_FENCED),
        },
        changes: entry.changes,
        hw_id: entry.hw_id,
        hw_class: entry.hw_class,
        phys: entry.phys,
        physfn: physfn.map(Bdf::from_ledger_id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_of_a_dying_kernel_are_made_printable() {
        assert_eq!(text(b"panic\n: \x1b[31mbad\xff\0junk"), "panic :  [31mbad\u{fffd}");
        assert_eq!(text(&[b'a'; 4]), "aaaa");
    }

    #[test]
    fn unknown_state_is_an_error() {
        let entry = uapi::ResourceEntry { state: 9, ..Default::default() };
        assert!(matches!(resource(Kind::Cpu, &entry), Err(SysError::Answer { .. })));
        assert!(node_state("x", 77).is_err());
    }

    #[test]
    fn virtual_function_names_its_physical_one() {
        let entry = uapi::ResourceEntry { kind: uapi::KIND_PCI, state: 2, ..Default::default() };
        assert_eq!(resource(Kind::Device, &entry).unwrap().physfn, None);
        let entry = uapi::ResourceEntry { flags: uapi::RESF_VF, phys: 0x600, ..entry };
        let function = resource(Kind::Device, &entry).unwrap();
        assert!(function.flags.vf);
        assert_eq!(function.physfn.unwrap().to_string(), "0000:06:00.0");
    }

    #[test]
    fn owner_beyond_the_table_is_an_error() {
        let entry = uapi::ResourceEntry { state: 2, owner: 0x100, ..Default::default() };
        assert!(resource(Kind::Cpu, &entry).is_err());
        let entry = uapi::ResourceEntry { state: 1, owner: uapi::NODE_NONE, target: 0xff, ..entry };
        assert_eq!(resource(Kind::Cpu, &entry).unwrap().owner, None);
    }
}
