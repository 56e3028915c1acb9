// SPDX-License-Identifier: Apache-2.0
//! `kexec_file_load(2)` into a node's memory.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use mint_types::NodeId;

use crate::error::SysError;
use crate::uapi;

/// Loads kernel, initrd and command line into the memory of `node`.
///
/// # Errors
/// `ENOEXEC` not an image that can be a node, `ENOMEM` the node owns too little
/// memory, `EBUSY` it runs, `EINVAL` a command line with NUL or too long.
pub fn load_node_image(
    node: NodeId,
    kernel: &File,
    initrd: Option<&File>,
    cmdline: &str,
) -> Result<(), SysError> {
    let cmdline = CString::new(cmdline).map_err(|_| SysError::Call {
        call: "kexec_file_load",
        subject: format!("node {node}"),
        source: io::Error::from_raw_os_error(libc::EINVAL),
    })?;
    let mut flags = node_flags(node);
    if initrd.is_none() {
        flags |= uapi::KEXEC_FILE_NO_INITRAMFS;
    }
    let bytes = cmdline.as_bytes_with_nul();
    // SAFETY: the two descriptors are open through the call (borrowed files);
    // `bytes` is as long as we say and ends with NUL; the kernel only reads it.
    // With KEXEC_FILE_MINT nothing of the running kernel is replaced.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            i64::from(kernel.as_raw_fd()),
            initrd.map_or(-1, |file| i64::from(file.as_raw_fd())),
            bytes.len(),
            bytes.as_ptr(),
            flags,
        )
    };
    outcome(node, result)
}

/// Drops the image that is loaded for `node`.
///
/// # Errors
/// When the node runs or does not exist.
pub fn unload_node_image(node: NodeId) -> Result<(), SysError> {
    let flags = node_flags(node) | uapi::KEXEC_FILE_UNLOAD;
    // SAFETY: KEXEC_FILE_UNLOAD makes the kernel ignore descriptors and text.
    let result = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            -1i64,
            -1i64,
            0usize,
            std::ptr::null::<libc::c_char>(),
            flags,
        )
    };
    outcome(node, result)
}

fn node_flags(node: NodeId) -> u64 {
    uapi::KEXEC_FILE_MINT | u64::from(node.as_u32()) << uapi::KEXEC_NODE_SHIFT
}

fn outcome(node: NodeId, result: i64) -> Result<(), SysError> {
    if result == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(SysError::Call { call: "kexec_file_load", subject: format!("node {node}"), source })
}
