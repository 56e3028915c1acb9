// SPDX-License-Identifier: Apache-2.0
//! libvirt's hook for guests of QEMU: /etc/libvirt/hooks/qemu. libvirt runs it, not people.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use mint_guests::hook;

/// What libvirt gives is not longer.
const XML_BYTES_MAX: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !hook::is_arrival(&arguments) {
        return ExitCode::SUCCESS;
    }
    let mut xml = String::new();
    if let Err(error) = std::io::stdin().take(XML_BYTES_MAX + 1).read_to_string(&mut xml) {
        eprintln!("mint-libvirt-hook: cannot read the guest's XML: {error}");
        return ExitCode::FAILURE;
    }
    match hook::answer(&xml, &hook::host(Path::new("/"))) {
        // libvirt keeps what it has
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(xml)) => match std::io::stdout().write_all(xml.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("mint-libvirt-hook: {error}");
            ExitCode::FAILURE
        }
    }
}
