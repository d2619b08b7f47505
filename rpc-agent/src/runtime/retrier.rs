//! Calls with retries: makes each attempt, and has it repeated when it is due.
//!
//! What follows from a failure is decided by [`RetryState`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;

use super::driver::Driver;
use super::peers::PeerEntry;
use crate::error::{CallSite, NotSent, RpcError};
use crate::future::{FutureMessage, Promise};
use crate::retry::{RetryGroup, RetryMembership, RetryOptions, RetryState, Verdict};
use crate::sync::Lock;
use crate::worker::{Destination, WorkerId};

/// Makes calls with retries on behalf of an agent.
pub(crate) struct Retrier {
    driver: Arc<Driver>,
    waiting: Lock<Waiting>,
    /// Of the next call's jitter, by which it is known.
    next_seed: AtomicU64,
}

/// The calls whose next attempt is not due yet.
#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, Box<Retried>>,
    is_stopped: bool,
}

/// A call with retries that has no result yet.
struct Retried {
    seed: u64,
    peer: Arc<PeerEntry>,
    function: Arc<str>,
    payload: Bytes,
    promise: Promise<Bytes>,
    state: RetryState,
    /// `None`: in no group, so never abandoned.
    membership: Option<RetryMembership>,
}

impl Retrier {
    /// `seed` is that of the jitter.
    pub(super) fn new(driver: &Arc<Driver>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            driver: Arc::clone(driver),
            waiting: Lock::default(),
            next_seed: AtomicU64::new(seed),
        })
    }

    /// Makes a call until it succeeds.
    pub(crate) fn call(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        payload: Bytes,
        options: &RetryOptions,
    ) -> FutureMessage {
        let driver = &self.driver;
        if let Err(error) = options.validate() {
            return driver.failed(RpcError::RetryOptions(error));
        }
        let peer = match driver.find(to) {
            Ok(peer) => peer,
            Err(error) => return driver.failed(error),
        };
        let (promise, future) = driver.promise();
        driver.activity.begin();
        let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
        self.attempt(Box::new(Retried {
            seed,
            membership: options
                .group
                .as_ref()
                .map(|group| RetryMembership::new(group, peer.info.id)),
            peer,
            function: function.into(),
            payload,
            promise,
            state: RetryState::new(options.clone(), Instant::now(), seed),
        }));
        future
    }

    /// Ends the calls of the group to a worker: those that wait for their next attempt now, the others when the present
    /// attempt has failed.
    pub(crate) fn abandon(&self, group: &RetryGroup, worker: WorkerId) {
        group.abandon(worker);
        self.end_abandoned();
    }

    /// How many attempts wait for their time.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().calls.len()
    }

    /// Fails the calls that wait for their next attempt, and those that would from now on.
    pub(super) fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_stopped = true;
        let calls = std::mem::take(&mut waiting.calls);
        drop(waiting);
        for call in calls.into_values() {
            self.end_by_shutdown(*call);
        }
    }

    fn attempt(self: &Arc<Self>, mut call: Box<Retried>) {
        let membership = call.membership.as_ref();
        let measured = membership.map(RetryMembership::measured_timeout);
        let timeout = call.state.begin_attempt(Instant::now(), measured);
        let attempt =
            self.driver
                .call_peer(&call.peer, &call.function, call.payload.clone(), timeout);
        let this = Arc::clone(self);
        attempt.on_complete(move |result| this.after_attempt(call, result));
    }

    fn after_attempt(self: &Arc<Self>, mut call: Box<Retried>, result: &Result<Bytes, RpcError>) {
        let driver = &self.driver;
        let error = match result {
            Ok(payload) => {
                if let Some(membership) = &call.membership
                    && let Some(took) = call.state.answered(Instant::now())
                {
                    membership.answered_after(took);
                }
                return self.end(*call, Ok(payload.clone()));
            }
            Err(error) => error,
        };
        let (me, attempts) = (driver.me(), call.state.attempts());
        log::debug!("{me}: Send try {attempts} failed: {error}");
        match call.state.on_failure(error, Instant::now()) {
            Verdict::GiveUp(error) => self.end(*call, Err(error)),
            Verdict::Again { .. } if call.is_abandoned() => {
                let error = call.state.abandoned(error.clone());
                self.end(*call, Err(error));
            }
            Verdict::Again { at } => self.attempt_at(at, call),
        }
    }

    fn attempt_at(self: &Arc<Self>, at: Instant, call: Box<Retried>) {
        let (seed, membership) = (call.seed, call.membership.clone());
        let mut waiting = self.waiting.lock();
        if waiting.is_stopped {
            drop(waiting);
            return self.end_by_shutdown(*call);
        }
        waiting.calls.insert(seed, call);
        drop(waiting);
        let this = Arc::clone(self);
        let attempt = move || {
            let call = this.waiting.lock().calls.remove(&seed);
            // Unless the call has been abandoned.
            if let Some(call) = call {
                this.driver.metrics.calls.retries_sent.add(1);
                this.attempt(call);
            }
        };
        self.driver.run_at(at, Box::new(attempt));
        if membership.is_some_and(|membership| membership.is_abandoned()) {
            // Abandoned just now, before this attempt could be found.
            self.end_abandoned();
        }
    }

    fn end_abandoned(&self) {
        let is_abandoned = |_: &u64, call: &mut Box<Retried>| call.is_abandoned();
        let abandoned: Vec<_> = {
            let mut waiting = self.waiting.lock();
            waiting.calls.extract_if(is_abandoned).collect()
        };
        for (_, call) in abandoned {
            let last = RpcError::NotSent {
                call: call.site(),
                cause: NotSent::Connect("the worker was abandoned".into()),
            };
            let error = call.state.abandoned(last);
            self.end(*call, Err(error));
        }
    }

    /// The agent ends before the next attempt.
    fn end_by_shutdown(&self, call: Retried) {
        let error = call.state.shut_down(call.site());
        self.end(call, Err(error));
    }

    fn end(&self, call: Retried, result: Result<Bytes, RpcError>) {
        let driver = &self.driver;
        if matches!(result, Err(RpcError::RetriesExhausted { .. })) {
            driver.metrics.calls.retries_exhausted.add(1);
        }
        call.promise.complete(result);
        driver.activity.end();
    }
}

impl Retried {
    fn is_abandoned(&self) -> bool {
        let membership = self.membership.as_ref();
        membership.is_some_and(RetryMembership::is_abandoned)
    }

    fn site(&self) -> Box<CallSite> {
        CallSite::of(&self.peer.info, Arc::clone(&self.function))
    }
}
