//! A thousand random jobs, in which NCCL names processes: no process is ever given a wrong rank.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use c10d_sim::Seeds;
use fastrand::Rng;

use super::*;
use crate::WorkerEnd;
use crate::announced::{AnnouncedNode, AnnouncedWorker};
use crate::identity::Identities;
use crate::index::Index;
use crate::launched::Launched;
use crate::nccl::{Counted, Members};
use crate::sim::Script;

/// A process that uses NCCL. NCCL reports its address and its id.
#[derive(Debug, Clone)]
struct Truth {
    process: NcclProcess,
    /// The rank of the process; `None` if the process has exited and was replaced.
    rank: Option<usize>,
    /// The process's rank in the communicator of all ranks.
    in_whole: usize,
    is_silent: bool,
}

#[derive(Debug)]
struct World {
    nodes: Vec<AnnouncedNode>,
    processes: Vec<Truth>,
    size: usize,
    /// Whether nothing is special about it: then all processes have names.
    is_plain: bool,
}

/// The special traits of a job. Most jobs have few of them.
struct Traits {
    /// Containers, each with processes from the same small id on.
    has_containers: bool,
    /// All nodes have the same address for NCCL: a private network in each of them.
    is_translated: bool,
    /// Two launchers on each machine.
    is_shared: bool,
    /// Some nodes have launchers that announce nothing.
    has_strangers: bool,
    /// Workers run in separate process namespaces.
    is_nested: bool,
    /// Workers are behind shells.
    is_wrapped: bool,
    /// Workers have children that look like them.
    has_children: bool,
    /// Workers have died, and others have taken their places, also with the same ids.
    is_kept: bool,
}

impl Traits {
    fn random(random: &mut Rng) -> Self {
        let mut sometimes = |of: u8| random.u8(..of) == 0;
        Self {
            has_containers: sometimes(2),
            is_translated: sometimes(8),
            is_shared: sometimes(6),
            has_strangers: sometimes(6),
            is_nested: sometimes(8),
            is_wrapped: sometimes(4),
            has_children: sometimes(3),
            is_kept: sometimes(3),
        }
    }
}

impl World {
    fn random(random: &mut Rng) -> Self {
        let traits = Traits::random(random);
        let special = [
            traits.has_containers,
            traits.is_translated,
            traits.is_shared,
            traits.has_strangers,
            traits.is_nested,
            traits.is_wrapped,
            traits.has_children,
            traits.is_kept,
        ];
        let launchers = random.usize(1..7);
        let each = random.usize(1..5);
        let mut world = Self {
            nodes: Vec::new(),
            processes: Vec::new(),
            size: launchers * each,
            is_plain: !special.contains(&true),
        };
        let mut next_pid = 4000;
        for place in 0..launchers {
            let machine = place / if traits.is_shared { 2 } else { 1 };
            let machine_ip = IpAddr::from([10, 0, 0, 10 + machine as u8]);
            let nccl_ip = match random.u8(..3) {
                _ if traits.is_translated => [172, 17, 0, 2].into(),
                0 if launchers == 1 => Ipv4Addr::LOCALHOST.into(),
                1 => [192, 168, 7, 10 + machine as u8].into(),
                _ => machine_ip,
            };
            let mut node = AnnouncedNode {
                host: format!("node{machine}"),
                node_rank: Some(place),
                nodes: Some(launchers),
                world_size: Some(world.size),
                // The bridge of containers has the same address everywhere.
                addresses: vec![machine_ip, [172, 17, 0, 1].into()],
                ..AnnouncedNode::default()
            };
            if !nccl_ip.is_loopback() && !node.addresses.contains(&nccl_ip) {
                node.addresses.push(nccl_ip);
            }
            if traits.has_containers {
                next_pid = 20;
            }
            for local in 0..each {
                next_pid += random.u32(1..4);
                let rank = place * each + local;
                world.add_worker(&traits, random, &mut node, nccl_ip, rank, &mut next_pid);
            }
            let is_stranger = traits.has_strangers && random.bool();
            if !is_stranger {
                world.nodes.push(node);
            }
        }
        world
    }

