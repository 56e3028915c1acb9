// SPDX-License-Identifier: Apache-2.0
//! The death of a daemon between two of its calls.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// After so many calls that change something the caller is dead: it never comes back from
/// the next one, and does nothing more.
#[derive(Default)]
pub(super) struct Doom {
    pub(super) calls_left: Mutex<Option<u32>>,
    pub(super) dead: AtomicBool,
}

impl Doom {
    pub(super) fn reached(&self) {
        {
            let mut left = self.calls_left.lock().expect("nothing panics in here");
            match left.as_mut() {
                None => return,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    return;
                }
            }
        }
        self.dead.store(true, Ordering::Relaxed);
        loop {
            std::thread::park();
        }
    }
}
