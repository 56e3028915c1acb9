// SPDX-License-Identifier: Apache-2.0
//! Two nodes' daemons over real Unix sockets, with a stand-in for mintd between them: all but
//! libvirt and mint0.

mod chunks;
mod console;
mod evacuate;
mod given_up;
mod import;
pub(crate) mod layout;
mod layout_change;
mod layout_default;
mod layout_measure;
mod layout_orders;
mod layout_places;
mod layout_plain;
mod lent;
mod linked;
mod memory;
mod mirrors;
mod moves;
mod vacate;

use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use mint_api::{
    Client, ClientError, ErrorBody, ErrorCode, EvacuateResult, MigrateResult, NodeView, VmList,
    VmView,
};
use mint_serve::{Failure, pass_on, serve};
use mint_types::{NodeId, NodeState, RefusalCode};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::app::App;
use crate::facts::HostFiles;
use crate::fake::Fake;
use crate::journal::{Journal, Record, Side};
use crate::layout::known::Layouts;
use crate::{routes, settle};

const XML: &str = "<domain type='kvm'><name>NAME</name><uuid>uuid-NAME</uuid>\
                   <memory unit='MiB'>128</memory><vcpu>1</vcpu><cputune>\
                   <vcpupin vcpu='0' cpuset='7'/></cputune></domain>";

fn xml(name: &str) -> String {
    XML.replace("NAME", name)
}

/// Nodes 1 and 2, of one machine or of two.
struct Machine {
    folder: tempfile::TempDir,
    fakes: [Arc<Fake>; 2],
    apps: Vec<Arc<App>>,
    /// Where the pages of their guests are.
    tables: Vec<Arc<layout::Table>>,
}

pub(crate) fn view(id: u32, here: u32) -> NodeView {
    NodeView {
        id: NodeId::new(id).unwrap(),
        name: format!("node{id}"),
        machine: None,
        state: NodeState::Running,
        health: "ok".into(),
        is_self: id == here,
        cpus: String::new(),
        cpu_count: 1,
        cpus_online: 1,
        memory_bytes: 0,
        numa: Vec::new(),
        devices: Vec::new(),
        address: format!("10.0.0.{id}"),
        mintd: "ok".into(),
        boots: 1,
        heartbeat: 1,
        state_change_ns: 0,
        release: String::new(),
        reason: String::new(),
    }
}

/// A node's mintd, as far as guests go.
#[derive(Clone)]
struct Mintd {
    here: u32,
    folder: std::path::PathBuf,
    /// Each node is a machine of its own, and the other one is linked.
    is_linked: bool,
}

impl Mintd {
    fn router(self) -> Router {
        Router::new()
            .route("/v1/nodes", get(Self::nodes))
            .route("/v1/hello", get(linked::hello))
            .route("/v1/machine", get(linked::machine))
            .route("/v1/config", get(Self::config))
            .route("/v1/nodes/{node}", get(Self::node))
            .route("/v1/nodes/{node}/{*rest}", any(Self::pass))
            .with_state(self)
    }

    async fn nodes(State(mintd): State<Self>) -> Json<Value> {
        // the third is there if a test has one
        let is_there = |id: &u32| *id < 3 || mintd.folder.join("guestd3.sock").exists();
        let nodes = [1, 2, 3].into_iter().filter(is_there);
        let nodes = nodes.filter(|&id| !mintd.is_linked || id == mintd.here);
        // a test may have started one anew, or ended it
        let now = |id: u32| {
            let boots = std::fs::read_to_string(mintd.folder.join(format!("boots{id}")));
            let boots = boots.map_or(Ok(1), |text| text.parse::<u32>()).unwrap();
            let state = if boots == 0 { NodeState::Crashed } else { NodeState::Running };
            NodeView { boots: boots.max(1), state, ..view(id, mintd.here) }
        };
        Json(json!({ "nodes": nodes.map(now).collect::<Vec<_>>() }))
    }

