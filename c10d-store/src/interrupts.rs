//! Which threads were interrupted and have not noticed yet. It wakes nobody.

use std::thread::{self, ThreadId};

#[derive(Debug, Default)]
pub(crate) struct Interrupts(Vec<ThreadId>);

impl Interrupts {
    /// Several interrupts count as one.
    pub(crate) fn add(&mut self, thread: ThreadId) {
        if !self.0.contains(&thread) {
            self.0.push(thread);
        }
    }

    /// Whether this thread was interrupted since the last call.
    pub(crate) fn take(&mut self) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let this = thread::current().id();
        let found = self.0.iter().position(|thread| *thread == this);
        found.map(|index| self.0.swap_remove(index)).is_some()
    }
}
