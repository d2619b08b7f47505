//! Where stacks come from.

use c10d_inspect::stacks::Stacks;

/// Reads the stacks of processes.
pub(super) trait ReadStacks: Send + 'static {
    /// The stacks, or why there are none, in a clause without a full stop. May block for any time.
    fn read(&mut self, pid: u32) -> Result<Stacks, String>;

    /// Drops what belongs to processes that have ended.
    fn forget_ended(&mut self);
}
