// SPDX-License-Identifier: Apache-2.0
//! `mintctl layout …`.

use std::path::Path;
use std::time::Duration;

use mint_api::{
    LayoutRequest, LayoutResult, MeasureRequest, MeasureResult, NodeLayout, NodeList, VmLayout,
    vm_path,
};

use super::context::{Context, Outcome};
use super::layout_measured;
use super::layout_picture::picture;
use super::layout_view::{counters, explained, result, shown};
use super::node_path::path;
use crate::args::{LayoutCommand, NodeArgs, VmArgs};
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::svg;

const EVERY: Duration = Duration::from_secs(1);

/// Runs it.
pub async fn run(context: &Context, command: LayoutCommand) -> Outcome {
    match command {
        LayoutCommand::Show { node, watch, svg } => {
            let path = path_of(context, &node).await?;
            match svg {
                Some(file) => draw(context, &path, &file).await,
                None => show(context, &path, watch).await,
            }
        }
        LayoutCommand::Explain(vm) => {
            let layout: VmLayout = context.client.get(&path_of_vm(&vm)?).await?;
            if context.json {
                print_json(&layout)?;
            } else {
                explained(&layout).iter().try_for_each(|line| print(line))?;
            }
            Ok(0)
        }
        LayoutCommand::Counters { vm, watch } => measured(context, &path_of_vm(&vm)?, watch).await,
        LayoutCommand::Plan(args) => {
            let request = LayoutRequest { policy: args.policy, dry_run: true, undo: false };
            change(context, &args.node, &request).await
        }
        LayoutCommand::Apply(args) => {
            let request = LayoutRequest { policy: args.policy, ..LayoutRequest::default() };
            change(context, &args.node, &request).await
        }
        LayoutCommand::Undo { node, dry_run } => {
            let request = LayoutRequest { undo: true, dry_run, ..LayoutRequest::default() };
            change(context, &node, &request).await
        }
        LayoutCommand::Measure { node, mib, forget } => {
            let path = path_of(context, &node).await? + "/measure";
            let request = MeasureRequest { mib, forget };
            let done: MeasureResult = context.client.post(&path, &request).await?;
            if context.json {
                print_json(&done)?;
            } else {
                layout_measured::result(&done).iter().try_for_each(|line| print(line))?;
            }
            Ok(0)
        }
    }
}

async fn path_of(context: &Context, node: &NodeArgs) -> Result<String, Failure> {
    if let Some(node) = &node.node {
        return path(node, "layout");
    }
    let all: NodeList = context.client.get("/v1/nodes").await?;
    let here = all.nodes.into_iter().find(|node| node.is_self);
    let here =
        here.ok_or_else(|| Failure::usage("mintd does not say which node this is: --node"))?;
    path(&here.id.to_string(), "layout")
}

fn path_of_vm(vm: &VmArgs) -> Result<String, Failure> {
    if vm.vm.is_empty() {
        return Err(Failure::usage("a guest has a name: give it, or its UUID"));
    }
    let guests = match vm.node.as_deref() {
        None => "/v1/vms".to_owned(),
        Some(node) => path(node, "vms")?,
    };
    Ok(vm_path(&guests, &vm.vm) + "/layout")
}

async fn show(context: &Context, path: &str, watch: bool) -> Outcome {
    loop {
        let layout: NodeLayout = context.client.get(path).await?;
        if context.json {
            print_json(&layout)?;
        } else {
            print(&shown(&layout))?;
        }
        if !watch {
            return Ok(0);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn draw(context: &Context, path: &str, file: &Path) -> Outcome {
    let layout: NodeLayout = context.client.get(path).await?;
    svg::write(file, &picture(&layout))?;
    Ok(0)
}

async fn measured(context: &Context, path: &str, watch: bool) -> Outcome {
    loop {
        let layout: VmLayout = context.client.get(path).await?;
        if context.json {
            print_json(&layout.vcpus)?;
        } else {
            counters(&layout).print()?;
        }
        if !watch {
            return Ok(0);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn change(context: &Context, node: &NodeArgs, request: &LayoutRequest) -> Outcome {
    let path = path_of(context, node).await?;
    let done: LayoutResult =
        context.client.operate(&path, request, |line| eprintln!("{line}")).await?;
    tell(context, &done)
}

/// What was changed, or would be.
///
/// # Errors
/// When it cannot be printed.
pub fn tell(context: &Context, done: &LayoutResult) -> Outcome {
    if context.json {
        print_json(done)?;
    } else {
        result(done).iter().try_for_each(|line| print(line))?;
    }
    Ok(0)
}
