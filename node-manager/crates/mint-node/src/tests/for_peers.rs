// SPDX-License-Identifier: Apache-2.0
//! What daemons of other nodes ask for.

use super::*;

#[test]
fn node_is_made_from_another_node_with_a_peers_core() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake =
        Arc::new(FakeMachine::new().with_node(1, "web", &[ResourceKey::cpu(5)]).seen_from(1));
    let nodes = nodes(&fake, folder.path());
    let mut spec = images.spec("db");
    spec.from = vec!["node0".into()];
    nodes.add_now(&spec, false).unwrap();
    assert!(fake.calls().contains(&"peer 0 releases cpu 3".to_owned()));
    fake.set_state(NodeId::new(2).unwrap(), NodeState::Halted);
    nodes.remove_now("db", false, GiveBack::To(NodeId::ZERO)).unwrap();
    assert!(fake.calls().contains(&"peer 0 claims cpu 3".to_owned()));
}

#[test]
fn device_asked_for_by_a_peer_is_given_unless_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let key = ResourceKey::device(disk());
    let before = fake.ledger();
    let root = ResourceKey::device("0000:01:00.0".parse().unwrap());
    let said = nodes.releasable_here(&[key, root]).unwrap();
    let codes = said.iter().map(|answer| answer.as_ref().err().map(|refusal| refusal.code));
    assert_eq!(codes.collect::<Vec<_>>(), [None, Some(RefusalCode::DeviceBusy)]);
    assert_eq!(fake.ledger(), before);
    nodes.release_here(&[key], &|| true).unwrap();
    nodes.claim_here(&[Gift { key, driver: Some("nvme".into()) }], &|| true).unwrap();
    assert_eq!(fake.ledger(), before);
    let stopped = nodes.release_here(&[root], &|| true).unwrap_err();
    assert!(matches!(stopped.error, OpError::Refused(_)));
    assert_eq!(fake.ledger(), before);
}

#[test]
fn release_for_a_peer_that_has_gone_ends_with_the_resource_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let keys = [3, 4, 5].map(ResourceKey::cpu);
    let asked = std::cell::Cell::new(0);
    let wanted = || asked.replace(asked.get() + 1) < 2;
    let stopped = nodes.release_here(&keys, &wanted).unwrap_err();
    assert!(matches!(stopped, Stopped { at: 2, error: OpError::Unwanted }), "{stopped:?}");
    let inventory = nodes.inventory().unwrap();
    assert_eq!(inventory.cpus_of(inventory.info.node).to_string(), "0-2,5");
}
