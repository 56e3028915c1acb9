// SPDX-License-Identifier: Apache-2.0
//! Every refusal of a plan, and what a good plan looks like.

use std::path::PathBuf;

use mint_image::kernel_image;
use mint_plan::{Planner, choose_blocks, describe};
use mint_types::{CpuSet, MemoryRequest, Plan, Refusal, Resource};

use super::*;
use crate::facts::Answers;
use crate::fake::{BLOCK_BYTES, POOL1};
use crate::machine::read_ledger;

/// Kernel and initrd that pass, in a folder that lives as long as the test.
pub(crate) struct Images {
    _folder: tempfile::TempDir,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

impl Images {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("bzImage");
        let initrd = folder.path().join("initrd");
        std::fs::write(&kernel, kernel_image::pretend_kernel()).unwrap();
        std::fs::write(&initrd, mint_image::cpio::Archive::new().finish()).unwrap();
        Self { _folder: folder, kernel, initrd }
    }

    /// Two cores of NUMA node 1 and 1 GiB there.
    pub fn spec(&self, name: &str) -> NodeSpec {
        let mut spec = NodeSpec::named(name.parse().unwrap());
        spec.cpus = Some("3-4".parse().unwrap());
        spec.memory = vec!["1G@numa1".parse().unwrap()];
        spec.kernel = Some(self.kernel.clone());
        spec.initrd = Some(self.initrd.clone());
        spec
    }
}

fn plan(fake: &FakeMachine, spec: &NodeSpec) -> Result<Plan, Vec<Refusal>> {
    let inventory = read_ledger(fake).unwrap();
    let config = Config::default();
    let before = fake.ledger();
    let answers = Answers { machine: fake, host: fake, peers: fake, config: &config };
    let planner = Planner::new(&inventory, &answers);
    let result = planner.add(spec);
    assert_eq!(fake.ledger(), before, "planning changes nothing");
    result
}

fn codes(result: Result<Plan, Vec<Refusal>>) -> Vec<RefusalCode> {
    let refusals = result.expect_err("refused");
    for refusal in &refusals {
        assert!(!refusal.message.is_empty() && !refusal.resource.is_empty(), "{refusal:?}");
    }
    refusals.into_iter().map(|refusal| refusal.code).collect()
}

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

#[test]
fn good_plan_creates_then_moves_devices_cores_memory() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.devices = vec![bdf("0000:02:00.0")];
    let plan = plan(&FakeMachine::new(), &spec).unwrap();
    assert_eq!(plan.node, NodeId::new(1).unwrap());
    let text: Vec<String> = plan.steps.iter().map(Step::to_string).collect();
    assert_eq!(
        text[..5],
        [
            "create node 1 (web)",
            "unbind virtio-pci from device 0000:02:00.0 and release it from node 0",
            "claim device 0000:02:00.0 for node 1",
            "release cpu 3 from node 0",
            "claim cpu 3 for node 1",
        ]
    );
    let blocks = text.iter().filter(|step| step.contains("memory block")).count();
    assert_eq!(blocks, 8, "free blocks need no release: {text:?}");
    assert!(text.contains(&format!("claim memory block {} for node 1", POOL1.0)));
}

#[test]
fn name_in_use_is_refused() {
    let images = Images::new();
    let fake = FakeMachine::new().with_node(1, "web", &[]);
    assert_eq!(codes(plan(&fake, &images.spec("web"))), [RefusalCode::NameTaken]);
}

#[test]
fn name_node2_is_for_node_2_only() {
    let images = Images::new();
    let fake = FakeMachine::new();
    assert_eq!(plan(&fake, &images.spec("node2")).unwrap().node, NodeId::new(2).unwrap());
    assert_eq!(codes(plan(&fake, &images.spec("node0"))), [RefusalCode::NameTaken]);
    assert_eq!(codes(plan(&fake, &images.spec("node9"))), [RefusalCode::NameBad]);
}

#[test]
fn core_that_does_not_exist_is_refused() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.cpus = Some("4,9".parse().unwrap());
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::CpuAbsent]);
}

#[test]
fn core_of_another_node_is_refused_unless_named_by_from() {
    let images = Images::new();
    let cpus = [ResourceKey::cpu(3), ResourceKey::cpu(5)];
    let fake = FakeMachine::new().with_node(1, "db", &cpus);
    let mut spec = images.spec("web");
    let refusals = plan(&fake, &spec).unwrap_err();
    assert_eq!(refusals[0].code, RefusalCode::CpuOwned);
    assert_eq!(refusals[0].owner, "node 1 (db)");
    assert!(refusals[0].hint.contains("--from db"), "{}", refusals[0].hint);
    spec.from = vec!["db".into()];
    assert!(plan(&fake, &spec).is_ok());
    fake.fail("peer 1");
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::PeerUnreachable]);
}

#[test]
fn last_core_and_boot_core_are_refused() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.cpus = Some("0-5".parse().unwrap());
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::CpuLast]);
    spec.cpus = Some("0".parse().unwrap());
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::CpuBoot]);
}

