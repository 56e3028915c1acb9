// SPDX-License-Identifier: Apache-2.0
use std::sync::Mutex;

use super::*;

/// Counters of a machine: what they say of each thread.
#[derive(Default)]
struct Fake {
    threads: Mutex<BTreeMap<u32, Totals>>,
    /// Threads of groups that are open, and how many events each has.
    open: Mutex<BTreeMap<u32, usize>>,
    /// It has so many counters.
    counters: usize,
    /// It lends none.
    is_forbidden: Mutex<bool>,
    asked: Mutex<u32>,
}

struct FakeGroup(Arc<Fake>, u32);

/// The trait is a neighbour's, and so is the counted reference.
struct Machine(Arc<Fake>);

impl Counters for Machine {
    fn open(&self, thread: u32, events: &[Event]) -> Result<Box<dyn Group>, OpenError> {
        *self.0.asked.lock().unwrap() += 1;
        if *self.0.is_forbidden.lock().unwrap() {
            return Err(OpenError::Failed(io::ErrorKind::PermissionDenied.into()));
        }
        if events.len() > self.0.counters {
            return Err(OpenError::Cannot(io::ErrorKind::NotFound.into()));
        }
        if !self.0.threads.lock().unwrap().contains_key(&thread) {
            return Err(OpenError::Ended);
        }
        let before = self.0.open.lock().unwrap().insert(thread, events.len());
        assert_eq!(before, None, "once is enough");
        Ok(Box::new(FakeGroup(self.0.clone(), thread)))
    }
}

impl Group for FakeGroup {
    fn read(&self) -> io::Result<Totals> {
        let totals = self.0.threads.lock().unwrap().get(&self.1).cloned();
        totals.ok_or(io::ErrorKind::InvalidData.into())
    }
}

impl Drop for FakeGroup {
    fn drop(&mut self) {
        self.0.open.lock().unwrap().remove(&self.1);
    }
}

struct Host {
    root: tempfile::TempDir,
    fake: Arc<Fake>,
    counting: Counting,
}

impl Host {
    fn new(cpuinfo: &str, counters: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        let fake = Arc::new(Fake { counters, ..Fake::default() });
        let counting = Counting::new(Arc::new(Machine(fake.clone())));
        Self { root, fake, counting }
    }

    /// A thread has done so much in all.
    fn did(&self, thread: u32, values: &[u64], enabled_ns: u64, running_ns: u64) {
        let totals = Totals { values: values.to_vec(), enabled_ns, running_ns };
        self.fake.threads.lock().unwrap().insert(thread, totals);
    }

    fn look(&mut self, threads: &[u32]) -> BTreeMap<u32, Counts> {
        self.counting.look(self.root.path(), &threads.iter().copied().collect())
    }

    fn open(&self) -> Vec<(u32, usize)> {
        self.fake.open.lock().unwrap().clone().into_iter().collect()
    }
}

const ZEN3: &str = "vendor_id: AuthenticAMD\ncpu family: 25\nmodel: 1\n";

fn counts(instructions: u64, near: u64, far: u64) -> Counts {
    Counts { instructions, misses: near + far, fills: Some(Fills { near, far }) }
}

#[test]
fn each_look_tells_what_happened_since_the_last() {
    let mut host = Host::new(ZEN3, 6);
    assert_eq!(host.look(&[]), BTreeMap::new());
    assert!(host.counting.news().is_none(), "nobody is there to be counted");
    host.did(7, &[0, 0, 0], 0, 0);
    host.did(8, &[0, 0, 0], 0, 0);
    assert_eq!(host.look(&[7, 8]), BTreeMap::new(), "since when?");
    let Some(News::Counted(sources)) = host.counting.news() else { panic!() };
    assert!(sources.misses.contains("AMD family 19h") && sources.fills.is_some());
    host.did(7, &[1000, 10, 5], 500, 500);
    assert_eq!(host.look(&[7, 8]), [(7, counts(1000, 10, 5)), (8, counts(0, 0, 0))].into());
    host.did(7, &[1500, 10, 9], 900, 900);
    assert_eq!(host.look(&[7, 8])[&7], counts(500, 0, 4));
    assert!(host.counting.news().is_none(), "it was told");
}

#[test]
fn threads_come_and_end() {
    let mut host = Host::new(ZEN3, 6);
    host.did(7, &[0, 0, 0], 0, 0);
    // 8 has ended before it was looked at
    host.look(&[7, 8]);
    assert_eq!(host.open(), [(7, 3)]);
    host.did(8, &[0, 0, 0], 0, 0);
    host.look(&[7, 8]);
    assert_eq!(host.open(), [(7, 3), (8, 3)]);
    // one that cannot be read begins anew
    host.fake.threads.lock().unwrap().remove(&8);
    assert!(!host.look(&[7, 8]).contains_key(&8));
    assert_eq!(host.open(), [(7, 3)]);
    host.look(&[8]);
    assert_eq!(host.open(), []);
}

