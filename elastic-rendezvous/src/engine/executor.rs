//! The state machine of one node: read, expire, decide, apply, write, repeat.
//!
//! It does no I/O: it returns what it needs next ([`Need`]) and gets the result. Time is an argument.
//! `solo` drives it for a node; tests step any number of executors in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::apply::{apply, make_spares, remove_dead};
use crate::engine::decide::step_of_action;
use crate::engine::decide::{self, Action, Context, Decision, Entering, Rule};
use crate::engine::identity::OwnHeartbeats;
use crate::engine::last_round::{LastRound, Loss, REJOIN_GRACE};
use crate::engine::links::{Links, Marks, RETURN_GRACE};
use crate::engine::observations::Observations;
use crate::values::clock::Now;
use crate::values::goal::{Entry, Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::report::{DroppedNode, LeftNode, LostNode, WaitReport};
use crate::values::settings::{ROLLBACK_WINDOW, RendezvousSettings};
use crate::values::state::RendezvousState;
use crate::values::step::Step;
use crate::values::stored::{Token, Written};

/// How many dropped nodes are remembered for reports.
const DROPPED_MAX: usize = 256;

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

/// When a node was dropped as dead, and how long it had been silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dropped {
    at: Duration,
    silence: Duration,
    is_disconnected: bool,
}

impl Dropped {
    fn lost(self, node: &NodeId) -> LostNode {
        LostNode {
            node: node.clone(),
            silence: self.silence,
            is_disconnected: self.is_disconnected,
        }
    }
}

/// How a member has left the round that this node joined last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Departure {
    /// It left on its own; it may be listed again since.
    Left { is_joining: bool },
    /// This node or another dropped it, because it wrote no heartbeat.
    Lost(Dropped),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The stored state must be read, or the changed one written.
    Sync,
    Decide,
}

#[derive(Debug)]
pub(crate) struct Executor {
    me: NodeId,
    /// `None` for an id that no other process can have.
    own: Option<OwnHeartbeats>,
    settings: RendezvousSettings,
    state: RendezvousState,
    token: Option<Token>,
    /// Whether the state has local changes to write.
    is_dirty: bool,
    phase: Phase,
    operation: Operation,
    deadline: Duration,
    /// When the operation began.
    since: Duration,
    /// A time at or before the request for the current state, or for the next one.
    requested_at: Duration,
    /// A time at or before the request for the current state.
    known_as_of: Duration,
    /// When a write in place of the state of `token` was requested first. The state of another token shows whether it
    /// took effect.
    write_requested_at: Option<Duration>,
    conflicts: u32,
    observations: Observations,
    dropped: BTreeMap<NodeId, Dropped>,
    /// The nodes of the complete round that this node joined last.
    world: BTreeSet<NodeId>,
    world_round: i64,
    /// Those of them that are no longer members.
    departures: BTreeMap<NodeId, Departure>,
    /// Nodes that were lost since the last [`Executor::take_newly_lost`].
    newly_lost: Vec<LostNode>,
    /// The other nodes of the complete round that this node left to rejoin, and those on its wait list. Once
    /// all of them are back, the last call can end.
    expected: Option<BTreeSet<NodeId>>,
    last_round: LastRound,
    /// The nodes that say themselves that they have gone (section 10.2).
    gone: BTreeSet<NodeId>,
    /// What the members of this round say about nodes that want to enter it (section 7.3).
    entry: Option<(i64, Entry)>,
    /// Whether this operation has entered a round.
    has_entered: bool,
    /// The report from before this node began to undo a join that timed out.
    at_timeout: Option<WaitReport>,
    last_decision: Option<Decision>,
    /// The last change of the state, until it is recorded. A change that was not written is replaced by the next one.
    step: Option<Step>,
}

