// SPDX-License-Identifier: Apache-2.0
//! Named steps at which the rig's tests end this process ([`mint_fault`]). Those that there are:
//! `docs/testing.md`.

use std::sync::LazyLock;

static IS_ARMED: LazyLock<bool> = LazyLock::new(mint_fault::is_armed);

/// The step of that name; nothing where no test asks for any.
pub(crate) fn step(name: &str) {
    if *IS_ARMED {
        mint_fault::fault_point(name);
    }
}
