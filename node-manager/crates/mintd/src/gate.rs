// SPDX-License-Identifier: Apache-2.0
//! What every request passes: who may ask for it, whether we understand each other,
//! and that it is written down.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, middleware};
use mint_api::{ErrorBody, ErrorCode, VERSIONS_HEADER, Versions};
use mint_serve::Failure;

use crate::app::App;
use crate::caller::{CALLER, Caller};
use crate::peer_clients::apart;

/// Paths for peers: about the node itself, and without the checks that a plan makes.
const LOCAL: &str = "/v1/local/";
/// Asked before the versions are known.
const HELLO: &str = "/v1/hello";

/// Puts the gate before all routes.
pub(crate) fn guard(router: Router, app: Arc<App>) -> Router {
    router.layer(middleware::from_fn_with_state(app, pass))
}

async fn pass(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let asked = is_audited(request.method(), path)
        .then(|| app.audit.begin(&caller, request.method(), path));
    let answer = match check(&app, &caller, path, request.headers()) {
        Ok(()) => CALLER.scope(caller, next.run(request)).await,
        Err(error) => Failure::from(error).into_response(),
    };
    match asked {
        Some(asked) => asked.answered(answer),
        None => answer,
    }
}

/// What changes something, runs something, or gives a node's content away.
fn is_audited(method: &Method, path: &str) -> bool {
    let opens = ["/exec", "/console", "/vmcore", "/boot/kernel", "/boot/initrd"];
    *method != Method::GET || opens.iter().any(|end| path.ends_with(end))
}

/// What a linked machine may ask for: who is there, guests, and to keep pages of its own.
fn is_for_linked(path: &str) -> bool {
    let Some(what) = path.strip_prefix(LOCAL) else { return path == HELLO };
    let first = what.split('/').next().unwrap_or_default();
    matches!(first, "machine" | "node" | "vms" | "arrivals" | "leases" | "pages")
}

fn check(app: &App, caller: &Caller, path: &str, headers: &HeaderMap) -> Result<(), ErrorBody> {
    match caller {
        Caller::User { .. } if path.starts_with(LOCAL) => {
            let text = format!("{path} is for the daemons of other nodes only");
            let error = ErrorBody::new(ErrorCode::NotAllowed, text);
            Err(error.hint("mintctl does the same with all checks: mintctl --help"))
        }
        Caller::Linked { .. } if !is_for_linked(path) => {
            let text = format!("{path} is not for linked machines");
            let error = ErrorBody::new(ErrorCode::NotAllowed, text);
            Err(error.hint("they may ask for guests only; log in on that machine"))
        }
        Caller::Peer { .. } | Caller::Linked { .. } if path != HELLO => {
            let theirs = match headers.get(VERSIONS_HEADER) {
                // daemons from before ranges were told
                None => Versions { oldest: 1, newest: 1 },
                Some(text) => {
                    text.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
                        ErrorBody::new(ErrorCode::BadRequest, "versions that cannot be read")
                    })?
                }
            };
            let ours = app.peers.versions;
            ours.meet(theirs).map(drop).ok_or_else(|| {
                let (from, here) = (caller.to_string(), format!("node {}", app.here));
                apart(&from, theirs, &here, ours)
            })
        }
        _ => Ok(()),
    }
}
