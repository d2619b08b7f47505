//! Calls with retries, and the retry thread, which reacts to failed attempts and makes the next ones when they are due.
//! It also hands over the agent's other delayed jobs.
//!
//! The answer of an attempt completes its call where it is read, like a call without retries. The thread has its inputs
//! from a channel and lets the [`Schedule`] decide, which no other thread uses. It runs no functions, and only the
//! callbacks and wakers that a future without an executor runs where it completes, which must not block. So a full pool
//! does not delay a deadline.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::{RecvTimeoutError, TryRecvError};

use super::driver::Driver;
use super::retry_inbox::{Attempts, Call, Input};
use crate::error::{NotSent, RpcError};
use crate::future::{FutureMessage, Job, RpcFuture, contained};
use crate::retry::{
    Due, Retried, RetryGroup, RetryMembership, RetryOptions, RetryState, Schedule, Verdict,
};
use crate::sync::Lock;
use crate::worker::{Destination, WorkerId};

/// Makes calls with retries on behalf of an agent.
pub(crate) struct Retrier {
    driver: Arc<Driver>,
    /// The seed of the next call's jitter.
    next_seed: AtomicU64,
    /// How many attempts wait for their time.
    waiting: AtomicUsize,
    thread: Lock<Option<JoinHandle<()>>>,
}

impl Retrier {
    /// `seed` is the seed of the jitter.
    pub(super) fn new(driver: &Arc<Driver>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            driver: Arc::clone(driver),
            next_seed: AtomicU64::new(seed),
            waiting: AtomicUsize::new(0),
            thread: Lock::default(),
        })
    }

    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        let this = Arc::clone(self);
        let run = move || this.run();
        let started = thread::Builder::new().name("rpc-retry".into()).spawn(run)?;
        *self.thread.lock() = Some(started);
        Ok(())
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
        let group = options.group.as_ref();
        self.attempt(Box::new(Retried {
            state: RetryState::new(options.clone(), Instant::now(), seed),
            membership: group.map(|group| RetryMembership::new(group, peer.info.id)),
            call: Attempts {
                peer,
                function: function.into(),
                payload,
                promise,
            },
        }));
        future
    }

    /// Ends the calls of the group to a worker. Calls that wait for their next attempt end now, the remaining calls
    /// when the present attempt has failed.
    pub(crate) fn abandon(&self, group: &RetryGroup, worker: WorkerId) {
        group.abandon(worker);
        // An agent that ends has failed its waiting calls.
        let _ = self.driver.retries.send(Input::Abandoned);
    }

    /// Returns how many attempts wait for their time.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Fails the calls that wait for their next attempt, drops the jobs that are not due, and joins the thread. Those that
    /// would wait from now on fail at once.
    pub(super) fn stop(self: &Arc<Self>) {
        let sender = self.driver.retries.sender.lock().take();
        drop(sender);
        let thread = self.thread.lock().take();
        match thread {
            // A destructor of the program may end the agent on the thread itself.
            Some(thread) if thread.thread().id() == thread::current().id() => {}
            Some(thread) => {
                if thread.join().is_err() {
                    log::error!("{}: the retry thread panicked", self.driver.me());
                }
            }
            None => self.run(),
        }
    }

    /// The life of the thread.
    fn run(self: &Arc<Self>) {
        let Some(inputs) = self.driver.retries.receiver.lock().take() else {
            return;
        };
        let mut schedule = Schedule::new();
        loop {
            let input = match schedule.next_at() {
                None => inputs.recv().map_err(RecvTimeoutError::from),
                // An input that has arrived is handled first: it may be the end of a call. `recv_deadline` yields
                // several times before it reads the clock, for each of the calls that are due.
                Some(at) if at <= Instant::now() => {
                    inputs.try_recv().map_err(|error| match error {
                        TryRecvError::Empty => RecvTimeoutError::Timeout,
                        TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                    })
                }
                Some(at) => inputs.recv_deadline(at),
            };
            // Destructors and injected faults are code of the program.
            match input {
                Ok(input) => contained("a retry", || self.take(&mut schedule, input)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(due) = schedule.pop_due(Instant::now()) {
                        self.publish_waiting(&schedule);
                        contained("a retry", || self.begin(due));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.publish_waiting(&schedule);
        }
        for due in schedule.take_all() {
            contained("a retry", || match due {
                Due::Attempt(call) => self.end_by_shutdown(*call),
                Due::Job(job) => drop(job),
            });
        }
        self.publish_waiting(&schedule);
    }

    fn publish_waiting(&self, schedule: &Schedule<Attempts, Job>) {
        self.waiting.store(schedule.attempts(), Ordering::Relaxed);
    }

    fn begin(self: &Arc<Self>, due: Due<Attempts, Job>) {
        match due {
            Due::Job(job) => job(),
            Due::Attempt(call) => {
                self.driver.metrics.calls.retries_sent.add(1);
                self.attempt(call);
            }
        }
    }

    fn take(&self, schedule: &mut Schedule<Attempts, Job>, input: Input) {
        match input {
            Input::Job { at, job } => schedule.add_job(at, job),
            Input::Failed { call, error } => {
                let (me, attempts) = (self.driver.me(), call.state.attempts());
                log::debug!("{me}: Send try {attempts} failed: {error}");
                if let Some((call, error)) = schedule.failed(call, error, Instant::now()) {
                    self.end(*call, Err(error));
                }
            }
            Input::Abandoned => {
                for call in schedule.take_abandoned() {
                    let last = RpcError::NotSent {
                        call: call.call.site(),
                        cause: NotSent::Connect("the worker was abandoned".into()),
                    };
                    let error = call.state.abandoned(last);
                    self.end(*call, Err(error));
                }
            }
        }
    }

    fn attempt(self: &Arc<Self>, mut call: Box<Call>) {
        let timeout = call.begin_attempt(Instant::now());
        let Attempts {
            peer,
            function,
            payload,
            ..
        } = &call.call;
        let attempt =
            self.driver
                .call_as(RpcFuture::new(), peer, function, payload.clone(), timeout);
        let this = Arc::clone(self);
        attempt.on_complete(move |result| this.after_attempt(call, result));
    }

    /// Called on the thread that has completed the attempt.
    fn after_attempt(&self, call: Box<Call>, result: &Result<Bytes, RpcError>) {
        let error = match result {
            Ok(payload) => {
                call.answered(Instant::now());
                return self.end(*call, Ok(payload.clone()));
            }
            Err(error) => error.clone(),
        };
        if let Err(Input::Failed { mut call, error }) =
            self.driver.retries.send(Input::Failed { call, error })
        {
            match call.after_failure(error, Instant::now()) {
                Verdict::GiveUp(error) => self.end(*call, Err(error)),
                Verdict::Again { .. } => self.end_by_shutdown(*call),
            }
        }
    }

    /// The agent ends before the next attempt.
    fn end_by_shutdown(&self, call: Call) {
        let error = call.state.shut_down(call.call.site());
        self.end(call, Err(error));
    }

    fn end(&self, call: Call, result: Result<Bytes, RpcError>) {
        let driver = &self.driver;
        if matches!(result, Err(RpcError::RetriesExhausted { .. })) {
            driver.metrics.calls.retries_exhausted.add(1);
        }
        call.call.promise.complete(result);
        driver.activity.end();
    }
}