    /// A test may have set a bound.
    async fn config(State(mintd): State<Self>) -> Json<Value> {
        let keep_max =
            std::fs::read_to_string(mintd.folder.join(format!("keep_max{}", mintd.here)));
        Json(json!({ "memory": { "keep_max": keep_max.unwrap_or_default() } }))
    }

    async fn node(State(mintd): State<Self>, Path(node): Path<String>) -> Response {
        if let Some(answer) = linked::node(&mintd, &node) {
            return answer;
        }
        let Some(id) = node.strip_prefix("node").and_then(|id| id.parse().ok()) else {
            let none = ErrorBody::new(ErrorCode::NotFound, "no such node");
            return Failure(none).into_response();
        };
        let resources = json!({ "cpus": [], "memory": [], "devices": [] });
        Json(json!({ "node": view(id, mintd.here), "resources": resources })).into_response()
    }

    async fn pass(
        State(mintd): State<Self>,
        Path((node, _)): Path<(String, String)>,
        method: Method,
        uri: Uri,
        body: String,
    ) -> Result<Response, Failure> {
        let rest = uri.path().splitn(5, '/').last().unwrap();
        let node = node.rsplit('/').next().unwrap();
        let there = Client::unix(mintd.folder.join(format!("guestd{node}.sock")));
        if let Ok(told) = std::fs::read_to_string(mintd.folder.join("profile")) {
            if rest.ends_with("/profile") {
                return Ok(Json(serde_json::from_str::<Value>(&told).unwrap()).into_response());
            }
        }
        let mut body = body;
        if rest == "arrivals" && mintd.folder.join(format!("older{node}")).exists() {
            // what its daemon says it does not know
            let mut known: Value = serde_json::from_str(&body).unwrap();
            known["layout"].take();
            body = known.to_string();
        }
        let body = (!body.is_empty()).then(|| body.into_bytes());
        let answer = there.pass(method, &format!("/v1/local/{rest}"), body).await;
        answer
            .map(pass_on)
            .map_err(|error| Failure(ErrorBody::from_error(ErrorCode::PeerUnreachable, &error)))
    }
}

/// A node's daemon, with what the one before it has left in the node's files.
fn daemon(
    folder: &std::path::Path,
    id: u32,
    hypervisor: Arc<Fake>,
    table: Arc<layout::Table>,
) -> Arc<App> {
    let root = folder.join(format!("root{id}"));
    let host = HostFiles::below(&root);
    let counted = Arc::new(layout::Counted::default());
    Arc::new(App {
        hypervisor,
        mintd: Client::unix(folder.join(format!("mintd{id}.sock"))),
        store: Client::unix(folder.join(format!("store{id}.sock"))),
        layouts: Layouts::with(&host, table.clone(), counted, table),
        host,
        journal: Journal::below(&root.join("guests")),
        moving: Mutex::default(),
        ending: Default::default(),
        gate: Arc::default(),
    })
}

impl Machine {
    fn start(is_linked: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fakes = [Arc::<Fake>::default(), Arc::default()];
        let (mut apps, mut tables) = (Vec::new(), Vec::<Arc<layout::Table>>::new());
        for (fake, id) in fakes.iter().zip([1, 2]) {
            let root = folder.path().join(format!("root{id}"));
            for (path, text) in [
                ("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1048576 kB\n"),
                ("sys/devices/system/cpu/online", "0-1\n"),
                ("proc/cpuinfo", "processor: 0\napicid: 4\n\nprocessor: 1\napicid: 6\n"),
            ] {
                std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
                std::fs::write(root.join(path), text).unwrap();
            }
            let mintd = folder.path().join(format!("mintd{id}.sock"));
            let listener = UnixListener::bind(&mintd).unwrap();
            let mintd_of = Mintd { here: id, folder: folder.path().to_owned(), is_linked };
            let router = mintd_of.router();
            tokio::spawn(serve(listener, router));
            tables.push(Arc::default());
            let app = daemon(folder.path(), id, fake.clone(), tables[tables.len() - 1].clone());
            let socket = folder.path().join(format!("guestd{id}.sock"));
            apps.push(app);
            let served = routes::router(apps.last().unwrap().clone());
            tokio::spawn(serve(UnixListener::bind(socket).unwrap(), served));
        }
        Self { folder, fakes, apps, tables }
    }

