//! A job of several nodes, each a [`Round`], over a simulated rendezvous and store.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use c10d_sim::{Explored, Simulation, fingerprint};
use elastic_rendezvous::{BoardError, Membership, RendezvousError};

use super::super::input::{Effect, Facts, Input, Joins, Stop};
use super::super::outcome::AgentOutcome;
use super::super::{KeepOptions, Replacement, Settings};
use super::meeting::Meeting;
use super::numbers::Numbers;
use crate::job_end::EndNotice;
use crate::restart_policy::RestartRules;
use crate::round::Round;
use crate::round::input::StuckWorkers;
use crate::round::outcome::AgentError;
use crate::worker::StartError;

/// The exit code after which the job is not to be restarted.
pub(super) const FINAL: i32 = 93;

/// The exit code of a worker that SIGABRT has killed.
pub(super) const ABORT: i32 = -6;

/// A round of this many nodes, without a lost member.
pub(super) fn joined(nodes: usize) -> Input {
    let has_lost = false;
    Input::Joined { nodes, has_lost }
}

pub(super) fn settings(restarts: usize, workers: usize) -> Settings {
    Settings {
        restarts: RestartRules {
            max_restarts: Some(restarts),
            final_exit_codes: BTreeSet::from([FINAL]),
            ..RestartRules::default()
        },
        stops_on_failure: true,
        local_world_size: workers,
        has_store_per_round: true,
        loss_wait: None,
        keep: None,
        has_exit_limit: true,
        name: "train.py".to_owned(),
    }
}

/// Far more steps than any history needs until all nodes are over.
const STEPS_MAX: usize = 2000;

/// A membership group that has finished.
pub(super) const FINISHED: usize = 3;

/// How long a node without a restart left waits for the news that another node was lost.
const LOSS_WAIT: Duration = Duration::from_secs(15);

/// An event that can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    // Faults, and the exit of a worker: always of the first worker of a running node.
    Exit(usize, i32),
    /// The first worker of a node that runs fails at the end of its program.
    AbortAtExit(usize),
    Stall(usize),
    Signal(usize),
    Lose(usize),
    /// The other nodes drop a node that runs, and does not know it yet.
    CutOff(usize),
    /// The health check before a rejoin fails.
    Sicken(usize),
    /// The store stops answering, or answers again.
    ToggleStore,
    /// The workers join the membership group of the round, or it ends because too few members are left.
    AdvanceGroup,
    /// All workers have done their last step.
    FinishGroup,
    // Consequences.
    CompleteRound,
    FailJoin(usize),
    Recover(usize),
    EndPreparation(usize),
    EndStop(usize),
    /// Again, a node reads how many other nodes have ended.
    AskOthers(usize),
    /// The time in which workers may exit without a signal is over.
    EndExits(usize),
    TellMembers(usize),
    LookAtBarrier(usize),
    /// The wait for the news that another node was lost is over.
    EndWait(usize),
    /// During this wait, the node is notified that all other members of its round are connected.
    ShowMembers(usize),
    /// The pause before a replacement is over.
    EndPause(usize),
    /// A late node starts.
    Arrive(usize),
    /// A node enters the round that runs.
    Enter(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// Has not started.
    Absent,
    /// Joins, and enters the running round if that takes it in.
    Entering,
    /// Is out of its round, and does not join while its health check fails.
    Checking,
    Joining,
    Preparing,
    Running,
    Stopping,
    /// The node's workers have failed at the end of their program, and it waits until the other nodes have ended.
    Awaiting,
    AwaitingLoss,
    AtBarrier,
    Over,
    /// The node's host has failed.
    Lost,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) round: Round,
    pub(super) doing: Doing,
    /// Whether its round was running when it joined.
    pub(super) has_entered: bool,
    /// The exit codes of its workers, once they have ended.
    pub(super) exits: Vec<Option<i32>>,
    pub(super) signal: Option<i32>,
    /// Whether the members have changed, and the node was not told yet.
    pub(super) has_news: bool,
    /// The workers that were reported to the service as dead, and the workers whose replacement waits.
    pub(super) told: BTreeSet<usize>,
    pub(super) pausing: BTreeSet<usize>,
    /// How many of its workers failed or were stuck, and how often it has counted a restart.
    pub(super) faults: usize,
    pub(super) restarts: usize,
    /// How often it had counted a restart before its last round.
    pub(super) restarts_before: usize,
    /// The members of its last round, and of the one before.
    pub(super) members: [BTreeSet<usize>; 2],
    /// How many workers of this round were replaced.
    pub(super) replaced: usize,
    pub(super) outcome: Option<Result<AgentOutcome, String>>,
    /// Whether it learned that the job had failed while its workers ran or were about to.
    pub(super) knows_of_failure: bool,
    /// Whether its workers have limited time to exit without a signal.
    pub(super) expects_exits: bool,
    /// How long it waits at the barrier, unless the membership differs from this one.
    pub(super) wait: (Duration, Option<Box<Membership>>),
}

