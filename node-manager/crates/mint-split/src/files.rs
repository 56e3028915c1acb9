// SPDX-License-Identifier: Apache-2.0
//! Files in the folder of a guest's QEMU by which its pager, its keeper and mint-guestd know
//! whether it comes, is here, or goes.

/// The guest ([`crate::SplitGuest`]).
pub const GUEST: &str = "guest.json";
/// It comes ([`crate::Source`]): it is its last host's still, and what is here is no guest's.
pub const COMING: &str = "coming.json";
/// Its QEMU knows that its memory is left out of the stream: it is not asked again, as it may wait for
/// pages by then, and answers nobody.
pub const LEFT_OUT: &str = "left-out";
/// Little of it was left at its last host once, which may have stopped it since: nothing that comes waits
/// for others that send.
pub const READY: &str = "ready";
/// All of it has come that its last host had, though that may not have heard so.
pub const HAS_ALL: &str = "has-all";
/// It is not to come, whatever has come of it. Who writes this looks for [`HAS_ALL`] afterwards, and takes
/// it back if that is there; its pager does so the other way round. So never both go on.
pub const GIVEN_UP: &str = "given-up";
/// Somebody says that it runs here.
pub const RUNS: &str = "runs";
/// It is here, and not all of its memory servers know.
pub const ENTERING: &str = "entering.json";
/// It is about to go ([`crate::Leave`]).
pub const GOING: &str = "going.json";
/// It has gone: its next host has all of it.
pub const GONE: &str = "gone";
