// SPDX-License-Identifier: Apache-2.0
//! Ends of nodes: told, and started again where that is wanted.

use std::time::Duration;

use mint_api::EventView;
use mint_node::fake::FakeMachine;
use mint_sys::Event;
use mint_types::{NodeId, NodeState, RestartPolicy};

use super::{Daemon, test, until, web};
use crate::changes;

pub(super) fn event(old: NodeState, new: NodeState) -> Event {
    Event { seq: 1, time_ns: 5, node: NodeId::new(1).unwrap(), old, new, lost: 0 }
}

#[test]
fn events_are_told_written_and_followed() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &[])).await;
        changes::state_changed(&daemon.app, &event(NodeState::Starting, NodeState::Running));
        let mut lines = daemon.client.lines("/v1/events?follow=true", None).await.unwrap();
        let first: EventView = lines.next().await.unwrap().unwrap();
        assert_eq!((first.seq, first.new.as_deref()), (1, Some("running")));
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Crashed));
        let second: EventView = lines.next().await.unwrap().unwrap();
        assert_eq!((second.seq, second.name.as_str()), (2, "web"));
        assert_eq!(second.old.as_deref(), Some("running"));
        let text = std::fs::read_to_string(daemon.path("run/mint/events.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 2);
        let mut later = daemon.client.lines("/v1/events?since=1", None).await.unwrap();
        let only: EventView = later.next().await.unwrap().unwrap();
        assert_eq!(only.seq, 2);
        assert!(later.next::<EventView>().await.unwrap().is_none());
    });
}

#[test]
fn node_that_ends_is_started_again_as_its_policy_says() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        for (policy, end, boots) in [
            (RestartPolicy::OnReboot, NodeState::Reboot, 2),
            (RestartPolicy::OnReboot, NodeState::Crashed, 1),
            (RestartPolicy::OnCrash, NodeState::Crashed, 2),
            (RestartPolicy::OnCrash, NodeState::Killed, 1),
            (RestartPolicy::Never, NodeState::Reboot, 1),
            (RestartPolicy::Always, NodeState::Halted, 2),
        ] {
            let daemon = Daemon::start(FakeMachine::new()).await;
            let mut request = web();
            request.spec.restart = policy;
            daemon.add(request).await.unwrap();
            daemon.fake.set_state(one, end);
            // what the event's task does, to its end
            crate::restart::start_again(daemon.app.clone(), one, end).await;
            let node = mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap();
            let state = if boots == 2 { NodeState::Running } else { end };
            assert_eq!((node.state, node.boots), (state, boots), "{policy:?} {end}");
        }
    });
}

#[test]
fn event_of_an_end_starts_the_node_again() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        daemon.fake.set_state(one, NodeState::Reboot);
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Reboot));
        let fake = daemon.fake.clone();
        until(|| {
            let node = mint_node::Machine::node(&*fake, one).unwrap().unwrap();
            node.state == NodeState::Running && node.boots == 2
        })
        .await;
    });
}

#[test]
fn node_whose_end_a_peer_ordered_stays_down() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mut request = web();
        request.spec.restart = RestartPolicy::Always;
        daemon.add(request).await.unwrap();
        daemon.app.marks().ordered.note(one, 1);
        daemon.fake.set_state(one, NodeState::Halted);
        crate::restart::start_again(daemon.app.clone(), one, NodeState::Halted).await;
        let node = mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap();
        assert_eq!((node.state, node.boots), (NodeState::Halted, 1));
    });
}

#[test]
fn node_made_after_a_removed_one_of_its_id_is_started_again() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        // of the node that was here before: its first start was ended on request
        daemon.app.marks().ordered.note(one, 1);
        changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        let mut request = web();
        request.spec.restart = RestartPolicy::OnCrash;
        daemon.add(request).await.unwrap();
        daemon.fake.set_state(one, NodeState::Crashed);
        changes::state_changed(&daemon.app, &event(NodeState::Running, NodeState::Crashed));
        let fake = daemon.fake.clone();
        until(|| mint_node::Machine::node(&*fake, one).unwrap().unwrap().boots == 2).await;
    });
}

#[test]
fn silence_of_a_removed_node_says_nothing_of_the_next() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let daemon = Daemon::start(FakeMachine::new()).await;
        let (peers, within) = (&daemon.app.peers, Duration::from_secs(3));
        // no daemon of the fake machine's other nodes is there to answer
        assert!(!peers.answers(one, 1, within).await);
        assert_eq!(peers.patience(one, 1, within), within, "it may be starting");
        peers.note(one, 1, true);
        assert!(!peers.answers(one, 1, within).await);
        assert!(peers.patience(one, 1, within) < within);
        changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        assert_eq!(peers.patience(one, 1, within), within);
    });
}