impl Node {
    /// Whether all workers have succeeded, except the abandoned ones.
    pub(super) fn have_all_succeeded(&self, has_group_finished: bool) -> bool {
        let gone = |worker| self.told.contains(&worker) && !self.pausing.contains(&worker);
        let mut exits = self.exits.iter().enumerate();
        (has_group_finished || self.exits.contains(&Some(0)))
            && exits.all(|(worker, exit)| *exit == Some(0) || gone(worker))
    }

    pub(super) fn begin_round(&mut self) {
        self.exits.fill(None);
        self.told.clear();
        self.pausing.clear();
        self.replaced = 0;
        self.expects_exits = false;
    }

    pub(super) const fn joins(&self) -> bool {
        matches!(self.doing, Doing::Joining | Doing::Entering)
    }

    fn runs_workers(&self) -> bool {
        self.doing == Doing::Running && self.exits.contains(&None)
    }
}

#[derive(Debug)]
pub(super) struct World {
    shape: Shape,
    pub(super) now: Duration,
    pub(super) nodes: Vec<Node>,
    pub(super) nodes_min: usize,
    pub(super) nodes_max: usize,
    pub(super) meeting: Meeting,
    pub(super) is_closed: bool,
    /// Whether the reason could be read when it was closed.
    pub(super) is_closed_with_reason: bool,
    /// Whether a launcher could not close the rendezvous at its end.
    pub(super) is_close_lost: bool,
    pub(super) is_store_down: bool,
    pub(super) has_health_checks: bool,
    pub(super) keep: Option<(Replacement, Duration)>,
    pub(super) has_aborts: bool,
    /// How the processes of the round's workers are numbered, if workers survive others.
    pub(super) numbers: Numbers,
}

/// The shape of a job at its beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) nodes: usize,
    /// The least number of nodes of a round.
    pub(super) nodes_min: usize,
    pub(super) restarts: usize,
    /// The number of workers of each node.
    pub(super) workers: usize,
    pub(super) has_health_checks: bool,
    /// Whether workers survive others: what replaces them, after which pause. All nodes of such a job enter a running round.
    pub(super) keep: Option<(Replacement, Duration)>,
    /// Whether workers can fail at the end of their program.
    pub(super) has_aborts: bool,
    /// How many of the nodes start later, by [`Event::Arrive`].
    pub(super) late: usize,
    /// The number of nodes of a full round.
    pub(super) nodes_max: usize,
}