/// Others want counters, too: the group had them for a quarter of its time.
#[test]
fn what_was_counted_for_a_part_of_the_time_stands_for_all_of_it() {
    let mut host = Host::new(ZEN3, 6);
    host.did(7, &[0, 0, 0], 0, 0);
    host.look(&[7]);
    host.did(7, &[1000, 8, 2], 400, 100);
    assert_eq!(host.look(&[7])[&7], counts(4000, 32, 8));
    host.did(7, &[1000, 8, 2], 800, 100);
    assert_eq!(host.look(&[7]), BTreeMap::new(), "it had none");
    host.did(7, &[1100, 8, 2], 900, 200);
    assert_eq!(host.look(&[7])[&7], counts(100, 0, 0));
    // as much as no counter holds
    host.did(7, &[u64::MAX, 8, 2], u64::MAX, 201);
    assert_eq!(host.look(&[7])[&7].instructions, u64::MAX);
}

#[test]
fn machine_with_few_counters_counts_without_fills() {
    let mut host = Host::new(ZEN3, 2);
    host.did(7, &[0, 0], 0, 0);
    host.look(&[7]);
    assert_eq!(host.open(), [(7, 2)]);
    let Some(News::Counted(sources)) = host.counting.news() else { panic!() };
    assert_eq!(sources.fills, None);
    host.did(7, &[1000, 9], 10, 10);
    assert_eq!(host.look(&[7])[&7], Counts { instructions: 1000, misses: 9, fills: None });
}

#[test]
fn machine_without_counters_is_asked_once() {
    let mut host = Host::new(ZEN3, 0);
    host.did(7, &[0, 0, 0], 0, 0);
    host.look(&[7]);
    assert!(matches!(host.counting.news(), Some(News::Not(OpenError::Cannot(_)))));
    assert_eq!(*host.fake.asked.lock().unwrap(), 2, "with and without fills");
    assert_eq!(host.look(&[7, 8]), BTreeMap::new());
    assert_eq!(*host.fake.asked.lock().unwrap(), 2);
    assert!(host.counting.news().is_none());
}

#[test]
fn what_is_forbidden_ends_all_of_it() {
    let mut host = Host::new(ZEN3, 6);
    host.did(7, &[0, 0, 0], 0, 0);
    host.did(8, &[0, 0, 0], 0, 0);
    host.look(&[7]);
    host.counting.news();
    *host.fake.is_forbidden.lock().unwrap() = true;
    assert_eq!(host.look(&[7, 8]), BTreeMap::new());
    assert!(matches!(host.counting.news(), Some(News::Not(OpenError::Failed(_)))));
    assert_eq!(host.open(), []);
    assert_eq!(host.look(&[7, 8]), BTreeMap::new());
    assert_eq!(*host.fake.asked.lock().unwrap(), 2);
}

#[test]
fn cpu_that_nobody_knows_counts_nothing() {
    let mut host = Host::new("vendor_id: AuthenticAMD\ncpu family: 21\nmodel: 1\n", 6);
    host.did(7, &[0, 0, 0], 0, 0);
    assert_eq!(host.look(&[7]), BTreeMap::new());
    let Some(News::Unknown(Some(cpu))) = host.counting.news() else { panic!() };
    assert_eq!(cpu.to_string(), "AMD family 15h");
    host.look(&[7]);
    assert!(host.counting.news().is_none());
    assert_eq!(*host.fake.asked.lock().unwrap(), 0);
}

#[test]
fn far_lines_are_the_other_nodes_where_there_is_one() {
    let numas = |cpus: &[&str]| -> Vec<(NumaId, CpuSet)> {
        let ids = (0..).step_by(2).map(NumaId);
        ids.zip(cpus.iter().map(|set| set.parse().unwrap())).collect()
    };
    let fills = Fills { near: 3, far: 40 };
    let two = numas(&["0-1", "2-3"]);
    assert_eq!(by_numa(fills, 1, &two), Some(vec![3, 40]));
    assert_eq!(by_numa(fills, 2, &two), Some(vec![40, 3]));
    assert_eq!(by_numa(fills, 4, &two), None, "a CPU that has gone");
    assert_eq!(by_numa(fills, 0, &numas(&["0-1"])), Some(vec![43]));
    assert_eq!(by_numa(fills, 0, &numas(&["0-1", "2", "3"])), None);
    assert_eq!(by_numa(fills, 0, &[]), None);
}
