// SPDX-License-Identifier: Apache-2.0
//! Guests as people read them.

use mint_api::VmView;
use mint_types::format_bytes;

use super::context::{Context, Outcome};
use crate::output::{Table, or_dash, print_json};

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
