// SPDX-License-Identifier: Apache-2.0
//! Brings the nodes that files describe up. What is there already stays as it
//! is: a description that changed counts from the next `remove` on.

use std::path::PathBuf;
use std::sync::Arc;

use mint_api::{
    AddRequest, Applied, ApplyRequest, ApplyResult, ErrorBody, ErrorCode, StartRequest,
};
use mint_node::config::load_specs;
use mint_ops::Op;
use mint_types::NodeSpec;

use crate::app::App;
use crate::ending::finish;
use crate::request::Request;
use crate::{description, nodes};

/// Where descriptions are.
const DEFAULT_DIR: &str = "/etc/mint/nodes.d";

/// All descriptions of a folder, one after the other; a node that fails does
/// not keep the others down.
pub(crate) async fn apply(
    app: Arc<App>,
    op: &Op,
    request: ApplyRequest,
) -> Result<ApplyResult, ErrorBody> {
    let dir = PathBuf::from(request.dir.as_deref().unwrap_or(DEFAULT_DIR));
    let specs =
        load_specs(&dir).map_err(|error| ErrorBody::from_error(ErrorCode::ConfigBad, &error))?;
    let mut nodes = Vec::new();
    for spec in specs {
        // those that are up stay up
        op.check().map_err(|error| ErrorBody::from_error(ErrorCode::Cancelled, &error))?;
        let name = spec.name.to_string();
        nodes.push(match one(&app, op, spec, &request).await {
            Ok(result) => Applied { name, result: result.into(), error: None },
            Err(error) => {
                op.progress(&format!("{name}: {error}"));
                Applied { name, result: "failed".into(), error: Some(error) }
            }
        });
    }
    Ok(ApplyResult { nodes })
}

async fn one(
    app: &Arc<App>,
    op: &Op,
    spec: NodeSpec,
    request: &ApplyRequest,
) -> Result<&'static str, ErrorBody> {
    let inventory = app.inventory()?;
    let name = spec.name.to_string();
    let Some(node) = inventory.nodes.iter().find(|node| node.name == name) else {
        let wait = request.wait;
        let request = AddRequest { spec, dry_run: false, wait, wait_s: None };
        let part = part(app, op, &Request::Add(Box::new(request.clone())))?;
        let added = nodes::add(app.clone(), &part, request).await;
        finish(&part, &added);
        return added.map(|_| "added");
    };
    if spec.start && node.state.is_at_rest() {
        let request = StartRequest { wait: request.wait, ..StartRequest::default() };
        let part = part(app, op, &Request::Start(name.clone(), request.clone()))?;
        let started = async {
            let spec = match description::to_boot(app, &inventory, node, false).await {
                Ok(known) => known,
                // whoever added it is not there: this file describes it, too
                Err(error) if description::is_missing(&error) => Some(spec),
                Err(error) => return Err(error),
            };
            nodes::start_spec(app.clone(), &part, name, spec, request).await
        };
        let started = started.await;
        finish(&part, &started);
        return started.map(|_| "started");
    }
    Ok("unchanged")
}

/// An operation of its own: it is taken back alone, and whoever waits for all sees it.
fn part(app: &App, op: &Op, request: &Request) -> Result<Op, ErrorBody> {
    app.submit(op.entry().asked_by, request, Some(op.id()))
}
