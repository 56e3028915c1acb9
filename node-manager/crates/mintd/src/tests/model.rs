// SPDX-License-Identifier: Apache-2.0
//! Random requests to two daemons that share a machine, and one of them is killed at
//! any of its calls to the kernel. Whatever happened: the ledger is a partition and
//! nothing is lost. A resize is done whole or not at all, so that no core and no
//! function is ever free afterwards, no resource is half moved, and the sums are what
//! they were. `MINT_MODEL_SEQUENCES` says how many sequences there are.
//!
//! The daemon that is killed is the one that carries the request out, or its peer. A dead
//! peer has its successor at once, or only when the request has failed: what could not be
//! taken back without it is settled when it is there again, and nobody has to ask for that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mint_api::NodeResult;
use mint_node::Machine as _;
use mint_types::{Kind, NodeState, ResState};
use serde_json::{Value, json};

use super::machine::{Daemon, Machine, id};
use super::peers::{met, two};
use super::test;

/// How many there are where nobody says otherwise.
const SEQUENCES: u32 = 1000;
/// For an answer, or for a death; a peer that has died is waited for for seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Numbers that a seed determines.
struct Random(u64);

impl Random {
    /// xorshift64*, Marsaglia and Vigna.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

const FUNCTIONS: [&str; 3] = ["0000:02:00.0", "0000:03:00.0", "0000:05:00.0"];

/// A request to one of the daemons: it wants something of the other node, or gives.
fn request(random: &mut Random) -> (usize, Value) {
    let at = usize::try_from(random.below(2)).unwrap();
    let other = ["web", "node0"][at];
    let function = FUNCTIONS[usize::try_from(random.below(3)).unwrap()];
    let mut spec = match random.below(8) {
        0 => json!({"cpus": "+1", "from": [other]}),
        1 => json!({"cpus": "-1", "to": other}),
        2 => json!({"devices": [function], "from": [other]}),
        // what has several parts may be left with one of them
        3 | 4 => json!({"cpus": "+1", "devices": [function], "from": [other]}),
        5 | 6 => json!({"cpus": "-1", "drop_devices": [function], "to": other}),
        _ => json!({"drop_devices": [function], "to": other}),
    };
    if random.below(4) == 0 {
        let change = if random.below(2) == 0 { "+128M" } else { "-128M" };
        spec["memory"] = json!([change]);
    }
    (at, json!({"spec": spec}))
}

/// Every resource, once; how many of a kind each node owns.
fn sums(machine: &Machine) -> BTreeMap<(Kind, Option<u32>), usize> {
    let mut sums = BTreeMap::new();
    for kind in [Kind::Cpu, Kind::Memory, Kind::Device] {
        let mut keys = std::collections::BTreeSet::new();
        for resource in machine.fake.resources(kind).unwrap() {
            assert!(keys.insert(resource.key), "{} is there twice", resource.key);
            let owned = resource.owner.is_some();
            let good = match resource.state {
                ResState::Owned => owned,
                ResState::Free => !owned && kind == Kind::Memory,
                _ => false,
            };
            assert!(good, "{} is lost: {resource:?}", resource.key);
            *sums.entry((kind, resource.owner.map(|owner| owner.as_u32()))).or_default() += 1;
        }
    }
    sums
}

#[derive(Default, Debug)]
struct Tally {
    done: u32,
    refused: u32,
    failed: u32,
    killed: u32,
    killed_peers: u32,
    settled_later: u32,
}

#[test]
fn two_daemons_lose_nothing_whenever_one_is_killed() {
    let sequences = std::env::var("MINT_MODEL_SEQUENCES")
        .map_or(SEQUENCES, |text| text.parse().expect("a number of sequences"));
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let mut daemons = [zero, one];
        let total: usize = sums(&machine).values().sum();
        let mut tally = Tally::default();
        for seed in 1..=u64::from(sequences) {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            for _ in 0..3 {
                let before = sums(&machine);
                let (at, request) = request(&mut random);
                // a death costs seconds of waiting for the dead: one in some sequences
                let dies =
                    (random.below(12) == 0).then(|| usize::try_from(random.below(2)).unwrap());
                let at_once = random.below(2) == 0;
                if let Some(dies) = dies {
                    let calls = u32::try_from(random.below(4)).unwrap();
                    daemons[dies].machine.die_after(calls);
                }
                ask(&machine, &mut daemons, at, &request, at_once, &mut tally).await;
                if let Some(dies) = dies.filter(|&dies| daemons[dies].machine.is_dead()) {
                    tally.killed += u32::from(dies == at);
                    tally.killed_peers += u32::from(dies != at);
                }
                // whoever was to die is a new daemon now, and has settled what was open
                if let Some(dies) = dies {
                    revive(&machine, &mut daemons, dies).await;
                }
                tally.settled_later += u32::from(daemons.iter().any(has_unsettled));
                settled(&daemons, &request).await;
                let after = sums(&machine);
                assert_eq!(after.values().sum::<usize>(), total, "seed {seed}: {request}");
                let free = |sums: &BTreeMap<_, usize>, kind| sums.get(&(kind, None)).copied();
                for kind in [Kind::Cpu, Kind::Device] {
                    assert_eq!(free(&after, kind), free(&before, kind), "seed {seed}: {request}");
                }
            }
        }
        println!("{sequences} sequences: {tally:?}");
        assert!(tally.done > sequences / 4, "{tally:?}");
        assert!(tally.killed >= sequences / 50, "{tally:?}");
        assert!(tally.killed_peers >= sequences / 50, "{tally:?}");
        assert!(sequences < SEQUENCES || tally.settled_later > 0, "{tally:?}");
    });
}

