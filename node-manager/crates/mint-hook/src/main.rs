// SPDX-License-Identifier: Apache-2.0
//! libvirt's hook for guests of QEMU: /etc/libvirt/hooks/qemu. libvirt runs it, not people.
//!
//! A guest that comes gets a place on this host's NUMA nodes from `mint-guestd`, or pins of this
//! host. One whose memory is split goes on only once its pages can go and come, and comes only once
//! most of them have, which `mint-guestd` sees to; when it has ended, that is told, too.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use mint_api::{Client, GUESTD_SOCKET_PATH};
use mint_guests::hook::{self, Call};
use mint_guests::split::Split;
use serde_json::{Value, json};

/// What libvirt gives is not longer.
const XML_BYTES_MAX: u64 = 1 << 20;
/// For a guest's pages to be able to go and come, and for most of them to come: mint-guestd answers
/// as soon as that does not get on.
const ARMED_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// For a place to be found for a guest that comes, and room to be made: mint-guestd takes 15 s at most, beside what the
/// policy thinks.
const FOUND_WITHIN: Duration = Duration::from_secs(20);
/// For NUMA nodes of its memory to be named: libvirt, and who starts a guest, waits for that.
const PLACED_WITHIN: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let call = Call::of(&arguments);
    if call == Call::Other {
        return ExitCode::SUCCESS;
    }
    let mut xml = String::new();
    let done = match std::io::stdin().take(XML_BYTES_MAX + 1).read_to_string(&mut xml) {
        Ok(_) => answer(call, &xml),
        Err(error) => Err(format!("cannot read the guest's XML: {error}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // it has ended, whatever we say; mint-guestd finds that out by itself
        Err(error) if call == Call::Stopped => {
            eprintln!("mint-libvirt-hook: {error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mint-libvirt-hook: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(call: Call, xml: &str) -> Result<(), String> {
    let is_split = Split::of_domain(xml).map_err(|error| error.to_string())?.is_some();
    if call == Call::Arrival {
        if is_split {
            tell("/v1/local/memory/expected", xml)?;
        }
        let there = match found(xml) {
            Some(there) => Some(there),
            None => {
                hook::answer(xml, &hook::host(Path::new("/"))).map_err(|error| error.to_string())?
            }
        };
        // where it says nothing libvirt keeps what it has
        let xml = there.unwrap_or_default();
        return std::io::stdout().write_all(xml.as_bytes()).map_err(|error| error.to_string());
    }
    if call == Call::Started {
        // before what comes of its memory can be there; one without a place is let pass
        place(xml);
    }
    match call {
        _ if !is_split => Ok(()),
        Call::Started => tell("/v1/local/memory/begin", xml),
        _ => tell("/v1/local/memory/end", xml),
    }
}

/// The XML of a guest that comes, with its place here, if it gets one. It can run where it comes to by itself.
fn found(xml: &str) -> Option<String> {
    match ask_within("/v1/local/layout/arrival", xml, FOUND_WITHIN) {
        Ok(answer) => answer.get("xml")?.as_str().map(str::to_owned),
        Err(error) => {
            eprintln!("mint-libvirt-hook: it gets no place before it comes: {error}");
            None
        }
    }
}

/// The same.
fn place(xml: &str) {
    if let Err(error) = tell_within("/v1/local/layout/started", xml, PLACED_WITHIN) {
        eprintln!("mint-libvirt-hook: its memory gets no place: {error}");
    }
}

/// Tells mint-guestd of a guest.
fn tell(path: &str, xml: &str) -> Result<(), String> {
    tell_within(path, xml, ARMED_WITHIN)
}

fn tell_within(path: &str, xml: &str, time: Duration) -> Result<(), String> {
    ask_within(path, xml, time).map(drop)
}

fn ask_within(path: &str, xml: &str, time: Duration) -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let client = Client::unix(GUESTD_SOCKET_PATH);
        let body = json!({ "xml": xml });
        match tokio::time::timeout(time, client.post::<Value>(path, &body)).await {
            Ok(done) => done.map_err(|error| chain(&error)),
            Err(_) => Err(format!("mint-guestd did not answer in {} s", time.as_secs())),
        }
    })
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