impl World {
    pub(super) fn new(shape: Shape) -> Self {
        let first_late = shape.nodes - shape.late;
        let node = |index| {
            let mut settings = settings(shape.restarts, shape.workers);
            let is_elastic = shape.nodes_min < shape.nodes_max && shape.keep.is_none();
            settings.loss_wait = is_elastic.then_some(LOSS_WAIT);
            settings.keep = shape.keep.map(|(replacement, replace_after)| KeepOptions {
                replacement,
                replace_after,
                ..KeepOptions::new(1)
            });
            let (round, effects) = Round::begin(settings, Duration::ZERO);
            assert!(matches!(effects[..], [Effect::Join(_)]));
            Node {
                round,
                doing: if index < first_late {
                    Doing::Joining
                } else {
                    Doing::Absent
                },
                has_entered: false,
                exits: vec![None; shape.workers],
                signal: None,
                has_news: false,
                told: BTreeSet::new(),
                pausing: BTreeSet::new(),
                faults: 0,
                restarts: 0,
                restarts_before: 0,
                members: Default::default(),
                replaced: 0,
                outcome: None,
                knows_of_failure: false,
                expects_exits: false,
                wait: (Duration::ZERO, None),
            }
        };
        Self {
            shape,
            now: Duration::ZERO,
            nodes: (0..shape.nodes).map(node).collect(),
            nodes_min: shape.nodes_min,
            nodes_max: shape.nodes_max,
            meeting: Meeting::default(),
            is_closed: false,
            is_closed_with_reason: false,
            is_close_lost: false,
            is_store_down: false,
            has_health_checks: shape.has_health_checks,
            keep: shape.keep,
            has_aborts: shape.has_aborts,
            numbers: Numbers::default(),
        }
    }

    /// Its first two nodes run.
    pub(super) fn running(shape: Shape) -> Self {
        let mut world = Self::new(shape);
        world.take(Event::CompleteRound);
        world.take(Event::EndPreparation(0));
        world.take(Event::EndPreparation(1));
        world
    }

