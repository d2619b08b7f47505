//! The answer: what stands still, who is missing, and what each rank does. Serialized as it is for `c10d why
//! --json` and the status page.
//!
//! All texts are free of control characters; no text contains a value of the store.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text;

/// What is known about a job at one moment. Ages are in milliseconds at that moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The moment, in milliseconds since 1970 by the server's clock; 0 if unknown.
    pub taken_unix_ms: u64,
    /// How long the server has run, in milliseconds.
    pub uptime_ms: u64,
    /// One sentence: what is wrong, or that nobody waits.
    pub headline: String,
    /// Whether somebody waits for a rank that is missing or stands still.
    pub is_stuck: bool,
    /// Whether the job makes progress, as far as that is known. `NoProgress` if `is_stuck`.
    pub state: ReportState,
    /// What was found: causes first, each followed by nothing that it explains.
    pub findings: Vec<Finding>,
    /// The number of ranks of the job, if known.
    pub world_size: Option<usize>,
    /// The ranks, in order; ranks of which nothing is known included, if the world size is known.
    pub ranks: Vec<RankReport>,
    /// Processes with connections that belong to no known rank.
    pub unknown_processes: Vec<Process>,
    /// The nodes that announced themselves.
    pub nodes: Vec<NodeReport>,
    /// The groups that are being made or have been made.
    pub groups: Vec<Group>,
    /// The groups whose members agree through the store's server, by name.
    pub memberships: Vec<MembershipReport>,
    /// What is waited for, the longest wait first.
    pub waits: Vec<WaitFor>,
    /// The stores of the workers whose nodes meet at this one, that of the latest round first. Empty for a store that
    /// the workers use themselves.
    pub workers_stores: Vec<WorkersStore>,
}

impl Report {
    /// Where the workers are of which this report says nothing, because their nodes only meet at its store.
    #[must_use]
    pub fn stores_elsewhere(&self) -> &[WorkersStore] {
        // Nodes that wait for others have no workers at present.
        match self.is_stuck {
            true => &[],
            false => &self.workers_stores,
        }
    }
}

/// A duration as the ages of a report have it.
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
    /// The observed ranks make no progress, and others are not observed.
    PartlyObserved,
    /// No rank makes progress, or ranks wait for a missing or blocked rank.
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
    /// The id of the run, as of `--rdzv-id`.
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
    /// What the group is doing, as in "members leave their mesh".
    pub stage: String,
    /// Whether all is well: a generation works, or the group has ended.
    pub is_settled: bool,
    /// The number of the last generation, and of the newest attempt; 0 for none.
    pub generation: u32,
    /// See `generation`.
    pub attempt: u32,
    /// The uuid of the last generation (`generation.uuid` in Python), as a decimal number; empty for none.
    pub uuid: String,
    /// Whether the last generation is whole: its members work, until they stop for a change at a step boundary.
    pub is_whole: bool,
    /// The ranks that are in a whole generation of the group of `c10d run --keep-workers`; empty for other groups.
    pub ranks: RankSet,
    /// How many members the last generation has.
    pub size: usize,
    /// The processes of the group, and those that wait to be.
    pub members: usize,
    /// Who is waited for, at most 8, as in "member 2.1 (rank 0)".
    pub waits_for: Vec<String>,
    /// How many are waited for.
    pub waits_for_count: usize,
    /// The time until the group goes on without them, in milliseconds.
    pub time_left_ms: Option<u64>,
    /// The last processes that ceased to be members, the newest first, at most 8, as in "member 2.1 (its process has ended)".
    pub departures: Vec<String>,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about, for programs.
    pub kind: FindingKind,
    /// One or two sentences that a person can act on.
    pub text: String,
    /// The ranks that caused it: missing, frozen, lost, or in conflict.
    pub culprits: RankSet,
    /// The ranks that wait for them.
    pub waiting: RankSet,
    /// The hosts between which data is not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// How long it has lasted, in milliseconds, if known.
    pub age_ms: Option<u64>,
    /// Whether another finding explains this one.
    pub is_consequence: bool,
}

impl Finding {
    /// A cause without ranks.
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

/// "rank 2", "ranks 1 and 3", "ranks 0-4095 and 4100", at most 8 ranges; nothing if there are none.
impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => f.write_str(&text::ranks(&self.0)),
        }
    }
}

