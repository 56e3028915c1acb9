// SPDX-License-Identifier: Apache-2.0
//! Why guests are where they are, written down.

use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use mint_api::{ErrorBody, ErrorCode, LayoutReason};
use mint_layout::{Confidence, Why};
use mint_types::LayoutPolicy;

use super::files::{read, write};
use super::kept::{FILE, Kept, Reason};
use crate::app::App;

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What a plan says of a guest; `evicted_bytes`: of others.
pub(super) fn reason(
    why: Option<&Why>,
    policy: LayoutPolicy,
    placed_bytes: u64,
    evicted_bytes: u64,
) -> LayoutReason {
    LayoutReason {
        policy,
        at_s: now_s(),
        before_it_came: false,
        rank: why.map_or(0, |why| why.rank),
        misses_per_kilo: why.map_or(0.0, |why| why.misses_per_kilo),
        is_guessed: why.is_none_or(|why| why.confidence == Confidence::Guessed),
        expected_gain: why.map_or(0.0, |why| why.gain),
        placed_bytes,
        evicted_bytes,
        near_bytes_before: None,
        instructions_s_before: None,
    }
}

/// A guest has come to the place that it was given before.
///
/// # Errors
/// When it cannot be written down.
pub(super) fn came(
    app: &App,
    (uuid, qemu): (&str, u32),
    why: Option<&Why>,
    policy: LayoutPolicy,
    (placed_bytes, evicted_bytes): (u64, u64),
) -> Result<(), ErrorBody> {
    let reason =
        LayoutReason { before_it_came: true, ..reason(why, policy, placed_bytes, evicted_bytes) };
    keep(app, |kept| _ = kept.reasons.insert(uuid.to_owned(), Reason { qemu, reason }))
}

/// Changes what is written down.
///
/// # Errors
/// When it cannot be written.
pub(super) fn keep(app: &App, change: impl FnOnce(&mut Kept)) -> Result<(), ErrorBody> {
    let _keeping = app.layouts.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    let path = app.host.path(FILE);
    let mut kept: Kept = read(&path);
    let running = mint_guests::running::running(&app.host.path("/"));
    kept.reasons.retain(|uuid, reason| {
        running.iter().any(|one| one.uuid == *uuid && one.qemu == reason.qemu)
    });
    change(&mut kept);
    write(&path, &kept).map_err(|error| {
        let text = format!("{} cannot be written: {error}", path.display());
        ErrorBody::new(ErrorCode::Failed, text).hint("guests are as they were")
    })
}
