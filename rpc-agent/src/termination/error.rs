//! Why a coordinated shutdown failed.

use std::time::Duration;

use c10d_socket::OtherProcess;
use c10d_store::StoreError;

use crate::directory::DirectoryError;
use crate::shortlist::Shortlist;
use crate::worker::WorkerInfo;

/// The error of a coordinated shutdown that failed on this worker. The other workers may still wait for it, or may
/// have left.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TerminationError {
    /// The deadline passed while this worker was still busy.
    #[error(
        "graceful shutdown: {me} was still busy after {:.3}s, in round {round}: {calls_out} of its calls \
         are unanswered (other workers may wait for it)",
        elapsed.as_secs_f64()
    )]
    Busy {
        /// The worker that failed to shut down.
        me: Box<WorkerInfo>,
        /// The round, from 1.
        round: u32,
        /// The number of its unanswered calls; 0 if only handlers, callbacks or retries were active.
        calls_out: usize,
        /// How long this worker had been shutting down.
        elapsed: Duration,
    },
    /// The deadline passed before all workers had arrived in the round.
    #[error(
        "graceful shutdown: after {:.3}s, in round {round}, {absent} had not arrived ({calls_out} calls of \
         this worker are unanswered)",
        elapsed.as_secs_f64()
    )]
    WorkersAbsent {
        /// Workers that had not arrived.
        absent: Shortlist<WorkerInfo>,
        /// The round, from 1.
        round: u32,
        /// This worker's unanswered calls.
        calls_out: usize,
        /// How long this worker had been waiting.
        elapsed: Duration,
    },
    /// Workers died before they arrived in the round, so it cannot complete.
    #[error(
        "graceful shutdown: {dead} died before arriving in round {round}, detected after {:.3}s",
        elapsed.as_secs_f64()
    )]
    WorkersDead {
        /// Workers that died.
        dead: Shortlist<WorkerInfo>,
        /// The round, from 1.
        round: u32,
        /// How long this worker had been waiting.
        elapsed: Duration,
    },
    /// A worker of the group could not start, so it never arrives.
    #[error("graceful shutdown: {worker} could not start: {why}")]
    WorkerFailed {
        /// The worker that failed.
        worker: Box<WorkerInfo>,
        /// The text of its error, at most 512 characters.
        why: String,
    },
    /// The shutdown was interrupted, for example by another thread that called `shutdown_now`, or by
    /// [`AgentOptions::with_cancel`](crate::AgentOptions::with_cancel).
    #[error("graceful shutdown: interrupted by this worker after {:.3}s, in round {round}", elapsed.as_secs_f64())]
    Interrupted {
        /// The round, from 1; 0 before the first.
        round: u32,
        /// How long this worker had been shutting down.
        elapsed: Duration,
    },
    /// The store holds a value that no worker writes.
    #[error("graceful shutdown: {key:?} at {store} is not a number: \"{value}\"")]
    Corrupt {
        /// Full key of the value.
        key: String,
        /// Label of the store.
        store: String,
        /// The value, at most 40 characters of it.
        value: String,
    },
    /// The store failed. The source names the key, the store and the elapsed time. If the request may
    /// have taken effect, a second shutdown may count this worker twice.
    #[error("graceful shutdown: {source}")]
    Store {
        /// The store's error.
        source: Box<StoreError>,
    },
    /// A forked child used the agent of its parent. This has no effect on the parent's agent.
    #[error("graceful shutdown: cannot use this worker's agent: {0}")]
    OtherProcess(#[from] OtherProcess),
    /// This worker could not be removed from the list of a dynamic group.
    #[error("graceful shutdown: {source}")]
    Leave {
        /// The error of the directory.
        source: Box<DirectoryError>,
    },
}

c10d_socket::debug_as_display!(TerminationError);

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
