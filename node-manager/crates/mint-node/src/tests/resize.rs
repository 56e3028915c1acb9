// SPDX-License-Identifier: Apache-2.0
//! More or less for a node: all of it, or nothing.

use super::*;

/// Changes of node 1 in the fake machine, which has node 1 running with cores 3 and 4.
fn resize(nodes: &Nodes, spec: &ResizeSpec) -> Result<Done, OpError> {
    nodes.resize_now("web", spec)
}

#[test]
fn resize_there_and_back_leaves_the_ledger_as_it_was() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let more = ResizeSpec {
        cpus: Some("+1".parse().unwrap()),
        // two requests for one place: each gets blocks of its own
        memory: vec!["+128M@numa1".parse().unwrap(), "+128M@numa1".parse().unwrap()],
        devices: vec![disk()],
        ..ResizeSpec::default()
    };
    let done = resize(&nodes, &more).unwrap();
    assert_eq!(done.node, one());
    let inventory = nodes.inventory().unwrap();
    assert_eq!(inventory.cpus_of(one()).to_string(), "3-5");
    assert_eq!(inventory.owned(one(), Kind::Memory).count(), 10);
    assert_eq!(inventory.find(ResourceKey::device(disk())).unwrap().owner, Some(one()));
    let less = ResizeSpec {
        cpus: Some("-1".parse().unwrap()),
        memory: vec!["1G".parse().unwrap()],
        drop_devices: vec![disk()],
        ..ResizeSpec::default()
    };
    resize(&nodes, &less).unwrap();
    fake.unbind(disk()).unwrap();
    Host::bind(&*fake, disk(), Some("nvme")).unwrap();
    assert_eq!(fake.ledger(), before);
    assert_eq!(nodes.open(), Vec::new());
}

#[test]
fn owner_is_asked_for_all_of_a_kind_at_once() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let less = ResizeSpec { memory: vec!["-256M".parse().unwrap()], ..ResizeSpec::default() };
    resize(&nodes, &less).unwrap();
    let asked: Vec<String> =
        fake.calls().into_iter().filter(|call| call.contains("is asked")).collect();
    assert_eq!(asked, ["peer 1 is asked for 8"], "all that it has");
}

#[test]
fn peer_that_did_it_all_and_was_lost_sight_of_gets_all_back() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    fake.fail("answer of peer 1");
    let less = ResizeSpec { memory: vec!["-256M".parse().unwrap()], ..ResizeSpec::default() };
    let error = resize(&nodes, &less).unwrap_err();
    assert!(matches!(error, OpError::Apply(_)), "{error}");
    let moved = fake.calls().into_iter().filter(|call| call.starts_with("peer 1 releases"));
    assert_eq!(moved.count(), 2);
    assert_eq!(fake.ledger(), before);
}

#[test]
fn what_a_peer_claimed_before_it_died_comes_back_once_it_is_there_again() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    fake.fail("peer 1 after its claim");
    let spec = ResizeSpec { cpus: Some("+1".parse().unwrap()), ..ResizeSpec::default() };
    resize(&nodes, &spec).unwrap_err();
    assert_ne!(fake.ledger(), before, "the peer keeps it while it is away");
    // its release and its claim are both to be taken back, as neither was
    assert_eq!(nodes.open().len(), 1);
    fake.heal();
    let unsettled = nodes.ops.unsettled();
    assert_eq!(unsettled.len(), 1);
    assert_eq!(nodes.settle(&unsettled[0]).unwrap(), Settled::TakenBack(Vec::new()));
    assert_eq!(fake.ledger(), before);
}

#[test]
fn resize_that_fails_half_way_is_taken_back() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let spec = ResizeSpec {
        cpus: Some("2-4".parse().unwrap()),
        memory: vec!["+128M@numa1".parse().unwrap()],
        ..ResizeSpec::default()
    };
    fake.fail("claims of peer 1");
    let error = resize(&nodes, &spec).unwrap_err();
    assert!(matches!(error, OpError::Apply(_)), "{error}");
    assert_eq!(fake.ledger(), before);
    // and one that was killed half way is taken back by the next daemon
    fake.heal();
    let steps = vec![
        Step::Release { key: ResourceKey::cpu(2), node: NodeId::ZERO, driver: None },
        Step::Claim { key: ResourceKey::cpu(2), node: one(), driver: None },
    ];
    nodes.begin(OperationKind::Resize, &steps, 2, false);
    assert_ne!(fake.ledger(), before);
    drop(nodes);
    let nodes = self::nodes(&fake, folder.path());
    let taken_back = (OperationKind::Resize, Settled::TakenBack(Vec::new()));
    assert_eq!(nodes.settle_all(), [taken_back]);
    assert_eq!(fake.ledger(), before);
}

