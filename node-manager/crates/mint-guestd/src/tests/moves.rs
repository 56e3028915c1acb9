// SPDX-License-Identifier: Apache-2.0
//! Guests whose memory is split, between two main hosts: what is known of them on both, and what is
//! told to whom.

use std::path::Path;

use mint_split::{
    Arrival, ArrivalView, Lease, MemoryView, Mirror, NodeStart, PagerAnswer, PagerCall,
    ServerMirror, Source, SplitGuest, files,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::memory::{Store, UUID, files as put_files, split, tell, until};
use super::*;
use crate::{memory, moves};
use mint_types::PagingPolicy;

const MONITOR: &str = "<qemu:commandline xmlns:qemu='q'><qemu:arg value='-qmp'/>\
                       <qemu:arg value='unix:/run/mint/qmp/big,server=on,wait=off'/>\
                       </qemu:commandline></domain>";

pub(super) fn movable(host: &str) -> String {
    split(host).replace("</domain>", MONITOR)
}

fn arrival() -> Arrival {
    let guest = SplitGuest {
        name: "big".into(),
        uuid: u128::from_str_radix(&UUID.replace('-', ""), 16).unwrap().to_be_bytes(),
        memory_bytes: 256 << 20,
        main_bytes: 64 << 20,
        chunk_bytes: 65536,
        epoch: 2,
        qemu: 0,
        servers: Vec::new(),
        main: None,
        monitor: Some("/run/mint/qmp/big".into()),
        policy: PagingPolicy::Clock,
        copies: 1,
        left: Vec::new(),
        drain_bytes_s: None,
        lent: None,
    };
    let source = Source {
        address: "10.0.0.9:4000".parse().unwrap(),
        secret: [3; 16],
        bandwidth_bytes_s: None,
    };
    Arrival { guest, source }
}

pub(super) fn expect(machine: &Machine) {
    let record = Record { memory: Some(arrival()), ..arrival_record() };
    machine.apps[0].journal.write(&record).unwrap();
}

/// A guest that waits for its stream, and its folder.
pub(super) fn incoming(machine: &Machine) -> std::path::PathBuf {
    let root = put_files(machine, "echo \"$1 $2\" >\"$2/started\"; echo armed");
    let line = format!("qemu\0-uuid\0{UUID}\0-incoming\0defer\0");
    std::fs::write(root.join("proc/7/cmdline"), line).unwrap();
    root.join(format!("run/mint/ram/guests/{UUID}.7"))
}

/// Who plays its pager, once its folder is there.
pub(super) async fn serve_view(folder: &Path, view: Arc<Mutex<ArrivalView>>) {
    until(|| folder.exists()).await;
    let status = UnixListener::bind(folder.join("pager.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = status.accept().await {
            let arrival = Some(view.lock().unwrap().clone());
            let view = MemoryView { arrival, ..MemoryView::default() };
            // who asked may have been told to ask no more
            _ = stream.write_all(&serde_json::to_vec(&view).unwrap()).await;
        }
    });
}

#[test]
fn guest_that_comes_begins_when_little_of_it_is_left_and_asks_for_no_leases() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let folder = incoming(&machine);
        expect(&machine);
        let view: Arc<Mutex<ArrivalView>> = Arc::default();
        let xml = movable("node2");
        let (begun, ()) = tokio::join!(tell(&machine, "begin", &xml), async {
            serve_view(&folder, view.clone()).await;
            until(|| folder.join("started").exists()).await;
            tokio::time::sleep(std::time::Duration::from_millis(600)).await;
            view.lock().unwrap().is_ready = true;
        });
        begun.unwrap();
        assert!(view.lock().unwrap().is_ready, "it was too early");
        let started = std::fs::read_to_string(folder.join("started")).unwrap();
        assert!(started.starts_with("--coming"), "{started}");
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        let guest: SplitGuest = serde_json::from_slice(&read(files::GUEST)).unwrap();
        let main = Some(NodeStart { node: 1, boots: 1 });
        assert_eq!(guest, SplitGuest { qemu: 7, main, ..arrival().guest });
        let source: Source = serde_json::from_slice(&read(files::COMING)).unwrap();
        assert_eq!((source, store.leases()), (arrival().source, Vec::new()));

        // libvirt says that it runs: its pager is told, and it has come when all know
        let waits_for = |is_sure| moves::waits_for(&machine.apps[0], UUID, is_sure);
        assert_eq!(waits_for(false), Some("its pager has not seen it run"));
        assert!(!folder.join(files::RUNS).exists());
        assert_eq!(waits_for(true), Some("its pager has not seen it run"));
        assert!(folder.join(files::RUNS).exists());
        std::fs::rename(folder.join(files::COMING), folder.join(files::ENTERING)).unwrap();
        let text = "not all of its memory servers know this host";
        assert_eq!(waits_for(true), Some(text));
        std::fs::remove_file(folder.join(files::ENTERING)).unwrap();
        assert_eq!(waits_for(true), None);
    });
}

