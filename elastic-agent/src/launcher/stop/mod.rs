//! Ends the launcher after a signal, whatever it waits for.

mod exit_deadline;

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use c10d_socket::is_signal_ignored;
use signal_hook::consts::{FORBIDDEN, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals as Iterator};
use signal_hook::low_level::signal_name;

use self::exit_deadline::{ExitDeadline, ExitTimer};
use super::error::LauncherError;
use super::options::{ExitLimits, LauncherOptions};
use crate::agent::AgentHandle;
use crate::threads::{JoinedThread, lock};

/// How long the end waits for an output that accepts nothing: after a signal, and without one, as for workers' output.
const STUCK_STOPPED_MAX: Duration = Duration::from_secs(1);
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Longer than any job, and still a time that can be added to the current one.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86400);

/// Handles a launcher's signals until it is dropped: from before the first connect until the last output is written, as
/// process 1 of a container gets none that it does not handle.
#[derive(Debug)]
pub struct StopControl {
    // Dropped first: it starts the other's time.
    signals: Signals,
    deadline: ExitDeadline,
}

impl StopControl {
    pub(super) fn start(options: &LauncherOptions) -> Result<Self, LauncherError> {
        let kill = options.agent.shutdown_timeout.unwrap_or(NEVER);
        let exit = options.exit_limits.map(|limits| limits.exit);
        let deadline = ExitDeadline::start(kill, exit, options.screen.clone())
            .map_err(LauncherError::system("cannot start a thread"))?;
        let signals = Signals::catch(options.signals.as_deref(), deadline.timer())
            .map_err(LauncherError::system("cannot handle signals"))?;
        Ok(Self { signals, deadline })
    }

    /// From now on, signals stop this agent.
    pub(super) fn watch(&self, agent: AgentHandle) {
        self.deadline.watch(agent.kill_switch());
        self.signals.pass_to(agent);
    }

    /// The number of the first signal that stops the launcher; `None` while there is none.
    #[must_use]
    pub fn stopped_by(&self) -> Option<i32> {
        self.signals.stopped_by()
    }

    /// How much of the grace period of these limits is left; `None` before a signal, and without limits.
    pub(super) fn grace_left(&self, limits: Option<ExitLimits>) -> Option<Duration> {
        let since = self.signals.stopped_at()?;
        Some(limits?.exit.saturating_sub(since.elapsed()))
    }

    /// Does `work` on a thread of its own. Returns its result, or `None` if it takes more than `patience` after a
    /// signal that stops the launcher. Its thread is left behind then: neither a connect nor a write can be cancelled.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn unless_stopped<T: Send + 'static>(
        &self,
        thread: &str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        self.signals.unless_stopped(thread, patience, work)
    }

    /// How long the end waits for an output that accepts nothing.
    #[must_use]
    pub fn stuck_max(&self) -> Duration {
        match self.stopped_by() {
            Some(_) => STUCK_STOPPED_MAX,
            None => STUCK_MAX,
        }
    }
}

const THREAD: &str = "signals";

/// Signals that are only forwarded to the workers.
const FORWARDED: [i32; 2] = [SIGUSR1, SIGUSR2];

/// The highest number of a named signal.
const SIGNAL_MAX: i32 = 31;

/// Handles signals until it is dropped, which joins its thread.
#[derive(Debug)]
struct Signals {
    handle: Handle,
    _thread: JoinedThread,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The first two signals that stop the launcher: all later ones are like the second.
    stops: Vec<i32>,
    /// When the first of them arrived.
    stopped_at: Option<Instant>,
    /// The agent to stop, once there is one.
    agent: Option<AgentHandle>,
    /// Called by the first signal that stops the launcher.
    on_stop: Vec<Box<dyn FnOnce() + Send>>,
}

impl Signals {
    /// From now on these signals do not end the process: those of these names stop the launcher, SIGUSR1 and SIGUSR2 go
    /// to its workers. Without names none is handled. A signal that this process ignores stays ignored, by
    /// this process and by its workers, because nohup(1) or a shell has started it so. A signal that
    /// stops the launcher first starts the timer.
    ///
    /// # Errors
    /// Those of the system.
    fn catch(names: Option<&[String]>, timer: ExitTimer) -> io::Result<Self> {
        let named = names.unwrap_or_default().iter();
        let mut numbers: Vec<i32> = named.filter_map(|name| number_of(name)).collect();
        let ending = numbers.clone();
        if names.is_some() {
            numbers.extend(FORWARDED);
        }
        numbers.retain(|number| !is_signal_ignored(*number));
        numbers.sort_unstable();
        numbers.dedup();
        let mut signals = Iterator::new(numbers)?;
        let handle = signals.handle();
        let state = Arc::<Mutex<State>>::default();
        let of_thread = Arc::clone(&state);
        let thread = JoinedThread::start(THREAD, move || {
            for signal in signals.forever() {
                if ending.contains(&signal) {
                    timer.start();
                    stop(&of_thread, signal);
                } else if let Some(agent) = &lock(&of_thread).agent {
                    agent.forward(signal);
                }
            }
        })?;
        Ok(Self {
            handle,
            _thread: thread,
            state,
        })
    }

