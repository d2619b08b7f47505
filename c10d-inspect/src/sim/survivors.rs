//! Random jobs of survivors: ranks die, hang, are stopped, evicted, replaced or left out. The state machine of the service
//! decides about the members. Only ranks that the group needs may be named as causes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use c10d_membership::{
    Event, EventNumber, Group, GroupOptions, GroupStage, Input, Leave, MemberKey, Message, Nonce,
    Record, Reply,
};
use c10d_sim::Seeds;
use c10d_store::GroupRecord;
use fastrand::Rng;
use serde_json::json;

use super::script::{Process, Script};
use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker, WorkerEnd};
use crate::flight::{FlightRecording, compare_flights};
use crate::{FindingKind, Report, explain};

/// The name of the group, as clients use it.
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
    generations: Vec<Generation>,
    is_replacement: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Runs,
    /// The rank's program hangs; its process answers.
    Hangs,
    Stopped,
    Dead,
}

/// The collectives of a rank in one generation.
#[derive(Debug, Clone)]
struct Generation {
    uuid: u64,
    /// How many ranks it has, and the place of this rank among them.
    size: usize,
    place: usize,
    /// How many collectives the rank has entered, and how many of them have ended.
    entered: u64,
    ended: u64,
}

/// The groups in which a program has collectives. All kinds make the same subgroups: one of all members and two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    DefaultGroup,
    AllGroups,
    /// Nothing of the default group is recorded.
    Subgroups,
}

/// A collective in the recorder of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) uuid: u64,
    /// `None`: the default group.
    pub(crate) subgroup: Option<u64>,
    pub(crate) number: u64,
    pub(crate) is_done: bool,
}

impl Program {
    /// The group of a collective of a member: `None` is the default group; 0 has all members, 1 and 2 are the halves.
    fn group(self, collective: u64, place: usize, size: usize) -> Option<u64> {
        let half = 1 + u64::from(place >= size / 2);
        match (self, collective % 3) {
            (Self::DefaultGroup, _) | (Self::AllGroups, 0) => None,
            (Self::Subgroups, 0) => Some(0),
            (_, _) => Some(half),
        }
    }
}

impl Generation {
    fn entries(&self, program: Program) -> impl Iterator<Item = Entry> {
        let mut numbers: BTreeMap<Option<u64>, u64> = BTreeMap::new();
        (0..self.entered).map(move |collective| {
            let subgroup = program.group(collective, self.place, self.size);
            let number = numbers.entry(subgroup).or_default();
            *number += 1;
            Entry {
                uuid: self.uuid,
                subgroup,
                number: *number,
                is_done: collective < self.ended,
            }
        })
    }
}

struct World {
    script: Script,
    /// The programs of the even and the odd generations.
    programs: [Program; 2],
    /// How many collectives the recorder of a rank has.
    ring: usize,
    launcher: c10d_store::ConnectionId,
    group: Group,
    workers: Vec<Worker>,
    step: u64,
    /// The ranks that were no members when the last generation was committed.
    lost_before: BTreeSet<usize>,
    next_pid: u32,
}

