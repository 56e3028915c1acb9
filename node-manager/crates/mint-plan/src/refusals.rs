// SPDX-License-Identifier: Apache-2.0
//! Reasons that several plans have, and steps for peers as well.

use mint_types::{BlockPages, PagesOfKind, Refusal, RefusalCode, ResourceKey};

/// Why a running node keeps the core that it started on.
pub fn boot_core(key: ResourceKey, owner: &str) -> Refusal {
    let text = format!("{key} is the boot core of {owner}, which runs");
    Refusal::new(RefusalCode::CpuBoot, key, text).owned_by(owner).hint("choose another core")
}

/// Why what is on its way cannot be sent elsewhere.
pub fn being_moved(key: ResourceKey, owner: &str) -> Refusal {
    let text = format!("{key} is just being moved (by {owner})");
    Refusal::new(RefusalCode::CpuMoving, key, text)
        .owned_by(owner)
        .hint("try again; if it stays so: mintctl doctor")
}

/// Why a function that is in use is not given away.
pub fn busy(key: ResourceKey, owner: &str, users: &[String]) -> Refusal {
    Refusal::new(
        RefusalCode::DeviceBusy,
        key,
        format_args!("{key} is in use by {owner}: {}", users.join(", ")),
    )
    .owned_by(owner)
    .hint("end that use there first (umount, swapoff, another default route)")
}

/// Why a block of memory is not one of those that can be given away for sure; with what in
/// it stays, where its kernel tells.
pub fn not_movable(key: ResourceKey, owner: &str, kinds: Option<Vec<PagesOfKind>>) -> Refusal {
    let text = format!("{key} of {owner} may hold what its kernel cannot move");
    let refusal = Refusal::new(RefusalCode::KernelRefused, key, text)
        .owned_by(owner)
        .hint("memory that came while the node ran can be given away again");
    match kinds {
        Some(kinds) => {
            refusal.with_pages(BlockPages { kinds, complete: true, ..BlockPages::default() })
        }
        None => refusal,
    }
}