    /// Of node 1.
    fn client(&self) -> Client {
        Client::unix(self.folder.path().join("guestd1.sock"))
    }
}

fn test(work: impl AsyncFnOnce(Machine)) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { work(Machine::start(false)).await });
}

fn body(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => panic!("{other}"),
    }
}

#[test]
fn guests_of_both_nodes_are_listed_and_a_silent_node_is_named() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        machine.fakes[1].define("a b/c", false, &xml("x"));
        let list: VmList = machine.client().get("/v1/vms").await.unwrap();
        let found: Vec<_> =
            list.vms.iter().map(|vm| (vm.node.as_u32(), vm.name.as_str())).collect();
        assert_eq!((found, list.silent.len()), (vec![(1, "web"), (2, "a b/c")], 0));
        let path = mint_api::vm_path("/v1/vms", "a b/c");
        let one: VmView = machine.client().get(&path).await.unwrap();
        assert_eq!((one.node.as_u32(), one.state.as_str()), (2, "shut off"));
        *machine.fakes[1].is_silent.lock().unwrap() = true;
        let list: VmList = machine.client().get("/v1/vms").await.unwrap();
        assert_eq!((list.vms.len(), list.silent[0].node.as_u32()), (1, 2));
        assert!(list.silent[0].reason.contains("libvirt"), "{list:?}");
    });
}

#[test]
fn guest_of_the_other_node_is_started_and_ended() {
    test(async |machine| {
        machine.fakes[1].define("far", false, &xml("far"));
        let act = async |verb: &str| {
            let path = format!("/v1/vms/far/{verb}");
            machine.client().post::<VmView>(&path, &json!({})).await.map_err(body)
        };
        assert_eq!(act("start").await.unwrap().state, "running");
        let again = act("start").await.unwrap_err();
        assert!(again.message.contains("it is so already"), "{again}");
        act("shutdown").await.unwrap();
        assert_eq!(*machine.fakes[1].log.lock().unwrap(), ["shutdown uuid-far"]);
        assert_eq!(act("destroy").await.unwrap().state, "shut off");
        assert_eq!(act("fly").await.unwrap_err().code, ErrorCode::NotFound);
        let gone = machine.client().get::<VmView>("/v1/vms/gone").await.map_err(body).unwrap_err();
        assert_eq!(gone.refusals[0].code, RefusalCode::VmAbsent);
    });
}

async fn migrate(
    machine: &Machine,
    request: Value,
) -> (Result<MigrateResult, ErrorBody>, Vec<String>) {
    let mut said = Vec::new();
    let path = "/v1/vms/web/migrate";
    let client = machine.client();
    let result = client.operate(path, &request, |line: &str| said.push(line.to_owned())).await;
    (result.map_err(body), said)
}

#[test]
fn guest_goes_to_the_other_node_with_pins_of_that_node() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let there = machine.fakes[1].clone();
        machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
        let plain = json!({ "to": "node2", "dry_run": true, "layout": "none" });
        let (plan, _) = migrate(&machine, plain).await;
        assert_eq!(plan.unwrap().changes, ["vCPU 0: CPU 7 -> CPU 0"]);
        assert!(machine.fakes[0].has("web") && !machine.fakes[1].has("web"), "only planned");
        let (done, said) = migrate(&machine, json!({ "to": "node2" })).await;
        let done = done.unwrap();
        assert_eq!((done.from.as_u32(), done.to.as_u32()), (1, 2));
        let took = done.took.unwrap();
        assert_eq!((took.downtime_ms, took.disk_sent_bytes), (40, 3 << 20));
        assert!(!machine.fakes[0].has("web") && machine.fakes[1].has("web"));
        let (_, landed) = machine.fakes[1].guests.lock().unwrap()["web"].clone();
        assert!(landed.contains("cpuset=\"0\""), "{landed}");
        assert!(said.iter().any(|line| line.contains("50 % of 8 MiB sent")), "{said:?}");
        // and from there it is found, and refused to go where it is
        let (refused, _) = migrate(&machine, json!({ "to": "node2" })).await;
        assert_eq!(refused.unwrap_err().refusals[0].code, RefusalCode::VmHere);
    });
}

