// SPDX-License-Identifier: Apache-2.0
//! The memory of a guest that runs is split anew (S-memV, 3-1): hosts give leases, or larger ones.
//! What its main host has no room for any more goes to them, page by page, while it runs; or, if it
//! moves, what its next main host has no room for goes there ahead of it ([`crate::moves`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, ErrorCode, Line, MigrateRequest, NodeView};
use mint_guests::split::Split;
use mint_serve::lines::Lines;
use mint_split::{
    Lease, LeaseEnd, Lent, NodeStart, PAGE_BYTES, Server, SplitGuest, limit_bytes, whole_bytes,
};
use mint_types::{NodeId, PagingPolicy, Refusal, RefusalCode, format_bytes};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::app::App;
use crate::hosts::{gives_back, running};
use crate::memory::{
    ask, check_copies, failed, find, kept_lease, lease, named, random_secret, write,
};
use crate::pagers::view;
use crate::rewrite::{self, Unchanged};
use crate::servers::{self, Host, host, is_on};

/// Between looks at what is to go, and how long that may stay as it is.
const LOOK: Duration = Duration::from_millis(500);
const STALLED: Duration = Duration::from_secs(120);
/// For a pager to end, and the next one to begin, and between looks at that.
const RECHUNKED_WITHIN: Duration = Duration::from_secs(15);
const RECHUNKED_LOOK: Duration = Duration::from_millis(50);

/// What is asked for of a split besides; nothing: as before.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Besides {
    /// How its pager chooses what goes.
    pub policy: Option<PagingPolicy>,
    /// Hosts that have each page that its main host has not.
    pub copies: Option<u32>,
    /// Of a chunk.
    pub chunk_bytes: Option<u64>,
}

impl Besides {
    /// As a request says.
    pub fn of(request: &MigrateRequest) -> Self {
        let MigrateRequest { policy, copies, chunk_bytes, .. } = *request;
        Self { policy, copies, chunk_bytes }
    }
}

/// What is asked for, for a guest of this node.
///
/// # Errors
/// When its memory cannot be split, or not so.
pub(crate) fn parse(
    app: &App,
    uuid: &str,
    name: &str,
    words: &str,
    besides: Besides,
) -> Result<Split, ErrorBody> {
    let Besides { policy, copies, chunk_bytes } = besides;
    let Some((_, guest)) = running(app, uuid) else {
        let text = format!("the memory of vm {name} cannot be split: it was not started for that");
        let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {name}"), text)
            .hint("docs/split-memory.md says what its domain wants, or: mint-guest --split");
        return Err(ErrorBody::refused(vec![refusal]));
    };
    let chunk_bytes = chunk_bytes.unwrap_or(guest.chunk_bytes);
    if chunk_bytes != guest.chunk_bytes {
        check_chunks(&guest)?;
    }
    let split = Split::parse(words, &chunk_bytes.to_string(), guest.memory_bytes)
        .map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?;
    let policy = policy.unwrap_or(guest.policy);
    Ok(Split { policy, copies: copies.unwrap_or(guest.copies), ..split })
}

/// What other hosts keep of a guest is in the chunks that it has.
fn check_chunks(guest: &SplitGuest) -> Result<(), ErrorBody> {
    let Some(server) = guest.servers.iter().find(|server| !server.is_over()) else {
        return Ok(());
    };
    let (name, chunk) = (&guest.name, format_bytes(guest.chunk_bytes));
    let text = format!("{} keeps memory of vm {name} in chunks of {chunk}", server.node);
    let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {name}"), text)
        .hint("merge it first (mintctl vm merge), or leave --chunk out");
    Err(ErrorBody::refused(vec![refusal]))
}

/// A guest of which no other host keeps anything has chunks of another size from now on: its pager
/// ends, and the next one begins with them. Whichever reads whichever size, all is here.
async fn rechunk(
    folder: &Path,
    guest: SplitGuest,
    chunk_bytes: u64,
) -> Result<SplitGuest, ErrorBody> {
    check_chunks(&guest)?;
    let main_bytes = whole_bytes(guest.memory_bytes, chunk_bytes);
    let new = SplitGuest { chunk_bytes, main_bytes, ..guest.clone() };
    let cannot = |why: &str| {
        failed(format_args!("the chunks of guest {} stay as they are: {why}", guest.name))
    };
    match rewrite::change(folder, &guest, &new).await {
        // one that does not answer may be the next one, which begins
        Ok(()) | Err(Unchanged::Later(_)) => {}
        Err(Unchanged::Undone(why)) => return Err(cannot(&why)),
    }
    let end = Instant::now() + RECHUNKED_WITHIN;
    while !view(folder).await.is_ok_and(|view| view.chunk_bytes == Some(chunk_bytes)) {
        if Instant::now() >= end {
            write(folder, &guest).map_err(|error| cannot(&error.to_string()))?;
            return Err(cannot("its pager is of an older image, or does not answer"));
        }
        sleep(RECHUNKED_LOOK).await;
    }
    info!(guest = new.name, chunk_bytes, "its chunks have another size");
    Ok(new)
}

