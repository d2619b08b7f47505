//! A service, its processes and the network between them, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use c10d_sim::{Explored, Simulation, fingerprint};

use super::laws::History;
use super::process::{Life, Mesh, Process};
use crate::group::{Effect, Group, GroupState, Input, Kept};
use crate::member::{Action, MemberInput};
use crate::message::{EventNumber, Message, Reply};
use crate::options::GroupOptions;
use crate::record::{Attempt, MemberKey, Nonce, Record};

/// How many of each can still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Budget {
    pub(super) kills: usize,
    pub(super) stops: usize,
    /// The number of lost answers.
    pub(super) losses: usize,
    /// Messages that arrive a second time, later.
    pub(super) copies: usize,
    pub(super) failing_calls: usize,
    /// Timers that fire while something else could happen.
    pub(super) late: usize,
    pub(super) leaves: usize,
    pub(super) restarts: usize,
    /// Whether the answers of the service are on their way for a while.
    pub(super) is_split: bool,
    /// Whether members reach step boundaries without a change.
    pub(super) steps: u64,
    /// Whether they ask only at boundaries for which the step has shown that one of them has a change
    /// (docs/spec/membership.md, MEMBER 7).
    pub(super) asks_for_changes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Join(usize),
    /// The service gets the message that the process owes, or its poll.
    Ask(usize),
    Poll(usize),
    /// The answer arrives.
    Answer(usize),
    News(usize),
    /// Torch's call returns.
    Return(usize, bool),
    LeaveMesh(usize),
    Complete(usize),
    Raise(usize),
    Notice(usize),
    Kill(usize),
    Stop(usize),
    Continue(usize),
    LoseAnswer(usize),
    LoseNews(usize),
    Copy(usize),
    DeliverCopy(usize),
    Leave(usize),
    Finish(usize),
    Tick,
    /// The service exits and is started again, with or without its kept state.
    Restart(bool),
}

/// A defect of the service or a process, which the laws have to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    None,
    /// One acknowledgement counts for all members of the list.
    AckForAll,
    /// A process reports that it has left its mesh while it still uses it.
    LeftTooEarly,
    /// The state that the service keeps does not survive it, apart from the first.
    NotKept,
    /// Of all members, the first never stops at a boundary.
    PassesBoundary,
    /// Members that ask only for changes decide from their local state alone.
    AsksByItself,
    /// The service does not report that a process is evicted.
    NotTold,
    /// Timers of the service do not fire.
    NoTimer,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) group: Group,
    pub(super) processes: Vec<Process>,
    pub(super) index: BTreeMap<MemberKey, usize>,
    pub(super) copies: Vec<(MemberKey, Message)>,
    /// Attempts whose waits the service has ended.
    pub(super) released: BTreeSet<Attempt>,
    /// Whether a member was informed of a change in the step after this number of steps.
    told: BTreeMap<(Attempt, u64), bool>,
    /// Attempts in which torch's own time is over.
    timed_out: BTreeSet<Attempt>,
    pub(super) kept: Option<Kept>,
    pub(super) now: Duration,
    pub(super) budget: Budget,
    pub(super) options: GroupOptions,
    pub(super) history: History,
    nonces: u32,
    pub(super) mutant: Mutant,
}

impl World {
    pub(super) fn new(options: GroupOptions, processes: Vec<Process>, budget: Budget) -> Self {
        let keys = processes.iter().map(|process| process.key);
        Self {
            group: Group::new(options.clone(), Nonce::new(2)),
            index: keys.zip(0..).collect(),
            processes,
            copies: Vec::new(),
            released: BTreeSet::new(),
            told: BTreeMap::new(),
            timed_out: BTreeSet::new(),
            kept: None,
            now: Duration::ZERO,
            budget,
            options,
            history: History::default(),
            nonces: 1,
            mutant: Mutant::None,
        }
    }

