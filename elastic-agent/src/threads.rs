//! What the crate's threads share.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Returns the CPU time of the calling thread. On a busy machine, the time on the clock is much longer.
#[cfg(feature = "launcher")]
pub(crate) fn thread_cpu_time() -> std::time::Duration {
    use rustix::time::{ClockId, clock_gettime};

    clock_gettime(ClockId::ThreadCPUTime)
        .try_into()
        .unwrap_or_default()
}

/// A thread that ends when it is told to. Dropping waits for that, so its owner tells it before.
#[derive(Debug)]
pub(crate) struct JoinedThread {
    name: &'static str,
    handle: Option<JoinHandle<()>>,
}

impl JoinedThread {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        name: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let handle = Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self {
            name,
            handle: Some(handle),
        })
    }

    /// Waits for its end, before it is dropped.
    pub(crate) fn join(&mut self) {
        if self.handle.take().is_some_and(|it| it.join().is_err()) {
            log::error!("thread {} panicked", self.name);
        }
    }
}

impl Drop for JoinedThread {
    fn drop(&mut self) {
        self.join();
    }
}

/// Locks what stays valid if a thread panics meanwhile: each change leaves it so.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
