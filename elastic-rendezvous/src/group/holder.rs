//! The holder of the lease: applies the requests of all nodes in their order of arrival, by the same tables as a node
//! that writes alone, and answers them once the result is written. Pure.
//!
//! It knows the requests that it has taken from the queue and the state with its token. Nothing else of it has to
//! survive: the nodes repeat their requests for a new holder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::message::{Answer, AnswerKind, Place, Request, RequestKind, Summary};
use crate::apply::{apply, make_spares, remove_dead};
use crate::backend::Token;
use crate::clock::Now;
use crate::decide::{self, Action, Context, Decision};
use crate::executor::{REJOIN_GRACE, Written};
use crate::last_round::LastRound;
use crate::node::NodeId;
use crate::observations::{Observations, Silent};
use crate::recorded_event::{Step, steps_of_action};
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;
use crate::timestamp::Timestamp;

/// For each listed node, the holder waits this long between two writes, so that more requests share one: the state has
/// about 150 bytes a node, and a write moves it twice.
const PAUSE_PER_NODE: Duration = Duration::from_micros(20);

/// How often in an interval heartbeats are read. They are written once in an interval.
const READS_PER_INTERVAL: u32 = 2;

/// How often the state is compared with the known one.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How many passes over the requests follow a batch at most: in each, the state can change for others.
const PASSES_MAX: usize = 8;

/// How many nodes a holder notifies and remembers.
const NODES_MAX: u32 = 1 << 16;

/// A node that has sent the holder a request.
#[derive(Debug)]
struct Client {
    request: Request,
    /// Its place in the order of arrival.
    arrival: u64,
    status: Status,
    /// The value of its heartbeat's key when it was last read.
    heartbeat: Vec<u8>,
    /// The key is missing, though a node writes it before its first request.
    has_no_heartbeat: bool,
    /// Whether it has changed since the state was written last.
    is_fresh: bool,
    /// Whether the node was listed in the stored state.
    was_listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Pending {
        is_spare: bool,
    },
    /// The answer is to be sent once the state is written.
    Decided,
    /// Its last answer made it a member of this round.
    Member {
        round: i64,
    },
    /// It was notified that it is no longer a member.
    Evicted,
    /// Its request is fulfilled.
    Over,
}

/// A round whose members are known.
#[derive(Debug, Clone, Default)]
struct World {
    round: i64,
    nodes: BTreeSet<NodeId>,
}

/// How a member has left.
#[derive(Debug, Clone, Copy)]
enum Departure {
    Left,
    Lost(Duration),
}

/// What the holder needs next from the store.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// How many handlers there were.
    CountNodes,
    ReadState,
    /// Whether the state is still the known one.
    CheckState,
    WriteState,
    Answer(Vec<(u32, Vec<u8>)>),
    WriteSummary(Vec<u8>),
    ReadHeartbeats(Vec<u32>),
    /// New requests, or until then.
    Wait(Duration),
}

#[derive(Debug)]
pub(crate) struct Holder {
    epoch: u64,
    /// The node itself: it is listed, so that a new holder can always change the state.
    me: NodeId,
    settings: RendezvousSettings,
    state: RendezvousState,
    token: Option<Token>,
    observations: Observations,
    is_known: bool,
    /// The nodes are not yet notified of the new holder.
    is_new: bool,
    is_dirty: bool,
    /// No request is answered before this holder has written once: after that, no earlier holder can write what it
    /// decided before.
    has_written: bool,
    /// Whether the heartbeats of the interval are about to be written.
    has_batch: bool,
    clients: BTreeMap<u32, Client>,
    /// The nodes with requests, in the order of arrival.
    order: BTreeMap<u64, u32>,
    arrivals: u64,
    answers: Vec<(u32, Answer)>,
    to_send: Vec<(u32, Vec<u8>)>,
    summary: Vec<u8>,
    sent_summary: Vec<u8>,
    /// The summary of the holder before, until a round is known.
    inherited: Option<Summary>,
    write_after: Duration,
    batch_at: Duration,
    read_heartbeats_at: Duration,
    heartbeats_requested: Duration,
    poll_at: Duration,
    state_requested: Duration,
    write_requested: Duration,
    world: Option<World>,
    /// The complete round before it.
    world_before: Option<World>,
    last_round: LastRound,
    /// The nodes that have left for good.
    gone: BTreeSet<NodeId>,
    departures: BTreeMap<NodeId, Departure>,
    dropped: BTreeMap<NodeId, Duration>,
    /// Those that the next write drops.
    newly_lost: Vec<Silent>,
    decide_again_at: Duration,
    /// When a node will have been silent for too long.
    silence_at: Duration,
    /// Changes of the state, each with the node that it is for, and results of writes, until they are recorded.
    steps: Vec<(NodeId, Step)>,
}

