//! Candidates over the simulated etcd: every order of a few steps, and long random histories.
//!
//! Answers are lost, requests are carried out late, after newer requests, processes exit, and time passes. After each
//! step, at most one process may answer, and it has read all confirmed batches; confirmed batches are never lost.
//! Some processes are of the previous release, which does not read the newest format: it is not written while one of
//! them is listed, and none of them leads afterwards.
//!
//! In some histories etcd's data goes back once. A process that has read more than etcd has left may not lead
//! afterwards, and after such a process has found the loss, no process may.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use c10d_sim::{Explored, Run, Seeds, Simulation, explore, panics, run};
use c10d_store::journal::{Formats, JournalError};
use fastrand::Rng;

use super::layout::{Head, Layout, Leader, Life, Registered};
use super::leader::{Candidate, Next};
use super::lease::Guard;
use super::log::Writer;
use super::loss::{Known, Stopped, Unfit, glimpse, judge_leader, mark};
use super::message::{Answer, Failure, Op, Range, Request, Txn};
use super::mutant::Mutant;
use super::options::candidates_range;
use super::reader::Piece;
use super::sim::SimEtcd;

const TTL_SECONDS: u64 = 2;
const TICK: Duration = Duration::from_millis(450);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// The next request is carried out and answered.
    Answer(usize),
    /// It is carried out, and the answer is lost.
    LoseAnswer(usize),
    /// It is not carried out yet.
    Delay(usize),
    /// The oldest of those is.
    Late,
    Watch(usize),
    /// It sees that the process of the leader that it follows has ended.
    SeeDeath(usize),
    Append(usize),
    Snapshot(usize),
    /// A candidate is listed, for a while.
    Register(usize),
    /// The leader agrees on the format.
    Agree(usize),
    SendKeepAlive(usize),
    AnswerKeepAlive(usize),
    End(usize),
    Tick,
    /// A follower looks up the leader.
    Look(usize),
    /// etcd's data goes back.
    Lose(Loss),
}

/// Once in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// It has what it had at the last snapshot of this test.
    Copy,
    Everything,
    Prefix,
    Head,
    Log,
    LastBatch,
    Leader,
}

impl Loss {
    const ALL: [Self; 7] = [
        Self::Copy,
        Self::Everything,
        Self::Prefix,
        Self::Head,
        Self::Log,
        Self::LastBatch,
        Self::Leader,
    ];

    /// Whether a store is left, so that a process that starts afterwards may lead.
    const fn leaves_a_store(self) -> bool {
        matches!(self, Self::Copy | Self::Everything | Self::Prefix)
    }
}

impl Act {
    const fn process(self) -> Option<usize> {
        match self {
            Self::Answer(process)
            | Self::LoseAnswer(process)
            | Self::Delay(process)
            | Self::Watch(process)
            | Self::SeeDeath(process)
            | Self::Append(process)
            | Self::Snapshot(process)
            | Self::Register(process)
            | Self::Agree(process)
            | Self::SendKeepAlive(process)
            | Self::AnswerKeepAlive(process)
            | Self::Look(process)
            | Self::End(process) => Some(process),
            Self::Late | Self::Tick | Self::Lose(_) => None,
        }
    }
}

#[derive(Debug, Clone)]
enum Role {
    Candidate(Box<Candidate>),
    Leader {
        writer: Box<Writer>,
        /// The batch that is being appended.
        appending: Option<(u64, String)>,
        /// The remaining steps of a snapshot in progress: its chunk and its end.
        snapshot: Vec<Option<Vec<u8>>>,
    },
    /// etcd has lost something.
    Stopped,
}

#[derive(Debug, Clone)]
struct Process {
    role: Role,
    life: u64,
    formats: Formats,
    known: BTreeMap<u64, String>,
    /// The batches that this process has read or written, also before a takeover.
    knew: BTreeMap<u64, String>,
    memory: Option<Known>,
    /// The lease, and until when it gives the right to answer.
    lease: Option<(u64, Duration)>,
    /// When the keepalive was sent that is on its way.
    keep_alive: Option<Duration>,
    /// The state of etcd when the process began its campaign.
    before: Option<Box<SimEtcd>>,
}

#[derive(Debug, Clone)]
struct World {
    mutant: Mutant,
    etcd: SimEtcd,
    layout: Layout,
    processes: Vec<Process>,
    started: u64,
    late: Vec<Request>,
    appended: BTreeSet<(u64, String)>,
    confirmed: BTreeMap<u64, String>,
    epoch: u64,
    /// Whether processes of two releases are there.
    is_mixed: bool,
    /// The format of the head after the last step.
    format: u8,
    /// Whether etcd may lose data, and the loss.
    loses: bool,
    lost: Option<Loss>,
    /// etcd as it was some batches ago.
    copy: Box<SimEtcd>,
}

type Law = Result<(), String>;