    /// The steps that need no fault, of one process.
    pub(super) fn steps_of(&self, at: usize) -> Vec<Step> {
        let process = &self.processes[at];
        let mut steps = Vec::new();
        let is_silent = matches!(process.life, Life::Dead | Life::Stopped);
        if is_silent && !process.is_noticed {
            steps.push(Step::Notice(at));
        }
        if process.life == Life::Unborn {
            let id = process.key.id;
            let is_free = self.processes.iter().all(|other| {
                other.key.id != id || other.key >= process.key || other.life == Life::Dead
            });
            steps.extend(is_free.then_some(Step::Join(at)));
        }
        if !process.is_running() {
            return steps;
        }
        if process.answer.is_some() {
            steps.push(Step::Answer(at));
        } else if process.member.owed().is_some() {
            steps.push(Step::Ask(at));
        }
        if process.news.is_some() {
            steps.push(Step::News(at));
        } else if self.has_news(at) {
            steps.push(Step::Poll(at));
        }
        match &process.mesh {
            Mesh::Calling(record) => {
                let have_called = record.seats.iter().all(|seat| {
                    let called = self.history.called.get(&record.attempt);
                    called.is_some_and(|called| called.contains(&seat.member))
                });
                let can_fail = self.must_fail(record);
                if have_called {
                    steps.push(Step::Return(at, true));
                }
                if can_fail {
                    steps.push(Step::Return(at, false));
                }
            }
            _ if process.must_leave => steps.push(Step::LeaveMesh(at)),
            Mesh::Stepping(record) => {
                let others = || {
                    let seats = record.seats.iter();
                    seats.map(|seat| &self.processes[self.index[&seat.member]])
                };
                let generation = record.attempt;
                // All members take part, and are at most one step ahead.
                let are_all_there = others().all(|other| {
                    other.is_running()
                        && other.is_inside(generation)
                        && (other.step > process.step
                            || (other.step == process.step
                                && matches!(other.mesh, Mesh::Stepping(_))))
                });
                // After a change that was withdrawn members ask at each boundary.
                let is_asked = self.is_changing()
                    && (!self.budget.asks_for_changes
                        || self.is_told_of_a_change(record, process.step));
                // A member that has completed it may have left since.
                let is_complete = self.told.contains_key(&(generation, process.step));
                if is_complete || are_all_there && (process.step < self.budget.steps || is_asked) {
                    steps.push(Step::Complete(at));
                }
                if others().any(|other| !other.is_running() || !other.is_inside(generation)) {
                    steps.push(Step::Raise(at));
                }
            }
            _ => {}
        }
        steps
    }

    /// Whether a call cannot be expected to succeed.
    fn must_fail(&self, record: &Record) -> bool {
        let attempt = record.attempt;
        self.released.contains(&attempt)
            || self.timed_out.contains(&attempt)
            || record.seats.iter().any(|seat| {
                let other = &self.processes[self.index[&seat.member]];
                other.life == Life::Dead || other.ending().is_some()
            })
    }

    fn is_changing(&self) -> bool {
        matches!(
            self.group.state(),
            GroupState::Committed {
                change: Some(_),
                ..
            }
        )
    }

    /// The value that a collective of this step distributes to all members: the first that completes it decides.
    fn is_told_of_a_change(&self, record: &Record, step: u64) -> bool {
        let told = self.told.get(&(record.attempt, step)).copied();
        told.unwrap_or_else(|| {
            let mut members = record.seats.iter().map(|seat| self.index[&seat.member]);
            members.any(|at| self.processes[at].member.has_change())
        })
    }

    fn has_news(&self, at: usize) -> bool {
        let process = &self.processes[at];
        let poll = process.member.poll();
        let Some(after) = poll.and_then(|poll| poll.polls_after()) else {
            return false;
        };
        process.must_poll || self.group.poll(process.key, after) != Reply::NotYet
    }

