//! Random jobs of survivors: ranks die, hang, are stopped, evicted, replaced or left out. The state machine of the service
//! decides about the members. Only ranks that the group needs may be named as causes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use c10d_store::GroupRecord;
use c10d_store::membership::{
    Event, EventNumber, Group, GroupOptions, GroupStage, Input, Leave, MemberKey, Message, Nonce,
    Reply,
};
use fastrand::Rng;
use serde_json::json;

use super::script::{Process, Script};
use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker, WorkerEnd};
use crate::flight::{FlightRecording, compare_flights};
use crate::{FindingKind, Report, explain};

/// As clients call it.
const NAME: &str = "run/0/5eed";

/// The server removes a stopped process after this time.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A rank's worker, in its last process.
struct Worker {
    process: Process,
    incarnation: u64,
    condition: Condition,
    since: Duration,
    after: EventNumber,
    /// Its generations by uuid, and how many collectives it has entered in each.
    entered: Vec<(u64, u64)>,
    is_replacement: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Runs,
    /// Its program hangs; its process answers.
    Hangs,
    Stopped,
    Dead,
}

struct World {
    script: Script,
    launcher: c10d_store::ConnectionId,
    group: Group,
    workers: Vec<Worker>,
    step: u64,
    /// The ranks that were no members when the last generation was committed.
    lost_before: BTreeSet<usize>,
    next_pid: u32,
}

/// The recording of a rank by its generations: their uuids, and how many collectives it has entered in each. PyTorch numbers
/// them from 1 in each generation, and `pg_status` is about the last generation with collectives.
pub(crate) fn recorded(entered: &[(u64, u64)]) -> FlightRecording {
    let numbers = entered
        .iter()
        .flat_map(|&(uuid, count)| (1..=count).map(move |number| (uuid, number)));
    let entries = numbers.map(|(uuid, number)| {
        json!({
            "pg_id": 1, "process_group": ["0", format!("generation {uuid}")], "collective_seq_id": number,
            "profiling_name": "gloo:all_reduce", "is_p2p": false, "input_sizes": [[1]], "input_dtypes": ["Float"],
            "state": "scheduled", "retired": false, "time_created_ns": number * 1_000_000_000,
        })
    });
    let entries: Vec<_> = entries.collect();
    let last = entered.iter().rev().find(|(_, count)| *count > 0);
    let status =
        last.map(|(_, count)| json!({"1": {"last_enqueued_collective": count.to_string()}}));
    let json = json!({"entries": entries, "pg_status": status.unwrap_or_default()}).to_string();
    FlightRecording::parse(json.as_bytes()).expect("a recording")
}

impl World {
    fn new(random: &mut Rng) -> Self {
        let size = random.usize(2..=6);
        let mut script = Script::new();
        let address = script.address();
        let launcher = script.store.connect(address, 0xC10D_0000);
        let mut options = GroupOptions::new(random.usize(1..=size));
        options.size_first = size;
        let mut world = Self {
            workers: Vec::new(),
            launcher,
            group: Group::new(options, Nonce::new(random.u32(..))),
            script,
            step: 0,
            lost_before: BTreeSet::new(),
            next_pid: 5000,
        };
        for rank in 0..size {
            let worker = world.started(rank, size, 1);
            world.workers.push(worker);
        }
        world
    }

    fn started(&mut self, rank: usize, size: usize, incarnation: u64) -> Worker {
        let mut process = self.script.process(rank, size);
        self.next_pid += 1;
        process.pid = self.next_pid;
        process.connection = Some(self.script.store.connect(process.peer, process.pid));
        Worker {
            process,
            incarnation,
            condition: Condition::Runs,
            since: self.script.store.now,
            after: EventNumber::NONE,
            entered: Vec::new(),
            is_replacement: incarnation > 1,
        }
    }

    fn key(&self, rank: usize) -> MemberKey {
        MemberKey::new(rank as u64, self.workers[rank].incarnation)
    }

    fn tell(&mut self, rank: usize, message: Message) -> Reply {
        let key = self.key(rank);
        let now = self.script.store.now;
        self.group.step(now, Input::Message(key, message)).reply
    }

    /// Time passes, something may happen, the members agree and work.
    fn tick(&mut self, random: &mut Rng) {
        self.script.pass(random.f64() * 4.0);
        if random.u8(..4) == 0 {
            self.disturb(random);
        }
        self.agree();
        self.work(random.u64(..5));
        self.announce();
    }

    fn disturb(&mut self, random: &mut Rng) {
        let rank = random.usize(..self.workers.len());
        let (condition, key) = (self.workers[rank].condition, self.key(rank));
        let now = self.script.store.now;
        match (condition, random.u8(..6)) {
            (Condition::Dead, 0..3) => {
                let (size, incarnation) = (self.workers.len(), self.workers[rank].incarnation);
                self.workers[rank] = self.started(rank, size, incarnation + 1);
            }
            (Condition::Dead, _) => {}
            (Condition::Runs, 0) => self.turn(rank, Condition::Hangs),
            (Condition::Runs, 1) => self.turn(rank, Condition::Stopped),
            (Condition::Stopped, 2..5) => self.turn(rank, Condition::Runs),
            // Its launcher, or the end of its connection, says so at once.
            _ => {
                self.turn(rank, Condition::Dead);
                let process = self.workers[rank].process.clone();
                self.script.close(&process);
                self.group.step(now, Input::Dead(key));
            }
        }
    }

