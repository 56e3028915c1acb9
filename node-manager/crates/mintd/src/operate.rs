// SPDX-License-Identifier: Apache-2.0
//! From a request to an operation, and from an operation to an answer. A client that goes
//! away ends nothing, and may attach again.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::response::Response;
use mint_api::{
    ErrorBody, ErrorCode, Line, OPERATION_HEADER, OperationList, OperationView, TakenFrom,
    UnreadableView,
};
use mint_ops::{CancelError, Entry, News, Op};
use mint_serve::lines;
use mint_types::{Asker, OperationId, Refusal, RefusalCode};
use serde_json::Value;
use tracing::warn;

use crate::app::App;
use crate::ending::{error_of, finish, value};
use crate::request::Request;
use crate::{apply, keeps, moves, nodes};

/// Writes a request down as an operation, carries it out, and answers with what it says.
///
/// # Errors
/// When it cannot begin, or ends with an error before it has said anything.
pub(crate) async fn respond(
    app: Arc<App>,
    asker: Asker,
    request: Request,
) -> Result<Response, ErrorBody> {
    let op = app.submit(asker, &request, None)?;
    let id = op.id();
    let follower = app.ops.follow(id);
    carry_on(app, op, request);
    attach(id, follower).await
}

/// Answers with what an operation says and has said.
///
/// # Errors
/// When there is none, or it ended with an error and without a word.
pub(crate) async fn wait(app: &App, id: OperationId) -> Result<Response, ErrorBody> {
    attach(id, app.ops.follow(id)).await
}

async fn attach(
    id: OperationId,
    follower: Option<mint_ops::Follower>,
) -> Result<Response, ErrorBody> {
    let absent = || ErrorBody::new(ErrorCode::NotFound, format_args!("there is no operation {id}"));
    let mut follower = follower.ok_or_else(absent)?;
    let mut news = Some(follower.next().await.ok_or_else(absent)?);
    if let Some(News::Over(entry)) = &news {
        // nothing has been sent yet: the status can tell
        if let Some(error) = error_of(entry) {
            return Err(error);
        }
    }
    let mut response = lines::respond(move |lines| async move {
        while let Some(next) = news.take() {
            let told = match next {
                News::Lines(all) => all.into_iter().map(Line::Progress).collect(),
                News::Over(entry) => vec![match error_of(&entry) {
                    Some(error) => Line::Error(error),
                    None => Line::Result(entry.result.unwrap_or(Value::Null)),
                }],
            };
            for line in &told {
                // a slow reader holds up nothing but this answer
                if !lines.send(line).await {
                    return;
                }
            }
            news = follower.next().await;
        }
    });
    response.headers_mut().insert(OPERATION_HEADER, HeaderValue::from(id.0));
    Ok(response)
}

/// Carries an operation out, to its end, in a task of its own.
pub(crate) fn carry_on(app: Arc<App>, op: Op, request: Request) {
    tokio::spawn(async move {
        let result = carry_out(app, &op, request).await;
        finish(&op, &result);
    });
}

async fn carry_out(app: Arc<App>, op: &Op, request: Request) -> Result<Value, ErrorBody> {
    let node = match request {
        Request::Add(request) => nodes::add(app, op, *request).await,
        Request::Start(node, request) => nodes::start(app, op, node, request).await,
        Request::Stop(node, request) => {
            if !request.force {
                keeps::may_end(&app, &node).await?;
            }
            nodes::stop(app, op, node, request).await
        }
        Request::Restart(node, request) => {
            if !request.force {
                keeps::may_end(&app, &node).await?;
            }
            nodes::restart(app, op, node, request).await
        }
        Request::Kill(node) => nodes::kill(app, op, node).await,
        Request::Remove(node, request) => nodes::remove(app, op, node, request).await,
        Request::Resize(node, request) => {
            if !request.force && !request.spec.memory.is_empty() {
                let plan = nodes::plan_resize(&app, node.clone(), request.clone()).await?;
                keeps::may_lose(&app, &plan.taken).await?;
            }
            nodes::resize(app, op, node, request).await
        }
        Request::Apply(request) => {
            return apply::apply(app, op, request).await.map(|result| value(&result));
        }
        Request::Migrate { vm, node, how } => {
            let moved = moves::migrate(&app, op, node.as_deref(), &vm, &how).await;
            return moved.inspect_err(|error| app.move_metrics.not_done(error));
        }
        Request::Evacuate(node, how) => {
            if how.ends && !how.force {
                // before its own guests have gone
                keeps::may_end(&app, &node).await?;
            }
            let gone = moves::evacuate(&app, op, &node, &how).await;
            return gone.inspect_err(|error| app.move_metrics.not_done(error));
        }
        Request::Layout(node, how) => {
            let done = moves::layout(&app, op, &node, &how).await;
            let done = done.inspect(|done| app.layout_metrics.done(done));
            return done.inspect_err(|error| app.layout_metrics.not_done(error));
        }
        Request::Repair => {
            return app.carry(op, |nodes, _| nodes.repair()).await.map(|done| value(&done));
        }
    };
    node.map(|result| value(&result))
}

