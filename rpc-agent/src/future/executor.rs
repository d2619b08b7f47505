//! What a future needs of the agent that created it: threads for callbacks, and work for waiting threads.

use c10d_socket::Deadline;

/// A task that runs once and catches its panics.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs callbacks, and lets waiting threads read their own answers.
pub(crate) trait Executor: Send + Sync {
    /// Runs the callbacks of one completion, on any thread, now or later. Dropping the job fails the
    /// futures that depend on it.
    fn execute(&self, job: Job);

    /// Called by a thread that waits for the future with this hint. May do useful work first, such as
    /// reading the answer, until `is_complete` or the deadline; must then call `block`, which returns
    /// upon completion or at the deadline.
    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    );
}

/// Tells the executor where the result of a future comes from. Only the executor knows its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint(pub(crate) u64);

impl Hint {
    /// The result does not come from a connection: the waiting thread only blocks.
    pub(crate) const NONE: Self = Self(u64::MAX);
}