    fn turn(&mut self, rank: usize, condition: Condition) {
        self.workers[rank].condition = condition;
        self.workers[rank].since = self.script.store.now;
    }

    /// All running processes answer the events of the service, until there is no new event.
    fn agree(&mut self) {
        let now = self.script.store.now;
        for rank in 0..self.workers.len() {
            let worker = &self.workers[rank];
            if worker.condition == Condition::Stopped && now - worker.since >= SILENCE_MAX {
                let key = self.key(rank);
                self.group.step(now, Input::Silent(key));
            }
        }
        self.group.step(now, Input::Tick);
        self.step += 1;
        for _ in 0..100 {
            let turns = (0..self.workers.len()).filter(|&rank| self.answer(rank));
            if turns.collect::<Vec<_>>().is_empty() {
                return;
            }
        }
        panic!("the members do not agree");
    }

    /// Whether there was something to answer.
    fn answer(&mut self, rank: usize) -> bool {
        let worker = &self.workers[rank];
        let is_up = matches!(worker.condition, Condition::Runs | Condition::Hangs);
        let handle = format!("gloo:{rank}").into();
        let (step, runs) = (self.step, worker.condition == Condition::Runs);
        if !is_up {
            return false;
        }
        let event = match self.group.poll(self.key(rank), worker.after) {
            Reply::Unknown if runs => {
                self.workers[rank].after = EventNumber::NONE;
                let hello = Message::Hello { handle, step: 0 };
                return matches!(self.tell(rank, hello), Reply::Accepted);
            }
            Reply::Event(number, event) if runs => {
                self.workers[rank].after = number;
                event
            }
            _ => return false,
        };
        match event {
            Event::Propose { attempt, leave, .. } => {
                let is_member = self.members().contains(&rank);
                let committed = self.group.committed().filter(|_| is_member);
                if let (Leave::AtBoundary { .. }, Some(committed)) = (leave, committed) {
                    let generation = committed.attempt;
                    let boundary = Message::Boundary { generation, step };
                    self.tell(rank, boundary);
                }
                let ready = Message::Ready {
                    attempt,
                    handle,
                    step,
                };
                self.tell(rank, ready);
            }
            Event::Call { record, .. } => {
                self.workers[rank].entered.push((record.attempt.uuid(), 0));
                let attempt = record.attempt;
                self.tell(
                    rank,
                    Message::Ack {
                        attempt,
                        is_ok: true,
                    },
                );
                self.note_commit();
            }
            _ => {}
        }
        true
    }

    fn note_commit(&mut self) {
        if self.group.status(self.script.store.now).stage == GroupStage::Committed {
            let members = self.members();
            let ranks = 0..self.workers.len();
            self.lost_before = ranks.filter(|rank| !members.contains(rank)).collect();
        }
    }

    /// The ranks that are in the last generation.
    fn members(&self) -> BTreeSet<usize> {
        let members = self.group.members();
        let members = members.filter(|(_, rank)| rank.is_some());
        members
            .filter_map(|(key, _)| usize::try_from(key.id.0).ok())
            .collect()
    }

    fn is_whole(&self) -> bool {
        let stage = self.group.status(self.script.store.now).stage;
        matches!(stage, GroupStage::Committed | GroupStage::Changing)
    }

    /// The members enter some collectives, but at most one more than a member that hangs.
    fn work(&mut self, count: u64) {
        if !self.is_whole() {
            return;
        }
        let members = self.members();
        let stands = |rank: &usize| self.workers[*rank].condition != Condition::Runs;
        let inside = members.iter().filter(|rank| stands(rank));
        let last = inside.map(|&rank| self.in_last(rank) + 1).min();
        let all = members.iter().map(|&rank| self.in_last(rank)).max();
        let next = last.unwrap_or(all.unwrap_or_default() + count);
        for rank in members
            .into_iter()
            .filter(|rank| !stands(rank))
            .collect::<Vec<_>>()
        {
            if let Some((_, entered)) = self.workers[rank].entered.last_mut() {
                *entered = next;
            }
        }
    }

    fn in_last(&self, rank: usize) -> u64 {
        self.workers[rank]
            .entered
            .last()
            .map_or(0, |(_, count)| *count)
    }