impl Holder {
    pub(super) fn new(me: NodeId, settings: RendezvousSettings, epoch: u64, now: Now) -> Self {
        let at = now.monotonic;
        Self {
            epoch,
            me,
            state: RendezvousState::default(),
            token: None,
            observations: Observations::new(now),
            is_known: false,
            is_new: epoch > 1,
            is_dirty: false,
            has_written: false,
            has_batch: false,
            clients: BTreeMap::new(),
            order: BTreeMap::new(),
            arrivals: 0,
            answers: Vec::new(),
            to_send: Vec::new(),
            summary: Vec::new(),
            sent_summary: Vec::new(),
            inherited: None,
            write_after: at,
            batch_at: at.saturating_add(settings.keep_alive_interval),
            read_heartbeats_at: at
                .saturating_add(settings.keep_alive_interval / READS_PER_INTERVAL),
            heartbeats_requested: at,
            poll_at: at.saturating_add(POLL_INTERVAL),
            state_requested: at,
            write_requested: at,
            world: None,
            world_before: None,
            last_round: LastRound::default(),
            gone: BTreeSet::new(),
            departures: BTreeMap::new(),
            dropped: BTreeMap::new(),
            newly_lost: Vec::new(),
            decide_again_at: at,
            silence_at: Duration::MAX,
            steps: Vec::new(),
            settings,
        }
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes the steps since the last call, in order, each with the node whose event it is.
    pub(super) fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        std::mem::take(&mut self.steps)
    }

    /// The stored summary: of the holder before, or replaced by an earlier one.
    pub(super) fn on_summary(&mut self, stored: Vec<u8>) {
        if self.world.is_none() {
            self.inherited = Summary::from_text(&stored);
        }
        self.sent_summary = stored;
    }

    /// The summary, if it is still to be sent. It then counts as sent.
    pub(super) fn take_unsent_summary(&mut self) -> Option<Vec<u8>> {
        if self.summary == self.sent_summary {
            return None;
        }
        self.sent_summary.clone_from(&self.summary);
        Some(self.summary.clone())
    }

    /// The state to be written and the token it is based on, after [`Task::WriteState`].
    pub(super) fn to_write(&self) -> (&RendezvousState, Option<&Token>) {
        (&self.state, self.token.as_ref())
    }

    /// What is to be done now.
    pub(super) fn task(&mut self, now: Now) -> Task {
        let at = now.monotonic;
        if std::mem::take(&mut self.is_new) {
            return Task::CountNodes;
        }
        if !self.is_known {
            self.state_requested = at;
            return Task::ReadState;
        }
        if !self.to_send.is_empty() {
            return Task::Answer(std::mem::take(&mut self.to_send));
        }
        if let Some(summary) = self.take_unsent_summary() {
            return Task::WriteSummary(summary);
        }
        if self.silence_at <= at {
            // Only what is requested from then on shows whether it still is.
            if self.heartbeats_requested < self.silence_at {
                self.read_heartbeats_at = at;
            }
            if self.state_requested < self.silence_at {
                self.poll_at = at;
            }
            self.silence_at = Duration::MAX;
        }
        if self.decide_again_at <= at {
            self.decide(now);
        }
        if self.batch_at <= at || !self.has_written {
            // Read later, they would be in the state only an interval later, and nodes that write alone would take a
            // node that was stopped for a few seconds for dead.
            if self.has_written && self.heartbeats_requested < self.batch_at {
                return self.read_heartbeats(at);
            }
            self.touch(now);
        }
        let is_urgent = self
            .answers
            .iter()
            .any(|(_, answer)| matches!(answer.kind, AnswerKind::Joined(_) | AnswerKind::Done));
        if self.is_dirty && (is_urgent || self.write_after <= at) {
            self.write_requested = at;
            return Task::WriteState;
        }
        // A closed rendezvous stays closed, whatever an earlier holder writes.
        self.has_written |= self.state.closed;
        if !self.is_dirty && self.has_written && !self.answers.is_empty() {
            self.send_answers();
            return self.task(now);
        }
        if self.read_heartbeats_at <= at {
            return self.read_heartbeats(at);
        }
        if self.poll_at <= at {
            self.poll_at = at.saturating_add(POLL_INTERVAL);
            self.state_requested = at;
            return Task::CheckState;
        }
        let mut until = self
            .batch_at
            .min(self.read_heartbeats_at)
            .min(self.poll_at)
            .min(self.silence_at)
            .min(self.decide_again_at);
        if self.is_dirty {
            until = until.min(self.write_after);
        }
        Task::Wait(until)
    }

