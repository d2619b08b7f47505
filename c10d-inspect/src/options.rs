//! Settings of `explain`.

use std::time::Duration;

/// Settings of [`explain`](crate::explain).
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct ExplainOptions {
    pub(crate) world_size: Option<usize>,
    pub(crate) wait_grace: Duration,
    pub(crate) silence_grace: Duration,
    pub(crate) leave_grace: Duration,
    pub(crate) nccl_grace: Duration,
    pub(crate) nccl_silence_grace: Duration,
}

impl Default for ExplainOptions {
    /// Waits are found after 2 s: ranks of one job start that far apart.
    fn default() -> Self {
        Self {
            world_size: None,
            wait_grace: Duration::from_secs(2),
            silence_grace: Duration::from_secs(2),
            leave_grace: Duration::from_secs(5),
            nccl_grace: Duration::from_secs(10),
            // Two answers: a connection that breaks is made again at once.
            nccl_silence_grace: Duration::from_secs(4),
        }
    }
}

impl ExplainOptions {
    /// Sets the number of ranks of the job, if the caller knows it.
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Sets how long a wait lasts before it is a finding (default: 2 s).
    pub const fn with_wait_grace(mut self, wait_grace: Duration) -> Self {
        self.wait_grace = wait_grace;
        self
    }

    /// Sets how long a rank is silent in the middle of joining a group before it counts as frozen (default: 2 s).
    pub const fn with_silence_grace(mut self, silence_grace: Duration) -> Self {
        self.silence_grace = silence_grace;
        self
    }

    /// Sets how long after the first rank of a complete group the others may leave (default: 5 s).
    pub const fn with_leave_grace(mut self, leave_grace: Duration) -> Self {
        self.leave_grace = leave_grace;
        self
    }

    /// Sets how long after a NCCL id was published all launched ranks should have read it, and how long ranks launch no
    /// operation of NCCL while others have launched more (default: 10 s).
    pub const fn with_nccl_grace(mut self, nccl_grace: Duration) -> Self {
        self.nccl_grace = nccl_grace;
        self
    }
}
