//! The children of this process that are workers: their environment has the run id and a rank.
//!
//! Reads /proc, so it finds nothing on other systems than Linux.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use c10d_socket::HostPort;

use crate::agent::{StartedWorker, StartedWorkers};

/// The longest environment that is read, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// A worker, with the facts about the round in its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) worker: StartedWorker,
    /// The number of workers on this node.
    pub(super) local_world_size: usize,
    node_rank: usize,
    nodes: usize,
    world_size: usize,
    role_rank: usize,
    role_world_size: usize,
    restarts: usize,
    master: HostPort,
    is_agent_store: bool,
}

/// Returns the workers among the children of this process. A child that has not yet executed its program is not found.
pub(super) fn workers(run_id: &str) -> Vec<Child> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let mut found: Vec<Child> = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|text| pids(&text))
        .filter_map(|pid| worker_of(pid, &environment(pid)?, run_id))
        .collect();
    found.sort_unstable_by_key(|child| child.worker.local_rank);
    found
}

fn pids(text: &str) -> Vec<u32> {
    let words = text.split_ascii_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn environment(pid: u32) -> Option<Vec<u8>> {
    let file = File::open(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let mut bytes = Vec::new();
    file.take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// The worker with this environment, as `/proc` has it; `None` if it is not a worker of this run.
fn worker_of(pid: u32, environment: &[u8], run_id: &str) -> Option<Child> {
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let found = variables.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        std::str::from_utf8(found?).ok()
    };
    let number = |name: &str| value(name)?.parse::<usize>().ok();
    if value("TORCHELASTIC_RUN_ID")? != run_id {
        return None;
    }
    let (rank, local_rank) = (number("RANK")?, number("LOCAL_RANK")?);
    let world_size = number("WORLD_SIZE")?;
    Some(Child {
        worker: StartedWorker::new(rank, local_rank, pid),
        local_world_size: number("LOCAL_WORLD_SIZE")?,
        node_rank: number("GROUP_RANK")?,
        nodes: number("GROUP_WORLD_SIZE")?,
        world_size,
        role_rank: number("ROLE_RANK").unwrap_or(rank),
        role_world_size: number("ROLE_WORLD_SIZE").unwrap_or(world_size),
        restarts: number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0),
        master: HostPort::new(value("MASTER_ADDR")?, value("MASTER_PORT")?.parse().ok()?),
        is_agent_store: value("TORCHELASTIC_USE_AGENT_STORE") == Some("True"),
    })
}

/// Returns these workers of a round as an agent reports them; `None` for no workers.
pub(super) fn started(round: i64, children: &[Child]) -> Option<StartedWorkers> {
    let first = children.first()?;
    let workers = children.iter().map(|child| child.worker).collect();
    let mut started = StartedWorkers::alone(first.master.clone(), workers);
    started.round = round;
    started.node_rank = first.node_rank;
    started.nodes = first.nodes;
    started.world_size = first.world_size;
    started.first_role_rank = first.role_rank.saturating_sub(first.worker.local_rank);
    started.role_world_size = first.role_world_size;
    started.restarts = first.restarts;
    started.restarts_used = first.restarts;
    started.is_agent_store = first.is_agent_store;
    Some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_TORCHRUN: &str = "PATH=/bin\0RANK=5\0LOCAL_RANK=1\0GROUP_RANK=1\0ROLE_RANK=5\0LOCAL_WORLD_SIZE=4\0\
        WORLD_SIZE=8\0GROUP_WORLD_SIZE=2\0ROLE_WORLD_SIZE=8\0MASTER_ADDR=node0\0MASTER_PORT=29500\0\
        TORCHELASTIC_RESTART_COUNT=2\0TORCHELASTIC_RUN_ID=17\0TORCHELASTIC_USE_AGENT_STORE=True\0";

    #[test]
    fn the_environment_of_torchrun_tells_the_round() {
        let child = worker_of(4711, OF_TORCHRUN.as_bytes(), "17").expect("a worker");
        assert_eq!(child.worker, StartedWorker::new(5, 1, 4711));
        assert_eq!(child.local_world_size, 4);
        let started = started(3, &[child]).expect("workers");
        assert_eq!((started.round, started.node_rank, started.nodes), (3, 1, 2));
        assert_eq!((started.world_size, started.restarts), (8, 2));
        assert_eq!(started.first_role_rank, 4);
        assert_eq!(started.master.to_string(), "node0:29500");
        assert!(started.is_agent_store);
    }

    #[test]
    fn other_children_are_no_workers() {
        for (environment, run_id) in [
            (OF_TORCHRUN, "18"),
            ("", "17"),
            ("TORCHELASTIC_RUN_ID=17\0", "17"),
            (&OF_TORCHRUN.replace("\0RANK=5", "\0RANK=-5"), "17"),
            (&OF_TORCHRUN.replace("\0RANK=5", "\0RANK_=5"), "17"),
            (&OF_TORCHRUN.replace("=29500", "=295000"), "17"),
        ] {
            let child = worker_of(1, environment.as_bytes(), run_id);
            assert_eq!(child, None, "{environment}");
        }
    }

    #[test]
    fn a_list_of_children_has_numbers() {
        assert_eq!(pids("17 4711 \n"), [17, 4711]);
        assert_eq!(pids(""), [0; 0]);
    }
}
