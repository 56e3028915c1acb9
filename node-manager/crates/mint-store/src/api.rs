// SPDX-License-Identifier: Apache-2.0
//! What this node's `mint-guestd` asks for, on a socket that is root's.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use mint_api::{ErrorBody, ErrorCode};
use mint_serve::Failure;
use mint_split::{Lease, LeaseEnd, LeaseView, MirrorView};
use serde_json::{Value, json};

use crate::guests::{Guests, LeaseError};

type Shared = State<Arc<Guests>>;

/// Serves leases: `GET /v1/leases` ([`LeaseView`]s), `POST /v1/leases` (a [`Lease`] of a guest
/// that starts, or one that changes), `POST /v1/leases/end` ([`LeaseEnd`]).
pub fn router(guests: Arc<Guests>) -> Router {
    Router::new()
        .route("/v1/leases", get(list).post(begin))
        .route("/v1/leases/end", post(end))
        .with_state(guests)
}

async fn list(State(guests): Shared) -> Json<Vec<LeaseView>> {
    let view = |(lease, kept_bytes, mirror): (Lease, u64, Option<MirrorView>)| LeaseView {
        uuid: lease.uuid,
        secret: lease.secret,
        epoch: Some(lease.epoch),
        main: lease.main,
        limit_bytes: lease.limit_bytes,
        kept_bytes,
        mirror,
        machine: lease.machine,
    };
    Json(guests.list().into_iter().map(view).collect())
}

async fn begin(State(guests): Shared, Json(lease): Json<Lease>) -> Result<Json<Value>, Failure> {
    blocking(move || if lease.stays { guests.lease(lease) } else { guests.begin(lease) }).await
}

async fn end(State(guests): Shared, Json(end): Json<LeaseEnd>) -> Result<Json<Value>, Failure> {
    blocking(move || guests.end(&end)).await
}

/// Files of a large guest take their time.
async fn blocking(
    work: impl FnOnce() -> Result<(), LeaseError> + Send + 'static,
) -> Result<Json<Value>, Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure(ErrorBody::from_error(ErrorCode::Failed, error));
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map(|()| Json(json!({ "mirrors": true }))).map_err(|error| failed(&error)),
        Err(fault) => Err(failed(&fault)),
    }
}
