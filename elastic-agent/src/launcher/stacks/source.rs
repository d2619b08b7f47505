//! Where stacks come from.

use c10d_inspect::stacks::Stacks;

/// Reads the stacks of processes.
pub(super) trait ReadStacks: Send + 'static {
    /// Returns the stacks, or the reason why there are none, in a clause without a full stop. May block for any time.
    fn read(&mut self, pid: u32) -> Result<Stacks, String>;

    /// Drops the state of processes that have exited.
    fn forget_ended(&mut self);
}
