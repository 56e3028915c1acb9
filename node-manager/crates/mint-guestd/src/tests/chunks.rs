// SPDX-License-Identifier: Apache-2.0
//! A guest's pages go and come in chunks of another size from a split on.

use std::path::{Path, PathBuf};

use mint_guests::split::Split;
use mint_split::{MemoryView, SplitGuest, whole_bytes};
use tokio::io::AsyncWriteExt;

use super::memory::{Store, UUID, files, split, tell, third};
use super::*;
use crate::{memory, split};

const MEMORY_BYTES: u64 = 256 << 20;

fn guest(folder: &Path) -> SplitGuest {
    serde_json::from_slice(&std::fs::read(folder.join("guest.json")).unwrap()).unwrap()
}

/// A guest of node 1 of which node 2 keeps something, or did so before it was merged.
async fn begun(machine: &Machine, is_merged: bool) -> PathBuf {
    let root = files(machine, "echo armed");
    tell(machine, "begin", &split("node2")).await.unwrap();
    let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
    if is_merged {
        let mut guest = guest(&folder);
        (guest.servers[0].leaves, guest.servers[0].limit_bytes) = (true, 0);
        guest.main_bytes = whole_bytes(MEMORY_BYTES, guest.chunk_bytes);
        memory::write(&folder, &guest).unwrap();
    }
    folder
}

/// Plays its pagers: each begins with what the guest's file says, if it knows that chunks can have
/// another size.
fn pagers(folder: &Path, knows: bool) {
    let again = UnixListener::bind(folder.join("again.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = again.accept().await {
            _ = stream.write_all(b"done").await;
        }
    });
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    let folder = folder.to_owned();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = status.accept().await {
            let chunk_bytes = knows.then(|| guest(&folder).chunk_bytes);
            let view = MemoryView { chunk_bytes, ..MemoryView::default() };
            _ = stream.write_all(&serde_json::to_vec(&view).unwrap()).await;
        }
    });
}

fn in_chunks(chunk: &str) -> Split {
    Split::parse("main=96M,node3=rest", chunk, MEMORY_BYTES).unwrap()
}

#[test]
fn merged_guest_is_split_anew_in_chunks_of_another_size() {
    test(async |machine| {
        Store::serve(&machine, 2);
        let (folder, given) = (begun(&machine, true).await, third(&machine));
        pagers(&folder, true);
        let (app, to) = (&machine.apps[0], NodeId::new(2).unwrap());
        split::lend(app, UUID, &in_chunks("1M"), to).await.unwrap();
        let lent = guest(&folder);
        // what it has if it stays is in these chunks, too
        let whole = whole_bytes(MEMORY_BYTES, 1 << 20);
        assert_eq!((lent.chunk_bytes, lent.main_bytes), (1 << 20, whole));
        assert_eq!(lent.taken_back().main_bytes, whole);
        let limit = mint_split::limit_bytes(160 << 20, 96 << 20, 1 << 20);
        assert_eq!(given.lock().unwrap()[0].limit_bytes, limit);
    });
}

#[test]
fn chunks_stay_as_they_are_while_others_keep_some_or_the_pager_is_of_an_older_image() {
    test(async |machine| {
        Store::serve(&machine, 2);
        let (folder, given) = (begun(&machine, false).await, third(&machine));
        pagers(&folder, false);
        let (app, to) = (&machine.apps[0], NodeId::new(2).unwrap());
        let before = guest(&folder);
        let chunk_bytes = Some(1 << 20);
        let besides = split::Besides { chunk_bytes, ..split::Besides::default() };
        let parse = || split::parse(app, UUID, "big", "main=96M,node3=rest", besides);
        let refused = parse().unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        let refused = split::lend(app, UUID, &in_chunks("1M"), to).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        assert_eq!(guest(&folder), before);

        let over = SplitGuest { servers: Vec::new(), ..before };
        memory::write(&folder, &over).unwrap();
        assert_eq!(parse().unwrap(), Split { policy: over.policy, ..in_chunks("1M") });
        let failed = split::lend(app, UUID, &in_chunks("1M"), to).await.unwrap_err();
        assert!(failed.message.ends_with("or does not answer"), "{failed}");
        assert_eq!(guest(&folder), over);
        assert_eq!(given.lock().unwrap().len(), 0);
    });
}
