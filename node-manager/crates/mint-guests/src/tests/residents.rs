// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::domain::VcpuPin;
use mint_layout::{NumaNode, Sample};

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x7f00_0000_0000;

/// Pages by ranges of addresses, a NUMA node each.
struct Table(Vec<(std::ops::Range<u64>, u32)>);

impl Pages for Table {
    fn numas(&self, process: u32, addresses: &[u64]) -> io::Result<Vec<Option<NumaId>>> {
        if process != 70 {
            return Err(io::Error::from_raw_os_error(3));
        }
        let of = |address: &u64| {
            let found = self.0.iter().find(|(range, _)| range.contains(address));
            found.map(|(_, numa)| NumaId(*numa))
        };
        Ok(addresses.iter().map(of).collect())
    }
}

fn host() -> Topology {
    let node = |id: u32, cpus: &str, distances: [u32; 2]| NumaNode {
        id: NumaId(id),
        caches: vec![cpus.parse().unwrap()],
        memory_bytes: 1 << 30,
        distances: distances.into(),
    };
    Topology::new(vec![node(1, "2-3", [10, 20]), node(4, "5-6", [20, 10])]).unwrap()
}

fn resident() -> Resident {
    let thread = |vcpu: u32, cpu: u32| VcpuThread {
        vcpu,
        tid: 71 + vcpu,
        run_ms: 0,
        cpu,
        allowed: "2-6".parse().unwrap(),
    };
    Resident {
        running: Running {
            uuid: "u-1".into(),
            name: "web".into(),
            qemu: 70,
            pins: Vec::new(),
            marked: Vec::new(),
            is_fixed: false,
            is_coming: false,
        },
        threads: vec![thread(0, 6), thread(1, 2)],
        ram: Some(RamMapping { address: ADDRESS, bytes: 9 * MIB, offset: MIB, is_file: true }),
        samples: vec![vec![Sample { span_ms: 1, ..Sample::default() }].into()],
    }
}

fn at(from_mib: u64, to_mib: u64) -> std::ops::Range<u64> {
    ADDRESS + from_mib * MIB..ADDRESS + to_mib * MIB
}

#[test]
fn pieces_that_have_pages_are_where_most_of_them_are() {
    // the third piece is mixed, the fourth empty, the last short
    let pages = Table(vec![(at(0, 4), 1), (at(4, 5), 1), (at(5, 6), 4), (at(8, 9), 4)]);
    let pieces = resident().pieces(&pages).unwrap();
    let offsets: Vec<u64> = pieces.iter().map(|piece| piece.offset / MIB).collect();
    assert_eq!(offsets, [1, 3, 5, 7, 9]);
    assert_eq!(pieces[2].there, BTreeMap::from([(NumaId(1), MIB), (NumaId(4), MIB)]));
    assert_eq!(bytes_there(&pieces), BTreeMap::from([(NumaId(1), 5 * MIB), (NumaId(4), 2 * MIB)]));
    let guest = resident().guest(&host(), &pieces);
    let regions: Vec<_> = guest.regions.iter().map(|one| (one.bytes / MIB, one.numa.0)).collect();
    assert_eq!(regions, [(2, 0), (2, 0), (2, 0), (1, 1)]);
    let profile = resident().profile(&pieces);
    let range = |one: &Range| (one.offset / MIB, one.bytes / MIB, one.heat.unwrap() > 0.0);
    let ranges: Vec<_> = profile.ranges.iter().map(range).collect();
    assert_eq!(ranges, [(1, 6, true), (7, 2, false), (9, 1, true)]);
    let heats: Vec<f64> = profile.ranges.iter().filter_map(|one| one.heat).collect();
    assert!((heats[0] / heats[2] - 6.0).abs() < 1e-9, "{heats:?}");
    assert_eq!(profile.vcpus.len(), 2, "of the second nothing was measured yet");
    assert_eq!(profile.check(), Ok(()));
}

#[test]
fn vcpus_are_where_they_ran_and_may_run() {
    let domains = |resident: &Resident| -> Vec<(usize, String)> {
        let guest = resident.guest(&host(), &[]);
        guest.vcpus.iter().map(|vcpu| (vcpu.domain.0, vcpu.allowed.to_string())).collect()
    };
    let mut web = resident();
    assert_eq!(domains(&web), [(1, String::new()), (0, String::new())]);
    // kept to a CPU of the other node, and to one that is not there any more
    let pin = |vcpu: u32, cpus: &str| VcpuPin { vcpu, cpus: cpus.parse().unwrap() };
    web.running.pins = vec![pin(0, "3"), pin(1, "9")];
    assert_eq!(domains(&web), [(0, "3".into()), (0, String::new())]);
    // it has been kept to others since it ran last
    web.running.pins.clear();
    web.threads[1].allowed = "5".parse().unwrap();
    assert_eq!(domains(&web)[1], (1, String::new()));
    let snapshot = mint_layout::Snapshot { guests: vec![web.guest(&host(), &[])] };
    assert_eq!(snapshot.check(&host()), Ok(()));
}

#[test]
fn guest_whose_memory_is_not_known_has_no_regions_and_one_that_ended_is_an_error() {
    let mut web = resident();
    web.ram = None;
    assert_eq!(web.pieces(&Table(Vec::new())).unwrap(), []);
    let mut ended = resident();
    ended.running.qemu = 71;
    assert!(ended.pieces(&Table(Vec::new())).is_err());
}

/// Of a guest of a TiB not more is looked at than of one of some GiB.
#[test]
fn large_guests_are_looked_at_here_and_there() {
    struct Counting(std::cell::Cell<usize>);
    impl Pages for Counting {
        fn numas(&self, _: u32, addresses: &[u64]) -> io::Result<Vec<Option<NumaId>>> {
            self.0.set(self.0.get() + addresses.len());
            Ok(vec![Some(NumaId(1)); addresses.len()])
        }
    }
    let mut web = resident();
    web.ram = Some(RamMapping { address: ADDRESS, bytes: 1 << 40, offset: 0, is_file: true });
    let counting = Counting(std::cell::Cell::new(0));
    let pieces = web.pieces(&counting).unwrap();
    assert_eq!((pieces.len(), counting.0.get()), (256, 256 * 64));
    assert_eq!(bytes_there(&pieces), BTreeMap::from([(NumaId(1), 1 << 40)]));
}