    /// Runs without further faults until all nodes have exited, as they must.
    pub(super) fn end(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.is_over() {
                return self.check_end();
            }
            self.settle();
        }
        panic!("the job does not end");
    }

    /// The events that happen if no other event does.
    fn consequences(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.can_meet() {
            events.push(Event::CompleteRound);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            match node.doing {
                Doing::Joining | Doing::Entering | Doing::Checking
                    if self.is_closed || node.signal.is_some() =>
                {
                    events.push(Event::FailJoin(index));
                }
                Doing::Entering if self.takes_nodes_in() => events.push(Event::Enter(index)),
                Doing::Entering if self.is_unopened() => events.push(Event::Recover(index)),
                Doing::Checking => events.push(Event::Recover(index)),
                Doing::Preparing
                    if self.is_store_down
                        || self.is_changed(index)
                        || node.has_entered
                        || self.meeting.has_ranks
                        || self.are_all_preparing() =>
                {
                    events.push(Event::EndPreparation(index));
                }
                Doing::Running if node.has_news => events.push(Event::TellMembers(index)),
                Doing::Running if node.expects_exits && node.runs_workers() => {
                    events.push(Event::EndExits(index));
                }
                Doing::Running if !node.pausing.is_empty() => events.push(Event::EndPause(index)),
                Doing::Stopping => events.push(Event::EndStop(index)),
                Doing::Awaiting => events.push(Event::AskOthers(index)),
                Doing::AwaitingLoss => {
                    if node.has_news {
                        events.push(Event::TellMembers(index));
                    }
                    events.push(Event::EndWait(index));
                    if self.are_members_here(index) {
                        events.push(Event::ShowMembers(index));
                    }
                }
                Doing::AtBarrier => events.push(Event::LookAtBarrier(index)),
                _ => {}
            }
        }
        events
    }

    /// Whether the processes of all members of the node's round run.
    fn are_members_here(&self, index: usize) -> bool {
        let is_gone = |it: &usize| matches!(self.nodes[*it].doing, Doing::Lost | Doing::Over);
        !self.nodes[index].members[0].iter().any(is_gone)
    }

    pub(super) fn is_over(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.all(|node| matches!(node.doing, Doing::Absent | Doing::Over | Doing::Lost))
    }

    /// The next event if no further fault occurs; the store may stay out of reach.
    fn settle(&mut self) {
        let events = self.consequences();
        // Barriers last: they cost time.
        let is_wait = |event: &&Event| {
            matches!(
                event,
                Event::LookAtBarrier(_)
                    | Event::AskOthers(_)
                    | Event::EndWait(_)
                    | Event::ShowMembers(_)
            )
        };
        let ready = events.iter().find(|event| !is_wait(event)).copied();
        let running = self.nodes.iter();
        let running = running
            .enumerate()
            .find(|(_, node)| node.runs_workers())
            .map(|(index, _)| Event::Exit(index, 0));
        let joining = self.nodes.iter().position(|it| it.joins());
        let event = ready
            .or(running)
            .or_else(|| events.first().copied())
            .or(joining.map(Event::FailJoin))
            .expect("a node that is not over waits for something");
        self.take(event);
    }

    /// A node reads why the job ended.
    fn note_failure(&mut self, index: usize, has_failed: bool) {
        let is_spare = self.is_spare(index);
        let node = &mut self.nodes[index];
        node.knows_of_failure |= has_failed && !is_spare && node.doing != Doing::AtBarrier;
    }

    fn fail(&mut self, index: usize, error: AgentError) {
        let signal = self.nodes[index].signal;
        let error = Box::new(error);
        self.step(index, Input::NotStarted { error, signal });
    }

    fn look_at_barrier(&mut self, index: usize) {
        let input = self.barrier(index);
        let (wait, seen) = &self.nodes[index].wait;
        if let Input::BarrierClosed { signal, membership } = &input
            && signal.is_none()
            && membership == seen
        {
            self.now += *wait;
        }
        // A node that was cut off may report its success.
        let is_gone = |it: &usize| {
            let is_lost = self.meeting.lost.contains(it) && self.nodes[*it].doing == Doing::Lost;
            is_lost || self.meeting.left.contains(it)
        };
        let mut others = self.meeting.members.iter().filter(|it| **it != index);
        let are_all_gone = others.all(is_gone);
        self.step(index, input);
        assert!(
            !are_all_gone || self.nodes[index].doing != Doing::AtBarrier,
            "node {index} waits in the barrier for nodes that have left"
        );
    }

    fn barrier(&self, index: usize) -> Input {
        if self.is_store_down {
            Input::BarrierFailed("it does not answer".to_owned())
        } else if self.meeting.is_open
            || (self.keep.is_none() && self.meeting.finished == self.meeting.members)
        {
            Input::BarrierOpen
        } else {
            Input::BarrierClosed {
                signal: self.nodes[index].signal,
                membership: self.membership(index),
            }
        }
    }

    /// Steps the machine of a node, and runs its effects up to the first effect that takes time.
    pub(super) fn step(&mut self, index: usize, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            let effects = self.nodes[index].round.step(self.now, input);
            let count = effects.len();
            for (position, effect) in effects.into_iter().enumerate() {
                let answer = self.run(index, effect);
                assert!(
                    answer.is_none() || position + 1 == count,
                    "an answer is the last"
                );
                next = answer;
            }
        }
    }

    /// Runs an effect, and returns its answer if it is immediate.
    fn run(&mut self, index: usize, effect: Effect) -> Option<Input> {
        let is_down = self.is_store_down;
        match effect {
            Effect::Join(joins) => {
                assert!(
                    !self.nodes[index].exits.contains(&Some(FINAL)),
                    "node {index} restarts after an exit code that ends the job"
                );
                self.leave(index);
                self.nodes[index].doing = match joins {
                    Joins::Running => Doing::Entering,
                    Joins::Next => Doing::Joining,
                };
                // The members are notified that a node waits.
                self.tell_members();
            }
            Effect::OpenRound if !is_down && !self.nodes[index].has_entered => {
                self.meeting.started.insert(index);
            }
            Effect::EndEntry if !is_down => self.meeting.is_entry_over = true,
            Effect::AwaitLoss(wait) => {
                assert_eq!(wait, LOSS_WAIT);
                self.nodes[index].doing = Doing::AwaitingLoss;
            }
            Effect::Prepare { .. } => {
                self.check_count(index);
                self.number_workers(index);
                self.nodes[index].doing = Doing::Preparing;
            }
            Effect::Start(_) => {
                if self.nodes[index].signal.is_some() {
                    let error = Box::new(AgentError::Start(StartError::Interrupted));
                    let signal = self.nodes[index].signal;
                    return Some(Input::NotStarted { error, signal });
                }
                assert!(!self.is_closed || is_down || self.is_member(index));
                self.nodes[index].doing = Doing::Running;
                return Some(Input::Started);
            }
            Effect::ReadDeath(exit) => return Some(self.death(index, exit)),
            Effect::ReadGroup => return Some(Input::Group(self.group_news(), Vec::new())),
            Effect::ReplaceAfter(worker, _) => {
                assert!(self.nodes[index].pausing.insert(worker));
                self.nodes[index].replaced += 1;
            }
            Effect::Replace { local_rank, .. } => {
                let is_at_once = self.keep.is_some_and(|(_, pause)| pause.is_zero());
                self.nodes[index].replaced += usize::from(is_at_once);
                return Some(self.replace(index, local_rank));
            }
            Effect::ReadMembership => return Some(Input::Membership(self.membership(index))),
            Effect::ReadJobEnd => {
                let job_end = self.meeting.job_end.clone().filter(|_| !is_down);
                self.note_failure(index, job_end.is_some());
                return Some(Input::JobEnd(job_end.map(Box::new)));
            }
            Effect::ReadFinished => {
                let finished = (!is_down).then_some(self.meeting.finished.len());
                return Some(Input::Finished(finished));
            }
            Effect::CountAtExit => {
                self.meeting.at_exit += usize::from(!is_down);
                self.nodes[index].doing = Doing::Awaiting;
            }
            Effect::ReadEnded => {
                let ended = self.meeting.finished.len() + self.meeting.at_exit;
                return Some(Input::Ended((!is_down).then_some(ended)));
            }
            Effect::ReadCrash(exit) => return Some(self.crash(exit)),
            Effect::ExpectExits(_) => self.nodes[index].expects_exits = true,
            Effect::ReportStuck => {
                self.meeting.stuck += usize::from(!is_down);
                return Some(Input::IsFirstStuck(is_down || self.meeting.stuck == 1));
            }
            Effect::ReadFacts if is_down => return Some(Input::Facts(Facts::default())),
            Effect::ReadFacts => {
                self.note_failure(index, self.meeting.job_end.is_some());
                return Some(Input::Facts(Facts {
                    job_end: self.meeting.job_end.clone().map(Box::new),
                    is_any_stuck: self.meeting.stuck > 0,
                    finished: self.meeting.finished.len(),
                }));
            }
            Effect::Stop(stop) => {
                assert!(!matches!(stop, Stop::BySignal(_)) || self.nodes[index].signal.is_some());
                self.nodes[index].doing = Doing::Stopping;
            }
            Effect::EnterBarrier(nodes) => {
                assert_eq!(nodes.is_none(), self.keep.is_some());
                if !is_down {
                    self.meeting.finished.insert(index);
                }
                self.nodes[index].doing = Doing::AtBarrier;
                return Some(self.barrier(index));
            }
            Effect::WaitAtBarrier {
                timeout,
                enough,
                seen,
            } => {
                let is_enough = enough.is_some_and(|it| self.meeting.finished.len() >= it);
                self.meeting.is_open |= is_enough && !is_down;
                self.nodes[index].wait = (timeout, seen);
            }
            Effect::PublishEnd(end) if !is_down => {
                let notice = end.notice(&format!("node{index}"), None, None);
                self.meeting.job_end.get_or_insert(notice);
            }
            Effect::Close if !is_down => self.close(),
            Effect::TellRestarting(why) => {
                let is_own = why == "a worker failed" || why == "the workers were stuck";
                assert!(
                    !is_own || is_down || self.meeting.finished.is_empty(),
                    "node {index} restarts while others wait in the barrier"
                );
            }
            Effect::RoundEnded(summary) => self.check_round(index, &summary),
            Effect::Finish(outcome) => self.finish(index, *outcome),
            _ => {}
        }
        None
    }
}

