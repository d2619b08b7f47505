//! Coordinated shutdown: no worker of a static group leaves while another may still call it.
//!
//! Distributed termination detection over the store. Sockets and threads are the agent's part. PyTorch's
//! version is `join` in `torch/csrc/distributed/rpc/tensorpipe_agent.cpp`; this one holds no lock while it
//! waits, and counts started calls instead of checking for active ones.
//!
//! # The rule
//!
//! Shutdown proceeds in rounds. In each round every worker waits until it is idle (none of its calls is
//! unanswered, no callback or handler runs, no retry is queued) and adds the number of calls that it has
//! started so far to the round's sum. When all workers have arrived, the sum is published. All workers
//! terminate when two consecutive rounds have the same sum.
//!
//! Why this is correct:
//!
//! 1. Let T be the moment at which a round's sum is published. All idle moments of that round lie before
//!    T, and all idle moments of the next round after T.
//! 2. Counts of started calls only grow. If both sums are equal, no worker started a call between its two
//!    idle moments.
//! 3. Therefore no call is unanswered at T: each call started by then was started, and had ended, at its
//!    caller's first idle moment.
//! 4. Therefore no worker starts a call after T: only a handler or a callback that runs at T could, and it
//!    would do so before its worker's second idle moment.
//! 5. Each worker learns this from the second sum, in whatever order they read it.
//!
//! Two cases are outside the rule. A call whose deadline passed counts as answered, but its handler may
//! start later, and its calls may then find that other workers have left. The same holds for calls that
//! the program's own threads start after they requested the shutdown.
//!
//! # Keys in the store
//!
//! | key | value |
//! | --- | --- |
//! | `shutdown/<generation>/<round>/started` | the sum so far |
//! | `shutdown/<generation>/<round>/here/<id>` | empty: this worker has arrived |
//! | `shutdown/<generation>/<round>/count` | number of workers that have arrived |
//! | `shutdown/<generation>/<round>/ready` | the sum, published by the last worker to arrive, or `failed` if a worker could not start |
//! | `shutdown/<generation>/left` | number of workers that no longer need the store |
//! | `shutdown/<generation>/all_left` | empty, written by the last of them |
//!
//! A worker makes five requests a round, however large the group is. An idle group needs two rounds.

mod detector;
mod error;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, printable};
use c10d_store::{Store, StoreError, StoreExt};

use crate::directory::{BoundedStore, read_failure};
use crate::shortlist::Shortlist;
use crate::sync::{WaitEnd, waker};
use crate::worker::WorkerInfo;
use detector::{Detector, Step};
pub use error::TerminationError;

/// Interval at which a wait asks whether a worker whose connection was lost is dead.
const LOST_INTERVAL: Duration = Duration::from_millis(500);

/// The key that workers in their first shutdown wait for. A worker that could not start sets it, which wakes them. All of them
/// wait in the first round, because a round needs all workers.
pub(crate) const FIRST_SUM_KEY: &str = "shutdown/0/1/ready";

/// How long the worker with the lowest id, which usually serves the store, waits until the other workers have read
/// the last sum.
const DEPARTURES_TIMEOUT: Duration = Duration::from_secs(2);

/// How many characters of an invalid value an error shows.
const VALUE_CHARS_SHOWN_MAX: usize = 40;

/// The worker's state that termination detection needs.
pub(crate) trait Activity {
    /// Blocks until the worker is idle: at one moment, none of its calls is unanswered, no callback or
    /// handler runs, and no retry is queued.
    ///
    /// # Errors
    /// The deadline has passed, or `cancel` or the end of the worker's agent has ended the wait.
    fn wait_idle(&self, by: Deadline, cancel: &Cancel) -> Result<(), WaitEnd>;

    /// Number of calls that the worker has started since its start. Retries belong to their call.
    fn calls_started(&self) -> u64;

    /// Number of the worker's unanswered calls. For error messages.
    fn calls_out(&self) -> usize;

    /// Whether another thread asked to stop waiting.
    fn is_interrupted(&self) -> bool;

    /// Ends a wait when the worker is interrupted, and when the answer of [`dead`](Self::dead) may have changed. It
    /// replaces the one before.
    fn begin_store_wait(&self) -> Cancel;

