//! Tools that the crate's threads share.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::{Builder, JoinHandle};

use c10d_socket::{Cancel, Watch};
use crossbeam_channel::{Receiver, Sender, bounded};

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
    /// An error of the operating system if it has no thread left.
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

/// Locks data that stays valid even if a thread panics with the lock, because each single change leaves
/// it valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A channel that is ready when a cancel has ended all waits.
#[derive(Debug)]
pub(crate) struct Cancelled<'c> {
    _watch: Watch<'c>,
    /// Keeps the channel open, because a closed channel is always ready.
    _bell: Arc<Bell>,
    pub(crate) receiver: Receiver<()>,
}

impl<'c> Cancelled<'c> {
    /// Creates a waiter for a cancel without a check, which only the end of the cancel wakes.
    pub(crate) fn of(cancel: &'c Cancel) -> Self {
        let (bell, receiver) = bounded(1);
        let bell = Arc::new(Bell(bell));
        let mut watch = cancel.watch();
        if watch.ask(|| Arc::clone(&bell).into()) {
            bell.wake_by_ref();
        }
        Self {
            _watch: watch,
            _bell: bell,
            receiver,
        }
    }
}

#[derive(Debug)]
struct Bell(Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // One wake-up is enough.
        let _ = self.0.try_send(());
    }
}
