//! When a worker is considered lost: requests check whether its process still runs, and its exit is reported to the
//! context.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use rpc_agent::{NotSent, RetryOptions, RpcError, RpcFuture, WorkerId};

use crate::context::LossReport;
use crate::protocol::ALIVE;
use crate::runtime::{RunOn, Runtime};

/// How long a connected worker may take to answer each liveness request.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

impl Runtime {
    /// Finds out whether a worker's process has ended, and reports that to the context before the future completes. A
    /// worker that has sent a Goodbye counts as ended, even if it still runs a function. A worker that cannot be
    /// reached for as long as the agent dials counts as ended.
    pub(crate) fn check_alive(self: &Arc<Self>, worker: WorkerId) -> RpcFuture<bool> {
        if let Some(left) = self.agent.left_incarnation_of(worker) {
            return RpcFuture::ready(Ok(self.lose(worker, Some(left))));
        }
        let (promise, found) = RpcFuture::new();
        {
            let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(check) = checks.get(&worker) {
                return check.clone();
            }
            checks.insert(worker, found.clone());
        }
        let asked = self.agent.incarnation_of(worker);
        // Longer than the agent dials, so that the answer shows whether a connection can be made at all.
        let timeout = self.agent.connect_timeout().saturating_add(ALIVE_TIMEOUT);
        let runtime = Arc::clone(self);
        let check = self
            .agent
            .call(worker, ALIVE)
            .with_timeout(timeout)
            .send_bytes("")
            .then_async(move |answer| match verdict(&answer) {
                Some(verdict) => RpcFuture::ready(Ok(verdict)),
                None => {
                    let retries = RetryOptions::default()
                        .with_max_retries(5)
                        .with_retry_duration(Duration::from_millis(100))
                        .with_attempt_timeout(timeout)
                        .with_group(&runtime.retry_group);
                    runtime
                        .agent
                        .call(worker, ALIVE)
                        .with_retries(&retries)
                        .send_bytes("")
                        .then(move |answer| Ok(verdict(&answer).unwrap_or(Verdict::Unclear)))
                }
            });
        let runtime = Arc::clone(self);
        check.on_complete(move |verdict| {
            let is_lost = match verdict {
                Ok(Verdict::Alive { incarnation }) => runtime.is_replaced(worker, *incarnation),
                // If it was replaced while it was asked, the present process is alive.
                Ok(Verdict::Dead) => runtime.lose(worker, asked),
                Ok(Verdict::Unclear) | Err(_) => false,
            };
            let mut checks = runtime
                .checks
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            checks.remove(&worker);
            drop(checks);
            promise.complete(Ok(is_lost));
        });
        found
    }

    /// Notes which process of a worker has answered. Returns whether the one known before has ended.
    fn is_replaced(self: &Arc<Self>, worker: WorkerId, incarnation: u64) -> bool {
        self.step(RunOn::AgentThread, |inner, now| {
            let known = inner.context.incarnation_of(worker);
            inner.context.heard_from(now, worker, incarnation);
            known.is_some_and(|known| known != incarnation)
        })
    }

    /// A worker's process has ended. Returns whether the worker is lost, which it is not if the agent is
    /// connected to a later process.
    pub(crate) fn lose(self: &Arc<Self>, worker: WorkerId, incarnation: Option<u64>) -> bool {
        let report = loop {
            // The agent is called without the lock. The step then checks that no message arrived in the meantime.
            let heard = self.lock().context.incarnation_of(worker);
            let connected = self.agent.incarnation_of(worker);
            let report = self.step(RunOn::AgentThread, |inner, now| {
                let context = &mut inner.context;
                context.process_ended(now, worker, incarnation, connected, heard)
            });
            if report != LossReport::Outdated {
                break report;
            }
        };
        match report {
            LossReport::Replaced | LossReport::Outdated => return false,
            LossReport::Lost { was_involved: true } => {
                let lost = self.worker(worker);
                log::warn!(
                    "{}: lost {lost}: its process has ended; its references are released",
                    self.agent.me()
                );
            }
            LossReport::Lost { .. } => {}
        }
        // Messages that the context has dropped are not retried.
        self.agent.abandon_retries(&self.retry_group, worker);
        true
    }
}

/// Whether a failed call may mean that the worker is lost.
pub(crate) fn may_mean_lost(error: &RpcError) -> bool {
    match error {
        RpcError::RetriesExhausted { last, .. } => may_mean_lost(last),
        RpcError::NotSent { cause, .. } => {
            !matches!(cause, NotSent::Injected | NotSent::Excluded(_))
        }
        RpcError::ConnectionLost { .. } | RpcError::NoSuchWorker { .. } => true,
        _ => false,
    }
}

/// The meaning of the answer to a liveness request.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Alive { incarnation: u64 },
    Dead,
    Unclear,
}

/// Interprets the answer of a worker; `None`: send the request again.
fn verdict(answer: &Result<Bytes, RpcError>) -> Option<Verdict> {
    match answer {
        Ok(bytes) if bytes.len() == 8 => Some(Verdict::Alive {
            incarnation: LittleEndian::read_u64(bytes),
        }),
        Err(RpcError::RetriesExhausted { last, .. }) => verdict(&Err((**last).clone())),
        Err(RpcError::NotSent {
            cause: NotSent::Connect(_),
            ..
        })
        | Err(RpcError::NoSuchWorker { .. }) => Some(Verdict::Dead),
        // This process is not a member, or the worker could not read that it is.
        Err(RpcError::NotSent {
            cause: NotSent::Excluded(_),
            ..
        }) => Some(Verdict::Unclear),
        // The agent may be able to connect again.
        Err(RpcError::ConnectionLost { .. } | RpcError::NotSent { .. }) => None,
        Ok(_) | Err(_) => Some(Verdict::Unclear),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rpc_agent::{CallSite, Outcome, WorkerInfo};

    use super::*;

    fn not_sent(cause: NotSent) -> RpcError {
        let to = WorkerInfo::new("worker1", 1).expect("a name");
        let function = "f".into();
        let call = Box::new(CallSite { to, function });
        RpcError::NotSent { call, cause }
    }

    /// A process that was replaced or left cannot reach the other workers, and its references to them stay.
    #[test]
    fn an_excluded_process_takes_no_other_worker_for_lost() {
        let lost = || Arc::new(io::Error::from(io::ErrorKind::ConnectionReset));
        for (cause, expected) in [
            (NotSent::Excluded("it was replaced".into()), false),
            (NotSent::Injected, false),
            (NotSent::Connect("refused".into()), true),
            (NotSent::ConnectionLost(lost()), true),
        ] {
            let error = not_sent(cause);
            assert_eq!(may_mean_lost(&error), expected, "{error}");
            let retried = RpcError::RetriesExhausted {
                max_retries: 1,
                attempts: 2,
                outcome: Outcome::NotExecuted,
                last: Box::new(error),
            };
            assert_eq!(may_mean_lost(&retried), expected, "{retried}");
        }
    }

    #[test]
    fn a_check_by_an_excluded_process_ends_without_a_loss() {
        let excluded = Err(not_sent(NotSent::Excluded("it was replaced".into())));
        assert!(matches!(verdict(&excluded), Some(Verdict::Unclear)));
    }
}
