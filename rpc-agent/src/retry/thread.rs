//! The thread that sleeps until the next attempt of a call is due, and sends it.

use std::io;
use std::time::Instant;

use crate::timer::TimerThread;

/// The attempts to come of all calls with retries, in order of time, and the thread `rpc-retry` that sends
/// them. Dropping it ends and joins the thread.
#[derive(Debug)]
pub(crate) struct RetryThread<A>(TimerThread<A>);

impl<A: Send + 'static> RetryThread<A> {
    /// No thread yet.
    pub(crate) fn new() -> Self {
        Self(TimerThread::new("rpc-retry"))
    }

    /// Starts the thread, on which `send` is called with each attempt when it is due.
    ///
    /// # Errors
    /// When the system has no thread.
    pub(crate) fn start(&self, send: impl Fn(A) + Send + 'static) -> io::Result<()> {
        self.0.start(send)
    }
}

impl<A> RetryThread<A> {
    /// Sends the attempt at `at`. After [`RetryThread::stop`] it returns the attempt.
    pub(crate) fn schedule(&self, at: Instant, attempt: A) -> Result<(), A> {
        self.0.schedule(at, attempt)
    }

    /// Takes out the attempts that wait and for which `is_meant` is true.
    pub(crate) fn take_where(&self, is_meant: impl Fn(&A) -> bool) -> Vec<A> {
        self.0.take_where(is_meant)
    }

    /// How many attempts wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Ends the thread, and returns the attempts that are not due yet. Waits for an attempt that is being
    /// sent, unless that attempt calls this.
    pub(crate) fn stop(&self) -> Vec<A> {
        self.0.stop()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn attempts_are_sent_on_the_retry_thread_in_order_of_time() {
        let (sender, sent) = mpsc::channel();
        let retry = RetryThread::new();
        let now = Instant::now();
        retry.schedule(now, 2).unwrap();
        retry.schedule(now - Duration::from_millis(1), 1).unwrap();
        retry
            .start(move |attempt| {
                let name = thread::current().name().map(str::to_owned);
                sender.send((attempt, name)).unwrap();
            })
            .unwrap();
        for attempt in [1, 2] {
            let name = Some("rpc-retry".to_owned());
            assert_eq!(
                sent.recv_timeout(Duration::from_secs(60)),
                Ok((attempt, name))
            );
        }
    }
}
