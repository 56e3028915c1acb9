// SPDX-License-Identifier: Apache-2.0
//! Guests whose memory is split: leases, keepers, and what is left of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mint_api::{EvacuateRequest, EvacuateResult, NodeKeeps};
use mint_serve::listen;
use mint_split::{Lease, LeaseEnd, LeaseView, MemoryView, MirrorView, ServerView, SplitGuest};
use rustix::fs::{FlockOperation, flock};
use tokio::io::AsyncWriteExt;

use super::*;
use crate::{hosts, memory};

pub(super) const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

const LOST: u64 = 128 << 20;

pub(super) fn split(host: &str) -> String {
    format!(
        "<domain type='kvm' id='3'><name>big</name><uuid>{UUID}</uuid><metadata>\
         <mint:memory xmlns:mint='urn:mint:memory:1' main='67108864' chunk='65536'>\
         <mint:host node='{host}' bytes='268435456'/></mint:memory></metadata>\
         <memory unit='MiB'>256</memory></domain>"
    )
}

/// A memory server that only has leases.
#[derive(Clone, Default)]
pub(super) struct Store(pub(super) Arc<Mutex<Vec<Lease>>>);

impl Store {
    pub fn serve(machine: &Machine, node: u32) -> Self {
        let store = Self::default();
        let router = Router::new()
            .route("/v1/leases", get(Self::list).post(Self::begin))
            .route("/v1/leases/end", axum::routing::post(Self::end))
            .with_state(store.clone());
        let socket = listen(&machine.folder.path().join(format!("store{node}.sock"))).unwrap();
        tokio::spawn(serve(socket, router));
        store
    }

    async fn list(State(store): State<Self>) -> Json<Vec<LeaseView>> {
        let view = |lease: &Lease| LeaseView {
            uuid: lease.uuid,
            secret: lease.secret,
            epoch: Some(lease.epoch),
            main: lease.main,
            limit_bytes: lease.limit_bytes,
            kept_bytes: 0,
            mirror: lease
                .mirror
                .map(|_| MirrorView { is_connected: true, behind_pages: lease.epoch - 1 }),
            machine: lease.machine,
        };
        Json(store.leases().iter().map(view).collect())
    }

    /// A lease for a guest of [`LOST`] bytes is given, and the answer is lost.
    async fn begin(State(store): State<Self>, Json(lease): Json<Lease>) -> Json<Value> {
        let mut leases = store.0.lock().unwrap();
        leases.retain(|known| known.uuid != lease.uuid);
        let is_lost = lease.memory_bytes == LOST;
        leases.push(lease);
        drop(leases);
        // the connection breaks, as when a memory server dies
        assert!(!is_lost, "the answer is lost");
        Json(json!({ "mirrors": true }))
    }

    async fn end(State(store): State<Self>, Json(end): Json<LeaseEnd>) -> Json<Value> {
        let is_meant = |lease: &Lease| {
            (lease.uuid, lease.secret) == (end.uuid, end.secret)
                && end.epoch.is_none_or(|epoch| epoch == lease.epoch)
        };
        store.0.lock().unwrap().retain(|lease| !is_meant(lease));
        Json(json!({}))
    }

    pub fn leases(&self) -> Vec<Lease> {
        self.0.lock().unwrap().clone()
    }
}

/// Files of node 1: a QEMU with process id 7, and a keeper that says this.
pub(super) fn files(machine: &Machine, keeper: &str) -> PathBuf {
    let root = machine.folder.path().join("root1");
    for (path, text) in [
        ("run/libvirt/qemu/big.pid", "7\n".to_owned()),
        ("proc/7/cmdline", format!("qemu\0-uuid\0{UUID}\0")),
        ("var/log/mint/memory-big.log", String::new()),
        ("usr/sbin/mint-keeper", format!("#!/bin/sh\n{keeper}\n")),
    ] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    }
    let keeper = root.join("usr/sbin/mint-keeper");
    fs::set_permissions(keeper, fs::Permissions::from_mode(0o755)).unwrap();
    root
}

pub(super) async fn tell(machine: &Machine, what: &str, xml: &str) -> Result<Value, ErrorBody> {
    let path = format!("/v1/local/memory/{what}");
    machine.client().post(&path, &json!({ "xml": xml })).await.map_err(body)
}

pub(super) async fn until(is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
}

