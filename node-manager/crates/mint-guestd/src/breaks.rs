// SPDX-License-Identifier: Apache-2.0
//! A move of a guest whose memory is split is broken off before its next host has all of it: somebody
//! asks for that, a node ends, or its next host does not take what it is given while the guest
//! stands still. libvirt alone cannot: while it waits for its hook, or for a QEMU that waits for
//! pages, there is nothing to cancel. So the next host ends that QEMU ([`crate::given_up`]).

use std::time::Duration;

use mint_api::ErrorBody;
use mint_split::{DepartureView, files};
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::app::{App, client_error, path_of};
use crate::journal::Side;
use crate::moves::{self, running};
use crate::pagers::view;
use crate::wire::{Undo, Undone};

/// Between looks at a guest that goes.
const LOOK: Duration = Duration::from_secs(2);
/// Nothing of one goes for so long while it stands still: it is not taken.
const STALLED: Duration = Duration::from_secs(90);
/// So often its next host may ask for the last of it. One whose pager dies asks again.
const FINALS_MAX: u32 = 8;
/// For the next host to end a QEMU that waits for pages: its libvirt waits for 30 s at most for who
/// else is at it.
const UNDONE_WITHIN: Duration = Duration::from_secs(35);
const UNDONE_LOOK: Duration = Duration::from_millis(500);

/// Waits until a move is to be broken off; gives why. None: somebody has asked for it.
pub(crate) async fn reason(app: &App, uuid: &str) -> Option<String> {
    tokio::select! {
        (lost, has) = moves::loses(app, uuid) => Some(format!(
            "{lost} has ended, which kept memory of it; it goes on with the copy that {has} has, \
             and can be moved then"
        )),
        why = stalls(app, uuid) => Some(why),
        () = app.is_to_end(uuid) => None,
    }
}

/// Breaks off the move of a guest that leaves, as far as that goes now: ask again until libvirt has
/// ended it.
pub(crate) async fn end(app: &App, uuid: &str) {
    let reference = uuid.to_owned();
    // it may not have begun, or be over
    if let Err(error) = app.call(move |hypervisor| hypervisor.cancel(&reference)).await {
        info!(uuid, %error, "libvirt does not end its move");
    }
    if let Err(error) = end_there(app, uuid).await {
        info!(uuid, %error, "its next host does not end its move");
    }
}

/// Has the next host end its part of a move.
///
/// # Errors
/// When it has all of the guest, has not ended its part yet, or does not answer.
pub(crate) async fn end_there(app: &App, uuid: &str) -> Result<Undone, ErrorBody> {
    let Some(record) = app.journal.get(Side::Departure, uuid) else { return Ok(Undone::default()) };
    let path = format!("{}/arrivals/{uuid}/undo", path_of(record.machine, record.peer));
    app.mintd.post(&path, &Undo { attempt: record.attempt }).await.map_err(client_error)
}

/// The same, once a guest goes on here: the next host's QEMU may be ending still.
///
/// # Errors
/// As [`end_there`].
pub(crate) async fn ended_there(app: &App, uuid: &str) -> Result<Undone, ErrorBody> {
    let began = Instant::now();
    loop {
        let undone = end_there(app, uuid).await;
        if undone.is_ok() || began.elapsed() > UNDONE_WITHIN {
            return undone;
        }
        sleep(UNDONE_LOOK).await;
    }
}

/// Waits until a guest stands still for its move, and does not get on.
async fn stalls(app: &App, uuid: &str) -> String {
    let mut still = Still::default();
    loop {
        sleep(LOOK).await;
        let told = match running(app, uuid) {
            // its next host has all of it
            Some((folder, _)) if folder.join(files::GONE).exists() => None,
            Some((folder, _)) => view(&folder).await.ok().and_then(|view| view.departure),
            None => None,
        };
        if let Some(why) = still.look(Instant::now(), told) {
            return why;
        }
    }
}

/// What was seen last of a guest that stands still.
#[derive(Default)]
struct Still(Option<(DepartureView, Instant)>);

impl Still {
    /// How far it is now (none: it is not known, or is over); gives why it is to stand still no
    /// longer.
    fn look(&mut self, now: Instant, told: Option<DepartureView>) -> Option<String> {
        let Some(told) = told.filter(|told| told.finals > 0) else {
            self.0 = None;
            return None;
        };
        if told.finals > FINALS_MAX {
            let times = FINALS_MAX;
            return Some(format!("its next host asked {times} times for the last of its memory"));
        }
        match self.0 {
            Some((last, since)) if last == told => {
                let seconds = STALLED.as_secs();
                (now.duration_since(since) > STALLED).then(|| {
                    format!("its next host took nothing for {seconds} s while it stood still")
                })
            }
            _ => {
                self.0 = Some((told, now));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_stands_still_as_long_as_that_gets_on() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let told = |finals, sent_pages| {
            Some(DepartureView { finals, sent_pages, ..DepartureView::default() })
        };
        let mut still = Still::default();
        // one that runs may have nothing to send for hours
        for (seconds, view) in [
            (0, told(0, 5)),
            (9000, told(0, 5)),
            (9001, told(1, 5)),
            (9090, told(1, 5)),
            (9091, told(1, 6)),
            (9180, told(1, 6)),
            // its next host has all of it, or its pager is started again
            (9181, None),
            (9182, told(1, 6)),
            (9271, told(1, 6)),
            (9272, told(FINALS_MAX, 9)),
        ] {
            assert_eq!(still.look(at(seconds), view), None, "{seconds}");
        }
        assert_eq!(still.look(at(9362), told(FINALS_MAX, 9)), None);
        let why = still.look(at(9363), told(FINALS_MAX, 9)).unwrap();
        assert_eq!(why, "its next host took nothing for 90 s while it stood still");
        let why = still.look(at(9364), told(FINALS_MAX + 1, 10)).unwrap();
        assert_eq!(why, "its next host asked 8 times for the last of its memory");
    }
}
