//! Why the workers do not end together.

use std::fmt;
use std::time::Duration;

use c10d_store::StoreError;

use crate::directory::DirectoryError;
use crate::worker::WorkerInfo;

/// How many workers are named one by one.
const WORKERS_SHOWN_MAX: usize = 16;

/// Why a worker gave up ending together with the others. The others may still wait for it, or have
/// left.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TerminationError {
    /// The deadline passed while this worker still had something to do.
    #[error(
        "graceful shutdown: {me} was still busy after {:.3}s, in round {round}: {calls_out} of its \
         calls without an answer (others may wait for it)",
        elapsed.as_secs_f64()
    )]
    Busy {
        /// This worker.
        me: Box<WorkerInfo>,
        /// The round, from 1.
        round: u32,
        /// Its own calls without an answer; 0 if it was handlers or retries that went on.
        calls_out: usize,
        /// How long it had been trying.
        elapsed: Duration,
    },
    /// The deadline passed before all others had arrived.
    #[error(
        "graceful shutdown: after {:.3}s, in round {round}, {absent} had not arrived ({calls_out} own \
         calls without an answer)",
        elapsed.as_secs_f64()
    )]
    WorkersAbsent {
        /// Who had not.
        absent: Workers,
        /// The round, from 1.
        round: u32,
        /// This worker's own calls without an answer.
        calls_out: usize,
        /// How long it had been waiting.
        elapsed: Duration,
    },
    /// Workers that are known to have ended had not arrived: nobody needs to wait longer.
    #[error(
        "graceful shutdown: {dead} ended before arriving in round {round}, found after {:.3}s",
        elapsed.as_secs_f64()
    )]
    WorkersDead {
        /// Who.
        dead: Workers,
        /// The round, from 1.
        round: u32,
        /// How long this worker had been waiting.
        elapsed: Duration,
    },
    /// Another thread of this worker ended the wait.
    #[error("graceful shutdown: given up by this worker after {:.3}s, in round {round}", elapsed.as_secs_f64())]
    Interrupted {
        /// The round, from 1.
        round: u32,
        /// How long it had been going on.
        elapsed: Duration,
    },
    /// A key does not hold the number that it should.
    #[error("graceful shutdown: {key:?} at {store} is no number: {value:?}")]
    Corrupt {
        /// The key.
        key: String,
        /// The store.
        store: String,
        /// What it holds, shortened.
        value: String,
    },
    /// The store failed. Says which key, at which store, after which time. When whether it took effect
    /// is unknown, a second try may count this worker twice.
    #[error("graceful shutdown: {source}")]
    Store {
        /// How the store failed.
        source: Box<StoreError>,
    },
    /// This worker could not be taken off the list of a group whose members come and go.
    #[error("graceful shutdown: {source}")]
    Leave {
        /// Why not.
        source: Box<DirectoryError>,
    },
}

/// Prints the `Display` text, so that `unwrap` and a `main` that returns the error show it.
impl fmt::Debug for TerminationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<DirectoryError> for TerminationError {
    fn from(source: DirectoryError) -> Self {
        let source = Box::new(source);
        Self::Leave { source }
    }
}

impl From<StoreError> for TerminationError {
    fn from(source: StoreError) -> Self {
        let source = Box::new(source);
        Self::Store { source }
    }
}

/// Some workers of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    named: Vec<WorkerInfo>,
    count: usize,
    is_complete: bool,
}

impl Workers {
    /// Not all of them unless complete.
    pub(super) fn new(mut workers: Vec<WorkerInfo>, is_complete: bool) -> Self {
        let count = workers.len();
        workers.truncate(WORKERS_SHOWN_MAX);
        Self {
            named: workers,
            count,
            is_complete,
        }
    }

    /// The first of them, 16 at most.
    #[must_use]
    pub fn named(&self) -> &[WorkerInfo] {
        &self.named
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, WorkerInfo { id, name }) in self.named.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{name} (id {id})")?;
        }
        let more = self.count - self.named.len();
        match (more, self.is_complete) {
            (0, true) => Ok(()),
            (_, true) => write!(f, " and {more} more"),
            (_, false) => write!(f, " and at least {more} more"),
        }
    }
}
