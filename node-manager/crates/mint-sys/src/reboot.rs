// SPDX-License-Identifier: Apache-2.0
//! The end of this kernel.

use std::io;

/// Node 0 ends alone and at once, like any other node: its cores go to the park
/// loop, peers keep the machine, and one of them starts it again. reboot(2) with
/// the word that node 0's kernel knows; on another kernel that is a plain reboot.
///
/// # Errors
/// Without CAP_SYS_BOOT; does not return else.
pub fn leave_machine() -> io::Error {
    // SAFETY: the kernel reads the word, which is NUL-terminated and lives for ever.
    unsafe {
        libc::syscall(
            libc::SYS_reboot,
            libc::LINUX_REBOOT_MAGIC1,
            libc::LINUX_REBOOT_MAGIC2,
            libc::LINUX_REBOOT_CMD_RESTART2,
            c"mint".as_ptr(),
        )
    };
    io::Error::last_os_error()
}
