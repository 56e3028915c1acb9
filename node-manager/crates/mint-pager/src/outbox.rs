// SPDX-License-Identifier: Apache-2.0
//! What is to be said to a memory server. Somebody waits for what is asked for, and nobody for what
//! goes there: so a page that is asked for is asked for ahead of pages that go and have not gone.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use mint_split::Frame;

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    /// Nobody says more, or nobody takes it.
    is_over: bool,
}

#[derive(Default)]
struct Outbox {
    queue: Mutex<Queue>,
    news: Condvar,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.news.notify_one();
    }
}

/// Who has something to say.
pub(crate) struct Sayer(Arc<Outbox>);

/// Who says it.
pub(crate) struct Said(Arc<Outbox>);

/// Both ends.
pub(crate) fn outbox() -> (Sayer, Said) {
    let outbox = Arc::new(Outbox::default());
    (Sayer(outbox.clone()), Said(outbox))
}

impl Sayer {
    /// Has a frame said; nothing if nobody says anything any more.
    pub fn say(&self, frame: Frame) {
        let mut queue = self.0.lock();
        if !queue.is_over {
            put(&mut queue.frames, frame);
            self.0.news.notify_one();
        }
    }
}

impl Drop for Sayer {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Said {
    /// Waits for the next frame; none when all is said, and nobody has more to say.
    pub fn next(&self) -> Option<Frame> {
        let mut queue = self.0.lock();
        loop {
            if let Some(frame) = queue.frames.pop_front() {
                return Some(frame);
            }
            if queue.is_over {
                return None;
            }
            queue = self.0.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        self.0.end();
        self.0.lock().frames.clear();
    }
}

/// What asks for pages overtakes pages that go, and what is kept no more: all that is about the
/// pages that it asks for was heard before, or they would not be asked for. It overtakes nothing else.
pub(crate) fn put(frames: &mut VecDeque<Frame>, frame: Frame) {
    let can_wait = |frame: &&Frame| matches!(frame, Frame::Out(_) | Frame::Drop(_));
    let waiting = match frame {
        Frame::In(_) => frames.iter().rev().take_while(can_wait).count(),
        _ => 0,
    };
    frames.insert(frames.len() - waiting, frame);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mint_split::{PageNo, PageRun, Pages, Version};

    use super::*;

    fn asks(page: u64) -> Frame {
        Frame::In(PageRun { first: PageNo(page), count: 1 })
    }

    fn goes(page: u64) -> Frame {
        Frame::Out(Pages::from(PageNo(page)))
    }

    fn is_kept_no_more(page: u64) -> Frame {
        Frame::Drop(vec![(PageNo(page), Version(1))])
    }

    #[test]
    fn what_asks_overtakes_what_goes_and_keeps_its_turn_otherwise() {
        let (sayer, said) = outbox();
        let drop_9 = is_kept_no_more(9);
        for frame in [goes(1), Frame::List, goes(2), asks(3), drop_9.clone(), goes(4), asks(5)] {
            sayer.say(frame);
        }
        drop(sayer);
        let all: Vec<Frame> = std::iter::from_fn(|| said.next()).collect();
        assert_eq!(all, [goes(1), Frame::List, asks(3), asks(5), goes(2), drop_9, goes(4)]);
    }

    #[test]
    fn each_end_hears_of_the_others() {
        let (sayer, said) = outbox();
        let waits = thread::spawn(move || (said.next(), said.next(), said));
        sayer.say(asks(1));
        let weak = Arc::downgrade(&sayer.0);
        drop(sayer);
        let (first, second, said) = waits.join().unwrap();
        assert_eq!((first, second), (Some(asks(1)), None));
        drop(said);
        assert!(weak.upgrade().is_none());

        let (sayer, said) = outbox();
        sayer.say(goes(1));
        drop(said);
        sayer.say(goes(2));
        assert_eq!(sayer.0.lock().frames.len(), 0, "nobody takes them");
    }
}