    fn read_heartbeats(&mut self, at: Duration) -> Task {
        self.read_heartbeats_at =
            at.saturating_add(self.settings.keep_alive_interval / READS_PER_INTERVAL);
        self.heartbeats_requested = at;
        let known = self
            .clients
            .iter()
            .filter(|(_, client)| !client.has_no_heartbeat && self.is_listed(&client.request.node));
        Task::ReadHeartbeats(known.map(|(index, _)| *index).collect())
    }

    /// Notifies all nodes of the new holder, after [`Task::CountNodes`].
    pub(super) fn on_count(&mut self, count: u32) {
        let kind = AnswerKind::NewHolder { epoch: self.epoch };
        let notice = Answer { number: 0, kind }.to_text();
        let indices = 1..=count.min(NODES_MAX);
        self.to_send
            .extend(indices.map(|index| (index, notice.clone())));
    }

    /// Adopts requests, its own included. Nothing is decided before they all are known.
    pub(super) fn on_requests(&mut self, requests: impl IntoIterator<Item = Request>, now: Now) {
        let mut is_any = false;
        for request in requests {
            is_any |= self.accept(request);
        }
        if is_any {
            self.decide_again_at = now.monotonic;
        }
    }

    fn accept(&mut self, request: Request) -> bool {
        if request.epoch != self.epoch {
            return false;
        }
        let index = request.index;
        let arrival = self.arrivals + 1;
        if let Some(client) = self.clients.get_mut(&index) {
            if client.request.node != request.node || request.number < client.request.number {
                return false;
            }
            let is_known = match client.status {
                Status::Pending { .. } | Status::Decided => true,
                Status::Member { .. } => matches!(request.kind, RequestKind::Stay { .. }),
                Status::Evicted | Status::Over => false,
            };
            if request == client.request && is_known {
                return false;
            }
            if client.status == Status::Decided {
                self.answers.retain(|(other, _)| *other != index);
            }
            let is_spare = matches!(client.status, Status::Pending { is_spare: true });
            client.status = match request.kind {
                RequestKind::Stay { round } => Status::Member { round },
                _ => Status::Pending { is_spare },
            };
            client.request = request;
            client.has_no_heartbeat = false;
            self.order.remove(&client.arrival);
            client.arrival = arrival;
        } else if self.clients.len() >= NODES_MAX as usize {
            return false;
        } else {
            let status = match request.kind {
                RequestKind::Stay { round } => Status::Member { round },
                _ => Status::Pending { is_spare: false },
            };
            let heartbeat = Vec::new();
            let client = Client {
                request,
                arrival,
                status,
                heartbeat,
                has_no_heartbeat: false,
                is_fresh: false,
                was_listed: false,
            };
            self.clients.insert(index, client);
        }
        self.arrivals = arrival;
        self.order.insert(arrival, index);
        match self.clients.get(&index).map(|client| &client.request) {
            Some(request) if request.kind == RequestKind::Leave => {
                self.gone.insert(request.node.clone())
            }
            Some(request) => self.gone.remove(&request.node),
            None => false,
        };
        true
    }