/// Asks; returns when there is an answer, or whoever was asked is dead.
async fn ask(
    machine: &Machine,
    daemons: &mut [Daemon; 2],
    at: usize,
    request: &Value,
    at_once: bool,
    tally: &mut Tally,
) {
    let path = format!("/v1/nodes/{at}/resize");
    let client = daemons[at].client.clone();
    let asked = {
        let request = request.clone();
        tokio::spawn(async move { client.operate::<NodeResult>(&path, &request, |_| {}).await })
    };
    let deadline = Instant::now() + LIMIT;
    while !asked.is_finished() {
        assert!(Instant::now() < deadline, "no answer and no death: {request}");
        if daemons[at].machine.is_dead() {
            asked.abort();
            return;
        }
        let peer = 1 - at;
        if daemons[peer].machine.is_dead() && !daemons[peer].is_killed() {
            // its connections end with it
            daemons[peer].kill();
            if at_once {
                revive(machine, daemons, peer).await;
                tally.killed_peers += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    match asked.await.unwrap() {
        Ok(_) => tally.done += 1,
        Err(mint_api::ClientError::Refused(body)) if body.exit_status() == 3 => tally.refused += 1,
        Err(_) => tally.failed += 1,
    }
}

fn has_unsettled(daemon: &Daemon) -> bool {
    daemon.app.ops.list().iter().any(|entry| entry.state.is_over() && entry.open.is_some())
}

/// Waits until nothing is half done any more.
async fn settled(daemons: &[Daemon; 2], request: &Value) {
    let deadline = Instant::now() + LIMIT;
    while daemons.iter().any(has_unsettled) {
        assert!(Instant::now() < deadline, "never settled: {request}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Kills a daemon, if it lives, and starts another one on its node.
async fn revive(machine: &Machine, daemons: &mut [Daemon; 2], which: usize) {
    let node = u32::try_from(which).unwrap();
    daemons[which].kill();
    daemons[which] = machine.daemon(node);
    assert_eq!(machine.state(node), Some(NodeState::Running));
    met(&daemons[1 - which], node).await;
    met(&daemons[which], id(1 - node).as_u32()).await;
}
