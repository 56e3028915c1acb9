// SPDX-License-Identifier: Apache-2.0
//! The source's part of a migration: what the guest is, the way, and the look afterwards.
//!
//! The destination plans ([`crate::arrivals`]), libvirt moves the guest from peer to peer.
//! libvirt's own switch-over is the point of no return: before it the guest runs on here,
//! whoever dies, after it there.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::{
    DiskCopyView, ErrorBody, ErrorCode, Line, MigrateFigures, MigrateRequest, MigrateResult,
    NodeDetail, NodeView, node_path,
};
use mint_guests::arrival::{Departure, DiskCopy, LayoutWish, Plan};
use mint_guests::domain::Domain;
use mint_guests::split::Split;
use mint_serve::lines::Lines;
use mint_split::SplitGuest;
use mint_types::{LayoutWhen, MachineId, Refusal, RefusalCode, format_bytes};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::app::{App, Moving, client_error, path_of};
use crate::auto::{self, AUTO};
use crate::breaks;
use crate::checks::{check, check_split};
use crate::copies::drop_copies;
use crate::hosts;
use crate::hypervisor::{Leaving, Move, Progress};
use crate::journal::{Record, Side};
use crate::layout;
use crate::merge;
use crate::moves;
use crate::plans;
use crate::progress::words;
use crate::servers::random_number;
use crate::split::{self, Besides};
use crate::step::step;
use crate::wire::{Arrived, Expected};

/// For the destination to say that the guest runs: its vCPUs may stall.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
const SEEN_POLL: Duration = Duration::from_millis(200);
/// Between tries to end a migration.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
/// Of a migration that is to be compressed and does not say how many.
const STREAMS: u32 = 2;

/// A migration that can begin.
pub(crate) struct Way {
    from: NodeView,
    to: NodeView,
    plan: Plan,
    uuid: String,
    /// Number of this migration.
    attempt: u64,
    /// Its definition here.
    xml: Option<String>,
    request: MigrateRequest,
    /// Our machine, as the destination knows it; none if that is a node of ours.
    from_machine: Option<MachineId>,
    /// Its memory is split: what is here goes by its pager.
    is_split: bool,
    /// It is split anew before that.
    split: Option<Split>,
    /// It has a place there before it comes.
    layout: Option<LayoutWish>,
    /// No other operation moves the guest as long as this is here.
    _moving: Moving,
}

/// Asks everybody whether the guest can go. Changes nothing.
///
/// # Errors
/// With every reason why it cannot.
pub(crate) async fn prepare(
    app: &Arc<App>,
    vm: String,
    request: MigrateRequest,
) -> Result<Way, ErrorBody> {
    check(&request)?;
    let from = app.here().await?;
    let detail: Result<NodeDetail, _> = app.mintd.get(&node_path(&request.to)).await;
    let to = detail.map_err(client_error)?.node;
    let leaving = app.ask(move |hypervisor| hypervisor.leaving(&vm)).await?;
    let uuid = leaving.guest.uuid.clone();
    let moving = app.begin_after(&uuid).await.ok_or_else(|| busy(&leaving.guest.name))?;
    let from_machine = match to.machine {
        Some(_) => Some(app.machine().await?),
        None => None,
    };
    let xml = leaving.persistent_xml.clone();
    let mut request = request;
    if request.split.as_deref() == Some(AUTO) {
        request.split =
            auto::resolve(app, &uuid, &leaving.guest.name, &to, Besides::of(&request)).await?;
        request.merge = request.split.is_none();
    }
    let mut departure = Departure { machine: from_machine, ..depart(app, &from, leaving).await? };
    if request.merge {
        merge_spread(&mut departure)?;
    }
    if request.main_only {
        main_only(app, &uuid, &departure)?;
    }
    let split = match &request.split {
        Some(words) => {
            Some(split_spread(app, &uuid, words, Besides::of(&request), &mut departure).await?)
        }
        None => None,
    };
    let plan = plans::with_place(app, &uuid, &mut departure, &to, &request).await?;
    let is_split = departure.spread.is_some();
    if is_split {
        check_split(&plan.name, &request)?;
    }
    let attempt = random_number()?;
    Ok(Way {
        from,
        to,
        plan,
        uuid,
        attempt,
        xml,
        request,
        from_machine,
        is_split,
        split,
        layout: departure.layout,
        _moving: moving,
    })
}

