//! Errors of a rendezvous.

use std::time::Duration;

use c10d_socket::{DialFailure, DialStage, HostPort};
use c10d_store::{StoreError, in_brief};

use crate::values::codec::CorruptState;
use crate::values::diagnosis::{FoundListener, Unreachable};
use crate::values::parameters_error::ParametersError;
use crate::values::port_range::PortRange;
use crate::values::ranks_report::RanksReport;
use crate::values::report::WaitReport;

/// The reason why a node does not take part in a round.
///
/// The kinds follow PyTorch (`torch/distributed/elastic/rendezvous/api.py`), with the details that it
/// omits: present and missing nodes, and the store's error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The rendezvous is closed: there are no more rounds for this run id.
    #[error(
        "the rendezvous of run {run_id:?} is closed: the job has ended or failed; \
         start a new one under another run id"
    )]
    Closed {
        /// The job's name, the same on all nodes.
        run_id: String,
    },

    /// Too few nodes joined within the join timeout. This node has left the rendezvous.
    #[error("the rendezvous timed out after {:.1} s: {report}", report.waited.as_secs_f64())]
    Timeout {
        /// The nodes that joined, and those known to be missing.
        report: Box<WaitReport>,
    },

    /// Closing, leaving or a heartbeat timed out, because other nodes kept changing the state.
    #[error("could not {operation} the rendezvous of run {run_id:?} within {:.1} s", timeout.as_secs_f64())]
    OperationTimeout {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// `close`, `leave` or `send a heartbeat to`.
        operation: &'static str,
        /// The time that was spent.
        timeout: Duration,
    },

    /// Not all nodes of a static rendezvous joined within its timeout.
    #[error("the rendezvous timed out after {:.1} s: {report}", report.waited.as_secs_f64())]
    RanksMissing {
        /// The nodes that joined and the missing ranks.
        report: Box<RanksReport>,
    },

    /// A rendezvous over a file without a path cannot create a temporary file.
    #[error("cannot create a temporary file for the rendezvous of run {run_id:?}: {source}")]
    TemporaryFile {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The error of the system.
        source: std::io::Error,
    },

    /// The store failed. Whether the last write of the state succeeded is unknown.
    #[error(
        "the rendezvous of run {run_id:?} cannot use its store: {}",
        shown(source)
    )]
    Connection {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The error of the store.
        source: Box<StoreError>,
    },

    /// Something else than this job's store listens at the endpoint.
    #[error(
        "cannot meet the nodes of run {run_id:?}: no store of this job, but {found} listens at {endpoint}, for {:.1} s; \
         stop it, or use another port in --rdzv-endpoint (or --master-port)",
        waited.as_secs_f64()
    )]
    OtherListener {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The endpoint where the store was expected.
        endpoint: HostPort,
        /// The program that listens there.
        found: Box<FoundListener>,
        /// The time that this node waited for the store.
        waited: Duration,
    },

    /// The state has disappeared from the store, for example after a restart of its server.
    #[error("the {store} has lost the state of run {run_id:?}: was its server restarted?")]
    StateLost {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The label of the store.
        store: String,
    },

    /// The value under the rendezvous' key is not a state. It stays in the store.
    #[error("{key:?} in the {store} holds no rendezvous state: {source}")]
    CorruptState {
        /// The label of the store.
        store: String,
        /// The key of the state, with all prefixes.
        key: String,
        /// The reason why the value is not a state.
        source: CorruptState,
    },

    /// The job ended while this node was a spare. Not a failure: the node can exit.
    #[error("the job {run_id:?} has ended, and this node was a spare that was not needed")]
    GracefulExit {
        /// The job's name, the same on all nodes.
        run_id: String,
    },

    /// The join was interrupted; this node has left the rendezvous.
    #[error("the rendezvous of run {run_id:?} was interrupted; this node has left it")]
    Interrupted {
        /// The job's name, the same on all nodes.
        run_id: String,
    },

    /// The last attempt to read or watch the state failed, so the membership of the round is unknown.
    #[error("the membership of run {run_id:?} is unknown: {detail}")]
    MembershipUnknown {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The error of the last attempt.
        detail: String,
    },

    /// The handler was shut down.
    #[error("the handler of the rendezvous of run {run_id:?} was shut down")]
    ShutDown {
        /// The job's name, the same on all nodes.
        run_id: String,
    },

    /// The round is complete, but no address of the workers' store was published.
    #[error(
        "no node has published the address of the workers' store for round {round} of run \
         {run_id:?} within {:.1} s: {report}",
        timeout.as_secs_f64()
    )]
    NoBootstrap {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The number of the round that was complete.
        round: i64,
        /// The time that was spent.
        timeout: Duration,
        /// The nodes of the round.
        report: Box<WaitReport>,
    },

    /// Another node published an invalid port of the workers' store.
    #[error("{key:?} in the {store} is not a port: \"{value}\"")]
    BadBootstrap {
        /// The label of the store.
        store: String,
        /// The key of the port, with all prefixes.
        key: String,
        /// The invalid text, found instead of a number from 0 to 65535.
        value: String,
    },

    /// The workers are to use the rendezvous' store, but the workers of another job use it already.
    #[error(
        "the workers of run {run_id:?} cannot use the {store}: the workers of run \"{owner}\" still use it; give each \
         job its own store, or use --workers-store agent"
    )]
    WorkersOfAnotherJob {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The label of the store.
        store: String,
        /// The name of the other job.
        owner: String,
    },

    /// The nodes of a job differ in whether they keep the workers that survive another worker.
    #[error(
        "cannot join run {run_id:?}: {with} has --keep-workers, and {without} has not; start all nodes with the option, or \
         none"
    )]
    KeepingDiffers {
        /// The job's name, the same on all nodes.
        run_id: String,
        /// The node that keeps its workers: this one or the other.
        with: String,
        /// The node that does not.
        without: String,
    },

    /// This node does not reach the workers' store, and therefore has started no worker.
    #[error(
        "cannot reach the workers' store of {node}: tried {error} for {:.0} s; open port {port} between the nodes \
         (--workers-port chooses it), or give {node} an address that this node reaches (--local-addr)",
        error.waited.as_secs_f64()
    )]
    StoreUnreachable {
        /// The address of the node with rank 0.
        node: String,
        /// The port of the store, as published.
        port: u16,
        /// The addresses, each with the reason why it does not work.
        error: Unreachable,
    },

    /// None of the given ports for the workers' store is free on this machine.
    #[error(
        "cannot serve the workers' store on port {ports} (--workers-port): {source}; give a free port or a range, or use \
         the rendezvous' port for both (--workers-store rendezvous)"
    )]
    WorkersPort {
        /// The ports that were tried.
        ports: PortRange,
        /// The error of the last tried port.
        source: Box<StoreError>,
    },

    /// A parameter or setting is invalid.
    #[error(transparent)]
    Parameters(#[from] ParametersError),

    /// The backend's name is unknown.
    #[error("unknown rendezvous backend {name:?}; known are {}", known.join(", "))]
    UnknownBackend {
        /// The requested name of a backend.
        name: String,
        /// The names of the backends.
        known: Vec<String>,
    },

    /// The system cannot start a thread.
    #[error("cannot start the thread {name:?}: {source}")]
    Thread {
        /// The name of the thread.
        name: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Whether the store did not answer, and another connection may help.
pub(crate) const fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Connect { .. } | StoreError::ConnectionLost { .. } | StoreError::NoReply { .. }
    )
}