impl Executor {
    pub(crate) fn new(me: NodeId, settings: RendezvousSettings, now: Now) -> Self {
        Self {
            me,
            own: Some(OwnHeartbeats::default()),
            settings,
            state: RendezvousState::default(),
            token: None,
            is_dirty: false,
            phase: Phase::Decide,
            operation: Operation::KeepAlive,
            deadline: now.monotonic,
            since: now.monotonic,
            requested_at: now.monotonic,
            known_as_of: now.monotonic,
            write_requested_at: None,
            conflicts: 0,
            observations: Observations::new(now),
            dropped: BTreeMap::new(),
            world: BTreeSet::new(),
            world_round: 0,
            departures: BTreeMap::new(),
            newly_lost: Vec::new(),
            expected: None,
            last_round: LastRound::default(),
            gone: BTreeSet::new(),
            entry: None,
            has_entered: false,
            at_timeout: None,
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
        &self.settings
    }

    /// The state as last read, without dead nodes.
    pub(crate) fn state(&self) -> &RendezvousState {
        &self.state
    }

    /// The state to be written and the token it is based on, after [`Need::Write`].
    pub(crate) fn to_write(&self) -> (&RendezvousState, Option<&Token>) {
        (&self.state, self.token.as_ref())
    }

    /// The number of write conflicts in a row.
    #[cfg(test)]
    pub(crate) fn conflicts(&self) -> u32 {
        self.conflicts
    }

    /// The longest pause after a write conflict; `None` for no pause.
    pub(crate) fn conflict_pause_max(&self, now: Now) -> Option<Duration> {
        let configured = self.settings.cas_backoff_max;
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
        self.operation = operation;
        self.deadline = deadline;
        self.since = now.monotonic;
        self.conflicts = 0;
        self.is_dirty = false;
        self.at_timeout = None;
        self.entry = None;
        self.has_entered = false;
        self.phase = Phase::Sync;
        if operation == Operation::Exit {
            self.expected = None;
        }
    }

    /// Continues until something is needed.
    pub(crate) fn step(&mut self, now: Now) -> Need {
        loop {
            if self.phase == Phase::Sync {
                self.requested_at = now.monotonic;
                if !self.is_dirty {
                    return Need::Read;
                }
                self.write_requested_at.get_or_insert(now.monotonic);
                return Need::Write;
            }
            let decision = self.decide(now);
            self.last_decision = Some(decision);
            log::trace!(
                "{}: {:?}: {:?} by {:?} ({})",
                self.me,
                self.operation,
                decision.action,
                decision.rule,
                decision.reason,
            );
            let done = match decision.action {
                Action::Finish => {
                    if self.operation.is_join() {
                        self.world = self.state.participants.keys().cloned().collect();
                        self.world_round = self.state.round;
                        self.departures.clear();
                    }
                    Ok(())
                }
                Action::ErrorClosed => Err(OperationError::Closed),
                Action::ErrorTimeout => Err(OperationError::Timeout),
                Action::GracefulExit => Err(OperationError::GracefulExit),
                Action::Sync => {
                    let until = self.wake_at(now);
                    self.phase = Phase::Sync;
                    // A state that arrives during the wait is requested no earlier than now.
                    self.requested_at = now.monotonic;
                    return Need::Wait { until };
                }
                action => {
                    if matches!(decision.rule, Rule::J7 | Rule::J8) && self.at_timeout.is_none() {
                        self.at_timeout = Some(self.report(now));
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
        self.is_dirty = false;
        self.phase = Phase::Sync;
        self.observations.on_outage();
    }

    /// Until when the others keep this node in its round if it writes nothing more.
    pub(crate) fn is_kept_until(&self) -> Option<Duration> {
        let due_at = self.heartbeat_due_at()?;
        let written_at = due_at.saturating_sub(self.settings.keep_alive_interval);
        Some(written_at.saturating_add(self.settings.dead_after()))
    }

    /// The marks of other nodes.
    pub(crate) const fn links(&self) -> &Links {
        &self.observations.links
    }

    pub(crate) const fn links_mut(&mut self) -> &mut Links {
        &mut self.observations.links
    }

    /// Adopts marks that were requested at `requested_at`. Returns whether a node was lost; then the state must be read.
    pub(crate) fn on_marks(
        &mut self,
        marks: Option<&Marks>,
        requested_at: Duration,
        now: Now,
    ) -> bool {
        let links = &mut self.observations.links;
        links.on_read(&self.me, marks, requested_at, now.monotonic)
    }

    /// The nodes whose marks matter: this one, the listed ones, and members of the last rounds, which may have been dropped.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        let listed = self.state.last_heartbeats.keys();
        let known = listed.chain(&self.world).chain(self.last_round.members());
        let mut nodes: BTreeSet<&NodeId> = known.take(LINKED_MAX).collect();
        nodes.insert(&self.me);
        nodes.into_iter().cloned().collect()
    }

    /// Makes the next step begin with a read.
    #[cfg(test)]
    pub(crate) fn wake(&mut self) {
        self.phase = Phase::Sync;
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
                let state = std::mem::take(&mut self.state);
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
        self.observations.heartbeat_due_at(&self.me, &self.settings)
    }

    /// The rank of this node and the number of nodes, if it is a member of a complete round.
    pub(crate) fn rank(&self) -> Option<(i64, usize)> {
        if !self.state.complete {
            return None;
        }
        let rank = *self.state.participants.get(&self.me)?;
        Some((rank, self.state.participants.len()))
    }

    /// The progress of the join, or how it stood when it timed out.
    pub(crate) fn report(&self, now: Now) -> WaitReport {
        if let Some(report) = &self.at_timeout {
            return report.clone();
        }
        WaitReport {
            is_complete: self.state.complete,
            waited: now.monotonic.saturating_sub(self.since),
            time_left: self.deadline.saturating_sub(now.monotonic),
            last_call_left: self
                .observations
                .last_call_ends_at(&self.settings)
                .filter(|_| self.state.deadline.is_some() && !self.state.complete)
                .map(|ends_at| ends_at.saturating_sub(now.monotonic)),
            joined: self.state.participants.len(),
            participants: self.state.participants.keys().cloned().collect(),
            waiting: self.state.wait_list.iter().cloned().collect(),
            spares: self.state.redundancy_list.iter().cloned().collect(),
            suspects: self
                .observations
                .suspects(&self.state, &self.me)
                .cloned()
                .collect(),
            silent: self.silent(now),
            absent: self
                .departures
                .iter()
                .filter(|(_, departure)| **departure == Departure::Left { is_joining: false })
                .map(|(node, _)| node.clone())
                .collect(),
            dropped: self.all_dropped(now),
            ..WaitReport::of(
                &self.settings.run_id,
                self.state.round,
                self.settings.min_nodes,
                self.settings.max_nodes,
            )
        }
    }

    /// The lost members of the last round, and those that left it.
    pub(crate) fn departed(&self) -> (Vec<LostNode>, Vec<LeftNode>) {
        let (mut lost, mut left) = (Vec::new(), Vec::new());
        for (node, departure) in &self.departures {
            match *departure {
                Departure::Left { is_joining } => {
                    left.push(LeftNode::new(node.clone(), is_joining))
                }
                Departure::Lost(dropped) => lost.push(dropped.lost(node)),
            }
        }
        (lost, left)
    }

    /// Takes the nodes that were lost since the last call.
    pub(crate) fn take_newly_lost(&mut self) -> Vec<LostNode> {
        std::mem::take(&mut self.newly_lost)
    }

    /// Takes the step since the last call.
    pub(crate) fn take_step(&mut self) -> Option<Step> {
        self.step.take()
    }

    fn silent(&self, now: Now) -> Vec<LostNode> {
        let listed = self.state.last_heartbeats.keys();
        let others = listed.filter(|node| **node != self.me);
        let silent = others.filter_map(|node| {
            let silence = self.observations.silence_of(node, now.monotonic)?;
            (silence > self.overdue_after()).then(|| LostNode::new(node.clone(), silence))
        });
        silent.collect()
    }

    fn all_dropped(&self, now: Now) -> Vec<DroppedNode> {
        let mut all = self.dropped.clone();
        for (node, departure) in &self.departures {
            if let Departure::Lost(dropped) = departure {
                all.entry(node.clone()).or_insert(*dropped);
            }
        }
        let dropped = all.into_iter().map(|(node, dropped)| DroppedNode {
            node,
            silence: dropped.silence,
            ago: now.monotonic.saturating_sub(dropped.at),
        });
        dropped.collect()
    }

    /// The silence that tells a node that another has dropped from one that has left: a live node writes once
    /// in an interval, a dropped one was silent for almost [`RendezvousSettings::dead_after`].
    fn overdue_after(&self) -> Duration {
        self.settings.dead_after() / 2
    }

    /// Notes which members of the last round are missing in `state`, and why. Must run before the observations
    /// adopt `state` and forget those members.
    fn note_departures(&mut self, state: &RendezvousState, now: Now) {
        // This process may have been stopped before it saw the state.
        let latest = self
            .requested_at
            .saturating_add(self.settings.keep_alive_interval);
        let moment = now.monotonic.min(latest);
        let is_same_round = state.complete && state.round == self.world_round;
        for node in self.world.iter().filter(|node| **node != self.me) {
            if is_same_round && state.participants.contains_key(node) {
                self.departures.remove(node);
                continue;
            }
            if state.last_heartbeats.contains_key(node) {
                let joining = Departure::Left { is_joining: true };
                self.departures.insert(node.clone(), joining);
                continue;
            }
            let Some(silence) = self.observations.silence_of(node, moment) else {
                // It was already unlisted.
                continue;
            };
            let links = &self.observations.links;
            let closed_since = links.closed_since(node);
            let is_disconnected = closed_since.is_some() || links.was_found_closed(node);
            let departure = if silence > self.overdue_after() || is_disconnected {
                Departure::Lost(Dropped {
                    at: now.monotonic,
                    silence: closed_since.map_or(silence, |at| moment.saturating_sub(at)),
                    is_disconnected,
                })
            } else {
                Departure::Left { is_joining: false }
            };
            let is_new = !matches!(self.departures.get(node), Some(Departure::Lost(_)));
            if let Departure::Lost(dropped) = departure
                && is_new
            {
                self.newly_lost.push(dropped.lost(node));
            }
            if is_new {
                self.departures.insert(node.clone(), departure);
            }
        }
    }

    fn decide(&self, now: Now) -> Decision {
        let ends_at = self.observations.last_call_ends_at(&self.settings);
        let ctx = Context {
            state: &self.state,
            me: &self.me,
            settings: &self.settings,
            now: now.monotonic,
            deadline: self.deadline,
            heartbeat_due: self
                .observations
                .heartbeat_due(&self.me, &self.settings, now),
            last_call_over: self.state.deadline.is_some()
                && (ends_at.is_some_and(|ends_at| ends_at < now.monotonic)
                    || self.all_are_back(now)),
            has_every_rank: decide::has_every_rank(&self.state),
            must_yield: self.must_yield(now),
            entering: self.entering(now),
        };
        match self.operation {
            Operation::Exit => decide::exit(&ctx),
            Operation::Join | Operation::Enter => {
                let mut suspects = self.observations.suspects(&self.state, &self.me);
                decide::amend(decide::join(&ctx), &ctx, suspects.next().is_some())
            }
            Operation::Close => decide::close(&ctx),
            Operation::KeepAlive => decide::keep_alive(&ctx),
            Operation::Leave => decide::leave(&ctx),
        }
    }

    /// Whether this node leaves the free places of an open round to members of the last one.
    fn must_yield(&self, now: Now) -> bool {
        let (state, settings) = (&self.state, &self.settings);
        let at = now.monotonic;
        let claimants = || self.last_round.claimants(state, &self.gone, at).count();
        self.operation.is_join()
            && self
                .last_round
                .must_yield(&self.me, state, settings, at, claimants)
    }

    /// Whether this node enters the complete round (section 7.3).
    fn entering(&self, now: Now) -> Entering {
        let Some(since) = self.observations.complete_since() else {
            return Entering::No;
        };
        if self.operation != Operation::Enter || !self.state.complete {
            return Entering::No;
        }
        if self.state.participants.contains_key(&self.me) {
            return if self.has_entered {
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
        let (round, entry) = self.entry?;
        (round == self.state.round).then_some(entry)
    }

    /// The round about whose entry this node has to know, as there is a place for it.
    pub(crate) fn awaits_entry(&self) -> Option<i64> {
        let state = &self.state;
        let is_wanted = self.operation == Operation::Enter
            && state.complete
            && state.redundancy_list.contains(&self.me)
            && state.participants.len() < self.settings.max_nodes;
        is_wanted.then_some(state.round)
    }

    /// Adopts what the members of a round say. Returns whether that is new; then [`step`](Self::step) decides again.
    pub(crate) fn on_entry(&mut self, round: i64, entry: Entry) -> bool {
        let is_new = self.entry != Some((round, entry));
        self.entry = Some((round, entry));
        if is_new {
            self.phase = Phase::Decide;
        }
        is_new
    }

    /// Whether this node has entered the round while it ran.
    pub(crate) const fn has_entered(&self) -> bool {
        self.has_entered
    }

    /// Whether the join waits for nodes that are on no list, and may have written a notice about it.
    pub(crate) fn awaits_notices(&self, now: Now) -> bool {
        let is_unlisted = |node: &NodeId| {
            *node != self.me
                && !self.state.last_heartbeats.contains_key(node)
                && !self.gone.contains(node)
                && !self.dropped.contains_key(node)
        };
        if self.must_yield(now) {
            let (last, at) = (&self.last_round, now.monotonic);
            return last.claimants(&self.state, &self.gone, at).any(is_unlisted);
        }
        let is_in_last_call = self.operation.is_join()
            && self.state.deadline.is_some()
            && self.state.participants.contains_key(&self.me);
        is_in_last_call && self.expected.iter().flatten().any(is_unlisted)
    }

    /// Adopts which nodes say that they have gone. Returns whether that is new; then [`step`](Self::step) decides again.
    pub(crate) fn on_gone(&mut self, gone: BTreeSet<NodeId>) -> bool {
        let is_new = self.gone != gone;
        self.gone = gone;
        if is_new {
            self.phase = Phase::Decide;
        }
        is_new
    }

    /// Whether all expected nodes are back. A last call is for nodes that start slowly: in a restart of running
    /// nodes it can end early, and later nodes join through the wait list. PyTorch waits for all of it.
    fn all_are_back(&self, now: Now) -> bool {
        let Some(expected) = &self.expected else {
            return false;
        };
        let state = &self.state;
        let all_had_time = self.all_had_time_at().is_some_and(|at| at < now.monotonic);
        expected.iter().all(|node| {
            let is_elsewhere =
                state.wait_list.contains(node) || state.redundancy_list.contains(node);
            state.participants.contains_key(node)
                || self.dropped.contains_key(node)
                || ((all_had_time || self.gone.contains(node)) && !is_elsewhere)
        })
    }

    /// When, in this last call, a node that left the previous round to rejoin must be listed again.
    fn all_had_time_at(&self) -> Option<Duration> {
        let begun_at = self.observations.last_call_begun_at()?;
        Some(begun_at.saturating_add(REJOIN_GRACE))
    }

    fn apply(&mut self, action: Action, now: Now) {
        self.has_entered = action == Action::EnterRound;
        if action == Action::RemoveFromParticipants {
            // Members that left before this node may be about to rejoin: hence also `world`.
            let nodes = self.state.participants.keys().chain(&self.state.wait_list);
            let others = nodes.chain(&self.world).filter(|node| **node != self.me);
            self.expected = (self.operation == Operation::Exit && self.state.complete)
                .then(|| others.cloned().collect());
        }
        if action == Action::RemoveFromRedundancyList && self.operation.is_join() {
            self.deadline = now.monotonic.saturating_add(self.settings.join_timeout);
        }
        let time = self.observations.time_to_write(now);
        if let Some(own) = &mut self.own {
            own.tries(time);
        }
        let was_complete = self.state.complete;
        let round = self.state.round;
        let before = self.last_round.ranks_for(&self.state);
        apply(
            &mut self.state,
            action,
            &self.me,
            &self.settings,
            time,
            before,
        );
        self.step = step_of_action(action, round, !was_complete && self.state.complete);
        if !was_complete {
            make_spares(&mut self.state, &self.settings);
        }
        self.is_dirty = true;
        self.phase = Phase::Sync;
    }

    fn adopt(&mut self, state: RendezvousState, token: Option<Token>, now: Now) {
        if !matches!(self.operation, Operation::KeepAlive | Operation::Close)
            && let Some(other) = self
                .own
                .as_mut()
                .and_then(|own| own.other_id(&self.me, &state))
        {
            self.me = other;
        }
        self.note_departures(&state, now);
        let mut lost = self.overdue(&state, now);
        self.known_as_of = self.requested_at;
        self.observations.observe(&state, &self.settings, now);
        if token != self.token
            && let Some(at) = self.write_requested_at.take()
        {
            // This process may have been stopped before it got the answer.
            self.observations.backdate(&self.me, at);
        }
        self.state = state;
        self.token = token;
        self.is_dirty = false;
        self.phase = Phase::Decide;
        let silent = self
            .observations
            .silent(&self.me, &self.settings, self.requested_at);
        let dead = silent.iter().map(|silent| &silent.node);
        remove_dead(&mut self.state, dead, &self.settings);
        let dead = silent.iter().map(|silent| silent.node.clone());
        let at_once = Loss {
            from: now.monotonic,
            is_of_connection: false,
        };
        lost.extend(dead.map(|node| (node, at_once)));
        self.last_round
            .observe(&self.state, now.monotonic, |node| lost.get(node).copied());
        for silent in silent {
            if let Some(dropped) = self.dropped.get(&silent.node) {
                self.note_lost(&silent.node, *dropped);
                continue;
            }
            if self.dropped.len() == DROPPED_MAX {
                self.dropped.pop_first();
            }
            let dropped = Dropped {
                silence: silent.silence,
                at: now.monotonic,
                is_disconnected: silent.is_disconnected,
            };
            self.note_lost(&silent.node, dropped);
            self.newly_lost.push(silent.clone());
            self.dropped.insert(silent.node, dropped);
        }
        let state = &self.state;
        self.dropped
            .retain(|node, _| !state.last_heartbeats.contains_key(node));
    }

    /// The members of the last round that another node seems to have dropped in `state`. Must run before the observations
    /// adopt `state`.
    fn overdue(&self, state: &RendezvousState, now: Now) -> BTreeMap<NodeId, Loss> {
        let loss = |from: Duration, is_of_connection: bool| {
            Some(Loss {
                from,
                is_of_connection,
            })
        };
        let loss_of = |node: &NodeId| {
            let is_overdue = |silence: Option<Duration>| {
                silence.is_some_and(|silence| silence > self.overdue_after())
            };
            if is_overdue(self.observations.silence_of(node, self.known_as_of)) {
                return loss(now.monotonic, false);
            }
            if let Some(at) = self.observations.links.closed_since(node) {
                return loss(at.saturating_add(RETURN_GRACE), true);
            }
            // A live member looks like that if its clock is behind, or if it is about to connect again; then it is back soon.
            let age = self.observations.age_of(node, self.known_as_of);
            let is_behind = is_overdue(age);
            let is_away = is_behind || self.observations.links.was_found_closed(node);
            if !is_away {
                return None;
            }
            loss(now.monotonic.saturating_add(REJOIN_GRACE), !is_behind)
        };
        self.last_round
            .members()
            .filter(|node| !state.last_heartbeats.contains_key(*node))
            .filter_map(|node| Some((node.clone(), loss_of(node)?)))
            .collect()
    }

    fn note_lost(&mut self, node: &NodeId, dropped: Dropped) {
        if self.world.contains(node) {
            let lost = Departure::Lost(dropped);
            self.departures.insert(node.clone(), lost);
        }
    }

    /// The next time at which a decision may change without a change of the state.
    fn wake_at(&self, now: Now) -> Duration {
        let margin = Duration::from_millis(1);
        let is_spare = self.state.redundancy_list.contains(&self.me);
        let give_up = (!is_spare).then(|| {
            let limit = if now.monotonic > self.deadline {
                self.deadline.saturating_add(ROLLBACK_WINDOW)
            } else {
                self.deadline
            };
            limit.saturating_add(margin)
        });
        let is_participant = self.state.participants.contains_key(&self.me);
        let last_call = [
            self.observations.last_call_ends_at(&self.settings),
            self.all_had_time_at().filter(|_| self.expected.is_some()),
        ]
        .into_iter()
        .flatten()
        .filter(|&at| is_participant && at >= now.monotonic)
        .min()
        .map(|at| at.saturating_add(margin));
        let silence = self
            .observations
            .next_silence_at(&self.me, &self.settings, self.requested_at)
            .map(|at| at.saturating_add(margin));
        let heartbeat = self.observations.heartbeat_due_at(&self.me, &self.settings);
        // Reads at least once in an interval, whatever it waits for.
        let interval = self.settings.keep_alive_interval;
        let longest = match self.last_decision {
            Some(Decision { rule: Rule::H2, .. }) => interval.min(SUSPECT_INTERVAL),
            _ => interval,
        };
        let precedence = self
            .last_round
            .next_change_at(&self.state, &self.settings, now.monotonic);
        [give_up, last_call, silence, heartbeat, precedence]
            .into_iter()
            .flatten()
            .fold(now.monotonic.saturating_add(longest), Duration::min)
            .max(now.monotonic.saturating_add(margin))
    }
}
