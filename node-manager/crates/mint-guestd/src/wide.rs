// SPDX-License-Identifier: Apache-2.0
//! Guests of all nodes: each node's `mint-guestd` is asked, through mintd.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, ErrorCode, LinkView, SilentNode, VmList, VmView};
use mint_types::{MachineId, NodeId, Refusal, RefusalCode};
use tokio::time::timeout;

use crate::app::{App, client_error, no_guest, path_of};
use crate::own;

/// For a node to say what guests it has: longer than it waits for its own libvirt.
const ASK_WITHIN: Duration = Duration::from_secs(70);

/// A node that is asked.
struct Asked {
    id: NodeId,
    name: String,
    is_self: bool,
    /// The linked machine that it is of, if it is not of this one: its name and its id.
    machine: Option<(String, MachineId)>,
}

/// Guests of all nodes that run, those of linked machines too, asked at once.
///
/// # Errors
/// When mintd of this node does not answer.
pub(crate) async fn list(app: &Arc<App>) -> Result<VmList, ErrorBody> {
    let mut all = VmList { vms: Vec::new(), silent: Vec::new() };
    let live = app.nodes().await?.into_iter().filter(|node| node.state.is_live());
    let mut nodes: Vec<Asked> = live
        .map(|node| Asked { id: node.id, name: node.name, is_self: node.is_self, machine: None })
        .collect();
    for link in app.links().await?.links {
        if link.is_up {
            nodes.extend(of_link(&link));
            continue;
        }
        let (node, name) = (link.via, format!("machine {}", link.name));
        all.silent.push(SilentNode { node, name, reason: link.reason });
    }
    let mut asked = Vec::new();
    for node in nodes {
        let app = app.clone();
        asked.push(tokio::spawn(async move {
            let answer = of_node(&app, &node).await;
            (node, answer)
        }));
    }
    for task in asked {
        let Ok((node, answer)) = task.await else { continue };
        match answer {
            Ok(list) => all.vms.extend(list.vms),
            Err(error) => all.silent.push(SilentNode {
                node: node.id,
                name: node.name,
                reason: error.to_string(),
            }),
        }
    }
    Ok(all)
}

fn of_link(link: &LinkView) -> impl Iterator<Item = Asked> {
    link.nodes.iter().map(|node| Asked {
        id: node.id,
        name: format!("{}/{}", link.name, node.name),
        is_self: false,
        machine: Some((link.name.to_string(), link.machine)),
    })
}

async fn of_node(app: &App, node: &Asked) -> Result<VmList, ErrorBody> {
    if node.is_self {
        return own::list(app).await;
    }
    let path = path_of(node.machine.as_ref().map(|(_, id)| *id), node.id) + "/vms";
    match timeout(ASK_WITHIN, app.mintd.get(&path)).await {
        Ok(answer) => answer.map_err(client_error).map(|mut list: VmList| {
            if let Some((name, id)) = &node.machine {
                for vm in &mut list.vms {
                    vm.node_name = format!("{name}/{}", vm.node_name);
                    vm.machine = Some(*id);
                }
            }
            list
        }),
        Err(_) => {
            let text = format!("it does not answer within {} s", ASK_WITHIN.as_secs());
            Err(ErrorBody::new(ErrorCode::PeerUnreachable, text))
        }
    }
}

/// The guest of that name or UUID, wherever it is. Where several nodes have one of that name,
/// one that runs counts.
///
/// # Errors
/// When no node that answers has it, or several have.
pub(crate) async fn find(app: &Arc<App>, vm: &str) -> Result<VmView, ErrorBody> {
    choose(vm, list(app).await?)
}

fn choose(vm: &str, list: VmList) -> Result<VmView, ErrorBody> {
    let VmList { vms, silent } = list;
    let mut found: Vec<VmView> =
        vms.into_iter().filter(|guest| guest.name == vm || guest.uuid == vm).collect();
    if found.len() > 1 && found.iter().any(|guest| guest.state != "shut off") {
        found.retain(|guest| guest.state != "shut off");
    }
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            found.push(last);
            let nodes: Vec<&str> = found.iter().map(|guest| guest.node_name.as_str()).collect();
            let text = format!("several nodes have a guest {vm}: {}", nodes.join(", "));
            let refusal = Refusal::new(RefusalCode::VmAmbiguous, format_args!("vm {vm}"), text)
                .hint("say which one: by its UUID, or with --node");
            Err(ErrorBody::refused(vec![refusal]))
        }
        (None, _) if silent.is_empty() => Err(no_guest(vm, &format!("no node has a guest {vm}"))),
        (None, _) => {
            let names: Vec<String> = silent.iter().map(|node| node.name.clone()).collect();
            let text = format!(
                "no node that answers has a guest {vm}; of {} nobody knows",
                names.join(", ")
            );
            Err(no_guest(vm, &text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, node: u32, state: &str) -> VmView {
        VmView {
            name: name.into(),
            uuid: format!("{name}-{node}"),
            node: NodeId::new(node).unwrap(),
            node_name: format!("node{node}"),
            machine: None,
            state: state.into(),
            vcpus: 1,
            memory_bytes: 1 << 30,
            persistent: true,
            autostart: false,
            is_busy: false,
        }
    }

    #[test]
    fn guest_is_found_by_name_and_by_uuid_and_the_one_that_runs_counts() {
        let list = |vms: Vec<VmView>| VmList { vms, silent: Vec::new() };
        let two = || vec![vm("web", 0, "shut off"), vm("web", 1, "running"), vm("db", 2, "paused")];
        assert_eq!(choose("web", list(two())).unwrap().node.as_u32(), 1);
        assert_eq!(choose("web-0", list(two())).unwrap().node.as_u32(), 0);
        assert_eq!(choose("db", list(two())).unwrap().node.as_u32(), 2);
        let both = vec![vm("web", 0, "shut off"), vm("web", 1, "shut off")];
        let refused = choose("web", list(both)).unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmAmbiguous);
        assert!(refused.message.contains("node0, node1"), "{refused}");
        let refused = choose("mail", list(two())).unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmAbsent);
    }

    #[test]
    fn guest_that_a_silent_node_may_have_is_not_said_to_be_nowhere() {
        let node = NodeId::new(3).unwrap();
        let silent = vec![SilentNode { node, name: "far".into(), reason: "gone".into() }];
        let refused = choose("web", VmList { vms: Vec::new(), silent }).unwrap_err();
        assert!(refused.message.contains("of far nobody knows"), "{refused}");
    }
}