/// Nodes that keep a part then.
///
/// # Errors
/// When there is no such node.
pub(crate) fn hosts(nodes: &[NodeView], split: &Split) -> Result<Vec<NodeId>, ErrorBody> {
    let id = |name: &str| match named(nodes, name) {
        Some(node) => Ok(node.id),
        None => Err(host(nodes, name).err().unwrap_or_else(|| failed(name))),
    };
    // a guest does not go to another machine's nodes
    let own = split.shares.iter().filter(|share| !share.node.contains('/'));
    own.map(|share| id(&share.node)).collect()
}

/// A lease that was asked for.
struct Asked {
    path: String,
    lease: Lease,
    /// The one before, of a host that keeps some already.
    before: Option<Lease>,
}

/// Why a guest's hosts change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    /// It is on its main host. What others keep comes no faster than so many bytes a second.
    Here(Option<u64>),
    /// It is about to go there.
    Move,
}

/// Splits a guest's memory so on this node; returns when that has what it is to have. What hosts keep
/// that are to have nothing any more comes no faster than so many bytes a second.
///
/// # Errors
/// When a host gives no lease, or its pager does not do so: it goes on as before. When it does not
/// get on: it goes on.
pub(crate) async fn apply(
    app: &Arc<App>,
    uuid: &str,
    split: &Split,
    here: NodeId,
    bandwidth_bytes_s: Option<u64>,
    lines: &Lines,
) -> Result<(), ErrorBody> {
    let why = For::Here(bandwidth_bytes_s);
    let (folder, guest) = change(app, uuid, split, here, why).await?;
    let main = format_bytes(split.main_bytes);
    info!(guest = guest.name, main, "its memory is split anew");
    wait(&folder, &guest, lines).await
}

/// Hosts give a guest that is about to move to that node what it is to have there: its pager can
/// send it there ahead of the guest. What it has here it keeps.
///
/// # Errors
/// When a host gives no lease, or its pager does not talk to it: it goes on as before.
pub(crate) async fn lend(
    app: &Arc<App>,
    uuid: &str,
    split: &Split,
    to: NodeId,
) -> Result<(), ErrorBody> {
    change(app, uuid, split, to, For::Move).await.map(drop)
}

async fn change(
    app: &Arc<App>,
    uuid: &str,
    split: &Split,
    to: NodeId,
    why: For,
) -> Result<(PathBuf, SplitGuest), ErrorBody> {
    let (folder, guest) = running(app, uuid)
        .ok_or_else(|| failed(format_args!("guest {uuid} does not run here any more")))?;
    // what was lent for a move that nobody ended
    let mut guest = guest.taken_back();
    if split.chunk_bytes != guest.chunk_bytes {
        guest = rechunk(&folder, guest, split.chunk_bytes).await?;
    }
    let lent = Lent {
        main_bytes: guest.main_bytes,
        policy: guest.policy,
        copies: guest.copies,
        leaves: guest.servers.iter().map(|server| server.leaves).collect(),
    };
    let here = app.here().await?;
    let main = NodeStart { node: here.id.as_u32(), boots: here.boots };
    let mut asked = Vec::new();
    let new = match servers(app, &guest, split, main, to, &mut asked).await {
        Ok(servers) => SplitGuest {
            main_bytes: match why {
                For::Here(_) => split.main_bytes,
                // hosts that are to have nothing any more give it back to this one
                For::Move => guest.main_bytes.max(split.main_bytes),
            },
            drain_bytes_s: match why {
                For::Here(bandwidth_bytes_s) => bandwidth_bytes_s,
                For::Move => guest.drain_bytes_s,
            },
            lent: (why == For::Move).then_some(lent),
            policy: split.policy,
            copies: split.copies,
            servers,
            ..guest.clone()
        },
        Err(error) => {
            give_back(app, asked).await;
            return Err(error);
        }
    };
    match rewrite::change(&folder, &guest, &new).await {
        Ok(()) => Ok((folder, new)),
        Err(Unchanged::Undone(why)) => {
            give_back(app, asked).await;
            let name = &guest.name;
            Err(failed(format_args!("the memory of guest {name} stays where it is: {why}")))
        }
        // one that has read it goes on, and so does its successor
        Err(Unchanged::Later(error)) => {
            let name = &guest.name;
            Err(failed(format_args!("guest {name} is split when its pager answers: {error}")))
        }
    }
}

