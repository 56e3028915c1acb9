// SPDX-License-Identifier: Apache-2.0
//! Where this node's mintd is, for programs that say little to it.

/// Its socket.
pub const SOCKET_PATH: &str = "/run/mint/mintd.sock";
/// What a connection is upgraded to that carries a console, a command, or pages of a guest.
pub const UPGRADE: &str = "mint-frames";