#[test]
fn cores_by_count_leave_the_boot_core_alone() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.cpus = None;
    spec.cpu_count = Some(2);
    spec.numa = Some(0);
    spec.memory = vec!["256M".parse().unwrap()];
    let plan_of = |spec: &NodeSpec| plan(&FakeMachine::new(), spec);
    let cpus: CpuSet = plan_of(&spec)
        .unwrap()
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Claim { key: ResourceKey { kind: Kind::Cpu, id }, .. } => Some(*id),
            _ => None,
        })
        .collect();
    assert_eq!(cpus.to_string(), "1-2");
    spec.cpu_count = Some(3);
    assert_eq!(codes(plan_of(&spec)), [RefusalCode::CpuShort]);
}

#[test]
fn image_that_is_no_file_or_too_large_for_the_node_is_refused() {
    let images = Images::new();
    let fake = FakeMachine::new();
    let mut spec = images.spec("web");
    for device in ["/dev/zero", "/"] {
        spec.kernel = Some(device.into());
        spec.initrd = Some(device.into());
        let codes = codes(plan(&fake, &spec));
        assert_eq!(codes, [RefusalCode::ImageMissing, RefusalCode::InitrdMissing]);
    }
    let mut spec = images.spec("web");
    spec.memory = vec!["1M".parse().unwrap()];
    let grow = |path: &PathBuf, bytes| {
        std::fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
    };
    // it gets a whole block
    grow(&images.kernel, BLOCK_BYTES);
    plan(&fake, &spec).unwrap();
    grow(&images.initrd, BLOCK_BYTES + 1);
    grow(&images.kernel, BLOCK_BYTES + 1);
    let codes = codes(plan(&fake, &spec));
    assert_eq!(codes, [RefusalCode::ImageTooLarge, RefusalCode::ImageTooLarge]);
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.memory = vec!["4G@numa1".parse().unwrap()];
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::MemoryShort]);
    spec.memory = vec!["1G@numa7".parse().unwrap()];
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::MemoryAbsent]);
    spec.memory = vec!["18446744073709551615".parse().unwrap()];
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::MemoryShort]);
    spec.memory = Vec::new();
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::MemoryShort]);
}

#[test]
fn memory_of_a_donor_counts_whether_it_runs_or_not() {
    let images = Images::new();
    let block = ResourceKey::memory(POOL1.0);
    let fake = FakeMachine::new().with_node(1, "db", &[block]);
    let mut spec = images.spec("web");
    spec.memory = vec![MemoryRequest { bytes: 14 * BLOCK_BYTES, numa: Some(1) }];
    // it is not named
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::MemoryShort]);
    spec.from = vec!["db".into()];
    let step = Step::Release { key: block, node: NodeId::new(1).unwrap(), driver: None };
    for state in [mint_types::NodeState::Running, mint_types::NodeState::Halted] {
        fake.set_state(NodeId::new(1).unwrap(), state);
        let steps = plan(&fake, &spec).unwrap().steps;
        assert!(steps.contains(&step), "{state}");
    }
}

#[test]
fn two_requests_do_not_get_the_same_block() {
    let images = Images::new();
    let mut spec = images.spec("web");
    let half = MemoryRequest { bytes: 8 * BLOCK_BYTES, numa: Some(1) };
    spec.memory = vec![half, half];
    assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [RefusalCode::MemoryShort]);
}

#[test]
fn memory_is_rounded_up_with_a_note() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.memory = vec!["200M@numa1".parse().unwrap()];
    let plan = plan(&FakeMachine::new(), &spec).unwrap();
    assert_eq!(plan.notes, ["memory 200M is rounded up to 256M (blocks of 128M)"]);
}

#[test]
fn devices_that_stay_are_refused() {
    let images = Images::new();
    for (device, code) in [
        ("0000:0f:00.0", RefusalCode::DeviceAbsent),
        ("0000:00:01.0", RefusalCode::DeviceBridge),
        ("0000:00:1f.0", RefusalCode::DevicePlatform),
        ("0000:06:00.0", RefusalCode::DeviceNoMsi),
        ("0000:01:00.0", RefusalCode::DeviceBusy),
    ] {
        let mut spec = images.spec("web");
        spec.devices = vec![bdf(device)];
        assert_eq!(codes(plan(&FakeMachine::new(), &spec)), [code], "{device}");
    }
}

#[test]
fn device_of_another_node_is_refused() {
    let images = Images::new();
    let disk = bdf("0000:03:00.0");
    let fake = FakeMachine::new().with_node(1, "db", &[ResourceKey::device(disk)]);
    let mut spec = images.spec("web");
    spec.devices = vec![disk];
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::DeviceOwned]);
}