    /// The faults and decisions that are possible at one process.
    pub(super) fn faults_of(&self, at: usize) -> Vec<Step> {
        let process = &self.processes[at];
        let budget = &self.budget;
        let mut faults = Vec::new();
        if process.life == Life::Stopped {
            faults.push(Step::Continue(at));
            faults.extend((budget.kills > 0).then_some(Step::Kill(at)));
        }
        if !process.is_active() {
            return faults;
        }
        faults.extend((budget.kills > 0).then_some(Step::Kill(at)));
        faults.extend((budget.stops > 0).then_some(Step::Stop(at)));
        if budget.losses > 0 {
            faults.extend(process.answer.is_some().then_some(Step::LoseAnswer(at)));
            faults.extend(process.news.is_some().then_some(Step::LoseNews(at)));
        }
        let owes = process.member.owed().is_some();
        faults.extend((budget.copies > 0 && owes).then_some(Step::Copy(at)));
        if matches!(process.mesh, Mesh::Calling(_)) && budget.failing_calls > 0 {
            faults.push(Step::Return(at, false));
        }
        if budget.leaves > 0 && !process.wants_to_leave {
            faults.push(Step::Leave(at));
            if matches!(process.mesh, Mesh::Stepping(_)) {
                faults.push(Step::Finish(at));
            }
        }
        faults
    }

    pub(super) fn faults(&self) -> Vec<Step> {
        let copies = 0..self.copies.len();
        let mut faults: Vec<Step> = copies.map(Step::DeliverCopy).collect();
        if self.budget.late > 0 && self.wake_at().is_some() {
            faults.push(Step::Tick);
        }
        if self.budget.restarts > 0 {
            faults.extend(self.kept.is_some().then_some(Step::Restart(true)));
            faults.push(Step::Restart(false));
        }
        faults
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        let running = self.processes.iter().filter(|it| it.is_running());
        let members = running.filter_map(|it| it.member.wake_at());
        members.chain(self.group.wake_at()).min()
    }

    /// Whether only time can bring anything on.
    pub(super) fn is_quiet(&self) -> bool {
        (0..self.processes.len()).all(|at| self.steps_of(at).is_empty())
    }

    fn tick(&mut self) {
        // Torch's own timeout is shorter than the service's.
        if let GroupState::Calling { record, .. } = self.group.state() {
            let attempt = record.attempt;
            let calling = |it: &Process| matches!(it.mesh, Mesh::Calling(_)) && it.is_active();
            let is_late = self
                .processes
                .iter()
                .any(|it| calling(it) && it.attempt() == Some(attempt));
            if is_late && self.timed_out.insert(attempt) {
                return;
            }
        }
        self.now = self.now.max(self.wake_at().expect("a time"));
        if self.group.wake_at().is_some_and(|at| at <= self.now) {
            self.history.disturb();
            if self.mutant != Mutant::NoTimer {
                self.group_input(Input::Tick);
            }
        }
        for at in 0..self.processes.len() {
            let process = &self.processes[at];
            let due = process.member.wake_at();
            if process.is_running() && due.is_some_and(|due| due <= self.now) {
                self.input(at, MemberInput::Tick);
            }
        }
    }

    fn restart(&mut self, is_durable: bool) {
        self.budget.restarts -= 1;
        self.history.disturb();
        for process in &mut self.processes {
            process.answer = None;
            process.news = None;
        }
        match self.kept.clone().filter(|_| is_durable) {
            Some(kept) => {
                let (group, effects) = Group::recover(self.options.clone(), kept, self.now);
                self.group = group;
                self.carry_out(effects);
            }
            None => {
                // Calls under way return when torch's timeout expires.
                self.timed_out.extend(self.history.called.keys().copied());
                self.nonces += 1;
                self.kept = None;
                self.group = Group::new(self.options.clone(), Nonce::new(self.nonces * 2));
            }
        }
        self.history.forget();
        // Launchers and sessions report the ends that the service has lost.
        for process in &mut self.processes {
            process.is_noticed = false;
            // Its connection was lost.
            process.must_poll = true;
        }
    }

    fn complete(&mut self, at: usize) {
        let Mesh::Stepping(record) = &self.processes[at].mesh else {
            panic!("process {at} ends a step that it is not in");
        };
        let record = Arc::clone(record);
        let before = self.processes[at].step;
        self.processes[at].step += 1;
        if self.budget.asks_for_changes {
            let is_told = match self.mutant {
                Mutant::AsksByItself => self.processes[at].member.has_change(),
                _ => self.is_told_of_a_change(&record, before),
            };
            self.told.insert((record.attempt, before), is_told);
            if !is_told {
                return self.check_action(at, &Action::Proceed);
            }
        }
        self.processes[at].mesh = Mesh::AtBoundary(record);
        self.input(at, MemberInput::Boundary(before + 1));
    }