#[test]
fn guest_begins_with_leases_and_a_keeper_and_ends_without() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo \"$1\" >\"$1/started\"; echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let guest: SplitGuest =
            serde_json::from_slice(&fs::read(folder.join("guest.json")).unwrap()).unwrap();
        let leases = store.leases();
        assert_eq!(leases.len(), 1);
        assert_eq!(guest.servers[0].secret, leases[0].secret);
        assert_eq!(guest.servers[0].address.to_string(), "10.0.0.2:7778");
        assert_eq!((guest.uuid[0], guest.uuid[15]), (0x01, 0xef));
        assert_eq!((guest.memory_bytes, guest.main_bytes), (256 << 20, 64 << 20));
        assert!(leases[0].limit_bytes > 256 << 20 && leases[0].main.node == 1);
        let started = fs::read_to_string(folder.join("started")).unwrap();
        assert_eq!(started.trim(), folder.to_str().unwrap());
        let mode = fs::metadata(folder.join("guest.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it has secrets");

        // libvirt may say so too early
        tell(&machine, "end", &split("node2")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(folder.exists() && store.leases() == leases, "it runs");
        fs::remove_dir_all(root.join("proc/7")).unwrap();
        tell(&machine, "end", &split("node2")).await.unwrap();
        until(|| !folder.exists()).await;
        assert_eq!(store.leases(), []);
    });
}

#[test]
fn guest_whose_folder_somebody_else_removes_keeps_its_leases() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let guest = serde_json::from_slice(&fs::read(folder.join("guest.json")).unwrap()).unwrap();
        let leases = store.leases();
        // whether it was about to come is gone already
        fs::remove_file(folder.join("guest.json")).unwrap();
        memory::end(&machine.apps[0], &folder, &guest).await;
        assert!(store.leases() == leases && !leases.is_empty());
    });
}

#[test]
fn guest_whose_keeper_has_gone_gets_another_one_or_is_ended() {
    test(async |machine| {
        Store::serve(&machine, 2);
        let root =
            files(&machine, "[ \"$1\" != --adopt ] || echo \"$1\" >\"$2/adopted\"; echo armed");
        let domain = split("node2");
        machine.fakes[0].define("big", true, &domain);
        machine.fakes[0].guests.lock().unwrap().get_mut("big").unwrap().0.uuid = UUID.into();
        let state = || machine.fakes[0].guests.lock().unwrap()["big"].0.state;
        tell(&machine, "begin", &domain).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        // a pager has this one, and nobody the other
        let places = fs::File::create(folder.join("places")).unwrap();
        flock(&places, FlockOperation::NonBlockingLockExclusive).unwrap();
        tokio::spawn(memory::watch(machine.apps[0].clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!folder.join("adopted").exists(), "it begins");
        fs::write(folder.join("keeper.lock"), "").unwrap();
        until(|| folder.join("adopted").exists()).await;
        assert_eq!(state(), "running");
        drop(places);
        until(|| state() == "shut off").await;
    });
}

#[test]
fn end_that_nobody_told_is_found() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        tell(&machine, "begin", &split("2")).await.unwrap();
        // its number is another process's
        fs::write(root.join("proc/7/cmdline"), "sh\0").unwrap();
        tokio::spawn(memory::watch(machine.apps[0].clone()));
        until(|| store.leases().is_empty()).await;
        until(|| !root.join(format!("run/mint/ram/guests/{UUID}.7")).exists()).await;
    });
}

#[test]
fn nothing_is_left_of_a_guest_that_cannot_begin() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo 'mint-keeper: no /dev/mint-memory' >&2; exit 1");
        let is_clean = || {
            let folder = fs::read_dir(root.join("run/mint/ram/guests"));
            store.leases().is_empty() && folder.is_ok_and(|mut each| each.next().is_none())
        };
        let error = tell(&machine, "begin", &split("node2")).await.unwrap_err();
        assert_eq!(error.causes, ["mint-keeper: no /dev/mint-memory"], "{error}");
        assert!(is_clean());
        let error = tell(&machine, "begin", &split("node1")).await.unwrap_err();
        assert!(error.message.contains("it is called main"), "{error}");
        let error = tell(&machine, "begin", &split("node3")).await.unwrap_err();
        assert_eq!(error.refusals[0].code, RefusalCode::NodeAbsent);
        let more = split("node2").replace("268435456", "2147483648");
        let error = tell(&machine, "begin", &more).await.unwrap_err();
        assert_eq!(error.refusals[0].code, RefusalCode::MemoryShort);
        assert!(error.message.contains("node node2 can keep 960 MiB"), "{error}");
        assert!(is_clean());
        let lost = split("node2").replace("MiB'>256", "MiB'>128");
        let error = tell(&machine, "begin", &lost).await.unwrap_err();
        assert!(error.message.contains("memory server"), "{error}");
        assert!(is_clean());
        // one that is not split is nobody's business
        tell(&machine, "begin", &xml("web")).await.unwrap();
        assert!(is_clean());
    });
}

