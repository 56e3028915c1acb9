// SPDX-License-Identifier: Apache-2.0
//! Signals to processes that we started.

use std::io;

/// Ends all processes of a group by force. `leader` is the id of a child that
/// was started as the leader of a group of its own and not yet waited for.
///
/// # Errors
/// When there is no such group any more.
pub fn kill_process_group(leader: u32) -> io::Result<()> {
    let leader = i32::try_from(leader).map_err(io::Error::other)?;
    // 0 and 1 would mean our own group and init
    if leader <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill(2) touches no memory of ours.
    if unsafe { libc::kill(-leader, libc::SIGKILL) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
