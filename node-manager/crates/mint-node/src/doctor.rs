// SPDX-License-Identifier: Apache-2.0
//! Is the machine in order? Reads only.

use std::collections::{BTreeMap, BTreeSet};

use mint_ops::{BadEntry, Entry};
use mint_sys::SysError;
use mint_types::{Kind, NodeState, RefusalCode, ResState};
use serde::{Deserialize, Serialize};

use crate::facts::IOMMU_OFF;
use crate::machine::Machine;
use mint_plan::Inventory;

/// Outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// In order.
    Ok,
    /// Works, but somebody should look.
    Warn,
    /// Not in order.
    Fail,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Its name: stable.
    pub name: String,
    /// Its outcome.
    pub status: CheckStatus,
    /// What was seen.
    pub detail: String,
}

impl Check {
    /// A check whose faults are known: none means in order.
    pub fn of(name: &str, bad: CheckStatus, faults: &[String], good: String) -> Self {
        Self {
            name: name.into(),
            status: if faults.is_empty() { CheckStatus::Ok } else { bad },
            detail: if faults.is_empty() { good } else { faults.join("; ") },
        }
    }
}

/// Checks of ledger and nodes. `operations` and `bad` are what the journal holds,
/// `online_here` this node's online CPUs as its kernel counts them, if known.
pub fn check_ledger(
    inventory: &Inventory,
    operations: &[Entry],
    bad: &[BadEntry],
    online_here: Option<usize>,
) -> Vec<Check> {
    vec![
        owners(inventory),
        moving(inventory),
        parked(inventory),
        nodes(inventory),
        here(inventory, online_here),
        journal(operations, bad),
    ]
}

/// Whether this node's functions would work on another node: asks its kernel, and changes
/// nothing.
pub fn check_devices(inventory: &Inventory, machine: &dyn Machine) -> Check {
    let here = inventory.info.node;
    let lendable = inventory.of_kind(Kind::Device).iter().filter(|one| {
        let flags = &one.flags;
        one.owner == Some(here) && !flags.bridge && !flags.platform && (flags.msi || flags.msix)
    });
    let mut why: BTreeMap<&str, usize> = BTreeMap::new();
    let mut count = 0;
    for one in lendable {
        count += 1;
        match machine.release(one.key, here, true) {
            Err(SysError::Move { failure, .. })
                if failure.code(Kind::Device) == RefusalCode::DeviceIommu =>
            {
                *why.entry(failure.describe()).or_default() += 1;
            }
            _ => {}
        }
    }
    let faults: Vec<String> = why
        .into_iter()
        .map(|(why, n)| format!("of {count} devices {n} cannot be lent: {why}; {IOMMU_OFF}"))
        .collect();
    let good = format!("no IOMMU between this node's {count} devices and another node");
    Check::of("devices", CheckStatus::Warn, &faults, good)
}

fn owners(inventory: &Inventory) -> Check {
    let mut faults = Vec::new();
    let mut counts = Vec::new();
    for kind in Kind::ALL {
        let all = inventory.of_kind(kind);
        let ids: BTreeSet<u32> = all.iter().map(|resource| resource.key.id).collect();
        if ids.len() != all.len() {
            faults.push(format!("the ledger names a {kind:?} twice"));
        }
        for resource in all {
            match (resource.state, resource.owner) {
                (ResState::Owned, None) => {
                    faults.push(format!("{} is owned by nobody", resource.label(&inventory.info)));
                }
                (ResState::Owned, Some(owner)) if inventory.node(owner).is_none() => {
                    faults.push(format!(
                        "{} is owned by node {owner}, which does not exist",
                        resource.label(&inventory.info)
                    ));
                }
                (ResState::Free, Some(owner)) => faults.push(format!(
                    "{} is free and owned by node {owner} at once",
                    resource.label(&inventory.info)
                )),
                _ => {}
            }
        }
        let free = all.iter().filter(|resource| resource.state == ResState::Free).count();
        counts.push(format!("{} {kind:?} ({free} free)", all.len()).to_lowercase());
    }
    Check::of("ledger", CheckStatus::Fail, &faults, counts.join(", "))
}

fn moving(inventory: &Inventory) -> Check {
    let faults: Vec<String> = Kind::ALL
        .into_iter()
        .flat_map(|kind| inventory.of_kind(kind))
        .filter(|resource| resource.state == ResState::Moving)
        .map(|resource| {
            let owner = resource.owner.map_or("nobody".into(), |owner| inventory.label(owner));
            format!("{} is moving (by {owner})", resource.label(&inventory.info))
        })
        .collect();
    Check::of("moves", CheckStatus::Warn, &faults, "nothing is half way".into())
}

fn parked(inventory: &Inventory) -> Check {
    let faults: Vec<String> = inventory
        .cpus
        .iter()
        .filter(|cpu| !cpu.flags.parked)
        .filter_map(|cpu| match (cpu.state, cpu.owner) {
            (ResState::Free, _) => Some(format!("{} is free but not in the park loop", cpu.key)),
            (ResState::Owned, Some(owner)) => {
                let node = inventory.node(owner)?;
                let dead = matches!(
                    node.state,
                    NodeState::Halted | NodeState::Reboot | NodeState::Crashed | NodeState::Killed
                );
                dead.then(|| {
                    format!(
                        "{} of {} ({}) is not in the park loop",
                        cpu.key,
                        node.label(),
                        node.state
                    )
                })
            }
            _ => None,
        })
        .collect();
    Check::of("park", CheckStatus::Fail, &faults, "cores without a kernel are parked".into())
}

