//! The state that the handles of one future share: its result, callbacks, wakers and waiting threads.
//!
//! Callbacks, wakers and their destructors run without a lock.

use std::task::Waker;

use c10d_socket::{Cancel, Deadline, OtherProcess, Process};
use smallvec::SmallVec;

use super::panic::contained;
use crate::error::RpcError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Monitor, waker};

/// A task that runs once and catches its panics.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs callbacks, and lets waiting threads read their own answers.
pub(crate) trait Executor: Send + Sync {
    /// Runs the callbacks of one completion, on any thread, now or later. Dropping the job fails the
    /// futures that depend on it.
    fn execute(&self, job: Job);

    /// Called by a thread that waits for the future with this hint. May do useful work first, such as
    /// reading the answer, until `is_complete` or the deadline; must then call `block`, which returns
    /// upon completion or at the deadline.
    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    );
}

/// Identifies the source of a future's result for the executor. Only the executor interprets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint(pub(crate) u64);

impl Hint {
    /// The result does not arrive over a connection: the waiting thread only blocks.
    pub(crate) const NONE: Self = Self(u64::MAX);
}

pub(super) struct Slot<T> {
    state: Monitor<State<T>>,
    /// Set together with the result and never cleared. Allows checks without the lock.
    is_complete: AtomicBool,
    executor: Option<Arc<dyn Executor>>,
    hint: Hint,
    /// The one with the threads that complete it.
    process: Process,
}

struct State<T> {
    result: Option<Result<T, RpcError>>,
    /// The callbacks. Each job holds the slot: a reference cycle until completion takes the jobs out.
    jobs: SmallVec<[Job; 1]>,
    wakers: SmallVec<[(WakerKey, Waker); 1]>,
    wakers_seen: u64,
    /// Number of blocked threads. Notifying a condition variable costs a system call even if it is 0.
    waiting: usize,
}

/// Identifies the waker of one handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WakerKey(u64);

impl<T> Slot<T> {
    /// Creates a slot with this result; `None` for a pending future.
    pub(super) fn new(
        result: Option<Result<T, RpcError>>,
        executor: Option<Arc<dyn Executor>>,
        hint: Hint,
    ) -> Self {
        Self {
            is_complete: AtomicBool::new(result.is_some()),
            state: Monitor::new(State {
                result,
                jobs: SmallVec::new(),
                wakers: SmallVec::new(),
                wakers_seen: 0,
                waiting: 0,
            }),
            executor,
            hint,
            process: Process::this(),
        }
    }

    pub(super) fn executor(&self) -> Option<Arc<dyn Executor>> {
        self.executor.clone().filter(|_| self.process.is_this())
    }

    /// In a forked child, a future has failed: the threads that complete it do not exist, and its lock may be held.
    fn check_process(&self) -> Result<(), OtherProcess> {
        self.process.check()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire) || self.check_process().is_err()
    }

    /// Returns `true` if the future was pending. Otherwise drops `result`.
    pub(super) fn complete(&self, result: Result<T, RpcError>) -> bool {
        if self.check_process().is_err() {
            return false;
        }
        let mut state = self.state.lock();
        if state.result.is_some() {
            drop(state);
            drop(result);
            return false;
        }
        state.result = Some(result);
        self.is_complete.store(true, Ordering::Release);
        let mut jobs = std::mem::take(&mut state.jobs);
        let wakers = std::mem::take(&mut state.wakers);
        let is_awaited = state.waiting > 0;
        drop(state);

        if is_awaited {
            self.state.notify_all();
        }
        for (_, waker) in wakers {
            contained("a waker", || waker.wake());
        }
        let Some(last) = jobs.pop() else {
            return true;
        };
        let job = if jobs.is_empty() {
            last
        } else {
            jobs.push(last);
            Box::new(|| jobs.into_iter().for_each(|job| job()))
        };
        match &self.executor {
            Some(executor) => executor.execute(job),
            None => job(),
        }
        true
    }

    /// Removes the waker of a handle that was dropped.
    pub(super) fn remove_waker(&self, key: WakerKey) {
        if self.check_process().is_err() {
            return;
        }
        let removed = {
            let wakers = &mut self.state.lock().wakers;
            let position = wakers.iter().position(|(of, _)| *of == key);
            // Wakers are called in order of registration.
            position.map(|position| wakers.remove(position))
        };
        drop(removed);
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    pub(super) fn describe(&self) -> &'static str {
        if self.check_process().is_err() {
            return "error";
        }
        match &self.state.lock().result {
            None => "pending",
            Some(Ok(_)) => "value",
            Some(Err(_)) => "error",
        }
    }
}

