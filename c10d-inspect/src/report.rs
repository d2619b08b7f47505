//! The report on a job: causes of a hang, missing ranks, and the state of each rank. Its JSON form is the output of
//! `c10d why --json` and the content of the status page.
//!
//! All texts are free of control characters; no text contains a value of the store.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text;

/// A report on a job at one moment. Ages are in milliseconds at that moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The moment, in milliseconds since 1970 by the server's clock; 0 if unknown.
    pub taken_unix_ms: u64,
    /// The time for which the server has run, in milliseconds.
    pub uptime_ms: u64,
    /// The most important problem, or that no rank waits, in one sentence.
    pub headline: String,
    /// Whether a process waits for a missing or blocked rank.
    pub is_stuck: bool,
    /// Whether the job makes progress, as far as that is known. `NoProgress` if `is_stuck`.
    pub state: ReportState,
    /// The findings, causes first. Findings that another finding explains are marked as consequences.
    pub findings: Vec<Finding>,
    /// The number of ranks of the job, if known.
    pub world_size: Option<usize>,
    /// The ranks, in order. If the world size is known, the list also has ranks that never connected.
    pub ranks: Vec<RankReport>,
    /// Processes with connections that belong to no known rank.
    pub unknown_processes: Vec<Process>,
    /// The nodes that announced themselves.
    pub nodes: Vec<NodeReport>,
    /// The groups that are being made or have been made.
    pub groups: Vec<Group>,
    /// The groups whose members agree through the store's server, sorted by their names.
    pub memberships: Vec<MembershipReport>,
    /// The keys that ranks wait for, the longest wait first.
    pub waits: Vec<WaitFor>,
    /// The workers' stores of the runs whose nodes meet at this store, the latest round's store first. Empty for a
    /// store that the workers use themselves.
    pub workers_stores: Vec<WorkersStore>,
}

impl Report {
    /// Returns the stores of workers that are not in this report, because only their nodes meet at the reported store.
    #[must_use]
    pub fn stores_elsewhere(&self) -> &[WorkersStore] {
        // Nodes that wait for others have no workers at present.
        match self.is_stuck {
            true => &[],
            false => &self.workers_stores,
        }
    }
}

/// A duration in the unit of a report's ages.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a job makes progress.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReportState {
    /// There is no evidence of a hang. Ranks may have waited for a short time.
    #[default]
    Running,
    /// Ranks wait for a rank that computes, reads or writes. This rank may be in an endless loop.
    WaitingForBusyRank,
    /// The observed ranks make no progress, and other ranks are not observed.
    PartlyObserved,
    /// The job makes no progress, or ranks wait for a missing or blocked rank.
    NoProgress,
    /// A state that a later version of this crate reports.
    #[serde(other)]
    Other,
}

/// The store that the workers of a run use, as the rendezvous of its nodes names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkersStore {
    /// The id of the run, for example from `--rdzv-id`.
    pub run_id: String,
    /// The round of the rendezvous.
    pub round: u64,
    /// The address, as `host:port` or `[host]:port`.
    pub address: String,
}

/// A process group whose members agree through the store's server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MembershipReport {
    /// The name, without control characters.
    pub name: String,
    /// The group's current activity, for example "members leave their mesh".
    pub stage: String,
    /// Whether all is well: a generation works, or the group has ended.
    pub is_settled: bool,
    /// The number of the last generation; 0 for none.
    pub generation: u32,
    /// The number of the newest attempt; 0 for none.
    pub attempt: u32,
    /// The uuid of the last generation (`generation.uuid` in Python), as a decimal number; empty for none.
    pub uuid: String,
    /// Whether the last generation is whole: its members work, until they stop for a change at a step boundary.
    pub is_whole: bool,
    /// The ranks that are in a whole generation of the group of `c10d run --keep-workers`; empty for other groups.
    pub ranks: RankSet,
    /// The number of members of the last generation.
    pub size: usize,
    /// The number of processes that are in the group or wait to join it.
    pub members: usize,
    /// The members that the group waits for, at most 8, for example "member 2.1 (rank 0)".
    pub waits_for: Vec<String>,
    /// The number of members that the group waits for.
    pub waits_for_count: usize,
    /// The time until the group continues without these members, in milliseconds.
    pub time_left_ms: Option<u64>,
    /// The last processes that ceased to be members, the newest first, at most 8, for example "member 2.1 (its process
    /// has ended)".
    pub departures: Vec<String>,
}

