// SPDX-License-Identifier: Apache-2.0
//! `mintctl node …`.

use mint_api::{
    AddRequest, DeviceList, NodeList, NodeResult, NodeView, RemoveRequest, ResizeRequest,
    StartRequest, StopRequest, WaitFor,
};
use mint_types::{Bdf, NodeId, NodeSpec, NodeState, ResizeSpec, RestartPolicy, format_bytes};
use serde::Serialize;
use serde_json::json;

use super::context::{Context, Outcome};
use super::node_path::path;
use super::node_result::{summary, tell};
use super::{console, dump, exec, list, resize, rolling, top};
use crate::args::{AddArgs, NodeCommand, ResizeArgs, Restart, Wait, WaitArgs};
use crate::failure::Failure;
use crate::output::{Table, or_dash, print, print_json};

/// Runs it.
pub async fn run(context: &Context, command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::Add(args) => add(context, *args).await,
        NodeCommand::Start { node, default_image, wait } => {
            let (wait_for, wait_s) = waiting(&wait);
            let request =
                StartRequest { wait: wait_for, wait_s, default_image, ..StartRequest::default() };
            operate(context, &path(&node, "start")?, &request).await
        }
        NodeCommand::Stop { node: Some(node), all: _, force, evacuate, timeout_s } => {
            let request = StopRequest { timeout_s, force };
            end(context, &node, "stop", &request, evacuate.then_some(force)).await
        }
        NodeCommand::Stop { node: None, timeout_s, .. } => stop_all(context, timeout_s).await,
        NodeCommand::Restart { node, timeout_s, default_image, force, evacuate, wait } => {
            let (wait_for, wait_s) = waiting(&wait);
            let request = StartRequest { wait: wait_for, wait_s, timeout_s, default_image, force };
            let path = path(&node, "restart")?;
            if !evacuate {
                return operate(context, &path, &request).await;
            }
            let gone = rolling::evacuate(context, &node, force).await?;
            gone.bring_back(context, &ask(context, &path, &request).await?).await
        }
        NodeCommand::Kill { node } => operate(context, &path(&node, "kill")?, &json!({})).await,
        NodeCommand::Remove { node, force, to, keep_free, evacuate } => {
            let request = RemoveRequest { force, to, keep_free };
            end(context, &node, "remove", &request, evacuate.then_some(force)).await
        }
        NodeCommand::Resize(args) => change(context, *args).await,
        NodeCommand::List => nodes(context).await,
        NodeCommand::Top { interval_s, count } => top::run(context, interval_s, count).await,
        NodeCommand::Show { node } => list::show(context, &path(&node, "")?).await,
        NodeCommand::Console { node, follow, write } => {
            console::run(context, &path(&node, "console")?, follow, write).await
        }
        NodeCommand::Dump { node, output, force } => {
            dump::run(context, &path(&node, "vmcore")?, &output, force).await
        }
        NodeCommand::Exec { node, stdin: _, no_stdin, command } => {
            exec::run(context, &path(&node, "exec")?, command, !no_stdin).await
        }
    }
}

fn waiting(args: &WaitArgs) -> (WaitFor, Option<u64>) {
    let wait = match (args.no_wait, args.wait) {
        (true, _) => WaitFor::Nothing,
        (false, Wait::Mintd) => WaitFor::Mintd,
        (false, Wait::Running) => WaitFor::Running,
    };
    (wait, args.wait_s)
}

async fn add(context: &Context, args: AddArgs) -> Outcome {
    let (wait, wait_s) = waiting(&args.wait);
    let absolute = |path: Option<std::path::PathBuf>| {
        // mintd's folder is another one
        path.map(|path| std::path::absolute(&path).unwrap_or(path))
    };
    let spec = NodeSpec {
        name: args.name,
        cpus: args.cpus,
        cpu_count: args.cpu_count,
        numa: args.numa,
        memory: args.memory,
        devices: args.devices,
        kernel: absolute(args.kernel),
        initrd: absolute(args.initrd),
        cmdline: args.cmdline,
        from: args.from,
        restart: match args.restart {
            Restart::Never => RestartPolicy::Never,
            Restart::OnReboot => RestartPolicy::OnReboot,
            Restart::OnCrash => RestartPolicy::OnCrash,
            Restart::Always => RestartPolicy::Always,
        },
        start: !args.no_start,
    };
    let request = AddRequest { spec, dry_run: args.dry_run, wait, wait_s };
    operate(context, "/v1/nodes", &request).await
}

