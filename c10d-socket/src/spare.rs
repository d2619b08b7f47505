//! A file descriptor that a server keeps for the moment when its process has none left.

use std::fs::File;

/// A descriptor that is closed for a moment when the process has none left, so that queued peers can be accepted and
/// refused instead of hanging.
#[derive(Debug)]
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    /// Opens one, if the process has one left.
    pub(crate) fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Gives the descriptor back to the process.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }

    /// Opens it again, if the process has one left. Returns whether it is open.
    pub(crate) fn open(&mut self) -> bool {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.is_open()
    }

    /// Whether there is one.
    pub(crate) const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `task`, which needs one descriptor for as long as it runs.
    pub(crate) fn lend<T>(&mut self, task: impl FnOnce() -> T) -> T {
        self.close();
        let result = task();
        self.open();
        result
    }
}
