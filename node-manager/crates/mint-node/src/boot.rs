// SPDX-License-Identifier: Apache-2.0
//! Loads and starts a node's image.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Instant;

use mint_sys::{SysError, errno_name, sealed_copy};
use mint_types::{Kind, NodeId, NodeName, NodeSpec};
use tracing::info;

use crate::nodes::{Nodes, Progress, ms};
use crate::outcome::{OpError, Times};
use mint_image::{BundleError, bundle};
use mint_image::{initrd, kernel_image};

impl Nodes {
    /// Checks and loads kernel and initrd with a new bundle, and starts them.
    pub(crate) fn boot(
        &self,
        node: NodeId,
        name: &NodeName,
        spec: &NodeSpec,
        times: &mut Times,
        progress: Progress<'_>,
    ) -> Result<(), OpError> {
        let label = format!("node {node} ({name})");
        let defaults = &self.config.node;
        let kernel: &PathBuf = spec.kernel.as_ref().unwrap_or(&defaults.kernel);
        let initrd: &PathBuf = spec.initrd.as_ref().unwrap_or(&defaults.initrd);
        let cmdline = spec.cmdline.as_ref().unwrap_or(&defaults.cmdline);
        let began = Instant::now();
        progress(&format!("load {} and {}", kernel.display(), initrd.display()));
        let inventory = self.inventory()?;
        let blocks = inventory.owned(node, Kind::Memory).count() as u64;
        let memory_bytes = blocks.saturating_mul(inventory.info.mem_block_bytes);
        let kernel = kernel_image::check_kernel(kernel, memory_bytes)?;
        let initrd = initrd::check_initrd(initrd, memory_bytes)?;
        if let Some(note) = &initrd.note {
            progress(note);
        }
        let fault = |action, hint, source: Box<dyn std::error::Error + Send + Sync>| {
            OpError::Boot { action, node: label.clone(), hint, left: Vec::new(), source }
        };
        let io_fault = |source: io::Error| fault("load", "", source.into());
        let files = self
            .bundle
            .files(node, name)
            .map_err(|error: BundleError| fault("load", "", error.into()))?;
        let archive = bundle::archive(&files, initrd.bytes);
        let mut image = (&initrd.file).take(initrd.bytes);
        let mut rest = archive.as_slice();
        let sealed = sealed_copy(&mut [&mut image, &mut rest]).map_err(io_fault)?;
        if image.limit() > 0 {
            return Err(io_fault(io::Error::other("the initrd has just become shorter")));
        }
        let initrd = sealed;
        self.machine
            .load(node, &kernel, Some(&initrd), cmdline)
            .map_err(|error| fault("load", load_hint(&error), error.into()))?;
        times.load_ms = ms(began);
        let began = Instant::now();
        progress(&format!("start {label}"));
        self.machine
            .start(node)
            .map_err(|error| fault("start", start_hint(&error), error.into()))?;
        times.start_ms = ms(began);
        info!(load_ms = times.load_ms, start_ms = times.start_ms, "started");
        Ok(())
    }
}

fn load_hint(error: &SysError) -> &'static str {
    match error.errno().map(errno_name).as_deref() {
        Some("ENOMEM") => "it owns too little memory for this kernel and initrd",
        Some("ENOEXEC") => "the kernel does not take this image as one that can be a node",
        Some("EBUSY") => "it runs, or somebody else loads it",
        Some("EPERM") => "mintd needs CAP_SYS_BOOT",
        Some("EINVAL") => "the command line is too long, or this kernel has no KEXEC_FILE_MINT",
        _ => "",
    }
}

fn start_hint(error: &SysError) -> &'static str {
    match error.errno().map(errno_name).as_deref() {
        Some("EAGAIN") => "not all its cores are in the park loop; see mintctl doctor",
        Some("ENXIO") => "it owns no core",
        Some("ENOEXEC") => "its image was dropped meanwhile: try again",
        _ => "",
    }
}
