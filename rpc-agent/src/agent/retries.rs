//! Calls with retries, jobs at a later time, and messages that injected faults delay.
//!
//! When the next attempt is due is [`crate::retry`]'s decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::peer::{Peer, ServedCall};
use super::shared::Shared;
use crate::error::{NotSent, RpcError};
use crate::future::{FutureMessage, Hint, Job, Promise, RpcFuture};
use crate::in_flight::CallId;
use crate::retry::{RetryGroup, RetryMembership, RetryOptions, RetryState, Verdict};
use crate::worker::{Destination, WorkerId};

/// Work of the general timer.
pub(crate) enum Delayed {
    /// A request that an injected fault delays.
    Request {
        peer: Arc<Peer>,
        id: u64,
        function: Arc<str>,
        payload: Bytes,
        /// What is left to the call when it is sent; zero: no limit.
        timeout: Duration,
    },
    /// An answer that an injected fault delays.
    Answer { call: ServedCall, payload: Bytes },
    /// A job of the program, which runs on a thread of the pool.
    Job(Job),
}

/// A call with retries that is under way.
pub(crate) struct RetriedCall {
    peer: Arc<Peer>,
    function: Arc<str>,
    payload: Bytes,
    promise: Promise<Bytes>,
    state: RetryState,
    /// `None`: in no group, so never abandoned.
    membership: Option<RetryMembership>,
}

impl RetriedCall {
    fn is_abandoned(&self) -> bool {
        self.membership
            .as_ref()
            .is_some_and(RetryMembership::is_abandoned)
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
        let seed = self.retry_seed.fetch_add(1, Ordering::Relaxed);
        let worker = peer.info.id;
        self.attempt(Box::new(RetriedCall {
            peer,
            function: function.into(),
            payload,
            promise,
            state: RetryState::new(policy, Instant::now(), seed),
            membership: options
                .group()
                .map(|group| RetryMembership::new(group, worker)),
        }));
        future
    }

    fn attempt(self: &Arc<Self>, mut call: Box<RetriedCall>) {
        let timeout = call.state.begin_attempt();
        let attempt = self.call_peer(
            &call.peer,
            &call.function,
            call.payload.clone(),
            Some(timeout),
        );
        let shared = Arc::clone(self);
        attempt.on_complete(move |result| shared.after_attempt(call, result));
    }

    fn after_attempt(
        self: &Arc<Self>,
        mut call: Box<RetriedCall>,
        result: &Result<Bytes, RpcError>,
    ) {
        let error = match result {
            Ok(payload) => return self.end_retried(*call, Ok(payload.clone())),
            Err(error) => error,
        };
        // The words of PyTorch.
        let attempts = call.state.attempts();
        log::debug!("{}: Send try {attempts} failed: {error}", self.me);
        match call.state.on_failure(error, Instant::now()) {
            Verdict::GiveUp(error) => self.end_retried(*call, Err(error)),
            Verdict::Again { .. } if call.is_abandoned() => {
                self.end_abandoned(*call, error.clone());
            }
            Verdict::Again { at } => {
                let membership = call.membership.clone();
                if let Err(call) = self.retry.schedule(at, call) {
                    self.end_at_shutdown(*call);
                } else if membership.is_some_and(|membership| membership.is_abandoned()) {
                    // Abandoned just now, before this attempt could be found.
                    self.end_abandoned_attempts();
                }
            }
        }
    }

    /// Ends the calls of the group to a worker: those that wait for their next attempt now, the others
    /// when the present attempt has failed.
    pub(crate) fn abandon_retries(&self, group: &RetryGroup, worker: WorkerId) {
        group.abandon(worker);
        self.end_abandoned_attempts();
    }

    fn end_abandoned_attempts(&self) {
        for call in self.retry.take_where(|call| call.is_abandoned()) {
            let last = RpcError::NotSent {
                call: call.peer.site(&call.function),
                cause: NotSent::Connect("the worker was abandoned".into()),
            };
            self.end_abandoned(*call, last);
        }
    }

    fn end_abandoned(&self, call: RetriedCall, last: RpcError) {
        let error = call.state.abandoned(last);
        self.end_retried(call, Err(error));
    }

    fn end_retried(&self, call: RetriedCall, result: Result<Bytes, RpcError>) {
        if let Err(RpcError::RetriesExhausted { .. }) = result {
            self.metrics.retries_exhausted();
        }
        call.promise.complete(result);
        self.activity.end();
    }

    /// The agent ends before the next attempt.
    pub(crate) fn end_at_shutdown(&self, call: RetriedCall) {
        let error = call.state.shut_down(call.peer.site(&call.function));
        self.end_retried(call, Err(error));
    }

    /// Sends an attempt that is due. On the retry thread.
    pub(crate) fn send_retry(self: &Arc<Self>, call: Box<RetriedCall>) {
        self.metrics.retry_sent();
        self.attempt(call);
    }

    /// Runs a job at `at`, unless the agent has ended by then.
    pub(crate) fn run_at(&self, at: Instant, job: Job) {
        // After a stop the job is dropped, without a lock.
        let _ = self.timer.schedule(at, Delayed::Job(job));
    }

    /// Does what is due. On the thread of the timer.
    pub(crate) fn on_timer(self: &Arc<Self>, delayed: Delayed) {
        match delayed {
            Delayed::Request {
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
            Delayed::Answer { call, payload } => self.send_answer(&call, payload),
            Delayed::Job(job) => self.run_soon(job),
        }
    }

    /// Ends both timers. Delayed messages and jobs are dropped: their calls fail with all others.
    pub(crate) fn stop_timers(&self) {
        for call in self.retry.stop() {
            self.end_at_shutdown(*call);
        }
        drop(self.timer.stop());
    }
}
