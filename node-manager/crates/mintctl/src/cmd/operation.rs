// SPDX-License-Identifier: Apache-2.0
//! `mintctl operation …`.

use mint_api::{
    ApplyResult, ErrorBody, ErrorCode, NodeResult, OperationList, OperationView, TakenFrom,
};
use mint_types::OperationKind;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::context::{Context, Outcome};
use super::other::{tell_applied, utc};
use super::vm_view::{evacuated, moved};
use super::{layout, node_result};
use crate::args::OperationCommand;
use crate::failure::Failure;
use crate::output::{Table, or_dash, print, print_json};

/// Runs it.
pub async fn run(context: &Context, command: OperationCommand) -> Outcome {
    match command {
        OperationCommand::List => list(context).await,
        OperationCommand::Show { id } => show(context, id).await,
        OperationCommand::Wait { id } => wait(context, id).await,
        OperationCommand::Cancel { id } => cancel(context, id).await,
    }
}

fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), utc)
}

/// Its state; with what a reader should know of it.
fn state(operation: &OperationView) -> String {
    let mut text = operation.state.to_string();
    if operation.unsettled {
        text += ", not settled";
    } else if operation.cancel && !operation.state.is_over() {
        text += ", is cancelled";
    }
    text
}

async fn list(context: &Context) -> Outcome {
    let list: OperationList = context.client.get("/v1/operations").await?;
    if context.json {
        print_json(&list)?;
        return Ok(0);
    }
    let mut table =
        Table::new(&["ID", "KIND", "NODE", "STATE", "ASKED-BY", "TAKEN-FROM", "SINCE", "LAST"]);
    for operation in &list.operations {
        table.row([
            operation.id.to_string(),
            operation.kind.to_string(),
            or_dash(operation.subject.clone()),
            state(operation),
            operation.asked_by.clone(),
            or_dash(operation.taken_from.as_ref().map(taken_from).unwrap_or_default()),
            time(Some(operation.created_ns)),
            or_dash(last(operation)),
        ]);
    }
    table.print()?;
    for file in &list.unreadable {
        eprintln!("mintctl: {} is not understood: {}", file.path, file.why);
    }
    Ok(0)
}

/// The node that died in the middle of it.
fn taken_from(from: &TakenFrom) -> String {
    format!("node {} ({})", from.node, from.name)
}

/// The one line that tells most.
fn last(operation: &OperationView) -> String {
    let said = operation.progress.last();
    let text = operation.error.as_ref().map(|error| &error.message).or(said);
    text.and_then(|text| text.lines().next()).unwrap_or_default().to_owned()
}

async fn show(context: &Context, id: u64) -> Outcome {
    let operation: OperationView = context.client.get(&format!("/v1/operations/{id}")).await?;
    tell(context, &operation)
}

fn tell(context: &Context, operation: &OperationView) -> Outcome {
    if context.json {
        print_json(operation)?;
        return Ok(0);
    }
    let from = operation.taken_from.as_ref();
    let from = from.map(|from| format!("{}, operation {} there", taken_from(from), from.id));
    let no_return = if operation.past_no_return { "passed" } else { "not reached" };
    for (name, text) in [
        ("id", operation.id.to_string()),
        ("kind", operation.kind.to_string()),
        ("node", or_dash(operation.subject.clone())),
        ("state", state(operation)),
        ("asked by", operation.asked_by.clone()),
        ("taken from", or_dash(from.unwrap_or_default())),
        ("asked at", time(Some(operation.created_ns))),
        ("began", time(operation.started_ns)),
        ("ended", time(operation.ended_ns)),
        ("no return", no_return.to_owned()),
    ] {
        print(&format!("{name:<10} {text}"))?;
    }
    if operation.dropped_lines > 0 {
        print(&format!("  ({} earlier lines are not kept)", operation.dropped_lines))?;
    }
    for line in &operation.progress {
        print(&format!("  {line}"))?;
    }
    if let Some(error) = &operation.error {
        print(&error.to_string())?;
    }
    Ok(0)
}

async fn wait(context: &Context, id: u64) -> Outcome {
    let operation: OperationView = context.client.get(&format!("/v1/operations/{id}")).await?;
    let path = format!("/v1/operations/{id}/wait");
    let result: Value = context.client.attend(&path, |text| eprintln!("{text}")).await?;
    match operation.kind {
        OperationKind::Apply => tell_applied(context, &understood::<ApplyResult>(result)?),
        OperationKind::Repair => {
            let done: Vec<String> = understood(result)?;
            if context.json {
                print_json(&done)?;
            } else {
                done.iter().try_for_each(|text| print(text))?;
            }
            Ok(0)
        }
        OperationKind::Migrate => moved(context, &understood(result)?),
        OperationKind::Evacuate => evacuated(context, &understood(result)?),
        OperationKind::Layout => layout::tell(context, &understood(result)?),
        _ => node_result::tell(context, &understood::<NodeResult>(result)?),
    }
}

/// A result that is what operations of its kind have.
fn understood<T: DeserializeOwned>(result: Value) -> Result<T, Failure> {
    serde_json::from_value(result)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error).into())
}

async fn cancel(context: &Context, id: u64) -> Outcome {
    let path = format!("/v1/operations/{id}/cancel");
    let operation: OperationView = context.client.post(&path, &json!({})).await?;
    if context.json {
        print_json(&operation)?;
    } else {
        print(&format!("operation {id} ends; see mintctl operation wait {id}"))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mint_types::OperationState;

    fn operation() -> OperationView {
        OperationView {
            id: 7,
            kind: OperationKind::Resize,
            subject: "web".into(),
            asked_by: "root".into(),
            taken_from: None,
            state: OperationState::Running,
            cancel: false,
            past_no_return: false,
            unsettled: false,
            created_ns: 1,
            started_ns: None,
            ended_ns: None,
            progress: vec!["claim cpu 3".into()],
            dropped_lines: 0,
            result: None,
            error: None,
        }
    }

    #[test]
    fn state_tells_of_a_cancel_and_of_what_is_left() {
        let running = operation();
        assert_eq!(state(&running), "running");
        assert_eq!(
            state(&OperationView { cancel: true, ..running.clone() }),
            "running, is cancelled"
        );
        let failed = OperationState::Failed;
        let left = OperationView { state: failed, unsettled: true, cancel: true, ..running };
        assert_eq!(state(&left), "failed, not settled");
    }

    #[test]
    fn last_line_is_the_error_if_there_is_one() {
        let mut one = operation();
        assert_eq!(last(&one), "claim cpu 3");
        one.error = Some(ErrorBody::new(ErrorCode::Failed, "no\nmore"));
        assert_eq!(last(&one), "no");
    }
}
