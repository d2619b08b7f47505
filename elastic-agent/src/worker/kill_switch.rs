//! Cutting a patient stop short.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

/// A handle with which another thread ends the patience of [`WorkerGroup::stop`]: at the second
/// Ctrl-C, say. Once in a hurry, always in a hurry. Clones are the same handle.
///
/// [`WorkerGroup::stop`]: crate::WorkerGroup::stop
///
/// ```
/// use elastic_agent::Hurry;
///
/// let hurry = Hurry::new();
/// let signals = hurry.clone();
/// assert!(!hurry.is_hurried());
/// signals.hurry();
/// assert!(hurry.is_hurried());
/// ```
#[derive(Debug, Clone)]
pub struct Hurry {
    /// Dropping the sender is the news, which any number of receivers can see, and see again. While
    /// a handle is left, nothing else drops it.
    calm: Arc<Mutex<Option<Sender<Infallible>>>>,
    hurried: Receiver<Infallible>,
}

impl Hurry {
    /// A handle that is not in a hurry.
    #[must_use]
    pub fn new() -> Self {
        let (calm, hurried) = bounded(0);
        Self {
            calm: Arc::new(Mutex::new(Some(calm))),
            hurried,
        }
    }

    /// From now on there is no patience. Does not block; not for use in a signal handler.
    pub fn hurry(&self) {
        // Taking it out leaves nothing half done, whoever panicked.
        let calm = self
            .calm
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(calm);
    }

    /// Whether somebody is in a hurry.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.hurried.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// A receiver that becomes ready, disconnected, with the hurry.
    pub(super) const fn hurried(&self) -> &Receiver<Infallible> {
        &self.hurried
    }
}

impl Default for Hurry {
    fn default() -> Self {
        Self::new()
    }
}