/// A guest's memory servers then: those there were, in their order, and new ones.
async fn servers(
    app: &App,
    guest: &SplitGuest,
    split: &Split,
    main: NodeStart,
    to: NodeId,
    asked: &mut Vec<Asked>,
) -> Result<Vec<Server>, ErrorBody> {
    let nodes = app.nodes().await?;
    let mut hosts = Vec::new();
    for share in &split.shares {
        // the node that it leaves may keep a part, the one that it comes to not
        let host = match named(&nodes, &share.node) {
            Some(node) if node.is_self && node.id != to => Host::own(node),
            _ => find(app, &nodes, &share.node).await?,
        };
        check_copies(&host, split.copies, &guest.name)?;
        hosts.push((host, limit_bytes(share.bytes, split.main_bytes, split.chunk_bytes)));
    }
    let mut servers = guest.servers.clone();
    for server in &mut servers {
        let stays = hosts.iter().any(|(host, _)| is_on(&nodes, server, host.machine, host.node));
        server.leaves = server.leaves || !stays;
    }
    for (host, limit) in hosts {
        let mut its = servers.iter_mut().filter(|server| !server.leaves);
        let known = its.find(|server| is_on(&nodes, server, host.machine, host.node));
        match known {
            Some(known) if known.limit_bytes >= limit => {}
            Some(known) => {
                let of = |bytes| kept_lease(guest, known, bytes, main);
                if let Some(mirror) = &known.mirror {
                    // what it keeps is there, too
                    let host = servers::host(&nodes, &mirror.node)?;
                    let secret = mirror.at.secret;
                    let of = |bytes| Lease { stays: true, ..lease(guest, secret, bytes, main) };
                    let (wanted, before) = (of(limit), Some(of(known.limit_bytes)));
                    ask(app, &host, &wanted).await?;
                    asked.push(Asked { path: host.path, lease: wanted, before });
                }
                let (wanted, before) = (of(limit), Some(of(known.limit_bytes)));
                ask(app, &host, &wanted).await?;
                asked.push(Asked { path: host.path, lease: wanted, before });
                known.limit_bytes = limit;
            }
            None => {
                if let Some(refusal) = gives_back(guest, &nodes, &host) {
                    return Err(ErrorBody::refused(vec![refusal]));
                }
                let wanted = lease(guest, random_secret()?, limit, main);
                servers.push(ask(app, &host, &wanted).await?);
                asked.push(Asked { path: host.path, lease: wanted, before: None });
            }
        }
    }
    Ok(servers)
}

/// Nothing was changed: hosts have promised what they had before.
async fn give_back(app: &App, asked: Vec<Asked>) {
    for Asked { path, lease, before } in asked {
        let given = match before {
            Some(before) => app.mintd.post::<Value>(&format!("{path}/leases"), &before).await,
            None => {
                let Lease { uuid, secret, epoch, .. } = lease;
                let end = LeaseEnd { uuid, secret, epoch: Some(epoch) };
                app.mintd.post::<Value>(&format!("{path}/leases/end"), &end).await
            }
        };
        if let Err(error) = given {
            warn!(path, %error, "a lease is larger than it need be until the guest ends");
        }
    }
}

/// Until the main host has no more than it is to have.
async fn wait(folder: &Path, guest: &SplitGuest, lines: &Lines) -> Result<(), ErrorBody> {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    loop {
        let view = view(folder).await;
        if let Ok(view) = &view {
            let here = view.local_pages.saturating_add(view.leaving_pages);
            let here = here.saturating_mul(PAGE_BYTES);
            let too_much = here.saturating_sub(guest.main_bytes.saturating_add(guest.chunk_bytes));
            if too_much == 0 {
                return Ok(());
            }
            if here != last {
                let what = format!("{} of guest {} are to go", format_bytes(too_much), guest.name);
                lines.send(&Line::Progress(what)).await;
                (last, since) = (here, Instant::now());
            }
        }
        if since.elapsed() > STALLED {
            let what = format!(
                "the memory of guest {} has gone no further for {} s; it goes on",
                guest.name,
                STALLED.as_secs()
            );
            let hint = "mintctl vm memory tells where it is";
            return Err(ErrorBody::new(ErrorCode::Failed, what).hint(hint));
        }
        sleep(LOOK).await;
    }
}
