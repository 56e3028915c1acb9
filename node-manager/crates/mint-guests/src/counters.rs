// SPDX-License-Identifier: Apache-2.0
//! What each vCPU's thread executed and missed since the last look, as the CPU's counters have it. They count only while
//! it runs its guest. Who has the counters is a trait.
//!
//! States: nothing was opened yet; groups of events are open, one for each thread; or it was given up, as this machine
//! has no counters or does not lend them, and stays so.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use mint_layout::NumaId;
use mint_types::CpuSet;

use crate::cpu_events::{Counts, Cpu, Event, EventSet, Fills, Sources};

/// Who counts: the kernel, or a fake of it in tests.
pub trait Counters: Send + Sync {
    /// Begins to count events of a thread together.
    ///
    /// # Errors
    /// When they cannot be counted.
    fn open(&self, thread: u32, events: &[Event]) -> Result<Box<dyn Group>, OpenError>;
}

/// Events of a thread; they end with this.
pub trait Group: Send {
    /// What they have counted since they were opened.
    ///
    /// # Errors
    /// When nobody counts any more.
    fn read(&self) -> io::Result<Totals>;
}

/// What a group has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Of each event.
    pub values: Vec<u64>,
    /// For so long the thread was on a CPU, nanoseconds.
    pub enabled_ns: u64,
    /// For so long of that there were counters for the group, nanoseconds.
    pub running_ns: u64,
}

/// Why a group was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such thread any more.
    #[error("the thread has ended")]
    Ended,
    /// This machine does not count such events, or not so many.
    #[error("this machine does not count that")]
    Cannot(#[source] io::Error),
    /// It is not allowed, or something is short.
    #[error("the kernel does not let it be counted")]
    Failed(#[source] io::Error),
}

/// What is told once.
#[derive(Debug)]
pub enum News {
    /// It is counted, from these.
    Counted(Sources),
    /// No event is known of such a CPU; none: nobody says which one this is.
    Unknown(Option<Cpu>),
    /// It cannot be counted here.
    Not(OpenError),
}

/// Counts of all threads.
pub struct Counting {
    counters: Arc<dyn Counters>,
    state: State,
    news: Option<News>,
}

enum State {
    New,
    On(On),
    GivenUp,
}

struct On {
    events: EventSet,
    /// By thread.
    groups: BTreeMap<u32, (Box<dyn Group>, Totals)>,
    /// Whether one was opened: then there are counters for these events.
    is_sure: bool,
}

impl Counting {
    /// Nothing is counted before the first look.
    pub fn new(counters: Arc<dyn Counters>) -> Self {
        Self { counters, state: State::New, news: None }
    }

    /// Looks at these threads, of all guests; others are not counted any more. Gives what each did since the look
    /// before: nothing of one that is new, or for which there was no counter meanwhile.
    pub fn look(&mut self, root: &Path, threads: &BTreeSet<u32>) -> BTreeMap<u32, Counts> {
        if matches!(self.state, State::New) && !threads.is_empty() {
            self.begin(root);
        }
        let State::On(on) = &mut self.state else { return BTreeMap::new() };
        let found = on.read(threads);
        let was_sure = on.is_sure;
        for &thread in threads {
            if let Err(error) = on.open(&*self.counters, thread) {
                // all of them: the others would be compared with what these are taken to do
                self.state = State::GivenUp;
                self.news = Some(News::Not(error));
                return BTreeMap::new();
            }
        }
        if on.is_sure && !was_sure {
            self.news = Some(News::Counted(on.events.sources()));
        }
        found
    }

    fn begin(&mut self, root: &Path) {
        let cpu = Cpu::read(root);
        self.state = match cpu.as_ref().and_then(EventSet::of) {
            Some(events) => State::On(On { events, groups: BTreeMap::new(), is_sure: false }),
            None => {
                self.news = Some(News::Unknown(cpu));
                State::GivenUp
            }
        };
    }

    /// What is to be told; once.
    pub fn news(&mut self) -> Option<News> {
        self.news.take()
    }
}

impl On {
    fn read(&mut self, threads: &BTreeSet<u32>) -> BTreeMap<u32, Counts> {
        let mut found = BTreeMap::new();
        self.groups.retain(|thread, (group, last)| {
            if !threads.contains(thread) {
                return false;
            }
            // one that cannot be read is opened anew
            let Ok(now) = group.read() else { return false };
            let values = since(last, &now);
            found.extend(values.and_then(|all| Some((*thread, self.events.counts(&all)?))));
            *last = now;
            true
        });
        found
    }

    fn open(&mut self, counters: &dyn Counters, thread: u32) -> Result<(), OpenError> {
        while !self.groups.contains_key(&thread) {
            match counters.open(thread, &self.events.events()) {
                Ok(group) => {
                    self.groups.insert(thread, (group, Totals::default()));
                    self.is_sure = true;
                }
                Err(OpenError::Ended) => return Ok(()),
                Err(OpenError::Cannot(why)) => match self.events.without_fills() {
                    Some(fewer) if !self.is_sure => self.events = fewer,
                    _ => return Err(OpenError::Cannot(why)),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What was counted between two looks: as much more than the counters have seen as the thread ran longer than they were
/// there for it. None: they were not at all.
fn since(last: &Totals, now: &Totals) -> Option<Vec<u64>> {
    let enabled_ns = now.enabled_ns.saturating_sub(last.enabled_ns);
    let running_ns = now.running_ns.saturating_sub(last.running_ns);
    if running_ns == 0 && enabled_ns > 0 {
        return None;
    }
    let before = last.values.iter().copied().chain(std::iter::repeat(0));
    let each = now.values.iter().zip(before).map(|(value, before)| {
        let more = u128::from(value.saturating_sub(before));
        let all = more * u128::from(enabled_ns.max(1)) / u128::from(running_ns.max(1));
        u64::try_from(all).unwrap_or(u64::MAX)
    });
    Some(each.collect())
}

/// Cache lines from each NUMA node, in the order of the list. Where there are two, what is not near is the other one's;
/// where there are more, nobody knows whose: none.
///
/// # Arguments
/// * `cpu` - that the thread ran on.
/// * `numas` - the CPUs of each NUMA node.
pub fn by_numa(fills: Fills, cpu: u32, numas: &[(NumaId, CpuSet)]) -> Option<Vec<u64>> {
    let Fills { near, far } = fills;
    let own = numas.iter().position(|(_, cpus)| cpus.contains(cpu))?;
    match (numas.len(), own) {
        (1, _) => Some(vec![near.saturating_add(far)]),
        (2, 0) => Some(vec![near, far]),
        (2, _) => Some(vec![far, near]),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/counters.rs"]
mod tests;
