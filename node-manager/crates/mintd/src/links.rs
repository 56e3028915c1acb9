// SPDX-License-Identifier: Apache-2.0
//! Machines that this one is linked with. One node has the wire to the other machine: it keeps
//! the link, asks there who is who, and tells the other nodes of its machine.
//!
//! ```text
//!   node1 ── mint0 ── node0 ═══ wire ═══ node0 ── mint0 ── node1
//!          10.77.0.0/24 (A)                    10.77.1.0/24 (B)
//! ```
//! Nodes reach each other by routes through the two nodes with the wire, and speak TLS from end
//! to end. A machine believes the node whose certificate it was given by hand, and those that
//! this one introduces; a linked machine's nodes may ask for guests, and for nothing else.

pub(crate) mod handlers;
mod routes;
pub(crate) mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, Link, MachineNews};
use mint_node::config::Network;
use mint_types::{MachineId, NodeId, Refusal, RefusalCode};
use tokio::sync::Notify;
use tracing::warn;

use crate::identity::write_private;

const FILE: &str = "links.json";
/// A node that has told nothing of its links for so long is gone, and so are they.
const STALE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    /// Those whose wire this node has.
    own: Vec<Link>,
    /// Those of other nodes of this machine, and when they were told.
    told: BTreeMap<NodeId, (Instant, Vec<Link>)>,
}

/// All links that this daemon knows.
pub(crate) struct Links {
    path: PathBuf,
    state: Mutex<State>,
    /// Somebody has changed something.
    pub changed: Notify,
}

