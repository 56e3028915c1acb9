// SPDX-License-Identifier: Apache-2.0
//! Brings the nodes that files describe up. What is there already stays as it
//! is: a description that changed counts from the next `remove` on.

use std::path::PathBuf;
use std::sync::Arc;

use mint_api::{
    AddRequest, Applied, ApplyRequest, ApplyResult, ErrorBody, ErrorCode, StartRequest,
};
use mint_node::config::load_specs;
use mint_types::NodeSpec;

use crate::app::App;
use crate::lines::Lines;
use crate::{description, operations};

/// Where descriptions are.
const DEFAULT_DIR: &str = "/etc/mint/nodes.d";

/// All descriptions of a folder, one after the other; a node that fails does
/// not keep the others down.
pub(crate) async fn apply(
    app: Arc<App>,
    request: ApplyRequest,
    lines: Lines,
) -> Result<ApplyResult, ErrorBody> {
    let dir = PathBuf::from(request.dir.as_deref().unwrap_or(DEFAULT_DIR));
    let specs =
        load_specs(&dir).map_err(|error| ErrorBody::from_error(ErrorCode::ConfigBad, &error))?;
    let mut nodes = Vec::new();
    for spec in specs {
        let name = spec.name.to_string();
        nodes.push(match one(&app, spec, &request, &lines).await {
            Ok(result) => Applied { name, result: result.into(), error: None },
            Err(error) => {
                lines.progress(format!("{name}: {error}"));
                Applied { name, result: "failed".into(), error: Some(error) }
            }
        });
    }
    Ok(ApplyResult { nodes })
}

async fn one(
    app: &Arc<App>,
    spec: NodeSpec,
    request: &ApplyRequest,
    lines: &Lines,
) -> Result<&'static str, ErrorBody> {
    let inventory = app.inventory()?;
    let name = spec.name.to_string();
    let Some(node) = inventory.nodes.iter().find(|node| node.name == name) else {
        let wait = request.wait;
        let request = AddRequest { spec, dry_run: false, wait, wait_s: None };
        operations::add(app.clone(), request, lines.clone()).await?;
        return Ok("added");
    };
    if spec.start && node.state.is_at_rest() {
        let request = StartRequest { wait: request.wait, ..StartRequest::default() };
        let spec = match description::to_boot(app, &inventory, node, false).await {
            Ok(known) => known,
            // whoever added it is not there: this file describes it, too
            Err(error) if description::is_missing(&error) => Some(spec),
            Err(error) => return Err(error),
        };
        operations::start_spec(app.clone(), name, spec, request, lines.clone()).await?;
        return Ok("started");
    }
    Ok("unchanged")
}
