//! The holder of the lease: applies the requests of all nodes in their order of arrival, by the same tables as a node
//! that writes alone, and answers them once the result is written. Pure.
//!
//! It remembers the requests that it has taken from the queue and the state with its token. It needs no other memory,
//! because the nodes repeat their requests for a new holder.

mod clients;
mod decisions;
mod rounds;

use std::collections::BTreeSet;
use std::time::Duration;

use self::clients::{Client, Clients, NODES_MAX, Status};
use self::rounds::Rounds;
use super::message::{Answer, AnswerKind, NAMED_MAX, Request, RequestKind, Summary};
use super::timers::Timers;
use crate::engine::decider::Decider;
use crate::engine::links::Marks;
use crate::values::goal::Step;
use crate::values::node::NodeId;
use crate::values::report::LostNode;
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::Now;

/// The pause between two writes for each listed node, so that more requests share one write: the state has about 150
/// bytes per node, and a write moves it twice.
const WRITE_PAUSE_PER_NODE: Duration = Duration::from_micros(20);

/// The pause between two writes for each listed node while a round is open: no node waits for any write except the
/// write that completes the round. If thousands of nodes join in a second, all earlier writes together then move as
/// much data as the completing write.
const OPEN_WRITE_PAUSE_PER_NODE: Duration = Duration::from_micros(200);

/// The time for each listed node in which the holder collects requests after it has decided. Deciding takes 1 to 3 us
/// per listed node, however few requests are new.
const DECISION_PAUSE_PER_NODE: Duration = Duration::from_micros(10);

/// How often in an interval heartbeats are read. They are written once in an interval.
const READS_PER_INTERVAL: u32 = 2;

/// How many answers are sent at a time. The holder renews its lease in between, because the nodes that they wake
/// compete with it.
const ANSWERS_MAX: usize = 1000;

/// How often the state is compared with the known one.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The holder's next action on the store.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// Read the number of handlers.
    CountNodes,
    ReadState,
    /// Check whether the stored state is still the known state.
    CheckState,
    WriteState,
    Answer(Vec<(u32, Vec<u8>)>),
    WriteSummary(Vec<u8>),
    ReadHeartbeats(Vec<u32>),
    ReadMarks(Vec<NodeId>),
    /// Wait for new requests, or until this time.
    Wait(Duration),
}

#[derive(Debug)]
pub(crate) struct Holder {
    epoch: u64,
    /// The node itself: it is listed, so that a new holder can always change the state.
    me: NodeId,
    phase: Phase,
    decider: Decider,
    draft: Draft,
    as_of: AsOf,
    clients: Clients,
    rounds: Rounds,
    /// The answers to be sent once the state is written, and those that are to be sent.
    decided: Vec<(u32, Answer)>,
    to_send: Vec<(u32, Vec<u8>)>,
    summaries: Summaries,
    /// The nodes that the next write drops.
    newly_lost: Vec<LostNode>,
    /// Changes of the state, each with the node that it is for, and results of writes, until they are recorded.
    steps: Vec<(NodeId, Step)>,
    timers: Timers<Timer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The nodes are not yet notified of the new holder.
    New,
    /// This holder has not written yet, so it answers no request: after its first write, an earlier holder can no
    /// longer write its decisions.
    Unwritten,
    Answering,
}

/// The summary of the state for the other nodes.
#[derive(Debug, Default)]
struct Summaries {
    current: Vec<u8>,
    sent: Vec<u8>,
    /// The number of times that nodes were called, and the indices of the last ones; none for all.
    calls: (u64, Vec<u32>),
}

