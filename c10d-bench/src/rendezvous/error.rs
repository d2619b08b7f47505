//! Why a rendezvous could not be measured.

use std::io;
use std::ops::Range;
use std::process::ExitStatus;
use std::time::Duration;

use c10d_store::StoreError;
use elastic_rendezvous::RendezvousError;
use elastic_rendezvous::codec::CorruptState;

use super::super::error::BenchError;

#[derive(Debug, thiserror::Error)]
pub(super) enum RendezvousBenchError {
    #[error(
        "{nodes} nodes need {needed} open files in the store's process, but the limit allows only \
         {left} (ulimit -Hn)"
    )]
    TooFewFiles {
        nodes: usize,
        needed: u64,
        left: u64,
    },

    #[error(
        "{nodes} nodes need at least {} MiB of memory, but only {} MiB are available",
        needed >> 20,
        available >> 20
    )]
    TooLittleMemory {
        nodes: usize,
        needed: u64,
        available: u64,
    },

    /// The server, or a process of nodes.
    #[error(transparent)]
    Bench(#[from] BenchError),

    #[error("cannot read the rendezvous' state: {0}")]
    Store(Box<StoreError>),

    #[error("cannot read the rendezvous' state: {0}")]
    State(#[from] CorruptState),

    #[error("node {node}: {source}")]
    Rendezvous {
        node: usize,
        source: Box<RendezvousError>,
    },

    #[error("cannot connect node {node} to the store: {source}")]
    Connect {
        node: usize,
        source: Box<StoreError>,
    },

    #[error("cannot start a thread for node {node}: {source} (ulimit -u, kernel.pid_max)")]
    Thread { node: usize, source: io::Error },

    #[error("the connection of nodes that share one failed: {0}")]
    Link(io::Error),

    #[error("so few nodes form no group: nodes that share a connection need more")]
    NoGroup,

    #[error("a node has not joined")]
    NotJoined,

    #[error("the thread of node {node} panicked")]
    Panic { node: usize },

    #[error("node {node} could not close or leave the rendezvous: its log says why")]
    NotEnded { node: usize },

    /// An error in a process of nodes, which has sent its text.
    #[error("{0}")]
    InProcess(String),

    #[error(
        "the process of nodes {} to {} ended early ({status}){}",
        nodes.start,
        nodes.end.saturating_sub(1),
        memory_hint(*status)
    )]
    ProcessEnded {
        nodes: Range<usize>,
        status: ExitStatus,
    },

    #[error("the store's process ended early ({status}){}", memory_hint(*status))]
    StoreEnded { status: ExitStatus },

    #[error("a process of nodes sent a line that is not a report: {0}")]
    BadReport(String),

    #[error("{waited_for}: no report of a process of nodes for {limit:?}")]
    Silence {
        waited_for: &'static str,
        limit: Duration,
    },

    #[error(
        "the round was complete before its first node was killed after {after:?}: choose a smaller \
         --kill-first-after"
    )]
    KilledTooLate { after: Duration },

    /// A figure without agreement would be worthless.
    #[error("{nodes} nodes do not agree: {detail}")]
    Disagreement { nodes: usize, detail: String },
}

impl From<StoreError> for RendezvousBenchError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl RendezvousBenchError {
    pub(super) fn rendezvous(node: usize) -> impl FnOnce(RendezvousError) -> Self {
        move |source| match source {
            RendezvousError::Thread { source, .. } => Self::Thread { node, source },
            source => Self::Rendezvous {
                node,
                source: Box::new(source),
            },
        }
    }

    /// The error of a write to the measurement.
    pub(super) fn report(source: io::Error) -> Self {
        BenchError::system("cannot report to the measurement")(source).into()
    }
}

/// The system ends a process by a signal when memory runs out; so does Rust when an allocation fails.
fn memory_hint(status: ExitStatus) -> &'static str {
    if status.code().is_none() {
        ": memory may not suffice"
    } else {
        ""
    }
}