#[test]
fn guest_that_cannot_go_or_does_not_get_there_stays() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        machine.fakes[1].define("web", false, &xml("other"));
        machine.fakes[1].guests.lock().unwrap().get_mut("web").unwrap().0.uuid = "other".into();
        let (refused, _) = migrate(&machine, json!({ "to": "node2" })).await;
        assert_eq!(refused.unwrap_err().refusals[0].code, RefusalCode::VmNameTaken);
        machine.fakes[1].guests.lock().unwrap().clear();
        let (failed, _) = migrate(&machine, json!({ "to": "node2" })).await;
        let failed = failed.unwrap_err();
        assert!(failed.message.contains("it stays on node1 (running)"), "{failed}");
        assert!(failed.causes[0].contains("the wire is cut"), "{failed}");
        assert!(machine.fakes[0].has("web"));
        *machine.fakes[1].is_silent.lock().unwrap() = true;
        let (refused, _) = migrate(&machine, json!({ "to": "node2" })).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::PeerUnreachable, "{refused}");
        assert!(refused.message.contains("libvirt of this node does not answer"), "{refused}");
        *machine.fakes[1].is_silent.lock().unwrap() = false;
        for bad in [
            json!({ "to": "node2", "speed": 1 }),
            json!({}),
            json!({ "to": "node2", "parallel": 0 }),
        ] {
            let (refused, _) = migrate(&machine, bad.clone()).await;
            assert_eq!(refused.unwrap_err().code, ErrorCode::BadRequest, "{bad}");
        }
        assert_eq!(
            migrate(&machine, json!({ "to": "moon" })).await.0.unwrap_err().code,
            ErrorCode::NotFound
        );
    });
}

#[test]
fn peer_with_hostile_xml_gets_an_error() {
    test(async |machine| {
        let long = format!("<domain type='kvm'>{}", " ".repeat(2 << 20));
        for xml in ["", "<domain/>", "\0", long.as_str()] {
            let departure = json!({ "from": 2, "from_name": "node2", "xml": xml, "is_active": true, "has_job": false });
            let answer = machine.client().post::<Value>("/v1/local/arrivals", &departure).await;
            assert_eq!(answer.map_err(body).unwrap_err().code, ErrorCode::BadRequest);
        }
        let many = json!({ "from": 2, "from_name": "n", "is_active": true, "has_job": false, "news": 1,
                           "xml": xml("web") });
        machine.client().post::<Value>("/v1/local/arrivals", &many).await.map_err(body).unwrap();
    });
}

/// What node 1 or 2 wrote down of web.
fn record(machine: &Machine, side: Side) -> Option<Record> {
    let at = if side == Side::Departure { 0 } else { 1 };
    machine.apps[at].journal.get(side, "uuid-web")
}

#[test]
fn nothing_is_left_written_down_after_a_migration_and_after_a_failed_one() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let (failed, _) = migrate(&machine, json!({ "to": "node2" })).await;
        failed.unwrap_err();
        let there = machine.fakes[1].clone();
        machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
        let (done, _) = migrate(&machine, json!({ "to": "node2" })).await;
        done.unwrap();
        for app in &machine.apps {
            assert_eq!(app.journal.all(), []);
        }
    });
}

#[test]
fn guest_that_an_operation_moves_is_moved_by_no_other() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let moving = machine.apps[0].begin("uuid-web").unwrap();
        let (refused, _) = migrate(&machine, json!({ "to": "node2" })).await;
        assert_eq!(refused.unwrap_err().refusals[0].code, RefusalCode::VmBusy);
        let busy: VmView = machine.client().get("/v1/vms/web").await.unwrap();
        assert!(busy.is_busy);
        drop(moving);
        let (plan, _) = migrate(&machine, json!({ "to": "node2", "dry_run": true })).await;
        plan.unwrap();
    });
}