#[test]
fn guest_that_does_not_come_leaves_nothing_and_ends_no_lease() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let folder = incoming(&machine);
        expect(&machine);
        let lease = Lease {
            uuid: arrival().guest.uuid,
            secret: [5; 16],
            epoch: 1,
            memory_bytes: 256 << 20,
            limit_bytes: 1 << 20,
            main: NodeStart { node: 2, boots: 1 },
            stays: false,
            mirror: None,
            machine: None,
        };
        store.0.lock().unwrap().push(lease.clone());
        let view = Arc::new(Mutex::new(ArrivalView {
            failed: Some("why".into()),
            ..ArrivalView::default()
        }));
        let xml = movable("node2");
        let (begun, ()) = tokio::join!(tell(&machine, "begin", &xml), serve_view(&folder, view));
        assert_eq!(begun.unwrap_err().causes, ["why"]);
        assert!(!folder.exists());

        // its QEMU ends after most of it had come
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(files::COMING), "{}").unwrap();
        let server = mint_split::Server {
            node: "node2".into(),
            address: "10.0.0.2:7778".parse().unwrap(),
            secret: [5; 16],
            limit_bytes: 1 << 20,
            leaves: false,
            start: None,
            mirror: None,
            machine: None,
        };
        let guest = SplitGuest { qemu: 7, servers: vec![server], ..arrival().guest };
        memory::write(&folder, &guest).unwrap();
        std::fs::remove_dir_all(machine.folder.path().join("root1/proc/7")).unwrap();
        tell(&machine, "end", &xml).await.unwrap();
        until(|| !folder.exists()).await;
        assert_eq!(store.leases(), [lease]);
    });
}

#[test]
fn guest_that_nobody_moves_does_not_come() {
    test(async |machine| {
        let error = tell(&machine, "expected", &movable("node2")).await.unwrap_err();
        assert!(error.message.contains("split over several hosts"), "{error}");
        tell(&machine, "expected", &xml("web")).await.unwrap();
        expect(&machine);
        tell(&machine, "expected", &movable("node2")).await.unwrap();
    });
}

/// Who plays the pager of a guest that goes; what it was asked.
pub(super) fn goes(folder: &Path) -> Arc<Mutex<Vec<PagerCall>>> {
    let asked: Arc<Mutex<Vec<PagerCall>>> = Arc::default();
    let (socket, calls) = (UnixListener::bind(folder.join("go.sock")).unwrap(), asked.clone());
    let going = folder.join(files::GOING);
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let (reader, mut writer) = stream.into_split();
            let line = BufReader::new(reader).lines().next_line().await.unwrap().unwrap();
            let call: PagerCall = serde_json::from_str(&line).unwrap();
            let answer = match &call {
                PagerCall::Go { ip, .. } => {
                    std::fs::write(&going, "").unwrap();
                    PagerAnswer::Goes(std::net::SocketAddr::new(*ip, 4000))
                }
                PagerCall::Stay => {
                    std::fs::remove_file(&going).unwrap();
                    PagerAnswer::Stays
                }
            };
            calls.lock().unwrap().push(call);
            writer.write_all(&serde_json::to_vec(&answer).unwrap()).await.unwrap();
        }
    });
    asked
}

