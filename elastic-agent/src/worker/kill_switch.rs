//! Escalates a graceful stop to SIGKILL.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

/// Lets another thread cut a [`WorkerGroup::stop`] short and kill the workers at once, as after a second
/// Ctrl-C. Once triggered, it stays so. Clones are the same switch.
///
/// [`WorkerGroup::stop`]: crate::WorkerGroup::stop
///
/// ```
/// use elastic_agent::KillSwitch;
///
/// let kill_switch = KillSwitch::new();
/// let signals = kill_switch.clone();
/// assert!(!kill_switch.is_triggered());
/// signals.trigger();
/// assert!(kill_switch.is_triggered());
/// ```
#[derive(Debug, Clone)]
pub struct KillSwitch {
    /// Dropping the sender disconnects all receivers for good. Nothing else drops it while there is a
    /// clone of the switch.
    armed: Arc<Mutex<Option<Sender<Infallible>>>>,
    triggered: Receiver<Infallible>,
}

impl KillSwitch {
    /// A switch that is not triggered.
    #[must_use]
    pub fn new() -> Self {
        let (armed, triggered) = bounded(0);
        Self {
            armed: Arc::new(Mutex::new(Some(armed))),
            triggered,
        }
    }

    /// Ends all grace periods, now and later. Does not block. Not for use inside a signal handler, as it
    /// takes a lock.
    pub fn trigger(&self) {
        // A panic while the lock is held leaves nothing half done.
        let armed = self
            .armed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(armed);
    }

    /// Whether [`trigger`](Self::trigger) was called.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        self.triggered.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// A receiver that becomes ready, as disconnected, when the switch is triggered.
    pub(crate) const fn triggered(&self) -> &Receiver<Infallible> {
        &self.triggered
    }
}

impl Default for KillSwitch {
    fn default() -> Self {
        Self::new()
    }
}
