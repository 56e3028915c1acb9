// SPDX-License-Identifier: Apache-2.0
//! Memory of a node's NUMA nodes is measured, and plans go by that.

use std::sync::mpsc;

use mint_api::MeasureResult;

use super::layout::{cpus_are, free, numa};
use super::*;

const FILE: &str = "var/lib/mint/numa.json";

impl Machine {
    /// Node 2's CPUs read the other NUMA node's memory after that many nanoseconds, and their own after 80.
    fn reads(&self, far_ns: f64) {
        let near = (80.0, 12_000.6);
        let far = (far_ns, 6000.0);
        let all = [((0, 0), near), ((1, 1), near), ((0, 1), far), ((1, 0), far)];
        *self.tables[1].reads.lock().unwrap() = all.into();
    }

    async fn measured(&self, request: Value) -> Result<MeasureResult, ErrorBody> {
        let guestd = Client::unix(self.folder.path().join("guestd2.sock"));
        guestd.post("/v1/local/layout/measure", &request).await.map_err(body)
    }

    async fn distances(&self) -> Vec<Vec<u32>> {
        self.layout().await.numa.into_iter().map(|numa| numa.distances).collect()
    }
}

#[test]
fn measured_latencies_are_shown_until_they_are_forgotten() {
    test(async |machine| {
        let none = machine.measured(json!({})).await.unwrap_err();
        assert!(none.to_string().contains("node 2 has no NUMA nodes"), "{none}");
        numa(&machine.its_root(), [400, 400]);
        cpus_are(&machine.its_root(), "AuthenticAMD", 25, 17);
        machine.reads(164.0);
        assert_eq!(machine.layout().await.measured, None);
        let measured = machine.measured(json!({})).await.unwrap().measured.unwrap();
        let pairs: Vec<_> = measured.pairs.iter().map(|one| (one.cpus_of, one.memory_of)).collect();
        assert_eq!(pairs, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let far = &measured.pairs[1];
        assert_eq!((far.cpu, far.buffer_bytes, far.may_be_cached), (0, 64 << 20, false));
        assert!((far.latency_ns - 164.0).abs() < 1e-9 && far.read_mb_s == 6000, "{far:?}");
        assert_eq!((measured.cpu_model.as_str(), measured.numas.len()), ("AMD family 19h", 2));
        assert_eq!(machine.layout().await.measured.as_ref(), Some(&measured));
        assert_eq!(machine.distances().await, [[10, 21], [21, 10]]);
        // another CPU, or other NUMA nodes
        cpus_are(&machine.its_root(), "AuthenticAMD", 26, 17);
        assert_eq!(
            (machine.distances().await, machine.layout().await.measured),
            (vec![vec![10, 20], vec![20, 10]], None)
        );
        cpus_are(&machine.its_root(), "AuthenticAMD", 25, 17);
        assert_eq!(machine.distances().await, [[10, 21], [21, 10]]);
        for _ in 0..2 {
            let forgotten = machine.measured(json!({ "forget": true })).await.unwrap();
            assert_eq!((forgotten.node.as_u32(), forgotten.measured), (2, None));
            assert_eq!(machine.distances().await, [[10, 20], [20, 10]]);
        }
        assert!(!machine.its_root().join(FILE).exists());
    });
}

#[test]
fn plan_goes_by_what_was_measured() {
    test(async |machine| {
        machine.astray(&free("hot"), 16);
        let plan = machine.arranged(json!({ "dry_run": true })).await.unwrap();
        assert_eq!(plan.vms.len(), 2);
        // as near as its own, though the kernel's table says twice as far: nothing is gained
        machine.reads(60.0);
        machine.measured(json!({ "mib": 4 })).await.unwrap();
        let plan = machine.arranged(json!({ "dry_run": true })).await.unwrap();
        assert_eq!((plan.vms.len(), machine.distances().await), (0, vec![vec![10, 10]; 2]));
        machine.measured(json!({ "forget": true })).await.unwrap();
        let plan = machine.arranged(json!({ "dry_run": true })).await.unwrap();
        assert_eq!(plan.vms.len(), 2);
    });
}

#[test]
fn what_cannot_be_measured_leaves_what_was() {
    test(async |machine| {
        // what is free besides is 64 MiB
        numa(&machine.its_root(), [400, 100]);
        machine.reads(164.0);
        machine.measured(json!({ "mib": 4 })).await.unwrap();
        let written = std::fs::read(machine.its_root().join(FILE)).unwrap();
        let short = machine.measured(json!({})).await.unwrap_err();
        assert_eq!(short.refusals[0].code, RefusalCode::MemoryShort);
        let says =
            "numa1 of node 2 has 164M free: it takes four times the 64M that CPUs are to read";
        assert!(short.refusals[0].message.contains(says), "{short}");
        machine.tables[1].reads.lock().unwrap().remove(&(1, 0));
        let failed = machine.measured(json!({ "mib": 4 })).await.unwrap_err();
        assert!(
            failed.to_string().contains("CPU 1 of node 2 does not read memory of numa0"),
            "{failed}"
        );
        assert_eq!(std::fs::read(machine.its_root().join(FILE)).unwrap(), written);
        for bad in [json!({ "mib": 0 }), json!({ "mib": 4, "forget": true }), json!({ "gib": 1 })] {
            let refused = machine.measured(bad).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadRequest);
        }
        assert_eq!(machine.distances().await, [[10, 21], [21, 10]]);
    });
}

#[test]
fn nobody_measures_or_arranges_guests_while_somebody_measures() {
    test(async |machine| {
        numa(&machine.its_root(), [400, 400]);
        machine.reads(164.0);
        let (begun, begins) = mpsc::channel();
        let (goes_on, waits) = mpsc::channel::<()>();
        *machine.tables[1].at_buffer.lock().unwrap() = Some(Box::new(move || {
            begun.send(()).unwrap();
            waits.recv().unwrap();
        }));
        let socket = machine.folder.path().join("guestd2.sock");
        let asked = async move || -> Result<MeasureResult, _> {
            Client::unix(socket).post("/v1/local/layout/measure", &json!({})).await
        };
        let first = tokio::spawn(asked());
        tokio::task::spawn_blocking(move || begins.recv()).await.unwrap().unwrap();
        // also when who asked has hung up
        first.abort();
        assert!(first.await.is_err());
        let busy = machine.measured(json!({})).await.unwrap_err();
        assert_eq!(busy.refusals[0].code, RefusalCode::VmBusy);
        let busy = machine.arranged(json!({})).await.unwrap_err();
        assert_eq!(busy.refusals[0].code, RefusalCode::VmBusy);
        goes_on.send(()).unwrap();
        while machine.layout().await.measured.is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(machine.distances().await, [[10, 21], [21, 10]]);
    });
}
