// SPDX-License-Identifier: Apache-2.0
//! Where a guest's memory is to be, if nobody says so: its main host has what there is room for, and
//! others the rest, those with the most room first, nodes of linked machines last (S-memV, 3-1). What
//! room there is each node is asked when somebody wants to know: there is no list of it that could
//! be old, and a lease is what counts.

use std::time::Duration;

use mint_api::{ErrorBody, NodeKeeps, NodeView};
use mint_split::{SplitGuest, limit_bytes, whole_bytes};
use mint_types::{MachineId, NodeId, NodeState, Refusal, RefusalCode, format_bytes};
use tokio::time::timeout;
use tracing::warn;

use crate::app::{App, client_error, path_of};
use crate::hosts::running;
use crate::leases;
use crate::pagers::view;
use crate::servers::{failed, is_on};
use crate::split::Besides;

/// The word for it.
pub(crate) const AUTO: &str = "auto";
/// A main host with less than this would do little but fetch.
const MAIN_BYTES_MIN: u64 = 16 << 20;
/// Of its QEMU, and its pager, on a host that it comes to.
const QEMU_BYTES: u64 = 64 << 20;
/// For a node of a linked machine to say what it has free. One that takes longer is left out.
const ASK_WITHIN: Duration = Duration::from_secs(10);

/// A node that may keep a part.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Room {
    node: String,
    bytes: u64,
    /// It keeps some of the guest already.
    keeps_some: bool,
    /// It is of a linked machine.
    is_linked: bool,
}

impl Room {
    /// Of a node that has so much free; none if what it keeps of the guest is to go elsewhere.
    fn of(
        guest: &SplitGuest,
        nodes: &[NodeView],
        node: String,
        free_bytes: u64,
        (machine, id): (Option<MachineId>, NodeId),
    ) -> Option<Self> {
        let mut servers = guest.servers.iter();
        let lease = servers.find(|server| !server.is_over() && is_on(nodes, server, machine, id));
        if lease.is_some_and(|server| server.leaves) {
            return None;
        }
        let bytes = free_bytes.saturating_add(lease.map_or(0, |server| server.limit_bytes));
        Some(Self { node, bytes, keeps_some: lease.is_some(), is_linked: machine.is_some() })
    }
}

/// How the guest's memory is to be split, as words for [`crate::split::parse`], if that node is its
/// main host; none: that has room for all of it. Of two copies none is on a linked machine.
///
/// # Errors
/// When all nodes together have not got so much, or one of this machine does not answer.
pub(crate) async fn resolve(
    app: &App,
    uuid: &str,
    name: &str,
    to: &NodeView,
    besides: Besides,
) -> Result<Option<String>, ErrorBody> {
    let Some((folder, guest)) = running(app, uuid) else {
        return Err(failed(format_args!(
            "the memory of vm {name} cannot be split: it was not started for that"
        ))
        .hint("mintctl vm prepare makes it so from its next start"));
    };
    let chunk_bytes = besides.chunk_bytes.unwrap_or(guest.chunk_bytes);
    let guest = SplitGuest { chunk_bytes, ..guest };
    let nodes = app.nodes().await?;
    let (mut main_bytes, mut others) = (0, Vec::new());
    for node in nodes.iter().filter(|node| node.state == NodeState::Running) {
        let keeps: NodeKeeps = match node.is_self {
            true => leases::keeps(app).await?,
            false => {
                let path = format!("{}/leases", path_of(None, node.id));
                app.mintd.get(&path).await.map_err(client_error)?
            }
        };
        let bytes = keeps.free_bytes.unwrap_or(0);
        if node.id == to.id {
            main_bytes = match node.is_self {
                true => bytes.saturating_add(here_bytes(&folder).await),
                false => bytes.saturating_sub(QEMU_BYTES),
            };
            continue;
        }
        let room = keeps.room_bytes();
        others.extend(Room::of(&guest, &nodes, node.name.clone(), room, (None, node.id)));
    }
    if besides.copies.unwrap_or(guest.copies) < 2 {
        others.extend(linked(app, &guest, &nodes).await?);
    }
    words(&guest, to, main_bytes, others)
}

/// Nodes of the linked machines that answer.
async fn linked(app: &App, guest: &SplitGuest, nodes: &[NodeView]) -> Result<Vec<Room>, ErrorBody> {
    let mut rooms = Vec::new();
    for link in app.links().await?.links.iter().filter(|link| link.is_up) {
        for node in &link.nodes {
            let name = format!("{}/{}", link.name, node.name);
            let path = format!("{}/leases", path_of(Some(link.machine), node.id));
            let keeps: NodeKeeps = match timeout(ASK_WITHIN, app.mintd.get(&path)).await {
                Ok(Ok(keeps)) => keeps,
                Ok(Err(error)) => {
                    warn!(node = name, %error, "it does not say what it has free");
                    continue;
                }
                Err(_) => {
                    warn!(node = name, "it does not say what it has free in time");
                    continue;
                }
            };
            let its = (Some(link.machine), node.id);
            rooms.extend(Room::of(guest, nodes, name, keeps.room_bytes(), its));
        }
    }
    Ok(rooms)
}