/// Both daemons died in a migration of web, and live again.
async fn after_a_death(machine: &Machine) {
    machine.apps[0].journal.write(&left_by_a_death(Side::Departure, 2)).unwrap();
    machine.apps[1].journal.write(&left_by_a_death(Side::Arrival, 1)).unwrap();
    for app in &machine.apps {
        for record in app.journal.all() {
            settle::settle(app, &record).await;
        }
    }
}

fn left_by_a_death(side: Side, peer: u32) -> Record {
    Record {
        side,
        uuid: "uuid-web".into(),
        attempt: Some(1),
        peer: NodeId::new(peer).unwrap(),
        machine: None,
        disks: vec!["/disks/web".into()],
        xml: (side == Side::Departure).then(|| xml("web")),
        memory: None,
        why: None,
    }
}

fn dropped(machine: &Machine) -> [usize; 2] {
    machine.fakes.each_ref().map(|fake| fake.log.lock().unwrap().len())
}

#[test]
fn copies_on_the_side_where_the_guest_does_not_run_are_deleted_after_a_death() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [0, 1], "it never left");
        machine.fakes[0].guests.lock().unwrap().clear();
        machine.fakes[1].define("web", true, &xml("web"));
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [1, 1], "it had come");
        assert!(machine.apps.iter().all(|app| app.journal.all().is_empty()));
    });
}

#[test]
fn guest_whose_process_ended_amid_a_move_is_settled_where_it_is_defined() {
    test(async |machine| {
        let over = |machine: &Machine| machine.apps.iter().all(|app| app.journal.all().is_empty());
        machine.fakes[0].define("web", false, &xml("web"));
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [0, 1], "it ended before it could go");
        assert!(over(&machine));
        machine.fakes[0].guests.lock().unwrap().clear();
        machine.fakes[1].define("web", false, &xml("web"));
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [1, 1], "it ended after it had come");
        assert!(over(&machine));
        machine.fakes[0].define("web", false, &xml("web"));
        machine.fakes[1].define("web", true, &xml("web"));
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [2, 1], "its definition came back with its old node");
        assert!(over(&machine) && !machine.fakes[0].has("web"));
    });
}

#[test]
fn guest_that_stands_still_for_a_switch_over_goes_on_on_one_side() {
    test(async |machine| {
        let stuck = |machine: &Machine| {
            machine.fakes[0].define("web", true, &xml("web"));
            machine.fakes[0].guests.lock().unwrap().get_mut("web").unwrap().0.is_stuck = true;
        };
        stuck(&machine);
        after_a_death(&machine).await;
        assert!(!machine.fakes[0].guests.lock().unwrap()["web"].0.is_stuck, "it never left");
        assert!(record(&machine, Side::Departure).is_none());
        stuck(&machine);
        machine.fakes[1].define("web", true, &xml("web"));
        after_a_death(&machine).await;
        assert!(!machine.fakes[0].has("web") && machine.fakes[1].has("web"), "it had come");
        assert!(machine.apps.iter().all(|app| app.journal.all().is_empty()));
    });
}

#[test]
fn guest_that_its_new_node_lost_is_defined_where_its_disk_is() {
    test(async |machine| {
        let disk = machine.folder.path().join("root1/disks/web");
        std::fs::create_dir_all(disk.parent().unwrap()).unwrap();
        std::fs::write(&disk, "all of it").unwrap();
        after_a_death(&machine).await;
        assert!(machine.fakes[0].has("web") && !machine.fakes[1].has("web"));
        assert_eq!(dropped(&machine), [0, 1]);
        assert!(machine.apps.iter().all(|app| app.journal.all().is_empty()));
    });
}