/// The difference between the decider's state and the stored state.
#[derive(Debug, Default)]
struct Draft {
    /// The token of the stored state that the draft is based on.
    token: Option<Token>,
    status: DraftStatus,
    /// Whether the next write has the heartbeats of the interval.
    has_batch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum DraftStatus {
    /// The stored state is to be read.
    #[default]
    Unread,
    /// The stored state is the same.
    Stored,
    /// To be written.
    Changed,
}

/// When the holder's current information was requested. It cannot contain later writes of other
/// nodes.
#[derive(Debug)]
struct AsOf {
    state: Duration,
    heartbeats: Duration,
    marks: Duration,
    /// The write in progress, which also shows the state.
    write: Duration,
    /// The last decision.
    decision: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Write the holder's heartbeat, together with the heartbeats of the other nodes.
    Batch,
    /// Apply the requests again.
    Decide,
    ReadHeartbeats,
    /// Compare the state with the stored one.
    Poll,
    /// A node will have been silent for too long.
    Silence,
    /// The end of the pause between two writes.
    Write,
}

impl Draft {
    fn change(&mut self) {
        if self.status == DraftStatus::Stored {
            self.status = DraftStatus::Changed;
        }
    }
}

impl AsOf {
    fn oldest(&self) -> Duration {
        self.state.min(self.heartbeats)
    }
}

impl Holder {
    pub(super) fn new(me: NodeId, settings: RendezvousSettings, epoch: u64, now: Now) -> Self {
        let at = now.monotonic;
        let interval = settings.keep_alive_interval;
        Self {
            epoch,
            me,
            phase: if epoch > 1 {
                Phase::New
            } else {
                Phase::Unwritten
            },
            draft: Draft::default(),
            as_of: AsOf {
                state: at,
                heartbeats: at,
                marks: at,
                write: at,
                decision: Duration::ZERO,
            },
            clients: Clients::default(),
            rounds: Rounds::default(),
            decided: Vec::new(),
            to_send: Vec::new(),
            summaries: Summaries::default(),
            newly_lost: Vec::new(),
            steps: Vec::new(),
            timers: [
                (Timer::Batch, at.saturating_add(interval)),
                (Timer::Decide, at),
                (
                    Timer::ReadHeartbeats,
                    at.saturating_add(interval / READS_PER_INTERVAL),
                ),
                (Timer::Poll, at.saturating_add(POLL_INTERVAL)),
                (Timer::Write, at),
            ]
            .into(),
            decider: Decider::new(settings, now),
        }
    }

    /// Counts nodes whose connections had closed before, because the store was not out of reach lately.
    pub(super) const fn count_found_marks(&mut self) {
        self.decider.observations.links.count_found();
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes the steps since the last call, in order, each with the node whose event it is.
    pub(super) fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        std::mem::take(&mut self.steps)
    }

    /// Adopts the stored summary. The previous holder wrote it, or an earlier holder has replaced
    /// ours.
    pub(super) fn on_summary(&mut self, stored: Vec<u8>) {
        self.rounds.inherit(Summary::from_text(&stored));
        self.summaries.sent = stored;
    }

    /// Returns the summary if it is still to be sent. It then counts as sent.
    pub(super) fn take_unsent_summary(&mut self) -> Option<Vec<u8>> {
        let Summaries { current, sent, .. } = &mut self.summaries;
        if current.is_empty() || current == sent {
            return None;
        }
        sent.clone_from(current);
        Some(current.clone())
    }

    /// Answers that are to be sent. They then count as sent.
    pub(super) fn take_answers(&mut self) -> Vec<(u32, Vec<u8>)> {
        let count = self.to_send.len().min(ANSWERS_MAX);
        self.to_send.drain(..count).collect()
    }

    /// The state to be written and the token it is based on, after [`Task::WriteState`].
    pub(super) const fn to_write(&self) -> (&RendezvousState, Option<&Token>) {
        (&self.decider.state, self.draft.token.as_ref())
    }

    fn per_listed_node(&self, pause: Duration) -> Duration {
        let listed = self.decider.state.last_heartbeats.len();
        pause.saturating_mul(u32::try_from(listed).unwrap_or(u32::MAX))
    }

    /// Whether a request is to be decided or answered.
    pub(super) fn is_busy(&self) -> bool {
        let is_open = |status| matches!(status, Status::Pending { .. } | Status::Decided);
        let mut clients = self.clients.iter();
        !self.to_send.is_empty() || clients.any(|(_, client)| is_open(client.status))
    }

    /// Whether the stored state is known and does not list the node.
    pub(super) fn has_lost(&self, node: &NodeId) -> bool {
        self.draft.status == DraftStatus::Stored && !self.decider.lists(node)
    }