/// A problem or an observation, with the ranks involved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the finding, for programs.
    pub kind: FindingKind,
    /// The finding in one or two sentences that a person can act on.
    pub text: String,
    /// The ranks that caused the problem: missing, frozen, lost, or in conflict.
    pub culprits: RankSet,
    /// The ranks that wait for the culprits.
    pub waiting: RankSet,
    /// The hosts between which data is not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The time for which the problem has lasted, in milliseconds, if known.
    pub age_ms: Option<u64>,
    /// Whether another finding explains this one.
    pub is_consequence: bool,
}

impl Finding {
    /// Creates a cause without ranks.
    #[must_use]
    pub fn new(kind: FindingKind, text: String) -> Self {
        Self {
            kind,
            text,
            culprits: RankSet::default(),
            waiting: RankSet::default(),
            hosts: Vec::new(),
            age_ms: None,
            is_consequence: false,
        }
    }
}

/// Rank numbers within one job or group, in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankSet(pub BTreeSet<usize>);

/// Formats the ranks as "rank 2", "ranks 1 and 3" or "ranks 0-4095 and 4100", with at most 8 ranges; an empty text if
/// there are none.
impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => f.write_str(&text::ranks(&self.0)),
        }
    }
}

/// The kind of a finding, for programs. People read the finding's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// Ranks wait for ranks that never connected.
    NeverConnected,
    /// A rank connected and stopped before it published its address.
    NotPublished,
    /// A rank published its address and then read nothing, so it is blocked.
    Frozen,
    /// A rank's connection closed while the group was being made.
    LostInInit,
    /// A rank left first, and other ranks followed.
    LostLater,
    /// A launcher reports the end of a worker.
    WorkerEnded,
    /// A launcher reports that a worker is stopped, for example by SIGSTOP.
    WorkerStopped,
    /// A launcher has gone silent.
    NodeLost,
    /// Launchers wait for other nodes.
    NodesMissing,
    /// Ranks whose relay has no connection to the store.
    Away,
    /// Two processes claim the same rank.
    SameRank,
    /// Two jobs share this store.
    TwoJobs,
    /// Ranks have read addresses of an earlier run.
    StaleAddresses,
    /// gloo listens at loopback in ranks that ranks of other hosts have to reach.
    GlooLoopback,
    /// Ranks disagree about the world size.
    WorldSizeDiffers,
    /// Ranks make groups under different names.
    GroupNamesDiffer,
    /// Members of a group have not called `new_group`.
    GroupIncomplete,
    /// Ranks wait for the id of a NCCL communicator.
    NcclId,
    /// NCCL considers processes dead.
    NcclDead,
    /// Processes do not answer NCCL.
    NcclSilent,
    /// NCCL has an error in some ranks.
    NcclFailed,
    /// Ranks have launched fewer operations of NCCL than other ranks.
    NcclBehind,
    /// A NCCL communicator works for some ranks, and not for others.
    NcclApart,
    /// Ranks wait at a barrier.
    Barrier,
    /// Surviving ranks wait for some of their group at a step boundary, or after the last step.
    Boundary,
    /// Ranks wait for a key whose meaning is not known.
    Key,
    /// Ranks gave up waiting.
    GaveUp,
    /// Ranks wait in a collective, and other ranks are blocked elsewhere or have exited.
    RankBlocked,
    /// Ranks wait in different collectives, or at different lines.
    CallsDiffer,
    /// All ranks wait in one collective at one line.
    TransportStalled,
    /// All ranks are blocked outside of known calls.
    AllBlocked,
    /// The observed ranks make no progress, and other ranks are not observed.
    PartlyObserved,
    /// Ranks wait for other ranks that are at work, which is no alarm.
    WaitsForBusyRank,
    /// The ranks do not wait on the store, so a hang would be elsewhere.
    NotInTheStore,
    /// Ranks are connected directly to a durable store, so they lose their connections when the process that serves it
    /// exits.
    ConnectedDirectly,
    /// A kind that a later version of this crate reports.
    #[serde(other)]
    Other,
}

