//! Shuts down the references of a worker: with its group ([`RRefs::shutdown`]) or alone ([`RRefs::leave`]).

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use rpc_agent::Agent;

use crate::error::LeakReport;
use crate::error::{Missing, ShutdownError};
use crate::rrefs::RRefs;
use crate::runtime::{Inner, RunOn, Runtime};

impl RRefs {
    fn attached(&self) -> Result<&Arc<Runtime>, ShutdownError> {
        let runtime = self.hub.runtime.get().ok_or(ShutdownError::NotAttached)?;
        Ok(runtime.get()?)
    }

    /// Returns the held values of this worker, with their holders. Takes time in proportion to the tables.
    ///
    /// # Errors
    /// [`ShutdownError::NotAttached`] before the references are attached to an agent.
    pub fn leak_report(&self) -> Result<LeakReport, ShutdownError> {
        let runtime = self.attached()?;
        Ok(leak_report(runtime))
    }

    /// Shuts down the references of a group of fixed size together. Every worker calls this, on one thread, before it
    /// shuts down its agent. In a group whose members change, use [`RRefs::leave`].
    ///
    /// Waits until nothing is under way anywhere; deletes all users, whether they are held or not, and waits for the
    /// owners' answers; frees the values without users, and waits until other workers' users are deleted. Returns the
    /// values that were still held at the beginning. Afterwards, even after an error, each use of a reference fails
    /// with [`RRefError::Shutdown`](crate::RRefError::Shutdown).
    ///
    /// Blocks for at most `timeout`. `None` waits indefinitely; zero does only the parts that need no waiting.
    ///
    /// # Errors
    /// [`ShutdownError::Missing`] and [`ShutdownError::Barrier`] name the missing workers; all values that could be
    /// freed have been freed. [`ShutdownError::NotAttached`], [`ShutdownError::OtherAgent`] if `agent` is not the
    /// attached one, and [`ShutdownError::InProgress`] change nothing.
    pub fn shutdown(
        &self,
        agent: &Agent,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<LeakReport, ShutdownError> {
        let runtime = self.attached()?;
        if runtime.agent.incarnation() != agent.handle().incarnation() {
            return Err(ShutdownError::OtherAgent {
                attached: runtime.agent.me().clone(),
                given: agent.handle().me().clone(),
            });
        }
        let ending = Ending::begin(runtime, timeout.into())?;
        let barrier = || -> Result<LeakReport, ShutdownError> {
            agent.join(ending.deadline.remaining(Instant::now()))?;
            let report = leak_report(runtime);
            // No worker deletes anything before all have their reports.
            agent.join(ending.deadline.remaining(Instant::now()))?;
            Ok(report)
        };
        ending.end_references(barrier())
    }

    /// Shuts down this worker's references alone, when it leaves a group whose members change, or a group that has
    /// lost a worker. Waits for the workers that hold references to values here, but not for their shutdown.
    ///
    /// Blocks for at most `timeout` (`None` and zero have the meaning of [`RRefs::shutdown`]), and returns the values
    /// that were still held at the beginning.
    ///
    /// # Errors
    /// [`ShutdownError::Missing`], [`ShutdownError::NotAttached`] or [`ShutdownError::InProgress`], for the same
    /// reasons as [`RRefs::shutdown`].
    pub fn leave(&self, timeout: impl Into<Option<Duration>>) -> Result<LeakReport, ShutdownError> {
        let runtime = self.attached()?;
        let ending = Ending::begin(runtime, timeout.into())?;
        ending.end_references(Ok(leak_report(runtime)))
    }
}

/// The values of this worker that are held, and their holders.
fn leak_report(runtime: &Arc<Runtime>) -> LeakReport {
    let mut values = runtime.step(RunOn::AgentThread, |inner, now| {
        runtime.collect_drops_in_step(inner, now);
        inner.context.held(now)
    });
    // Without the lock: looking up a name may read the store.
    for holder in values.iter_mut().flat_map(|value| &mut value.held_by) {
        holder.worker = runtime.worker(holder.worker.id);
    }
    LeakReport {
        worker: runtime.agent.me().clone(),
        values,
    }
}

/// A shutdown in progress. Dropping it permits another shutdown.
struct Ending<'a> {
    runtime: &'a Arc<Runtime>,
    began: Instant,
    deadline: Deadline,
}

impl<'a> Ending<'a> {
    fn begin(runtime: &'a Arc<Runtime>, timeout: Option<Duration>) -> Result<Self, ShutdownError> {
        let began = Instant::now();
        if std::mem::replace(&mut runtime.lock().is_shutting_down, true) {
            return Err(ShutdownError::InProgress);
        }
        Ok(Self {
            runtime,
            began,
            deadline: timeout.map_or(Deadline::NEVER, |timeout| Deadline::after(began, timeout)),
        })
    }

    /// Deletes the users, waits for the answers, frees the values, and waits for other workers' users. Returns the report,
    /// or its error, if nothing is missing afterwards.
    fn end_references(
        &self,
        report: Result<LeakReport, ShutdownError>,
    ) -> Result<LeakReport, ShutdownError> {
        let runtime = self.runtime;
        runtime.step(RunOn::AgentThread, |inner, now| {
            inner.shutdown_waiters += 1;
            runtime.collect_drops_in_step(inner, now);
            inner.context.delete_all_users(now);
        });
        let has_no_users = self.wait_until(|inner| inner.context.has_no_users());
        runtime.step(RunOn::AgentThread, |inner, now| {
            inner.context.sweep_unforked(now);
        });
        if has_no_users {
            self.wait_until(|inner| inner.context.is_drained());
        }
        let mut inner = runtime.lock();
        inner.shutdown_waiters -= 1;
        let is_drained = inner.context.is_drained();
        let missing = inner.context.missing();
        drop(inner);
        let missing = missing.into_iter().map(|missing| Missing {
            worker: runtime.worker(missing.worker),
            what: missing.what,
            count: missing.count,
        });
        let (after, report, missing) = (self.began.elapsed(), report?, missing.collect());
        if is_drained {
            return Ok(report);
        }
        Err(ShutdownError::Missing {
            after,
            missing,
            report: Box::new(report),
        })
    }

    /// Waits for a condition until the deadline. Returns whether it holds.
    fn wait_until(&self, is_so: impl Fn(&Inner) -> bool) -> bool {
        let changed = &self.runtime.changed;
        let mut inner = self.runtime.lock();
        // The context changes in steps only, ticks included, and each step notifies this thread.
        while !is_so(&inner) {
            let now = Instant::now();
            if self.deadline.has_passed(now) {
                return false;
            }
            inner = match self.deadline.remaining(now) {
                None => changed.wait(inner),
                Some(left) => changed
                    .wait_timeout(inner, left)
                    .map(|(inner, _)| inner)
                    .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)),
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.runtime.lock().is_shutting_down = false;
    }
}