#[test]
fn device_behind_an_iommu_is_refused_with_the_reason_and_the_way_out() {
    let images = Images::new();
    let disk = bdf("0000:03:00.0");
    let fake = FakeMachine::new();
    let mut spec = images.spec("web");
    spec.devices = vec![disk];
    for (reason, why) in [(14, "an IOMMU is on"), (15, "are remapped"), (16, "APIC ids over 254")] {
        fake.refuse_release(ResourceKey::device(disk), reason);
        let refusals = plan(&fake, &spec).unwrap_err();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert_eq!(refusals[0].code, RefusalCode::DeviceIommu);
        assert!(refusals[0].message.contains(why), "{refusals:?}");
        assert!(refusals[0].hint.contains("intremap=off"), "{refusals:?}");
    }
}

#[test]
fn virtual_function_is_a_device_as_any_other_and_is_known_to_be_lent() {
    let images = Images::new();
    let (nic, vfs) = (bdf("0000:05:00.0"), ["0000:05:10.0", "0000:05:10.2"].map(bdf));
    let mut spec = images.spec("web");
    spec.devices = vec![vfs[1]];
    let fake = FakeMachine::new().with_vfs(nic, &vfs);
    assert!(plan(&fake, &spec).is_ok());
    assert_eq!(read_ledger(&fake).unwrap().lends(NodeId::ZERO), None);

    let fake = fake.with_node(1, "db", &[ResourceKey::device(vfs[0])]);
    let inventory = read_ledger(&fake).unwrap();
    let refusal = inventory.lends(NodeId::ZERO).unwrap();
    assert_eq!(refusal.code, RefusalCode::DeviceLent);
    assert_eq!(
        refusal.to_string(),
        "node 0 has the physical functions of device 0000:05:10.0 (with node 1 (db)): they would \
         end with its kernel; first: mintctl device move 0000:05:10.0 --to node0"
    );
    assert_eq!(inventory.lends(NodeId::new(1).unwrap()), None);
}

#[test]
fn iommu_group_moves_as_a_whole() {
    let images = Images::new();
    let (disk, nic) = (bdf("0000:03:00.0"), bdf("0000:05:00.0"));
    let fake = FakeMachine::new();
    fake.group(disk, &[nic]);
    fake.group(nic, &[disk]);
    let mut spec = images.spec("web");
    spec.devices = vec![disk];
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::DeviceGroup]);
    spec.devices = vec![disk, nic];
    assert!(plan(&fake, &spec).is_ok());
}

#[test]
fn bad_images_are_refused_before_anything_moves() {
    let images = Images::new();
    let fake = FakeMachine::new();
    let spec = images.spec("web");
    let kernel = std::fs::read(&images.kernel).unwrap();
    std::fs::write(&images.kernel, &kernel[..kernel.len() - 100]).unwrap();
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::ImageTruncated]);
    std::fs::write(&images.kernel, "#!/bin/sh\n").unwrap();
    std::fs::write(&images.initrd, "hello").unwrap();
    assert_eq!(
        codes(plan(&fake, &spec)),
        [RefusalCode::ImageNotKernel, RefusalCode::InitrdUnknown]
    );
    std::fs::remove_file(&images.kernel).unwrap();
    std::fs::remove_file(&images.initrd).unwrap();
    assert_eq!(codes(plan(&fake, &spec)), [RefusalCode::ImageMissing, RefusalCode::InitrdMissing]);
}

#[test]
fn all_refusals_are_told_at_once() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.cpus = Some("9".parse().unwrap());
    spec.memory = vec!["64G".parse().unwrap()];
    spec.devices = vec![bdf("0000:00:01.0")];
    assert_eq!(
        codes(plan(&FakeMachine::new(), &spec)),
        [RefusalCode::DeviceBridge, RefusalCode::CpuAbsent, RefusalCode::MemoryShort]
    );
}

#[test]
fn shortest_run_that_is_long_enough_is_chosen() {
    let fake = FakeMachine::new().with_node(1, "db", &[ResourceKey::memory(POOL1.0 + 4)]);
    let inventory = read_ledger(&fake).unwrap();
    let free: Vec<&Resource> = inventory
        .memory
        .iter()
        .filter(|block| block.numa == Some(1) && block.state == ResState::Free)
        .collect();
    let ids = |count| -> Vec<u32> {
        choose_blocks(&free, count).iter().map(|block| block.key.id - POOL1.0).collect()
    };
    assert_eq!(ids(4), [0, 1, 2, 3]);
    assert_eq!(ids(5), [5, 6, 7, 8, 9]);
    assert_eq!(ids(12).len(), 12);
}

#[test]
fn neighbours_are_told_as_one() {
    let inventory = read_ledger(&FakeMachine::new()).unwrap();
    let node = NodeId::new(1).unwrap();
    let claim = |key| Step::Claim { key, node, driver: None };
    let block = |number| ResourceKey::memory(POOL1.0 + number);
    let steps = [claim(ResourceKey::cpu(3)), claim(block(0)), claim(block(1)), claim(block(5))];
    assert_eq!(
        describe(&steps, &inventory),
        [
            "claim cpu 3 for node 1",
            "claim memory 256M at 0x100000000 for node 1",
            "claim memory 128M at 0x128000000 for node 1",
        ]
    );
}
