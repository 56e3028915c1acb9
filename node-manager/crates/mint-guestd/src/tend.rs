// SPDX-License-Identifier: Apache-2.0
//! The main host's daemon sees to the mirrors of its guests' memory servers: it finds a node for one
//! that is missing, puts a mirror in the place of a memory server whose node has ended, and forgets
//! a mirror whose node has.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, NodeView};
use mint_split::{NodeStart, Server, SplitGuest};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::app::App;
use crate::hosts::running;
use crate::memory::{known, text, write};
use crate::mirrors::{find, forget, promoted, tell};
use crate::pagers::view;
use crate::rewrite::read_again;
use crate::servers::{failed, has_ended};

/// Between looks at nodes that keep something.
const LOOK: Duration = Duration::from_secs(1);
/// Between tries to find a node for a mirror.
const TRY: Duration = Duration::from_secs(10);

/// Whether what a memory server kept is gone; of a linked machine's that is not known.
fn is_lost(nodes: &[NodeView], server: &Server) -> bool {
    server.machine.is_none() && has_ended(nodes, server.start)
}

/// Leases are as a guest's file says, whatever a daemon before this one had begun.
///
/// # Errors
/// When a node does not answer.
pub(crate) async fn set_right(app: &Arc<App>, uuid: &str) -> Result<(), ErrorBody> {
    let (nodes, here) = (app.nodes().await?, app.here().await?);
    let main = NodeStart { node: here.id.as_u32(), boots: here.boots };
    let Some(_changing) = app.see_to(uuid) else {
        return Err(failed(format_args!("guest {uuid} is being moved")));
    };
    let Some((folder, guest)) = running(app, uuid) else { return Ok(()) };
    for server in guest.servers.iter().filter(|server| !server.is_over()) {
        if let Some(mirror) = &server.mirror {
            let its = Server {
                node: mirror.node.clone(),
                secret: mirror.at.secret,
                mirror: None,
                ..server.clone()
            };
            if !has_ended(&nodes, mirror.start) {
                tell(app, &guest, &its, &nodes, main).await?;
            }
        }
        if !is_lost(&nodes, server) {
            tell(app, &guest, server, &nodes, main).await?;
        }
    }
    read_again(&folder, &guest).await;
    Ok(())
}

/// Looks after the mirrors of this node's guests, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let mut tried = Instant::now();
    let wanting = known(&app).into_iter().filter(|(_, guest)| wants(guest));
    let mut before: Vec<String> = wanting.map(|(_, guest)| text(&guest.uuid)).collect();
    loop {
        sleep(LOOK).await;
        let tries = tried.elapsed() >= TRY;
        if tries {
            tried = Instant::now();
        }
        for uuid in std::mem::take(&mut before) {
            if let Err(error) = set_right(&app, &uuid).await {
                warn!(uuid, %error, "its leases are looked at again");
                before.push(uuid);
            }
        }
        for (folder, guest) in known(&app).into_iter().filter(|(_, guest)| wants(guest)) {
            if tries && !before.contains(&text(&guest.uuid)) && is_silent(&folder, &guest).await {
                before.push(text(&guest.uuid));
            }
            tend(&app, &text(&guest.uuid), tries).await;
        }
    }
}

/// Whether a guest's pager has no connection to a memory server: a change may have been begun and not
/// ended.
async fn is_silent(folder: &Path, guest: &SplitGuest) -> bool {
    let Ok(view) = view(folder).await else { return false };
    let mut its = guest.servers.iter().zip(&view.servers);
    its.any(|(server, view)| !server.is_over() && !view.is_connected)
}

/// Whether a guest has mirrors, or is to have some, or has some that it is not to have.
fn wants(guest: &SplitGuest) -> bool {
    let has_mirror = |server: &Server| server.mirror.is_some();
    guest.servers.iter().any(has_mirror) || (guest.copies > 1 && !guest.servers.is_empty())
}

/// Sets right what has changed: which nodes have ended, and which mirrors are missing.
pub(crate) async fn tend(app: &Arc<App>, uuid: &str, tries: bool) {
    let (Ok(nodes), Ok(here)) = (app.nodes().await, app.here().await) else { return };
    let main = NodeStart { node: here.id.as_u32(), boots: here.boots };
    // another one's change is seen the next time
    let Some(_changing) = app.see_to(uuid) else { return };
    let Some((folder, guest)) = running(app, uuid) else { return };
    let mut new = guest.clone();
    let mut over = Vec::new();
    for number in 0..new.servers.len() {
        let server = new.servers[number].clone();
        let is_over = server.is_over();
        if let Some(mirror) = server.mirror.clone() {
            let mirror_is_lost = has_ended(&nodes, mirror.start);
            if mirror_is_lost && is_lost(&nodes, &server) {
                // both: nobody is left to be told
                continue;
            }
            if mirror_is_lost || is_over || new.copies < 2 {
                let alone = Server { mirror: None, ..server };
                let told = match is_over {
                    true => Ok(true),
                    false => tell(app, &new, &alone, &nodes, main).await,
                };
                if let Err(error) = told {
                    // unless its node has ended, too, it is asked again
                    warn!(guest = guest.name, node = alone.node, %error, "waits for its mirror");
                    continue;
                }
                if mirror_is_lost {
                    warn!(guest = guest.name, node = mirror.node, "a copy of its memory is lost");
                } else {
                    over.push(mirror);
                }
                new.servers[number] = alone;
            } else if is_lost(&nodes, &server) {
                match promoted(app, &new, &server, &mirror, &nodes, main).await {
                    Ok(promoted) => {
                        let (lost, has) = (&server.node, &promoted.node);
                        warn!(
                            guest = guest.name,
                            lost, has, "a node has ended that kept memory: another has the same"
                        );
                        new.servers[number] = promoted;
                    }
                    Err(error) => warn!(guest = guest.name, %error, "it waits for its memory"),
                }
            }
        }
    }
    if new != guest {
        let moved = new.servers.iter().zip(&guest.servers).any(|(a, b)| a.secret != b.secret);
        if let Err(error) = write(&folder, &new) {
            warn!(guest = guest.name, %error, "its hosts cannot be written down");
            return;
        }
        if moved {
            read_again(&folder, &new).await;
        }
        for mirror in over {
            forget(app, &new, &mirror, &nodes).await;
        }
    }
    if tries {
        complete(app, &folder, new, &nodes, main).await;
    }
}

/// Finds mirrors for those memory servers that are to have one, and have none.
async fn complete(
    app: &App,
    folder: &Path,
    mut guest: SplitGuest,
    nodes: &[NodeView],
    main: NodeStart,
) {
    for number in 0..guest.servers.len() {
        let server = guest.servers[number].clone();
        let has_one = server.mirror.is_some() || server.machine.is_some();
        let is_alone = !has_one && !server.leaves && guest.copies > 1;
        if !is_alone || is_lost(nodes, &server) {
            continue;
        }
        // those who could not be asked say so when somebody wants to know
        let Ok(mirror) = find(app, &guest, &server, nodes, main).await else { continue };
        info!(guest = guest.name, node = server.node, mirror = mirror.node, "gets a mirror");
        guest.servers[number].mirror = Some(mirror);
        if let Err(error) = write(folder, &guest) {
            warn!(guest = guest.name, %error, "its hosts cannot be written down");
            return;
        }
    }
}
