// SPDX-License-Identifier: Apache-2.0
//! `node resize --evacuate`: guests make way for what nodes are about to lose, and then it goes.
//!
//! All is planned before anything changes. Whoever asks for it waits; when this command dies,
//! guests have the CPUs and run on the nodes that they have got by then.

use mint_api::{
    ErrorCode, EvacuateRequest, EvacuateResult, NodeResult, PinRequest, ResizePlan, ResizeRequest,
    TimesView, VmPins,
};
use mint_types::{NodeId, PinChange, Taken};
use serde_json::{Value, json};

use super::context::{Context, Outcome};
use super::node_path::path;
use super::node_result::tell;
use super::vm_view::words;
use crate::failure::Failure;
use crate::output::{print, print_json};

/// Resizes a node once no guest is in the way.
///
/// # Errors
/// When guests cannot make way: nothing is changed then. When it fails later: says what has
/// changed; CPUs are given back to guests.
pub async fn resize(context: &Context, node: &str, request: &ResizeRequest) -> Outcome {
    let plan: ResizePlan = context.client.post(&path(node, "resize/plan")?, request).await?;
    let mut ways = Vec::new();
    for taken in &plan.taken {
        ways.push((taken, make_way(context, taken, true).await?));
    }
    if request.dry_run {
        let ways: Vec<EvacuateResult> = ways.into_iter().map(|(_, way)| way).collect();
        return told(context, &planned(plan), &ways);
    }
    let mut made = Vec::new();
    for (taken, way) in ways {
        if way.vms.is_empty() && way.repinned.is_empty() {
            continue;
        }
        match make_way(context, taken, false).await {
            Ok(done) => made.push(done),
            Err(failure) => return Err(take_back(context, &made, failure).await),
        }
    }
    let path = path(node, "resize")?;
    match context.client.operate(&path, request, |text| eprintln!("{text}")).await {
        Ok(result) => told(context, &result, &made),
        Err(error) => Err(take_back(context, &made, error.into()).await),
    }
}

/// Has guests of a node make way, or says how they would.
async fn make_way(
    context: &Context,
    taken: &Taken,
    dry_run: bool,
) -> Result<EvacuateResult, Failure> {
    let path = path(&taken.node.to_string(), "evacuate")?;
    let taken = Some(taken.clone());
    let request = EvacuateRequest { dry_run, taken, ..EvacuateRequest::default() };
    Ok(context.client.operate(&path, &request, |text| eprintln!("{text}")).await?)
}

fn planned(plan: ResizePlan) -> NodeResult {
    let ResizePlan { steps, notes, .. } = plan;
    let times = TimesView::default();
    NodeResult { node: None, dry_run: true, removed: None, id: None, steps, notes, times }
}

fn told(context: &Context, result: &NodeResult, ways: &[EvacuateResult]) -> Outcome {
    if context.json {
        print_json(&json!({ "result": result, "evacuated": ways }))?;
        return Ok(0);
    }
    for way in ways {
        for line in way.vms.iter().flat_map(words).chain(pinned(way)) {
            print(&line)?;
        }
    }
    tell(context, result)
}

/// Which CPUs guests have got, or would. The numbers are their node's own.
fn pinned(way: &EvacuateResult) -> Vec<String> {
    let of = |vm: &VmPins| {
        let begin = format!("vm {} on node {}", vm.name, way.node);
        vm.changes.iter().map(move |change| format!("{begin}: {change}")).collect::<Vec<_>>()
    };
    way.repinned.iter().flat_map(of).collect()
}

/// Gives guests the CPUs back that they had, and adds to a failure what stays as it is now.
async fn take_back(context: &Context, made: &[EvacuateResult], failure: Failure) -> Failure {
    let Failure::Error(body) = failure else { return failure };
    let mut body = *body;
    let mut is_changed = false;
    for EvacuateResult { node, vms, repinned, .. } in made {
        let names = list(repinned.iter().map(|vm| vm.name.as_str()));
        if !repinned.is_empty() {
            match give_back(context, *node, repinned).await {
                Ok(()) => body = body.hint(format_args!("{names} has the CPUs again that it had")),
                Err(Failure::Error(why)) => {
                    is_changed = true;
                    body = body.hint(format_args!("{names} was given other CPUs: {why}"));
                }
                Err(closed @ Failure::OutputClosed) => return closed,
            }
        }
        for vm in vms {
            is_changed = true;
            body = body.hint(format_args!(
                "vm {} is on node {} now; mintctl vm migrate {} --to node{node} brings it back",
                vm.name, vm.to, vm.name
            ));
        }
    }
    // a refusal would say that nothing was changed
    if is_changed && body.code == ErrorCode::PlanRefused {
        body.code = ErrorCode::Failed;
    }
    body.into()
}

async fn give_back(context: &Context, node: NodeId, repinned: &[VmPins]) -> Result<(), Failure> {
    let path = path(&node.to_string(), "pins")?;
    context.client.post::<Value>(&path, &undo(repinned)).await?;
    Ok(())
}

fn undo(repinned: &[VmPins]) -> PinRequest {
    let back = |vm: &VmPins| {
        let changes = vm.changes.iter().cloned().map(PinChange::undo).collect();
        VmPins { changes, ..vm.clone() }
    };
    PinRequest { vms: repinned.iter().map(back).collect() }
}

/// E.g. `vm web, vm db`.
fn list<'name>(names: impl Iterator<Item = &'name str>) -> String {
    names.map(|name| format!("vm {name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use mint_types::GuestThread;

    use super::*;

    #[test]
    fn cpus_are_told_with_guest_and_node_and_given_back_as_they_were() {
        let change = PinChange {
            thread: GuestThread::Vcpu(0),
            is_defined: false,
            was: "1".parse().unwrap(),
            now: "0".parse().unwrap(),
        };
        let (name, uuid) = ("web".to_owned(), "u".to_owned());
        let repinned = vec![VmPins { name, uuid, changes: vec![change.clone()] }];
        let back = undo(&repinned);
        assert_eq!((&back.vms[0].changes[0].now, back.vms[0].uuid.as_str()), (&change.was, "u"));
        let way = EvacuateResult {
            node: NodeId::new(1).unwrap(),
            vms: Vec::new(),
            repinned,
            kept: Vec::new(),
        };
        assert_eq!(pinned(&way), ["vm web on node 1: vCPU 0: CPU 1 -> CPU 0"]);
    }
}