impl Simulation for World {
    type Step = Event;

    fn take(&mut self, event: Event) {
        match event {
            Event::Exit(index, code) => self.exit(index, code),
            Event::AbortAtExit(index) => self.exit(index, ABORT),
            Event::EndExits(index) => self.step(index, Input::ExitsDue),
            Event::AskOthers(index) => self.look_at_barrier(index),
            Event::Stall(index) => {
                self.nodes[index].faults += 1;
                let stuck = StuckWorkers {
                    silent_for: Duration::from_secs(9),
                    steps: Vec::new(),
                    shared_step: None,
                };
                self.step(index, Input::Stuck(Box::new(stuck)));
            }
            Event::Signal(index) => {
                self.nodes[index].signal = Some(15);
                match self.nodes[index].doing {
                    Doing::Running | Doing::AwaitingLoss => self.step(index, Input::Signal(15)),
                    Doing::Preparing => {
                        self.fail(index, AgentError::Board(BoardError::Interrupted))
                    }
                    _ => {}
                }
            }
            Event::Lose(index) => {
                self.nodes[index].doing = Doing::Lost;
                self.lose(index);
                self.tell_members();
            }
            Event::CutOff(index) => {
                self.lose(index);
                self.tell_members();
            }
            Event::Sicken(index) => {
                self.nodes[index].doing = Doing::Checking;
                self.tell_members();
            }
            Event::Recover(index) => {
                self.nodes[index].doing = Doing::Joining;
                // The members are notified that a node waits.
                self.tell_members();
            }
            Event::ToggleStore => {
                self.is_store_down = !self.is_store_down;
                self.meeting.was_down = true;
            }
            Event::CompleteRound => self.meet(),
            Event::Arrive(index) => self.nodes[index].doing = Doing::Entering,
            Event::Enter(index) => self.enter(index),
            Event::FailJoin(index) => {
                let run_id = "job".to_owned();
                let error = match self.nodes[index].signal {
                    Some(_) => RendezvousError::Interrupted { run_id },
                    None if self.is_spare(index) => RendezvousError::GracefulExit { run_id },
                    None if self.is_closed && !self.is_store_down => {
                        RendezvousError::Closed { run_id }
                    }
                    None => RendezvousError::OperationTimeout {
                        run_id,
                        operation: "join",
                        timeout: Duration::from_secs(600),
                    },
                };
                self.fail(index, AgentError::Rendezvous(error));
            }
            Event::EndPreparation(index) if self.is_store_down => {
                let waited = Duration::from_secs(300);
                let error = BoardError::Missing {
                    what: "assigned ranks",
                    missing: vec![0],
                    waited,
                };
                self.fail(index, AgentError::Board(error));
            }
            Event::EndPreparation(index)
                if self.is_changed(index) && !self.nodes[index].has_entered =>
            {
                self.fail(index, AgentError::Board(BoardError::Interrupted));
            }
            Event::EndPreparation(index) => {
                self.meeting.has_ranks = true;
                self.step(index, Input::Prepared { keeps: true });
            }
            Event::EndStop(index) => self.end_stop(index),
            Event::TellMembers(index) => {
                self.nodes[index].has_news = false;
                let mut others = self.nodes.iter();
                let is_kept = self.keep.is_some()
                    && !self.meeting.lost.contains(&index)
                    && !self.is_closed
                    && others.all(|node| node.doing != Doing::Joining);
                self.step(index, Input::MembersChanged);
                assert!(
                    !is_kept || self.nodes[index].doing == Doing::Running,
                    "node {index} restarts because others are gone"
                );
                let is_gentle = |notice: &EndNotice| notice.is_at_exit;
                let is_told = self.is_closed_with_reason
                    && !self.is_store_down
                    && !self.meeting.job_end.as_ref().is_some_and(is_gentle);
                assert!(
                    !is_told || self.nodes[index].doing != Doing::Running,
                    "the workers of node {index} run on after the end of the job"
                );
            }
            Event::LookAtBarrier(index) => self.look_at_barrier(index),
            Event::ShowMembers(index) => self.step(index, Input::NoLoss),
            Event::EndWait(index) => {
                self.now += LOSS_WAIT;
                self.step(index, Input::LossDue);
            }
            Event::AdvanceGroup => self.meeting.group += 1,
            Event::FinishGroup => self.meeting.group = FINISHED,
            Event::EndPause(index) => {
                let local_rank = self.nodes[index].pausing.pop_first();
                let local_rank = local_rank.expect("a replacement waits");
                self.step(index, Input::ReplaceDue { local_rank });
            }
        }
    }