/// Who plays a guest's pager: it reads what it is told to, and so many chunks are at its first host.
pub(super) fn pager(folder: &std::path::Path) -> Arc<AtomicU64> {
    let chunks = Arc::new(AtomicU64::new(3));
    let again = UnixListener::bind(folder.join("again.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = again.accept().await {
            // who asked may have been told to ask no more
            _ = stream.write_all(b"done").await;
        }
    });
    let (status, left) = (UnixListener::bind(folder.join("pager.sock")).unwrap(), chunks.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = status.accept().await {
            let server = |chunks| ServerView { chunks, is_connected: true };
            let servers = vec![server(left.load(Ordering::Relaxed)), server(0)];
            let view = MemoryView { servers, ..MemoryView::default() };
            _ = stream.write_all(&serde_json::to_vec(&view).unwrap()).await;
        }
    });
    chunks
}

/// Leases of a third node, which gives any.
pub(super) fn third(machine: &Machine) -> Arc<Mutex<Vec<Lease>>> {
    let given: Arc<Mutex<Vec<Lease>>> = Arc::default();
    let (gives, ends) = (given.clone(), given.clone());
    let give = async move |Json(lease): Json<Lease>| {
        gives.lock().unwrap().push(lease);
        let start = json!({ "node": 3, "boots": 1 });
        Json(json!({ "address": "10.0.0.3:7778", "start": start, "mirrors": true }))
    };
    let end = async move |Json(end): Json<LeaseEnd>| {
        let is_meant = |lease: &Lease| {
            lease.secret == end.secret && end.epoch.is_none_or(|epoch| epoch == lease.epoch)
        };
        ends.lock().unwrap().retain(|lease| !is_meant(lease));
        Json(json!({}))
    };
    let keeps = async || {
        let free_bytes = Some(1 << 30);
        let (guests, kept_bytes, limit_bytes, mirrors) = (0, 0, 0, Vec::new());
        let may_bytes = None;
        Json(NodeKeeps { guests, kept_bytes, limit_bytes, free_bytes, may_bytes, mirrors })
    };
    let router = Router::new()
        .route("/v1/local/leases", axum::routing::post(give).get(keeps))
        .route("/v1/local/leases/end", axum::routing::post(end));
    let socket = listen(&machine.folder.path().join("guestd3.sock")).unwrap();
    tokio::spawn(serve(socket, router));
    given
}

async fn evacuate(machine: &Machine, node: u32) -> Result<EvacuateResult, ErrorBody> {
    leaves(machine, node, false, None).await
}

async fn leaves(
    machine: &Machine,
    node: u32,
    dry_run: bool,
    bandwidth_bytes_s: Option<u64>,
) -> Result<EvacuateResult, ErrorBody> {
    let there = Client::unix(machine.folder.path().join(format!("guestd{node}.sock")));
    let request =
        EvacuateRequest { memory: true, dry_run, bandwidth_bytes_s, ..EvacuateRequest::default() };
    there.operate("/v1/local/evacuate", &request, |_| {}).await.map_err(body)
}

#[test]
fn what_a_host_keeps_goes_to_another_one_and_its_lease_ends_then() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let guest = || -> SplitGuest {
            serde_json::from_slice(&fs::read(folder.join("guest.json")).unwrap()).unwrap()
        };
        let (leases, before) = (store.leases(), guest());
        let refused = evacuate(&machine, 2).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::NodeNotRunning, "{refused}");
        assert_eq!((store.leases(), guest()), (leases.clone(), before.clone()));

        // a third node gives leases, and the guest has no pager that answers: it begins later, as
        // one that starts just now may have read it
        let given = third(&machine);
        // first it is only told
        let told = leaves(&machine, 2, true, None).await.unwrap().kept;
        assert_eq!((told.len(), told[0].to.as_deref()), (1, Some("node3")));
        assert_eq!((store.leases(), guest()), (leases.clone(), before.clone()));
        assert_eq!(given.lock().unwrap().len(), 0);
        let failed = leaves(&machine, 2, false, Some(7 << 20)).await.unwrap_err();
        assert!(failed.message.contains("when its pager answers"), "{failed}");
        assert_eq!(guest().drain_bytes_s, Some(7 << 20));
        assert_eq!((guest().servers.len(), given.lock().unwrap().len()), (2, 1));
        assert_ne!(guest(), before);

        let chunks = pager(&folder);
        tokio::spawn(hosts::watch(machine.apps[0].clone()));
        // another rate counts from then on
        let (gone, ()) = tokio::join!(leaves(&machine, 2, false, Some(9 << 20)), async {
            until(|| guest().servers.len() == 2).await;
            until(|| guest().drain_bytes_s == Some(9 << 20)).await;
            assert!(guest().servers[0].leaves && !guest().servers[0].is_over());
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(store.leases(), leases, "it has some still");
            chunks.store(0, Ordering::Relaxed);
        });
        let kept = gone.unwrap().kept;
        assert_eq!((kept.len(), kept[0].to.as_deref()), (1, None), "it was on its way already");
        assert_eq!(store.leases(), []);
        until(|| guest().servers[0].is_over()).await;
        assert_eq!(guest().drain_bytes_s, None, "nothing goes any more");
        let (server, lease) = (guest().servers[1].clone(), given.lock().unwrap()[0].clone());
        assert_eq!((server.node.as_str(), server.secret), ("node3", lease.secret));
        assert_eq!((lease.limit_bytes, lease.uuid), (leases[0].limit_bytes, leases[0].uuid));
        // there is nothing more to give away
        assert_eq!(evacuate(&machine, 2).await.unwrap().kept, []);
    });
}

