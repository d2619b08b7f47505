//! The state machine of one node: read, expire, decide, apply, write, repeat.
//!
//! It does no I/O: it returns what it needs next ([`Need`]) and gets the result. Time is an argument.
//! `solo` drives it for a node; tests step any number of executors in any order.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::decide::{self, Action, Context, Decision, Entering, Rule};
use crate::engine::decider::Decider;
use crate::engine::departures::Departures;
use crate::engine::identity::OwnHeartbeats;
use crate::engine::last_round::Loss;
use crate::engine::links::{Links, Marks};
use crate::values::clock::Now;
use crate::values::goal::{Entry, Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::report::{LeftNode, LostNode, WaitReport};
use crate::values::settings::{ROLLBACK_WINDOW, RendezvousSettings};
use crate::values::state::RendezvousState;
use crate::values::step::Step;
use crate::values::stored::{Token, Written};

/// How many nodes of a state have their marks read, so that a state with many does not cost many requests.
const LINKED_MAX: usize = 256;

/// How often a node checks whether a suspect has written, because heartbeats wake nobody.
const SUSPECT_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause after the second write conflict in a row, which doubles with each further one, and its
/// limit.
const CONFLICT_PAUSE_MIN: Duration = Duration::from_millis(4);
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How many writes a listed node can at least attempt before the others drop it. With longer pauses,
/// newcomers, whose pauses are short, would starve it.
const ATTEMPTS_BEFORE_DROP: u32 = 128;

/// For how long after a round is complete a node waits until it may enter it: for as long as workers usually need to start
/// with their imports. Then it waits for the next one, for which the members restart.
const ENTRY_WAIT: Duration = Duration::from_secs(60);

/// What the executor needs before its next step.
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
    /// Of the stored state from which the state of the decider comes.
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

/// The times of requests: what others wrote later cannot be in their results.
#[derive(Debug)]
struct RequestTimes {
    /// A time at or before the request for the current state, or for the next one.
    requested_at: Duration,
    /// A time at or before the request for the current state.
    known_as_of: Duration,
    /// When a write in place of the state of the token was requested first. The state of another token shows whether it
    /// took effect.
    write_requested_at: Option<Duration>,
}

/// An operation, and what it has found so far.
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

    /// Begins an operation that should end by `deadline`.
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

    /// A request has failed: whether the state has changed is unknown, and the others may have been unable to write.
    pub(crate) fn on_outage(&mut self) {
        self.phase = Phase::Read;
        self.decider.observations.on_outage();
    }

    /// Until when the others keep this node in its round if it writes nothing more.
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

    /// Takes the nodes that were lost since the last call.
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
            (silence > self.decider.overdue_after()).then(|| LostNode::new(node.clone(), silence))
        });
        silent.collect()
    }

    fn decide(&self, now: Now) -> Decision {
        let decider = &self.decider;
        let last_call_over = decider.state.deadline.is_some()
            && (decider.has_last_call_timed_out(now) || self.all_are_back(now));
        let ctx = Context {
            deadline: self.progress.deadline,
            heartbeat_due: self
                .heartbeat_due_at()
                .is_some_and(|due| due <= now.monotonic),
            last_call_over,
            has_every_rank: decide::has_every_rank(&decider.state),
            must_yield: self.must_yield(now),
            entering: self.entering(now),
            ..decider.context(&self.me, now)
        };
        match self.progress.operation {
            Operation::Exit => decide::exit(&ctx),
            Operation::Join | Operation::Enter => {
                decide::amend(decide::join(&ctx), &ctx, decider.has_suspects(&self.me))
            }
            Operation::Close => decide::close(&ctx),
            Operation::KeepAlive => decide::keep_alive(&ctx),
            Operation::Leave => decide::leave(&ctx),
        }
    }

    /// Whether this node leaves the free places of an open round to members of the last one.
    fn must_yield(&self, now: Now) -> bool {
        let claimants = || self.decider.claimants(now).count();
        self.progress.operation.is_join() && self.decider.must_yield(&self.me, now, claimants)
    }

    /// Whether this node enters the complete round (section 7.3).
    fn entering(&self, now: Now) -> Entering {
        let Some(since) = self.decider.observations.complete_since() else {
            return Entering::No;
        };
        if self.progress.operation != Operation::Enter || !self.decider.state.complete {
            return Entering::No;
        }
        if self.decider.state.participants.contains_key(&self.me) {
            return if self.progress.has_entered {
                Entering::Now
            } else {
                Entering::No
            };
        }
        match self.entry_of_round() {
            Some(Entry::Open) => Entering::Now,
            Some(Entry::Unknown) if since.saturating_add(ENTRY_WAIT) < now.monotonic => {
                Entering::No
            }
            _ => Entering::Waits,
        }
    }

    fn entry_of_round(&self) -> Option<Entry> {
        let (round, entry) = self.progress.entry?;
        (round == self.decider.state.round).then_some(entry)
    }

    /// The running round that this spare may enter if its members agree, because the round has a place for it.
    pub(crate) fn awaits_entry(&self) -> Option<i64> {
        let state = &self.decider.state;
        let is_wanted = self.progress.operation == Operation::Enter
            && state.complete
            && state.redundancy_list.contains(&self.me)
            && state.participants.len() < self.decider.settings.max_nodes;
        is_wanted.then_some(state.round)
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

    /// Whether the join waits for nodes that are on no list, and may have written a notice about it.
    pub(crate) fn awaits_notices(&self, now: Now) -> bool {
        let is_unlisted = |node: &NodeId| {
            *node != self.me
                && !self.decider.state.last_heartbeats.contains_key(node)
                && !self.decider.gone.contains(node)
                && !self.departures.has_dropped(node)
        };
        if self.must_yield(now) {
            return self.decider.claimants(now).any(is_unlisted);
        }
        let is_in_last_call = self.progress.operation.is_join()
            && self.decider.state.deadline.is_some()
            && self.decider.state.participants.contains_key(&self.me);
        is_in_last_call && self.expected.iter().flatten().any(is_unlisted)
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

    /// Whether all expected nodes are back.
    fn all_are_back(&self, now: Now) -> bool {
        let is_dropped = |node: &NodeId| self.departures.has_dropped(node);
        let expected = self.expected.as_ref();
        expected.is_some_and(|nodes| self.decider.are_back(nodes.iter(), is_dropped, now))
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
        self.departures
            .observe(&state, me, decider, *requested_at, now);
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
        let (last, state) = (&mut decider.last_round, &decider.state);
        last.observe(state, now.monotonic, |node| lost.get(node).copied());
        self.departures.on_dropped(silent, state, now);
    }

    /// The next time at which a decision may change without a change of the state.
    fn wake_at(&self, now: Now) -> Duration {
        let margin = Duration::from_millis(1);
        let is_spare = self.decider.state.redundancy_list.contains(&self.me);
        let give_up = (!is_spare).then(|| {
            let limit = if now.monotonic > self.progress.deadline {
                self.progress.deadline.saturating_add(ROLLBACK_WINDOW)
            } else {
                self.progress.deadline
            };
            limit.saturating_add(margin)
        });
        let is_participant = self.decider.state.participants.contains_key(&self.me);
        let last_call = [
            self.decider
                .observations
                .last_call_ends_at(&self.decider.settings),
            self.decider
                .all_had_time_at()
                .filter(|_| self.expected.is_some()),
        ]
        .into_iter()
        .flatten()
        .filter(|&at| is_participant && at >= now.monotonic)
        .min()
        .map(|at| at.saturating_add(margin));
        let silence = self
            .decider
            .observations
            .next_silence_at(&self.me, &self.decider.settings, self.requests.requested_at)
            .map(|at| at.saturating_add(margin));
        let heartbeat = self
            .decider
            .observations
            .heartbeat_due_at(&self.me, &self.decider.settings);
        // Reads at least once in an interval, whatever it waits for.
        let interval = self.decider.settings.keep_alive_interval;
        let longest = match self.last_decision {
            Some(Decision { rule: Rule::H2, .. }) => interval.min(SUSPECT_INTERVAL),
            _ => interval,
        };
        let precedence = self.decider.last_round.next_change_at(
            &self.decider.state,
            &self.decider.settings,
            now.monotonic,
        );
        [give_up, last_call, silence, heartbeat, precedence]
            .into_iter()
            .flatten()
            .fold(now.monotonic.saturating_add(longest), Duration::min)
            .max(now.monotonic.saturating_add(margin))
    }
}
