//! The description of a node's workers that its launcher sends to the store, as JSON in an ANNOUNCE request.
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
    /// The name of the host.
    pub host: String,
    /// The node's rank in the rendezvous.
    pub node_rank: Option<usize>,
    /// The number of nodes of the round.
    pub nodes: Option<usize>,
    /// The number of ranks of the job.
    pub world_size: Option<usize>,
    /// The process id of the launcher.
    pub pid: u32,
    /// The id of the run, for example from `--rdzv-id`.
    pub run_id: String,
    /// The number of restarts of the workers.
    pub restarts: usize,
    /// The membership group of the workers (`--keep-workers`); `None` if the death of a worker restarts all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<String>,
    /// The time since the launcher read the state of the workers' processes, in milliseconds.
    pub looked_ago_ms: u64,
    /// The workers of this node.
    pub workers: Vec<AnnouncedWorker>,
    /// The address at which the launcher answers requests for stacks, if it does.
    pub debug_address: Option<SocketAddr>,
    /// The addresses of this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The network interface that leads to the other nodes, such as `eth0`; `None` if it is unknown, or there is one
    /// node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The last answer of NCCL on this node; `None` if there is none.
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
    /// The time for which a job makes no progress before this launcher reports it, in milliseconds; `None` if it never
    /// does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain_after_ms: Option<u64>,
}

/// The root cause of a failure, which a launcher has found from the exits of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedCause {
    /// The cause in one or two sentences.
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
    /// The number of missing nodes; 0 while there are enough nodes, which give more nodes time to join.
    pub missing: usize,
    /// The nodes that have joined and the missing nodes, in the words of the launcher's own reports.
    pub text: String,
    /// The time for which the launcher has waited, in milliseconds.
    pub waited_ms: u64,
}

/// A worker of a node, with its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedWorker {
    /// The worker's global rank.
    pub rank: usize,
    /// The worker's rank on its node.
    pub local_rank: usize,
    /// The process that the launcher started: Python, or a shell around it.
    pub pid: u32,
    /// The time since the worker started, in milliseconds.
    pub started_ago_ms: u64,
    /// Whether the worker has replaced a dead worker while the other workers kept running.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_replacement: bool,
    /// The worker's exit; `None` while it runs.
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
    /// The time since the observation, in milliseconds.
    pub taken_ago_ms: u64,
    /// The observed process: the process of the worker that runs Python, or the worker itself.
    pub pid: u32,
    /// The time for which the main thread has used less than 1 % of a CPU, in milliseconds; 0 if it uses more.
    pub quiet_ms: u64,
    /// The time for which the main thread has not run at all, so that its stack is unchanged, in milliseconds. `None`
    /// if the kernel does not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_ms: Option<u64>,
    /// The time for which the worker has shown no progress in any other way, in milliseconds: its descendants used less
    /// than 10 % of a CPU, no bytes were read or written, and no step was reported. 0 if it progresses.
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

/// The exit of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerEnd {
    /// The exit code; `None` if a signal killed the worker.
    pub exit_code: Option<i32>,
    /// The signal that killed the worker.
    pub signal: Option<i32>,
    /// The time since the exit, in milliseconds.
    pub ago_ms: u64,
    /// Whether the launcher itself stopped the worker.
    pub by_launcher: bool,
}

/// A process of a worker, as the launcher's host shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AnnouncedProcess {
    /// The process id on the host.
    pub pid: u32,
    /// The process id in the process's own namespace. PyTorch's client sends this id.
    pub inner_pid: Option<u32>,
    /// The process that started it, on the host.
    pub parent: Option<u32>,
    /// The name of its program, such as `python3` or `bash`.
    pub command: Option<String>,
    /// The state letter of /proc: R, S, D, T, Z.
    pub state: Option<char>,
    /// CPU time used so far, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The local addresses of its connections to the workers' store; through a relay, with the IP address that appears
    /// in the store.
    pub store_connections: Vec<SocketAddr>,
    /// Addresses to which it tries to connect without an answer yet.
    pub connecting_to: Vec<SocketAddr>,
}
