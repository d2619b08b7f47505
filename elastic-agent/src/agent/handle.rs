//! How other threads reach a running agent.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use c10d_socket::Cancel;
use crossbeam_channel::Sender;
use elastic_rendezvous::RendezvousHandler;

use super::probes::Probes;
use crate::progress::ProgressView;
use crate::threads::lock;
use crate::wording::name_of;
use crate::worker::{KillSwitch, WorkerExit};

/// Reports signals to an agent, from any thread. Clones reach the same agent.
///
/// Not for use inside a signal handler, as it takes locks.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

/// What an agent and its handles share.
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

#[derive(Debug)]
pub(super) enum Event {
    /// A worker of this generation exited. The agent counts generations, one for each start of workers.
    Exit(u64, WorkerExit),
    MembersChanged,
    /// The workers of this generation have reported no progress for this long.
    Stuck(u64, Duration),
    /// A stop signal arrived: see [`Shared::stop_signal`].
    Stop,
    /// A signal for the workers.
    Forward(i32),
    /// Asks whether the agent answers.
    Probe(Sender<()>),
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

    /// The switch that a second [`stop`](Self::stop) triggers, for a caller with a deadline of its own. It also ends the
    /// wait for workers that were already being stopped, for another round, when the first signal came.
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