#[test]
fn what_nobody_knows_is_not_deleted() {
    test(async |machine| {
        // on neither side: lost, or on its way
        after_a_death(&machine).await;
        assert_eq!(dropped(&machine), [0, 0]);
        // it is still busy leaving
        machine.fakes[0].define("web", true, &xml("web"));
        machine.fakes[0].guests.lock().unwrap().get_mut("web").unwrap().0.has_job = true;
        settle::settle(&machine.apps[1], &record(&machine, Side::Arrival).unwrap()).await;
        assert_eq!(dropped(&machine), [0, 0]);
        // it is here, and not yet all of it
        machine.fakes[1].define("web", true, &xml("web"));
        machine.fakes[1].guests.lock().unwrap().get_mut("web").unwrap().0.has_job = true;
        settle::settle(&machine.apps[1], &record(&machine, Side::Arrival).unwrap()).await;
        settle::settle(&machine.apps[0], &record(&machine, Side::Departure).unwrap()).await;
        assert!(
            record(&machine, Side::Departure).is_some()
                && record(&machine, Side::Arrival).is_some()
        );
        machine.fakes[1].guests.lock().unwrap().clear();
        // its source does not answer
        machine.fakes[0].guests.lock().unwrap().get_mut("web").unwrap().0.has_job = false;
        *machine.fakes[0].is_silent.lock().unwrap() = true;
        settle::settle(&machine.apps[1], &record(&machine, Side::Arrival).unwrap()).await;
        assert_eq!(dropped(&machine), [0, 0]);
        assert!(
            record(&machine, Side::Departure).is_some()
                && record(&machine, Side::Arrival).is_some()
        );
    });
}

#[test]
fn guest_that_is_on_another_way_by_now_is_not_settled() {
    test(async |machine| {
        // as after a death: it never left, and what has come of it goes
        machine.fakes[0].define("web", true, &xml("web"));
        for (app, side, peer) in [(1, Side::Arrival, 1), (0, Side::Departure, 2)] {
            let app = &machine.apps[app];
            let old = left_by_a_death(side, peer);
            let new = Record { attempt: Some(2), ..old.clone() };
            app.journal.write(&new).unwrap();
            settle::settle(app, &old).await;
            assert!(app.journal.all().contains(&new));
            assert_eq!(dropped(&machine)[1], 0, "{side:?}");
            // it is seen to already
            let (ending, moving) = (app.ending.hold("uuid-web"), app.begin("uuid-web"));
            settle::settle(app, &new).await;
            assert!(app.journal.all().contains(&new));
            drop((ending, moving));
        }
        for app in machine.apps.iter().rev() {
            settle::settle(app, &app.journal.all()[0]).await;
            assert_eq!(app.journal.all(), []);
        }
        assert_eq!(dropped(&machine), [0, 1]);
    });
}

#[test]
fn operation_waits_for_what_is_over_soon() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let settles = machine.apps[0].see_to("uuid-web").unwrap();
        let plan = migrate(&machine, json!({ "to": "node2", "dry_run": true }));
        let ends = async {
            tokio::time::sleep(std::time::Duration::from_millis(700)).await;
            drop(settles);
        };
        let ((planned, _), ()) = tokio::join!(plan, ends);
        planned.unwrap();
    });
}

#[test]
fn file_that_was_there_before_is_never_deleted() {
    test(async |machine| {
        let there = machine.folder.path().join("root2/disks/web");
        std::fs::create_dir_all(there.parent().unwrap()).unwrap();
        std::fs::write(&there, "mine").unwrap();
        let peer = Client::unix(machine.folder.path().join("guestd2.sock"));
        let expected = json!({ "from": 1, "disks": ["/disks/web"] });
        let path = "/v1/local/arrivals/uuid-web";
        let refused = peer.post::<Value>(&format!("{path}/expect"), &expected).await.map_err(body);
        assert!(refused.unwrap_err().message.contains("/disks/web is there by now"));
        peer.post::<Value>(&format!("{path}/undo"), &json!({})).await.unwrap();
        assert_eq!(dropped(&machine), [0, 0]);
    });
}
