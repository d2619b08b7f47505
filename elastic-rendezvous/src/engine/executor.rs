//! The state machine of one node: read, expire, decide, apply, write, repeat.
//!
//! It does no I/O: it returns what it needs next ([`Need`]) and gets the result. Time is an argument.
//! `solo` drives it for a node; tests step any number of executors in any order.

mod decision;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::decide::{Action, Decision, Rule};
use crate::engine::decider::Decider;
use crate::engine::departures::Departures;
use crate::engine::identity::OwnHeartbeats;
use crate::engine::last_round::Loss;
use crate::engine::links::{Links, Marks};
use crate::values::goal::{Entry, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::report::{LeftNode, LostNode, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::Now;

/// How many nodes of a state have their marks read, so that a state with many does not cost many requests.
const LINKED_MAX: usize = 256;

/// The longest pause after the second write conflict in a row, which doubles with each further one, and its
/// limit.
const CONFLICT_PAUSE_MIN: Duration = Duration::from_millis(4);
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Minimum number of writes that a listed node can attempt before the other nodes drop it. With
/// longer pauses, newcomers, whose pauses are short, would starve it.
const ATTEMPTS_BEFORE_DROP: u32 = 128;

/// The action that the executor needs before its next step.
#[derive(Debug, PartialEq)]
pub(crate) enum Need {
    /// The stored state, passed to [`Executor::on_read`].
    Read,
    /// A write of [`Executor::to_write`], whose result is passed to [`Executor::on_written`].
    Write,
    /// A wait until the stored state changes or this time: then [`Executor::step`], after
    /// [`Executor::on_read`] if the new state is known.
    Wait { until: Duration },
    /// Nothing: the operation is over.
    Done(Result<(), OperationError>),
}

#[derive(Debug)]
pub(crate) struct Executor {
    me: NodeId,
    /// `None` for an id that no other process can have.
    own: Option<OwnHeartbeats>,
    decider: Decider,
    departures: Departures,
    /// The token of the stored state that the decider's state is based on.
    token: Option<Token>,
    phase: Phase,
    requests: RequestTimes,
    /// The number of write conflicts in a row.
    conflicts: u32,
    progress: Progress,
    /// The other nodes of the complete round that this node left to rejoin, and those on its wait list. Once
    /// all of them are back, the last call can end.
    expected: Option<BTreeSet<NodeId>>,
    last_decision: Option<Decision>,
    /// The last change of the state, until it is recorded. A change that was not written is replaced by the next one.
    step: Option<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The stored state must be read.
    Read,
    /// The changed state must be written.
    Write,
    Decide,
}

/// The times of requests. A result cannot contain writes of other nodes that are later than its
/// request.
#[derive(Debug)]
struct RequestTimes {
    /// A time at or before the request for the current state, or for the next one.
    requested_at: Duration,
    /// A time at or before the request for the current state.
    known_as_of: Duration,
    /// When the first write that replaces the state of `token` was requested. A state with another token shows whether
    /// the write took effect.
    write_requested_at: Option<Duration>,
}

/// An operation, and the facts that it has found so far.
#[derive(Debug)]
struct Progress {
    operation: Operation,
    since: Duration,
    deadline: Duration,
    /// The round about which its members were asked, and their answer to nodes that want to enter it (section 7.3).
    entry: Option<(i64, Entry)>,
    /// Whether this node has entered a round.
    has_entered: bool,
    /// The report from before this node began to undo a join that timed out.
    at_timeout: Option<WaitReport>,
}

impl Progress {
    const fn new(operation: Operation, deadline: Duration, now: Now) -> Self {
        Self {
            operation,
            since: now.monotonic,
            deadline,
            entry: None,
            has_entered: false,
            at_timeout: None,
        }
    }
}

impl Executor {
    pub(crate) fn new(me: NodeId, settings: RendezvousSettings, now: Now) -> Self {
        Self {
            me,
            own: Some(OwnHeartbeats::default()),
            decider: Decider::new(settings, now),
            departures: Departures::default(),
            token: None,
            phase: Phase::Decide,
            requests: RequestTimes {
                requested_at: now.monotonic,
                known_as_of: now.monotonic,
                write_requested_at: None,
            },
            conflicts: 0,
            progress: Progress::new(Operation::KeepAlive, now.monotonic, now),
            expected: None,
            last_decision: None,
            step: None,
        }
    }

    pub(crate) fn me(&self) -> &NodeId {
        &self.me
    }

    /// Keeps the id of this node, which other processes cannot have.
    pub(crate) fn keep_id(&mut self) {
        self.own = None;
    }

    pub(crate) fn settings(&self) -> &RendezvousSettings {
        &self.decider.settings
    }

    /// The state as last read, without dead nodes.
    pub(crate) fn state(&self) -> &RendezvousState {
        &self.decider.state
    }

    /// The state to be written and the token it is based on, after [`Need::Write`].
    pub(crate) fn to_write(&self) -> (&RendezvousState, Option<&Token>) {
        (&self.decider.state, self.token.as_ref())
    }

    /// The number of write conflicts in a row.
    #[cfg(test)]
    pub(crate) fn conflicts(&self) -> u32 {
        self.conflicts
    }

    /// The longest pause after a write conflict; `None` for no pause.
    pub(crate) fn conflict_pause_max(&self, now: Now) -> Option<Duration> {
        let configured = self.decider.settings.cas_backoff_max;
        if !configured.is_zero() {
            return (self.conflicts > 0).then_some(configured);
        }
        // After a first conflict a second one is unlikely.
        let doublings = self.conflicts.checked_sub(2)?;
        let pause = CONFLICT_PAUSE_MIN
            .saturating_mul(1 << doublings.min(16))
            .min(CONFLICT_PAUSE_MAX);
        let Some(dead_at) = self.is_kept_until() else {
            return Some(pause);
        };
        let left = dead_at.saturating_sub(now.monotonic);
        Some(
            pause
                .min(left / ATTEMPTS_BEFORE_DROP)
                .max(CONFLICT_PAUSE_MIN),
        )
    }

    pub(crate) fn last_decision(&self) -> Option<Decision> {
        self.last_decision
    }

    /// Begins an operation that should be over by `deadline`.
    pub(crate) fn begin(&mut self, operation: Operation, deadline: Duration, now: Now) {
        self.progress = Progress::new(operation, deadline, now);
        self.conflicts = 0;
        self.phase = Phase::Read;
        if operation == Operation::Exit {
            self.expected = None;
        }
    }

    /// Continues until something is needed.
    pub(crate) fn step(&mut self, now: Now) -> Need {
        loop {
            match self.phase {
                Phase::Read => {
                    self.requests.requested_at = now.monotonic;
                    return Need::Read;
                }
                Phase::Write => {
                    self.requests.requested_at = now.monotonic;
                    let first = &mut self.requests.write_requested_at;
                    first.get_or_insert(now.monotonic);
                    return Need::Write;
                }
                Phase::Decide => {}
            }
            let decision = self.decide(now);
            self.last_decision = Some(decision);
            log::trace!(
                "{}: {:?}: {:?} by {:?} ({})",
                self.me,
                self.progress.operation,
                decision.action,
                decision.rule,
                decision.reason,
            );
            let done = match decision.action {
                Action::Finish => {
                    if self.progress.operation.is_join() {
                        self.departures.on_joined(&self.decider.state);
                    }
                    Ok(())
                }
                Action::ErrorClosed => Err(OperationError::Closed),
                Action::ErrorTimeout => Err(OperationError::Timeout),
                Action::GracefulExit => Err(OperationError::GracefulExit),
                Action::Sync => {
                    let until = self.wake_at(now);
                    self.phase = Phase::Read;
                    // A state that arrives during the wait is requested no earlier than now.
                    self.requests.requested_at = now.monotonic;
                    return Need::Wait { until };
                }
                action => {
                    if matches!(decision.rule, Rule::J7 | Rule::J8)
                        && self.progress.at_timeout.is_none()
                    {
                        self.progress.at_timeout = Some(self.report(now));
                    }
                    self.apply(action, now);
                    continue;
                }
            };
            return Need::Done(done);
        }
    }

    /// Handles a failed request: whether the state has changed is unknown, and the other nodes may have been unable
    /// to write.
    pub(crate) fn on_outage(&mut self) {
        self.phase = Phase::Read;
        self.decider.observations.on_outage();
    }

    /// Returns the time until which the other nodes keep this node in its round if it writes
    /// nothing more.
    pub(crate) fn is_kept_until(&self) -> Option<Duration> {
        let due_at = self.heartbeat_due_at()?;
        let written_at = due_at.saturating_sub(self.decider.settings.keep_alive_interval);
        Some(written_at.saturating_add(self.decider.settings.dead_after()))
    }

    /// The marks of other nodes.
    pub(crate) const fn links(&self) -> &Links {
        &self.decider.observations.links
    }

    pub(crate) const fn links_mut(&mut self) -> &mut Links {
        &mut self.decider.observations.links
    }

    /// Adopts marks that were requested at `requested_at`. Returns whether a node was lost; then the state must be read.
    pub(crate) fn on_marks(
        &mut self,
        marks: Option<&Marks>,
        requested_at: Duration,
        now: Now,
    ) -> bool {
        let links = &mut self.decider.observations.links;
        links.on_read(&self.me, marks, requested_at, now.monotonic)
    }

    /// The nodes whose marks matter: this one, the listed ones, and members of the last rounds, which may have been dropped.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        let listed = self.decider.state.last_heartbeats.keys();
        let known = listed
            .chain(self.departures.world())
            .chain(self.decider.last_round.members());
        let mut nodes: BTreeSet<&NodeId> = known.take(LINKED_MAX).collect();
        nodes.insert(&self.me);
        nodes.into_iter().cloned().collect()
    }

    /// Makes the next step begin with a read.
    #[cfg(test)]
    pub(crate) fn wake(&mut self) {
        self.phase = Phase::Read;
    }

    /// Adopts the stored state, or that there is none. Local changes are discarded, and with them their step.
    pub(crate) fn on_read(&mut self, stored: Option<(RendezvousState, Token)>, now: Now) {
        self.step = None;
        let (state, token) = match stored {
            Some((state, token)) => (state, Some(token)),
            None => (RendezvousState::default(), None),
        };
        self.adopt(state, token, now);
    }

    /// Adopts the result of a write.
    pub(crate) fn on_written(&mut self, written: Written, now: Now) {
        match written {
            Written::Ours(token) => {
                self.conflicts = 0;
                let state = std::mem::take(&mut self.decider.state);
                self.adopt(state, Some(token), now);
            }
            Written::Theirs(state, token) => {
                self.conflicts = self.conflicts.saturating_add(1);
                self.adopt(*state, Some(token), now);
            }
            Written::Nothing => {
                self.conflicts = self.conflicts.saturating_add(1);
                self.adopt(RendezvousState::default(), None, now);
            }
        }
    }

    /// When the next heartbeat of this node is due, if it is listed.
    pub(crate) fn heartbeat_due_at(&self) -> Option<Duration> {
        self.decider
            .observations
            .heartbeat_due_at(&self.me, &self.decider.settings)
    }

    /// The rank of this node and the number of nodes, if it is a member of a complete round.
    pub(crate) fn rank(&self) -> Option<(i64, usize)> {
        if !self.decider.state.complete {
            return None;
        }
        let rank = *self.decider.state.participants.get(&self.me)?;
        Some((rank, self.decider.state.participants.len()))
    }

    /// The progress of the join, or how it stood when it timed out.
    pub(crate) fn report(&self, now: Now) -> WaitReport {
        if let Some(report) = &self.progress.at_timeout {
            return report.clone();
        }
        WaitReport {
            is_complete: self.decider.state.complete,
            waited: now.monotonic.saturating_sub(self.progress.since),
            time_left: self.progress.deadline.saturating_sub(now.monotonic),
            last_call_left: self
                .decider
                .observations
                .last_call_ends_at(&self.decider.settings)
                .filter(|_| self.decider.state.deadline.is_some() && !self.decider.state.complete)
                .map(|ends_at| ends_at.saturating_sub(now.monotonic)),
            joined: self.decider.state.participants.len(),
            participants: self.decider.state.participants.keys().cloned().collect(),
            waiting: self.decider.state.wait_list.iter().cloned().collect(),
            spares: self.decider.state.redundancy_list.iter().cloned().collect(),
            suspects: self
                .decider
                .observations
                .suspects(&self.decider.state, &self.me)
                .cloned()
                .collect(),
            silent: self.silent(now),
            absent: self.departures.absent(),
            dropped: self.departures.all_dropped(now),
            ..WaitReport::of(
                &self.decider.settings.run_id,
                self.decider.state.round,
                self.decider.settings.min_nodes,
                self.decider.settings.max_nodes,
            )
        }
    }

    /// The lost members of the last round, and those that left it.
    pub(crate) fn departed(&self) -> (Vec<LostNode>, Vec<LeftNode>) {
        self.departures.lost_and_left()
    }

    /// Takes the nodes lost after the last call.
    pub(crate) fn take_newly_lost(&mut self) -> Vec<LostNode> {
        self.departures.take_newly_lost()
    }

    /// Takes the step since the last call.
    pub(crate) fn take_step(&mut self) -> Option<Step> {
        self.step.take()
    }

    fn silent(&self, now: Now) -> Vec<LostNode> {
        let listed = self.decider.state.last_heartbeats.keys();
        let others = listed.filter(|node| **node != self.me);
        let silent = others.filter_map(|node| {
            let silence = self.decider.observations.silence_of(node, now.monotonic)?;
            (silence > self.decider.settings.overdue_after())
                .then(|| LostNode::new(node.clone(), silence))
        });
        silent.collect()
    }

    /// Adopts what the members of a round say. Returns whether that is new; then [`step`](Self::step) decides again.
    pub(crate) fn on_entry(&mut self, round: i64, entry: Entry) -> bool {
        let is_new = self.progress.entry != Some((round, entry));
        self.progress.entry = Some((round, entry));
        if is_new {
            self.phase = Phase::Decide;
        }
        is_new
    }

    /// Whether this node has entered the round while it ran.
    pub(crate) const fn has_entered(&self) -> bool {
        self.progress.has_entered
    }

    /// Adopts which nodes say that they have gone. Returns whether that is new; then [`step`](Self::step) decides again.
    pub(crate) fn on_gone(&mut self, gone: BTreeSet<NodeId>) -> bool {
        let is_new = self.decider.gone != gone;
        self.decider.gone = gone;
        if is_new {
            self.phase = Phase::Decide;
        }
        is_new
    }

    fn apply(&mut self, action: Action, now: Now) {
        self.progress.has_entered = action == Action::EnterRound;
        if action == Action::RemoveFromParticipants {
            // Members that left before this node may be about to rejoin: hence also `world`.
            let nodes = self
                .decider
                .state
                .participants
                .keys()
                .chain(&self.decider.state.wait_list);
            let others = nodes
                .chain(self.departures.world())
                .filter(|node| **node != self.me);
            self.expected = (self.progress.operation == Operation::Exit
                && self.decider.state.complete)
                .then(|| others.cloned().collect());
        }
        if action == Action::RemoveFromRedundancyList && self.progress.operation.is_join() {
            self.progress.deadline = now
                .monotonic
                .saturating_add(self.decider.settings.join_timeout);
        }
        let time = self.decider.observations.time_to_write(now);
        if let Some(own) = &mut self.own {
            own.tries(time);
        }
        self.step = self.decider.apply(action, &self.me, time);
        self.phase = Phase::Write;
    }

    fn adopt(&mut self, state: RendezvousState, token: Option<Token>, now: Now) {
        if !matches!(
            self.progress.operation,
            Operation::KeepAlive | Operation::Close
        ) && let Some(other) = self
            .own
            .as_mut()
            .and_then(|own| own.other_id(&self.me, &state))
        {
            self.me = other;
        }
        let (me, decider) = (&self.me, &mut self.decider);
        let RequestTimes {
            requested_at,
            known_as_of,
            write_requested_at,
        } = &mut self.requests;
        let (observations, settings) = (&decider.observations, &decider.settings);
        self.departures
            .observe(&state, me, observations, settings, *requested_at, now);
        let mut lost = decider.dropped_by_others(&state, *known_as_of, now);
        *known_as_of = *requested_at;
        decider.observations.observe(&state, &decider.settings, now);
        if token != self.token
            && let Some(at) = write_requested_at.take()
        {
            // This process may have been stopped before it got the answer.
            decider.observations.backdate(me, at);
        }
        decider.state = state;
        self.token = token;
        self.phase = Phase::Decide;
        let observations = &decider.observations;
        let silent = observations.silent(me, &decider.settings, *requested_at);
        decider.remove_dead(&silent);
        let at_once = Loss {
            from: now.monotonic,
            is_of_connection: false,
        };
        lost.extend(silent.iter().map(|silent| (silent.node.clone(), at_once)));
        decider.observe_last_round(now, |node| lost.get(node).copied());
        self.departures.on_dropped(silent, &decider.state, now);
    }
}
