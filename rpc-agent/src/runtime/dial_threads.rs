//! The threads that make connections.
//!
//! Looking up a name, connecting and the handshake may each take seconds, so they happen on threads of their own:
//! `rpc-dial-1` and so on, started when they are needed, ended when idle. What an attempt does is `dialer`'s.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::peers::PeerEntry;

/// More attempts at a time than this wait for each other.
const THREADS_MAX: usize = 8;

/// A thread that had nothing to do for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Makes one attempt to connect. Does not panic.
pub(super) trait Attempt: Send + Sync {
    fn attempt(&self, peer: &Arc<PeerEntry>, dial: u64);
}

/// The attempts that have not begun, and the threads that make them.
#[derive(Default)]
pub(crate) struct DialThreads {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` before the start and after the end: then nothing begins.
    attempts: Option<Arc<dyn Attempt>>,
    due: VecDeque<(Arc<PeerEntry>, u64)>,
    threads: usize,
    idle: usize,
    handles: Vec<JoinHandle<()>>,
    threads_started: u64,
}

impl DialThreads {
    /// Starts no thread yet.
    pub(super) fn start(&self, attempts: Arc<dyn Attempt>) {
        self.lock().attempts = Some(attempts);
    }

    /// Has an attempt made, for the dial of this number.
    pub(super) fn begin(self: &Arc<Self>, peer: Arc<PeerEntry>, dial: u64) {
        let mut state = self.lock();
        if state.attempts.is_none() {
            return;
        }
        state.due.push_back((peer, dial));
        if state.idle >= state.due.len() || state.threads == THREADS_MAX {
            drop(state);
            self.changed.notify_one();
            return;
        }
        state.threads_started += 1;
        let threads = Arc::clone(self);
        // Under the lock, so that `stop` finds every thread that lives.
        let spawned = thread::Builder::new()
            .name(format!("rpc-dial-{}", state.threads_started))
            .spawn(move || threads.run());
        match spawned {
            Ok(handle) => {
                state.threads += 1;
                state.handles.retain(|handle| !handle.is_finished());
                state.handles.push(handle);
            }
            Err(error) => log::error!("cannot start a thread that connects: {error}"),
        }
    }

    /// Ends the threads and joins them. The caller has ended their attempts.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        let attempts = state.attempts.take();
        let due = std::mem::take(&mut state.due);
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        drop((attempts, due));
        self.changed.notify_all();
        for handle in handles {
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                log::error!("a thread that connects panicked");
            }
        }
    }

    fn run(self: &Arc<Self>) {
        let mut state = self.lock();
        while let Some(attempts) = state.attempts.clone() {
            if let Some((peer, dial)) = state.due.pop_front() {
                drop(state);
                attempts.attempt(&peer, dial);
                drop((peer, attempts));
                state = self.lock();
                continue;
            }
            drop(attempts);
            state.idle += 1;
            let (after, timeout) = self
                .changed
                .wait_timeout(state, IDLE_MAX)
                .unwrap_or_else(PoisonError::into_inner);
            state = after;
            state.idle -= 1;
            if timeout.timed_out() && state.due.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