    fn dead(&self) -> Dead;
}

/// The known dead workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dead {
    /// The workers that are known to have died.
    pub(crate) workers: Vec<WorkerInfo>,
    /// Whether other workers may have died: their connections are lost. A later call may return more.
    pub(crate) is_any_lost: bool,
}

/// One worker's part in the coordinated shutdown of its group.
///
/// ```ignore
/// let mut termination = Termination::new(store, generation, me, workers);
/// termination.run(&activity, Deadline::after(Instant::now(), timeout), &Cancel::NEVER)?;
/// ```
#[derive(Debug)]
pub(crate) struct Termination {
    store: BoundedStore,
    generation: u64,
    me: WorkerInfo,
    workers: Vec<WorkerInfo>,
    core: Detector,
}

impl Termination {
    /// `store` is below the group's prefix. It must be a separate handle
    /// ([`clone_store`](c10d_store::StoreHandle::clone_store)), because its timeout is changed, and closing it
    /// interrupts [`run`](Self::run). `generation` distinguishes consecutive shutdowns below one prefix. `workers`
    /// are all workers of the group, `me` included.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        generation: u64,
        me: WorkerInfo,
        workers: Vec<WorkerInfo>,
    ) -> Self {
        // The worker with the lowest id usually serves the store.
        let serves_store = workers.iter().all(|worker| me.id <= worker.id);
        let core = Detector::new(workers.len() as u64, serves_store);
        Self {
            store: BoundedStore::new(store),
            generation,
            me,
            workers,
            core,
        }
    }

    /// Blocks until all workers are done, until the deadline, or until `cancel` interrupts it. A deadline that has
    /// passed checks once without waiting. After an error other than the store's, `run` can be called again and
    /// continues.
    ///
    /// # Errors
    /// [`TerminationError`]. After an error, other workers may still call this worker.
    pub(crate) fn run(
        &mut self,
        activity: &dyn Activity,
        by: Deadline,
        cancel: &Cancel,
    ) -> Result<(), TerminationError> {
        let started = Instant::now();
        loop {
            match self.core.step() {
                Step::AwaitIdle => self.await_idle(activity, started, by, cancel)?,
                Step::AddStarted { started } => {
                    // The sum may wrap: it is only compared.
                    let key = self.round_key("started");
                    self.store.by(by).add(&key, started.cast_signed())?;
                    self.core.added();
                }
                Step::Arrive => {
                    self.store.by(by).set(&self.here_key(&self.me), b"")?;
                    let count = self.store.by(by).add(&self.round_key("count"), 1)?;
                    self.core.arrived(count.cast_unsigned());
                }
                Step::Publish => {
                    let sum = self.store.by(by).add(&self.round_key("started"), 0)?;
                    let ready = self.round_key("ready");
                    self.store.by(by).set(&ready, sum.to_string().as_bytes())?;
                    self.core.sum_known(sum.cast_unsigned());
                }
                Step::AwaitSum => {
                    let sum = self.await_sum(activity, started, by, cancel)?;
                    self.core.sum_known(sum);
                }
                Step::Depart => {
                    self.depart(by);
                    self.core.departed();
                }
                Step::AwaitDepartures => {
                    let soon = Deadline::after(Instant::now(), DEPARTURES_TIMEOUT).min(by);
                    let store = self.store.with_cancel(cancel);
                    match store.wait(&[&self.key("all_left")], soon) {
                        Ok(true) => {}
                        Ok(false) => log::debug!("not all workers have reported that they left"),
                        Err(error) => {
                            log::debug!("cannot wait for the other workers to leave: {error}")
                        }
                    }
                    self.core.others_departed();
                }
                Step::Finished => return Ok(()),
            }
        }
    }

    fn await_idle(
        &mut self,
        activity: &dyn Activity,
        started: Instant,
        by: Deadline,
        cancel: &Cancel,
    ) -> Result<(), TerminationError> {
        let before = activity.calls_started();
        let waited = activity.wait_idle(by, cancel);
        let (round, elapsed) = (self.core.round(), started.elapsed());
        waited.map_err(|end| match end {
            WaitEnd::Cancelled => TerminationError::Interrupted { round, elapsed },
            WaitEnd::Late => TerminationError::Busy {
                me: Box::new(self.me.clone()),
                round,
                calls_out: activity.calls_out(),
                elapsed,
            },
        })?;
        self.core.was_idle(before, activity.calls_started());
        Ok(())
    }

    fn await_sum(
        &self,
        activity: &dyn Activity,
        started: Instant,
        by: Deadline,
        cancel: &Cancel,
    ) -> Result<u64, TerminationError> {
        let ready = self.round_key("ready");
        let round = self.core.round();
        loop {
            // Before the questions: changes of the answers end the wait.
            let news = activity.begin_store_wait();
            let mut watch = cancel.watch();
            let is_cancelled = watch.ask(|| {
                let news = news.clone();
                waker(move || news.cancel())
            });
            let elapsed = started.elapsed();
            if is_cancelled || activity.is_interrupted() {
                return Err(TerminationError::Interrupted { round, elapsed });
            }
            let dead = activity.dead();
            if !dead.workers.is_empty() {
                let (dead, is_complete) = self.absent(&dead.workers)?;
                if !dead.is_empty() {
                    let dead = Shortlist::new(dead, is_complete);
                    return Err(TerminationError::WorkersDead {
                        dead,
                        round,
                        elapsed,
                    });
                }
            }
            let until = if dead.is_any_lost {
                Deadline::after(Instant::now(), LOST_INTERVAL).min(by)
            } else {
                by
            };
            let has_sum = match self.store.with_cancel(&news).wait(&[&ready], until) {
                Err(StoreError::Interrupted { .. }) => false,
                waited => waited?,
            };
            if has_sum && let Some(sum) = self.store.by(by).try_get(&ready)? {
                let failure = match sum.as_slice() {
                    b"failed" => read_failure(&self.store, by)?,
                    _ => None,
                };
                return match failure {
                    Some((worker, why)) => Err(TerminationError::WorkerFailed {
                        worker: Box::new(worker),
                        why,
                    }),
                    None => self.parse_sum(&ready, &sum),
                };
            }
            if by.has_passed(Instant::now()) {
                let elapsed = started.elapsed();
                let (absent, is_complete) = self.absent(&self.workers)?;
                return Err(TerminationError::WorkersAbsent {
                    absent: Shortlist::new(absent, is_complete),
                    round,
                    calls_out: activity.calls_out(),
                    elapsed,
                });
            }
        }
    }

    /// Which of these workers have not arrived in the round, and whether the list is complete.
    fn absent(&self, of: &[WorkerInfo]) -> Result<(Vec<WorkerInfo>, bool), TerminationError> {
        let keys: Vec<String> = of.iter().map(|worker| self.here_key(worker)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let (missing, is_complete) = self.store.missing(&keys)?;
        let absent = missing.into_iter().map(|at| of[at].clone());
        Ok((absent.collect(), is_complete))
    }

    /// Reports that this worker no longer needs the store. All workers have terminated, so a stopped store is not an
    /// error.
    fn depart(&self, by: Deadline) {
        let store = self.store.by(by);
        let departed = store.add(&self.key("left"), 1).and_then(|left| {
            if left.cast_unsigned() == self.workers.len() as u64 {
                store.set(&self.key("all_left"), b"")
            } else {
                Ok(())
            }
        });
        if let Err(error) = departed {
            log::debug!("cannot report that this worker no longer needs the store: {error}");
        }
    }

    fn parse_sum(&self, key: &str, value: &[u8]) -> Result<u64, TerminationError> {
        let sum: Option<i64> = std::str::from_utf8(value)
            .ok()
            .and_then(|sum| sum.parse().ok());
        sum.map(i64::cast_unsigned)
            .ok_or_else(|| TerminationError::Corrupt {
                key: self.store.full_key(key),
                store: self.store.label(),
                value: printable(value, VALUE_CHARS_SHOWN_MAX).to_string(),
            })
    }

    fn key(&self, name: &str) -> String {
        format!("shutdown/{}/{name}", self.generation)
    }

    fn round_key(&self, name: &str) -> String {
        format!("shutdown/{}/{}/{name}", self.generation, self.core.round())
    }

    fn here_key(&self, worker: &WorkerInfo) -> String {
        self.round_key(&format!("here/{}", worker.id))
    }
}
