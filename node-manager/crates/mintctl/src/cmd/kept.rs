// SPDX-License-Identifier: Apache-2.0
//! `mintctl memory evacuate`: what a node keeps of other nodes' guests.

use mint_api::{EvacuateRequest, EvacuateResult};

use super::context::{Context, Outcome};
use super::node_path::path;
use super::vm::check_bandwidth;
use crate::output::{print, print_json};

/// What a node keeps of the memory of other nodes' guests goes to other nodes, or would go.
///
/// # Errors
/// When another node has no room for it, or it does not get on.
pub async fn evacuate(
    context: &Context,
    node: &str,
    dry_run: bool,
    bandwidth_bytes_s: Option<u64>,
) -> Outcome {
    check_bandwidth(bandwidth_bytes_s)?;
    let request =
        EvacuateRequest { memory: true, dry_run, bandwidth_bytes_s, ..EvacuateRequest::default() };
    let path = path(node, "evacuate")?;
    let result: EvacuateResult =
        context.client.operate(&path, &request, |line| eprintln!("{line}")).await?;
    if context.json {
        print_json(&result)?;
        return Ok(0);
    }
    for gone in &result.kept {
        let to = gone.to.as_deref().unwrap_or("another node");
        let is = if dry_run { "would go to" } else { "is on" };
        print(&format!("what node {} kept of vm {} {is} {to}", result.node, gone.name))?;
    }
    if result.kept.is_empty() {
        print(&format!("node {} keeps nothing of other nodes' guests", result.node))?;
    }
    Ok(0)
}
