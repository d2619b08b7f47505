//! What happens at a later time: the next attempt of a call with retries, and jobs of the program.
//!
//! When the next attempt is due is [`crate::retry`]'s decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::peer::{Peer, ServedCall};
use super::shared::Shared;
use crate::error::{NotSent, Outcome, RpcError};
use crate::future::{FutureMessage, Hint, Job, Promise, RpcFuture};
use crate::in_flight::CallId;
use crate::retry::{RetryOptions, RetryPolicy, Verdict};
use crate::worker::{Destination, WorkerId};

/// What is to be done at a later time.
pub(crate) enum Later {
    /// The next attempt of a call.
    Retry(Box<Retried>),
    /// A request that a test's fault holds up.
    Request {
        peer: Arc<Peer>,
        id: u64,
        function: Arc<str>,
        payload: Bytes,
        /// What is left to the call when it is sent; zero: no limit.
        timeout: Duration,
    },
    /// An answer that a test's fault holds up.
    Answer { call: ServedCall, payload: Bytes },
    /// Something of the program's, which runs on a thread of the pool.
    Job(Job),
}

/// A call with retries that is under way.
pub(crate) struct Retried {
    peer: Arc<Peer>,
    function: Arc<str>,
    payload: Bytes,
    policy: RetryPolicy,
    promise: Promise<Bytes>,
    attempts: u32,
    /// Of all attempts: one that was sent may have run.
    outcome: Outcome,
    began: Instant,
    /// How often its peer had been given up when it began.
    times_given_up: u64,
}

impl Retried {
    fn is_given_up(&self) -> bool {
        self.peer.times_given_up() != self.times_given_up
    }

    /// The error of the last attempt as that of the whole call: when an earlier one may have run, it does
    /// not say that the function did not.
    fn of_all_attempts(&self, error: RpcError) -> RpcError {
        if error.outcome() != Outcome::NotExecuted || self.outcome == Outcome::NotExecuted {
            return error;
        }
        let outcome = self.outcome;
        match error {
            RpcError::Shutdown { call, .. } => RpcError::Shutdown { call, outcome },
            RpcError::RetriesExhausted {
                max_retries,
                attempts,
                last,
                ..
            } => RpcError::RetriesExhausted {
                max_retries,
                attempts,
                outcome,
                last,
            },
            // It has no place for what is known of the others.
            last => RpcError::RetriesExhausted {
                max_retries: self.policy.max_retries,
                attempts: self.attempts,
                outcome,
                last: Box::new(last),
            },
        }
    }
}

impl Shared {
    pub(crate) fn call_with_retries(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        payload: Bytes,
        options: &RetryOptions,
    ) -> FutureMessage {
        let policy = match options.checked() {
            Ok(policy) => policy,
            Err(error) => return self.failed(RpcError::RetryOptions(error)),
        };
        let peer = match self.find(to) {
            Ok(peer) => peer,
            Err(error) => return self.failed(error),
        };
        let (promise, future) = RpcFuture::with_executor(self.executor(), Hint::NONE);
        self.activity.begin();
        self.attempt(Box::new(Retried {
            times_given_up: peer.times_given_up(),
            peer,
            function: function.into(),
            payload,
            policy,
            promise,
            attempts: 0,
            outcome: Outcome::NotExecuted,
            began: Instant::now(),
        }));
        future
    }

    fn attempt(self: &Arc<Self>, mut call: Box<Retried>) {
        call.attempts += 1;
        let timeout = call.policy.attempt_timeout;
        let attempt = self.call_peer(
            &call.peer,
            &call.function,
            call.payload.clone(),
            Some(timeout),
        );
        let shared = Arc::clone(self);
        attempt.on_complete(move |result| shared.after_attempt(call, result));
    }

