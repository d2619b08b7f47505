//! A [`Cancel`] among the channels that a thread selects from.

use std::sync::Arc;
use std::task::Wake;

use c10d_socket::{Cancel, Watch};
use crossbeam_channel::{Receiver, Sender, bounded};

/// A channel that is ready when a cancel has ended all waits.
#[derive(Debug)]
pub(crate) struct Cancelled<'c> {
    _watch: Watch<'c>,
    /// Without it the channel would end, and be ready.
    _bell: Arc<Bell>,
    pub(crate) receiver: Receiver<()>,
}

impl<'c> Cancelled<'c> {
    /// For a cancel without a check, which nothing but its end wakes.
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
        // One is enough.
        let _ = self.0.try_send(());
    }
}
