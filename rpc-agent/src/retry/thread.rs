//! The thread that sleeps until something is to be sent again, and sends it.
//!
//! Decides nothing: what is due is the queue's to know, and what a record is its owner's. The lock is
//! held for bookkeeping only, never while something is sent.

use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use c10d_socket::Deadline;

use super::options::RetryPolicy;
use super::queue::RetryQueue;
use super::verdict::Verdict;
use crate::error::RpcError;
use crate::future::contained;
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Arc, Monitor, Mutex};

const THREAD: &str = "rpc-retry";

/// Owns the thread; dropping it ends and joins it, and drops what waits.
#[derive(Debug)]
pub(crate) struct RetryThread<T> {
    shared: Arc<Monitor<Shared<T>>>,
    thread_id: ThreadId,
    handle: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<T> {
    queue: RetryQueue<T>,
    is_stopped: bool,
}

impl<T: Send + 'static> RetryThread<T> {
    /// Starts the thread, on which `send` is called with each record when it is due. A panic of `send` is
    /// logged, and costs that record only. `seed` is for the jitter.
    pub(crate) fn start(seed: u64, send: impl Fn(T) + Send + 'static) -> io::Result<Self> {
        Self::start_with_batches(seed, move |batch: Vec<T>| {
            for record in batch {
                contained("sending a call again", || send(record));
            }
        })
    }

    /// `send_batch` gets what is due together at once.
    pub(super) fn start_with_batches(
        seed: u64,
        send_batch: impl Fn(Vec<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Monitor::new(Shared {
            queue: RetryQueue::new(Instant::now(), seed),
            is_stopped: false,
        }));
        let handle = thread::Builder::new().name(THREAD.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&shared, send_batch)
        })?;
        Ok(Self {
            shared,
            thread_id: handle.thread().id(),
            handle: Mutex::new(Some(handle)),
        })
    }
}

impl<T> RetryThread<T> {
    /// What follows from the failure of attempt number `failed_attempts` of a call that began at `began`.
    pub(crate) fn on_failure(
        &self,
        policy: &RetryPolicy,
        failed_attempts: u32,
        began: Instant,
        now: Instant,
        error: &RpcError,
    ) -> Verdict {
        let mut shared = self.shared.lock();
        shared
            .queue
            .on_failure(policy, failed_attempts, began, now, error)
    }

    /// Has the record sent at `at`. After [`RetryThread::stop`] it comes back.
    pub(crate) fn schedule(&self, at: Instant, record: T) -> Result<(), T> {
        let mut shared = self.shared.lock();
        if shared.is_stopped {
            return Err(record);
        }
        let is_first = shared.queue.schedule(at, record);
        drop(shared);
        // Otherwise the thread wakes early enough as it is.
        if is_first {
            self.shared.notify_all();
        }
        Ok(())
    }

    /// Takes out the records that are meant, and that wait. Those that are being sent are not among them.
    pub(crate) fn take_where(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        self.shared.lock().queue.take_where(is_meant)
    }

    /// How many records wait.
    pub(crate) fn len(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Ends the thread, and gives back what will not be sent: to the first caller everything, to others
    /// nothing. Blocks until the thread has ended, which is after the `send` that it is in, and those of
    /// the same batch; called from within `send` it does not wait.
    pub(crate) fn stop(&self) -> Vec<T> {
        // Changed under the lock: the thread either sees it before it sleeps, or is woken.
        let mut shared = self.shared.lock();
        shared.is_stopped = true;
        let records = shared.queue.drain();
        drop(shared);
        self.shared.notify_all();

        if thread::current().id() != self.thread_id {
            // Held while joining, so that who comes second waits too. The thread itself never takes it.
            let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(handle) = handle.take()
                && handle.join().is_err()
            {
                log::error!("the thread {THREAD} panicked");
            }
        }
        records
    }
}

impl<T> Drop for RetryThread<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run<T>(shared: &Monitor<Shared<T>>, send_batch: impl Fn(Vec<T>)) {
    while let Some(batch) = next_batch(shared) {
        send_batch(batch);
    }
}

/// Sleeps until something is due. `None`: the end.
fn next_batch<T>(monitor: &Monitor<Shared<T>>) -> Option<Vec<T>> {
    let mut shared = monitor.lock();
    while !shared.is_stopped {
        let now = Instant::now();
        let batch = shared.queue.due(now);
        if !batch.is_empty() {
            return Some(batch);
        }
        let timeout = shared.queue.poll_timeout(now);
        let deadline = timeout.map_or(Deadline::NEVER, |timeout| Deadline::after(now, timeout));
        (shared, _) = monitor.wait_until(shared, deadline);
    }
    None
}
