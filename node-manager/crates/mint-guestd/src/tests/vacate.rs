// SPDX-License-Identifier: Apache-2.0
//! Guests make way for what their node loses.

use super::evacuate::evacuate;
use super::*;

/// Node 1 has CPU 0 (APIC id 4) and CPU 1 (6), and 1 GiB that is free.
fn losing(apic_ids: &[u32], memory_mib: u64) -> Value {
    json!({ "taken": { "node": 1, "apic_ids": apic_ids, "memory_bytes": memory_mib << 20 } })
}

fn planned(mut request: Value) -> Value {
    request["dry_run"] = true.into();
    request
}

/// On node 1, and able to go to node 2.
fn define(machine: &Machine, name: &str, memory_mib: u64, cpu: &str) {
    let text = xml(name)
        .replace("MiB'>128", &format!("MiB'>{memory_mib}"))
        .replace("cpuset='7'", &format!("cpuset='{cpu}'"));
    machine.fakes[0].define(name, true, &text);
    let bytes = memory_mib << 20;
    machine.fakes[0].guests.lock().unwrap().get_mut(name).unwrap().0.memory_bytes = bytes;
    let there = machine.fakes[1].clone();
    machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
}

fn told(result: &EvacuateResult) -> (Vec<&str>, Vec<String>) {
    let changes = |vm: &mint_api::VmPins| {
        let name = vm.name.clone();
        vm.changes.iter().map(move |change| format!("{name}: {change}")).collect::<Vec<_>>()
    };
    let gone = result.vms.iter().map(|vm| vm.name.as_str()).collect();
    (gone, result.repinned.iter().flat_map(changes).collect())
}

fn log(machine: &Machine) -> Vec<String> {
    machine.fakes[0].log.lock().unwrap().clone()
}

const TO_0: [&str; 2] =
    ["web: vCPU 0: CPU 1 -> CPU 0", "web: vCPU 0: CPU 1 -> CPU 0 from its next start on"];

#[test]
fn guest_on_a_core_that_goes_gets_another_one_and_back_again() {
    test(async |machine| {
        define(&machine, "web", 128, "1");
        let plan = evacuate(&machine, planned(losing(&[6], 0))).await.unwrap();
        assert_eq!(told(&plan), (vec![], TO_0.map(str::to_owned).to_vec()));
        assert_eq!(log(&machine), [""; 0], "only planned");
        let done = evacuate(&machine, losing(&[6], 0)).await.unwrap();
        assert_eq!(
            (done.repinned.clone(), log(&machine)),
            (plan.repinned, TO_0.map(str::to_owned).to_vec())
        );
        assert!(machine.fakes[0].has("web"));
        let none = evacuate(&machine, losing(&[4, 9], 0)).await.unwrap();
        assert_eq!(told(&none), (vec![], vec![]), "it uses none of these");
        // back
        let mut vms = done.repinned;
        vms[0].changes = vms[0].changes.drain(..).map(mint_types::PinChange::undo).collect();
        let back = json!({ "vms": vms });
        machine.client().post::<Value>("/v1/local/pins", &back).await.unwrap();
        assert_eq!(log(&machine)[2], "web: vCPU 0: CPU 0 -> CPU 1");
        // to a core that is not there any more: it keeps what it has
        let online = machine.folder.path().join("root1/sys/devices/system/cpu/online");
        std::fs::write(online, "0\n").unwrap();
        let failed = machine.client().post::<Value>("/v1/local/pins", &back).await.map_err(body);
        let failed = failed.unwrap_err();
        assert!(failed.to_string().contains("this node has CPU 0"), "{failed}");
        assert_eq!(log(&machine).len(), 4);
    });
}

#[test]
fn guest_whose_memory_goes_is_moved_and_only_as_many_as_have_to() {
    test(async |machine| {
        define(&machine, "large", 512, "1");
        define(&machine, "small", 128, "0");
        // 1024 MiB free; 512 + 64 and 128 + 64 are theirs
        let fits = evacuate(&machine, losing(&[], 256)).await.unwrap();
        assert_eq!(told(&fits), (vec![], vec![]));
        let one = evacuate(&machine, losing(&[6], 257)).await.unwrap();
        // the one that goes gets no CPU here
        assert_eq!(told(&one), (vec!["large"], vec![]));
        assert!(machine.fakes[1].has("large") && machine.fakes[0].has("small"));
        assert_eq!(log(&machine), [""; 0]);
    });
}

#[test]
fn smaller_guest_goes_where_the_largest_has_no_place() {
    test(async |machine| {
        define(&machine, "large", 512, "1");
        define(&machine, "small", 128, "0");
        machine.fakes[1].define("large", false, &xml("large"));
        machine.fakes[1].guests.lock().unwrap().get_mut("large").unwrap().0.uuid = "other".into();
        let one = evacuate(&machine, planned(losing(&[], 300))).await.unwrap();
        assert_eq!(told(&one).0, ["small"]);
    });
}

#[test]
fn nothing_is_done_where_memory_would_be_short_all_the_same() {
    test(async |machine| {
        define(&machine, "web", 512, "1");
        machine.fakes[1].define("web", false, &xml("web"));
        machine.fakes[1].guests.lock().unwrap().get_mut("web").unwrap().0.uuid = "other".into();
        let refused = evacuate(&machine, losing(&[6], 512)).await.unwrap_err();
        let codes: Vec<_> = refused.refusals.iter().map(|why| why.code).collect();
        assert_eq!(codes, [RefusalCode::MemoryShort, RefusalCode::VmNameTaken], "{refused}");
        assert!(refused.refusals[0].message.contains("for vm web"), "{refused}");
        assert!(machine.fakes[0].has("web"));
        assert_eq!(log(&machine), [""; 0], "nor has it another CPU");
        // no guest is in the way of that
        let refused = evacuate(&machine, losing(&[], 4096)).await.unwrap_err();
        assert_eq!(refused.exit_status(), 3, "{refused}");
        machine.fakes[0].guests.lock().unwrap().clear();
        let refused = evacuate(&machine, losing(&[], 4096)).await.unwrap_err();
        assert!(refused.message.contains("without its guests"), "{refused}");
    });
}

#[test]
fn cpus_that_were_given_are_taken_back_when_one_cannot_be() {
    test(async |machine| {
        // the larger one is first
        define(&machine, "web", 128, "1");
        define(&machine, "odd", 64, "1");
        machine.fakes[0].unpinnable.lock().unwrap().insert("odd".into());
        let failed = evacuate(&machine, losing(&[6], 0)).await.unwrap_err();
        assert_eq!((failed.code, failed.exit_status()), (ErrorCode::Failed, 1));
        assert!(failed.to_string().contains("it is stubborn"), "{failed}");
        assert!(failed.message.contains("all guests have the CPUs that they had"), "{failed}");
        assert_eq!(log(&machine).len(), 4, "{:?}", log(&machine));
        assert_eq!(
            log(&machine)[2..],
            ["web: vCPU 0: CPU 0 -> CPU 1 from its next start on", "web: vCPU 0: CPU 0 -> CPU 1"]
        );
    });
}

#[test]
fn what_another_node_loses_is_no_matter_of_ours() {
    test(async |machine| {
        define(&machine, "web", 128, "1");
        for bad in
            [json!({ "taken": { "node": 2 } }), json!({ "taken": { "node": 1, "cpus": [1] } })]
        {
            let refused = evacuate(&machine, bad.clone()).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadRequest, "{bad}");
        }
        assert!(machine.fakes[0].has("web"));
    });
}