#[test]
fn pager_of_a_guest_that_stays_after_all_is_told_so() {
    test(async |machine| {
        Store::serve(&machine, 2);
        let third = super::memory::third(&machine);
        let root = put_files(&machine, "echo armed");
        let domain = movable("node3");
        tell(&machine, "begin", &domain).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        machine.fakes[0].define("big", true, &domain);
        machine.fakes[0].guests.lock().unwrap().get_mut("big").unwrap().0.uuid = UUID.into();
        let asked = goes(&folder);
        // one that keeps a part of it cannot be its main host; a plan asks no pager
        for to in ["node3", "node2"] {
            let request = json!({ "to": to, "dry_run": true, "main_only": true });
            let path = format!("/v1/local/vms/{UUID}/migrate");
            let planned = machine.client().operate::<MigrateResult>(&path, &request, |_| {}).await;
            assert_eq!(planned.is_ok(), to == "node2", "{to}: {planned:?}");
        }
        assert_eq!(asked.lock().unwrap().len(), 0);
        let request = json!({ "to": "node2", "bandwidth_bytes_s": 77 });
        let path = format!("/v1/local/vms/{UUID}/migrate");
        let moved = machine.client().operate::<MigrateResult>(&path, &request, |_| {}).await;
        assert!(body(moved.unwrap_err()).message.contains("was not moved to node2"));
        let asked = asked.lock().unwrap().clone();
        let [PagerCall::Go { ip, bandwidth_bytes_s, .. }, PagerCall::Stay] = &asked[..] else {
            panic!("{asked:?}");
        };
        assert_eq!((ip.to_string().as_str(), *bandwidth_bytes_s), ("10.0.0.1", Some(77)));
        for (app, side) in [(0, Side::Departure), (1, Side::Arrival)] {
            assert_eq!(machine.apps[app].journal.get(side, UUID), None);
        }
        assert_eq!(third.lock().unwrap().len(), 1);
        let post_copy = json!({ "to": "node2", "post_copy_after_s": 0 });
        let refused = machine.client().operate::<MigrateResult>(&path, &post_copy, |_| {}).await;
        let refused = body(refused.unwrap_err());
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
    });
}

#[test]
fn move_of_a_guest_ends_when_a_node_does_that_keeps_memory_of_which_another_has_a_copy() {
    test(async |machine| {
        let third = super::memory::third(&machine);
        let root = put_files(&machine, "echo armed");
        let domain = movable("node3");
        tell(&machine, "begin", &domain).await.unwrap();
        active(&machine, &domain);
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let asked = goes(&folder);
        let text = std::fs::read(folder.join(files::GUEST)).unwrap();
        let mut guest: SplitGuest = serde_json::from_slice(&text).unwrap();
        let at = Mirror { address: "10.0.0.4:7778".parse().unwrap(), secret: [4; 16] };
        guest.servers[0].mirror = Some(ServerMirror { node: "node4".into(), at, start: None });
        memory::write(&folder, &guest).unwrap();
        *machine.fakes[0].cancelled.lock().unwrap() = Some(false);
        let boots = machine.folder.path().join("boots3");
        let (moved, ()) = tokio::join!(migrate(&machine, UUID, json!({ "to": "node2" })), async {
            until(|| asked.lock().unwrap().len() == 1).await;
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            assert_eq!(*machine.fakes[0].cancelled.lock().unwrap(), Some(false), "all are there");
            std::fs::write(boots, "0").unwrap();
        });
        let error = moved.unwrap_err();
        assert!(error.message.contains("was not moved to node2; it stays on"), "{error}");
        let why =
            "node3 has ended, which kept memory of it; it goes on with the copy that node4 has";
        assert!(error.causes.iter().any(|cause| cause.starts_with(why)), "{error:?}");
        assert!(matches!(asked.lock().unwrap()[..], [PagerCall::Go { .. }, PagerCall::Stay]));
        assert_eq!(
            third.lock().unwrap().len(),
            1,
            "what it has is told when it is found to have ended"
        );
        // nothing keeps the copy from taking its place
        assert!(machine.apps[0].begin(UUID).is_some());
    });
}

