// SPDX-License-Identifier: Apache-2.0
//! Moves of guests that were operations of this daemon, counted since its start.

use mint_api::{ErrorBody, ErrorCode, MigrateResult};
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};
use serde_json::Value;

/// Upper ends of the ranges that whole moves are counted in, in seconds.
const TOTAL_S: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0, 3600.0];
/// Those of times in which a guest ran nowhere.
const DOWNTIME_S: [f64; 9] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
const RESULTS: [&str; 4] = ["done", "failed", "cancelled", "refused"];

/// Counts of moves.
pub(crate) struct MoveMetrics {
    ended: IntCounterVec,
    bytes: IntCounterVec,
    total_s: Histogram,
    downtime_s: Histogram,
}

impl Default for MoveMetrics {
    fn default() -> Self {
        Self::new().expect("names and ranges are constants")
    }
}

impl MoveMetrics {
    fn new() -> prometheus::Result<Self> {
        let (name, help) = ("mint_vm_migrations_total", "Moves of guests that ended so.");
        let ended = IntCounterVec::new(Opts::new(name, help), &["result"])?;
        let name = "mint_vm_migration_bytes_total";
        let help = "What moves of guests that were done have sent.";
        let bytes = IntCounterVec::new(Opts::new(name, help), &["what"])?;
        // a rate over a family that appears with its first count misses that one
        RESULTS.iter().for_each(|result| ended.with_label_values(&[result]).inc_by(0));
        ["memory", "disk"].iter().for_each(|what| bytes.with_label_values(&[what]).inc_by(0));
        let histogram = |name, help, ranges: &[f64]| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(ranges.to_vec()))
        };
        Ok(Self {
            ended,
            bytes,
            total_s: histogram(
                "mint_vm_migration_seconds",
                "From the request to the guest at its destination, of moves that were done.",
                &TOTAL_S,
            )?,
            downtime_s: histogram(
                "mint_vm_migration_downtime_seconds",
                "While the guest ran nowhere, of moves that were done.",
                &DOWNTIME_S,
            )?,
        })
    }

    /// Adds the families to those of a scrape.
    ///
    /// # Errors
    /// When one of that name is there already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.ended.clone()))?;
        registry.register(Box::new(self.bytes.clone()))?;
        registry.register(Box::new(self.total_s.clone()))?;
        registry.register(Box::new(self.downtime_s.clone()))
    }

    /// Counts a move by the result that its `mint-guestd` gave, as far as that is understood.
    pub fn done(&self, moved: &Value) {
        self.ended.with_label_values(&["done"]).inc();
        let Ok(moved) = serde_json::from_value::<MigrateResult>(moved.clone()) else { return };
        let Some(took) = moved.took else { return };
        self.bytes.with_label_values(&["memory"]).inc_by(took.memory_sent_bytes);
        self.bytes.with_label_values(&["disk"]).inc_by(took.disk_sent_bytes);
        self.total_s.observe(seconds(took.total_ms));
        self.downtime_s.observe(seconds(took.downtime_ms));
    }

    /// Counts one that was not done.
    pub fn not_done(&self, error: &ErrorBody) {
        let result = match error.code {
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::PlanRefused | ErrorCode::BadRequest | ErrorCode::NotFound => "refused",
            _ => "failed",
        };
        self.ended.with_label_values(&[result]).inc();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a float is what Prometheus has")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;

    #[test]
    fn moves_are_counted_by_their_end_with_what_they_took() {
        let metrics = MoveMetrics::default();
        let took = json!({
            "total_ms": 4000, "downtime_ms": 40, "memory_sent_bytes": 7, "disk_sent_bytes": 5,
            "rounds": 1,
        });
        let moved = json!({
            "name": "web", "uuid": "u1", "from": 1, "to": 2, "memory_bytes": 1, "disks": [],
            "changes": [], "took": took,
        });
        metrics.done(&moved);
        metrics.done(&json!({ "news": 1 }));
        for code in [ErrorCode::Cancelled, ErrorCode::PlanRefused, ErrorCode::PeerUnreachable] {
            metrics.not_done(&ErrorBody::new(code, "no"));
        }
        let registry = Registry::new();
        metrics.register(&registry).unwrap();
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "mint_vm_migrations_total{result=\"done\"} 2",
            "mint_vm_migrations_total{result=\"cancelled\"} 1",
            "mint_vm_migrations_total{result=\"refused\"} 1",
            "mint_vm_migrations_total{result=\"failed\"} 1",
            "mint_vm_migration_bytes_total{what=\"memory\"} 7",
            "mint_vm_migration_bytes_total{what=\"disk\"} 5",
            "mint_vm_migration_seconds_bucket{le=\"2\"} 0",
            "mint_vm_migration_seconds_bucket{le=\"5\"} 1",
            "mint_vm_migration_seconds_sum 4",
            "mint_vm_migration_downtime_seconds_bucket{le=\"0.05\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