    /// Returns the next action on the store.
    pub(super) fn task(&mut self, now: Now) -> Task {
        let at = now.monotonic;
        if self.phase == Phase::New {
            self.phase = Phase::Unwritten;
            return Task::CountNodes;
        }
        if self.draft.status == DraftStatus::Unread {
            self.as_of.state = at;
            return Task::ReadState;
        }
        if !self.to_send.is_empty() {
            return Task::Answer(self.take_answers());
        }
        if let Some(summary) = self.take_unsent_summary() {
            return Task::WriteSummary(summary);
        }
        self.check_silence(at);
        if self.timers.is_due(Timer::Decide, at) {
            self.decide(now);
        }
        let has_written = self.phase == Phase::Answering;
        if self.timers.is_due(Timer::Batch, at) || !has_written {
            // If the heartbeats were read later, they would be in the state only one interval later, and nodes that
            // write alone would drop a node that was paused for a few seconds.
            if has_written && self.as_of.heartbeats < self.timers.at(Timer::Batch) {
                return self.read_heartbeats(at);
            }
            self.touch(now);
        }
        if self.draft.status == DraftStatus::Changed {
            let is_urgent = |(_, answer): &(u32, Answer)| {
                matches!(answer.kind, AnswerKind::Joined(_) | AnswerKind::Done)
            };
            let is_due = self.timers.is_due(Timer::Write, at) || self.draft.has_batch;
            if is_due || self.decided.iter().any(is_urgent) {
                self.as_of.write = at;
                return Task::WriteState;
            }
        } else {
            // A closed rendezvous stays closed, whatever an earlier holder writes.
            if self.decider.state.closed {
                self.phase = Phase::Answering;
            }
            if self.phase == Phase::Answering && !self.decided.is_empty() {
                self.send_answers();
                return self.task(now);
            }
        }
        if self.timers.is_due(Timer::ReadHeartbeats, at) {
            return self.read_heartbeats(at);
        }
        if self.timers.is_due(Timer::Poll, at) {
            self.timers.set_in(Timer::Poll, at, POLL_INTERVAL);
            self.as_of.state = at;
            return Task::CheckState;
        }
        let marks_due_at = self.decider.observations.links.read_due_at();
        let marks_due_at = marks_due_at.filter(|_| self.phase == Phase::Answering);
        if marks_due_at.is_some_and(|due_at| due_at <= at) {
            self.as_of.marks = at;
            let listed = self.decider.state.last_heartbeats.keys();
            return Task::ReadMarks(listed.cloned().collect());
        }
        let is_changed = self.draft.status == DraftStatus::Changed;
        let until = self.timers.next(|it| it != Timer::Write || is_changed);
        Task::Wait(until.min(marks_due_at.unwrap_or(Duration::MAX)))
    }

    /// Reads what shows whether a node that is about to count as lost still is silent.
    fn check_silence(&mut self, at: Duration) {
        let silence_at = self.timers.at(Timer::Silence);
        if !self.timers.take_due(Timer::Silence, at) {
            return;
        }
        if self.as_of.heartbeats < silence_at {
            self.timers.set(Timer::ReadHeartbeats, at);
        }
        if self.as_of.state < silence_at {
            self.timers.set(Timer::Poll, at);
        }
    }

    fn read_heartbeats(&mut self, at: Duration) -> Task {
        let pause = self.decider.settings.keep_alive_interval / READS_PER_INTERVAL;
        self.timers.set_in(Timer::ReadHeartbeats, at, pause);
        self.as_of.heartbeats = at;
        let is_known = |(_, client): &(u32, &Client)| {
            client.heartbeat.is_some() && self.decider.lists(&client.request.node)
        };
        let known = self.clients.iter().filter(is_known);
        Task::ReadHeartbeats(known.map(|(index, _)| index).collect())
    }

    /// Notifies all nodes of the new holder, after [`Task::CountNodes`].
    pub(super) fn on_count(&mut self, count: u32) {
        let kind = AnswerKind::NewHolder { epoch: self.epoch };
        let notice = Answer { number: 0, kind }.to_text();
        let indices = 1..=count.min(NODES_MAX);
        self.to_send
            .extend(indices.map(|index| (index, notice.clone())));
    }