/// The state of one rank of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RankReport {
    /// The rank's number in the job.
    pub rank: usize,
    /// The rank's current activity.
    pub state: RankState,
    /// Whether a finding names it as a cause.
    pub is_suspect: bool,
    /// The rank's activity as a clause, for example "waits for ranks 1 and 3".
    pub doing: String,
    /// The host's name or address, if known.
    pub host: Option<String>,
    /// The node's rank, if a launcher announced it.
    pub node_rank: Option<usize>,
    /// The process id, if known.
    pub pid: Option<u32>,
    /// The evidence that the process has this rank.
    pub sureness: Sureness,
    /// The addresses of the process's open connections.
    pub connections: Vec<SocketAddr>,
    /// The command and the key of the last request.
    pub last_request: Option<String>,
    /// The time since the last request, in milliseconds.
    pub last_request_ms: Option<u64>,
    /// The key that the process waits for.
    pub waits_for: Option<String>,
    /// The time for which the rank has waited, in milliseconds.
    pub waits_ms: Option<u64>,
    /// The URL of the rank's debug server, as `http://host:port`, if the rank published it.
    pub debug_url: Option<String>,
    /// The unix socket of the rank's debug server on its host.
    pub debug_socket: Option<PathBuf>,
}

/// The activity of a rank, as observed by the store and the launchers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RankState {
    /// The rank has never connected.
    #[default]
    NotSeen,
    /// A launcher has started the rank, which has not connected.
    Starting,
    /// The rank is connected, and has not finished joining its group.
    Connecting,
    /// The rank waits on the store.
    Waiting,
    /// The rank is connected and sends no requests to the store.
    Idle,
    /// The rank exited in order.
    Ended,
    /// The rank exited otherwise, or its connection closed while other ranks needed it.
    Lost,
}

/// The evidence that a process has a rank, from weak to strong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sureness {
    /// Nothing links the connection to a rank.
    #[default]
    Unknown,
    /// The connection has the same host and process id as another connection of this rank.
    SameProcess,
    /// The process claims the rank: it wrote a key that only this rank writes.
    Claimed,
    /// The launcher has announced the process with this rank.
    Launched,
}

/// A process that belongs to no known rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// The name for people, such as "unknown process 4711 on 10.0.0.3".
    pub name: String,
    /// The addresses of the process's open connections.
    pub connections: Vec<SocketAddr>,
    /// The command and the key of the last request.
    pub last_request: Option<String>,
    /// The key that the process waits for.
    pub waits_for: Option<String>,
}

/// A node whose launcher announced itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeReport {
    /// The name of the host.
    pub host: String,
    /// The node's rank, from 0; `None` if its launcher announced none.
    pub node_rank: Option<usize>,
    /// The process id of the launcher.
    pub pid: u32,
    /// The launcher's address from the server's side.
    pub address: Option<SocketAddr>,
    /// The ranks on this node.
    pub ranks: RankSet,
    /// Whether the launcher's connection is open.
    pub is_connected: bool,
    /// The time since the launcher's last announcement, in milliseconds.
    pub announced_ms: u64,
    /// The number of restarts of the workers.
    pub restarts: usize,
    /// The address at which the launcher answers requests for stacks.
    pub debug_address: Option<SocketAddr>,
    /// Whether the launcher has announced observations of its workers.
    pub is_observed: bool,
    /// Whether a worker of this node has been quiet for half of the time after which the launcher explains a job that makes no
    /// progress.
    pub is_quiet: bool,
}

/// A group of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Group {
    /// The group's name in its keys: "0" for the default group.
    pub name: String,
    /// The way in which the group is created: "gloo", "NCCL", "barrier" or "RPC".
    pub kind: String,
    /// The number of members, if known.
    pub size: Option<usize>,
    /// The number of members that have arrived.
    pub arrived: usize,
    /// The missing members, by their rank in the group.
    pub missing: RankSet,
    /// Whether all members have arrived.
    pub is_complete: bool,
}

/// A key that connections wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WaitFor {
    /// The key, without control characters.
    pub key: String,
    /// The meaning of the key, for example "the address of rank 2, for the default group".
    pub meaning: String,
    /// The number of connections that wait for the key.
    pub connections: usize,
    /// The ranks that wait for the key, as far as known.
    pub ranks: RankSet,
    /// The duration of the longest of these waits, in milliseconds.
    pub age_ms: u64,
}