/// `device move --to` a running node whose mintd does not answer: the plan says so, and
/// the function keeps its driver.
#[test]
fn deaf_taker_is_refused_before_anything_is_unbound() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let (before, calls) = (fake.ledger(), fake.calls());
    fake.fail("peer 1");
    let get = with(|spec| spec.devices = vec![disk()]);
    let OpError::Refused(refusals) = resize(&nodes, &get).unwrap_err() else { panic!() };
    assert_eq!((refusals.len(), refusals[0].code), (1, RefusalCode::PeerUnreachable));
    assert_eq!(refusals[0].owner, "node 0");
    assert!(refusals[0].message.contains("node 1 (web) runs and cannot take device 0000:03:00.0"));
    assert_eq!(fake.ledger(), before);
    assert_eq!(fake.calls(), calls, "not even tried");
    // one that does not run has nobody to be asked
    fake.set_state(one(), NodeState::Halted);
    resize(&nodes, &get).unwrap();
}

#[test]
fn every_refusal_of_a_resize_leaves_all_as_it_is() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let cases: [(&str, ResizeSpec, RefusalCode); 6] = [
        ("web", with(|spec| spec.cpus = Some("-3".parse().unwrap())), RefusalCode::CpuLast),
        ("web", with(|spec| spec.memory = vec!["-1G".parse().unwrap()]), RefusalCode::MemoryShort),
        ("web", with(|spec| spec.drop_devices = vec![disk()]), RefusalCode::DeviceOwned),
        ("web", with(|spec| spec.to = Some("web".into())), RefusalCode::NodeSelf),
        ("web", with(|spec| spec.from = vec!["db".into()]), RefusalCode::NodeAbsent),
        ("0", with(|spec| spec.cpus = Some("1-2".parse().unwrap())), RefusalCode::CpuBoot),
    ];
    for (node, spec, code) in cases {
        match nodes.resize_now(node, &spec).unwrap_err() {
            OpError::Refused(refusals) => assert_eq!(refusals[0].code, code, "{refusals:?}"),
            other => panic!("{code:?}: {other}"),
        }
        assert_eq!(fake.ledger(), before, "{code:?}");
    }
}

fn with(change: impl FnOnce(&mut ResizeSpec)) -> ResizeSpec {
    let mut spec = ResizeSpec::default();
    change(&mut spec);
    spec
}

#[test]
fn node_that_does_not_run_keeps_a_core_and_starts_again() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    nodes.kill_now("web").unwrap();
    let before = fake.ledger();
    let all = with(|spec| spec.cpus = Some("-2".parse().unwrap()));
    match resize(&nodes, &all).unwrap_err() {
        OpError::Refused(refusals) => assert_eq!(refusals[0].code, RefusalCode::CpuLast),
        other => panic!("{other}"),
    }
    assert_eq!(fake.ledger(), before);
    resize(&nodes, &with(|spec| spec.cpus = Some("-1".parse().unwrap()))).unwrap();
    nodes.start_now("web").unwrap();
}

#[test]
fn memory_that_can_be_moved_goes_first() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for (&block, kib) in owned[2..].iter().zip([512, 4, 512, 512, 4, 512]) {
        fake.pin(block, kib);
    }
    let less = with(|spec| spec.memory = vec!["-384M".parse().unwrap()]);
    resize(&nodes, &less).unwrap();
    let inventory = nodes.inventory().unwrap();
    let left: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    let wanted = [2, 3, 4, 5, 7].map(|index| owned[index]);
    assert_eq!(left, wanted, "two that can go, then the last one of those with the least in them");
}

#[test]
fn block_that_proves_immovable_is_left_and_another_one_goes() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for &block in &owned[6..] {
        fake.stick(block);
    }
    let less = with(|spec| {
        spec.cpus = Some("-1".parse().unwrap());
        spec.memory = vec!["-256M".parse().unwrap()];
    });
    let op = nodes.submit(OperationKind::Resize);
    let done = nodes.resize(&op, "web", &less, false).unwrap();
    let told = op.entry().progress;
    assert_eq!(told.iter().filter(|text| text.contains("stays where it is")).count(), 2);
    assert!(!done.steps.is_empty());
    let inventory = nodes.inventory().unwrap();
    let left: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    assert_eq!(left, [&owned[..4], &owned[6..]].concat());
    // none is left that goes: all is as before, and the error names a block
    for &block in &owned {
        fake.stick(block);
    }
    let before = fake.ledger();
    let error = resize(&nodes, &with(|spec| spec.memory = less.memory.clone())).unwrap_err();
    let OpError::Apply(ApplyError::Step { refusals, left, .. }) = error else { panic!("{error}") };
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(fake.ledger(), before);
    // each that was tried has its reason
    let told: BTreeSet<&str> = refusals.iter().map(|one| one.resource.as_str()).collect();
    assert_eq!((told.len(), refusals.len()), (5, 5), "{refusals:?}");
}

#[test]
fn all_memory_of_a_numa_node_may_go_if_there_is_more_elsewhere() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    for change in ["+256M@numa0", "-256M@numa0"] {
        assert_ne!(change.starts_with('-'), fake.ledger() == before);
        resize(&nodes, &with(|spec| spec.memory = vec![change.parse().unwrap()])).unwrap();
    }
    assert_eq!(fake.ledger(), before);
}