    /// Adopts requests, including the holder's. It decides only once it has all of them.
    pub(super) fn on_requests(&mut self, requests: impl IntoIterator<Item = Request>, now: Now) {
        let mut is_any = false;
        for request in requests {
            is_any |= self.accept(request);
        }
        if is_any {
            let pause = self.per_listed_node(DECISION_PAUSE_PER_NODE);
            let at = self.as_of.decision.saturating_add(pause);
            let at = at.max(now.monotonic).min(self.timers.at(Timer::Decide));
            self.timers.set(Timer::Decide, at);
        }
    }

    fn accept(&mut self, request: Request) -> bool {
        if request.epoch != self.epoch {
            return false;
        }
        let (index, node) = (request.index, request.node.clone());
        let leaves = request.kind == RequestKind::Leave;
        // This holder lists a node only after a request, so the stored state lists a new node.
        let is_listed = self.decider.lists(&node);
        let Some(before) = self.clients.accept(request, is_listed) else {
            return false;
        };
        if before == Status::Decided {
            self.decided.retain(|(other, _)| *other != index);
        }
        if leaves {
            self.decider.gone.insert(node);
        } else {
            self.decider.gone.remove(&node);
        }
        true
    }

    pub(super) fn on_state(&mut self, stored: Option<(RendezvousState, Token)>, now: Now) {
        // Requests that were decided for another state are decided again.
        for (index, answer) in self.decided.drain(..) {
            if let Some(client) = self.clients.get_mut(index) {
                client.status = match answer.kind {
                    // The node's request was fulfilled before.
                    AnswerKind::Evicted { round } => Status::Member { round },
                    _ => Status::Pending { is_spare: false },
                };
            }
        }
        // A conflict must not cost anybody a heartbeat.
        if self.draft.has_batch {
            self.timers.set(Timer::Batch, self.as_of.heartbeats);
        }
        let (state, token) = match stored {
            Some((state, token)) => (state, Some(token)),
            None => (RendezvousState::default(), None),
        };
        self.decider.state = state;
        self.draft = Draft {
            token,
            status: DraftStatus::Stored,
            has_batch: false,
        };
        // Another node has dropped it.
        let listed: BTreeSet<NodeId> = self.decider.state.last_heartbeats.keys().cloned().collect();
        self.forget(|client| {
            let is_pending = matches!(client.status, Status::Pending { .. });
            is_pending && client.was_listed && !listed.contains(&client.request.node)
        });
        self.note_listed();
        let time = self.decider.time_to_write(now);
        for (_, client) in self.clients.iter().filter(|(_, client)| client.is_fresh) {
            let heartbeats = &mut self.decider.state.last_heartbeats;
            if let Some(heartbeat) = heartbeats.get_mut(&client.request.node) {
                *heartbeat = time;
            }
        }
        self.observe(now);
        self.timers.set(Timer::Decide, now.monotonic);
        if self.phase == Phase::Answering {
            self.summarize();
        }
    }

    /// The state has changed, or not.
    pub(super) fn on_checked(&mut self, is_same: bool, now: Now) {
        if !is_same {
            self.draft.status = DraftStatus::Unread;
        }
        self.timers.set(Timer::Decide, now.monotonic);
    }

    pub(super) fn on_written(&mut self, written: Written, now: Now) {
        // The reply shows the state at the time of the write.
        self.as_of.state = self.as_of.write;
        match written {
            Written::Ours(token) => {
                self.draft.token = Some(token);
                self.draft.status = DraftStatus::Stored;
                self.draft.has_batch = false;
                self.phase = Phase::Answering;
                self.note_listed();
                for (_, client) in self.clients.iter_mut() {
                    client.is_fresh = false;
                }
                let pause = self.per_listed_node(if self.decider.state.complete {
                    WRITE_PAUSE_PER_NODE
                } else {
                    OPEN_WRITE_PAUSE_PER_NODE
                });
                self.timers.set_in(Timer::Write, now.monotonic, pause);
                self.timers
                    .set_in(Timer::Poll, now.monotonic, POLL_INTERVAL);
                self.observe(now);
                self.send_answers();
                self.summarize();
            }
            Written::Theirs(state, token) => self.on_state(Some((*state, token)), now),
            Written::Nothing => self.on_state(None, now),
        }
    }

