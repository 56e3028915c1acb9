// SPDX-License-Identifier: Apache-2.0
//! What a node boots, as bytes: read once, bounded, and refused with the reason. Files are
//! opened here and nothing else is touched; `mint-fuzz` damages all of it.

pub mod bundle;
pub mod cpio;
mod image_file;
pub mod initrd;
pub mod kernel_image;

pub use bundle::{Bundle, BundleError, BundleFile};
