//! Ending together: no worker leaves while another may still need it.
//!
//! Says nothing of sockets and threads that end then; that is the agent's part. PyTorch's way is in
//! `torch/csrc/distributed/rpc/tensorpipe_agent.cpp` (`join`); this one holds no lock while it waits
//! and counts calls instead of looking whether there are any.
//!
//! # The rule
//!
//! There are rounds. In each, every worker waits for a moment at which nothing goes on in it (no call
//! of its own without an answer, no callback of one running, no handler running, no retry queued), and
//! adds the number of calls that it had started until that moment to the round's sum. When all have
//! arrived, the sum is published. Two rounds with the same sum are the end.
//!
//! Why that is enough:
//!
//! 1. Every idle moment of a round lies after the publication of the round before, and every one of
//!    that round before it; let T be that publication.
//! 2. Numbers of started calls only grow, so equal sums mean that no worker started a call between its
//!    two idle moments, and T lies between them for every worker.
//! 3. So at T no call is without an answer anywhere: whatever was started by then had been started, and
//!    was over, at its starter's first idle moment.
//! 4. After T a call could only be started by what was still running at T, a handler or a callback; it
//!    would be started before that worker's second idle moment, at which nothing runs, and was not.
//! 5. Hence nobody calls anybody after T, and all learn so from the second sum, whatever their order.
//!
//! Two things are beyond the rule. A call that was given up (its time was over) counts as answered, and
//! its handler may begin later: calls that it makes then can find others gone. And calls that a
//! program's own threads start after they asked for the end are their own affair.
//!
//! # What the store keeps
//!
//! | key | value |
//! | --- | --- |
//! | `shutdown/<generation>/<round>/started` | the sum |
//! | `shutdown/<generation>/<round>/here/<id>` | empty: this worker has arrived |
//! | `shutdown/<generation>/<round>/count` | how many have |
//! | `shutdown/<generation>/<round>/ready` | the sum again, by the last to arrive |
//! | `shutdown/<generation>/left` | how many need the store no more |
//! | `shutdown/<generation>/all_left` | empty, by the last of them |
//!
//! Five requests a worker and round, however many workers there are; an idle group ends in two rounds.

mod error;
mod joint_end;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::Store;

use crate::directory::BoundedStore;
use crate::worker::WorkerInfo;
pub use error::{TerminationError, Workers};
use joint_end::{JointEnd, Step};

/// How long a wait goes on before it is asked who died, and whether to give up.
const SLICE: Duration = Duration::from_millis(500);

/// What the others get to read the last sum before the store may go away with the worker of id 0.
const DEPARTURES_TIMEOUT: Duration = Duration::from_secs(2);

/// The bytes shown of a value that is no number.
const VALUE_BYTES_SHOWN_MAX: usize = 40;

/// What goes on in a worker.
pub(crate) trait Activity {
    /// Blocks until a moment at which nothing goes on: no call of the worker's own without an answer,
    /// none whose callbacks still run, no handler running, no retry queued, all of that at one moment.
    /// `false` when there is none by the deadline, or when the wait was interrupted.
    fn wait_idle(&self, by: Deadline) -> bool;

    /// How many calls the worker has started since it began. Retries of a call are part of it.
    fn calls_started(&self) -> u64;

    /// How many of the worker's own calls have no answer yet. For error messages.
    fn calls_out(&self) -> usize;

    /// Whether to give up.
    fn is_interrupted(&self) -> bool;

    /// Workers that are known to be dead.
    fn dead(&self) -> Vec<WorkerInfo>;
}

/// One worker's way to the joint end of its group.
///
/// ```ignore
/// let mut termination = Termination::new(store, generation, me, workers);
/// termination.run(&activity, Deadline::after(Instant::now(), timeout))?;
/// ```
#[derive(Debug)]
pub(crate) struct Termination {
    store: BoundedStore,
    generation: u64,
    me: WorkerInfo,
    workers: Vec<WorkerInfo>,
    core: JointEnd,
}

