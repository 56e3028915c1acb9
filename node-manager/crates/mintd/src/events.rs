// SPDX-License-Identifier: Apache-2.0
//! What happens to nodes: numbered, kept, written to `/run/mint/events.jsonl`, and told to
//! whoever listens. `changes.rs` reads it from the kernel; what a node's kernel cannot
//! report itself is found by `heartbeats.rs`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use mint_api::EventView;
use mint_types::{NodeId, NodeStatus};
use tokio::sync::broadcast;
use tracing::warn;

/// Events kept for those who come late.
const KEPT: usize = 1024;
/// The file takes the name `….old`, and a new one begins, when it would grow beyond this.
const FILE_BYTES_MAX: u64 = 4 << 20;

struct Log {
    next: u64,
    kept: VecDeque<EventView>,
    file: LogFile,
}

/// Events as lines, and as many of the older ones in a second file.
struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    bytes: u64,
    /// None: the last try failed.
    file: Option<File>,
}

impl LogFile {
    fn open(path: &Path, bytes_max: u64) -> Self {
        let mut log = Self { path: path.to_owned(), bytes_max, bytes: 0, file: None };
        log.reopen();
        log
    }

    fn reopen(&mut self) {
        self.file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .map_err(|error| warn!(path = %self.path.display(), %error, "events are not written"))
            .ok();
        self.bytes = std::fs::metadata(&self.path).map_or(0, |found| found.len());
    }

    fn write(&mut self, line: &[u8]) {
        let bytes = line.len() as u64;
        if self.bytes > 0 && self.bytes + bytes > self.bytes_max {
            let mut old = self.path.clone().into_os_string();
            old.push(".old");
            if let Err(error) = std::fs::rename(&self.path, old) {
                warn!(%error, "event not written: its file is full");
                return;
            }
            self.reopen();
        }
        self.bytes += bytes;
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.write_all(line)) {
            warn!(%error, "event not written");
        }
    }
}

/// The stream of events.
#[derive(Clone)]
pub(crate) struct EventLog {
    log: Arc<Mutex<Log>>,
    subscribers: broadcast::Sender<EventView>,
}

impl EventLog {
    /// Writes to that file as well; without it if that cannot be.
    pub fn open(path: &Path) -> Self {
        Self::open_limited(path, FILE_BYTES_MAX)
    }

    fn open_limited(path: &Path, bytes_max: u64) -> Self {
        let file = LogFile::open(path, bytes_max);
        let log = Log { next: 1, kept: VecDeque::new(), file };
        Self { log: Arc::new(Mutex::new(log)), subscribers: broadcast::channel(KEPT).0 }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many events have been told.
    pub fn told(&self) -> u64 {
        self.lock().next - 1
    }

    /// Numbers and tells an event.
    pub fn tell(&self, mut event: EventView) {
        let mut log = self.lock();
        event.seq = log.next;
        event.seen_ns = now_ns();
        log.next += 1;
        if log.kept.len() == KEPT {
            log.kept.pop_front();
        }
        log.kept.push_back(event.clone());
        let mut line = serde_json::to_vec(&event).expect("events are plain data");
        line.push(b'\n');
        log.file.write(&line);
        // in the lock: subscribers see the order of the numbers
        _ = self.subscribers.send(event);
    }

    /// Kept events after that number, and all later ones, without a gap.
    pub fn subscribe(&self, since: u64) -> (Vec<EventView>, broadcast::Receiver<EventView>) {
        let log = self.lock();
        let kept = log.kept.iter().filter(|event| event.seq > since).cloned().collect();
        (kept, self.subscribers.subscribe())
    }
}

pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn view(
    kind: &str,
    node: NodeId,
    status: Option<&NodeStatus>,
    time_ns: u64,
) -> EventView {
    EventView {
        seq: 0,
        time_ns,
        seen_ns: 0,
        event: kind.into(),
        node: node.as_u32(),
        name: status.map_or_else(|| format!("node{node}"), NodeStatus::display_name),
        old: None,
        new: None,
        reason: status.map_or_else(String::new, |status| status.reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latecomers_get_what_was_kept_without_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let log = EventLog::open(&path);
        let event = || view("state", NodeId::ZERO, None, 5);
        log.tell(event());
        log.tell(event());
        let (kept, mut later) = log.subscribe(1);
        assert_eq!(kept.iter().map(|event| event.seq).collect::<Vec<_>>(), [2]);
        log.tell(event());
        assert_eq!(later.try_recv().unwrap().seq, 3);
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| serde_json::from_str::<EventView>(line).is_ok()));
    }

    #[test]
    fn file_and_the_one_before_it_stay_below_their_limit() {
        const LIMIT: u64 = 4096;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let old = folder.path().join("events.jsonl.old");
        let mut last = 0;
        // a daemon that starts again goes on with the file that is there
        for _ in 0..2 {
            let log = EventLog::open_limited(&path, LIMIT);
            for _ in 0..100 {
                log.tell(view("state", NodeId::ZERO, None, 5));
                last = log.told();
                for file in [&path, &old] {
                    let bytes = std::fs::metadata(file).map_or(0, |found| found.len());
                    assert!(bytes <= LIMIT, "{}: {bytes} bytes", file.display());
                }
            }
        }
        let seq = |line: &str| serde_json::from_str::<EventView>(line).unwrap().seq;
        let text = [old, path].map(|file| std::fs::read_to_string(file).unwrap()).concat();
        let seqs: Vec<u64> = text.lines().map(seq).collect();
        assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "no gap: {seqs:?}");
        assert!(seqs.len() > 20 && seqs.last() == Some(&last), "{seqs:?}");
    }
}
