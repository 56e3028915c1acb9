// SPDX-License-Identifier: Apache-2.0
//! What an operation on a node says when it is done.

use mint_api::NodeResult;

use super::context::{Context, Outcome};
use crate::output::{print, print_json};

/// The result of an operation on a node.
pub fn tell(context: &Context, result: &NodeResult) -> Outcome {
    if context.json {
        print_json(result)?;
        return Ok(0);
    }
    if result.dry_run {
        for note in &result.notes {
            print(&format!("note: {note}"))?;
        }
        for step in &result.steps {
            print(&format!("would {step}"))?;
        }
        return Ok(0);
    }
    for note in &result.notes {
        print(&format!("note: {note}"))?;
    }
    print(&summary(result))?;
    Ok(0)
}

/// In one line.
pub fn summary(result: &NodeResult) -> String {
    if let (Some(name), Some(id)) = (&result.removed, result.id) {
        return format!("node {id} ({name}) is removed");
    }
    let Some(node) = &result.node else { return "done".to_owned() };
    let times = &result.times;
    let mut parts = Vec::new();
    for (what, ms) in [
        ("stopped", times.stop_ms),
        ("planned", times.plan_ms),
        ("moved", times.apply_ms),
        ("loaded", times.load_ms),
        ("kernel runs", times.running_ms),
        ("mintd answers", times.mintd_ms),
    ] {
        if let Some(ms) = ms.filter(|&ms| ms > 0) {
            parts.push(format!("{what} {}.{:03} s", ms / 1000, ms % 1000));
        }
    }
    let how = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    format!("node {} ({}) is {}{how}", node.id, node.name, node.state)
}