#[test]
fn guest_that_went_ends_no_lease_of_its_next_host() {
    test(async |machine| {
        let third = super::memory::third(&machine);
        let root = put_files(&machine, "echo armed");
        tell(&machine, "begin", &movable("node3")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let lease = third.lock().unwrap()[0].clone();
        let record = Record { side: Side::Departure, ..arrival_record() };
        machine.apps[0].journal.write(&record).unwrap();
        std::fs::write(folder.join(files::GOING), "").unwrap();
        std::fs::remove_dir_all(root.join("proc/7")).unwrap();
        tokio::spawn(memory::watch(machine.apps[0].clone()));
        for name in [files::GONE, "nothing"] {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            assert!(folder.exists(), "its next host may want what is left");
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(third.lock().unwrap().clone(), [lease]);
        third.lock().unwrap()[0].epoch = 2;
        machine.apps[0].journal.forget(&record);
        until(|| !folder.exists()).await;
        assert_eq!(third.lock().unwrap().len(), 1, "its next host's");
    });
}

fn arrival_record() -> Record {
    Record {
        side: Side::Arrival,
        uuid: UUID.into(),
        attempt: Some(1),
        peer: NodeId::new(2).unwrap(),
        machine: None,
        disks: Vec::new(),
        xml: None,
        memory: None,
        why: None,
    }
}

pub(super) fn active(machine: &Machine, xml: &str) {
    machine.fakes[0].define("big", true, xml);
    machine.fakes[0].guests.lock().unwrap().get_mut("big").unwrap().0.uuid = UUID.into();
}

pub(super) async fn migrate(
    machine: &Machine,
    vm: &str,
    how: Value,
) -> Result<MigrateResult, ErrorBody> {
    let path = format!("/v1/local/vms/{vm}/migrate");
    machine.client().operate(&path, &how, |_| {}).await.map_err(body)
}

async fn merge(machine: &Machine, vm: &str, to: &str) -> Result<MigrateResult, ErrorBody> {
    migrate(machine, vm, json!({ "to": to, "merge": true })).await
}

#[test]
fn guest_is_merged_where_it_is_and_its_leases_end() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = put_files(&machine, "echo armed");
        let domain = movable("node2");
        tell(&machine, "begin", &domain).await.unwrap();
        active(&machine, &domain);
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let guest = || -> SplitGuest {
            serde_json::from_slice(&std::fs::read(folder.join(files::GUEST)).unwrap()).unwrap()
        };
        let (chunks, leases) = (super::memory::pager(&folder), store.leases());
        tokio::spawn(crate::hosts::watch(machine.apps[0].clone()));
        let (merged, ()) = tokio::join!(merge(&machine, UUID, "node1"), async {
            until(|| guest().servers[0].leaves).await;
            assert!(guest().main_bytes > guest().memory_bytes);
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            assert_eq!(store.leases(), leases, "it has some still");
            chunks.store(0, std::sync::atomic::Ordering::Relaxed);
        });
        let merged = merged.unwrap();
        assert!(merged.merged && merged.from == merged.to && merged.took.is_some(), "{merged:?}");
        assert_eq!((merged.memory_bytes, store.leases()), (256 << 20, Vec::new()));
    });
}

#[test]
fn guest_that_is_not_merged_is_as_it_was() {
    test(async |machine| {
        Store::serve(&machine, 2);
        let root = put_files(&machine, "echo armed");
        machine.fakes[0].define("web", true, &xml("web"));
        for to in ["node1", "node2"] {
            let refused = merge(&machine, "web", to).await.unwrap_err();
            assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        }
        // nobody keeps anything of it
        let main_only = json!({ "to": "node2", "main_only": true });
        let refused = migrate(&machine, "web", main_only).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        let domain = movable("node2");
        tell(&machine, "begin", &domain).await.unwrap();
        active(&machine, &domain);
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let before = std::fs::read(folder.join(files::GUEST)).unwrap();
        std::fs::write(root.join("proc/meminfo"), "MemAvailable: 200000 kB\n").unwrap();
        let refused = merge(&machine, UUID, "node1").await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::MemoryShort, "{refused}");
        std::fs::write(root.join("proc/meminfo"), "MemAvailable: 900000 kB\n").unwrap();
        let again = UnixListener::bind(folder.join("again.sock")).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = again.accept().await {
                stream.write_all(b"no room").await.unwrap();
            }
        });
        let failed = merge(&machine, UUID, "node1").await.unwrap_err();
        assert!(failed.message.contains("stays where it is: its pager says: no room"), "{failed}");
        assert_eq!(std::fs::read(folder.join(files::GUEST)).unwrap(), before);
    });
}

async fn split_anew(machine: &Machine, words: &str, to: &str) -> Result<MigrateResult, ErrorBody> {
    migrate(machine, UUID, json!({ "to": to, "split": words })).await
}