fn view(entry: Entry) -> OperationView {
    let error = error_of(&entry);
    OperationView {
        id: entry.id.0,
        kind: entry.kind,
        subject: entry.subject,
        asked_by: entry.asked_by.to_string(),
        taken_from: entry.taken_from.map(|from| TakenFrom {
            node: from.node.as_u32(),
            name: from.name,
            id: from.id.0,
        }),
        state: entry.state,
        cancel: entry.cancel,
        past_no_return: entry.past_no_return,
        unsettled: entry.state.is_over() && entry.open.is_some(),
        created_ns: entry.created_ns,
        started_ns: entry.started_ns,
        ended_ns: entry.ended_ns,
        progress: entry.progress,
        dropped_lines: entry.dropped_lines,
        result: entry.result,
        error,
    }
}

/// All operations.
pub(crate) fn list(app: &App) -> OperationList {
    let unreadable = app
        .ops
        .bad_entries()
        .into_iter()
        .map(|bad| UnreadableView { path: bad.path.display().to_string(), why: bad.why });
    OperationList {
        operations: app.ops.list().into_iter().map(view).collect(),
        unreadable: unreadable.collect(),
    }
}

/// One operation.
///
/// # Errors
/// When there is none.
pub(crate) fn show(app: &App, id: OperationId) -> Result<OperationView, ErrorBody> {
    let absent = || ErrorBody::new(ErrorCode::NotFound, format_args!("there is no operation {id}"));
    app.ops.get(id).map(view).ok_or_else(absent)
}

/// Asks an operation to end.
///
/// # Errors
/// Refused when it is over or past its point of no return.
pub(crate) fn cancel(app: &App, id: OperationId) -> Result<OperationView, ErrorBody> {
    let refused = |code, text: &CancelError, hint: &str| {
        let resource = format!("operation {id}");
        ErrorBody::refused(vec![Refusal::new(code, resource, text).hint(hint)])
    };
    app.ops.cancel(id).map(view).map_err(|error| match &error {
        CancelError::Absent(_) => ErrorBody::new(ErrorCode::NotFound, &error),
        CancelError::Over(_) => refused(RefusalCode::OperationOver, &error, ""),
        CancelError::PastNoReturn(_) => refused(
            RefusalCode::PastNoReturn,
            &error,
            "it will be finished: mintctl operation wait; undo it then by another one",
        ),
        CancelError::Journal(_) => ErrorBody::from_error(ErrorCode::Failed, &error),
    })
}

/// The number of an operation in a path.
///
/// # Errors
/// When it is none.
pub(crate) fn id(text: &str) -> Result<OperationId, ErrorBody> {
    text.parse().map_err(|_| {
        ErrorBody::new(ErrorCode::BadRequest, format_args!("`{text}` is no number of an operation"))
    })
}

/// Heals what is half done; gives what was done, in words.
///
/// # Errors
/// When the ledger or the journal cannot be read.
pub(crate) async fn repair(app: &App, asker: Asker) -> Result<Vec<String>, ErrorBody> {
    let op = app.submit(asker, &Request::Repair, None)?;
    let done = app.carry(&op, |nodes, _| nodes.repair()).await;
    finish(&op, &done);
    done.iter().flatten().for_each(|text| warn!("repaired: {text}"));
    done
}
