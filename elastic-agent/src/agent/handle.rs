//! The handle that other threads use to reach a running agent, and the probes that ask whether its loop answers
//! (`TORCHELASTIC_HEALTH_CHECK_PORT` in PyTorch).
//!
//! Only an agent that supervises workers is asked: a join and other steps have their own deadlines, and may take longer than
//! a probe waits.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use c10d_socket::Cancel;
use crossbeam_channel::{Sender, bounded};
use elastic_rendezvous::RendezvousHandler;

use super::event::Event;
use crate::progress::ProgressView;
use crate::threads::lock;
use crate::watchdog::seconds_since_epoch;
use crate::wording::name_of;
use crate::worker::KillSwitch;

/// A handle that reports signals to an agent, from any thread. Clones reach the same agent.
///
/// Do not use it inside a signal handler, because it takes locks.
///
/// ```no_run
/// # use elastic_agent::ElasticAgent;
/// use std::time::Duration;
///
/// # fn example(agent: &mut ElasticAgent) -> Result<(), Box<dyn std::error::Error>> {
/// let handle = agent.handle();
/// std::thread::spawn(move || {
///     std::thread::sleep(Duration::from_secs(3600));
///     handle.stop(15); // SIGTERM
/// });
/// agent.run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

/// The data that an agent and its handles share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) handler: Arc<dyn RendezvousHandler>,
    pub(super) events: Sender<Event>,
    pub(super) kill_switch: KillSwitch,
    /// When the watchdog's loop ran last, in seconds since the epoch; 0 before the first time.
    pub(super) watchdog_progress: Arc<AtomicU64>,
    probes: Mutex<Probes>,
    /// The progress that the last workers have reported; `None` if they report none.
    progress: Mutex<Option<ProgressView>>,
    /// Ended by the first signal that stops the agent.
    pub(super) stopping: Cancel,
    /// The first signal that stops the agent; 0 while there is none.
    stop_signal: AtomicI32,
    /// Ends what the agent waits for together with other nodes.
    waiting: Mutex<Cancel>,
}

impl Shared {
    pub(super) fn new(handler: Arc<dyn RendezvousHandler>, events: Sender<Event>) -> Self {
        Self {
            handler,
            events,
            kill_switch: KillSwitch::new(),
            stopping: Cancel::new(),
            watchdog_progress: Arc::default(),
            probes: Mutex::default(),
            progress: Mutex::default(),
            stop_signal: AtomicI32::new(0),
            waiting: Mutex::new(Cancel::NEVER),
        }
    }

    pub(super) fn probes(&self) -> MutexGuard<'_, Probes> {
        lock(&self.probes)
    }

    pub(super) fn set_progress(&self, progress: ProgressView) {
        *lock(&self.progress) = Some(progress);
    }

    /// When the watchdog's loop ran last, in seconds since the epoch; `None` without workers or watchdog.
    pub(super) fn watchdog_progress(&self) -> Option<f64> {
        let progress = self.watchdog_progress.load(Ordering::Relaxed);
        (progress > 0).then_some(progress as f64)
    }

    /// The agent is about to wait for other nodes.
    pub(super) fn set_waiting(&self, cancel: Cancel) {
        *lock(&self.waiting) = cancel;
    }

    /// Lets a wait for other nodes check whether it is over.
    pub(super) fn wake_waiting(&self) {
        let cancel = lock(&self.waiting).clone();
        cancel.wake();
    }

    /// The number of the signal that stops the agent.
    pub(super) fn stop_signal(&self) -> Option<i32> {
        Some(self.stop_signal.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }
}

impl AgentHandle {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns when a worker of this node last [reported progress](crate::ProgressOptions), counted from the start of
    /// the current or last workers. `None` if no worker has reported progress. Does not block.
    #[must_use]
    pub fn last_progress(&self) -> Option<Duration> {
        lock(&self.shared.progress).as_ref()?.last()
    }