#[test]
fn guest_is_split_anew_where_it_is_or_stays_as_it_was() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = put_files(&machine, "echo armed");
        let domain = movable("node2");
        tell(&machine, "begin", &domain).await.unwrap();
        active(&machine, &domain);
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        super::memory::pager(&folder);
        let guest = || -> SplitGuest {
            serde_json::from_slice(&std::fs::read(folder.join(files::GUEST)).unwrap()).unwrap()
        };
        let (before, leases) = (guest(), store.leases());
        for (words, code) in [
            ("main=32M,node2=300M,nobody=rest", ErrorCode::PlanRefused),
            ("main=32M,node2=4M", ErrorCode::BadRequest),
            ("main=32M,node2=2G", ErrorCode::PlanRefused),
            ("main=32M,node1=rest", ErrorCode::Failed),
        ] {
            let error = split_anew(&machine, words, "node1").await.unwrap_err();
            assert_eq!(error.code, code, "{words}: {error}");
            assert_eq!(guest(), before, "{words}");
            let limits =
                |leases: &[Lease]| leases.iter().map(|l| l.limit_bytes).collect::<Vec<_>>();
            assert_eq!(limits(&store.leases()), limits(&leases), "{words}");
        }
        let given = super::memory::third(&machine);
        let done = split_anew(&machine, "main=32M,node3=rest", "node1").await.unwrap();
        assert_eq!((done.memory_bytes, done.merged, done.from), (32 << 20, false, done.to));
        let [old, new] = &guest().servers[..] else { panic!("{:?}", guest()) };
        assert!(old.leaves && !new.leaves && new.node == "node3");
        assert_eq!((guest().main_bytes, given.lock().unwrap().len()), (32 << 20, 1));
        assert!(given.lock().unwrap()[0].limit_bytes > 224 << 20);
        // node 2 has some of it still: a new lease would end the one that it has
        let error = split_anew(&machine, "main=32M,node2=rest", "node1").await.unwrap_err();
        assert_eq!(error.refusals[0].code, RefusalCode::VmBusy, "{error}");
        let secret = store.leases()[0].secret;
        assert_eq!((store.leases().len(), secret, guest().servers.len()), (1, leases[0].secret, 2));
        for other in ["merge", "main_only"] {
            let both = json!({ "to": "node2", "split": "main=32M,node3=rest", other: true });
            let error = migrate(&machine, UUID, both).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::BadRequest, "{other}");
        }
    });
}

#[test]
fn guest_that_was_to_be_split_by_its_move_and_stays_is_as_it_was() {
    test(async |machine| {
        let store = Store::serve(&machine, 1);
        let third = super::memory::third(&machine);
        let root = put_files(&machine, "echo armed");
        let domain = movable("node3");
        tell(&machine, "begin", &domain).await.unwrap();
        active(&machine, &domain);
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        super::memory::pager(&folder);
        tokio::spawn(crate::hosts::watch(machine.apps[0].clone()));
        let asked = goes(&folder);
        let guest = || -> SplitGuest {
            serde_json::from_slice(&std::fs::read(folder.join(files::GUEST)).unwrap()).unwrap()
        };
        let before = guest();
        let error =
            split_anew(&machine, "main=32M,node1=64M,node3=rest", "node2").await.unwrap_err();
        assert!(error.message.contains("was not moved to node2"), "{error}");
        // the next host was to have so much, and this one kept what it has
        let calls = asked.lock().unwrap().clone();
        let [PagerCall::Go { main_bytes: Some(main_bytes), .. }, PagerCall::Stay] = &calls[..]
        else {
            panic!("{calls:?}");
        };
        assert_eq!(*main_bytes, 32 << 20);
        let [old, new] = &guest().servers[..] else { panic!("{:?}", guest()) };
        assert!(!old.leaves && new.leaves && new.node == "node1");
        assert_eq!((guest().main_bytes, guest().policy), (before.main_bytes, before.policy));
        // of the host that has nothing of it the lease ends
        until(|| guest().servers[1].is_over()).await;
        assert_eq!((store.leases(), third.lock().unwrap().len()), (Vec::new(), 1));
    });
}

#[test]
fn prepared_guest_has_all_of_its_memory_and_no_leases_when_it_starts() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = put_files(&machine, "echo armed");
        let plain = "<domain type='kvm'><name>big</name><uuid>UUID</uuid><memory unit='MiB'>256\
                     </memory></domain>"
            .replace("UUID", UUID);
        machine.fakes[0].define("big", false, &plain);
        let prepare = async || {
            let view: VmView = machine
                .client()
                .post("/v1/local/vms/big/prepare", &json!({}))
                .await
                .map_err(body)?;
            Ok::<VmView, ErrorBody>(view)
        };
        assert_eq!(prepare().await.unwrap().state, "shut off");
        let new = machine.fakes[0].guests.lock().unwrap()["big"].1.clone();
        assert!(new.contains("mint:memory") && new.contains("/run/mint/qmp/big"), "{new}");
        tell(&machine, "begin", &new).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let text = std::fs::read(folder.join(files::GUEST)).unwrap();
        let guest: SplitGuest = serde_json::from_slice(&text).unwrap();
        assert_eq!((guest.servers.len(), store.leases().len()), (0, 0));
        assert!(guest.main_bytes > guest.memory_bytes && guest.monitor.is_some());
        let odd = plain.replace("<memory ", "<maxMemory unit='GiB'>1</maxMemory><memory ");
        machine.fakes[0].define("big", false, &odd);
        let refused = prepare().await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
    });
}
