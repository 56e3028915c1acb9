// SPDX-License-Identifier: Apache-2.0
//! `--evacuate`: a node's guests run on elsewhere while it ends, and come back to it.
//!
//! Whoever asks for it waits; when this command dies, guests run on wherever they are.

use std::time::Duration;

use mint_api::{
    ClientError, ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, MigrateRequest,
    MigrateResult, NodeDetail, NodeResult, VmList, vm_path,
};
use mint_types::RefusalCode;
use serde_json::json;
use tokio::time::Instant;

use super::context::{Context, Outcome};
use super::node_path::path;
use super::node_result::tell;
use crate::failure::Failure;
use crate::output::{print, print_json};

/// For libvirt and mint-guestd of a node that was started to answer.
const READY_WITHIN: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_secs(1);

/// A node whose guests have gone.
pub struct Evacuated {
    reference: String,
    result: EvacuateResult,
}

/// Moves a node's guests to other nodes.
///
/// # Errors
/// When it is the node that this runs on, a guest has no place, or, unless that is insisted on, it
/// keeps memory of other nodes' guests; then none goes.
pub async fn evacuate(context: &Context, node: &str, force: bool) -> Result<Evacuated, Failure> {
    let detail: NodeDetail = context.client.get(&path(node, "")?).await?;
    if detail.node.is_self {
        let text = format!("{} is the node that this runs on", detail.node.name);
        let error = ErrorBody::new(ErrorCode::BadRequest, text);
        return Err(error.hint("say it on another node: this command ends with its node").into());
    }
    let request = EvacuateRequest { ends: true, force, ..EvacuateRequest::default() };
    let path = path(node, "evacuate")?;
    let result = context.client.operate(&path, &request, |line| eprintln!("{line}")).await?;
    Ok(Evacuated { reference: format!("node{}", detail.node.id), result })
}

impl Evacuated {
    /// Tells how the node ended.
    ///
    /// # Errors
    /// When the output is closed.
    pub fn tell(&self, context: &Context, ended: &NodeResult) -> Outcome {
        if context.json {
            print_json(&json!({ "result": ended, "evacuated": self.result }))?;
            return Ok(0);
        }
        tell(context, ended)
    }

    /// Brings the guests back, one after the other, once the node's libvirt answers.
    ///
    /// # Errors
    /// When it does not, or a guest cannot come back: it runs on where it is.
    pub async fn bring_back(&self, context: &Context, started: &NodeResult) -> Outcome {
        if !context.json {
            tell(context, started)?;
        }
        self.wait_ready(context).await?;
        let mut returned = Vec::new();
        for vm in &self.result.vms {
            let back = self.bring(context, &vm.uuid).await?;
            if !context.json {
                print(&format!("vm {} is back on {}", back.name, self.reference))?;
            }
            returned.push(back);
        }
        if context.json {
            let all = json!({ "result": started, "evacuated": self.result, "returned": returned });
            print_json(&all)?;
        }
        Ok(0)
    }

    /// One guest. What its node had for it when it was there comes up after libvirt.
    async fn bring(&self, context: &Context, uuid: &str) -> Result<MigrateResult, Failure> {
        let request = MigrateRequest {
            to: self.reference.clone(),
            dry_run: false,
            bandwidth_bytes_s: None,
            downtime_ms: None,
            parallel: None,
            compress: false,
            post_copy_after_s: None,
            merge: false,
            main_only: false,
            split: None,
            policy: None,
            copies: None,
            chunk_bytes: None,
            layout: None,
            layout_policy: None,
        };
        let path = vm_path("/v1/vms", uuid) + "/migrate";
        let end = Instant::now() + READY_WITHIN;
        loop {
            let back = context.client.operate(&path, &request, |line| eprintln!("{line}")).await;
            match back {
                Err(ClientError::Refused(body)) if comes_up(&body) && Instant::now() < end => {
                    tokio::time::sleep(POLL).await;
                }
                back => return Ok(back?),
            }
        }
    }

    async fn wait_ready(&self, context: &Context) -> Result<(), Failure> {
        if self.result.vms.is_empty() {
            return Ok(());
        }
        let guests = path(&self.reference, "vms")?;
        let end = Instant::now() + READY_WITHIN;
        loop {
            match context.client.get::<VmList>(&guests).await {
                Ok(_) => return Ok(()),
                Err(error @ ClientError::Refused(_)) if Instant::now() < end => {
                    drop(error);
                    tokio::time::sleep(POLL).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether all that a node lacks is what starts, or is mounted, while it boots.
fn comes_up(body: &ErrorBody) -> bool {
    use RefusalCode::{VmBootFile, VmDiskMissing, VmNetwork};
    let mut lacks = body.refusals.iter().map(|refusal| refusal.code);
    !body.refusals.is_empty()
        && lacks.all(|code| matches!(code, VmBootFile | VmDiskMissing | VmNetwork))
}

#[cfg(test)]
mod tests {
    use mint_types::Refusal;

    use super::*;

    #[test]
    fn network_that_is_not_up_yet_is_waited_for_and_memory_that_is_gone_is_not() {
        let body = |codes: &[RefusalCode]| {
            let mut body = ErrorBody::new(ErrorCode::PlanRefused, "no");
            body.refusals = codes.iter().map(|&code| Refusal::new(code, "vm web", "no")).collect();
            body
        };
        assert!(comes_up(&body(&[RefusalCode::VmNetwork])));
        assert!(comes_up(&body(&[RefusalCode::VmNetwork, RefusalCode::VmDiskMissing])));
        assert!(!comes_up(&body(&[RefusalCode::VmNetwork, RefusalCode::MemoryShort])));
        assert!(!comes_up(&body(&[])));
    }
}