    pub(super) fn on_state(&mut self, stored: Option<(RendezvousState, Token)>, now: Now) {
        // What was decided for another state is decided anew.
        self.answers.clear();
        for client in self.clients.values_mut() {
            if client.status == Status::Decided {
                client.status = Status::Pending { is_spare: false };
            }
        }
        let (state, token) = match stored {
            Some((state, token)) => (state, Some(token)),
            None => (RendezvousState::default(), None),
        };
        self.state = state;
        self.token = token;
        self.is_known = true;
        // Another node has dropped it.
        let listed: BTreeSet<NodeId> = self.state.last_heartbeats.keys().cloned().collect();
        self.forget(|client| {
            let is_pending = matches!(client.status, Status::Pending { .. });
            is_pending && client.was_listed && !listed.contains(&client.request.node)
        });
        self.note_listed();
        self.is_dirty = false;
        // A conflict must not cost anybody a heartbeat.
        if std::mem::take(&mut self.has_batch) {
            self.batch_at = self.heartbeats_requested;
        }
        let time = self.observations.time_to_write(now);
        for client in self.clients.values().filter(|client| client.is_fresh) {
            if let Some(heartbeat) = self.state.last_heartbeats.get_mut(&client.request.node) {
                *heartbeat = time;
            }
        }
        self.observations.observe(&self.state, &self.settings, now);
        self.note_world(now);
        self.decide_again_at = now.monotonic;
        if self.has_written {
            self.summarize();
        }
    }

    /// The state has changed, or not.
    pub(super) fn on_checked(&mut self, is_same: bool, now: Now) {
        self.is_known &= is_same;
        self.decide_again_at = now.monotonic;
    }

    pub(super) fn on_written(&mut self, written: Written, now: Now) {
        // The reply shows the state as of the write.
        self.state_requested = self.write_requested;
        if !matches!(written, Written::Ours(_)) {
            self.steps.push((self.me.clone(), Step::IsStale));
        }
        match written {
            Written::Ours(token) => {
                self.note_synced();
                self.token = Some(token);
                self.is_dirty = false;
                self.has_written = true;
                self.has_batch = false;
                self.note_listed();
                for client in self.clients.values_mut() {
                    client.is_fresh = false;
                }
                let listed = u32::try_from(self.state.last_heartbeats.len()).unwrap_or(u32::MAX);
                let pause = PAUSE_PER_NODE.saturating_mul(listed);
                self.write_after = now.monotonic.saturating_add(pause);
                self.poll_at = now.monotonic.saturating_add(POLL_INTERVAL);
                self.observations.observe(&self.state, &self.settings, now);
                self.note_world(now);
                self.send_answers();
                self.summarize();
            }
            Written::Theirs(state, token) => self.on_state(Some((*state, token)), now),
            Written::Nothing => self.on_state(None, now),
        }
    }

    /// Adopts the values of the heartbeats that [`Task::ReadHeartbeats`] asked for.
    pub(super) fn on_heartbeats(&mut self, indices: &[u32], values: &[Vec<u8>], now: Now) {
        let time = self.observations.time_to_write(now);
        let overdue = time.before(self.settings.keep_alive_interval * 2);
        let mut has_changed = false;
        for (index, value) in indices.iter().zip(values) {
            let Some(client) = self.clients.get_mut(index) else {
                continue;
            };
            client.has_no_heartbeat = value.is_empty();
            if client.has_no_heartbeat || client.heartbeat == *value {
                continue;
            }
            client.heartbeat.clone_from(value);
            client.is_fresh = true;
            if let Some(heartbeat) = self.state.last_heartbeats.get_mut(&client.request.node) {
                if *heartbeat < overdue {
                    // Nodes that write alone may take it for dead before the next heartbeats are written.
                    self.batch_at = self.heartbeats_requested;
                }
                *heartbeat = time;
                has_changed = true;
            }
        }
        if has_changed {
            self.observations.observe_draft(&self.state, now);
        }
        self.decide_again_at = now.monotonic;
    }

    /// Writes a heartbeat of its own, so that the state changes.
    fn touch(&mut self, now: Now) {
        self.batch_at = now
            .monotonic
            .saturating_add(self.settings.keep_alive_interval);
        let time = self.observations.time_to_write(now);
        if let Some(heartbeat) = self.state.last_heartbeats.get_mut(&self.me) {
            // Two holders may have the same time.
            let later = time.after(Duration::from_micros(self.epoch % 1000));
            *heartbeat = if *heartbeat == later {
                later.after(Duration::from_micros(1000))
            } else {
                later
            };
            self.is_dirty = true;
            self.has_batch = true;
            self.observations.observe_draft(&self.state, now);
        }
    }

