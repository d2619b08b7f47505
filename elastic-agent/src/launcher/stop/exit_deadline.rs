//! Kills the workers, and later ends this process, given times after a signal, even if the launcher waits for
//! something else.
//!
//! A scheduler kills the process a little later. Until then, a store that does not answer or a console that takes no
//! output could delay it, and it would end without an exit code. So the thread does both itself, and waits for no
//! other: neither for the agent's, which may be stuck, nor for the one that writes the log.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::threads::JoinedThread;
use crate::worker::KillSwitch;

use crate::launcher::options::Screen;

const THREAD: &str = "exit-deadline";

/// A signal stopped the workers.
const EXIT_CODE: i32 = 1;

/// How long the last message may take.
const MESSAGE_MAX: Duration = Duration::from_millis(100);

/// Waits for a signal, and then for its end. Dropping it joins its thread.
#[derive(Debug)]
pub(super) struct ExitDeadline {
    events: Sender<Event>,
    workers: Arc<OnceLock<KillSwitch>>,
    _thread: JoinedThread,
}

#[derive(Debug)]
enum Event {
    /// A signal arrived.
    Signal(Instant),
    /// The launcher has ended its work.
    Done,
}

/// Starts the time of an [`ExitDeadline`].
#[derive(Debug, Clone)]
pub(super) struct ExitTimer(Sender<Event>);

impl ExitTimer {
    /// A signal has arrived. Only the first counts.
    pub(super) fn start(&self) {
        // Fails when the launcher has ended its work.
        let _ = self.0.send(Event::Signal(Instant::now()));
    }
}

impl ExitDeadline {
    /// Starts the thread. It kills the workers `kill` after the first signal, and ends the process `exit` after it, if
    /// there is such a limit.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        kill: Duration,
        exit: Option<Duration>,
        screen: Arc<dyn Screen>,
    ) -> io::Result<Self> {
        let (events, inbox) = channel();
        let workers = Arc::<OnceLock<KillSwitch>>::default();
        let of_thread = Arc::clone(&workers);
        let thread = JoinedThread::start(THREAD, move || {
            let Ok(Event::Signal(at)) = inbox.recv() else {
                return;
            };
            if is_done_within(&inbox, at, kill) {
                return;
            }
            // An agent that comes later is stopped before it starts workers.
            if let Some(switch) = of_thread.get() {
                switch.trigger();
            }
            let Some(exit) = exit else { return };
            if is_done_within(&inbox, at, exit) {
                return;
            }
            screen.message(&format!(
                    "ending {exit:?} after the signal, before the grace period ends: the store, an output or a \
                     worker does not respond\n"
                ));
            screen.finish(MESSAGE_MAX);
            std::process::exit(EXIT_CODE);
        })?;
        Ok(Self {
            events,
            workers,
            _thread: thread,
        })
    }

    pub(super) fn timer(&self) -> ExitTimer {
        ExitTimer(self.events.clone())
    }

    /// Which workers to kill: those of this switch.
    pub(super) fn watch(&self, workers: KillSwitch) {
        // There is one agent.
        let _ = self.workers.set(workers);
    }
}

impl Drop for ExitDeadline {
    fn drop(&mut self) {
        // The thread has the receiver until it gets this.
        let _ = self.events.send(Event::Done);
    }
}

/// Waits until the launcher is done, for at most `time` after `start`; tells whether it is.
fn is_done_within(inbox: &Receiver<Event>, start: Instant, time: Duration) -> bool {
    loop {
        match inbox.recv_timeout(time.saturating_sub(start.elapsed())) {
            // Only the first counts.
            Ok(Event::Signal(_)) => {}
            Ok(Event::Done) | Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::options::StandardError;

    const LONG: Duration = Duration::from_secs(3600);

    fn screen() -> Arc<dyn Screen> {
        Arc::new(StandardError)
    }

    #[test]
    fn later_signals_do_not_extend_the_time() {
        let (events, inbox) = channel();
        let start = Instant::now();
        events.send(Event::Signal(start)).unwrap();
        events.send(Event::Signal(start)).unwrap();
        assert!(!is_done_within(&inbox, start, Duration::ZERO));
        events.send(Event::Signal(start)).unwrap();
        events.send(Event::Done).unwrap();
        assert!(is_done_within(&inbox, start, LONG));
    }

    #[test]
    fn a_signal_triggers_the_switch_and_no_signal_does_not() {
        let switch = KillSwitch::new();
        let deadline = ExitDeadline::start(Duration::ZERO, None, screen()).unwrap();
        deadline.watch(switch.clone());
        drop(deadline);
        assert!(!switch.is_triggered());

        let deadline = ExitDeadline::start(Duration::ZERO, Some(LONG), screen()).unwrap();
        deadline.watch(switch.clone());
        deadline.timer().start();
        let patience = Instant::now();
        while !switch.is_triggered() {
            assert!(patience.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        drop(deadline);
    }
}