impl Links {
    /// Goes on with what is kept in that folder.
    pub fn open(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let own = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                warn!(path = %path.display(), %error, "links to other machines are forgotten");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        };
        let own = own.into_iter().map(|link: Link| down(link, "not asked yet")).collect();
        let state = State { own, told: BTreeMap::new() };
        Self { path, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those whose wire this node has.
    pub fn own(&self) -> Vec<Link> {
        self.lock().own.clone()
    }

    /// All of this machine, by name. Of one machine only one is given: this node's own first.
    pub fn all(&self) -> Vec<Link> {
        let state = self.lock();
        let mut all = state.own.clone();
        for (when, links) in state.told.values() {
            for link in links.iter().filter(|link| !meets(&all, link)).cloned().collect::<Vec<_>>()
            {
                all.push(match when.elapsed() < STALE {
                    true => link,
                    false => down(link, "our node that has the wire does not answer"),
                });
            }
        }
        all.sort_by(|a, b| a.view.name.as_str().cmp(b.view.name.as_str()));
        all
    }

    /// The one of that name, or of the machine with that id.
    pub fn find(&self, reference: &str) -> Option<Link> {
        let id: Option<MachineId> = reference.parse().ok();
        self.all()
            .into_iter()
            .find(|link| link.view.name.as_str() == reference || Some(link.view.machine) == id)
    }

    /// Keeps a link whose wire this node has, instead of the one of its machine.
    ///
    /// # Errors
    /// When it cannot be written down: then it is not kept.
    pub fn keep(&self, link: Link) -> io::Result<()> {
        self.change(|own| {
            own.retain(|old| old.view.machine != link.view.machine);
            own.push(link);
        })
    }

    /// Forgets the one of that name; false if this node has none.
    ///
    /// # Errors
    /// When that cannot be written down: then it stays.
    pub fn forget(&self, name: &str) -> io::Result<bool> {
        let is_own = self.lock().own.iter().any(|link| link.view.name.as_str() == name);
        if is_own {
            self.change(|own| own.retain(|link| link.view.name.as_str() != name))?;
        }
        Ok(is_own)
    }

    fn change(&self, what: impl FnOnce(&mut Vec<Link>)) -> io::Result<()> {
        let mut state = self.lock();
        let mut own = state.own.clone();
        what(&mut own);
        self.write(&own)?;
        state.own = own;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    fn write(&self, own: &[Link]) -> io::Result<()> {
        write_private(&self.path, &serde_json::to_vec(own).expect("links are plain data"))
    }

    /// What a linked machine says of itself, or why it says nothing.
    pub fn heard(&self, machine: MachineId, news: Result<MachineNews, String>) {
        let mut state = self.lock();
        let Some(link) = state.own.iter_mut().find(|link| link.view.machine == machine) else {
            return;
        };
        match news {
            Ok(MachineNews { nodes, known }) => {
                link.view.is_up = true;
                link.view.reason.clear();
                link.view.nodes = nodes;
                // who it was linked by is not another one's to say
                let first = link.known.iter().find(|known| known.node == link.gateway).cloned();
                let others = known
                    .into_iter()
                    .filter(|known| known.machine == machine && known.node != link.gateway);
                let known: Vec<_> = first.into_iter().chain(others).collect();
                if known != link.known {
                    link.known = known;
                    let own = state.own.clone();
                    if let Err(error) = self.write(&own) {
                        warn!(%error, "what a linked machine says is not kept");
                    }
                }
            }
            Err(reason) => *link = down(link.clone(), &reason),
        }
    }

    /// What another node of this machine says of its links. Gives whether that is news.
    pub fn told(&self, via: NodeId, links: Vec<Link>) -> bool {
        let links: Vec<Link> = links.into_iter().filter(|link| link.view.via == via).collect();
        let mut state = self.lock();
        let old = state.told.insert(via, (Instant::now(), links.clone()));
        let is_news = old.is_none_or(|(_, old)| old != links);
        drop(state);
        if is_news {
            self.changed.notify_one();
        }
        is_news
    }
}

fn meets(all: &[Link], link: &Link) -> bool {
    let view = &link.view;
    all.iter().any(|one| one.view.machine == view.machine || one.view.name == view.name)
}

fn down(mut link: Link, reason: &str) -> Link {
    link.view.is_up = false;
    link.view.reason = reason.to_owned();
    link
}

/// Where a linked machine's node is.
pub(crate) fn address(link: &Link, node: NodeId) -> Ipv4Addr {
    Network { subnet: link.view.subnet, ..Network::default() }.address(node)
}

/// There is no such machine.
pub(crate) fn no_link(name: &str) -> ErrorBody {
    let text = format!("this machine is linked with no machine {name}");
    let refusal = Refusal::new(RefusalCode::MachineAbsent, format_args!("machine {name}"), text)
        .hint("mintctl machine show lists those that it is linked with");
    ErrorBody::refused(vec![refusal])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mint_api::{Introduction, LinkView, LinkedNode};

    pub(crate) fn machine(number: u8) -> MachineId {
        MachineId::from_random([number; 16]).unwrap()
    }

    fn introduction(number: u8, node: u32, certificate: &str) -> Introduction {
        Introduction {
            machine: machine(number),
            node: NodeId::new(node).unwrap(),
            start: 1,
            certificate: certificate.into(),
            needs_key: false,
        }
    }

    pub(crate) fn link(name: &str, number: u8, via: u32) -> Link {
        Link {
            view: LinkView {
                name: name.parse().unwrap(),
                machine: machine(number),
                via: NodeId::new(via).unwrap(),
                address: "192.0.2.2".parse().unwrap(),
                subnet: format!("10.77.{number}.0/24").parse().unwrap(),
                is_up: true,
                reason: String::new(),
                nodes: Vec::new(),
            },
            port: 7777,
            gateway: NodeId::ZERO,
            mtu: 1500,
            authority: "a".into(),
            known: vec![introduction(number, 0, "first")],
        }
    }

    #[test]
    fn links_are_kept_for_the_next_daemon_and_found_by_name_and_by_machine() {
        let folder = tempfile::tempdir().unwrap();
        let links = Links::open(folder.path());
        links.keep(link("b", 1, 0)).unwrap();
        links.keep(link("c", 2, 0)).unwrap();
        let again = Links::open(folder.path());
        assert_eq!(again.find("b").unwrap().view.machine, machine(1));
        let by_id = again.find(&machine(2).to_string()).unwrap();
        assert_eq!((by_id.view.name.as_str(), by_id.view.is_up), ("c", false), "not asked yet");
        assert!(again.find("d").is_none());
        assert!(again.forget("b").unwrap() && !again.forget("b").unwrap());
        assert!(Links::open(folder.path()).find("b").is_none());
    }

    #[test]
    fn other_nodes_links_count_as_long_as_those_tell_them_and_only_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let links = Links::open(folder.path());
        let one = NodeId::new(1).unwrap();
        assert!(links.told(one, vec![link("b", 1, 1), link("c", 2, 3)]));
        assert!(!links.told(one, vec![link("b", 1, 1)]), "nothing is news");
        assert!(links.find("b").unwrap().view.is_up && links.find("c").is_none());
        // the way that this node has itself counts more
        links.keep(link("b", 1, 0)).unwrap();
        assert_eq!(links.find("b").unwrap().view.via, NodeId::ZERO);
        assert_eq!(links.all().len(), 1);
        links.forget("b").unwrap();
        assert!(links.told(one, Vec::new()) && links.all().is_empty());
    }

    #[test]
    fn machine_introduces_its_nodes_but_not_the_one_that_it_was_linked_by() {
        let folder = tempfile::tempdir().unwrap();
        let links = Links::open(folder.path());
        links.keep(link("b", 1, 0)).unwrap();
        let node = LinkedNode { id: NodeId::new(1).unwrap(), name: "web".into() };
        let known =
            vec![introduction(1, 0, "another"), introduction(1, 1, "web"), introduction(2, 1, "x")];
        links.heard(machine(1), Ok(MachineNews { nodes: vec![node.clone()], known }));
        let found = links.find("b").unwrap();
        assert_eq!(found.view.nodes, [node]);
        let certificates: Vec<_> = found.known.iter().map(|k| k.certificate.as_str()).collect();
        assert_eq!(certificates, ["first", "web"]);
        links.heard(machine(1), Err("silent".into()));
        let found = links.find("b").unwrap();
        assert_eq!((found.view.is_up, found.view.reason.as_str()), (false, "silent"));
        assert_eq!(Links::open(folder.path()).find("b").unwrap().known.len(), 2);
    }
}