impl World {
    fn new(processes: usize, mutant: Mutant, is_mixed: bool) -> Self {
        let mut layout = Layout::new("p");
        layout.part_bytes = 8;
        let mut world = Self {
            mutant,
            etcd: SimEtcd::default(),
            layout,
            processes: Vec::new(),
            started: 0,
            late: Vec::new(),
            appended: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            epoch: 0,
            is_mixed,
            format: 0,
            loses: false,
            lost: None,
            copy: Box::default(),
        };
        for _ in 0..processes {
            let process = world.started();
            world.processes.push(process);
        }
        world
    }

    fn started(&mut self) -> Process {
        self.started_with(None, BTreeMap::new())
    }

    /// The same process is a standby again.
    fn stand_by_again(&mut self, process: usize) {
        let it = &self.processes[process];
        let (memory, knew) = match self.mutant {
            Mutant::Forgets => (None, it.knew.clone()),
            _ => (it.memory.clone(), it.knew.clone()),
        };
        self.processes[process] = self.started_with(memory, knew);
    }

    fn started_with(&mut self, memory: Option<Known>, knew: BTreeMap<u64, String>) -> Process {
        self.started += 1;
        let me = described(self.started);
        let store = [self.started as u8; 16];
        let formats = formats_of(self.started);
        let mut layout = self.layout.clone();
        layout.formats = formats;
        let candidate = Candidate::new(layout, me, TTL_SECONDS, store, memory.clone());
        Process {
            role: Role::Candidate(Box::new(candidate)),
            life: self.started,
            formats,
            known: BTreeMap::new(),
            knew,
            memory,
            lease: None,
            keep_alive: None,
            before: None,
        }
    }

    /// The request that a process has to make, if it is a request.
    fn request(&self, process: usize) -> Option<Request> {
        match &self.processes[process].role {
            Role::Candidate(candidate) => match candidate.next() {
                Next::Call(request) => Some(request),
                _ => None,
            },
            Role::Leader { writer, .. } => writer.next().cloned(),
            Role::Stopped => None,
        }
    }

    fn act(&mut self, act: Act) -> Law {
        match act {
            Act::Tick => self.etcd.pass(TICK),
            Act::Late => {
                let request = self.late.remove(0);
                let _ = self.carry_out(&request);
            }
            Act::End(process) => self.processes[process] = self.started(),
            Act::Answer(process) => {
                let request = self.request(process).expect("it is enabled");
                let answer = self.carry_out_for(process, &request);
                self.answered(process, &request, answer)?;
            }
            Act::LoseAnswer(process) | Act::Delay(process) => {
                let request = self.request(process).expect("it is enabled");
                if matches!(act, Act::LoseAnswer(_)) {
                    let _ = self.carry_out(&request);
                } else {
                    self.late.push(request.clone());
                }
                let unknown = Failure::Unknown("lost".to_owned());
                self.answered(process, &request, Err(unknown))?;
            }
            Act::Watch(process) => {
                let Role::Candidate(candidate) = &mut self.processes[process].role else {
                    return Ok(());
                };
                let Next::Watch { from_revision } = candidate.next() else {
                    return Ok(());
                };
                let (key, end) = self.layout.watched();
                if let Some(watched) = self.etcd.watch(&key, &end, from_revision) {
                    let mut pieces = Vec::new();
                    let result = candidate.watched(watched, &mut pieces);
                    self.processes[process].visit(pieces);
                    self.candidate_went_on(process, result)?;
                }
            }
            Act::SeeDeath(process) => {
                if let Role::Candidate(candidate) = &mut self.processes[process].role {
                    let leader = candidate.leader().and_then(|leader| leader.life);
                    candidate.has_died(leader.map_or(0, |life| life.id));
                }
            }
            Act::Look(process) => {
                if let Role::Candidate(candidate) = &mut self.processes[process].role {
                    candidate.look();
                }
            }
            Act::Lose(loss) => self.lose(loss),
            Act::Append(process) => {
                let number = self.appended.len();
                let it = &mut self.processes[process];
                let Role::Leader {
                    writer, appending, ..
                } = &mut it.role
                else {
                    return Ok(());
                };
                let position = writer.head().position + 1;
                // Some in parts.
                let width = [1, 12, 20][number % 3];
                let batch = format!("{number:width$}");
                writer.append(position, batch.as_bytes());
                *appending = Some((position, batch.clone()));
                it.known.insert(position, batch.clone());
                self.appended.insert((position, batch));
            }
            Act::Snapshot(process) => {
                let it = &mut self.processes[process];
                let Role::Leader {
                    writer, snapshot, ..
                } = &mut it.role
                else {
                    return Ok(());
                };
                match snapshot.pop() {
                    None => {
                        let lines = it.known.iter().map(|(at, batch)| format!("{at}={batch}\n"));
                        let chunk = lines.collect::<String>().into_bytes();
                        *snapshot = vec![None, Some(chunk)];
                        writer.begin_snapshot(writer.head().position);
                    }
                    Some(Some(chunk)) => writer.add_to_snapshot(&chunk),
                    Some(None) => writer.finish_snapshot(),
                }
            }
            Act::Register(process) => self.register(process),
            Act::Agree(process) => self.agree(process),
            Act::SendKeepAlive(process) => {
                self.processes[process].keep_alive = Some(self.etcd.now());
            }
            Act::AnswerKeepAlive(process) => self.keep_alive(process),
        }
        self.check()
    }

