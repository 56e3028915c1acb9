// SPDX-License-Identifier: Apache-2.0
//! What a guest reads one chunk after the other.

use mint_split::ChunkNo;

/// Faults in chunks that follow each other, as far as they are known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Streak {
    /// The chunk of the last one.
    last: u64,
    /// Chunks that come behind it; 0: it followed no other.
    window: u64,
    /// All up to this one were asked for.
    asked_to: u64,
    /// All up to this one are to be.
    wanted_to: u64,
}

impl Streak {
    /// Somebody waits for a page of a chunk that was elsewhere. As many chunks come behind it at
    /// most.
    pub fn fault(&mut self, chunk: ChunkNo, most: u64) {
        let goes_on = chunk.0 > self.last && chunk.0 <= self.asked_to.saturating_add(1);
        if !goes_on {
            // or it is another page of the same one
            if chunk.0 != self.last {
                *self = Self { last: chunk.0, asked_to: chunk.0, wanted_to: chunk.0, window: 0 };
            }
            return;
        }
        self.window = (self.window * 2).max(1).min(most);
        self.last = chunk.0;
        self.asked_to = self.asked_to.max(chunk.0);
        self.wanted_to = chunk.0.saturating_add(self.window);
    }

    /// The next chunk that is to be asked for, which it is then.
    pub fn next(&mut self) -> Option<ChunkNo> {
        (self.asked_to < self.wanted_to).then(|| {
            self.asked_to += 1;
            ChunkNo(self.asked_to)
        })
    }

    /// Whether there is none.
    pub fn is_over(&self) -> bool {
        self.asked_to >= self.wanted_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(streak: &mut Streak) -> Vec<u64> {
        std::iter::from_fn(|| streak.next()).map(|chunk| chunk.0).collect()
    }

    #[test]
    fn more_and_more_comes_behind_faults_that_follow_each_other() {
        let mut streak = Streak::default();
        streak.fault(ChunkNo(10), 8);
        assert_eq!(all(&mut streak).len(), 0);
        streak.fault(ChunkNo(10), 8);
        assert_eq!(all(&mut streak).len(), 0);
        streak.fault(ChunkNo(11), 8);
        assert_eq!(all(&mut streak), [12]);
        // the first that has not come
        streak.fault(ChunkNo(13), 8);
        assert_eq!(all(&mut streak), [14, 15]);
        // one that is on its way
        streak.fault(ChunkNo(15), 8);
        assert_eq!(all(&mut streak), [16, 17, 18, 19]);
        streak.fault(ChunkNo(20), 8);
        assert_eq!(all(&mut streak).len(), 8);
        streak.fault(ChunkNo(29), 8);
        assert_eq!(all(&mut streak).len(), 8);
    }

    #[test]
    fn fault_elsewhere_ends_it() {
        let mut streak = Streak::default();
        for chunk in [1, 2, 4] {
            streak.fault(ChunkNo(chunk), 8);
        }
        streak.fault(ChunkNo(40), 8);
        assert_eq!(all(&mut streak).len(), 0);
        streak.fault(ChunkNo(39), 8);
        assert_eq!(all(&mut streak).len(), 0);
        // nor does it run on where there is no room
        streak.fault(ChunkNo(40), 1);
        streak.fault(ChunkNo(41), 1);
        assert_eq!(all(&mut streak), [42]);
    }
}