    fn call_returned(&mut self, at: usize, is_ok: bool) {
        let process = &mut self.processes[at];
        let Mesh::Calling(record) = &process.mesh else {
            panic!("process {at} is in no call");
        };
        let record = Arc::clone(record);
        let key = process.key;
        if is_ok {
            process.uuid = record.attempt.uuid();
            let returned = self.history.returned.entry(record.attempt).or_default();
            returned.insert(key);
        } else if !self.must_fail(&record) {
            self.budget.failing_calls -= 1;
        }
        self.processes[at].mesh = Mesh::Called(record);
        self.input(at, MemberInput::Called { is_ok });
    }

    fn tell(&mut self, key: MemberKey, message: Message) -> Reply {
        if self.mutant == Mutant::AckForAll && matches!(message, Message::Ack { .. }) {
            for at in 0..self.processes.len() {
                let other = self.processes[at].key;
                self.group_input(Input::Message(other, message.clone()));
            }
        }
        self.group_input(Input::Message(key, message))
    }

    fn group_input(&mut self, input: Input) -> Reply {
        let outcome = self.group.step(self.now, input);
        self.carry_out(outcome.effects);
        outcome.reply
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.check_effect(&effect);
            match effect {
                Effect::Keep(kept) if self.mutant != Mutant::NotKept || self.kept.is_none() => {
                    self.kept = Some(kept);
                }
                Effect::ReleaseWaits(attempt) => drop(self.released.insert(attempt)),
                _ => {}
            }
        }
    }

    fn reply(&mut self, at: usize, message: Message, mut reply: Reply) {
        match (&reply, self.mutant) {
            (Reply::Change(_), Mutant::PassesBoundary) if at == 0 => reply = Reply::Proceed,
            (Reply::Evicted(_), Mutant::NotTold) => reply = Reply::NotYet,
            _ => {}
        }
        self.input(at, MemberInput::Reply(message, reply));
    }

    fn input(&mut self, at: usize, input: MemberInput) {
        let actions = self.processes[at].member.step(self.now, input);
        self.act(at, actions);
    }

    fn act(&mut self, at: usize, actions: Vec<Action>) {
        for action in actions {
            self.check_action(at, &action);
            let process = &mut self.processes[at];
            match action {
                // The service gets it by `Ask`.
                Action::Send(_) => process.answer = None,
                Action::LeaveMesh { .. } if self.mutant == Mutant::LeftTooEarly => {
                    let mesh = process.mesh.clone();
                    let actions = process.left(self.now);
                    process.mesh = mesh;
                    self.act(at, actions);
                }
                Action::LeaveMesh { .. } => process.must_leave = true,
                Action::Call { record, .. } => {
                    let called = self.history.called.entry(record.attempt).or_default();
                    called.insert(process.key);
                    process.mesh = Mesh::Calling(record);
                }
                Action::Enter { record, .. } => {
                    process.has_finished = false;
                    process.step = record.seats[record.source].step;
                    process.mesh = Mesh::Stepping(record);
                }
                // The program handles the exception, and continues.
                Action::StepError | Action::Proceed => {
                    if let Mesh::AtBoundary(record) | Mesh::Raised(record) = &process.mesh {
                        process.mesh = Mesh::Stepping(Arc::clone(record));
                    }
                }
                Action::Over(_) => process.must_leave = false,
            }
        }
    }

    /// The history runs without further faults until all is quiet and no timer runs.
    pub(super) fn end(&mut self) {
        self.budget = Budget {
            is_split: self.budget.is_split,
            asks_for_changes: self.budget.asks_for_changes,
            ..Budget::default()
        };
        for at in 0..self.processes.len() {
            if self.processes[at].life == Life::Unborn {
                self.processes[at].life = Life::Dead;
                self.processes[at].is_noticed = true;
            }
        }
        let able = self.able();
        let mut taken = 0;
        while taken < 50_000 {
            let mut has_moved = false;
            for at in 0..self.processes.len() {
                while let Some(step) = self.next_step_of(at).filter(|_| taken < 50_000) {
                    self.take(step);
                    taken += 1;
                    has_moved = true;
                }
            }
            taken += 1;
            if has_moved {
                continue;
            }
            if self.wake_at().is_some() {
                self.take(Step::Tick);
            } else if let Some(at) = self.stopped() {
                self.take(Step::Continue(at));
            } else {
                return self.check_end(&able);
            }
        }
        panic!("the group does not come to rest: {:#?}", self.group);
    }

    /// A process that raises waits for the service, because it would raise again at once.
    fn next_step_of(&self, at: usize) -> Option<Step> {
        let steps = self.steps_of(at);
        steps.into_iter().find(|step| match step {
            Step::Raise(_) => false,
            Step::Return(_, is_ok) => *is_ok || steps_fail(self, at),
            _ => true,
        })
    }

    /// The processes that can be in a generation from now on.
    fn able(&self) -> Vec<usize> {
        if matches!(self.group.state(), GroupState::Ended(_)) {
            return Vec::new();
        }
        let is_able = |at: &usize| {
            let process = &self.processes[*at];
            let is_evicted = matches!(self.event_of(process.key), Reply::Evicted(_));
            process.is_active() && !process.wants_to_leave && !is_evicted
        };
        (0..self.processes.len()).filter(is_able).collect()
    }

    fn stopped(&self) -> Option<usize> {
        let stopped = |process: &Process| process.life == Life::Stopped;
        self.processes.iter().position(stopped)
    }

    /// The newest event, as if nothing had been seen.
    pub(super) fn event_of(&self, key: MemberKey) -> Reply {
        self.group.poll(key, EventNumber::NONE)
    }
}

