//! Where workers report progress, and how long they may report none.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the workers of a node report their progress, and when they count as stuck.
///
/// Each worker finds the path of its own file in `C10D_PROGRESS_FILE`, in a temporary directory that only this user can
/// enter, and that is removed with the agent. It writes
/// its step there as decimal text. In a file that holds no number, each change of its time counts as progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgressOptions {
    /// A file that any worker of this node writes to. None by default.
    pub file: Option<PathBuf>,
    /// The workers count as stuck when none of them has reported progress for this long since the last report. `None`,
    /// the default, for never.
    pub timeout: Option<Duration>,
    /// The same for the time from their start to the first report. `None`, the default, for never, because the workers
    /// of a node may leave all reports to those of another one.
    pub first_timeout: Option<Duration>,
}

impl ProgressOptions {
    /// The path of one worker's file in the agent's directory. `starts` is how often the agent has started workers before: no two workers share
    /// a file, as a process that an earlier one left behind may still write.
    pub(crate) fn worker_file(directory: &Path, starts: usize, local_rank: usize) -> PathBuf {
        directory.join(format!("{starts}-{local_rank}"))
    }
}
