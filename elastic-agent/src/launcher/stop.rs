//! Stops the launcher after a signal, whatever it waits for: one thread receives the signals, and another kills the workers
//! and later ends this process.
//!
//! A scheduler kills the process a little later. Until then, a store that does not answer or a console that takes no output
//! could delay it, and it would exit without an exit code. Therefore the second thread waits for no other thread: neither for
//! the agent's thread, which may be stuck, nor for the thread that writes the log.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use c10d_socket::is_signal_ignored;
use signal_hook::consts::{FORBIDDEN, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals as Iterator};
use signal_hook::low_level::signal_name;

use super::error::LauncherError;
use super::options::{ExitLimits, LauncherOptions, Screen};
use crate::agent::AgentHandle;
use crate::threads::{JoinedThread, lock};
use crate::worker::KillSwitch;

/// How long the end waits for an output that accepts nothing: after a signal, and without one, as for workers' output.
const STUCK_STOPPED_MAX: Duration = Duration::from_secs(1);
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Longer than any job, and still a time that can be added to the current one.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86400);

/// Handles a launcher's signals until it is dropped: from before the first connect until the last output is written, as
/// process 1 of a container does not receive signals that it does not handle.
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

    /// Makes signals stop this agent from now on.
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

    /// Does `work` on a separate thread. Returns its result, or `None` if it takes more than `patience` after a signal
    /// that stops the launcher. In that case, the thread is left behind, because neither a connect nor a write can be
    /// cancelled.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub fn unless_stopped<T: Send + 'static>(
        &self,
        thread: &str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        self.signals.unless_stopped(thread, patience, work)
    }

    /// Returns how long the launcher waits at its end for an output that accepts no data.
    #[must_use]
    pub fn stuck_max(&self) -> Duration {
        match self.stopped_by() {
            Some(_) => STUCK_STOPPED_MAX,
            None => STUCK_MAX,
        }
    }
}

const SIGNALS_THREAD: &str = "signals";

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
    /// The first two signals that stop the launcher. All later signals act like the second signal.
    stops: Vec<i32>,
    /// When the first of them arrived.
    stopped_at: Option<Instant>,
    /// The agent to stop, once there is one.
    agent: Option<AgentHandle>,
    /// Called by the first signal that stops the launcher.
    on_stop: Vec<Box<dyn FnOnce() + Send>>,
}

impl Signals {
    /// Handles signals from now on, so that they do not kill the process: signals with these names stop the launcher,
    /// and SIGUSR1 and SIGUSR2 are sent to its workers. Without names, no signal is handled. A signal that this process
    /// ignores stays ignored, by this process and by its workers, because nohup(1) or a shell has started it in this
    /// way. The first signal that stops the launcher starts the timer.
    ///
    /// # Errors
    /// The error of the operating system.
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
        let thread = JoinedThread::start(SIGNALS_THREAD, move || {
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

    /// Passes signals on to this agent, including signals that have arrived already.
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

    /// Does `work` on a separate thread. Returns its result, or `None` if it takes more than `patience` after a signal
    /// that stops the launcher. In that case, the thread is left behind, because neither a connect nor a write can be
    /// cancelled.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
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
            log::warn!("ignoring {name:?}: not the name of a signal");
            None
        }
    }
}

const DEADLINE_THREAD: &str = "exit-deadline";

/// A signal stopped the workers.
const EXIT_CODE: i32 = 1;

/// How long the last message may take.
const MESSAGE_MAX: Duration = Duration::from_millis(100);

/// Waits for a signal, and then for its end. Dropping it joins its thread.
#[derive(Debug)]
struct ExitDeadline {
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
struct ExitTimer(Sender<Event>);

impl ExitTimer {
    /// A signal has arrived. Only the first counts.
    fn start(&self) {
        // Fails when the launcher has ended its work.
        let _ = self.0.send(Event::Signal(Instant::now()));
    }
}

impl ExitDeadline {
    /// Starts the thread. It kills the workers `kill` after the first signal, and exits the process `exit` after it, if
    /// there is such a limit.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    fn start(kill: Duration, exit: Option<Duration>, screen: Arc<dyn Screen>) -> io::Result<Self> {
        let (events, inbox) = channel();
        let workers = Arc::<OnceLock<KillSwitch>>::default();
        let of_thread = Arc::clone(&workers);
        let thread = JoinedThread::start(DEADLINE_THREAD, move || {
            let Ok(Event::Signal(at)) = inbox.recv() else {
                return;
            };
            if is_done_within(&inbox, at, kill) {
                return;
            }
            // An agent that is set later is stopped before it starts workers.
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

    fn timer(&self) -> ExitTimer {
        ExitTimer(self.events.clone())
    }

    /// Sets the switch that kills the workers.
    fn watch(&self, workers: KillSwitch) {
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

/// Waits until the launcher is done, for at most `time` after `start`; returns whether it is done.
fn is_done_within(inbox: &Receiver<Event>, start: Instant, time: Duration) -> bool {
    loop {
        match inbox.recv_timeout(time.saturating_sub(start.elapsed())) {
            // Only the first signal counts.
            Ok(Event::Signal(_)) => {}
            Ok(Event::Done) | Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ExitDeadline, *};
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
