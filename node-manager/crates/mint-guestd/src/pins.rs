// SPDX-License-Identifier: Apache-2.0
//! CPUs of guests that stay where they are.

use mint_api::{ErrorBody, ErrorCode, PinRequest, VmPins};
use mint_types::PinChange;
use tracing::info;

use crate::app::App;

/// Gives guests other CPUs: all, or none.
///
/// # Errors
/// At the first that libvirt does not do; those before it are taken back.
pub(crate) async fn change(app: &App, vms: &[VmPins]) -> Result<(), ErrorBody> {
    let mut done: Vec<VmPins> = Vec::new();
    for VmPins { name, uuid, changes } in vms {
        for change in changes {
            if let Err(error) = pin(app, name, uuid, change).await {
                // last first, as a thread may have changed twice
                done.reverse();
                let kept = set(app, &PinRequest { vms: done }).await.err();
                return Err(match kept {
                    Some(kept) => error.hint(kept),
                    None => error.hint("all guests have the CPUs that they had"),
                });
            }
            let changes = vec![change.clone().undo()];
            done.push(VmPins { name: name.clone(), uuid: uuid.clone(), changes });
        }
    }
    Ok(())
}

/// Gives guests CPUs, as many of them as it can.
///
/// # Errors
/// With every one that libvirt does not do, or whose CPUs this node does not have.
pub(crate) async fn set(app: &App, request: &PinRequest) -> Result<(), ErrorBody> {
    let mut failed = Vec::new();
    for VmPins { name, uuid, changes } in &request.vms {
        for change in changes {
            failed.extend(pin(app, name, uuid, change).await.err());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let mut body = ErrorBody::new(ErrorCode::Failed, "guests keep the CPUs that they were given");
    body.causes = failed.iter().map(ToString::to_string).collect();
    Err(body)
}

async fn pin(app: &App, name: &str, uuid: &str, change: &PinChange) -> Result<(), ErrorBody> {
    let failed = |why: String| {
        let mut body = ErrorBody::new(
            ErrorCode::Failed,
            format_args!("vm {name} was not given other CPUs ({change})"),
        );
        body.causes.push(why);
        body
    };
    let online = app.host.online_cpus();
    if !change.now.iter().all(|cpu| online.contains(cpu)) {
        return Err(failed(format!("this node has CPU {online}")));
    }
    let (reference, wanted) = (uuid.to_owned(), change.clone());
    app.ask(move |hypervisor| hypervisor.pin(&reference, &wanted))
        .await
        .map_err(|error| failed(error.to_string()))?;
    info!(vm = name, %change, "other CPUs");
    Ok(())
}
