// SPDX-License-Identifier: Apache-2.0
//! The state driver: one thread that owns [`Nodes`] and so all mutation.
//!
//! ```text
//!   handlers ── jobs ──> [ queue ] ──> thread: job(&mut Nodes) ──> reply
//! ```
//! A job blocks the thread for as long as the kernel's moves take. A job that
//! panics is a bug: its operation is taken back or finished by the journal, as
//! after a crash of the daemon, and the thread goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use mint_node::Nodes;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

type Job = Box<dyn FnOnce(&mut Nodes) + Send>;

/// Queue of the state driver.
#[derive(Clone)]
pub(crate) struct Driver {
    jobs: mpsc::Sender<Job>,
}

/// The job was lost: the driver panicked in it, or the daemon ends.
#[derive(Debug, thiserror::Error)]
#[error("mintd lost the operation by a fault of its own; see its log and mintctl doctor")]
pub(crate) struct JobLost;

impl Driver {
    /// Starts the thread. It ends when the last [`Driver`] is dropped.
    pub fn start(mut nodes: Nodes) -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("state-driver".into())
            .spawn(move || {
                for job in queue {
                    if catch_unwind(AssertUnwindSafe(|| job(&mut nodes))).is_err() {
                        error!("an operation panicked");
                        match nodes.reconcile() {
                            Ok(told) => told.iter().for_each(|text| info!("{text}")),
                            Err(error) => warn!(%error, "journal not settled"),
                        }
                    }
                }
            })
            .expect("a machine without room for a thread cannot run a daemon");
        Self { jobs }
    }

    /// Queues a job and waits for its result.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Nodes) -> T + Send + 'static,
    ) -> Result<T, JobLost> {
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move |nodes| {
            // the client may have gone; the work is done all the same
            _ = reply.send(job(nodes));
        });
        self.jobs.send(job).map_err(|_| JobLost)?;
        result.await.map_err(|_| JobLost)
    }
}
