// SPDX-License-Identifier: Apache-2.0
//! `mintctl vm …`.

use std::time::{Duration, Instant};

use mint_api::{
    EvacuateRequest, EvacuateResult, MigrateRequest, MigrateResult, VmList, VmVerb, VmView, vm_path,
};
use serde_json::json;

use super::console::{Ended, Keys};
use super::context::{Context, Outcome};
use super::import;
use super::node_path::path;
use super::vm_view::{evacuated, moved, show, table, tell};
use super::{vm_map, vm_memory};
use crate::args::{MigrateArgs, MigrateHow, VmArgs, VmCommand};
use crate::failure::Failure;
use crate::output::print_json;
use mint_types::{LayoutPolicy, LayoutWhen, PagingPolicy};

/// A guest whose console has ended is looked for on other nodes for so long.
const FOLLOWS_FOR: Duration = Duration::from_secs(10);
const LOOKS_EVERY: Duration = Duration::from_millis(300);

/// Runs it.
pub async fn run(context: &Context, command: VmCommand) -> Outcome {
    match command {
        VmCommand::List { node } => list(context, node.as_deref()).await,
        VmCommand::Show(vm) => {
            let view = context.client.get(&path_of(&vm, "")?).await?;
            show(context, &view)
        }
        VmCommand::Import(args) => import::run(context, args).await,
        VmCommand::Memory { vm, svg: Some(file), .. } => {
            vm_map::run(context, &path_of(&vm, "/memory/map")?, &file).await
        }
        VmCommand::Memory { vm, watch, svg: None } => {
            vm_memory::run(context, &path_of(&vm, "/memory")?, watch).await
        }
        VmCommand::Start(vm) => act(context, &vm, VmVerb::Start).await,
        VmCommand::Shutdown(vm) => act(context, &vm, VmVerb::Shutdown).await,
        VmCommand::Destroy(vm) => act(context, &vm, VmVerb::Destroy).await,
        VmCommand::Prepare(vm) => act(context, &vm, VmVerb::Prepare).await,
        VmCommand::Console { vm, write } => console(context, &vm, write).await,
        VmCommand::Migrate { args, split, policy, copies, chunk, main_only, layout } => {
            let (policy, layout_policy) = policies(policy, split.is_some(), layout)?;
            let chunk_bytes = chunk;
            let anew =
                Anew { split, policy, copies, chunk_bytes, main_only, layout, layout_policy };
            migrate(context, args, false, anew).await
        }
        VmCommand::Merge(args) => migrate(context, args, true, Anew::default()).await,
        VmCommand::Evacuate { node, how } => evacuate(context, &node, how).await,
    }
}

/// Path of guests: of one node, or of all.
fn guests(node: Option<&str>) -> Result<String, Failure> {
    node.map_or_else(|| Ok("/v1/vms".to_owned()), |node| path(node, "vms"))
}

fn path_of(vm: &VmArgs, rest: &str) -> Result<String, Failure> {
    if vm.vm.is_empty() {
        return Err(Failure::usage("a guest has a name: give it, or its UUID"));
    }
    Ok(vm_path(&guests(vm.node.as_deref())?, &vm.vm) + rest)
}

/// Exit status 1 when a node does not say what guests it has.
async fn list(context: &Context, node: Option<&str>) -> Outcome {
    let list: VmList = context.client.get(&guests(node)?).await?;
    let status = u8::from(!list.silent.is_empty());
    if context.json {
        print_json(&list)?;
        return Ok(status);
    }
    table(&list.vms).print()?;
    for node in &list.silent {
        let text = format!("{} does not say what guests it has: {}", node.name, node.reason);
        eprintln!("mintctl: {text}");
    }
    Ok(status)
}

async fn act(context: &Context, vm: &VmArgs, verb: VmVerb) -> Outcome {
    let path = path_of(vm, &format!("/{}", verb.word()))?;
    let view: VmView = context.client.post(&path, &json!({})).await?;
    show(context, &view)
}

/// Goes after the guest when it moves: ends when it runs no more, or the user leaves.
async fn console(context: &Context, vm: &VmArgs, write: bool) -> Outcome {
    let mut keys = Keys::new(write);
    let mut view: VmView = context.client.get(&path_of(vm, "")?).await?;
    loop {
        let there = vm_path(&path(&node_of(&view), "vms")?, &view.uuid);
        if keys.attach(context, &format!("{there}/console")).await? == Ended::Left {
            return Ok(0);
        }
        let Some(next) = elsewhere(context, &view).await else {
            eprintln!("vm {} runs on {} no more", view.name, view.node_name);
            return Ok(0);
        };
        eprintln!("vm {} is on {} now", next.name, next.node_name);
        view = next;
    }
}

/// The node that a guest is on, as paths name it.
fn node_of(view: &VmView) -> String {
    match view.machine {
        None => view.node.to_string(),
        Some(machine) => format!("{machine}/{}", view.node),
    }
}