/// What the guest has on this node.
async fn here_bytes(folder: &std::path::Path) -> u64 {
    let here = view(folder).await.map(|view| view.local_pages.saturating_add(view.leaving_pages));
    here.unwrap_or(0).saturating_mul(mint_split::PAGE_BYTES)
}

fn words(
    guest: &SplitGuest,
    to: &NodeView,
    main_bytes: u64,
    mut others: Vec<Room>,
) -> Result<Option<String>, ErrorBody> {
    let (memory, chunk) = (guest.memory_bytes, guest.chunk_bytes);
    if main_bytes >= whole_bytes(memory, chunk) {
        return Ok(None);
    }
    let main = main_bytes.min(memory) / chunk * chunk;
    let refused = |text: String| {
        let refusal =
            Refusal::new(RefusalCode::MemoryShort, format_args!("vm {}", guest.name), text)
                .hint("give a node more (mintctl node resize --memory), or name another one");
        ErrorBody::refused(vec![refusal])
    };
    if main < MAIN_BYTES_MIN.min(memory / 2) || main < 4 * chunk {
        let has = format_bytes(main_bytes);
        return Err(refused(format!(
            "{} has {has} free for vm {}: too little to work with",
            to.name, guest.name
        )));
    }
    let mut rest = memory - main;
    let mut words = format!("main={}K", main >> 10);
    // what is on its way takes room twice for a while
    let spare = limit_bytes(0, main, chunk);
    others.sort_by_key(|room| (!room.keeps_some, room.is_linked, std::cmp::Reverse(room.bytes)));
    for room in others {
        let share = room.bytes.saturating_sub(spare).min(rest) / chunk * chunk;
        let share = if rest - share < chunk { rest } else { share };
        if share > 0 && room.bytes >= share.saturating_add(spare) {
            words.push_str(&format!(",{}={}K", room.node, share >> 10));
            rest -= share;
        }
    }
    match rest {
        0 => Ok(Some(words)),
        rest => Err(refused(format!(
            "{} of vm {} have room on no node: {words}",
            format_bytes(rest),
            guest.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use mint_types::NodeId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn guest() -> SplitGuest {
        let json = serde_json::json!({
            "name": "big", "uuid": vec![1; 16], "memory_bytes": 1024 * MIB, "main_bytes": 0,
            "chunk_bytes": 65536, "epoch": 1, "qemu": 7, "servers": [],
        });
        serde_json::from_value(json).unwrap()
    }

    fn to() -> NodeView {
        crate::tests::view(NodeId::new(2).unwrap().as_u32(), 1)
    }

    fn room(node: &str, mib: u64, keeps_some: bool) -> Room {
        let is_linked = node.contains('/');
        Room { node: node.to_owned(), bytes: mib * MIB, keeps_some, is_linked }
    }

    fn split(main_mib: u64, others: Vec<Room>) -> Result<Option<String>, String> {
        words(&guest(), &to(), main_mib * MIB, others).map_err(|error| error.to_string())
    }

    #[test]
    fn main_has_what_there_is_room_for_and_those_with_most_room_the_rest() {
        let rooms = || vec![room("a", 300, false), room("b", 900, false), room("c", 400, true)];
        // a sixteenth of main, and chunks, are on their way: of c's 400 MiB the rest but 16.2
        let words = split(256, rooms()).unwrap().unwrap();
        assert_eq!(words, "main=262144K,c=393024K,b=393408K");
        let sum = mint_guests::split::Split::parse(&words, "64K", 1024 * MIB).unwrap();
        assert_eq!(sum.shares.iter().map(|share| share.bytes).sum::<u64>(), 768 * MIB);
        assert_eq!(split(2000, rooms()), Ok(None));
        // all would be there, but not what is on its way
        assert!(
            split(1025, vec![room("a", 300, false)]).unwrap().unwrap().starts_with("main=1048576K")
        );
    }

    #[test]
    fn node_of_a_linked_machine_has_what_none_of_this_one_has_room_for() {
        let rooms = |own| vec![room("b/far", 900, false), room("a", own, false)];
        assert_eq!(split(256, rooms(800)).unwrap().unwrap(), "main=262144K,a=786432K");
        let words = split(256, rooms(300)).unwrap().unwrap();
        assert_eq!(words, "main=262144K,a=290624K,b/far=495808K");
        // what it keeps already stays there
        let rooms = vec![room("b/far", 900, true), room("a", 800, false)];
        assert_eq!(split(256, rooms).unwrap().unwrap(), "main=262144K,b/far=786432K");
    }

    #[test]
    fn less_room_than_the_guest_has_memory_is_told() {
        let error = split(256, vec![room("a", 300, false)]).unwrap_err();
        assert!(error.contains("have room on no node: main=262144K,a="), "{error}");
        let error = split(8, vec![room("a", 2000, false)]).unwrap_err();
        assert!(error.contains("node2 has 8M free for vm big"), "{error}");
    }
}