fn nodes(inventory: &Inventory) -> Check {
    let mut faults = Vec::new();
    let mut names = BTreeSet::new();
    for node in &inventory.nodes {
        if !names.insert(node.display_name()) {
            faults.push(format!("two nodes are named {}", node.display_name()));
        }
        match node.state {
            NodeState::Crashed => faults.push(format!("{} crashed: {}", node.label(), node.reason)),
            NodeState::Running if inventory.cpus_of(node.id).is_empty() => {
                faults.push(format!("{} runs and owns no core", node.label()));
            }
            _ => {}
        }
    }
    let count = inventory.nodes.len();
    Check::of("nodes", CheckStatus::Warn, &faults, format!("{count} nodes"))
}

fn here(inventory: &Inventory, online_here: Option<usize>) -> Check {
    let owned = inventory.cpus_of(inventory.info.node).len();
    let mut faults = Vec::new();
    if let Some(online) = online_here.filter(|&online| online != owned) {
        faults.push(format!("{online} CPUs are online here, the ledger gives this node {owned}"));
    }
    Check::of("cpus-here", CheckStatus::Warn, &faults, format!("{owned} CPUs"))
}

fn journal(operations: &[Entry], bad: &[BadEntry]) -> Check {
    let mut faults: Vec<String> = bad
        .iter()
        .map(|BadEntry { path, why }| {
            format!(
                "{} is not understood ({why}): what it changed may be half done; settle it with \
                 the mintd that wrote it, or look at the moves above and remove it",
                path.display()
            )
        })
        .collect();
    let status = if faults.is_empty() { CheckStatus::Warn } else { CheckStatus::Fail };
    let open = operations.iter().filter(|entry| entry.state.is_over());
    faults.extend(open.filter_map(|entry| {
        let steps: Vec<String> =
            entry.open.as_ref()?.steps.iter().map(|step| format!("{step}")).collect();
        let what = if steps.is_empty() { String::new() } else { format!(": {}", steps.join(", ")) };
        Some(format!("{} is not settled{what}; mintctl doctor --repair", entry.label()))
    }));
    let runs = operations.iter().filter(|entry| !entry.state.is_over()).count();
    let good = match runs {
        0 => "nothing is open".to_owned(),
        1 => "1 operation goes on".to_owned(),
        many => format!("{many} operations go on"),
    };
    Check::of("journal", status, &faults, good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;
    use crate::machine::read_ledger;
    use mint_types::{NodeId, ResourceKey};

    fn status<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn machine_in_order_has_no_fault() {
        let inventory = read_ledger(&FakeMachine::new()).unwrap();
        for check in check_ledger(&inventory, &[], &[], Some(6)) {
            assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        }
    }

    #[test]
    fn owner_that_is_no_node_is_a_fault() {
        let mut inventory = read_ledger(&FakeMachine::new()).unwrap();
        inventory.cpus[3].owner = Some(NodeId::new(3).unwrap());
        let checks = check_ledger(&inventory, &[], &[], None);
        assert_eq!(status(&checks, "ledger").status, CheckStatus::Fail);
        assert!(status(&checks, "ledger").detail.contains("cpu 3"));
    }

    #[test]
    fn core_of_a_dead_node_outside_the_park_loop_is_a_fault() {
        let fake = FakeMachine::new().with_node(1, "web", &[ResourceKey::cpu(3)]);
        fake.set_state(NodeId::new(1).unwrap(), NodeState::Crashed);
        let mut inventory = read_ledger(&fake).unwrap();
        let find = |inventory: &Inventory| check_ledger(inventory, &[], &[], None);
        assert_eq!(status(&find(&inventory), "park").status, CheckStatus::Fail);
        inventory.cpus[3].flags.parked = true;
        assert_eq!(status(&find(&inventory), "park").status, CheckStatus::Ok);
        assert_eq!(status(&find(&inventory), "nodes").status, CheckStatus::Warn);
    }

    #[test]
    fn devices_behind_an_iommu_are_told_with_the_way_out() {
        let fake = FakeMachine::new();
        let inventory = read_ledger(&fake).unwrap();
        let lendable = inventory.of_kind(Kind::Device);
        let lendable = lendable.iter().filter(|one| {
            !one.flags.bridge && !one.flags.platform && (one.flags.msi || one.flags.msix)
        });
        assert_eq!(check_devices(&inventory, &fake).status, CheckStatus::Ok);
        let total = lendable.clone().count();
        let disk = lendable.clone().next().unwrap().key;
        fake.refuse_release(disk, 15);
        let check = check_devices(&inventory, &fake);
        assert_eq!(check.status, CheckStatus::Warn);
        let told = format!("of {total} devices 1 cannot be lent: its interrupts are remapped");
        assert!(check.detail.starts_with(&told), "{check:?}");
        assert!(check.detail.contains("intremap=off"), "{check:?}");
        assert!(fake.calls().is_empty());
    }

    #[test]
    fn fewer_cpus_online_than_owned_is_told() {
        let inventory = read_ledger(&FakeMachine::new()).unwrap();
        let checks = check_ledger(&inventory, &[], &[], Some(5));
        assert_eq!(status(&checks, "cpus-here").status, CheckStatus::Warn);
    }
}