    fn after_attempt(self: &Arc<Self>, mut call: Box<Retried>, result: &Result<Bytes, RpcError>) {
        let error = match result {
            Ok(payload) => return self.end_retried(*call, Ok(payload.clone())),
            Err(error) if !self.is_running() => {
                let error = call.of_all_attempts(error.clone());
                return self.end_retried(*call, Err(error));
            }
            Err(error) => error,
        };
        if error.outcome() != Outcome::NotExecuted {
            call.outcome = Outcome::Unknown;
        }
        log::debug!("{}: Send try {} failed: {error}", self.me, call.attempts);
        let now = Instant::now();
        match self
            .later
            .on_failure(&call.policy, call.attempts, call.began, now, error)
        {
            Verdict::GiveUp(error) => {
                if matches!(error, RpcError::RetriesExhausted { .. }) {
                    self.metrics.retries_exhausted();
                }
                let error = call.of_all_attempts(error);
                self.end_retried(*call, Err(error));
            }
            Verdict::Again { .. } if call.is_given_up() => {
                let last = error.clone();
                self.end_given_up(*call, last);
            }
            Verdict::Again { at } => {
                let peer = Arc::clone(&call.peer);
                let times_given_up = call.times_given_up;
                if let Err(Later::Retry(call)) = self.later.schedule(at, Later::Retry(call)) {
                    self.give_up_at_end(*call);
                } else if peer.times_given_up() != times_given_up {
                    // Just now: who gives up has not found this one.
                    self.end_given_up_retries(&peer);
                }
            }
        }
    }

    /// Ends the calls with retries to a worker that go on: those that wait for their next attempt now, the
    /// others when the present one has failed.
    pub(crate) fn give_up_retries(&self, worker: WorkerId) {
        if let Some(peer) = self.peer_by_id(worker.get()) {
            peer.give_up();
            self.end_given_up_retries(&peer);
        }
    }

    fn end_given_up_retries(&self, peer: &Arc<Peer>) {
        let is_meant = |later: &Later| match later {
            Later::Retry(call) => Arc::ptr_eq(&call.peer, peer) && call.is_given_up(),
            _ => false,
        };
        for later in self.later.take_where(is_meant) {
            if let Later::Retry(call) = later {
                let last = RpcError::NotSent {
                    call: peer.site(&call.function),
                    cause: NotSent::Connect("the worker was given up".into()),
                };
                self.end_given_up(*call, last);
            }
        }
    }

    fn end_given_up(&self, call: Retried, last: RpcError) {
        let error = RpcError::RetriesExhausted {
            max_retries: call.policy.max_retries,
            attempts: call.attempts,
            outcome: call.outcome,
            last: Box::new(last),
        };
        self.metrics.retries_exhausted();
        self.end_retried(call, Err(error));
    }

    fn end_retried(&self, call: Retried, result: Result<Bytes, RpcError>) {
        call.promise.complete(result);
        self.activity.end();
    }

    /// The agent ends before the next attempt.
    fn give_up_at_end(&self, call: Retried) {
        let error = self.shut_down(&call.peer, &call.function, call.outcome);
        self.end_retried(call, Err(error));
    }

    /// Has a job run at `at`, unless the agent has ended by then.
    pub(crate) fn run_at(&self, at: Instant, job: Job) {
        // What comes back is dropped, without a lock.
        let _ = self.later.schedule(at, Later::Job(job));
    }

    /// Sends what is due. On the retry thread.
    pub(crate) fn send_later(self: &Arc<Self>, later: Later) {
        match later {
            Later::Retry(call) => {
                self.metrics.retry_sent();
                self.attempt(call);
            }
            Later::Request {
                peer,
                id,
                function,
                payload,
                timeout,
            } => {
                let state = peer.lock();
                if state.in_flight.contains(CallId::from_wire(id)) {
                    self.send_request(&peer, state, id, &function, &payload, timeout, 1);
                }
            }
            Later::Answer { call, payload } => self.send_answer(&call, payload),
            Later::Job(job) => self.run_soon(job),
        }
    }

    /// What was still to be sent when the agent ended.
    pub(crate) fn drop_later(&self, later: Later) {
        match later {
            Later::Retry(call) => self.give_up_at_end(*call),
            // The call fails with all others of its peer.
            Later::Request { .. } | Later::Answer { .. } | Later::Job(_) => {}
        }
    }
}