async fn change(context: &Context, args: ResizeArgs) -> Outcome {
    let spec = ResizeSpec {
        cpus: args.cpus,
        memory: args.memory,
        devices: args.devices,
        drop_devices: args.drop_devices,
        numa: args.numa,
        from: args.from,
        to: args.to,
    };
    if spec.is_empty() {
        return Err(Failure::usage("nothing to change: give --cpus, --memory or --device"));
    }
    let request = ResizeRequest { spec, dry_run: args.dry_run, force: args.force };
    if args.evacuate {
        return resize::resize(context, &args.node, &request).await;
    }
    operate(context, &path(&args.node, "resize")?, &request).await
}

/// `node stop --all`: one after the other, so that what is told can be followed.
async fn stop_all(context: &Context, timeout_s: Option<u64>) -> Outcome {
    let list: NodeList = context.client.get("/v1/nodes").await?;
    let mut results = Vec::new();
    for node in list.nodes.iter().filter(|node| node.state.is_live()) {
        if node.is_self || node.id == NodeId::ZERO {
            continue;
        }
        let path = path(&node.id.to_string(), "stop")?;
        // who has what another one lent ends, too
        let request = StopRequest { timeout_s, force: true };
        let result: NodeResult =
            context.client.operate(&path, &request, |text| eprintln!("{text}")).await?;
        if !context.json {
            print(&summary(&result))?;
        }
        results.push(result);
    }
    if context.json {
        print_json(&json!({ "stopped": results }))?;
    }
    Ok(0)
}

/// `device move`: whoever owns the function gives it.
pub async fn move_device(context: &Context, device: Bdf, to: &str, dry_run: bool) -> Outcome {
    let list: DeviceList = context.client.get("/v1/devices").await?;
    let owner = list
        .devices
        .iter()
        .find(|view| view.bdf == device.to_string())
        .and_then(|view| view.resource.owner);
    let spec = ResizeSpec {
        devices: vec![device],
        from: owner.iter().map(u32::to_string).collect(),
        ..ResizeSpec::default()
    };
    operate(context, &path(to, "resize")?, &ResizeRequest { spec, dry_run, force: false }).await
}

/// Ends a node; with `evacuate` once its guests are elsewhere, by force or not.
async fn end(
    context: &Context,
    node: &str,
    verb: &str,
    request: &impl Serialize,
    evacuate: Option<bool>,
) -> Outcome {
    let path = path(node, verb)?;
    let Some(force) = evacuate else { return operate(context, &path, request).await };
    let gone = rolling::evacuate(context, node, force).await?;
    gone.tell(context, &ask(context, &path, request).await?)
}

async fn ask(
    context: &Context,
    path: &str,
    request: &impl Serialize,
) -> Result<NodeResult, Failure> {
    Ok(context.client.operate(path, request, |text| eprintln!("{text}")).await?)
}

async fn operate(context: &Context, path: &str, request: &impl Serialize) -> Outcome {
    tell(context, &ask(context, path, request).await?)
}

async fn nodes(context: &Context) -> Outcome {
    let list: NodeList = context.client.get("/v1/nodes").await?;
    if context.json {
        print_json(&list)?;
        return Ok(0);
    }
    let mut table = Table::new(&[
        "ID", "NAME", "STATE", "CPUS", "MEMORY", "NUMA", "DEVICES", "ADDRESS", "MINTD", "KERNEL",
    ]);
    for node in &list.nodes {
        table.row(row(node));
    }
    table.print()?;
    for node in list.nodes.iter().filter(|node| !node.reason.is_empty()) {
        print(&format!("{}: {}", node.name, node.reason))?;
    }
    Ok(0)
}

fn row(node: &NodeView) -> [String; 10] {
    let state = match (node.state, node.health.as_str()) {
        (NodeState::Running, bad @ ("hung" | "degraded")) => bad.to_owned(),
        (state, _) => state.to_string(),
    };
    let mark = if node.is_self { "*" } else { "" };
    let numa: Vec<String> = node.numa.iter().map(u32::to_string).collect();
    let devices: Vec<&str> =
        node.devices.iter().map(|bdf| bdf.strip_prefix("0000:").unwrap_or(bdf)).collect();
    [
        format!("{}{mark}", node.id),
        node.name.clone(),
        state,
        or_dash(node.cpus.clone()),
        format_bytes(node.memory_bytes),
        or_dash(numa.join(",")),
        or_dash(devices.join(" ")),
        node.address.clone(),
        node.mintd.clone(),
        or_dash(node.release.clone()),
    ]
}
