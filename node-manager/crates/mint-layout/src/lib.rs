// SPDX-License-Identifier: Apache-2.0
//! Where guests' vCPUs and memory lie on the NUMA nodes of a host ("Resource layout optimization for live
//! migration", called L here; section numbers are that paper's).
//!
//! A [`Profile`] is what a guest's host tells the next one of it (Transferer, 4.2), and [`land`] what that one makes of
//! it. A [`Snapshot`] says what runs on a host of some [`Topology`] and what was measured of it (Monitor, 4.1). A
//! [`Policy`] makes a [`Plan`] of it (Optimizer, 4.3): which CPUs each vCPU runs on, and which NUMA
//! node has each range of a guest's memory. No policy can tell a guest that is about to land from one that runs
//! (3.2): a snapshot has no such field. [`policy()`] has those of L's table 1 and of its section 6 by their names, and
//! [`Guards`] say how much of a plan may be done now. This crate touches nothing; who carries a plan out is not known
//! here.

mod asymsched;
mod brm;
mod carrefour;
mod case;
mod choice;
mod cost;
mod dino;
mod guards;
#[cfg(test)]
#[path = "tests/host.rs"]
mod host;
mod landing;
mod layout;
mod model;
#[cfg(test)]
#[path = "tests/optimum.rs"]
mod optimum;
mod placement;
mod plan;
mod policy;
mod profile;
#[cfg(test)]
#[path = "tests/random.rs"]
mod random;
mod rank;
mod room;
mod sample;
mod simple;
mod snapshot;
mod table;
mod topology;

pub use asymsched::AsymSched;
pub use brm::Brm;
pub use carrefour::Carrefour;
pub use choice::policy;
pub use cost::{Cost, LOCAL_CYCLES};
pub use dino::{Dino, DinoLimits};
pub use guards::{Allowed, GuardLimits, Guards, Held, HeldWhy};
pub use landing::{Bind, Landing, LandingError, by_default, land};
pub use model::Model;
pub use plan::{Pins, Plan, Relocation, Why};
pub use policy::{Limits, Policy, PolicyError};
pub use profile::{Profile, ProfileError, RANGES_MAX, Range, VCPUS_MAX};
pub use sample::{RING, Ring, Sample};
pub use simple::Simple;
pub use snapshot::{Confidence, Guest, GuestId, Region, Signal, Snapshot, SnapshotError, Vcpu};
pub use topology::{CacheDomain, DomainNo, NumaId, NumaNo, NumaNode, Topology, TopologyError};