impl<T: Clone + Send + 'static> Slot<T> {
    pub(super) fn try_get(&self) -> Option<Result<T, RpcError>> {
        if let Err(error) = self.check_process() {
            return Some(Err(error.into()));
        }
        if !self.is_complete() {
            return None;
        }
        self.state.lock().result.clone()
    }

    /// Blocks until completion; `None` if the deadline passes first, or `cancel` interrupts the wait.
    pub(super) fn wait_until(
        self: &Arc<Self>,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Option<Result<T, RpcError>> {
        if self.is_complete() {
            return self.try_get();
        }
        match &self.executor {
            Some(executor) => {
                // A thread that reads from a socket does not notice a cancel.
                let hint = if cancel.is_never() {
                    self.hint
                } else {
                    Hint::NONE
                };
                executor.drive(&|| self.is_complete(), deadline, hint, &mut || {
                    self.block(deadline, cancel)
                })
            }
            None => self.block(deadline, cancel),
        }
        self.try_get()
    }

    fn block(self: &Arc<Self>, deadline: Deadline, cancel: &Cancel) {
        let waker = || {
            let slot = Arc::clone(self);
            waker(move || slot.state.ring())
        };
        let mut waits = 0;
        let waited = self.state.wait_with((deadline, cancel), waker, |state| {
            state.waiting += 1 - waits;
            waits = 1;
            state.result.is_some()
        });
        match waited {
            Ok(mut state) => state.waiting -= 1,
            Err(_) if self.check_process().is_err() => {}
            Err(_) => self.state.lock().waiting -= 1,
        }
    }

    /// Returns the result, or registers `waker`. The handle keeps `key` between polls, so that a later waker of the
    /// same handle replaces its earlier waker.
    pub(super) fn poll(
        &self,
        key: &mut Option<WakerKey>,
        waker: &Waker,
    ) -> Option<Result<T, RpcError>> {
        if let Some(result) = self.try_get() {
            return Some(result);
        }
        let mut waker = waker.clone();
        let mut state = self.state.lock();
        if state.result.is_some() {
            let result = state.result.clone();
            drop(state);
            return result;
        }
        let registered = key.and_then(|key| state.wakers.iter_mut().find(|(of, _)| *of == key));
        if let Some((_, registered)) = registered {
            // The replaced waker is dropped below, without the lock.
            std::mem::swap(registered, &mut waker);
        } else {
            let new = WakerKey(state.wakers_seen);
            state.wakers_seen += 1;
            state.wakers.push((new, waker));
            *key = Some(new);
            return None;
        }
        drop(state);
        drop(waker);
        None
    }

    /// Runs `callback` with the result: at once if the future is complete, otherwise upon completion on
    /// the executor.
    pub(super) fn when_complete(
        self: &Arc<Self>,
        callback: impl FnOnce(Result<T, RpcError>) + Send + 'static,
    ) {
        if self.is_complete() {
            self.run(callback);
            return;
        }
        // Capturing the slot makes callback and job one allocation.
        let slot = Arc::clone(self);
        let job: Job = Box::new(move || slot.run(callback));
        let mut state = self.state.lock();
        if state.result.is_none() {
            state.jobs.push(job);
            return;
        }
        drop(state);
        job();
    }

    fn run(&self, callback: impl FnOnce(Result<T, RpcError>)) {
        if let Some(result) = self.try_get() {
            contained("a callback of a future", || callback(result));
        }
    }
}
