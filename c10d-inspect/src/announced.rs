//! What a launcher tells the store about the workers of its node, as JSON in an ANNOUNCE request.
//!
//! Times are ages at the moment of sending, in milliseconds: the clocks of two hosts differ.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::nccl::AnnouncedNccl;
use crate::report::RankSet;
use crate::stacks::Stacks;

/// The workers of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedNode {
    /// The host's name.
    pub host: String,
    /// The node's rank in the rendezvous.
    pub node_rank: Option<usize>,
    /// The number of nodes of the round.
    pub nodes: Option<usize>,
    /// The number of ranks of the job.
    pub world_size: Option<usize>,
    /// The launcher's process.
    pub pid: u32,
    /// The id of the run, as of `--rdzv-id`.
    pub run_id: String,
    /// How often the workers have been restarted.
    pub restarts: usize,
    /// The membership group of the workers (`--keep-workers`); `None` if the death of a worker restarts all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<String>,
    /// How long ago the launcher looked at the state of the workers' processes, in milliseconds.
    pub looked_ago_ms: u64,
    /// The workers of this node.
    pub workers: Vec<AnnouncedWorker>,
    /// Where the launcher answers requests for stacks, if it does.
    pub debug_address: Option<SocketAddr>,
    /// The addresses of this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The network interface that leads to the other nodes, as `eth0`; `None` if it is unknown, or there is one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// What NCCL says on this node; `None` if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<AnnouncedNccl>,
    /// The nodes' meeting that this launcher waits in; `None` while it waits in none.
    pub meeting: Option<AnnouncedMeeting>,
    /// The root cause of the failure of the workers, as the launcher reports it; `None` before a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<AnnouncedCause>,
    /// The distinct stacks that the samples of the workers refer to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stacks>,
    /// How long a job makes no progress before this launcher reports it, in milliseconds; `None` if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain_after_ms: Option<u64>,
}

/// The root cause of a failure, which a launcher has found from the exits of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedCause {
    /// One or two sentences.
    pub text: String,
    /// The ranks that are the cause.
    pub ranks: RankSet,
    /// The ranks that failed because of them.
    pub victims: RankSet,
}

/// A round of a rendezvous that is not complete, as one of its nodes sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedMeeting {
    /// The round; 0 in a rendezvous that has no rounds.
    pub round: i64,
    /// How many nodes are missing; 0 while the nodes that suffice give others time to join.
    pub missing: usize,
    /// Which nodes have joined and which are missing, in the words of the launcher's own reports.
    pub text: String,
    /// How long the launcher has waited, in milliseconds.
    pub waited_ms: u64,
}

/// One worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedWorker {
    /// Its global rank.
    pub rank: usize,
    /// Its rank on the node.
    pub local_rank: usize,
    /// The process that the launcher started: Python, or a shell around it.
    pub pid: u32,
    /// How long ago it started, in milliseconds.
    pub started_ago_ms: u64,
    /// Whether it runs in the place of one that died while the others ran on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_replacement: bool,
    /// How it ended; `None` while it runs.
    pub end: Option<WorkerEnd>,
    /// The worker's processes: itself and its descendants.
    pub processes: Vec<AnnouncedProcess>,
    /// The unix socket of its debug server, if the launcher gave it one.
    pub debug_socket: Option<PathBuf>,
    /// The last observation of a worker that may make no progress; `None` if the launcher had no reason for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<AnnouncedSample>,
}

/// A launcher's observation of a running worker of a job that may make no progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedSample {
    /// How long ago the observation was made, in milliseconds.
    pub taken_ago_ms: u64,
    /// The observed process: the process of the worker that runs Python, or the worker itself.
    pub pid: u32,
    /// For how long its main thread has used less than 1 % of a CPU, in milliseconds; 0 if it uses more.
    pub quiet_ms: u64,
    /// For how long its main thread has not run at all, so that it is where it was, in milliseconds. `None` if the kernel
    /// does not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_ms: Option<u64>,
    /// For how long the worker has shown no progress in any other way, in milliseconds: its descendants used less than
    /// 10 % of a CPU, no bytes were read or written, and no step was reported. 0 if it progresses.
    pub idle_ms: u64,
    /// The part of a CPU that the main thread used in the last seconds, in percent.
    pub cpu_percent: u32,
    /// The part of a CPU that the worker's other threads and processes used in the last seconds, in percent.
    pub others_cpu_percent: u32,
    /// The bytes that the worker and its descendants read and wrote in the last seconds, per second.
    pub io_bytes_per_second: u64,
    /// The state letter of /proc of the main thread; `None` if it is unknown.
    pub state: Option<char>,
    /// The function of the kernel in which the main thread waits, for example `pipe_read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_in: Option<String>,
    /// The system call in which the main thread is, for example `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_call: Option<String>,
    /// The command line of a process that is not Python, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_line: Option<String>,
    /// The index of its Python stacks in [`AnnouncedNode::stacks`]; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<usize>,
    /// The index of its Python stacks about 5 s before; `None` if there was no such observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks_before: Option<usize>,
    /// The reason why its stacks cannot be read, in a clause; `None` if they were read, or if it is not Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The children of the process that have exited and were not collected, for example a killed DataLoader worker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dead_children: Vec<u32>,
    /// The connections of the process whose data has not been acknowledged for about 5 s, the largest queues first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unacknowledged: Vec<UnacknowledgedData>,
}

/// Data that a process has sent by TCP, and that the host of its peer does not acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnacknowledgedData {
    /// The address of the peer.
    pub remote: SocketAddr,
    /// The number of bytes in the send queue of the connection.
    pub bytes: u64,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// The exit code; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How long ago it ended, in milliseconds.
    pub ago_ms: u64,
    /// Whether the launcher itself ended it.
    pub by_launcher: bool,
}

/// A process of a worker, as the launcher's host shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedProcess {
    /// Its id on the host.
    pub pid: u32,
    /// Its id in its own process namespace, which is what PyTorch's client sends.
    pub inner_pid: Option<u32>,
    /// The process that started it, on the host.
    pub parent: Option<u32>,
    /// The name of its program, as `python3` or `bash`.
    pub command: Option<String>,
    /// The state letter of /proc: R, S, D, T, Z.
    pub state: Option<char>,
    /// CPU time used so far, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The local addresses of its connections to the workers' store; through a relay, with the IP address that the store
    /// sees.
    pub store_connections: Vec<SocketAddr>,
    /// Addresses to which it tries to connect without an answer yet.
    pub connecting_to: Vec<SocketAddr>,
}
