//! How a rendezvous fails.

use std::time::Duration;

use c10d_store::StoreError;

use crate::codec::CorruptState;
use crate::parameters::ParametersError;
use crate::ranks_report::RanksReport;
use crate::report::WaitReport;

/// Why a rendezvous did not come about, or cannot be asked.
///
/// The kinds are PyTorch's (`torch/distributed/elastic/rendezvous/api.py`), with what it leaves out:
/// who is there, who is missing, what the store said.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Somebody has closed the rendezvous: there will be no more rounds, for this run id.
    #[error(
        "the rendezvous of run {run_id:?} is closed: the job has ended or was given up on; \
         start a new one under another run id"
    )]
    Closed {
        /// The job.
        run_id: String,
    },

    /// Not enough nodes came in time. What this node had written it has taken back.
    #[error("the rendezvous timed out after {:.1} s: {report}", report.waited.as_secs_f64())]
    Timeout {
        /// Who was there.
        report: Box<WaitReport>,
    },

    /// Closing, leaving or a sign of life took too long, as others kept changing the state.
    #[error("could not {what} the rendezvous of run {run_id:?} within {:.1} s", timeout.as_secs_f64())]
    TooSlow {
        /// The job.
        run_id: String,
        /// What was to be done: `close`, `leave`.
        what: &'static str,
        /// The time it had.
        timeout: Duration,
    },

    /// Not all nodes of a static rendezvous came in time.
    #[error("the rendezvous timed out after {:.1} s: {report}", report.waited.as_secs_f64())]
    RanksMissing {
        /// Who was there.
        report: Box<RanksReport>,
    },

    /// A rendezvous over a file without a path could not create a temporary file.
    #[error("cannot create a temporary file for the rendezvous of run {run_id:?}: {source}")]
    TemporaryFile {
        /// The job.
        run_id: String,
        /// What the system said.
        source: std::io::Error,
    },

    /// The store failed. The rendezvous' state is as it was before or after the last write.
    #[error("the rendezvous of run {run_id:?} cannot use its store: {source}")]
    Connection {
        /// The job.
        run_id: String,
        /// What the store said.
        source: Box<StoreError>,
    },

    /// The store has no state any more, as when its server was replaced by a new one.
    #[error("the {store} has lost the state of run {run_id:?}: was its server started anew?")]
    StateLost {
        /// The job.
        run_id: String,
        /// The store.
        store: String,
    },

    /// What is stored under the rendezvous' key is not a state. It is left as it is.
    #[error("{key:?} in the {store} holds no rendezvous state: {source}")]
    CorruptState {
        /// The store.
        store: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        source: CorruptState,
    },

    /// The job has ended while this node was a spare for it. Not a failure: the node may go.
    #[error("the job {run_id:?} has ended, and this node was a spare that was not needed")]
    GracefulExit {
        /// The job.
        run_id: String,
    },

    /// The join was given up because its owner wanted so; the node is on no list any more.
    #[error("the rendezvous of run {run_id:?} was interrupted; this node has left it")]
    Interrupted {
        /// The job.
        run_id: String,
    },

    /// The state could not be read or watched when that was last tried, so what has become of the
    /// round is not known.
    #[error("what has become of the round of run {run_id:?} is not known: {detail}")]
    Unwatched {
        /// The job.
        run_id: String,
        /// Why.
        detail: String,
    },

    /// The handler was shut down.
    #[error("the handler of the rendezvous of run {run_id:?} was shut down")]
    ShutDown {
        /// The job.
        run_id: String,
    },

    /// The nodes have ranks, but the store that the workers are to use is nowhere to be found.
    #[error(
        "no node has published the address of the workers' store for round {round} of run \
         {run_id:?} within {:.1} s: {report}",
        timeout.as_secs_f64()
    )]
    NoBootstrap {
        /// The job.
        run_id: String,
        /// The round.
        round: i64,
        /// The time that was spent.
        timeout: Duration,
        /// Who is in the round.
        report: Box<WaitReport>,
    },

    /// What other nodes have published as the workers' store makes no sense.
    #[error("{key:?} in the {store} is no port: {value:?}")]
    BadBootstrap {
        /// The store.
        store: String,
        /// The key.
        key: String,
        /// What it holds.
        value: String,
    },

    /// The parameters make no sense.
    #[error(transparent)]
    Parameters(#[from] ParametersError),

    /// Nobody has registered a backend of that name.
    #[error("unknown rendezvous backend {name:?}; known are {}", known.join(", "))]
    UnknownBackend {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },

    /// A name was registered twice, or is empty, or its handler calls itself otherwise.
    #[error("rendezvous backend {name:?}: {detail}")]
    BadBackend {
        /// The name.
        name: String,
        /// What is wrong.
        detail: String,
    },

    /// The system refused a thread.
    #[error("cannot start the thread {name:?}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for RendezvousError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl RendezvousError {
    pub(crate) fn connection(run_id: &str, source: StoreError) -> Self {
        Self::Connection {
            run_id: run_id.to_owned(),
            source: Box::new(source),
        }
    }
}