    /// Renews the lease like registration.rs, with a lease that expires soon.
    fn register(&mut self, process: usize) {
        let it = &self.processes[process];
        let (leader, formats) = (described(it.life), it.formats);
        let candidate = Registered {
            leader,
            position: 0,
            formats,
        };
        let grant = Request::Grant { ttl_seconds: 1 };
        let Ok(Answer::Lease { id, .. }) = self.etcd.carry_out(&grant) else {
            return;
        };
        let put = Op::Put {
            key: self.layout.candidate(it.life),
            value: candidate.encode(),
            lease: id,
        };
        let put = Request::Txn(Txn {
            compare: Vec::new(),
            success: vec![put],
            failure: Vec::new(),
        });
        self.etcd.carry_out(&put).expect("its lease has begun");
    }

    fn listed(&self) -> (u64, Vec<Formats>) {
        let keys = self.etcd.range(&candidates_range(&self.layout));
        let keys = keys.expect("the newest revision").keys;
        let parsed = keys
            .iter()
            .map(|it| Registered::parse(&it.value).expect("a candidate").formats);
        (self.etcd.revision(), parsed.collect())
    }

    /// Sends the request like journal.rs: the transaction is carried out later, or never.
    fn agree(&mut self, process: usize) {
        let (revision, listed) = self.listed();
        let it = &mut self.processes[process];
        if let Role::Leader { writer, .. } = &mut it.role {
            let before = writer.head().format;
            let agreed = it.formats.agree(before, listed);
            if agreed > before {
                writer.raise_format(agreed, revision);
            }
        }
    }

    fn keep_alive(&mut self, process: usize) {
        let it = &mut self.processes[process];
        let (Some(sent), Some((lease, until))) = (it.keep_alive.take(), &mut it.lease) else {
            return;
        };
        match self.etcd.carry_out(&Request::KeepAlive { lease: *lease }) {
            Ok(Answer::Lease { ttl_seconds, .. }) if ttl_seconds > 0 => {
                let from = match self.mutant {
                    // The answer takes a while as well.
                    Mutant::GuardFromAnswer => self.etcd.now() + 2 * TICK,
                    _ => sent,
                };
                *until = Guard::new(ttl_seconds).until(from).max(*until);
            }
            // The server stops; its process is a standby again.
            _ => return self.stand_by_again(process),
        }
        let Role::Leader { writer, .. } = &self.processes[process].role else {
            return;
        };
        let known = self.processes[process].memory.clone();
        let writer = writer.head().writer;
        let look = Request::Txn(Txn {
            compare: Vec::new(),
            success: glimpse(&self.layout, known.as_ref()),
            failure: Vec::new(),
        });
        let Ok(Answer::Txn { ranges, .. }) = self.etcd.carry_out(&look) else {
            return;
        };
        let mut layout = self.layout.clone();
        layout.formats = self.processes[process].formats;
        match judge_leader(&layout, known.as_ref(), writer, &ranges) {
            Ok(()) => {}
            Err(Unfit::Deposed(_)) => self.stand_by_again(process),
            Err(Unfit::Lost(what)) => self.stop(process, Some(&what)),
            Err(Unfit::Other(_)) => self.stop(process, None),
        }
    }

    /// The data of etcd goes back, or a part of it is deleted.
    fn lose(&mut self, loss: Loss) {
        // Without its head and without batches, there is no store.
        let loss = match self.head() {
            Some(head) if loss == Loss::Head && head.position == 0 => Loss::Prefix,
            _ => loss,
        };
        self.lost = Some(loss);
        let delete = |etcd: &mut SimEtcd, key: String, end: String| {
            let request = Request::Txn(Txn {
                compare: Vec::new(),
                success: vec![Op::Delete { key, end }],
                failure: Vec::new(),
            });
            etcd.carry_out(&request).expect("etcd answers");
        };
        let layout = self.layout.clone();
        let one = |key: String| (key.clone(), format!("{key}\0"));
        let head = self.head();
        let last = head.as_ref().map_or(0, |head| head.position);
        let (key, end) = match loss {
            Loss::Copy => {
                let copy = SimEtcd::clone(&self.copy);
                return self.forget_confirmed(copy);
            }
            Loss::Everything => return self.forget_confirmed(SimEtcd::default()),
            Loss::Prefix => ("p/".to_owned(), "p0".to_owned()),
            Loss::Head => one(layout.head()),
            Loss::Log => (layout.log(0), layout.log_end()),
            Loss::LastBatch => one(layout.log(last)),
            Loss::Leader => one(layout.leader()),
        };
        delete(&mut self.etcd, key, end);
        if loss == Loss::Prefix {
            self.forget_confirmed(self.etcd.clone());
        }
    }