    /// Passes signals on to this agent, also those that have arrived.
    fn pass_to(&self, agent: AgentHandle) {
        let mut state = lock(&self.state);
        let stops = state.stops.clone();
        state.agent = Some(agent.clone());
        drop(state);
        stops.into_iter().for_each(|signal| agent.stop(signal));
    }

    /// The first signal that stops the launcher; `None` while there is none.
    fn stopped_by(&self) -> Option<i32> {
        lock(&self.state).stops.first().copied()
    }

    /// When that signal arrived.
    fn stopped_at(&self) -> Option<Instant> {
        lock(&self.state).stopped_at
    }

    /// Does `work` on a thread of its own. Returns its result, or `None` if it takes more than `patience` after a
    /// signal that stops the launcher. Its thread is left behind then: neither a connect nor a write can be cancelled.
    ///
    /// # Errors
    /// The system has no thread left.
    fn unless_stopped<T: Send + 'static>(
        &self,
        thread: &str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (sender, inbox) = channel();
        let sender = Arc::new(sender);
        // If the work panics, the inbox must not stay open.
        let stopped = Arc::downgrade(&sender);
        let thread = std::thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || {
                // Fails when the caller no longer waits.
                let _ = sender.send(Some(work()));
            })?;
        self.on_stop(move || {
            if let Some(stopped) = stopped.upgrade() {
                // Fails when the caller no longer waits.
                let _ = stopped.send(None);
            }
        });
        let result = await_result(&inbox, patience);
        if result.is_some() && thread.join().is_err() {
            log::error!("a thread of the launcher panicked");
        }
        Ok(result)
    }

    /// Makes the first signal call this; at once if there was one.
    fn on_stop(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.stops.is_empty() {
            state.on_stop.push(Box::new(call));
        } else {
            drop(state);
            call();
        }
    }
}

fn stop(state: &Mutex<State>, signal: i32) {
    let mut state = lock(state);
    state.stopped_at.get_or_insert_with(Instant::now);
    if state.stops.len() < 2 {
        state.stops.push(signal);
    }
    let agent = state.agent.clone();
    let on_stop = std::mem::take(&mut state.on_stop);
    drop(state);
    on_stop.into_iter().for_each(|call| call());
    if let Some(agent) = agent {
        agent.stop(signal);
    }
}

/// `None` in the inbox is the signal.
fn await_result<T>(inbox: &Receiver<Option<T>>, patience: Duration) -> Option<T> {
    match inbox.recv() {
        Ok(Some(result)) => Some(result),
        Ok(None) => inbox.recv_timeout(patience).unwrap_or_default(),
        // The work panicked.
        Err(_) => None,
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("stops", &self.stops)
            .finish_non_exhaustive()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// The number of a signal that can be handled. Logs a warning for any other, as torchrun does.
fn number_of(name: &str) -> Option<i32> {
    let number = (1..=SIGNAL_MAX).find(|number| signal_name(*number) == Some(name));
    match number {
        Some(number) if !FORBIDDEN.contains(&number) => Some(number),
        Some(_) => {
            log::warn!("ignoring the signal {name}, which no process can handle");
            None
        }
        None => {
            log::warn!("ignoring {name:?}, which is not the name of a signal");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::exit_deadline::ExitDeadline;
    use super::*;
    use crate::launcher::options::StandardError;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn only_names_of_handleable_signals_have_numbers() {
        assert_eq!(number_of("SIGTERM"), Some(15));
        assert_eq!(number_of("SIGKILL"), None);
        assert_eq!(number_of("TERM"), None);
        assert_eq!(number_of(""), None);
    }

    fn signals() -> Signals {
        let deadline = ExitDeadline::start(LONG, None, Arc::new(StandardError)).unwrap();
        // No process sends it: tests report signals by calls.
        Signals::catch(Some(&["SIGWINCH".to_owned()]), deadline.timer()).unwrap()
    }

    #[test]
    fn work_is_not_awaited_after_a_signal() {
        let signals = signals();
        let done = signals.unless_stopped("work", LONG, || 7).unwrap();
        assert_eq!(done, Some(7));
        let (_open, closed) = channel::<()>();
        let state = Arc::clone(&signals.state);
        let left_behind = signals.unless_stopped("work", Duration::ZERO, move || {
            stop(&state, 15);
            closed.recv()
        });
        assert_eq!(left_behind.unwrap(), None);
        assert_eq!(signals.stopped_by(), Some(15));
        // Later work has some time.
        let done = signals.unless_stopped("work", LONG, || 8).unwrap();
        assert_eq!(done, Some(8));
    }

    #[test]
    fn work_that_panics_has_no_result() {
        let done = signals().unless_stopped("work", LONG, || panic!("expected"));
        assert_eq!(done.unwrap(), None::<()>);
    }
}
