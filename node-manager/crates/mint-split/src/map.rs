// SPDX-License-Identifier: Apache-2.0
//! A picture of a guest's memory: where its pages are, and when they were used (S-memV, 4-1, 4-3).

use serde::{Deserialize, Serialize};

use crate::ages::Ages;
use crate::geometry::{ChunkNo, Geometry, PageNo};
use crate::places::{Place, Places};

/// A picture has so many cells at most.
pub const CELLS_MAX: u64 = 4096;

/// A guest's memory, from its first page to its last.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MemoryMap {
    /// Pages of a cell; the last one may have fewer.
    pub cell_pages: u64,
    /// Each cell.
    pub cells: Vec<MapCell>,
}

/// Chunks that follow each other.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MapCell {
    /// Pages that nobody has touched.
    pub virgin: u64,
    /// Pages on the main host, on their way to another one among them.
    pub here: u64,
    /// Pages on other hosts, by their number in the guest's list of them.
    pub elsewhere: Vec<(u16, u64)>,
    /// When the page was used that was used last, as its history says: 0 is not lately.
    pub age: u8,
}

/// Chunks of a cell: a power of two, so that there are [`CELLS_MAX`] cells at most.
#[must_use]
pub fn cell_chunks(geometry: Geometry) -> u64 {
    geometry.chunks().div_ceil(CELLS_MAX).next_power_of_two()
}

impl MapCell {
    /// From that chunk on, as many as [`cell_chunks`] says.
    #[must_use]
    pub fn of(places: &Places<'_>, ages: &Ages<'_>, first: ChunkNo) -> Self {
        let geometry = places.geometry();
        let end = first.0.saturating_add(cell_chunks(geometry)).min(geometry.chunks());
        let mut cell = Self::default();
        for chunk in (first.0..end).map(ChunkNo) {
            cell.age = cell.age.max(ages.youngest(chunk));
            for page in geometry.pages_of(chunk).map(PageNo) {
                match places.place(page) {
                    Some(Place::Virgin) => cell.virgin += 1,
                    Some(Place::Local | Place::Leaving { .. }) => cell.here += 1,
                    Some(Place::Remote { at, .. } | Place::Coming { from: at, .. }) => {
                        match cell.elsewhere.iter_mut().find(|(sub, _)| *sub == at.0) {
                            Some((_, pages)) => *pages += 1,
                            None => cell.elsewhere.push((at.0, 1)),
                        }
                    }
                    None => {}
                }
            }
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::PAGE_BYTES;

    #[test]
    fn cell_counts_pages_by_place_and_is_as_young_as_its_youngest() {
        let geometry = Geometry::new(12 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        let (mut words, mut subs, mut bytes) = ([0; 12], [0, 0, 1], [0; 12]);
        // local, at a sub host in version 1
        (words[0], words[1], words[2]) = (1, 3 | 1 << 3, 3 | 1 << 3);
        (words[8], bytes[2], bytes[3]) = (3 | 1 << 3, 0x20, 0x40);
        let places = Places::open(geometry, &mut words, &mut subs).unwrap();
        let ages = Ages::open(geometry, &mut bytes).unwrap();
        assert_eq!(cell_chunks(geometry), 1);
        let cells = [0, 1, 2].map(|chunk| MapCell::of(&places, &ages, ChunkNo(chunk)));
        let cell = |virgin, here, elsewhere: &[(u16, u64)], age| MapCell {
            virgin,
            here,
            elsewhere: elsewhere.to_vec(),
            age,
        };
        assert_eq!(
            cells,
            [cell(1, 1, &[(0, 2)], 0x40), cell(4, 0, &[], 0), cell(3, 0, &[(1, 1)], 0)]
        );
    }

    #[test]
    fn there_are_never_more_cells_than_a_picture_has() {
        for chunks in [1, CELLS_MAX, CELLS_MAX + 1, 3 * CELLS_MAX, 1 << 24] {
            let geometry = Geometry::new(chunks * PAGE_BYTES, PAGE_BYTES).unwrap();
            let cells = chunks.div_ceil(cell_chunks(geometry));
            assert!(cells <= CELLS_MAX && 2 * cells > CELLS_MAX.min(chunks), "{chunks}: {cells}");
        }
    }
}