/// The error of the store. A store out of reach is one cause and a cure, because it is the most frequent error of a first
/// job.
fn shown(source: &StoreError) -> String {
    let connect = match source {
        StoreError::Connect { source, .. } => source,
        _ if is_outage(source) => return in_brief(source),
        _ => return source.to_string(),
    };
    let last = connect.failures().last();
    let cure = match last.map(DialFailure::stage) {
        Some(DialStage::Lookup) => "; give a name or an address that this host knows",
        // The error has the possible reasons.
        Some(DialStage::Handshake(_)) => {
            let whole = last.map(|it| it.error().to_string()).unwrap_or_default();
            let explanation = whole.find("; ").map_or("", |at| &whole[at..]);
            return in_brief(source) + explanation;
        }
        _ => "; is the launcher of that host running, and its port open? c10d doctor checks both",
    };
    in_brief(source) + cure
}

c10d_socket::debug_as_display!(RendezvousError);

impl RendezvousError {
    /// Whether the store did not answer: a later request may succeed.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Connection { source, .. } if is_outage(source))
    }

    pub(crate) fn connection(run_id: &str, source: StoreError) -> Self {
        Self::Connection {
            run_id: run_id.to_owned(),
            source: Box::new(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::{TcpStore, TcpStoreOptions};

    use super::*;

    #[test]
    fn a_store_out_of_reach_is_one_cause_and_a_cure() {
        for (host, cause, cure) in [
            ("127.0.0.1", "Connection refused", "c10d doctor checks both"),
            ("no host", "", "an address that this host knows"),
        ] {
            let options = TcpStoreOptions::default().with_timeout(Duration::from_millis(10));
            // Nothing listens at port 1.
            let source = TcpStore::open(host, 1, options).unwrap_err();
            let text = RendezvousError::connection("17", source).to_string();
            let begin = format!(
                "the rendezvous of run \"17\" cannot use its store: cannot connect to {host}:1 ({cause}"
            );
            assert!(text.starts_with(&begin), "{text}");
            assert!(text.ends_with(cure), "{text}");
        }
    }
}
