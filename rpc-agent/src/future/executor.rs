//! Who runs the callbacks of a future, and who helps a thread that waits for one.

use c10d_socket::Deadline;

/// Something to be run once. It contains its panics.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The agent, as futures see it.
pub(crate) trait Executor: Send + Sync {
    /// Runs the callbacks of one completion, on another thread or on this one, now or later. Dropping
    /// the job breaks the futures that hang on it.
    fn execute(&self, job: Job);

    /// Called by a thread that waits for the future with this hint: it may do something useful first,
    /// such as reading the answer, until `is_complete` or the deadline, and must call `block` then, which
    /// returns at one or the other.
    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    );
}

/// Where a future's result comes from: a number whose meaning only the executor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint(pub(crate) u64);

impl Hint {
    /// From nowhere in particular: there is nothing to drive, only to wait.
    pub(crate) const NONE: Self = Self(u64::MAX);
}