    /// Later batches continue an older log.
    fn forget_confirmed(&mut self, etcd: SimEtcd) {
        self.etcd.go_back_to(etcd);
        self.confirmed.clear();
        self.epoch = self.head().map_or(0, |head| head.epoch);
        self.format = 0;
    }

    fn head(&self) -> Option<Head> {
        let head = self.etcd.range(&Range::key(self.layout.head()));
        let head = head.expect("the newest revision").keys.pop()?;
        Some(self.layout.parse_head_of_any(&head.value).expect("a head"))
    }

    /// A process stops, and reports the reason to other processes.
    fn stop(&mut self, process: usize, lost: Option<&str>) {
        if let Some(what) = lost
            && self.mutant != Mutant::NoMark
        {
            let mark = mark(&self.layout, what);
            self.etcd.carry_out(&mark).expect("etcd answers");
        }
        self.processes[process].role = Role::Stopped;
        self.processes[process].lease = None;
    }

    fn candidate_went_on(&mut self, process: usize, result: Result<(), JournalError>) -> Law {
        let it = &mut self.processes[process];
        let Role::Candidate(candidate) = &it.role else {
            return Ok(());
        };
        Known::keep(&mut it.memory, candidate.known());
        match result {
            Ok(()) => Ok(()),
            Err(JournalError::Newer { .. }) => {
                self.processes[process] = self.started();
                Ok(())
            }
            Err(JournalError::Damaged { .. }) if self.lost.is_some() => {
                let lost = candidate.lost().map(str::to_owned);
                self.stop(process, lost.as_deref());
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn carry_out(&mut self, request: &Request) -> Result<Answer, Failure> {
        let request = self.mutant.weakened(request, &self.layout);
        self.etcd.carry_out(&request)
    }

    fn carry_out_for(&mut self, process: usize, request: &Request) -> Result<Answer, Failure> {
        if self.mutant == Mutant::HeadBefore
            && let Some(before) = &mut self.processes[process].before
            && matches!(request, Request::Range(Range { revision: 0, .. }))
        {
            return before.carry_out(request);
        }
        self.carry_out(request)
    }

    fn answered(
        &mut self,
        process: usize,
        request: &Request,
        answer: Result<Answer, Failure>,
    ) -> Law {
        let now = self.etcd.now();
        let it = &mut self.processes[process];
        match (request, &answer) {
            (Request::Grant { .. }, Ok(Answer::Lease { id, .. })) => {
                // The time of the request: a new request is for another lease.
                it.lease = Some((*id, Guard::new(TTL_SECONDS).until(now)));
                it.keep_alive = None;
                it.before = Some(Box::new(self.etcd.clone()));
            }
            (Request::Revoke { .. }, _) => it.lease = None,
            _ => {}
        }
        match &mut it.role {
            Role::Candidate(candidate) => {
                let mut pieces = Vec::new();
                let result = candidate.answered(answer, &mut pieces);
                let leads = result.is_ok() && candidate.next() == Next::Lead;
                it.visit(pieces);
                self.candidate_went_on(process, result)?;
                if leads {
                    self.lead(process)?;
                }
            }
            Role::Leader {
                writer, appending, ..
            } => match writer.answered(answer) {
                Ok(()) => {
                    if writer.next().is_none() {
                        if self.mutant == Mutant::CommitGuards
                            && let Some((_, until)) = &mut it.lease
                        {
                            *until = Guard::new(TTL_SECONDS).until(now).max(*until);
                        }
                        let epoch = writer.head().epoch;
                        Known::keep(&mut it.memory, Some(&writer.known()));
                        if let Some((position, batch)) = appending.take() {
                            it.knew.insert(position, batch.clone());
                            self.confirm(epoch, position, batch)?;
                        }
                    }
                }
                Err(Stopped::Deposed(_)) => self.stand_by_again(process),
                Err(Stopped::Overwritten) if self.lost.is_some() => {
                    self.stop(process, Some("overwritten"));
                }
                Err(stopped) => return Err(format!("a leader stops: {stopped:?}")),
            },
            Role::Stopped => {}
        }
        Ok(())
    }

    fn lead(&mut self, process: usize) -> Law {
        let next = self.started();
        let mut it = std::mem::replace(&mut self.processes[process], next);
        let Role::Candidate(candidate) = it.role else {
            return Ok(());
        };
        let writer = candidate.into_writer().ok_or("it has no writer")?;
        let head = writer.head();
        if head.epoch <= self.epoch {
            return Err(format!("epoch {} follows {}", head.epoch, self.epoch));
        }
        self.epoch = head.epoch;
        if !it.known.keys().copied().eq(1..=head.position) {
            return Err(format!("up to {}: {:?}", head.position, it.known));
        }
        Known::keep(&mut it.memory, Some(&writer.known()));
        for (position, batch) in &it.knew {
            if it.known.get(position) != Some(batch) {
                return Err(format!(
                    "it leads without batch {position}, which it knew: {batch}"
                ));
            }
        }
        for (position, batch) in &it.known {
            if !self.appended.contains(&(*position, batch.clone())) {
                return Err(format!("batch {position} was never appended: {batch}"));
            }
        }
        self.processes[process] = Process {
            role: Role::Leader {
                writer: Box::new(writer),
                appending: None,
                snapshot: Vec::new(),
            },
            ..it
        };
        for (position, batch) in &self.confirmed {
            if self.processes[process].known.get(position) != Some(batch) {
                return Err(format!("confirmed batch {position} is lost: {batch}"));
            }
        }
        Ok(())
    }

    fn confirm(&mut self, epoch: u64, position: u64, batch: String) -> Law {
        if epoch != self.epoch {
            return Err(format!("epoch {epoch} confirms in {}", self.epoch));
        }
        if position.is_multiple_of(3) {
            *self.copy = self.etcd.clone();
        }
        match self.confirmed.insert(position, batch.clone()) {
            Some(other) if other != batch => Err(format!("{position} is {other} and {batch}")),
            _ => Ok(()),
        }
    }

    /// Which formats are written and read.
    fn check_format(&mut self) -> Law {
        let (_, listed) = self.listed();
        let read = |key| {
            let found = self.etcd.range(&Range::key(key));
            found
                .expect("the newest revision")
                .keys
                .pop()
                .map(|it| it.value)
        };
        let head = read(self.layout.head());
        let leader = read(self.layout.leader());
        let head = head.map(|head| self.layout.parse_head_of_any(&head).expect("a head"));
        let Some(head) = head else {
            return Ok(());
        };
        if head.format < self.format {
            return Err(format!("format {} after {}", head.format, self.format));
        }
        if head.format > self.format && listed.iter().any(|it| it.newest < head.format) {
            return Err(format!("format {} is written, of {listed:?}", head.format));
        }
        self.format = head.format;
        let leader = leader.map(|leader| Leader::parse(&leader).expect("a leader"));
        if let Some(leader) = leader
            && formats_of(leader.process).newest < head.format
        {
            return Err(format!("{leader}, leads and cannot read the log"));
        }
        Ok(())
    }

    fn check(&mut self) -> Law {
        if self.is_mixed {
            self.check_format()?;
        }
        let now = self.etcd.now();
        let may_answer = |it: &&Process| {
            let until = it.lease.map_or(Duration::ZERO, |(_, until)| until);
            let is_in_time = now < until || self.mutant == Mutant::NoGuard;
            matches!(it.role, Role::Leader { .. }) && is_in_time
        };
        let answering: Vec<_> = self.processes.iter().filter(may_answer).collect();
        let may_be_two =
            self.lost == Some(Loss::Leader) || self.lost.is_some_and(Loss::leaves_a_store);
        if answering.len() > 1 && !may_be_two {
            return Err("two processes may answer".to_owned());
        }
        for it in answering {
            if may_be_two {
                continue;
            }
            for (position, batch) in &self.confirmed {
                if it.known.get(position) != Some(batch) {
                    return Err(format!("it answers without batch {position}"));
                }
            }
        }
        Ok(())
    }

    /// All faults are cleared: one process leads, and has all confirmed batches.
    fn heal(&mut self) -> Law {
        while !self.late.is_empty() {
            self.act(Act::Late)?;
        }
        let is_known = |it: &Process, etcd: &SimEtcd, layout: &Layout| {
            let head = etcd.range(&Range::key(layout.head()));
            let head = head.expect("the newest revision").keys.pop();
            let head = head.map(|it| layout.parse_head_of_any(&it.value).expect("a head"));
            let has = head.as_ref().map_or(0, |head| head.position);
            it.knew.keys().next_back().is_some_and(|last| *last > has)
        };
        let is_damaged = self.lost.is_some_and(Loss::leaves_a_store)
            && (self.processes.iter()).any(|it| is_known(it, &self.etcd, &self.layout));
        for _ in 0..400 {
            if self
                .processes
                .iter()
                .all(|it| matches!(it.role, Role::Stopped))
                && self.lost.is_some()
            {
                return Ok(());
            }
            for process in 0..self.processes.len() {
                if let Role::Leader { writer, .. } = &self.processes[process].role
                    && writer.next().is_none()
                {
                    let before = self.confirmed.len();
                    self.act(Act::Append(process))?;
                    while self.request(process).is_some()
                        && matches!(self.processes[process].role, Role::Leader { .. })
                    {
                        self.act(Act::Answer(process))?;
                    }
                    if self.confirmed.len() > before && !is_damaged {
                        return Ok(());
                    }
                }
                if self.steps().contains(&Act::Watch(process)) {
                    self.act(Act::Watch(process))?;
                } else if self.lost.is_some() && self.steps().contains(&Act::Look(process)) {
                    self.act(Act::Look(process))?;
                } else if self.request(process).is_some() {
                    self.act(Act::Answer(process))?;
                }
                if self.processes[process].lease.is_some() {
                    self.act(Act::SendKeepAlive(process))?;
                    self.act(Act::AnswerKeepAlive(process))?;
                }
            }
            self.etcd.pass(TICK / 8);
        }
        Err(match is_damaged {
            true => "not all have stopped".to_owned(),
            false => {
                let roles: Vec<_> = self.processes.iter().map(|it| &it.role).collect();
                format!("nobody leads after {:?}: {roles:?}", self.lost)
            }
        })
    }
}

impl Simulation for World {
    type Step = Act;

    fn take(&mut self, act: Act) {
        self.act(act).expect("no law is broken");
    }

    fn is_possible(&self, act: &Act) -> bool {
        self.steps().contains(act)
    }
}

impl Explored for World {
    fn steps(&self) -> Vec<Act> {
        let mut acts = vec![Act::Tick];
        if !self.late.is_empty() {
            acts.push(Act::Late);
        }
        if self.loses && self.lost.is_none() {
            acts.extend(Loss::ALL.map(Act::Lose));
        }
        for (index, process) in self.processes.iter().enumerate() {
            if self.request(index).is_some() {
                acts.extend([
                    Act::Answer(index),
                    Act::LoseAnswer(index),
                    Act::Delay(index),
                ]);
            }
            match &process.role {
                Role::Candidate(candidate) => {
                    if let Next::Watch { from_revision } = candidate.next() {
                        let (key, end) = self.layout.watched();
                        if self.etcd.watch(&key, &end, from_revision).is_some() {
                            acts.push(Act::Watch(index));
                        }
                        if self.loses {
                            acts.push(Act::Look(index));
                        }
                        let leader = candidate.leader().and_then(|leader| leader.life);
                        let is_dead =
                            |life: Life| self.processes.iter().all(|it| it.life != life.id);
                        if leader.is_some_and(is_dead) || self.mutant == Mutant::SilenceIsDeath {
                            acts.push(Act::SeeDeath(index));
                        }
                    }
                }
                Role::Leader { writer, .. } if writer.next().is_none() => {
                    acts.extend([Act::Append(index), Act::Snapshot(index)]);
                    if self.is_mixed {
                        acts.push(Act::Agree(index));
                    }
                }
                Role::Leader { .. } | Role::Stopped => {}
            }
            if self.is_mixed {
                acts.push(Act::Register(index));
            }
            if process.lease.is_some() {
                acts.push(match process.keep_alive {
                    None => Act::SendKeepAlive(index),
                    Some(_) => Act::AnswerKeepAlive(index),
                });
            }
            acts.push(Act::End(index));
        }
        acts
    }

    fn copy(&self, _: &[Act]) -> Self {
        self.clone()
    }

    fn fingerprint(&self) -> Option<u64> {
        None
    }
}

impl Process {
    fn visit(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Restart => self.known.clear(),
                Piece::Chunk { bytes, .. } => {
                    let text = String::from_utf8(bytes).expect("text");
                    for line in text.lines() {
                        let (at, batch) = line.split_once('=').expect("a line");
                        self.known
                            .insert(at.parse().expect("a number"), batch.to_owned());
                    }
                }
                Piece::Batch { position, bytes } => {
                    let batch = String::from_utf8(bytes).expect("text");
                    self.known.insert(position, batch);
                }
            }
        }
        let known = self.known.iter().map(|(at, batch)| (*at, batch.clone()));
        self.knew.extend(known);
    }
}

/// The formats of the process with this number: some processes are of the previous release.
const fn formats_of(process: u64) -> Formats {
    Formats {
        oldest: 1,
        newest: if process % 3 == 2 { 1 } else { 2 },
    }
}

/// The process with this number, as it describes itself.
fn described(process: u64) -> Leader {
    Leader {
        address: format!("host{process}:1"),
        process,
        host: "host".to_owned(),
        since: 0,
        writer: process << 32,
        life: Some(Life {
            port: 1,
            id: process,
        }),
    }
}

/// A random history, which panics if it breaks a law.
fn random(seed: u64, mutant: Mutant) {
    random_with(seed, mutant, false);
}

fn random_with(seed: u64, mutant: Mutant, loses: bool) {
    let start = || {
        let mut world = World::new(2 + (seed % 2) as usize, mutant, seed % 4 < 2 && !loses);
        world.loses = loses;
        (world, Rng::with_seed(seed))
    };
    run(start, history, |world, _| {
        world.heal().expect("no law is broken");
    });
}

fn history(world: &mut Run<World>, random: &mut Rng) {
    // Some histories lose much, some little.
    let losses = random.u32(1..12);
    let keeps = random.u32(1..10);
    let mut stopped = None;
    for _ in 0..random.u32(20..220) {
        // A process is stopped, and resumed.
        if random.u32(..25) == 0 {
            stopped = random.bool().then(|| random.usize(..world.processes.len()));
        }
        let acts = world.steps();
        let act = acts[random.usize(..acts.len())];
        let is_rare = match act {
            Act::LoseAnswer(_) | Act::Delay(_) => random.u32(..30) >= losses,
            Act::End(_) => random.u32(..40) > 0,
            Act::Lose(_) => random.u32(..200) > 0,
            Act::SendKeepAlive(_) => random.u32(..10) >= keeps,
            Act::Late => random.u32(..4) > 0,
            Act::Tick => random.u32(..3) > 0,
            _ => false,
        };
        if !is_rare && (stopped.is_none() || act.process() != stopped) {
            world.take(act);
        }
    }
}

#[test]
fn random_histories_keep_every_law() {
    for seed in Seeds::fresh(1500) {
        random(seed, Mutant::None);
        random_with(seed, Mutant::None, true);
    }
}

#[test]
fn random_histories_find_each_mutant() {
    for mutant in [
        Mutant::NoLeader,
        Mutant::NoHead,
        Mutant::HeadBefore,
        Mutant::NoGuard,
        Mutant::CommitGuards,
        Mutant::GuardFromAnswer,
        Mutant::SilenceIsDeath,
        Mutant::EndsAnyLeader,
        Mutant::NoListFence,
        Mutant::NoCampaignFence,
    ] {
        let found = (0..20_000).any(|seed| panics(|| random(seed, mutant)));
        assert!(found, "{mutant:?} was not found");
    }
    for mutant in [Mutant::Forgets, Mutant::NoMark] {
        let found = (0..20_000).any(|seed| panics(|| random_with(seed, mutant, true)));
        assert!(found, "{mutant:?} was not found");
    }
}

/// A standby that was not listed when the leader raised the format sees the batches after that, not the head.
#[test]
fn a_standby_reads_the_head_after_the_batches_that_it_has_watched_before_it_leads() {
    let mut world = World::new(2, Mutant::None, true);
    answer_all(&mut world, 0);
    // It reads format 1 only, and follows.
    answer_all(&mut world, 1);
    let standby = world.processes[1].life;
    for step in [Act::Agree(0), Act::Append(0)] {
        world.act(step).expect("it leads");
        answer_all(&mut world, 0);
    }
    for step in [Act::Watch(1), Act::End(0), Act::SeeDeath(1)] {
        world.act(step).expect("no law is broken");
    }
    while world.processes[1].life == standby {
        world.act(Act::Answer(1)).expect("no law is broken");
    }
    assert_eq!(world.format, 2);
}

/// etcd is emptied and has as many revisions again, while a standby reads a batch in parts.
#[test]
fn a_standby_that_reads_while_etcd_goes_back_finds_the_loss() {
    let mut world = taking_over();
    world.loses = true;
    answer_all(&mut world, 0);
    world.act(Act::Watch(1)).expect("it knows a batch");
    world.act(Act::Append(0)).expect("it leads");
    answer_all(&mut world, 0);
    world.act(Act::Watch(1)).expect("it cannot pass that on");
    while !matches!(world.request(1), Some(Request::Range(_))) {
        world.act(Act::Answer(1)).expect("no law is broken");
    }
    let revision = world.etcd.revision();
    world
        .act(Act::Lose(Loss::Everything))
        .expect("etcd answers");
    while world.etcd.revision() < revision {
        world.register(1);
    }
    world.act(Act::End(0)).expect("etcd answers");
    world.act(Act::Answer(1)).expect("no law is broken");
    world.heal().expect("no process leads");
}

/// Another process leads after the candidate has looked, and its head is lost.
#[test]
fn a_candidate_that_has_found_no_head_does_not_lead_the_rest_of_a_store() {
    let mut world = World::new(2, Mutant::None, false);
    world.loses = true;
    while !matches!(world.request(1), Some(Request::Grant { .. })) {
        world.act(Act::Answer(1)).expect("no law is broken");
    }
    answer_all(&mut world, 0);
    world.act(Act::Append(0)).expect("it leads");
    answer_all(&mut world, 0);
    world.act(Act::Lose(Loss::Head)).expect("etcd answers");
    world.act(Act::End(0)).expect("etcd answers");
    for _ in 0..8 {
        world.act(Act::Tick).expect("the lease ends");
    }
    answer_all(&mut world, 1);
    assert!(matches!(world.processes[1].role, Role::Stopped));
    assert_eq!(world.head(), None);
}

/// The first commit of a leader is sent twice, and one copy is carried out when the head is lost.
#[test]
fn a_late_copy_of_the_first_commit_makes_no_new_head() {
    for loss in [Loss::Head, Loss::Everything] {
        let mut world = World::new(2, Mutant::None, false);
        world.loses = true;
        let has_opened = |request: &Option<Request>| match request {
            Some(Request::Txn(txn)) => {
                matches!(&*txn.success, [Op::Put { key, .. }] if key == "p/head")
            }
            _ => false,
        };
        while !has_opened(&world.request(0)) {
            world.act(Act::Answer(0)).expect("no law is broken");
        }
        world.act(Act::Delay(0)).expect("it is sent again");
        answer_all(&mut world, 0);
        world.act(Act::Append(0)).expect("it leads");
        answer_all(&mut world, 0);
        world.act(Act::Lose(loss)).expect("etcd answers");
        // In an empty etcd, its key has the same revision as the one before.
        while loss == Loss::Everything && !has_opened(&world.request(1)) {
            world.act(Act::Answer(1)).expect("no law is broken");
        }
        world.act(Act::Late).expect("etcd answers");
        assert_eq!(world.head(), None, "{loss:?}");
    }
}

/// etcd goes back, and a late commit gets the revision of the lost commit.
#[test]
fn a_leader_whose_newest_batch_is_lost_appends_no_other() {
    let mut world = World::new(2, Mutant::None, false);
    world.loses = true;
    answer_all(&mut world, 0);
    for _ in 0..3 {
        world.act(Act::Append(0)).expect("it leads");
        answer_all(&mut world, 0);
    }
    let copied = world.etcd.revision();
    world.act(Act::Snapshot(0)).expect("it leads");
    world.act(Act::Delay(0)).expect("it is sent again");
    answer_all(&mut world, 0);
    world.act(Act::Append(0)).expect("it leads");
    answer_all(&mut world, 0);
    let newest = world.head().map(|head| head.position);
    world.act(Act::Lose(Loss::Copy)).expect("etcd answers");
    assert_eq!((newest, world.etcd.revision()), (Some(4), copied));
    world.register(1);
    world.act(Act::Late).expect("etcd answers");
    world.act(Act::Append(0)).expect("it does not know");
    answer_all(&mut world, 0);
    assert!(matches!(world.processes[0].role, Role::Stopped));
    assert_eq!(world.head().map(|head| head.position), Some(3));
}

/// The head changes between two reads of the log, which lacks a batch.
#[test]
fn a_standby_finds_a_damaged_log_beside_a_busy_leader() {
    let mut world = taking_over();
    world.loses = true;
    answer_all(&mut world, 0);
    world.act(Act::Lose(Loss::LastBatch)).expect("etcd answers");
    world.act(Act::Append(0)).expect("it leads");
    answer_all(&mut world, 0);
    world.act(Act::End(1)).expect("it has read nothing");
    for _ in 0..8 {
        if world.request(1).is_some() {
            world.act(Act::Answer(1)).expect("no law is broken");
        }
        world.act(Act::Append(0)).expect("it leads");
        answer_all(&mut world, 0);
    }
    assert!(matches!(world.processes[1].role, Role::Stopped));
}

/// Every order of the possible events in `DEPTH` steps, 5 by default, from a moment on at which one process leads and
/// appends, and a second process follows.
#[test]
fn every_order_of_a_takeover_keeps_every_law() {
    every_order(taking_over(), depth(5));
}

/// The same, while etcd's data goes back.
#[test]
fn every_order_of_a_loss_keeps_every_law() {
    for loss in Loss::ALL {
        let mut world = taking_over();
        world.loses = true;
        world.act(Act::Lose(loss)).expect("no law is broken");
        every_order(world, depth(4));
    }
}

fn depth(default: usize) -> usize {
    let given = env::var("DEPTH").ok();
    given.map_or(default, |text| text.parse().expect("a number"))
}

fn every_order(start: World, depth: usize) {
    explore(start, depth, |world, _, is_end| {
        if is_end {
            world.clone().heal().expect("no law is broken");
        }
        true
    });
}

fn answer_all(world: &mut World, process: usize) {
    while world.request(process).is_some() {
        world.act(Act::Answer(process)).expect("no law is broken");
    }
}

fn taking_over() -> World {
    let mut world = World::new(2, Mutant::None, false);
    while matches!(world.processes[0].role, Role::Candidate(_)) {
        world.act(Act::Answer(0)).expect("it leads");
    }
    while world.request(1).is_some() {
        world.act(Act::Answer(1)).expect("it follows");
    }
    world.act(Act::Append(0)).expect("it appends");
    // A part of the lease is over.
    for _ in 0..3 {
        world.act(Act::Tick).expect("time");
    }
    world
}
