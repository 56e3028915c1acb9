// SPDX-License-Identifier: Apache-2.0
//! L's experiments (5.3 to 5.5).

use mint_layout::{Profile, Snapshot, Topology, by_default};
use mint_types::{CpuSet, LayoutPolicy};

use crate::error::SimError;
use crate::guest::{Behaviour, CUBIC_CALC, MALLOC_ACCESS};
use crate::machine::Machine;

const GIB: u64 = 1 << 30;
/// Memory of a guest.
const GUEST_GIB: u64 = 5;
/// What is free of each NUMA node of a crowded host: what a guest uses fits on none, and what no guest has is
/// taken by something that nobody moves.
const FREE_GIB: u64 = 1;
/// Memory of a NUMA node (L, 5.2: 128 GB of eight).
const NODE_GIB: u64 = 16;
/// The guest that comes. By its name it chooses after residents that are like it.
pub const INCOMING: &str = "vm3";

/// How a host is before the guest comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// All eight NUMA nodes, the memory of each nearly full (L, 5.3.1). A guest comes to the first; what it uses comes to
    /// the two that have a resident each, half of it to either.
    Crowded,
    /// The two NUMA nodes of a socket, with room on both: a guest comes beside the first resident (L, 5.4.1).
    Beside,
}

impl Situation {
    /// NUMA nodes of the host.
    fn nodes(self) -> usize {
        match self {
            Self::Crowded => 8,
            Self::Beside => 2,
        }
    }

    /// The NUMA nodes of the residents.
    fn homes(self) -> [usize; 2] {
        match self {
            Self::Crowded => [3, 4],
            Self::Beside => [0, 1],
        }
    }
}

/// What L says. None: nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Paper {
    /// The part of its throughput that the guest loses where nobody does anything (default).
    pub loss: Option<f64>,
    /// Seconds after which it has that again where it is arranged after it has come (existing method).
    pub recovery_s: Option<usize>,
    /// The part of its throughput that a resident loses.
    pub price: Option<f64>,
}

/// An experiment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// As files and tables call it.
    pub name: &'static str,
    /// Whose plans are carried out.
    pub policy: LayoutPolicy,
    /// How the host is.
    pub situation: Situation,
    /// What the guest does that comes.
    pub incoming: Behaviour,
    /// What the two do that are there, each on its own NUMA node.
    pub residents: [Behaviour; 2],
    /// What L says of it.
    pub paper: Paper,
}

const NOTHING: Paper = Paper { loss: None, recovery_s: None, price: None };
const SIMPLE: Case = Case {
    name: "1-1",
    policy: LayoutPolicy::Simple,
    situation: Situation::Crowded,
    incoming: MALLOC_ACCESS,
    residents: [CUBIC_CALC; 2],
    paper: Paper { loss: Some(0.404), recovery_s: Some(22), price: None },
};
const DINO: Case = Case {
    name: "2",
    policy: LayoutPolicy::Dino,
    situation: Situation::Beside,
    residents: [MALLOC_ACCESS, CUBIC_CALC],
    paper: Paper { loss: Some(0.308), recovery_s: Some(17), price: Some(0.100) },
    ..SIMPLE
};
const ASYMSCHED: Case = Case {
    name: "3",
    policy: LayoutPolicy::Asymsched,
    paper: Paper { loss: Some(0.390), recovery_s: Some(12), price: None },
    ..SIMPLE
};

/// All of them; the first is the one that constants are fitted to.
pub const CASES: [Case; 6] = [
    SIMPLE,
    Case {
        name: "1-2",
        incoming: CUBIC_CALC,
        residents: [MALLOC_ACCESS; 2],
        paper: NOTHING,
        ..SIMPLE
    },
    DINO,
    Case { name: "2-cubic", incoming: CUBIC_CALC, paper: NOTHING, ..DINO },
    ASYMSCHED,
    Case { name: "3-cubic", incoming: CUBIC_CALC, paper: NOTHING, ..ASYMSCHED },
];

impl Case {
    /// The host and its residents, each with all of its memory on its own NUMA node.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn host(&self, machine: &Machine) -> Result<(Topology, Snapshot), SimError> {
        let homes = self.situation.homes();
        let gib = |at: usize| match self.situation {
            Situation::Crowded if homes.contains(&at) => GUEST_GIB + FREE_GIB,
            Situation::Crowded => FREE_GIB,
            Situation::Beside => NODE_GIB,
        };
        let bytes: Vec<u64> = (0..self.situation.nodes()).map(|at| gib(at) * GIB).collect();
        let topology = machine.host(&bytes)?;
        let mut snapshot = Snapshot::default();
        for (at, (behaviour, home)) in self.residents.iter().zip(homes).enumerate() {
            let profile = behaviour.profile(&format!("vm{}", at + 1), machine);
            let cpus = topology.domains()[home].cpus.clone();
            let mut guest = by_default(&topology, &snapshot, &profile, &[cpus])?;
            for vcpu in &mut guest.vcpus {
                vcpu.allowed = CpuSet::default();
            }
            snapshot.guests.push(guest);
        }
        Ok((topology, snapshot))
    }

    /// The guest that comes, as its last host has measured it.
    pub fn profile(&self, machine: &Machine) -> Profile {
        self.incoming.profile(INCOMING, machine)
    }

    /// What all guests do, the one that comes last.
    pub fn behaviours(&self) -> [Behaviour; 3] {
        let [one, other] = self.residents;
        [one, other, self.incoming]
    }
}
