//! The answer of NCCL's RAS service, in one form for all releases.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The most communicators, and the most members or processes of one list, that are kept.
pub(super) const COMMUNICATORS_MAX: usize = 4096;
pub(super) const LISTED_MAX: usize = 1024;

/// An answer of the RAS service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclReport {
    /// The release of NCCL, such as `2.30.7+cuda13.3`.
    pub version: String,
    /// The number of connections of the service that did not answer in time.
    pub timeouts: usize,
    /// The number of silent processes, and the processes that are named.
    pub silent: Counted<NcclProcess>,
    /// The number of processes that have been silent for a minute, and the processes that are
    /// named.
    pub dead: Counted<NcclProcess>,
    /// The communicators with errors or warnings. An answer in JSON contains all communicators.
    pub communicators: Vec<Communicator>,
}

/// A number of things, and the names of some or all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counted<T> {
    /// The number of things.
    pub count: usize,
    /// The things that are named.
    pub named: Vec<T>,
}

/// Members of a communicator.
pub type Members = Counted<NcclMember>;

/// A process that uses NCCL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NcclProcess {
    /// The address of its host in NCCL's bootstrap network.
    pub host: IpAddr,
    /// The process id that the process itself reports.
    pub pid: u32,
}

/// A member of a communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NcclMember {
    /// The member's rank in the communicator; `None` if the answer does not contain it.
    pub rank: Option<usize>,
    /// The member's process; `None` if the answer does not contain it.
    pub process: Option<NcclProcess>,
    /// The number of the member's GPU in CUDA's numbering of the process.
    pub device: Option<u32>,
}

/// Ranks that send to each other: NCCL's form of a process group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Communicator {
    /// The communicator's id in NCCL's own log: 16 hexadecimal digits.
    pub id: String,
    /// The number of ranks, if the answer contains it.
    pub size: Option<usize>,
    /// Members whose processes did not answer.
    pub missing: Members,
    /// Members with an error, by the error.
    pub failed: Vec<Failed>,
    /// Members by status, if they differ.
    pub statuses: Vec<InStatus>,
    /// The operations that some members have launched more often than other members.
    pub counts: Vec<DifferentCounts>,
}

/// Members with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The error in NCCL's words, such as "Remote process error".
    pub error: String,
    /// The members with this error.
    pub members: Members,
}

/// Members in one status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InStatus {
    /// The status of these members.
    pub status: CommunicatorStatus,
    /// The members with this status.
    pub members: Members,
}

/// The status of a communicator, as a member reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommunicatorStatus {
    /// The process answers, but is not a member, or is no longer a member.
    None,
    /// The communicator is being created.
    Init,
    /// The communicator works.
    Running,
    /// The communicator is being destroyed.
    Finalize,
    /// The communicator was aborted.
    Abort,
}

impl CommunicatorStatus {
    /// Parses the service's word for a status: `UNKNOWN` up to 2.25 is `NOCOMM` later.
    pub(super) fn of(word: &str) -> Option<Self> {
        Some(match word {
            "UNKNOWN" | "NOCOMM" => Self::None,
            "INIT" => Self::Init,
            "RUNNING" => Self::Running,
            "FINALIZE" => Self::Finalize,
            "ABORT" => Self::Abort,
            _ => return None,
        })
    }
}

/// The numbers of operations of one kind that the members have launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferentCounts {
    /// The kind of operation, such as "AllReduce"; up to NCCL 2.25 "collective", for all kinds
    /// together.
    pub operation: String,
    /// The members by the number of operations that they have launched.
    pub launched: Vec<(u64, Members)>,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self {
            count: 0,
            named: Vec::new(),
        }
    }
}

impl<T> Counted<T> {
    /// Returns a count without names.
    pub(super) const fn of(count: usize) -> Self {
        Self {
            count,
            named: Vec::new(),
        }
    }

    pub(super) fn name(&mut self, it: T) {
        if self.named.len() < LISTED_MAX {
            self.named.push(it);
        }
    }

    /// Names and counts one more.
    pub(super) fn add(&mut self, it: T) {
        self.count += 1;
        self.name(it);
    }
}

/// The reason why an answer cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclAnswerError {
    /// The answer does not have the form of any known release.
    #[error("this is not an answer of NCCL's RAS service: {start}")]
    NotRas {
        /// The first bytes, escaped.
        start: String,
    },
    /// The connection ended within the answer.
    #[error("the answer of NCCL's RAS service is not complete")]
    Incomplete,
}