/// The guest on another node, once it runs there; none if it does not.
async fn elsewhere(context: &Context, before: &VmView) -> Option<VmView> {
    // by its UUID: a name may be another guest's on another node
    let path = vm_path("/v1/vms", &before.uuid);
    let end = Instant::now() + FOLLOWS_FOR;
    loop {
        let view: Option<VmView> = context.client.get(&path).await.ok();
        match view {
            Some(view) if node_of(&view) != node_of(before) && view.state == "running" => {
                return Some(view);
            }
            Some(view) if view.state == "shut off" => return None,
            // both nodes may have it for a moment, or neither say so
            _ if Instant::now() < end => tokio::time::sleep(LOOKS_EVERY).await,
            _ => return None,
        }
    }
}

/// How memory is split anew, or not, and when it gets its place.
#[derive(Default)]
struct Anew {
    split: Option<String>,
    policy: Option<PagingPolicy>,
    copies: Option<u32>,
    chunk_bytes: Option<u64>,
    main_only: bool,
    layout: Option<LayoutWhen>,
    layout_policy: Option<LayoutPolicy>,
}

/// Whose policy that is: the pager's of a guest that is split, or that of its layout.
///
/// # Errors
/// When it is of neither, or none of these.
fn policies(
    policy: Option<String>,
    is_split: bool,
    layout: Option<LayoutWhen>,
) -> Result<(Option<PagingPolicy>, Option<LayoutPolicy>), Failure> {
    let Some(policy) = policy else { return Ok((None, None)) };
    if is_split {
        return policy.parse().map(|paging| (Some(paging), None)).map_err(Failure::usage);
    }
    match layout {
        Some(LayoutWhen::None) => {
            Err(Failure::usage("--policy is of --split, or of --layout before or after"))
        }
        _ => policy.parse().map(|layout| (None, Some(layout))).map_err(Failure::usage),
    }
}

async fn migrate(context: &Context, args: MigrateArgs, merge: bool, anew: Anew) -> Outcome {
    check_bandwidth(args.how.bandwidth)?;
    let request = MigrateRequest {
        to: args.to,
        dry_run: args.how.dry_run,
        bandwidth_bytes_s: args.how.bandwidth,
        downtime_ms: args.how.downtime_ms,
        parallel: args.how.parallel,
        compress: args.how.compress,
        post_copy_after_s: args.how.post_copy_after,
        merge,
        main_only: anew.main_only,
        split: anew.split,
        policy: anew.policy,
        copies: anew.copies,
        chunk_bytes: anew.chunk_bytes,
        layout: anew.layout,
        layout_policy: anew.layout_policy,
    };
    let path = path_of(&args.vm, "/migrate")?;
    let result: MigrateResult = context.client.operate(&path, &request, tell(context)).await?;
    moved(context, &result)
}

async fn evacuate(context: &Context, node: &str, how: MigrateHow) -> Outcome {
    check_bandwidth(how.bandwidth)?;
    let request = EvacuateRequest {
        dry_run: how.dry_run,
        bandwidth_bytes_s: how.bandwidth,
        downtime_ms: how.downtime_ms,
        parallel: how.parallel,
        compress: how.compress,
        post_copy_after_s: how.post_copy_after,
        taken: None,
        ends: false,
        force: false,
        memory: false,
    };
    let path = path(node, "evacuate")?;
    let result: EvacuateResult = context.client.operate(&path, &request, tell(context)).await?;
    evacuated(context, &result)
}

/// What clap cannot see.
///
/// # Errors
/// When nothing could move.
pub(super) fn check_bandwidth(bytes_s: Option<u64>) -> Result<(), Failure> {
    if bytes_s == Some(0) {
        return Err(Failure::usage("bandwidth 0 is none: leave --bandwidth out for no limit"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_of_a_split_or_of_a_layout() {
        let told = |policy: &str, is_split, layout| {
            policies(Some(policy.to_owned()), is_split, layout).map_err(|_| ())
        };
        assert_eq!(told("clock", true, None), Ok((Some(PagingPolicy::Clock), None)));
        let before = Some(LayoutWhen::Before);
        for layout in [before, None] {
            assert_eq!(told("dino", false, layout), Ok((None, Some(LayoutPolicy::Dino))));
        }
        for (policy, is_split, layout) in [
            ("dino", true, None),
            ("clock", false, before),
            ("clock", false, None),
            ("dino", false, Some(LayoutWhen::None)),
        ] {
            assert_eq!(told(policy, is_split, layout), Err(()), "{policy}");
        }
        assert_eq!(policies(None, false, None).map_err(|_| ()), Ok((None, None)));
    }

    #[test]
    fn guest_is_looked_for_unless_its_node_is_named() {
        let vm = |node: Option<&str>| VmArgs { vm: "a b".into(), node: node.map(str::to_owned) };
        assert_eq!(path_of(&vm(None), "/start").unwrap(), "/v1/vms/a%20b/start");
        assert_eq!(path_of(&vm(Some("node1")), "").unwrap(), "/v1/nodes/node1/vms/a%20b");
        assert!(path_of(&vm(Some("../x")), "").is_err());
        assert!(path_of(&VmArgs { vm: String::new(), node: None }, "").is_err());
    }
}