    /// Stops the agent: its workers get `signal`, a signal number, and SIGKILL after the shutdown
    /// timeout. The second call kills them at once, on this thread. A join that waits is cancelled. Does not block,
    /// except on the log after all that.
    pub fn stop(&self, signal: i32) {
        let shared = &self.shared;
        let first =
            shared
                .stop_signal
                .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            shared.kill_switch.trigger();
        }
        shared.stopping.cancel();
        shared.handler.interrupt();
        shared.wake_waiting();
        // Fails when the agent is dropped.
        let _ = shared.events.send(Event::Stop);
        if first.is_err() {
            log::warn!(
                "received {} while stopping: killed the workers that still ran",
                name_of(signal)
            );
        }
    }

    /// Returns the switch that a second [`stop`](Self::stop) triggers, for a caller with its own deadline. It also cuts
    /// short a stop for another round that was already in progress when the first signal arrived.
    #[must_use]
    pub fn kill_switch(&self) -> KillSwitch {
        self.shared.kill_switch.clone()
    }

    /// Sends a signal to the workers, without any other effect. Does not block.
    pub fn forward(&self, signal: i32) {
        // Fails when the agent is dropped.
        let _ = self.shared.events.send(Event::Forward(signal));
    }
}

/// PyTorch's: after this time without progress an agent counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Whether an agent makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulse {
    /// Whether the agent's loop, and its watchdog's if there is one, have made progress in the last 60 s.
    pub is_alive: bool,
    /// When they did last, in seconds since the epoch.
    pub last_progress: u64,
}

/// The probes of an agent.
#[derive(Debug, Default)]
pub(super) struct Probes {
    is_supervising: bool,
    /// The time of a probe without an answer. There is one at a time, so that probes do not pile up.
    unanswered_since: Option<f64>,
}

impl Probes {
    pub(super) fn set_supervising(&mut self, is_supervising: bool) {
        self.is_supervising = is_supervising;
        self.unanswered_since = None;
    }

    /// Whether to send a probe now.
    pub(super) fn begin(&mut self, now: f64) -> bool {
        let must_send = self.is_supervising && self.unanswered_since.is_none();
        if must_send {
            self.unanswered_since = Some(now);
        }
        must_send
    }

    pub(super) fn answer(&mut self) {
        self.unanswered_since = None;
    }

    /// The pulse as of now. `watchdog`: when the watchdog made progress last, if there is one.
    pub(super) fn pulse(&self, watchdog: Option<f64>, now: f64) -> Pulse {
        let oldest = [self.unanswered_since, watchdog]
            .into_iter()
            .flatten()
            .fold(now, f64::min);
        Pulse {
            is_alive: now - oldest <= DEAD_AFTER.as_secs_f64(),
            last_progress: oldest as u64,
        }
    }
}

/// How long a probe waits for the answer of an agent that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl AgentHandle {
    /// Whether the agent makes progress. Blocks for at most 1 s.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let shared = self.shared();
        if shared.probes().begin(seconds_since_epoch()) {
            let (reply, answer): (Sender<()>, _) = bounded(1);
            // Fails when the agent is dropped: then it counts as dead in time.
            let _ = shared.events.send(Event::Probe(reply));
            let _ = answer.recv_timeout(ANSWER_TIMEOUT);
        }
        shared
            .probes()
            .pulse(shared.watchdog_progress(), seconds_since_epoch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(is_alive: bool, last_progress: u64) -> Pulse {
        Pulse {
            is_alive,
            last_progress,
        }
    }

    #[test]
    fn an_agent_that_does_not_answer_is_dead_after_a_minute() {
        let mut probes = Probes::default();
        probes.set_supervising(true);
        assert!(probes.begin(100.0));
        probes.answer();
        assert_eq!(probes.pulse(None, 100.5), pulse(true, 100));
        assert!(probes.begin(110.0));
        assert!(!probes.begin(120.0), "one probe at a time");
        assert_eq!(probes.pulse(None, 170.0), pulse(true, 110));
        assert_eq!(probes.pulse(None, 170.5), pulse(false, 110));
        probes.answer();
        assert_eq!(probes.pulse(None, 171.0), pulse(true, 171));
    }

    #[test]
    fn an_agent_that_does_not_supervise_is_not_asked() {
        let mut probes = Probes::default();
        assert!(!probes.begin(100.0));
        assert_eq!(probes.pulse(None, 900.0), pulse(true, 900));
        probes.set_supervising(true);
        assert!(probes.begin(900.0));
        probes.set_supervising(false);
        assert_eq!(probes.pulse(None, 1000.0), pulse(true, 1000));
    }

    #[test]
    fn a_watchdog_that_stands_still_counts() {
        let probes = Probes::default();
        assert_eq!(probes.pulse(Some(999.0), 1000.0), pulse(true, 999));
        assert_eq!(probes.pulse(Some(900.0), 1000.0), pulse(false, 900));
        // A wall clock that was set back.
        assert_eq!(probes.pulse(Some(2000.0), 1000.0), pulse(true, 1000));
    }
}
