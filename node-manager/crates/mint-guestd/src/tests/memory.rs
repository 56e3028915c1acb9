// SPDX-License-Identifier: Apache-2.0
//! Guests whose memory is split: leases, keepers, and what is left of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use mint_serve::listen;
use mint_split::{Lease, LeaseEnd, LeaseView, SplitGuest};
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::memory;

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

const LOST: u64 = 128 << 20;

fn split(host: &str) -> String {
    format!(
        "<domain type='kvm' id='3'><name>big</name><uuid>{UUID}</uuid><metadata>\
         <mint:memory xmlns:mint='urn:mint:memory:1' main='67108864' chunk='65536'>\
         <mint:host node='{host}' bytes='268435456'/></mint:memory></metadata>\
         <memory unit='MiB'>256</memory></domain>"
    )
}

/// A memory server that only has leases.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<Lease>>>);

impl Store {
    fn serve(machine: &Machine, node: u32) -> Self {
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
            main: lease.main,
            limit_bytes: lease.limit_bytes,
            kept_bytes: 0,
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
        Json(json!({}))
    }

    async fn end(State(store): State<Self>, Json(end): Json<LeaseEnd>) -> Json<Value> {
        let is_meant = |lease: &Lease| (lease.uuid, lease.secret) == (end.uuid, end.secret);
        store.0.lock().unwrap().retain(|lease| !is_meant(lease));
        Json(json!({}))
    }

    fn leases(&self) -> Vec<Lease> {
        self.0.lock().unwrap().clone()
    }
}

/// Files of node 1: a QEMU with process id 7, and a keeper that says this.
fn files(machine: &Machine, keeper: &str) -> PathBuf {
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

async fn tell(machine: &Machine, what: &str, xml: &str) -> Result<Value, ErrorBody> {
    let path = format!("/v1/local/memory/{what}");
    machine.client().post(&path, &json!({ "xml": xml })).await.map_err(body)
}

async fn until(is_so: impl Fn() -> bool) {
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
