//! Workers that report no progress.

use std::fmt;
use std::time::Duration;

/// Workers that report no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckWorkers {
    /// The time since the last progress of any worker of this node, or since their start.
    pub silent_for: Duration,
    /// The last step of each worker of this node by global rank; `None` if it has reported none in this round.
    pub steps: Vec<(usize, Option<u64>)>,
    /// The last step in the file that the workers share; `None` if there is none.
    pub shared_step: Option<u64>,
}

/// What is known about the steps, in one line.
impl fmt::Display for StuckWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many ranks one line names.
        const RANKS_MAX: usize = 16;
        let silent = self.silent_for.as_secs_f64();
        write!(
            f,
            "no worker of this node has made progress for {silent:.1} s: "
        )?;
        for (index, (rank, step)) in self.steps.iter().take(RANKS_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match step {
                Some(step) => write!(f, "{separator}rank {rank} was at step {step}")?,
                None => write!(f, "{separator}rank {rank} has reported no step")?,
            }
        }
        if self.steps.len() > RANKS_MAX {
            write!(f, ", and {} more ranks", self.steps.len() - RANKS_MAX)?;
        }
        match self.shared_step {
            Some(step) => write!(f, "; the progress file has step {step}"),
            None => Ok(()),
        }
    }
}
