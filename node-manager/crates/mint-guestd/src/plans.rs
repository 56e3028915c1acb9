// SPDX-License-Identifier: Apache-2.0
//! What the next node of a guest plans for it, with a place on its NUMA nodes or without.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode, MigrateRequest, NodeView};
use mint_guests::arrival::{Departure, Plan};
use mint_types::{LayoutPolicy, LayoutWhen, Refusal, RefusalCode};

use crate::app::{App, client_error, path_of};
use crate::layout;

/// Whether a guest is to have a place before it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// It is not.
    No,
    /// Nobody has asked: it gets one where it can.
    Offered,
    /// Its user says so: it gets one, or stays.
    Asked(LayoutPolicy),
}

impl Wanted {
    /// A policy alone is a wish, too: it is of the place that guests get unless they are told otherwise.
    fn of(request: &MigrateRequest) -> Self {
        match (request.layout, request.layout_policy) {
            (Some(LayoutWhen::Before), policy) => Self::Asked(policy.unwrap_or_default()),
            (None, Some(policy)) => Self::Asked(policy),
            (None, None) => Self::Offered,
            (Some(LayoutWhen::After | LayoutWhen::None), _) => Self::No,
        }
    }
}

/// The destination's plan. One that does not answer, or knows no guests, is a refusal, too.
///
/// # Errors
/// With every reason why the guest cannot go there.
pub(crate) async fn plan(
    app: &App,
    departure: &Departure,
    to: &NodeView,
) -> Result<Plan, ErrorBody> {
    let path = format!("{}/arrivals", path_of(to.machine, to.id));
    app.mintd.post(&path, departure).await.map_err(client_error).map_err(|error| {
        let is_silent = matches!(
            error.code,
            ErrorCode::GuestdDown
                | ErrorCode::PeerUnreachable
                | ErrorCode::VersionMismatch
                | ErrorCode::NotFound
        );
        if is_silent { ErrorBody::refused(vec![silent(to, &error)]) } else { error }
    })
}

/// The same with a place there, if the guest is to have one; the departure says then what it is like. Where nobody has
/// asked for a place and there is none, the plan is one without, and says why.
///
/// # Errors
/// As [`plan`]; or when there is no place, and its user wants one.
pub(crate) async fn with_place(
    app: &Arc<App>,
    uuid: &str,
    departure: &mut Departure,
    to: &NodeView,
    request: &MigrateRequest,
) -> Result<Plan, ErrorBody> {
    match Wanted::of(request) {
        Wanted::No => plan(app, departure, to).await,
        Wanted::Asked(policy) => placed(app, uuid, departure, to, policy).await,
        Wanted::Offered => {
            let error = match placed(app, uuid, departure, to, LayoutPolicy::default()).await {
                Err(error) if !is_out_of_reach(&error) => error,
                other => return other,
            };
            departure.layout = None;
            let mut plan = plan(app, departure, to).await?;
            plan.changes.push(format!(
                "it gets no place on NUMA nodes before it comes: {}",
                reason(&error)
            ));
            Ok(plan)
        }
    }
}

async fn placed(
    app: &Arc<App>,
    uuid: &str,
    departure: &mut Departure,
    to: &NodeView,
    policy: LayoutPolicy,
) -> Result<Plan, ErrorBody> {
    departure.layout = Some(layout::wish(app, uuid, departure, policy).await?);
    let plan = plan(app, departure, to).await?;
    if plan.layout.is_none() { Err(placeless(to)) } else { Ok(plan) }
}

/// Who did not answer a moment ago does not answer now.
fn is_out_of_reach(error: &ErrorBody) -> bool {
    let is_silent = |refusal: &Refusal| refusal.code == RefusalCode::PeerUnreachable;
    error.code == ErrorCode::MintdDown || error.refusals.iter().any(is_silent)
}

fn reason(error: &ErrorBody) -> &str {
    error.refusals.first().map_or(&error.message, |refusal| &refusal.message)
}

fn silent(node: &NodeView, error: &ErrorBody) -> Refusal {
    let text = format!("{} does not say whether it can have guests: {error}", node.name);
    Refusal::new(RefusalCode::PeerUnreachable, format_args!("node {}", node.name), text)
        .hint("choose another node, or see to its mint-guestd and libvirt first")
}

fn placeless(node: &NodeView) -> ErrorBody {
    let text = format!("{} gives guests no place before they come", node.name);
    let refusal = Refusal::new(RefusalCode::VmTied, format_args!("node {}", node.name), text)
        .hint("its mint-guestd is older: move the guest without a layout, --layout none");
    ErrorBody::refused(vec![refusal])
}
