// SPDX-License-Identifier: Apache-2.0
//! Whether the machine is in order: its ledger, its devices, its nodes' daemons, and what
//! dead nodes were at.

use std::sync::Arc;

use mint_api::{CheckView, DoctorReport, ErrorBody};
use mint_node::doctor::{Check, CheckStatus, check_devices, check_ledger};
use mint_ops::Operations;

use crate::app::App;
use crate::views;

/// Is the machine in order?
pub(crate) async fn doctor(app: &Arc<App>) -> Result<DoctorReport, ErrorBody> {
    let inventory = app.inventory()?;
    let online = std::fs::read_to_string(app.root.join("sys/devices/system/cpu/online"))
        .ok()
        .and_then(|text| text.trim().parse::<mint_types::CpuSet>().ok())
        .map(|cpus| cpus.len());
    let mut checks = check_ledger(&inventory, &app.ops.list(), &app.ops.bad_entries(), online);
    checks.push(check_intents(&app.ops));
    checks.push(check_devices(&inventory, &*app.machine));
    let mut silent = Vec::new();
    for view in views::node_list(app).await?.nodes {
        if ["hung", "degraded"].contains(&view.health.as_str()) {
            silent.push(format!("{} is {}: mintctl events", view.name, view.health));
        } else if view.mintd == "no answer" {
            silent.push(format!("mintd of {} does not answer", view.name));
        }
    }
    let good = "all running nodes answer".to_owned();
    checks.push(Check::of("peers", CheckStatus::Warn, &silent, good));
    let ok = checks.iter().all(|check| check.status != CheckStatus::Fail);
    let checks = checks
        .into_iter()
        .map(|check| CheckView {
            name: check.name,
            status: match check.status {
                CheckStatus::Ok => "ok",
                CheckStatus::Warn => "warn",
                CheckStatus::Fail => "fail",
            }
            .into(),
            detail: check.detail,
        })
        .collect();
    Ok(DoctorReport { ok, checks })
}

/// Whether what dead nodes were at has been ended.
fn check_intents(ops: &Operations) -> Check {
    let (status, good) = (CheckStatus::Warn, "what dead nodes were at is ended".to_owned());
    match ops.left_by_the_dead() {
        Ok(Some(left)) => Check::of("intents", status, &left, good),
        Ok(None) => {
            let good = "no room for them in the control area: a node that dies with its state \
                        folder leaves half done what it was at";
            Check::of("intents", status, &[], good.to_owned())
        }
        Err(error) => Check::of("intents", status, &[error.to_string()], good),
    }
}
