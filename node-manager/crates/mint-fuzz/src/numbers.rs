// SPDX-License-Identifier: Apache-2.0
//! Numbers that damaged input gets.

/// Numbers at which readers err.
pub(crate) const NUMBERS: [u64; 14] = [
    0,
    1,
    4,
    109,
    110,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_fffb,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];
