//! Finds the worker of a process that NCCL names by its host's address and its id.
//!
//! A wrong rank sends a person to the wrong host, so a rank is named only if no other process can be meant. Otherwise
//! only the address and the id are named. A process has the rank of a worker if all of these conditions hold:
//!
//! 1. Launchers have announced all ranks of the job, and each rank once, so that the job has no unannounced process
//!    with this id on this host.
//! 2. One node has announced the address as its own. The loopback address belongs to the only node.
//! 3. All processes of the node's workers have the ids that the launcher has announced: no process has a separate
//!    namespace, in which the same id means another process.
//! 4. One process of them has the id, and its worker's rank (`speaks_for`). It started before NCCL answered.
//! 5. A silent process belongs to a worker that started with the job. A process that NCCL misses may have exited long
//!    ago, and the id may belong to a later worker.
//! 6. Ranks in communicators of all ranks of the job are the ranks of the job. A single contradiction puts all names in
//!    doubt.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::announced::AnnouncedProcess;
use crate::job::Job;
use crate::launched::{Node, Worker, speaks_for};
use crate::nccl::{NcclMember, NcclProblem, NcclProcess, ProblemKind};

/// Workers that start together do so within this time.
const TOGETHER: Duration = Duration::from_secs(30);

/// The workers, by the host and the id of a process in NCCL's answer.
pub(crate) struct NcclNames<'j> {
    by_process: HashMap<NcclProcess, Known<'j>>,
    /// When the first worker of the job started; `None` if all have been replaced.
    first_start: Option<Duration>,
}

/// A worker, `None` if two could be meant.
type Known<'j> = Option<Worker<'j>>;

impl<'j> NcclNames<'j> {
    /// Creates the names for an answer of NCCL at the time `answered`, since the server's start.
    pub(crate) fn new(job: &'j Job<'_>, problems: &[NcclProblem], answered: Duration) -> Self {
        let workers: Vec<Worker<'j>> = job.launched.workers().collect();
        let first = workers.iter().filter(|it| !it.worker.is_replacement);
        let starts = first.map(Worker::started);
        let mut names = Self {
            by_process: HashMap::new(),
            first_start: starts.min(),
        };
        let are_all_known = Some(workers.len()) == job.launched.world_size()
            && job.launched.announced_twice.is_empty();
        if !are_all_known {
            return names;
        }
        let hosts = hosts(&workers);
        for worker in &workers {
            if worker.started() > answered || !has_host_ids(worker.node) {
                continue;
            }
            for &host in hosts.get(&node_id(worker.node)).into_iter().flatten() {
                for pid in pids(worker) {
                    let process = NcclProcess { host, pid };
                    let known = names.by_process.entry(process).or_insert(Some(*worker));
                    if known.is_some_and(|it| it.worker.rank != worker.worker.rank) {
                        *known = None;
                    }
                }
            }
        }
        if names.is_contradicted(problems, workers.len()) {
            names.by_process.clear();
        }
        names
    }

    /// The worker that a member of a problem is, if that is certain.
    pub(crate) fn worker(&self, kind: ProblemKind, member: &NcclMember) -> Option<Worker<'j>> {
        let worker = self.by_process.get(member.process.as_ref()?).copied()??;
        let is_silent = matches!(kind, ProblemKind::Dead | ProblemKind::Silent);
        let is_early = |first: Duration| worker.started() <= first.saturating_add(TOGETHER);
        let is_first = !worker.worker.is_replacement && self.first_start.is_some_and(is_early);
        (is_first || !is_silent).then_some(worker)
    }

    fn is_contradicted(&self, problems: &[NcclProblem], world_size: usize) -> bool {
        let of_all = problems.iter().filter(|it| it.size == Some(world_size));
        let mut members = of_all.flat_map(|it| &it.members.named);
        members.any(|member| {
            let known = member.process.as_ref();
            let known = known.and_then(|it| self.by_process.get(it).copied().flatten());
            match (member.rank, known) {
                (Some(rank), Some(worker)) => rank != worker.worker.rank,
                _ => false,
            }
        })
    }
}

/// A node of these workers. Each is one place in memory.
fn node_id(node: &Node) -> *const Node {
    node
}

/// The addresses that only one node has, by the node.
fn hosts(workers: &[Worker<'_>]) -> HashMap<*const Node, Vec<IpAddr>> {
    let mut nodes: Vec<&Node> = Vec::new();
    for worker in workers {
        if !nodes.iter().rev().any(|it| std::ptr::eq(*it, worker.node)) {
            nodes.push(worker.node);
        }
    }
    let mut owners = BTreeMap::<IpAddr, Option<&Node>>::new();
    for node in &nodes {
        for address in &node.announced.addresses {
            let owner = owners.entry(address.to_canonical()).or_insert(Some(node));
            if owner.is_some_and(|it| !std::ptr::eq(it, *node)) {
                *owner = None;
            }
        }
    }
    let mut hosts = HashMap::<*const Node, Vec<IpAddr>>::new();
    for (address, owner) in owners {
        if let Some(owner) = owner.filter(|_| !address.is_loopback()) {
            hosts.entry(node_id(owner)).or_default().push(address);
        }
    }
    if let [only] = nodes[..] {
        let of_only = hosts.entry(node_id(only)).or_default();
        of_only.extend([
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
        ]);
    }
    hosts
}

/// The ids of processes that have the worker's rank. A worker that has ended has its own only.
fn pids(worker: &Worker<'_>) -> Vec<u32> {
    let processes = worker.worker.processes.iter();
    let processes = processes.filter(|process| speaks_for(worker.worker, process));
    let mut pids: Vec<u32> = processes.map(|process| process.pid).collect();
    if worker.worker.processes.is_empty() {
        pids.push(worker.worker.pid);
    }
    pids
}

fn has_host_ids(node: &Node) -> bool {
    let is_same = |it: &AnnouncedProcess| it.inner_pid.is_none_or(|inner| inner == it.pid);
    let mut workers = node.announced.workers.iter();
    workers.all(|worker| worker.processes.iter().all(is_same))
}

#[cfg(test)]
mod tests;
