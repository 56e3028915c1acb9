// SPDX-License-Identifier: Apache-2.0
//! What is told of the memory of this node's guests that is split.

use std::path::PathBuf;

use mint_api::{ErrorBody, VmMemory, VmMemoryCell, VmMemoryHost, VmMemoryMap, VmMemoryShare};
use mint_split::{MapCell, PAGE_BYTES, SplitGuest};

use crate::app::App;
use crate::hypervisor::GuestFacts;
use crate::memory::{failed, known, runs, text};
use crate::mirrors;
use crate::pagers;

/// A guest of this node whose memory is split.
async fn found(app: &App, vm: String) -> Result<(GuestFacts, PathBuf, SplitGuest), ErrorBody> {
    let facts = app.ask(move |hypervisor| hypervisor.guest(&vm)).await?;
    let mut guests = known(app).into_iter().filter(|(_, guest)| runs(app, guest));
    let found = guests.find(|(_, guest)| text(&guest.uuid) == facts.uuid);
    let (folder, guest) = found.ok_or_else(|| {
        failed(format_args!("the memory of guest {} is not split over several nodes", facts.name))
    })?;
    Ok((facts, folder, guest))
}

fn silent(guest: &SplitGuest, error: &std::io::Error) -> ErrorBody {
    failed(format_args!("the pager of guest {} does not answer: {error}", guest.name))
        .hint("its keeper starts it again; mintctl vm memory tells more in a moment")
}

/// Where the memory of a guest of this node is.
///
/// # Errors
/// When it does not run, its memory is not split, or its pager does not answer.
pub(crate) async fn show(app: &App, vm: String) -> Result<VmMemory, ErrorBody> {
    let here = app.here().await?;
    let (facts, folder, guest) = found(app, vm).await?;
    let view = pagers::view(&folder).await.map_err(|error| silent(&guest, &error))?;
    let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
    let its = guest.servers.iter().zip(&view.servers).filter(|(server, _)| !server.is_over());
    let mut hosts = Vec::new();
    for (server, view) in its {
        hosts.push(VmMemoryHost {
            node: server.node.clone(),
            limit_bytes: server.limit_bytes,
            chunks: view.chunks,
            is_connected: view.is_connected,
            mirror: server.mirror.as_ref().map(|mirror| mirror.node.clone()),
            mirror_behind_bytes: mirrors::behind_bytes(app, &guest, server).await,
        });
    }
    Ok(VmMemory {
        name: facts.name,
        uuid: facts.uuid,
        node: here.id,
        node_name: here.name,
        memory_bytes: guest.memory_bytes,
        main_bytes: guest.main_bytes.min(guest.memory_bytes),
        chunk_bytes: guest.chunk_bytes,
        policy: view.policy,
        used_bytes: view.looks.map(|looks| bytes(looks.used_pages)),
        untouched_bytes: bytes(view.virgin_pages),
        here_bytes: bytes(view.local_pages),
        leaving_bytes: bytes(view.leaving_pages),
        elsewhere_bytes: bytes(view.remote_pages),
        coming_bytes: bytes(view.coming_pages),
        faults: view.faults,
        page_ins: view.page_ins,
        page_outs: view.page_outs,
        prefetches: view.prefetches,
        waits: view.waits,
        waited_ns: view.waited_ns,
        lost_bytes: bytes(view.lost_pages),
        hosts,
    })
}

/// A picture of it.
///
/// # Errors
/// As [`show`].
pub(crate) async fn map(app: &App, vm: String) -> Result<VmMemoryMap, ErrorBody> {
    let node_name = app.here().await?.name;
    let (facts, folder, guest) = found(app, vm).await?;
    let map = pagers::map(&folder).await.map_err(|error| silent(&guest, &error))?;
    // a host that has had nothing for a while may have another number since
    let (mut hosts, mut numbers): (Vec<String>, Vec<u32>) = Default::default();
    for server in guest.servers {
        let known = hosts.iter().position(|host| *host == server.node);
        let number = known.unwrap_or(hosts.len());
        if known.is_none() {
            hosts.push(server.node);
        }
        numbers.push(u32::try_from(number).unwrap_or(u32::MAX));
    }
    let cells = map.cells.iter().map(|found| cell(found, &numbers)).collect();
    let cell_bytes = map.cell_pages.saturating_mul(PAGE_BYTES);
    Ok(VmMemoryMap { name: facts.name, node_name, hosts, cell_bytes, cells })
}

/// With the number of each memory server's node.
fn cell(cell: &MapCell, numbers: &[u32]) -> VmMemoryCell {
    let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
    let mut elsewhere: Vec<VmMemoryShare> = Vec::new();
    for &(server, pages) in &cell.elsewhere {
        let host = numbers.get(usize::from(server)).copied().unwrap_or(u32::MAX);
        match elsewhere.iter_mut().find(|share| share.host == host) {
            Some(share) => share.bytes = share.bytes.saturating_add(bytes(pages)),
            None => elsewhere.push(VmMemoryShare { host, bytes: bytes(pages) }),
        }
    }
    VmMemoryCell {
        untouched_bytes: bytes(cell.virgin),
        here_bytes: bytes(cell.here),
        elsewhere,
        heat: heat(cell.age),
    }
}

/// Of the highest bit of a history.
fn heat(age: u8) -> u8 {
    u8::try_from(u8::BITS - age.leading_zeros()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_that_has_had_two_numbers_has_one() {
        let found = MapCell { virgin: 1, here: 2, elsewhere: vec![(0, 3), (1, 4), (2, 5)], age: 1 };
        let VmMemoryCell { untouched_bytes, here_bytes, elsewhere, .. } = cell(&found, &[0, 1, 0]);
        assert_eq!((untouched_bytes, here_bytes), (4096, 8192));
        let shares: Vec<_> = elsewhere.iter().map(|share| (share.host, share.bytes)).collect();
        assert_eq!(shares, [(0, 8 * 4096), (1, 4 * 4096)]);
    }

    #[test]
    fn page_that_was_used_just_now_is_hottest() {
        assert_eq!([0, 1, 0x40, 0x7f, 0x80, 0xff].map(heat), [0, 1, 7, 7, 8, 8]);
    }
}