#[test]
fn node_keeps_no_more_than_its_settings_say() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        files(&machine, "echo armed");
        let keeps = async || -> NodeKeeps {
            let there = Client::unix(machine.folder.path().join("guestd2.sock"));
            there.get("/v1/local/leases").await.unwrap()
        };
        let bound = |text: &str| fs::write(machine.folder.path().join("keep_max2"), text).unwrap();
        let room = keeps().await.free_bytes.unwrap();
        assert_eq!((keeps().await.may_bytes, keeps().await.room_bytes()), (None, room));
        for (text, may) in [("0", 0), ("100M", 100 << 20)] {
            bound(text);
            assert_eq!((keeps().await.may_bytes, keeps().await.room_bytes()), (Some(may), may));
            let refused = tell(&machine, "begin", &split("node2")).await.unwrap_err();
            assert_eq!(refused.refusals[0].code, RefusalCode::MemoryShort);
            assert!(refused.message.contains("besides what it has promised"), "{refused}");
            assert_eq!(store.leases(), []);
        }
        bound("400M");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        // what it has promised counts, kept or not
        let promised = store.leases()[0].limit_bytes;
        assert_eq!(keeps().await.may_bytes, Some((400 << 20) - promised));
    });
}

#[test]
fn hosts_that_a_pager_does_not_take_stay_as_they_were() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let before = fs::read(folder.join("guest.json")).unwrap();
        let given = third(&machine);
        let again = UnixListener::bind(folder.join("again.sock")).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = again.accept().await {
                stream.write_all(b"no room").await.unwrap();
            }
        });
        let failed = evacuate(&machine, 2).await.unwrap_err();
        assert!(failed.message.contains("its pager says: no room"), "{failed}");
        assert_eq!(fs::read(folder.join("guest.json")).unwrap(), before);
        assert_eq!((given.lock().unwrap().len(), store.leases().len()), (0, 1));
    });
}

#[test]
fn host_that_keeps_some_already_gets_a_larger_lease_and_keeps_what_it_has() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        let given = third(&machine);
        let other = "<mint:host node='node3' bytes='1048576'/></mint:memory>";
        tell(&machine, "begin", &split("node2").replace("</mint:memory>", other)).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        pager(&folder).store(0, Ordering::Relaxed);
        tokio::spawn(hosts::watch(machine.apps[0].clone()));
        let limit_bytes = store.leases()[0].limit_bytes;
        assert_eq!(evacuate(&machine, 2).await.unwrap().kept[0].to.as_deref(), Some("node3"));
        let [first, second] = given.lock().unwrap().clone().try_into().unwrap();
        assert_eq!((first.stays, second.stays), (false, true));
        assert_eq!(first.secret, second.secret);
        assert_eq!(first.limit_bytes + limit_bytes, second.limit_bytes);
        let guest: SplitGuest =
            serde_json::from_slice(&fs::read(folder.join("guest.json")).unwrap()).unwrap();
        assert_eq!((guest.servers.len(), guest.servers[1].limit_bytes), (2, second.limit_bytes));
    });
}

#[test]
fn lease_of_a_node_that_has_started_anew_ends() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        files(&machine, "echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let mut stale = store.leases()[0].clone();
        (stale.uuid, stale.main.boots) = ([9; 16], 0);
        store.0.lock().unwrap().push(stale);
        tokio::spawn(crate::leases::watch(machine.apps[1].clone()));
        until(|| store.leases().len() == 1).await;
        assert_eq!(store.leases()[0].main.boots, 1);
    });
}