    /// Adopts the values of the heartbeats that [`Task::ReadHeartbeats`] asked for.
    pub(super) fn on_heartbeats(&mut self, indices: &[u32], values: &[Vec<u8>], now: Now) {
        let time = self.decider.time_to_write(now);
        let overdue = time.before(self.decider.settings.keep_alive_interval * 2);
        let mut has_changed = false;
        for (index, value) in indices.iter().zip(values) {
            let Some(client) = self.clients.get_mut(*index) else {
                continue;
            };
            if value.is_empty() {
                client.heartbeat = None;
                continue;
            }
            if client.heartbeat.as_ref() == Some(value) {
                continue;
            }
            client.heartbeat = Some(value.clone());
            client.is_fresh = true;
            let heartbeats = &mut self.decider.state.last_heartbeats;
            if let Some(heartbeat) = heartbeats.get_mut(&client.request.node) {
                if *heartbeat < overdue {
                    // Nodes that write alone may consider this node dead before the next heartbeats are
                    // written.
                    self.timers.set(Timer::Batch, self.as_of.heartbeats);
                }
                *heartbeat = time;
                has_changed = true;
            }
        }
        if has_changed {
            self.decider.observe_draft(now);
        }
        self.timers.set(Timer::Decide, now.monotonic);
    }

    /// Adopts the marks that [`Task::ReadMarks`] asked for; `None` if the store cannot have any. Calls the nodes whose
    /// connections have closed, because a live node may not have noticed it.
    pub(super) fn on_marks(&mut self, marks: Option<&Marks>, now: Now) {
        let (at, links) = (now.monotonic, &mut self.decider.observations.links);
        if links.on_read(&self.me, marks, self.as_of.marks, at) {
            self.timers.set(Timer::ReadHeartbeats, at);
            self.timers.set(Timer::Poll, at);
        }
        let closed: BTreeSet<&NodeId> = links.newly_closed(at).collect();
        if closed.is_empty() {
            return;
        }
        let clients = self.clients.iter();
        let called = clients.filter(|(_, client)| closed.contains(&client.request.node));
        let called: Vec<u32> = called.map(|(index, _)| index).collect();
        let (calls, _) = self.summaries.calls;
        let is_few = (1..=NAMED_MAX).contains(&called.len());
        self.summaries.calls = (calls + 1, called);
        if !is_few {
            self.summaries.calls.1.clear();
        }
        self.summarize();
    }

    /// Writes the holder's heartbeat, so that the state changes.
    fn touch(&mut self, now: Now) {
        let interval = self.decider.settings.keep_alive_interval;
        self.timers.set_in(Timer::Batch, now.monotonic, interval);
        let time = self.decider.time_to_write(now);
        if let Some(heartbeat) = self.decider.state.last_heartbeats.get_mut(&self.me) {
            // Two holders may have the same time.
            let later = time.after(Duration::from_micros(self.epoch % 1000));
            *heartbeat = if *heartbeat == later {
                later.after(Duration::from_micros(1000))
            } else {
                later
            };
            self.draft.status = DraftStatus::Changed;
            self.draft.has_batch = true;
            self.decider.observe_draft(now);
        }
    }

    /// Adopts a state that was read or written.
    fn observe(&mut self, now: Now) {
        self.decider.observe(now);
        self.observe_last_round(now);
        let Decider {
            state,
            observations,
            settings,
            ..
        } = &self.decider;
        self.rounds.observe(state, observations, settings, now);
    }

    /// Notes the members of the last round, for their ranks and places in the next one.
    fn observe_last_round(&mut self, now: Now) {
        let rounds = &self.rounds;
        self.decider
            .observe_last_round(now, |node| rounds.loss_of(node, now));
    }

    /// Notes who is listed in the stored state, and warns of those that no longer are.
    fn note_listed(&mut self) {
        for lost in std::mem::take(&mut self.newly_lost) {
            if !self.decider.lists(&lost.node) {
                log::warn!("lost node {lost}");
                self.decider.observations.links.forget(&lost.node);
            }
        }
        for (_, client) in self.clients.iter_mut() {
            client.was_listed = self.decider.lists(&client.request.node);
        }
    }

