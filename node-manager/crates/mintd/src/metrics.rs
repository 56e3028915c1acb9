// SPDX-License-Identifier: Apache-2.0
//! Metrics for Prometheus, in its text format: the ledger and the nodes as this
//! daemon sees them now. What programs and guests use is for the node exporter
//! and the libvirt exporter of each node.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mint_api::{ErrorBody, ErrorCode};
use mint_types::{Kind, ResState};
use prometheus::{Encoder, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::app::App;

/// Families under construction.
struct Metrics(Registry);

impl Metrics {
    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let family = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn state_name(state: ResState) -> &'static str {
    match state {
        ResState::Absent => "absent",
        ResState::Free => "free",
        ResState::Owned => "owned",
        ResState::Moving => "moving",
    }
}

/// All families, filled.
fn fill(app: &App) -> Result<Registry, Box<dyn std::error::Error>> {
    let inventory = app.inventory().map_err(|error| error.to_string())?;
    let metrics = Metrics(Registry::new());
    let node = ["node", "name"];

    metrics
        .gauge("mint_build_info", "Version of this mintd, and its node.", &["version", "node"])?
        .with_label_values(&[env!("CARGO_PKG_VERSION"), &app.here.to_string()])
        .set(1);
    let state = metrics.gauge(
        "mint_node_state",
        "1 for the state that a node is in.",
        &["node", "name", "state"],
    )?;
    let cores = metrics.gauge("mint_node_cores", "Cores that a node owns.", &node)?;
    let online = metrics.gauge(
        "mint_node_cores_online",
        "Cores that are online, as the node last said.",
        &node,
    )?;
    let memory = metrics.gauge("mint_node_memory_bytes", "Memory that a node owns.", &node)?;
    let devices = metrics.gauge(
        "mint_node_devices",
        "PCI functions that a node owns, bridges and platform parts left out.",
        &node,
    )?;
    let hung = metrics.gauge("mint_node_hung", "1 if a node's heartbeat stands still.", &node)?;
    let degraded = metrics.gauge(
        "mint_node_degraded",
        "1 if a node's heartbeat is late, or fewer cores are online than it owns.",
        &node,
    )?;
    let changed = metrics.gauge(
        "mint_node_state_change_timestamp_seconds",
        "When a node's state changed last.",
        &node,
    )?;
    let boots =
        metrics.counter("mint_node_boots_total", "Starts of a node since it was made.", &node)?;
    let heartbeats = metrics.counter(
        "mint_node_heartbeats_total",
        "Heartbeats of a node, over all its boots.",
        &node,
    )?;
    for status in &inventory.nodes {
        let (id, name) = (status.id.to_string(), status.display_name());
        let labels = [id.as_str(), name.as_str()];
        state.with_label_values(&[&id, &name, &status.state.to_string()]).set(1);
        let owned = inventory.cpus_of(status.id).len();
        cores.with_label_values(&labels).set(gauge_value(owned as u64));
        online.with_label_values(&labels).set(status.cpus_online.into());
        memory.with_label_values(&labels).set(gauge_value(status.memory_bytes));
        let functions = inventory
            .owned(status.id, Kind::Device)
            .filter(|device| !device.flags.bridge && !device.flags.platform)
            .count();
        devices.with_label_values(&labels).set(gauge_value(functions as u64));
        let word = app.marks().health_of(status.id).word();
        hung.with_label_values(&labels).set((word == "hung").into());
        degraded.with_label_values(&labels).set((word == "degraded").into());
        changed.with_label_values(&labels).set(gauge_value(status.state_change_ns / 1_000_000_000));
        boots.with_label_values(&labels).inc_by(status.boots.into());
        heartbeats.with_label_values(&labels).inc_by(status.heartbeat);
    }

    let ledger = metrics.gauge("mint_resources", "Resources in the ledger.", &["kind", "state"])?;
    for (kind, resources) in [
        ("cpu", &inventory.cpus),
        ("memory_block", &inventory.memory),
        ("device", &inventory.devices),
    ] {
        for state in [ResState::Free, ResState::Owned, ResState::Moving] {
            let count = resources.iter().filter(|resource| resource.state == state).count();
            ledger.with_label_values(&[kind, state_name(state)]).set(gauge_value(count as u64));
        }
    }
    metrics
        .counter("mint_events_total", "Events that this mintd has told since its start.", &[])?
        .with_label_values::<&str>(&[])
        .inc_by(app.events.told());
    app.move_metrics.register(&metrics.0)?;
    app.layout_metrics.register(&metrics.0)?;
    Ok(metrics.0)
}

/// The answer to a scrape.
///
/// # Errors
/// When the ledger cannot be read.
pub(crate) fn respond(app: &App) -> Result<Response, ErrorBody> {
    let failed = |error: Box<dyn std::error::Error>| ErrorBody::new(ErrorCode::Failed, error);
    let registry = fill(app).map_err(failed)?;
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    encoder.encode(&registry.gather(), &mut text).map_err(|error| failed(error.into()))?;
    let mut response = text.into_response();
    let kind = HeaderValue::from_str(encoder.format_type());
    response.headers_mut().insert(CONTENT_TYPE, kind.expect("a constant of the library"));
    Ok(response)
}

/// Serves scrapes, and nothing else, on an address of the administrator's choice.
pub(crate) async fn serve(app: Arc<App>) {
    let address = &app.config.metrics.listen;
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            warn!(%error, address, "metrics are not served");
            return;
        }
    };
    info!(address, "serving metrics");
    let scraped = app.clone();
    let router = Router::new().route(
        "/metrics",
        get(|| async move { respond(&scraped).map_err(|error| error.to_string()) }),
    );
    if let Err(error) = axum::serve(listener, router).await {
        warn!(%error, address, "metrics are not served any more");
    }
}