#[test]
fn block_of_the_boot_without_anything_that_stays_goes_after_one_that_proves_immovable() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for &block in &owned[..7] {
        fake.pin(block, if block == owned[2] { 0 } else { 4 });
    }
    // the only one of the movable zone
    fake.stick(owned[7]);
    resize(&nodes, &with(|spec| spec.memory = vec!["-128M".parse().unwrap()])).unwrap();
    let left = nodes.inventory().unwrap();
    let left: Vec<u32> = left.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    assert_eq!(left, [&owned[..2], &owned[3..]].concat());
}

#[test]
fn block_that_stays_is_told_with_what_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let refusal = |block| match nodes.release_here(&[ResourceKey::memory(block)], &|| true) {
        Err(Stopped { at: 0, error: OpError::Refused(mut refusals) }) => refusals.remove(0),
        other => panic!("{other:?}"),
    };
    fake.fill(
        3,
        BlockPages {
            kinds: vec![PagesOfKind { kind: PageKind::PageTables, kib: 8 }],
            holders: vec![PageHolder {
                what: HolderKind::Guest,
                name: "demo".into(),
                pid: Some(8),
                kib: 8,
            }],
            complete: true,
            ..BlockPages::default()
        },
    );
    let told = refusal(3);
    assert_eq!((told.code, told.owner.as_str()), (RefusalCode::MemoryBusy, "node 0"));
    assert_eq!(
        told.message,
        "memory block 3 of node 0 cannot be released: the memory holds pages that cannot be \
         migrated (EBUSY); node 0 owns it now; in it: 8K of page tables; held by guest demo (process 8): 8K"
    );
    assert!(
        told.hint.starts_with("end guest demo (process 8), move it away first"),
        "{}",
        told.hint
    );
    assert!(told.hint.contains("--evacuate"), "{}", told.hint);
    assert_eq!(told.pages.unwrap().kinds[0].kind, PageKind::PageTables);
    // a kernel that does not tell
    let told = refusal(4);
    assert_eq!((told.pages, told.hint.as_str()), (None, "choose another one"));
    assert!(told.message.ends_with("node 0 owns it now"), "{}", told.message);
}

#[test]
fn core_that_a_guest_is_pinned_to_stays() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    fake.pin_guest(5);
    // of those that may be taken, another one is chosen
    resize(&nodes, &with(|spec| spec.cpus = Some("+1".parse().unwrap()))).unwrap();
    assert_eq!(nodes.inventory().unwrap().cpus_of(one()).to_string(), "2-4");
    let before = fake.ledger();
    let spec = with(|spec| spec.cpus = Some("2-5".parse().unwrap()));
    match resize(&nodes, &spec).unwrap_err() {
        OpError::Refused(refusals) => {
            assert_eq!(refusals[0].code, RefusalCode::CpuPinned);
            assert!(refusals[0].message.contains("guest demo"), "{}", refusals[0].message);
            assert!(refusals[0].hint.contains("--evacuate"), "{}", refusals[0].hint);
        }
        other => panic!("{other}"),
    }
    assert!(nodes.release_here(&[ResourceKey::cpu(5)], &|| true).is_err());
    assert_eq!(fake.ledger(), before);
}

#[test]
fn plan_tells_what_running_nodes_lose_also_of_cores_that_guests_are_pinned_to() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let apic_id = |cpu| {
        let inventory = nodes.inventory().unwrap();
        inventory.find(ResourceKey::cpu(cpu)).unwrap().hw_id
    };
    // of node 0's: the core that nobody is pinned to goes first
    fake.pin_guest(5);
    let plan = |spec: ResizeSpec| nodes.plan_resize("web", &spec).map(|(_, taken)| taken);
    let zero = |apic_ids| vec![Taken { node: NodeId::ZERO, apic_ids, memory_bytes: 0 }];
    let more = |count: &str| with(|spec| spec.cpus = Some(count.parse().unwrap()));
    assert_eq!(plan(more("+1")).unwrap(), zero(vec![apic_id(2)]));
    assert_eq!(plan(more("2-5")).unwrap(), zero(vec![apic_id(2), apic_id(5)]));
    // of its own: a core, and less memory than it gives up, as some comes
    let own = with(|spec| {
        spec.cpus = Some("-1".parse().unwrap());
        spec.memory = ["-384M", "+128M"].map(|text| text.parse().unwrap()).to_vec();
    });
    let taken = plan(own).unwrap();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!((taken[0].node, taken[0].memory_bytes), (one(), 256 << 20));
    assert_eq!(taken[0].apic_ids.len(), 1);
    // what else stands in the way still does
    let refused = plan(more("+9")).unwrap_err();
    assert!(matches!(&refused, OpError::Refused(why) if why[0].code == RefusalCode::CpuShort));
    assert_eq!(fake.ledger(), before);
}