    fn announce(&mut self) {
        let now = self.script.store.now;
        let workers = self.workers.iter().map(|worker| {
            let process = &worker.process;
            let is_dead = worker.condition == Condition::Dead;
            let listed = AnnouncedProcess {
                pid: process.pid,
                state: Some(if worker.condition == Condition::Stopped {
                    'T'
                } else {
                    'S'
                }),
                store_connections: vec![process.peer],
                ..AnnouncedProcess::default()
            };
            AnnouncedWorker {
                rank: process.rank,
                local_rank: process.rank,
                pid: process.pid,
                started_ago_ms: 100,
                is_replacement: worker.is_replacement,
                processes: if is_dead { Vec::new() } else { vec![listed] },
                end: is_dead.then(|| WorkerEnd {
                    signal: Some(9),
                    ago_ms: u64::try_from((now - worker.since).as_millis()).unwrap_or_default(),
                    ..WorkerEnd::default()
                }),
                ..AnnouncedWorker::default()
            }
        });
        let node = AnnouncedNode {
            host: "vm".to_owned(),
            node_rank: Some(0),
            world_size: Some(self.workers.len()),
            pid: 50,
            membership: Some(NAME.to_owned()),
            workers: workers.collect(),
            ..AnnouncedNode::default()
        };
        self.script.store.announce(self.launcher, &node);
    }

    fn report(&self) -> Report {
        let mut snapshot = self.script.snapshot();
        snapshot.groups.push(GroupRecord {
            name: format!("/{NAME}").into_bytes().into(),
            status: self.group.status(snapshot.now),
        });
        explain(&snapshot, None)
    }

    /// The ranks that the group needs and that do not come.
    fn faulty(&self) -> BTreeSet<usize> {
        let status = self.group.status(self.script.store.now);
        let (members, ranks) = (self.members(), 0..self.workers.len());
        let stands = |rank: &usize| self.workers[*rank].condition != Condition::Runs;
        match status.stage {
            GroupStage::Forming => ranks.filter(stands).collect(),
            GroupStage::Breaking | GroupStage::Ended(_) => {
                let counts = |rank: &usize| stands(rank) || !members.contains(rank);
                ranks
                    .filter(|rank| !self.lost_before.contains(rank) && counts(rank))
                    .collect()
            }
            _ => {
                let awaited = status
                    .members
                    .iter()
                    .filter(|it| it.is_awaited || it.rank.is_some());
                let awaited = awaited.filter_map(|it| usize::try_from(it.member.id.0).ok());
                awaited.filter(stands).collect()
            }
        }
    }

    /// The culprits of the comparison of all recorders.
    fn compared(&self, report: &Report) -> (BTreeSet<usize>, String) {
        let mut recordings = BTreeMap::new();
        let mut silent = BTreeMap::new();
        for worker in &self.workers {
            let rank = worker.process.rank;
            match worker.condition {
                Condition::Runs | Condition::Hangs => {
                    recordings.insert(rank, recorded(&worker.entered));
                }
                _ => _ = silent.insert(rank, "no answer".to_owned()),
            }
        }
        let clock = |_| String::new();
        let flight = compare_flights(&recordings, &silent, &report.memberships, &clock);
        let culprits = flight
            .findings
            .iter()
            .flat_map(|it| it.culprits.0.iter().copied());
        (culprits.collect(), format!("{flight:#?}"))
    }
}

#[test]
fn no_rank_is_named_without_which_its_group_works() {
    let (first, count) = match std::env::var("C10D_SIM_SEED")
        .ok()
        .and_then(|it| it.parse().ok())
    {
        Some(seed) => (seed, 1),
        None => (0, 300),
    };
    let (mut healthy, mut blamed, mut hung) = (0, 0, 0);
    for seed in first..first + count {
        let mut random = Rng::with_seed(seed ^ 0x9e0b);
        let mut world = World::new(&mut random);
        for tick in 0..60 {
            world.tick(&mut random);
            let report = world.report();
            let faulty = world.faulty();
            let stage = world.group.status(world.script.store.now).stage;
            let place = format!(
                "seed {seed}, tick {tick}, {stage:?}, lost before: {:?}",
                world.lost_before
            );
            let causes = report.findings.iter().filter(|it| !it.is_consequence);
            let culprits: BTreeSet<usize> = causes.flat_map(|it| it.culprits.0.clone()).collect();
            assert!(
                culprits.is_subset(&faulty),
                "{place}: {culprits:?} of {faulty:?}: {report:#?}"
            );
            blamed += culprits.len();
            if !world.is_whole() {
                continue;
            }
            if faulty.is_empty() {
                let mut findings = report.findings.iter();
                let is_quiet = findings.all(|it| it.kind == FindingKind::NotInTheStore);
                assert!(is_quiet && !report.is_stuck, "{place}: {report:#?}");
                healthy += 1;
            }
            // If most members hang, the comparison names the only member that is ahead.
            if faulty.len() > 1 {
                continue;
            }
            let (named, text) = world.compared(&report);
            assert!(
                named.is_subset(&faulty),
                "{place}: {named:?} of {faulty:?}: {text}"
            );
            let hangs = |rank: &usize| world.workers[*rank].condition == Condition::Hangs;
            let members = world.members();
            if faulty.iter().all(hangs) && faulty.is_subset(&members) && members.len() > 1 {
                assert_eq!(named, faulty, "{place}: {text}");
                hung += named.len();
            }
        }
    }
    if count > 1 {
        // A comparison that never names a rank would be useless.
        assert!(
            healthy > 1000 && blamed > 500 && hung > 500,
            "{healthy} {blamed} {hung}"
        );
    }
}
