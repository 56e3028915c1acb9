// SPDX-License-Identifier: Apache-2.0
//! What a guest is like, wherever it runs: what its host tells the next one of it (L, 4.2).

use serde::{Deserialize, Serialize};

use crate::sample::Ring;
use crate::snapshot::GuestId;

/// vCPUs that a guest may have.
pub const VCPUS_MAX: usize = 1024;
/// Ranges of memory that are told of a guest.
pub const RANGES_MAX: usize = 1024;
/// No guest has more memory: what a physical address of x86 can name.
const MEMORY_BYTES_MAX: u64 = 1 << 52;
const PAGE: u64 = 4096;

/// A range of a guest's memory, and how often it is used.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Range {
    /// Where it begins in the guest's RAM, as its file has it: no hole for PCI.
    pub offset: u64,
    /// Its bytes, whole pages.
    pub bytes: u64,
    /// As [`crate::Region::heat`].
    #[serde(default)]
    pub heat: Option<f64>,
}

/// A guest, as its host has measured it. It grows by fields that may be left out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Which one.
    pub id: GuestId,
    /// What was measured of each of its vCPUs; no rates of a host: what another one's CPUs would do in its place is
    /// near to that.
    pub vcpus: Vec<Ring>,
    /// What it has pages for, in their order.
    pub ranges: Vec<Range>,
}

/// It is no guest's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// More than any guest has.
    #[error("{0} vCPUs; a guest has {VCPUS_MAX} at most, and one at least")]
    Vcpus(usize),
    /// More than are told.
    #[error("{0} ranges of memory; {RANGES_MAX} are told at most")]
    Ranges(usize),
    /// A range that is none, or before the one before it.
    #[error("a range of {bytes} bytes at {offset:#x}: they are whole pages, in their order")]
    Range {
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// A heat that is no number, or below 0.
    #[error("a heat of {0}")]
    Heat(f64),
}

impl Profile {
    /// Whether it can be a guest's: it comes from a peer.
    ///
    /// # Errors
    /// With the first thing that cannot.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.vcpus.is_empty() || self.vcpus.len() > VCPUS_MAX {
            return Err(ProfileError::Vcpus(self.vcpus.len()));
        }
        if self.ranges.len() > RANGES_MAX {
            return Err(ProfileError::Ranges(self.ranges.len()));
        }
        let mut end = 0;
        for &Range { offset, bytes, heat } in &self.ranges {
            let is_whole = offset % PAGE == 0 && bytes % PAGE == 0 && bytes > 0;
            let next = offset.checked_add(bytes).filter(|&next| next <= MEMORY_BYTES_MAX);
            let Some(next) = next.filter(|_| is_whole && offset >= end) else {
                return Err(ProfileError::Range { offset, bytes });
            };
            end = next;
            if let Some(heat) = heat.filter(|heat| !heat.is_finite() || *heat < 0.0) {
                return Err(ProfileError::Heat(heat));
            }
        }
        Ok(())
    }

    /// Bytes of all its memory.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).sum()
    }
}

#[cfg(test)]
#[path = "tests/profile.rs"]
mod tests;
