#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod announced;
pub mod flight;
#[cfg(feature = "http")]
pub mod http;
mod report;
pub mod stacks;
mod text;

use c10d_store::Snapshot;

pub use announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker, WorkerEnd};
pub use report::{
    Finding, FindingKind, Group, NodeReport, Process, RankReport, RankSet, RankState, Report,
    Sureness, WaitFor,
};

/// Settings of [`explain`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ExplainOptions {
    world_size: Option<usize>,
}

impl ExplainOptions {
    /// Sets the number of ranks of the job, if the caller knows it.
    #[must_use]
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }
}

/// Explains what the job waits for.
#[must_use]
pub fn explain(snapshot: &Snapshot, options: &ExplainOptions) -> Report {
    let _ = (snapshot, options);
    Report::default()
}
