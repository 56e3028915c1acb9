// SPDX-License-Identifier: Apache-2.0
//! No guest comes to a node while all that run on it go, or when its end follows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether guests may come.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Operations that keep it closed.
    closers: u32,
    until: Option<Instant>,
}

impl State {
    fn is_closed(&self) -> bool {
        self.closers > 0 || self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Keeps the gate closed.
#[derive(Debug)]
pub(crate) struct Closed(Arc<Gate>);

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no guest may come now.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed()
    }

    /// Does what lets a guest come, unless the gate is closed; then none. Who closes it sees what
    /// was done before.
    pub fn pass<T>(&self, enter: impl FnOnce() -> T) -> Option<T> {
        let state = self.state();
        (!state.is_closed()).then(enter)
    }

    /// Closes it until the end of what this gives.
    pub fn close(self: &Arc<Self>) -> Closed {
        self.state().closers += 1;
        Closed(self.clone())
    }
}

impl Closed {
    /// It stays closed for so long from now on.
    pub fn stay(self, time: Duration) {
        self.0.state().until = Some(Instant::now() + time);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state().closers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_open_again_when_nobody_keeps_it_closed() {
        let gate = Arc::new(Gate::default());
        assert_eq!(gate.pass(|| 1), Some(1));
        let (one, other) = (gate.close(), gate.close());
        drop(one);
        assert!(gate.is_closed() && gate.pass(|| 1).is_none());
        drop(other);
        assert_eq!(gate.pass(|| 1), Some(1));
        gate.close().stay(Duration::from_secs(3600));
        assert!(gate.is_closed());
        gate.close().stay(Duration::ZERO);
        assert!(!gate.is_closed());
    }
}