impl Termination {
    /// `store` is below the group's prefix and a handle of its own
    /// ([`clone_store`](Store::clone_store)): its timeout is changed, and closing it interrupts
    /// [`run`](Self::run). `generation` tells the ends of groups below one prefix apart; `workers` are
    /// all, `me` included, the same for each.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        generation: u64,
        me: WorkerInfo,
        workers: Vec<WorkerInfo>,
    ) -> Self {
        // The worker with the lowest id is the one that usually serves the store.
        let serves_store = workers.iter().all(|worker| me.id <= worker.id);
        let core = JointEnd::new(workers.len() as u64, serves_store);
        Self {
            store: BoundedStore::new(store),
            generation,
            me,
            workers,
            core,
        }
    }

    /// Blocks until all workers have nothing left to do, or the deadline. After an error other than
    /// the store's it can be run again, and goes on where it was.
    ///
    /// # Errors
    /// [`TerminationError`]. With one, others may still call this worker.
    pub(crate) fn run(
        &mut self,
        activity: &dyn Activity,
        by: Deadline,
    ) -> Result<(), TerminationError> {
        let started = Instant::now();
        loop {
            match self.core.step() {
                Step::BecomeIdle => self.become_idle(activity, started, by)?,
                Step::AddStarted { started } => {
                    // A sum of so many calls wraps, and is as good for comparing.
                    let key = self.round_key("started");
                    self.store.add(&key, started.cast_signed(), by)?;
                    self.core.added();
                }
                Step::Arrive => {
                    self.store.set(&self.here_key(&self.me), b"", by)?;
                    let count = self.store.add(&self.round_key("count"), 1, by)?;
                    self.core.arrived(count.cast_unsigned());
                }
                Step::Publish => {
                    let sum = self.store.add(&self.round_key("started"), 0, by)?;
                    let ready = self.round_key("ready");
                    self.store.set(&ready, sum.to_string().as_bytes(), by)?;
                    self.core.learned(sum.cast_unsigned());
                }
                Step::AwaitSum => {
                    let sum = self.await_sum(activity, started, by)?;
                    self.core.learned(sum);
                }
                Step::Depart => {
                    self.depart(by);
                    self.core.departed();
                }
                Step::AwaitDepartures => {
                    let soon = Deadline::after(Instant::now(), DEPARTURES_TIMEOUT).min(by);
                    match self.store.wait(&[&self.key("all_left")], soon) {
                        Ok(true) => {}
                        Ok(false) => log::debug!("not all workers have said that they left"),
                        Err(error) => log::debug!("waiting for the others to leave: {error}"),
                    }
                    self.core.others_departed();
                }
                Step::Finished => return Ok(()),
            }
        }
    }

    fn become_idle(
        &mut self,
        activity: &dyn Activity,
        started: Instant,
        by: Deadline,
    ) -> Result<(), TerminationError> {
        let before = activity.calls_started();
        if activity.wait_idle(by) {
            self.core.was_idle(before, activity.calls_started());
            return Ok(());
        }
        let (round, elapsed) = (self.core.round(), started.elapsed());
        Err(if activity.is_interrupted() {
            TerminationError::Interrupted { round, elapsed }
        } else {
            TerminationError::Busy {
                me: Box::new(self.me.clone()),
                round,
                calls_out: activity.calls_out(),
                elapsed,
            }
        })
    }

    fn await_sum(
        &self,
        activity: &dyn Activity,
        started: Instant,
        by: Deadline,
    ) -> Result<u64, TerminationError> {
        let ready = self.round_key("ready");
        let round = self.core.round();
        loop {
            // Many short waits: a straggler may come later than any one wait of the store lasts.
            let slice = Deadline::after(Instant::now(), SLICE).min(by);
            if self.store.wait(&[&ready], slice)?
                && let Some(sum) = self.store.get_if_there(&ready, by)?
            {
                return self.parse_sum(&ready, &sum);
            }
            let elapsed = started.elapsed();
            if activity.is_interrupted() {
                return Err(TerminationError::Interrupted { round, elapsed });
            }
            let dead = activity.dead();
            if !dead.is_empty() {
                let (dead, is_complete) = self.absent(&dead)?;
                if !dead.is_empty() {
                    let dead = Workers::new(dead, is_complete);
                    return Err(TerminationError::WorkersDead {
                        dead,
                        round,
                        elapsed,
                    });
                }
            }
            if by.has_passed(Instant::now()) {
                let (absent, is_complete) = self.absent(&self.workers)?;
                return Err(TerminationError::WorkersAbsent {
                    absent: Workers::new(absent, is_complete),
                    round,
                    calls_out: activity.calls_out(),
                    elapsed,
                });
            }
        }
    }

    /// Who of these has not arrived in the round, and whether these are all.
    fn absent(&self, of: &[WorkerInfo]) -> Result<(Vec<WorkerInfo>, bool), TerminationError> {
        let keys: Vec<String> = of.iter().map(|worker| self.here_key(worker)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let missing = self.store.missing(&keys)?;
        let absent = missing.positions.iter().map(|at| of[*at].clone()).collect();
        Ok((absent, missing.is_complete))
    }

    /// The end is certain, so a store that is gone already is no error.
    fn depart(&self, by: Deadline) {
        let departed = self.store.add(&self.key("left"), 1, by).and_then(|left| {
            if left.cast_unsigned() == self.workers.len() as u64 {
                self.store.set(&self.key("all_left"), b"", by)
            } else {
                Ok(())
            }
        });
        if let Err(error) = departed {
            log::debug!("saying that the store is needed no more: {error}");
        }
    }

    fn parse_sum(&self, key: &str, value: &[u8]) -> Result<u64, TerminationError> {
        let sum: Option<i64> = std::str::from_utf8(value)
            .ok()
            .and_then(|sum| sum.parse().ok());
        sum.map(i64::cast_unsigned).ok_or_else(|| {
            let shown = &value[..value.len().min(VALUE_BYTES_SHOWN_MAX)];
            TerminationError::Corrupt {
                key: self.store.full_key(key),
                store: self.store.label(),
                value: String::from_utf8_lossy(shown).into_owned(),
            }
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