fn busy(name: &str) -> ErrorBody {
    let text = format!("vm {name} is being moved already");
    let refusal = Refusal::new(RefusalCode::VmBusy, format_args!("vm {name}"), text)
        .hint("wait for the end of that, or end it: virsh domjobabort");
    ErrorBody::refused(vec![refusal])
}

/// The next host is to have all of a guest's memory, and may keep a part of it already.
fn merge_spread(departure: &mut Departure) -> Result<(), ErrorBody> {
    let domain = Domain::parse(&departure.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    if !domain.is_split {
        return Err(merge::not_split(&domain.name));
    }
    if let Some(spread) = &mut departure.spread {
        (spread.main_bytes, spread.hosts) = (domain.memory_bytes, Vec::new());
    }
    Ok(())
}

/// What other hosts keep of a guest is to stay there: there is to be some.
fn main_only(app: &App, uuid: &str, departure: &Departure) -> Result<(), ErrorBody> {
    let keeps = |guest: SplitGuest| guest.servers.iter().any(|server| !server.is_over());
    if hosts::running(app, uuid).is_some_and(|(_, guest)| keeps(guest)) {
        return Ok(());
    }
    let domain = Domain::parse(&departure.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    Err(merge::not_split(&domain.name))
}

/// The next host is to have a part of a guest's memory, and others the rest.
async fn split_spread(
    app: &App,
    uuid: &str,
    words: &str,
    besides: Besides,
    departure: &mut Departure,
) -> Result<Split, ErrorBody> {
    let domain = Domain::parse(&departure.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let split = split::parse(app, uuid, &domain.name, words, besides)?;
    if let Some(spread) = &mut departure.spread {
        spread.main_bytes = split.main_bytes;
        spread.hosts = split::hosts(&app.nodes().await?, &split)?;
    }
    Ok(split)
}

/// What a guest is that is to leave.
///
/// # Errors
/// When its XML cannot be read, or this host's files do not answer.
pub(crate) async fn depart(
    app: &App,
    from: &NodeView,
    leaving: Leaving,
) -> Result<Departure, ErrorBody> {
    let Leaving { guest, xml, persistent_xml, host_cpu_xml } = leaving;
    let domain =
        Domain::parse(&xml).map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let host = app.host.clone();
    let on_machine_ethernet = Some(host.is_on_machine_ethernet());
    let spread = moves::spread(app, &domain).await?;
    // a file system may hang
    let files = app
        .ask(move |_| {
            let disks = domain.disks.iter().filter_map(|disk| disk.path.as_deref());
            Ok(host.files(disks.chain(domain.nvram.as_deref())))
        })
        .await?;
    Ok(Departure {
        from: from.id,
        machine: None,
        from_name: from.name.clone(),
        xml,
        persistent_xml,
        is_active: guest.active,
        has_job: guest.has_job,
        host_cpu_xml,
        files,
        on_machine_ethernet,
        spread,
        layout: None,
    })
}

impl Way {
    /// What is asked for is a plan only.
    pub fn is_dry_run(&self) -> bool {
        self.request.dry_run
    }

    /// What it will be, or was.
    pub fn result(&self) -> MigrateResult {
        let view = |disk: &DiskCopy| DiskCopyView {
            target: disk.target.clone(),
            path: disk.path.clone(),
            bytes: disk.bytes,
        };
        MigrateResult {
            name: self.plan.name.clone(),
            uuid: self.uuid.clone(),
            from: self.from.id,
            to: self.to.id,
            to_name: self.to.name.clone(),
            to_machine: self.to.machine,
            memory_bytes: self.plan.memory_bytes,
            disks: self.plan.disks.iter().map(view).collect(),
            changes: self.plan.changes.clone(),
            took: None,
            merged: self.request.merge,
            layout: self.plan.layout.as_ref().map(layout::view),
        }
    }

    /// Moves the guest, and tells how far it is.
    ///
    /// # Errors
    /// Says where the guest is.
    pub async fn moved(&self, app: &Arc<App>, lines: &Lines) -> Result<MigrateResult, ErrorBody> {
        let (name, to) = (&self.plan.name, &self.to.name);
        let copied: u64 = self.plan.disks.iter().map(|disk| disk.bytes).sum();
        let text = format!(
            "vm {name}: {} of memory and {} of disks go from {} to {to}",
            format_bytes(self.plan.memory_bytes),
            format_bytes(copied),
            self.from.name
        );
        info!("{text}");
        lines.send(&Line::Progress(text)).await;
        for change in &self.plan.changes {
            lines.send(&Line::Progress(format!("on {to}: {change}"))).await;
        }
        match &self.split {
            Some(split) => {
                split::lend(app, &self.uuid, split, self.to.id).await?;
                step("move-lent").await;
            }
            // of a move that died
            None => hosts::take_back(app, &self.uuid).await,
        }
        let result = self.goes(app, lines).await;
        if result.is_err() {
            hosts::take_back(app, &self.uuid).await;
        }
        result
    }

    async fn goes(&self, app: &Arc<App>, lines: &Lines) -> Result<MigrateResult, ErrorBody> {
        step("move-planned").await;
        self.begin(app).await?;
        step("move-expected").await;
        let began = Instant::now();
        let (sender, mut news) = mpsc::unbounded_channel();
        let moving = self.migrates(app, sender);
        let telling = async {
            let (mut disk_sent_bytes, mut last) = (0, String::new());
            while let Some(progress) = news.recv().await {
                disk_sent_bytes = progress.disk_sent_bytes.max(disk_sent_bytes);
                let text = words(&progress);
                // before the other side is ready, nothing is known
                if progress.total_bytes == 0 || text == last {
                    continue;
                }
                step("move-going").await;
                last.clone_from(&text);
                lines.send(&Line::Progress(text)).await;
            }
            disk_sent_bytes
        };
        let tell = || tokio::spawn(moves::tell(app.clone(), self.uuid.clone(), lines.clone()));
        let pages = self.is_split.then(tell);
        let (moved, disk_sent_bytes) = tokio::join!(moving, telling);
        if let Some(pages) = pages {
            pages.abort();
        }
        match moved {
            Ok(()) => {
                let result = self.arrived(app, began.elapsed(), disk_sent_bytes).await?;
                if self.request.merge {
                    merge::wait(app, self.to.id, &self.uuid, lines).await?;
                }
                Ok(result)
            }
            Err(error) => Err(self.failed(app, error).await),
        }
    }

    /// libvirt moves it. That is broken off if it is not to go on, or cannot.
    async fn migrates(
        &self,
        app: &Arc<App>,
        news: mpsc::UnboundedSender<Progress>,
    ) -> Result<(), ErrorBody> {
        let what = self.what();
        let mut moving = pin!(app.call(move |hypervisor| {
            hypervisor.migrate(&what, &mut |progress| _ = news.send(progress))
        }));
        if self.is_split {
            app.listen_for_end(&self.uuid);
        }
        let why = tokio::select! {
            moved = &mut moving => return moved,
            why = breaks::reason(app, &self.uuid), if self.is_split => why,
        };
        warn!(vm = %self.plan.name, why, "its move is broken off");
        loop {
            let ends = async {
                breaks::end(app, &self.uuid).await;
                sleep(CANCEL_AGAIN).await;
            };
            tokio::select! {
                moved = &mut moving => return moved.map_err(|mut error| {
                    error.causes.splice(0..0, why);
                    error
                }),
                () = ends => {}
            }
        }
    }

    fn record(&self) -> Record {
        let files = self.plan.disks.iter().map(|disk| &disk.path).chain(&self.plan.nvram);
        Record {
            side: Side::Departure,
            uuid: self.uuid.clone(),
            attempt: Some(self.attempt),
            peer: self.to.id,
            machine: self.to.machine,
            disks: files.cloned().collect(),
            xml: self.xml.clone(),
            memory: None,
            why: None,
        }
    }

    /// Path of what the destination knows of the guest.
    fn arrival(&self, rest: &str) -> String {
        format!("{}/arrivals/{}{rest}", path_of(self.to.machine, self.to.id), self.uuid)
    }

    /// Writes down on both nodes what the migration may leave behind.
    async fn begin(&self, app: &Arc<App>) -> Result<(), ErrorBody> {
        let record = self.record();
        app.journal.write(&record).map_err(|error| {
            let mut body = ErrorBody::from_error(ErrorCode::Failed, &error);
            let text = format!("vm {} stays: its way cannot be written down", self.plan.name);
            body.causes.insert(0, std::mem::replace(&mut body.message, text));
            body
        })?;
        step("move-written").await;
        let told = self.tell(app, record.disks.clone()).await;
        if told.is_err() && moves::stay(app, &self.uuid).await.is_ok() {
            app.journal.forget(&record);
        }
        told
    }

    async fn tell(&self, app: &Arc<App>, disks: Vec<String>) -> Result<(), ErrorBody> {
        let rate = self.request.bandwidth_bytes_s;
        let memory = match self.is_split {
            true => {
                let merge = self.request.merge;
                let main_bytes = self.split.as_ref().map(|split| split.main_bytes);
                Some(moves::go(app, &self.from, &self.uuid, rate, merge, main_bytes).await?)
            }
            false => None,
        };
        step("move-memory").await;
        let (from, machine, attempt) = (self.from.id, self.from_machine, Some(self.attempt));
        let (wish, placement) = (self.layout.clone(), self.plan.layout.as_ref());
        let pins = placement.map(|placement| placement.pins.clone()).unwrap_or_default();
        let later = self.request.layout == Some(LayoutWhen::After);
        let later = later.then(|| self.request.layout_policy.unwrap_or_default());
        let expected =
            Expected { from, machine, attempt, disks, memory, layout: wish, pins, later };
        let told = app.mintd.post::<Value>(&self.arrival("/expect"), &expected).await;
        told.map(drop).map_err(client_error)
    }

    /// How libvirt reaches the other's: the ssh key is this machine's alone.
    fn transport(&self) -> &'static str {
        if self.to.machine.is_some() { "tls" } else { "ssh" }
    }

    fn what(&self) -> Move {
        Move {
            name: self.uuid.clone(),
            to_uri: format!("qemu+{}://{}/system", self.transport(), self.to.address),
            to_address: self.to.address.clone(),
            tls: self.to.machine.is_some(),
            xml: self.plan.xml.clone(),
            persistent_xml: self.plan.persistent_xml.clone(),
            disks: self.plan.disks.iter().map(|disk| disk.target.clone()).collect(),
            bandwidth_bytes_s: self.request.bandwidth_bytes_s,
            downtime_ms: self.request.downtime_ms,
            parallel: self.request.parallel.or(self.request.compress.then_some(STREAMS)),
            compress: self.request.compress,
            post_copy_after_s: self.request.post_copy_after_s,
        }
    }

    /// libvirt says that the guest has moved: it is looked for, and then its disks' copies
    /// that nobody uses any more go.
    async fn arrived(
        &self,
        app: &Arc<App>,
        took: Duration,
        disk_sent_bytes: u64,
    ) -> Result<MigrateResult, ErrorBody> {
        let name = &self.plan.name;
        step("move-done").await;
        let seen = self.seen(app).await.map_err(|error| {
            let mut body = error;
            let text = format!(
                "vm {name} left {}, and {} does not say that it runs",
                self.from.name, self.to.name
            );
            body.causes.insert(0, std::mem::replace(&mut body.message, text));
            body.code = ErrorCode::Failed;
            body
        })?;
        step("move-seen").await;
        let record = self.record();
        if drop_copies(app, &record, "it runs on its new node").await {
            step("move-dropped").await;
            app.journal.forget(&record);
        }
        info!(vm = %name, to = %self.to.name, "moved");
        // of a guest that went before its memory, its new host counts nothing
        let total_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let counted = MigrateFigures { total_ms, ..MigrateFigures::default() };
        let mut figures = seen.figures.unwrap_or(counted);
        // libvirt forgets them where it was asked while it ended the copies
        figures.disk_sent_bytes = figures.disk_sent_bytes.max(disk_sent_bytes);
        let mut result = MigrateResult { took: Some(figures), ..self.result() };
        if let Some(view) = &mut result.layout {
            view.took = seen.layout;
        }
        Ok(result)
    }

    /// The guest, as its new node has it once it runs.
    async fn seen(&self, app: &Arc<App>) -> Result<Arrived, ErrorBody> {
        let path = self.arrival("");
        let end = tokio::time::Instant::now() + SEEN_WITHIN;
        loop {
            let answer = app.mintd.get::<Arrived>(&path).await.map_err(client_error);
            match answer {
                Ok(seen) if seen.has_come => return Ok(seen),
                other if tokio::time::Instant::now() >= end => {
                    let text = |seen: Arrived| match seen.waits_for {
                        Some(waits_for) => format!("it is {}; {waits_for}", seen.state),
                        None => format!("it is {}", seen.state),
                    };
                    return Err(other.map_or_else(
                        |error| error,
                        |seen| ErrorBody::new(ErrorCode::Failed, text(seen)),
                    ));
                }
                _ => sleep(SEEN_POLL).await,
            }
        }
    }

    /// Says where the guest is after libvirt said no.
    async fn failed(&self, app: &Arc<App>, error: ErrorBody) -> ErrorBody {
        let (name, uuid) = (&self.plan.name, self.uuid.clone());
        step("move-failed").await;
        let here = app.ask(move |hypervisor| hypervisor.guest(&uuid)).await;
        // what is not taken back now is by settle.rs
        let stays = matches!(&here, Ok(guest) if guest.active)
            && moves::stay(app, &self.uuid).await.is_ok();
        let undone = match (stays, self.is_split) {
            (false, _) => None,
            (true, false) => breaks::end_there(app, &self.uuid).await.ok(),
            (true, true) => breaks::ended_there(app, &self.uuid).await.ok(),
        };
        if undone.is_some() {
            app.journal.forget(&self.record());
        }
        let place = match here {
            Ok(guest) if guest.active => {
                format!("it stays on {} ({})", self.from.name, guest.state)
            }
            Ok(guest) => format!("it is {} on {}", guest.state, self.from.name),
            Err(_) => format!("where it is, mintctl vm show {name} tells"),
        };
        warn!(vm = %name, to = %self.to.name, %error, "not moved");
        let mut body = error;
        // of one that had passed its hook libvirt says only that it did not get there
        let is_new = |why: &String| {
            ![&body.message].into_iter().chain(&body.causes).any(|text| text.contains(why))
        };
        let why = undone.and_then(|undone| undone.why).filter(is_new);
        body.causes.splice(0..0, why);
        let text = format!("vm {name} was not moved to {}; {place}", self.to.name);
        body.causes.insert(0, std::mem::replace(&mut body.message, text));
        body
    }
}