/// The recording of a rank. PyTorch numbers the collectives from 1 in each generation, and `pg_status` is about the last
/// generation with collectives.
pub(crate) fn recorded(entered: &[Entry], ring: usize) -> FlightRecording {
    let kept = &entered[entered.len().saturating_sub(ring)..];
    let entries = kept.iter().map(|entry| {
        let (id, group) = match entry.subgroup {
            None => (1, json!(["0", format!("generation {}", entry.uuid)])),
            Some(subgroup) => {
                let name = (entry.uuid & 0xffff_ffff) * 1_000_000 + subgroup;
                (2 + name, json!([name.to_string(), "undefined"]))
            }
        };
        json!({
            "pg_id": id, "process_group": group, "collective_seq_id": entry.number, "profiling_name": "gloo:all_reduce",
            "is_p2p": false, "input_sizes": [[1]], "input_dtypes": ["Float"], "state": "scheduled",
            "retired": entry.is_done, "time_created_ns": entry.number * 1_000_000_000,
        })
    });
    let last = entered.iter().rev().find(|it| it.subgroup.is_none());
    let status = last.map(|it| json!({"1": {"last_enqueued_collective": it.number.to_string()}}));
    let entries: Vec<_> = entries.collect();
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
        let programs = [
            Program::DefaultGroup,
            Program::AllGroups,
            Program::Subgroups,
        ];
        let mut world = Self {
            programs: [programs[random.usize(..3)], programs[random.usize(..3)]],
            ring: if random.bool() { 2000 } else { 7 },
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
            generations: Vec::new(),
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
                self.enter(rank, &record);
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

    fn enter(&mut self, rank: usize, record: &Record) {
        let key = self.key(rank);
        let place = record.seats.iter().position(|seat| seat.member == key);
        self.workers[rank].generations.push(Generation {
            uuid: record.attempt.uuid(),
            size: record.seats.len(),
            place: place.expect("it has a seat"),
            entered: 0,
            ended: 0,
        });
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

    /// The members enter some collectives. A member enters the next one when all members of the last one's group have entered
    /// that.
    fn work(&mut self, count: u64) {
        if !self.is_whole() {
            return;
        }
        let members = self.members();
        let all = members.iter().map(|&rank| self.last(rank).entered).max();
        let stands = |&rank: &usize| self.workers[rank].condition != Condition::Runs;
        // One of three collectives needs a member that does not run.
        let count = count.max(if members.iter().any(stands) { 3 } else { 0 });
        let goal = all.unwrap_or_default() + count;
        loop {
            let mut has_moved = false;
            for &rank in &members {
                let has_ended = self.has_ended(rank, &members);
                let runs = self.workers[rank].condition == Condition::Runs;
                let Some(last) = self.workers[rank].generations.last_mut() else {
                    continue;
                };
                last.ended = last.entered - u64::from(last.entered > 0 && !has_ended);
                if runs && has_ended && last.entered < goal {
                    last.entered += 1;
                    has_moved = true;
                }
            }
            if !has_moved {
                return;
            }
        }
    }

    /// Whether all members of its group have entered the last collective that the rank has entered.
    fn has_ended(&self, rank: usize, members: &BTreeSet<usize>) -> bool {
        let mine = self.last(rank);
        let Some(last) = mine.entered.checked_sub(1) else {
            return true;
        };
        let group = |it: &Generation| self.program(it).group(last, it.place, it.size);
        let mut others = members.iter().map(|&other| self.last(other));
        others.all(|it| group(&it) != group(&mine) || it.entered > last)
    }

    fn last(&self, rank: usize) -> Generation {
        self.workers[rank]
            .generations
            .last()
            .expect("a member")
            .clone()
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
            status: Arc::new(self.group.status(snapshot.now)),
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
                    recordings.insert(rank, self.recorded(worker));
                }
                _ => _ = silent.insert(rank, "no answer".to_owned()),
            }
        }
        let clock = |_| String::new();
        let flight = compare_flights(&recordings, &silent, report, &clock);
        let culprits = flight
            .findings
            .iter()
            .filter(|it| !it.is_consequence)
            .flat_map(|it| it.culprits.0.iter().copied());
        (culprits.collect(), format!("{flight:#?}"))
    }

    fn program(&self, generation: &Generation) -> Program {
        self.programs[usize::from(generation.uuid % 2 == 1)]
    }

    /// Whether the recorders name all groups of a rank: it has entered a collective of each, and its recorder still has an entry
    /// that names a generation. A recorder with subgroups of an earlier generation only does not.
    fn groups_are_known(&self, rank: usize) -> bool {
        let worker = &self.workers[rank];
        let Some(last) = worker.generations.last() else {
            return true;
        };
        let entries = self.entries(worker);
        let mut kept = entries[entries.len().saturating_sub(self.ring)..].iter();
        let names_one = kept.any(|it| it.subgroup.is_none() || it.uuid == last.uuid);
        let has_all = self.program(last) == Program::DefaultGroup || last.entered >= 3;
        has_all && (names_one || entries.is_empty())
    }

    fn entries(&self, worker: &Worker) -> Vec<Entry> {
        let generations = worker.generations.iter();
        let entries = generations.flat_map(|it| it.entries(self.program(it)));
        entries.collect()
    }

    fn recorded(&self, worker: &Worker) -> FlightRecording {
        recorded(&self.entries(worker), self.ring)
    }
}

#[test]
fn no_rank_is_named_without_which_its_group_works() {
    let seeds = Seeds::fixed(150);
    let is_replay = seeds.is_replay();
    let (mut healthy, mut blamed, mut hung) = (0, 0, 0);
    for seed in seeds {
        let mut random = Rng::with_seed(seed ^ 0x9e0b);
        let mut world = World::new(&mut random);
        for tick in 0..60 {
            world.tick(&mut random);
            let report = world.report();
            let faulty = world.faulty();
            let stage = world.group.status(world.script.store.now).stage;
            let place = format!(
                "tick {tick}, {stage:?}, lost before: {:?}",
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
            if faulty.len() > 1 || !faulty.iter().all(|&rank| world.groups_are_known(rank)) {
                continue;
            }
            let (named, text) = world.compared(&report);
            assert!(
                named.is_subset(&faulty),
                "{place}: {named:?} of {faulty:?}: {text}"
            );
            let hangs = |rank: &usize| world.workers[*rank].condition == Condition::Hangs;
            let members = world.members();
            if faulty.is_subset(&members) && faulty.iter().all(hangs) && members.len() > 1 {
                assert_eq!(named, faulty, "{place}: {text}");
                hung += named.len();
            }
        }
    }
    if !is_replay {
        // A comparison that never names a rank would be useless.
        assert!(
            healthy > 1000 && blamed > 500 && hung > 200,
            "{healthy} {blamed} {hung}"
        );
    }
}
