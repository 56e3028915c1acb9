// SPDX-License-Identifier: Apache-2.0
//! Following an operation: many may, at any time, and none of them holds it up.

use std::sync::Arc;

use mint_types::OperationId;
use tokio::sync::watch;

use crate::entry::Entry;
use crate::shared::Shared;

/// What happened to an operation.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    /// It said these lines.
    Lines(Vec<String>),
    /// It is over.
    Over(Box<Entry>),
}

/// Reads what an operation says.
pub struct Follower {
    shared: Arc<Shared>,
    id: OperationId,
    told: watch::Receiver<()>,
    /// Lines told so far, those that were dropped included.
    seen: u64,
    over: bool,
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>, id: OperationId, told: watch::Receiver<()>) -> Self {
        Self { shared, id, told, seen: 0, over: false }
    }

    /// What comes next; none after its end.
    pub async fn next(&mut self) -> Option<News> {
        loop {
            if self.over {
                return None;
            }
            self.told.mark_unchanged();
            if let Some(news) = self.look() {
                return Some(news);
            }
            // its owner dropped it: it was over
            self.told.changed().await.ok()?;
        }
    }

    fn look(&mut self) -> Option<News> {
        let state = self.shared.lock();
        let entry = &state.all.get(&self.id)?.entry;
        let first = entry.dropped_lines;
        let skip = usize::try_from(self.seen.saturating_sub(first)).unwrap_or(usize::MAX);
        let lines: Vec<String> = entry.progress.iter().skip(skip).cloned().collect();
        if !lines.is_empty() {
            self.seen = first + entry.progress.len() as u64;
            return Some(News::Lines(lines));
        }
        self.over = entry.state.is_over();
        self.over.then(|| News::Over(Box::new(entry.clone())))
    }
}