    /// Records that the state is written, without the nodes that it no longer lists.
    fn note_synced(&mut self) {
        let lost = self.newly_lost.iter().map(|lost| &lost.node);
        let dead: Vec<NodeId> = lost.filter(|node| !self.is_listed(node)).cloned().collect();
        if !dead.is_empty() {
            self.steps.push((self.me.clone(), Step::RemovedDead(dead)));
        }
        self.steps.push((self.me.clone(), Step::Synced));
    }

    /// Notes who is listed in the stored state, and warns of those that no longer are.
    fn note_listed(&mut self) {
        for lost in std::mem::take(&mut self.newly_lost) {
            if !self.is_listed(&lost.node) {
                log::warn!(
                    "lost node {}: no heartbeat for {} s",
                    lost.node.named(),
                    lost.silence.as_secs()
                );
            }
        }
        for client in self.clients.values_mut() {
            client.was_listed = self
                .state
                .last_heartbeats
                .contains_key(&client.request.node);
        }
    }

    /// Forgets the requests of dropped nodes: one that lives repeats its request.
    fn forget(&mut self, is_gone: impl Fn(&Client) -> bool) {
        let gone = self.clients.iter().filter(|(_, client)| is_gone(client));
        let gone: Vec<u32> = gone.map(|(index, _)| *index).collect();
        for index in gone {
            let Some(client) = self.clients.remove(&index) else {
                continue;
            };
            self.order.remove(&client.arrival);
            let number = client.request.number;
            self.answers.retain(|(other, _)| *other != index);
            let round = self.state.round;
            let kind = AnswerKind::Evicted { round };
            self.to_send
                .push((index, Answer { number, kind }.to_text()));
        }
    }

    /// Whether the state is known and does not list the node.
    pub(super) fn has_lost(&self, node: &NodeId) -> bool {
        self.is_known && !self.is_listed(node)
    }

    fn is_listed(&self, node: &NodeId) -> bool {
        self.state.last_heartbeats.contains_key(node)
    }

