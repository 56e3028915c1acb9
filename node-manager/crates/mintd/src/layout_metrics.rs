// SPDX-License-Identifier: Apache-2.0
//! Places of guests on NUMA nodes that operations of this daemon have given them, counted since its start.

use mint_api::{ErrorBody, ErrorCode, LayoutFigures, LayoutResult, MigrateResult};
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::Value;

const RESULTS: [&str; 3] = ["done", "failed", "refused"];
const PLACED: [&str; 4] = ["placed", "relocated", "elsewhere", "evicted"];

/// Counts of places.
pub(crate) struct LayoutMetrics {
    ended: IntCounterVec,
    arranged: IntCounterVec,
    came: IntCounterVec,
}

impl Default for LayoutMetrics {
    fn default() -> Self {
        Self::new().expect("names are constants")
    }
}

impl LayoutMetrics {
    fn new() -> prometheus::Result<Self> {
        let family = |name: &str, help: &str, label, values: &[&str]| {
            let family = IntCounterVec::new(Opts::new(name, help), &[label])?;
            // a rate over a family that appears with its first count misses that one
            values.iter().for_each(|value| family.with_label_values(&[value]).inc_by(0));
            prometheus::Result::Ok(family)
        };
        Ok(Self {
            ended: family(
                "mint_layout_changes_total",
                "Requests to arrange a node's guests, or to undo that, that ended so.",
                "result",
                &RESULTS,
            )?,
            arranged: family(
                "mint_layout_change_bytes_total",
                "Memory that such requests have brought to other NUMA nodes, or not.",
                "what",
                &["went", "stayed"],
            )?,
            came: family(
                "mint_layout_arrival_bytes_total",
                "Memory of guests that came to places found before, and of others that made room.",
                "what",
                &PLACED,
            )?,
        })
    }

    /// Adds the families to those of a scrape.
    ///
    /// # Errors
    /// When one of that name is there already.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.ended.clone()))?;
        registry.register(Box::new(self.arranged.clone()))?;
        registry.register(Box::new(self.came.clone()))
    }

    /// Counts what a node's `mint-guestd` has done, as far as that is understood.
    pub fn done(&self, result: &Value) {
        self.ended.with_label_values(&["done"]).inc();
        let Ok(result) = serde_json::from_value::<LayoutResult>(result.clone()) else { return };
        for vm in &result.vms {
            let Some(went) = vm.went_bytes else { continue };
            let all: u64 = vm.memory.iter().map(|one| one.bytes).sum();
            self.arranged.with_label_values(&["went"]).inc_by(went);
            self.arranged.with_label_values(&["stayed"]).inc_by(all.saturating_sub(went));
        }
    }

    /// Counts a request that was not carried out.
    pub fn not_done(&self, error: &ErrorBody) {
        let result = match error.code {
            ErrorCode::PlanRefused | ErrorCode::BadRequest | ErrorCode::NotFound => "refused",
            _ => "failed",
        };
        self.ended.with_label_values(&[result]).inc();
    }

    /// Counts a guest that has moved, if it had a place.
    pub fn came(&self, moved: &Value) {
        let moved = serde_json::from_value::<MigrateResult>(moved.clone());
        let took = moved.ok().and_then(|moved| moved.layout?.took);
        let Some(LayoutFigures { placed_bytes, relocated_bytes, elsewhere_bytes, evicted_bytes }) =
            took
        else {
            return;
        };
        let values = [placed_bytes, relocated_bytes, elsewhere_bytes, evicted_bytes];
        for (what, bytes) in PLACED.iter().zip(values) {
            self.came.with_label_values(&[what]).inc_by(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_counted_by_what_came_of_them() {
        let metrics = LayoutMetrics::default();
        let change = json!({
            "name": "web", "uuid": "u1", "rank": 1, "misses_per_kilo": 1.0, "is_guessed": false,
            "expected_gain": 0.1, "vcpus": [], "memory": [{ "from": 0, "to": 1, "bytes": 10 }],
            "went_bytes": 7,
        });
        metrics.done(&json!({ "node": 1, "expected_gain": 0.1, "vms": [change], "is_done": true }));
        metrics.done(&json!({ "news": 1 }));
        for code in [ErrorCode::PlanRefused, ErrorCode::PeerUnreachable] {
            metrics.not_done(&ErrorBody::new(code, "no"));
        }
        let took = json!({
            "placed_bytes": 5, "relocated_bytes": 4, "elsewhere_bytes": 3, "evicted_bytes": 2,
        });
        let layout = json!({
            "policy": "simple", "expected_gain": 0.1, "to_evict_bytes": 2, "took": took,
        });
        let mut moved = json!({
            "name": "web", "uuid": "u1", "from": 1, "to": 2, "memory_bytes": 1, "disks": [],
            "changes": [], "took": null, "layout": layout,
        });
        metrics.came(&moved);
        moved["layout"] = Value::Null;
        metrics.came(&moved);
        let registry = Registry::new();
        metrics.register(&registry).unwrap();
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "mint_layout_changes_total{result=\"done\"} 2",
            "mint_layout_changes_total{result=\"refused\"} 1",
            "mint_layout_changes_total{result=\"failed\"} 1",
            "mint_layout_change_bytes_total{what=\"went\"} 7",
            "mint_layout_change_bytes_total{what=\"stayed\"} 3",
            "mint_layout_arrival_bytes_total{what=\"placed\"} 5",
            "mint_layout_arrival_bytes_total{what=\"relocated\"} 4",
            "mint_layout_arrival_bytes_total{what=\"elsewhere\"} 3",
            "mint_layout_arrival_bytes_total{what=\"evicted\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