/// Whether a call cannot succeed any more.
fn steps_fail(world: &World, at: usize) -> bool {
    let Mesh::Calling(record) = &world.processes[at].mesh else {
        return false;
    };
    let called = world.history.called.get(&record.attempt);
    !record
        .seats
        .iter()
        .all(|seat| called.is_some_and(|called| called.contains(&seat.member)))
}

impl World {
    /// These processes join, and form a generation.
    pub(super) fn form(&mut self, is_first: impl Fn(MemberKey) -> bool) {
        for at in 0..self.processes.len() {
            if is_first(self.processes[at].key) {
                self.take(Step::Join(at));
            }
        }
        while !matches!(self.group.state(), GroupState::Committed { .. }) {
            for at in 0..self.processes.len() {
                while let Some(step) = self
                    .next_step_of(at)
                    .filter(|it| !matches!(it, Step::Join(_)))
                {
                    self.take(step);
                }
            }
        }
    }

    pub(super) fn attempts(&self) -> u32 {
        let kept = self.kept.as_ref();
        kept.map_or(0, |kept| kept.last.count())
    }
}

impl Simulation for World {
    type Step = Step;

    fn take(&mut self, step: Step) {
        match step {
            Step::Join(at) => {
                let now = self.now;
                let actions = self.processes[at].join(now);
                self.act(at, actions);
            }
            Step::Ask(at) => {
                let process = &self.processes[at];
                let message = process.member.owed().expect("it owes a message");
                let reply = self.tell(process.key, message.clone());
                self.processes[at].answer = Some((message, reply));
                if !self.budget.is_split {
                    self.take(Step::Answer(at));
                }
            }
            Step::Poll(at) => {
                let process = &self.processes[at];
                let message = process.member.poll().expect("it polls");
                let reply = self.tell(process.key, message.clone());
                self.processes[at].must_poll = false;
                self.processes[at].news = Some((message, reply));
                if !self.budget.is_split {
                    self.take(Step::News(at));
                }
            }
            Step::Answer(at) => {
                let (message, reply) = self.processes[at].answer.take().expect("an answer");
                self.reply(at, message, reply);
            }
            Step::News(at) => {
                let (message, reply) = self.processes[at].news.take().expect("an answer");
                self.reply(at, message, reply);
            }
            Step::Return(at, is_ok) => self.call_returned(at, is_ok),
            Step::LeaveMesh(at) => {
                let now = self.now;
                let actions = self.processes[at].left(now);
                self.act(at, actions);
            }
            Step::Complete(at) => self.complete(at),
            Step::Raise(at) => {
                let process = &mut self.processes[at];
                let Mesh::Stepping(record) = &process.mesh else {
                    panic!("process {at} raises outside of a step");
                };
                process.mesh = Mesh::Raised(Arc::clone(record));
                self.input(at, MemberInput::StepFailed);
            }
            Step::Notice(at) => {
                let process = &mut self.processes[at];
                process.is_noticed = true;
                let (key, life) = (process.key, process.life);
                if life == Life::Dead || self.group.members().any(|(member, _)| member == key) {
                    self.history.noticed(key);
                }
                self.group_input(match life {
                    Life::Dead => Input::Dead(key),
                    _ => Input::Silent(key),
                });
            }
            Step::Kill(at) => {
                self.budget.kills -= 1;
                self.processes[at].life = Life::Dead;
                self.processes[at].is_noticed = false;
                self.processes[at].answer = None;
                self.processes[at].news = None;
                self.history.disturb();
            }
            Step::Stop(at) => {
                self.budget.stops -= 1;
                self.processes[at].life = Life::Stopped;
                // A silence that the service noticed before does not count.
                self.processes[at].is_noticed = false;
                self.history.disturb();
            }
            Step::Continue(at) => self.processes[at].life = Life::Running,
            Step::LoseAnswer(at) => {
                self.budget.losses -= 1;
                self.processes[at].answer = None;
            }
            Step::LoseNews(at) => {
                self.budget.losses -= 1;
                self.processes[at].news = None;
            }
            Step::Copy(at) => {
                self.budget.copies -= 1;
                let process = &self.processes[at];
                let message = process.member.owed().expect("it owes a message");
                self.copies.push((process.key, message));
            }
            Step::DeliverCopy(at) => {
                let (key, message) = self.copies.remove(at);
                self.tell(key, message);
            }
            Step::Leave(at) => {
                self.budget.leaves -= 1;
                self.processes[at].wants_to_leave = true;
                self.input(at, MemberInput::Leave);
            }
            Step::Finish(at) => {
                if let Mesh::Stepping(record) = &self.processes[at].mesh {
                    self.processes[at].mesh = Mesh::AtBoundary(Arc::clone(record));
                }
                self.history.disturb();
                self.budget.leaves -= 1;
                self.processes[at].has_finished = true;
                self.input(at, MemberInput::Finish);
            }
            Step::Tick => {
                if !self.is_quiet() {
                    self.budget.late = self.budget.late.saturating_sub(1);
                    self.history.disturb();
                }
                self.tick();
            }
            Step::Restart(is_durable) => self.restart(is_durable),
        }
        self.check();
    }

    fn is_possible(&self, step: &Step) -> bool {
        self.steps().contains(step)
    }

    fn describe(&self) -> String {
        let keys = self.processes.iter().map(|it| it.key);
        format!(
            "{:?}, {:?}, {:?}",
            keys.collect::<Vec<_>>(),
            self.options,
            self.budget
        )
    }
}

impl Explored for World {
    fn steps(&self) -> Vec<Step> {
        let all = 0..self.processes.len();
        let mut steps: Vec<Step> = all.clone().flat_map(|at| self.steps_of(at)).collect();
        if steps.is_empty() && self.wake_at().is_some() {
            steps.push(Step::Tick);
        }
        steps.extend(all.flat_map(|at| self.faults_of(at)));
        steps.extend(self.faults());
        steps
    }

    fn copy(&self, _: &[Step]) -> Self {
        self.clone()
    }

    fn fingerprint(&self) -> Option<u64> {
        Some(fingerprint(&(
            (&self.group, &self.processes, &self.copies, &self.released),
            (&self.told, &self.timed_out, self.now, self.budget),
            (&self.kept, &self.history),
        )))
    }
}