    fn send_answers(&mut self) {
        if !self.has_written {
            return;
        }
        for (index, answer) in self.answers.drain(..) {
            let Some(client) = self.clients.get_mut(&index) else {
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

    /// Applies the requests in order, until nothing changes any more.
    fn decide(&mut self, now: Now) {
        self.drop_silent(now);
        for _ in 0..PASSES_MAX {
            // With thousands of nodes, what is the same for all of them is looked up once.
            let mut pass = Pass::new(self, now);
            let order: Vec<u32> = self.order.values().copied().collect();
            let mut has_changed = false;
            for index in order {
                has_changed |= self.decide_one(index, &mut pass);
            }
            if !has_changed {
                break;
            }
            self.observations.observe_draft(&self.state, now);
        }
        self.evict();
        let ends_at = self.observations.last_call_ends_at(&self.settings);
        let had_time = self.observations.last_call_begun_at();
        let precedence = self
            .last_round
            .precedence_until(&self.state, &self.settings);
        let last_call = [
            ends_at,
            precedence,
            had_time.map(|at| at.saturating_add(REJOIN_GRACE)),
        ];
        let margin = Duration::from_millis(1);
        let silence_as_of = self.heartbeats_requested.min(self.state_requested);
        let silence = self
            .observations
            .next_silence_at(&self.me, &self.settings, silence_as_of);
        let later = last_call.into_iter().flatten();
        let next = later
            .map(|at| at.saturating_add(margin))
            .filter(|at| *at > now.monotonic)
            .min();
        self.decide_again_at = next.unwrap_or(Duration::MAX);
        self.silence_at = silence.map_or(Duration::MAX, |at| at.saturating_add(margin));
    }

    fn drop_silent(&mut self, now: Now) {
        // A process that was stopped has not read what others wrote meanwhile.
        let as_of = self.heartbeats_requested.min(self.state_requested);
        let mut silent = self.observations.silent(&self.me, &self.settings, as_of);
        silent.retain(|silent| self.is_listed(&silent.node));
        if silent.is_empty() {
            return;
        }
        let dead: BTreeSet<&NodeId> = silent.iter().map(|silent| &silent.node).collect();
        self.forget(|client| dead.contains(&client.request.node));
        for dead in &silent {
            self.dropped.insert(dead.node.clone(), dead.silence);
        }
        let dead = silent.iter().map(|silent| &silent.node);
        remove_dead(&mut self.state, dead, &self.settings);
        self.newly_lost.append(&mut silent);
        self.is_dirty = true;
        self.observations.observe_draft(&self.state, now);
    }

    /// Decides about one request; returns whether the state has changed.
    fn decide_one(&mut self, index: u32, pass: &mut Pass) -> bool {
        let Some(client) = self.clients.get(&index) else {
            return false;
        };
        let Status::Pending { is_spare } = client.status else {
            return false;
        };
        let request = client.request.clone();
        let mut has_changed = false;
        let mut is_spare_now = is_spare;
        let mut is_late = matches!(request.kind, RequestKind::JoinLate { .. });
        // Leaving a round, a place in the next one, and its end: no row leads back.
        for _ in 0..PASSES_MAX {
            let decision = self.decision(&request, is_late, pass);
            let kind = match decision.action {
                Action::Sync | Action::KeepAlive => {
                    if is_spare_now == is_spare {
                        return has_changed;
                    }
                    if is_spare_now {
                        AnswerKind::Spare
                    } else {
                        AnswerKind::NoLongerSpare
                    }
                }
                Action::Finish => match request.kind {
                    RequestKind::Join { .. } | RequestKind::JoinLate { .. } => {
                        match self.place(&request.node, pass) {
                            Some(place) => AnswerKind::Joined(place),
                            None => return has_changed,
                        }
                    }
                    _ => AnswerKind::Done,
                },
                Action::ErrorClosed => AnswerKind::Closed,
                Action::ErrorTimeout => AnswerKind::TimedOut,
                Action::GracefulExit => AnswerKind::NotNeeded,
                action => {
                    if action == Action::RemoveFromRedundancyList {
                        // Its time starts anew.
                        is_late = false;
                        is_spare_now = false;
                    }
                    is_spare_now |= action == Action::AddToRedundancyList;
                    self.apply(action, &request.node, pass);
                    has_changed = true;
                    continue;
                }
            };
            let number = request.number;
            self.answers.push((index, Answer { number, kind }));
            if let Some(client) = self.clients.get_mut(&index) {
                client.status = Status::Decided;
            }
            return has_changed;
        }
        has_changed
    }

    fn decision(&self, request: &Request, is_late: bool, pass: &mut Pass) -> Decision {
        let now = pass.now.monotonic;
        let mut ctx = Context {
            state: &self.state,
            me: &request.node,
            settings: &self.settings,
            now,
            deadline: if is_late {
                now.saturating_sub(Duration::from_millis(1))
            } else {
                Duration::MAX
            },
            // Heartbeats of these nodes are not in the state.
            heartbeat_due: false,
            last_call_over: pass.is_last_call_over && self.state.deadline.is_some(),
            has_every_rank: true,
            must_yield: self.must_yield(request, pass),
        };
        match request.kind {
            RequestKind::Join { after } | RequestKind::JoinLate { after } => {
                let leaves = self.state.round <= after;
                let exit = decide::exit(&ctx);
                if leaves && exit.action == Action::RemoveFromParticipants {
                    return exit;
                }
                let decision = decide::join(&ctx);
                if decision.action == Action::Finish {
                    ctx.has_every_rank = pass.complete(self).has_every_rank;
                }
                decide::amend(decision, &ctx, pass.has_suspects)
            }
            // Whichever list it is on.
            RequestKind::Exit | RequestKind::Leave => decide::leave(&ctx),
            RequestKind::Close => decide::close(&ctx),
            RequestKind::Stay { .. } => decide::keep_alive(&ctx),
        }
    }

    fn apply(&mut self, action: Action, node: &NodeId, pass: &mut Pass) {
        let was_complete = self.state.complete;
        let round = self.state.round;
        let before = self.last_round.ranks_for(&self.state);
        apply(
            &mut self.state,
            action,
            node,
            &self.settings,
            pass.time,
            before,
        );
        let steps = steps_of_action(action, round, !was_complete && self.state.complete);
        self.steps
            .extend(steps.into_iter().map(|step| (node.clone(), step)));
        if self.last_round.has(node) {
            pass.claims = None;
        }
        if was_complete != self.state.complete {
            self.note_last_round(pass.now);
            pass.claims = None;
        }
        if !was_complete {
            make_spares(&mut self.state, &self.settings);
        }
        self.is_dirty = true;
        pass.complete = None;
    }

    /// Whether the node leaves the free places of an open round to members of the last one.
    fn must_yield(&self, request: &Request, pass: &mut Pass) -> bool {
        if !matches!(
            request.kind,
            RequestKind::Join { .. } | RequestKind::JoinLate { .. }
        ) {
            return false;
        }
        let now = pass.now.monotonic;
        let (last, state, settings) = (&self.last_round, &self.state, &self.settings);
        last.must_yield(&request.node, state, settings, now, || {
            // Counting them for each of thousands of nodes would take seconds.
            *pass
                .claims
                .get_or_insert_with(|| last.claimants(state, &self.gone).count())
        })
    }

    fn note_last_round(&mut self, now: Now) {
        let dropped = &self.dropped;
        self.last_round.observe(&self.state, now.monotonic, |node| {
            dropped.contains_key(node)
        });
    }

    /// Whether all nodes that left the last round to rejoin are back (*CLOCK 5*).
    fn all_are_back(&self, now: Now) -> bool {
        let (Some(world), Some(begun_at)) = (&self.world, self.observations.last_call_begun_at())
        else {
            return false;
        };
        if world.round >= self.state.round {
            return false;
        }
        let state = &self.state;
        let all_had_time = begun_at.saturating_add(REJOIN_GRACE) < now.monotonic;
        let is_back = |node: &NodeId| {
            let is_elsewhere =
                state.wait_list.contains(node) || state.redundancy_list.contains(node);
            state.participants.contains_key(node)
                || self.dropped.contains_key(node)
                || ((all_had_time || self.gone.contains(node)) && !is_elsewhere)
        };
        world.nodes.iter().all(is_back) && state.wait_list.is_empty()
    }

    fn place(&self, node: &NodeId, pass: &mut Pass) -> Option<Place> {
        let rank = *self.state.participants.get(node)?;
        let complete = pass.complete(self);
        Some(Place {
            round: self.state.round,
            rank: usize::try_from(rank).ok()?,
            size: self.state.participants.len(),
            same_as: complete.same_as,
            first: complete.first.clone()?,
        })
    }

    /// Notifies members that the others have dropped.
    fn evict(&mut self) {
        let state = &self.state;
        for (index, client) in &mut self.clients {
            let Status::Member { round } = client.status else {
                continue;
            };
            let is_gone = state.complete
                && state.round == round
                && !state.participants.contains_key(&client.request.node);
            if is_gone {
                let number = client.request.number;
                let kind = AnswerKind::Evicted { round };
                self.answers.push((*index, Answer { number, kind }));
                client.status = Status::Decided;
            }
        }
    }

    /// Notes the members of a complete round, and which have departed since.
    fn note_world(&mut self, now: Now) {
        self.note_last_round(now);
        let state = &self.state;
        let is_new = state.complete && self.world.as_ref().is_none_or(|it| it.round != state.round);
        if is_new {
            let world = World {
                round: state.round,
                nodes: state.participants.keys().cloned().collect(),
            };
            self.world_before = self.world.replace(world);
            self.departures.clear();
            self.inherit_departures();
        }
        let state = &self.state;
        self.dropped
            .retain(|node, _| !state.last_heartbeats.contains_key(node));
        let Some(world) = &self.world else { return };
        let is_same_round = state.complete && state.round == world.round;
        let gone = world.nodes.iter().filter(|node| {
            let is_here = is_same_round && state.participants.contains_key(*node);
            !is_here && !self.departures.contains_key(*node)
        });
        let overdue = self.settings.dead_after() / 2;
        let departures: Vec<(NodeId, Departure)> = gone
            .map(|node| {
                let silence = self.dropped.get(node).copied().or_else(|| {
                    let silence = self.observations.silence_of(node, now.monotonic)?;
                    (silence > overdue).then_some(silence)
                });
                (
                    node.clone(),
                    silence.map_or(Departure::Left, Departure::Lost),
                )
            })
            .collect();
        self.departures.extend(departures);
    }

    /// Adopts the departures from the round that the holder before has named.
    fn inherit_departures(&mut self) {
        let Some(summary) = self.inherited.take() else {
            return;
        };
        let state = &self.state;
        if !summary.is_complete || summary.round != state.round {
            return;
        }
        let lost = summary.lost.named.into_iter();
        let lost = lost.map(|(node, silence)| (node, Departure::Lost(silence)));
        let left = summary.left.named.into_iter();
        let left = left.map(|(node, _)| (node, Departure::Left));
        let is_gone = |(node, _): &(NodeId, _)| !state.participants.contains_key(node);
        self.departures.extend(lost.chain(left).filter(is_gone));
    }

    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let clients = self.clients.iter();
        let clients: Vec<String> = clients
            .map(|(index, client)| {
                format!("{index}: {:?} {:?}", client.request.kind, client.status)
            })
            .collect();
        format!(
            "epoch {} dirty {} known {} again at {:?}: {}",
            self.epoch,
            self.is_dirty,
            self.is_known,
            self.decide_again_at,
            clients.join(", ")
        )
    }

    fn summarize(&mut self) {
        let state = &self.state;
        let departed = self.departures.iter();
        let lost = departed
            .clone()
            .filter_map(|(node, departure)| match departure {
                Departure::Lost(silence) => Some((node.clone(), *silence)),
                Departure::Left => None,
            });
        let left = departed.filter_map(|(node, departure)| match departure {
            Departure::Left => Some((node.clone(), state.last_heartbeats.contains_key(node))),
            Departure::Lost(_) => None,
        });
        let is_full = state.complete && state.participants.len() >= self.settings.max_nodes;
        let waiting = state.wait_list.iter().filter(|_| !is_full);
        let summary = Summary {
            epoch: self.epoch,
            round: state.round,
            is_complete: state.complete,
            is_closed: state.closed,
            joined: state.participants.len(),
            waiting: waiting.cloned().collect(),
            lost: lost.collect(),
            left: left.collect(),
        };
        self.summary = summary.to_text();
    }
}

/// Facts that are the same for all requests of a pass.
struct Pass {
    now: Now,
    time: Timestamp,
    is_last_call_over: bool,
    has_suspects: bool,
    complete: Option<Complete>,
    /// How many members of the last round may claim a place in the open one.
    claims: Option<usize>,
}

/// The facts of a complete round.
struct Complete {
    has_every_rank: bool,
    same_as: i64,
    first: Option<NodeId>,
}

impl Pass {
    fn new(holder: &Holder, now: Now) -> Self {
        let observations = &holder.observations;
        let ends_at = observations.last_call_ends_at(&holder.settings);
        let is_over = ends_at.is_some_and(|at| at < now.monotonic) || holder.all_are_back(now);
        let mut suspects = observations.suspects(&holder.state, &holder.me);
        Self {
            now,
            time: observations.time_to_write(now),
            is_last_call_over: is_over,
            has_suspects: suspects.next().is_some(),
            complete: None,
            claims: None,
        }
    }

    fn complete(&mut self, holder: &Holder) -> &Complete {
        self.complete.get_or_insert_with(|| {
            let state = &holder.state;
            let first = state.participants.iter().find(|(_, rank)| **rank == 0);
            let before = holder
                .world
                .as_ref()
                .filter(|world| world.round != state.round);
            let before = before.or(holder.world_before.as_ref());
            let is_same = |world: &&World| {
                world.nodes.len() == state.participants.len()
                    && world
                        .nodes
                        .iter()
                        .all(|node| state.participants.contains_key(node))
            };
            Complete {
                has_every_rank: decide::has_every_rank(state),
                same_as: before.filter(is_same).map_or(-1, |world| world.round),
                first: first.map(|(node, _)| node.clone()),
            }
        })
    }
}