    /// Drops the requests of dropped nodes. A living node repeats its request.
    fn forget(&mut self, is_gone: impl Fn(&Client) -> bool) {
        let gone = self.clients.forget(is_gone);
        self.decided.retain(|(index, _)| !gone.contains_key(index));
        let round = self.decider.state.round;
        let notices = gone.into_iter().map(|(index, number)| {
            let kind = AnswerKind::Evicted { round };
            (index, Answer { number, kind }.to_text())
        });
        self.to_send.extend(notices);
    }

    fn send_answers(&mut self) {
        for (index, answer) in self.decided.drain(..) {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            client.status = match &answer.kind {
                AnswerKind::Joined(place) => Status::Member { round: place.round },
                AnswerKind::Spare => Status::Pending { is_spare: true },
                AnswerKind::NoLongerSpare => Status::Pending { is_spare: false },
                AnswerKind::Evicted { .. } => Status::Evicted,
                AnswerKind::Closed
                | AnswerKind::NewHolder { .. }
                | AnswerKind::NotNeeded
                | AnswerKind::TimedOut
                | AnswerKind::Done => Status::Over,
            };
            self.to_send.push((index, answer.to_text()));
        }
    }

    fn summarize(&mut self) {
        let (state, settings) = (&self.decider.state, &self.decider.settings);
        let mut summary = self.rounds.summary(state, settings, self.epoch);
        (summary.calls, summary.called) = self.summaries.calls.clone();
        self.summaries.current = summary.to_text();
    }

    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let clients = self.clients.iter();
        let clients: Vec<String> = clients
            .map(|(index, client)| {
                format!("{index}: {:?} {:?}", client.request.kind, client.status)
            })
            .collect();
        let (phase, draft, timers) = (self.phase, self.draft.status, &self.timers);
        format!(
            "epoch {} {phase:?} {draft:?} {timers:?}: {}",
            self.epoch,
            clients.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::timestamp::Timestamp;

    /// A spare has left by its own write. The holder reads its earlier request before it has read this write.
    #[test]
    fn a_node_that_has_left_is_not_listed_again_by_a_request_from_before() {
        let now = Now {
            monotonic: Duration::from_secs(1000),
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        };
        let (me, spare) = (NodeId::new("node", 1, 0), NodeId::new("spare", 1, 0));
        let settings = RendezvousSettings::for_test(1, 1);
        let mut holder = Holder::new(me.clone(), settings, 1, now);
        let mut state = RendezvousState {
            complete: true,
            ..RendezvousState::default()
        };
        state.participants.insert(me.clone(), 0);
        state.last_heartbeats.insert(me, now.wall);
        let left = state.clone();
        state.redundancy_list.insert(spare.clone());
        state.last_heartbeats.insert(spare.clone(), now.wall);
        assert_eq!(holder.task(now), Task::ReadState);
        holder.on_state(Some((state, Token::new([1]))), now);
        let join = Request {
            index: 7,
            number: 1,
            epoch: 1,
            node: spare.clone(),
            kind: RequestKind::Join { after: -1 },
        };
        holder.on_requests([join.clone()], now);
        assert_eq!(holder.task(now), Task::WriteState);
        let conflict = Written::Theirs(Box::new(left), Token::new([2]));
        holder.on_written(conflict, now);
        while let Task::Answer(_) | Task::WriteSummary(_) = holder.task(now) {}
        // A copy of it, from before the node was notified.
        holder.on_requests([join], now);
        holder.task(now);
        let (state, _) = holder.to_write();
        assert!(!state.last_heartbeats.contains_key(&spare), "{state:?}");
    }

    #[test]
    fn a_new_holder_can_renew_its_lease_between_its_notices() {
        let now = Now {
            monotonic: Duration::from_secs(1000),
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        };
        let settings = RendezvousSettings::for_test(1, 2500);
        let mut holder = Holder::new(NodeId::new("node", 1, 0), settings, 2, now);
        assert_eq!(holder.task(now), Task::CountNodes);
        holder.on_count(2500);
        assert_eq!(holder.task(now), Task::ReadState);
        holder.on_state(None, now);
        for count in [1000, 1000, 500] {
            let Task::Answer(answers) = holder.task(now) else {
                panic!("no answers");
            };
            assert_eq!(answers.len(), count);
        }
    }
}