/// What a finding is about, for programs. Its text is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// Ranks wait for ranks that never connected.
    NeverConnected,
    /// A rank connected and stopped before it published its address.
    NotPublished,
    /// A rank published its address and then read nothing: it stands still.
    Frozen,
    /// A rank's connection closed while the group was being made.
    LostInInit,
    /// A rank left first, and others followed.
    LostLater,
    /// A launcher reports the end of a worker.
    WorkerEnded,
    /// A launcher reports that a worker is stopped, as by SIGSTOP.
    WorkerStopped,
    /// A launcher has gone silent.
    NodeLost,
    /// Launchers wait for other nodes.
    NodesMissing,
    /// Ranks whose relay has no connection to the store.
    Away,
    /// Two processes say that they have the same rank.
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
    /// Ranks have launched fewer operations of NCCL than others.
    NcclBehind,
    /// A NCCL communicator works for some ranks, and not for others.
    NcclApart,
    /// Ranks wait at a barrier.
    Barrier,
    /// Ranks that survive others wait for some of them at a step boundary, or after the last step.
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
    /// The observed ranks make no progress, and others are not observed.
    PartlyObserved,
    /// Ranks wait for other ranks that are at work, which is no alarm.
    WaitsForBusyRank,
    /// Nobody waits on the store, so a hang would be elsewhere.
    NotInTheStore,
    /// Ranks have connections to a store that is kept, which end with the process that serves it.
    ConnectedDirectly,
    /// A kind that a later version of this crate reports.
    #[serde(other)]
    Other,
}

/// What is known of one rank of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RankReport {
    /// The global rank.
    pub rank: usize,
    /// What it does.
    pub state: RankState,
    /// Whether a finding names it as a cause.
    pub is_suspect: bool,
    /// One clause about what it does, as in "waits for ranks 1 and 3".
    pub doing: String,
    /// The host's name or address, if known.
    pub host: Option<String>,
    /// The node's rank, if a launcher announced it.
    pub node_rank: Option<usize>,
    /// Its process, if known.
    pub pid: Option<u32>,
    /// How sure it is that the process has this rank.
    pub sureness: Sureness,
    /// The addresses of its open connections.
    pub connections: Vec<SocketAddr>,
    /// The command and key of its last request.
    pub last_request: Option<String>,
    /// How long ago its last request came, in milliseconds.
    pub last_request_ms: Option<u64>,
    /// The key it waits for.
    pub waits_for: Option<String>,
    /// How long it has waited, in milliseconds.
    pub waits_ms: Option<u64>,
    /// Where its debug server listens, as `http://host:port`, if it published one.
    pub debug_url: Option<String>,
    /// The unix socket of its debug server on its host.
    pub debug_socket: Option<PathBuf>,
}

/// What a rank does, as far as the store and the launchers know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RankState {
    /// Nothing is known of it: it has never connected.
    #[default]
    NotSeen,
    /// A launcher has started it; it has not connected.
    Starting,
    /// It is connected, and has not finished joining its group.
    Connecting,
    /// It waits on the store.
    Waiting,
    /// It is connected and asks the store for nothing.
    Idle,
    /// It ended in order.
    Ended,
    /// It ended otherwise, or its connection closed while others needed it.
    Lost,
}

/// How sure it is that a process has a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sureness {
    /// Nothing links the connection to a rank.
    #[default]
    Unknown,
    /// The same host and process id as a connection that is known.
    SameProcess,
    /// The process says so: it wrote a key that only this rank writes.
    Claimed,
    /// The launcher says so.
    Launched,
}

/// A process that belongs to no known rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// "unknown process 4711 on 10.0.0.3".
    pub name: String,
    /// The addresses of its open connections.
    pub connections: Vec<SocketAddr>,
    /// The command and key of its last request.
    pub last_request: Option<String>,
    /// The key it waits for.
    pub waits_for: Option<String>,
}

/// A node whose launcher announced itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeReport {
    /// The host's name.
    pub host: String,
    /// From 0; `None` if its launcher announced none.
    pub node_rank: Option<usize>,
    /// The launcher's process.
    pub pid: u32,
    /// The launcher's address, as the server sees it.
    pub address: Option<SocketAddr>,
    /// The ranks on this node.
    pub ranks: RankSet,
    /// Whether the launcher's connection is open.
    pub is_connected: bool,
    /// How long ago the launcher announced itself last, in milliseconds.
    pub announced_ms: u64,
    /// How often the workers have been restarted.
    pub restarts: usize,
    /// Where the launcher answers requests for stacks.
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
    /// How it is made: "gloo", "NCCL", "barrier", "RPC".
    pub kind: String,
    /// The number of members, if known.
    pub size: Option<usize>,
    /// The number of members that have arrived.
    pub arrived: usize,
    /// The missing members, by their rank in the group.
    pub missing: RankSet,
    /// Whether all have arrived.
    pub is_complete: bool,
}

/// Something that is waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WaitFor {
    /// The key, without control characters.
    pub key: String,
    /// What the key means, as in "the address of rank 2, for the default group".
    pub meaning: String,
    /// The number of connections that wait for it.
    pub connections: usize,
    /// The ranks that wait for it, as far as known.
    pub ranks: RankSet,
    /// How long the longest of these waits has lasted, in milliseconds.
    pub age_ms: u64,
}
