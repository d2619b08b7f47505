//! The thread that sleeps until a value is due.

use std::io;
use std::time::Instant;

use c10d_socket::Deadline;

use super::queue::TimerQueue;
use crate::future::contained;
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Arc, Lock, Monitor};

/// Values that wait for their time, and the thread that waits for them. Dropping it ends and joins the
/// thread, and drops the values.
#[derive(Debug)]
pub(crate) struct TimerThread<T> {
    name: &'static str,
    shared: Arc<Monitor<Shared<T>>>,
    handle: Lock<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<T> {
    queue: TimerQueue<T>,
    is_stopped: bool,
    /// The thread itself, once it runs.
    thread: Option<ThreadId>,
}

impl<T: Send + 'static> TimerThread<T> {
    /// A timer whose thread will have this name. Values can be scheduled before the start.
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            shared: Arc::new(Monitor::new(Shared {
                queue: TimerQueue::new(Instant::now()),
                is_stopped: false,
                thread: None,
            })),
            handle: Lock::new(None),
        }
    }

    /// Starts the thread, which calls `on_due` with each value when it is due, without a lock. A panic of
    /// `on_due` is logged and costs that value only. To be called once.
    ///
    /// # Errors
    /// When the system has no thread.
    pub(crate) fn start(&self, on_due: impl Fn(T) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let what = format!("a callback of the timer {}", self.name);
        let mut handle = self.handle.lock();
        let thread = thread::Builder::new().name(self.name.to_owned());
        *handle = Some(thread.spawn(move || {
            shared.lock().thread = Some(thread::current().id());
            while let Some(batch) = next_batch(&shared) {
                for value in batch {
                    contained(&what, || on_due(value));
                }
            }
        })?);
        Ok(())
    }
}

impl<T> TimerThread<T> {
    /// Hands the value to the callback at `at`. After [`TimerThread::stop`] it returns the value.
    pub(crate) fn schedule(&self, at: Instant, value: T) -> Result<(), T> {
        let mut shared = self.shared.lock();
        if shared.is_stopped {
            return Err(value);
        }
        let is_first = shared.queue.schedule(at, value);
        drop(shared);
        // Otherwise the thread wakes early enough as it is.
        if is_first {
            self.shared.notify_all();
        }
        Ok(())
    }

    /// Takes out the values that wait and for which `is_meant` is true. Those that are with the callback
    /// are not among them. `is_meant` runs under the lock.
    pub(crate) fn take_where(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        self.shared.lock().queue.take_where(is_meant)
    }

    /// How many values wait.
    pub(crate) fn len(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Ends the thread, and returns the values that are not due yet: to the first caller all, to others
    /// none. Blocks until the thread has ended, after the callbacks of the values that were due together;
    /// called by the callback itself it does not wait.
    pub(crate) fn stop(&self) -> Vec<T> {
        // Changed under the lock: the thread either sees it before it sleeps, or is woken.
        let mut shared = self.shared.lock();
        shared.is_stopped = true;
        let is_own = shared.thread == Some(thread::current().id());
        let values = shared.queue.drain();
        drop(shared);
        self.shared.notify_all();

        if !is_own {
            // Held while joining, so that a second caller waits too. The thread itself never takes it.
            let mut handle = self.handle.lock();
            if let Some(handle) = handle.take()
                && handle.join().is_err()
            {
                log::error!("the thread {} panicked", self.name);
            }
        }
        values
    }
}

impl<T> Drop for TimerThread<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sleeps until a value is due. `None` after the stop.
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
