// SPDX-License-Identifier: Apache-2.0
//! Named steps of a move, at which the rig's tests end something ([`mint_fault`]). Those that
//! there are: `docs/testing.md`.

/// The step of that name.
pub(crate) async fn step(name: &'static str) {
    if mint_fault::is_armed() {
        // it may be asked to stand still
        _ = tokio::task::spawn_blocking(move || mint_fault::fault_point(name)).await;
    }
}