    fn is_possible(&self, event: &Event) -> bool {
        self.steps().contains(event)
    }

    fn describe(&self) -> String {
        format!("{:?}", self.shape)
    }
}

impl Explored for World {
    fn steps(&self) -> Vec<Event> {
        if self.is_over() {
            return Vec::new();
        }
        let mut events = self.consequences();
        for (index, node) in self.nodes.iter().enumerate() {
            if node.runs_workers() {
                events.extend([0, 1, FINAL].map(|code| Event::Exit(index, code)));
                events.push(Event::Stall(index));
                if self.has_aborts {
                    events.push(Event::AbortAtExit(index));
                }
            }
            // Before the signal that stops it.
            if node.doing == Doing::Stopping && node.exits.len() > 1 && node.exits.contains(&None) {
                events.extend([1, FINAL].map(|code| Event::Exit(index, code)));
            }
            if self.can_sicken(node) {
                events.push(Event::Sicken(index));
            }
            if node.doing == Doing::Absent {
                events.push(Event::Arrive(index));
            } else if !matches!(node.doing, Doing::Over | Doing::Lost) {
                if node.signal.is_none() {
                    events.push(Event::Signal(index));
                }
                events.push(Event::Lose(index));
            }
            if self.keep.is_some() && node.doing == Doing::Running && self.can_cut_off(index) {
                events.push(Event::CutOff(index));
            }
        }
        events.push(Event::ToggleStore);
        if self.keep.is_some()
            && self.meeting.group < 2
            && self.nodes.iter().any(Node::runs_workers)
        {
            events.push(Event::AdvanceGroup);
            if self.meeting.group == 1 {
                events.push(Event::FinishGroup);
            }
        }
        events
    }

    fn copy(&self, past: &[Event]) -> Self {
        let mut copy = Self::running(self.shape);
        past.iter().for_each(|event| copy.take(*event));
        copy
    }

    /// The states of all parts, without the time.
    fn fingerprint(&self) -> Option<u64> {
        let mut text = String::new();
        for node in &self.nodes {
            let state = (
                node.doing,
                &node.exits,
                node.signal,
                node.has_news,
                node.round.policy.used(),
                node.knows_of_failure,
                node.round.is_closing_known,
                &node.told,
                &node.pausing,
            );
            let _ = write!(text, "{state:?} {:?};", node.round.phase);
        }
        let _ = write!(
            text,
            "{:?}{}{}",
            self.meeting, self.is_closed, self.is_store_down
        );
        Some(fingerprint(&text))
    }
}