    fn add_worker(
        &mut self,
        traits: &Traits,
        random: &mut Rng,
        node: &mut AnnouncedNode,
        host: IpAddr,
        rank: usize,
        next_pid: &mut u32,
    ) {
        let pid = *next_pid;
        let mut worker = AnnouncedWorker {
            rank,
            local_rank: rank,
            pid,
            started_ago_ms: 3_600_000,
            ..AnnouncedWorker::default()
        };
        let process = |pid, parent, command: &str| AnnouncedProcess {
            pid,
            inner_pid: Some(pid),
            parent: Some(parent),
            command: Some(command.to_owned()),
            ..AnnouncedProcess::default()
        };
        let mut python = pid;
        if traits.is_wrapped {
            worker.processes.push(process(pid, 1, "bash"));
            *next_pid += 1;
            python = *next_pid;
            worker.processes.push(process(python, pid, "python3"));
        } else {
            worker.processes.push(process(pid, 1, "pt_main_thread"));
        }
        let mut inner = python;
        if traits.is_nested && random.bool() {
            inner = random.u32(1..40);
            worker.processes.last_mut().expect("a process").inner_pid = Some(inner);
        }
        if traits.has_children && random.bool() {
            *next_pid += 1;
            let child = process(*next_pid, python, "python3");
            worker.processes.push(child);
        }
        // A process that the launcher has not listed yet.
        if random.u8(..10) == 0 {
            worker.processes.truncate(1);
        }
        let is_silent = random.u8(..4) == 0;
        if traits.is_kept && random.u8(..3) == 0 {
            // An earlier process of the rank is silent forever, perhaps with the id of this one.
            let same = if random.bool() {
                inner
            } else {
                3000 + rank as u32
            };
            let process = NcclProcess { host, pid: same };
            self.processes.push(Truth {
                process,
                rank: None,
                in_whole: rank,
                is_silent: true,
            });
            worker.started_ago_ms = random.u64(0..3_000_000);
            worker.is_replacement = true;
        } else if is_silent && random.u8(..3) == 0 {
            worker.processes.clear();
            worker.end = Some(WorkerEnd::default());
        }
        let is_young = worker.started_ago_ms < 120_000;
        self.processes.push(Truth {
            process: NcclProcess { host, pid: inner },
            rank: Some(rank),
            in_whole: rank,
            // A process is silent for a while before NCCL reports it.
            is_silent: is_silent && !is_young,
        });
        node.workers.push(worker);
    }

    fn problem(&self, random: &mut Rng) -> NcclProblem {
        let kinds = [
            ProblemKind::Dead,
            ProblemKind::Silent,
            ProblemKind::Failed,
            ProblemKind::Behind,
        ];
        let kind = kinds[random.usize(..kinds.len())];
        let is_silence = matches!(kind, ProblemKind::Dead | ProblemKind::Silent);
        let is_whole = random.bool();
        let processes = self
            .processes
            .iter()
            .filter(|it| it.is_silent == is_silence);
        let named: Vec<NcclMember> = processes
            .map(|it| NcclMember {
                rank: Some(if is_whole {
                    it.in_whole
                } else {
                    random.usize(..8)
                }),
                process: Some(it.process.clone()),
                device: Some(0),
            })
            .collect();
        let members: Members = Counted {
            count: named.len(),
            named,
        };
        NcclProblem {
            kind,
            members,
            communicator: "27a079b828ff1a75".to_owned(),
            size: Some(if is_whole { self.size } else { self.size + 1 }),
            ..NcclProblem::default()
        }
    }
}

#[test]
fn no_process_is_given_a_wrong_rank_in_1000_jobs() {
    let (mut named, mut unnamed) = (0, 0);
    for seed in Seeds::fixed(1000) {
        let mut random = Rng::with_seed(seed);
        let world = World::random(&mut random);
        let mut script = Script::new();
        for (place, node) in world.nodes.iter().enumerate() {
            let address = SocketAddr::from(([10, 0, 0, 10 + place as u8], 40_000));
            let connection = script.store.connect(address, 0xC10D_0000);
            script.store.announce(connection, node);
        }
        let snapshot = script.snapshot();
        let index = Index::new(&snapshot);
        let launched = Launched::new(&index);
        let who = Identities::new(&index, &launched);
        let job = Job::new(&index, &launched, &who, None);
        let problems = [world.problem(&mut random), world.problem(&mut random)];
        let names = NcclNames::new(&job, &problems, snapshot.now);
        for problem in &problems {
            for member in &problem.members.named {
                let same = |it: &&Truth| Some(&it.process) == member.process.as_ref();
                let meant: BTreeSet<Option<usize>> = world
                    .processes
                    .iter()
                    .filter(same)
                    .filter(|it| {
                        let is_silence =
                            matches!(problem.kind, ProblemKind::Dead | ProblemKind::Silent);
                        it.is_silent == is_silence
                    })
                    .map(|it| it.rank)
                    .collect();
                match names.worker(problem.kind, member) {
                    Some(worker) => {
                        let rank = Some(worker.worker.rank);
                        assert_eq!(meant, BTreeSet::from([rank]), "seed {seed}: {member:?}");
                        named += 1;
                    }
                    None => {
                        assert!(!world.is_plain, "seed {seed}: {member:?} has no name");
                        unnamed += 1;
                    }
                }
            }
        }
    }
    // Without this check, a version that never names a process would also pass.
    assert!(named > 4000, "{named} of {} are named", named + unnamed);
}
