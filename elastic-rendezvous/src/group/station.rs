//! One node of a group: what it asks the store next. Pure.
//!
//! It makes one request at a time, so that it needs one connection.

use std::time::Duration;

use super::holder::{Holder, Task};
use super::message::{Answer, AnswerKind, Lease, Place, Request, RequestKind, Summary};
use crate::backend::Token;
use crate::clock::Now;
use crate::executor::Written;
use crate::node::NodeId;
use crate::recorded_event::Step;
use crate::settings::{ROLLBACK_WINDOW, RendezvousSettings};
use crate::state::RendezvousState;

/// How often the holder shows that it lives.
const RENEWAL: Duration = Duration::from_millis(500);

/// A lease that is not renewed for this time, as a node has seen it, is free.
const LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A request is posted again after 2 intervals of heartbeats, and then each time after twice as long, up to 2 intervals
/// times two to the power of this.
const DOUBLINGS_MAX: u32 = 8;

/// For each node that may take part, the interval of those that wait for an answer is longer by this: whatever their
/// number, one of them polls each millisecond.
const LEASE_POLL_INTERVAL_PER_NODE: Duration = Duration::from_millis(1);

/// The longest interval of nodes that wait for an answer, as fewer than may take part can be there.
const LEASE_POLL_INTERVAL_MAX: Duration = Duration::from_secs(11);

/// How often the members with the lowest ranks poll the lease, at least.
const LEASE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How many members poll the lease that often.
const DEPUTIES: usize = 4;

/// How often the other members poll it, in intervals of heartbeats: in case the deputies die with the holder.
const HEARTBEATS_PER_LEASE_POLL: u32 = 12;

/// After this time a node polls a second time: only a lease that has not changed meanwhile is free.
const SECOND_POLL: Duration = Duration::from_millis(2100);

/// One request to the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    /// Writes the node's own heartbeat.
    WriteHeartbeat(u64),
    /// The lease, if there is one.
    ReadLease,
    /// Replaces the lease if it is the expected one; empty for none.
    Claim {
        expected: Vec<u8>,
        lease: Vec<u8>,
    },
    /// Puts a request into the queue.
    Push(Vec<u8>),
    /// The summary, if there is one.
    ReadSummary,
    /// The node's own answer, if there is one.
    ReadAnswer,
    /// Waits for an own answer other than this one.
    AwaitAnswer {
        known: Vec<u8>,
        until: Duration,
    },
    /// Waits for another summary than this one.
    AwaitSummary {
        known: Vec<u8>,
        until: Duration,
    },
    /// As holder: how many handlers there were, which have the numbers up to this one.
    CountNodes,
    /// As holder: the state.
    ReadState,
    /// Whether the state differs from the known one, apart from heartbeats.
    CheckState,
    /// Writes [`Station::to_write`].
    WriteState,
    /// Writes answers by the index of the node.
    Answer(Vec<(u32, Vec<u8>)>),
    WriteSummary(Vec<u8>),
    /// The heartbeats of these nodes; empty for one that has written none.
    ReadHeartbeats(Vec<u32>),
    /// Takes all requests from the queue, or waits for one.
    TakeRequests {
        until: Duration,
    },
    /// Nothing until a new goal.
    Idle,
    /// The goal is over.
    Done(Result<Option<Place>, Ending>),
}

/// The result of a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, and moved only to its station"
)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// The value, or the value that is there after a compare-and-set.
    Value(Option<Vec<u8>>),
    State(Option<(RendezvousState, Token)>),
    Written(Written),
    IsSame(bool),
    Heartbeats(Vec<Vec<u8>>),
    Requests(Vec<Vec<u8>>),
    Count(u32),
    /// A wait is over without a result.
    Nothing,
}

/// Why a goal was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    NotNeeded,
    TimedOut,
    /// Nobody holds the lease, and this node must not, as it is on no list.
    NoHolder,
}

#[derive(Debug)]
struct Goal {
    request: Request,
    /// The number of its first request: an answer to any of them is one to the goal.
    since: u32,
    /// The epoch of the holder to which it was posted.
    posted: Option<u64>,
    /// When to post it again: a holder that dies takes with it what it took from the queue.
    repeat_at: Duration,
    doublings: u32,
    deadline: Duration,
    is_spare: bool,
}

impl Goal {
    const fn new(request: Request, deadline: Duration) -> Self {
        Self {
            since: request.number,
            request,
            posted: None,
            repeat_at: Duration::MAX,
            doublings: 0,
            deadline,
            is_spare: false,
        }
    }

    /// The text to push for the holder of this epoch.
    /// What to push for the holder of this epoch.
    fn post(&mut self, epoch: Option<u64>, at: Duration, settings: &RendezvousSettings) -> Vec<u8> {
        let is_again = self.posted == epoch;
        self.doublings = if is_again {
            (self.doublings + 1).min(DOUBLINGS_MAX)
        } else {
            0
        };
        let pause = settings
            .keep_alive_interval
            .saturating_mul(2 << self.doublings);
        self.repeat_at = at.saturating_add(pause);
        self.posted = epoch;
        self.request.epoch = epoch.unwrap_or_default();
        self.request.to_text()
    }
}

#[derive(Debug)]
pub(crate) struct Station {
    me: NodeId,
    index: u32,
    settings: RendezvousSettings,
    number: u32,
    goal: Option<Goal>,
    outcome: Option<Result<Option<Place>, Ending>>,
    /// The round of which the node is a member.
    round: Option<i64>,
    rank: usize,
    /// The number of nodes of this round.
    size: usize,
    is_evicted: bool,
    heartbeat: u64,
    heartbeat_at: Duration,
    lease: Vec<u8>,
    is_lease_known: bool,
    /// When this lease was seen first.
    lease_since: Duration,
    /// When the node polled the lease last.
    lease_polled: Duration,
    poll_lease_at: Duration,
    /// Whether the last poll was the first of two.
    confirms_lease: bool,
    holder: Option<Holder>,
    /// The request in progress.
    asked: Ask,
    renewals: u64,
    renew_at: Duration,
    answer: Vec<u8>,
    summary_text: Vec<u8>,
    summary: Summary,
    reads_answer: bool,
    /// Requests for a later holder that this node took while it believed to be the holder.
    to_return: Vec<Vec<u8>>,
    checks_summary: bool,
    is_releasing: bool,
}

impl Station {
    /// `index` differs from that of all other handlers in this store.
    pub(crate) fn new(me: NodeId, index: u32, settings: RendezvousSettings, now: Now) -> Self {
        Self {
            me,
            index,
            settings,
            number: 0,
            goal: None,
            outcome: None,
            round: None,
            rank: 0,
            size: 0,
            is_evicted: false,
            heartbeat: 0,
            heartbeat_at: now.monotonic,
            lease: Vec::new(),
            is_lease_known: false,
            lease_since: now.monotonic,
            lease_polled: now.monotonic,
            poll_lease_at: now.monotonic,
            confirms_lease: false,
            holder: None,
            asked: Ask::Idle,
            renewals: 0,
            renew_at: now.monotonic,
            answer: Vec::new(),
            summary_text: Vec::new(),
            summary: Summary::default(),
            reads_answer: false,
            to_return: Vec::new(),
            checks_summary: false,
            is_releasing: false,
        }
    }

    pub(crate) const fn me(&self) -> &NodeId {
        &self.me
    }

    pub(crate) const fn settings(&self) -> &RendezvousSettings {
        &self.settings
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    pub(crate) const fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(crate) const fn is_evicted(&self) -> bool {
        self.is_evicted
    }

    pub(crate) const fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The state to be written and the token it is based on, after [`Ask::WriteState`].
    pub(crate) fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        self.holder.as_ref().map(Holder::to_write)
    }

    /// Takes what this node, as the holder, has changed for whom since the last call, and the results of its writes.
    pub(crate) fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        self.holder
            .as_mut()
            .map_or_else(Vec::new, Holder::take_steps)
    }

    /// Begins to join a round after `after`, for at most until `deadline`.
    pub(crate) fn join(&mut self, after: i64, deadline: Duration, now: Now) {
        self.round = None;
        self.is_evicted = false;
        self.begin(RequestKind::Join { after }, deadline, now);
    }

    /// Begins to leave the current round, to join another one later.
    pub(crate) fn exit(&mut self, deadline: Duration, now: Now) {
        self.begin(RequestKind::Exit, deadline, now);
    }

    pub(crate) fn leave(&mut self, deadline: Duration, now: Now) {
        self.begin(RequestKind::Leave, deadline, now);
    }

    pub(crate) fn close(&mut self, deadline: Duration, now: Now) {
        self.begin(RequestKind::Close, deadline, now);
    }

    fn begin(&mut self, kind: RequestKind, deadline: Duration, now: Now) {
        self.number += 1;
        self.outcome = None;
        self.poll_lease_at = self.poll_lease_at.min(now.monotonic);
        self.confirms_lease = true;
        self.goal = Some(Goal::new(self.request(kind), deadline));
    }

    fn request(&self, kind: RequestKind) -> Request {
        Request {
            index: self.index,
            number: self.number,
            epoch: 0,
            node: self.me.clone(),
            kind,
        }
    }

    /// Gives the lease back before the node ends; `None` if it does not hold it.
    pub(crate) fn release(&mut self) -> Option<Ask> {
        let holder = self.holder.take()?;
        let lease = Lease {
            epoch: holder.epoch(),
            index: self.index,
            heartbeat: None,
        };
        Some(Ask::Claim {
            expected: self.lease.clone(),
            lease: lease.to_text(),
        })
    }

    /// A request has failed: whatever this node held or posted may be lost.
    pub(crate) fn on_failure(&mut self, now: Now) {
        self.holder = None;
        self.is_lease_known = false;
        self.heartbeat_at = now.monotonic;
        self.poll_lease_at = now.monotonic;
        if let Some(goal) = &mut self.goal {
            goal.posted = None;
        }
    }

    /// The next request. Its result goes to [`on_reply`](Self::on_reply).
    pub(crate) fn step(&mut self, now: Now) -> Ask {
        let ask = self.next(now);
        self.asked = ask.clone();
        ask
    }

    fn next(&mut self, now: Now) -> Ask {
        let at = now.monotonic;
        if self.is_releasing {
            // The next holder learns from it that this node has left. One that the others have dropped says nothing:
            // there may be a next holder already.
            let stays = |goal: &Goal| matches!(goal.request.kind, RequestKind::Stay { .. });
            if !self.goal.as_ref().is_some_and(stays)
                && let Some(text) = self.holder.as_mut().and_then(Holder::take_unsent_summary)
            {
                self.adopt_summary(text.clone());
                return Ask::WriteSummary(text);
            }
            self.is_releasing = false;
            if let Some(ask) = self.release() {
                self.is_lease_known = false;
                return ask;
            }
        }
        if let (Some(request), None) = (self.to_return.last(), &self.holder) {
            return Ask::Push(request.clone());
        }
        if let Some(outcome) = self.outcome.take() {
            return Ask::Done(outcome);
        }
        if self.goal.is_none() && self.round.is_none() && self.holder.is_none() {
            return Ask::Idle;
        }
        if let Some(ended) = self.check_deadline(at) {
            self.goal = None;
            self.is_releasing = true;
            return Ask::Done(Err(ended));
        }
        if self.holder.is_some() {
            return self.next_as_holder(now);
        }
        if self.heartbeat_at <= at {
            let interval = self.settings.keep_alive_interval;
            // From then on not all at the same time.
            let to_next = if self.heartbeat == 0 {
                self.staggered(interval / 2, interval)
            } else {
                interval
            };
            self.heartbeat += 1;
            self.heartbeat_at = at.saturating_add(to_next);
            return Ask::WriteHeartbeat(self.heartbeat);
        }
        if self.is_lease_free() {
            if self.may_hold() {
                return self.claim();
            }
            if self.is_asking() {
                self.goal = None;
                return Ask::Done(Err(Ending::NoHolder));
            }
        }
        if !self.is_lease_known || self.poll_lease_at <= at {
            self.poll_lease_at = at.saturating_add(self.lease_poll_interval());
            return Ask::ReadLease;
        }
        if self.reads_answer {
            self.reads_answer = false;
            return Ask::ReadAnswer;
        }
        let epoch = Lease::from_text(&self.lease).map(|lease| lease.epoch);
        if let Some(goal) = &mut self.goal
            && (goal.posted != epoch || goal.repeat_at <= at)
        {
            return Ask::Push(goal.post(epoch, at, &self.settings));
        }
        let repeat_at = self
            .goal
            .as_ref()
            .map_or(Duration::MAX, |goal| goal.repeat_at);
        let until = self.heartbeat_at.min(self.poll_lease_at).min(repeat_at);
        match &self.goal {
            Some(goal) if !matches!(goal.request.kind, RequestKind::Stay { .. }) => {
                let deadline = goal.deadline.saturating_add(Duration::from_millis(1));
                let until = if deadline > at {
                    until.min(deadline)
                } else {
                    until
                };
                let known = self.answer.clone();
                Ask::AwaitAnswer { known, until }
            }
            _ => {
                let known = self.summary_text.clone();
                Ask::AwaitSummary { known, until }
            }
        }
    }

    fn next_as_holder(&mut self, now: Now) -> Ask {
        let at = now.monotonic;
        if self.renew_at <= at {
            return self.renew(at);
        }
        let Some(holder) = &mut self.holder else {
            return Ask::Idle;
        };
        if let Some(goal) = &mut self.goal
            && goal.posted != Some(holder.epoch())
        {
            goal.posted = Some(holder.epoch());
            goal.request.epoch = holder.epoch();
            holder.on_requests([goal.request.clone()], now);
        }
        if std::mem::take(&mut self.checks_summary) {
            return Ask::ReadSummary;
        }
        match holder.task(now) {
            Task::CountNodes => Ask::CountNodes,
            Task::ReadState => Ask::ReadState,
            Task::CheckState => {
                self.checks_summary = true;
                Ask::CheckState
            }
            Task::WriteState => Ask::WriteState,
            Task::Answer(mut answers) => {
                let own = answers.iter().position(|(index, _)| *index == self.index);
                if let Some(own) = own {
                    let (_, text) = answers.swap_remove(own);
                    self.on_answer(text, now);
                }
                if answers.is_empty() {
                    return self.next(now);
                }
                Ask::Answer(answers)
            }
            Task::WriteSummary(text) => {
                self.adopt_summary(text.clone());
                Ask::WriteSummary(text)
            }
            Task::ReadHeartbeats(indices) => {
                let others: Vec<u32> = indices.into_iter().filter(|it| *it != self.index).collect();
                Ask::ReadHeartbeats(others)
            }
            Task::Wait(until) => Ask::TakeRequests {
                until: until.min(self.renew_at),
            },
        }
    }

    fn check_deadline(&mut self, at: Duration) -> Option<Ending> {
        let goal = self.goal.as_mut()?;
        if goal.deadline >= at {
            return None;
        }
        match goal.request.kind {
            RequestKind::Stay { .. } => None,
            _ if goal.is_spare => None,
            RequestKind::Join { after } => {
                self.number += 1;
                goal.request.number = self.number;
                goal.request.kind = RequestKind::JoinLate { after };
                goal.posted = None;
                None
            }
            RequestKind::JoinLate { .. } => {
                (goal.deadline.saturating_add(ROLLBACK_WINDOW) < at).then_some(Ending::TimedOut)
            }
            RequestKind::Exit | RequestKind::Leave | RequestKind::Close => Some(Ending::TimedOut),
        }
    }

    fn lease_poll_interval(&self) -> Duration {
        let least = LEASE_POLL_INTERVAL;
        if self.is_asking() {
            let nodes = u32::try_from(self.settings.max_nodes).unwrap_or(u32::MAX);
            let more = LEASE_POLL_INTERVAL_PER_NODE.saturating_mul(nodes);
            let most = least.saturating_add(more).min(LEASE_POLL_INTERVAL_MAX);
            return self.staggered(least, most);
        }
        if self.rank < DEPUTIES {
            return self.staggered(least, least.saturating_add(least / 4));
        }
        let interval = self.settings.keep_alive_interval;
        let most = interval.saturating_mul(HEARTBEATS_PER_LEASE_POLL);
        self.staggered(most / 2, most)
    }

    /// A time between these, such that not all nodes do the same at the same time.
    fn staggered(&self, least: Duration, most: Duration) -> Duration {
        const PHASES: u32 = 1 << 12;
        // The golden ratio: also few nodes, with successive numbers, are far apart.
        let phase = self.index.wrapping_mul(0x9E37_79B9) >> (u32::BITS - PHASES.trailing_zeros());
        let width = most.saturating_sub(least);
        least.saturating_add(width.saturating_mul(phase) / PHASES)
    }

    /// Whether the summary allows that the node was dropped from its round.
    fn may_be_evicted(&self) -> bool {
        let is_whole = self.summary.is_complete && self.summary.joined == self.size;
        self.round != Some(self.summary.round) || !is_whole
    }

    /// Whether it has a goal, and does not just stay.
    fn is_asking(&self) -> bool {
        let goal = self.goal.as_ref();
        goal.is_some_and(|goal| !matches!(goal.request.kind, RequestKind::Stay { .. }))
    }

    fn is_joining(&self) -> bool {
        self.goal.as_ref().is_some_and(|goal| {
            matches!(
                goal.request.kind,
                RequestKind::Join { .. } | RequestKind::JoinLate { .. }
            )
        })
    }

    /// Only a node that is listed, or will be by its own request, can write what stops an earlier holder.
    fn may_hold(&self) -> bool {
        self.is_joining() || (self.round.is_some() && !self.is_evicted)
    }

    fn is_lease_free(&self) -> bool {
        if !self.is_lease_known {
            return false;
        }
        match Lease::from_text(&self.lease) {
            Some(Lease {
                heartbeat: Some(_), ..
            }) => self.lease_polled.saturating_sub(self.lease_since) >= LEASE_TIMEOUT,
            _ => true,
        }
    }

    fn claim(&self) -> Ask {
        let epoch = Lease::from_text(&self.lease).map_or(0, |lease| lease.epoch);
        let lease = Lease {
            epoch: epoch.saturating_add(1),
            index: self.index,
            heartbeat: Some(0),
        };
        Ask::Claim {
            expected: self.lease.clone(),
            lease: lease.to_text(),
        }
    }

    fn renew(&mut self, at: Duration) -> Ask {
        self.renew_at = at.saturating_add(RENEWAL);
        self.renewals += 1;
        let epoch = self.holder.as_ref().map_or(0, Holder::epoch);
        let lease = Lease {
            epoch,
            index: self.index,
            heartbeat: Some(self.renewals),
        };
        Ask::Claim {
            expected: self.lease.clone(),
            lease: lease.to_text(),
        }
    }

    /// Takes the result of the last request.
    pub(crate) fn on_reply(&mut self, reply: Reply, now: Now) {
        let asked = std::mem::replace(&mut self.asked, Ask::Idle);
        match (asked, reply) {
            (Ask::ReadLease, Reply::Value(lease)) => self.on_lease(lease.unwrap_or_default(), now),
            (Ask::Claim { lease, .. }, Reply::Value(current)) => {
                self.on_claimed(&lease, current.unwrap_or_default(), now);
            }
            (Ask::AwaitAnswer { .. } | Ask::ReadAnswer, Reply::Value(Some(text))) => {
                self.on_answer(text, now);
            }
            (Ask::AwaitSummary { .. }, Reply::Value(Some(text))) => {
                self.adopt_summary(text);
                let epoch = Lease::from_text(&self.lease).map_or(0, |lease| lease.epoch);
                self.is_lease_known &= self.summary.epoch <= epoch;
                self.reads_answer = self.may_be_evicted();
                self.stay();
            }
            (Ask::ReadSummary, Reply::Value(text)) => {
                if let Some(holder) = &mut self.holder {
                    holder.on_summary(text.unwrap_or_default());
                } else if let Some(text) = text {
                    self.adopt_summary(text);
                }
            }
            (Ask::Push(request), Reply::Done) if self.to_return.last() == Some(&request) => {
                self.to_return.pop();
            }
            (Ask::TakeRequests { .. }, Reply::Requests(texts)) => self.on_requests(texts, now),
            (asked, reply) => {
                let Some(holder) = &mut self.holder else {
                    return;
                };
                match (asked, reply) {
                    (Ask::ReadState, Reply::State(stored)) => holder.on_state(stored, now),
                    (Ask::CheckState, Reply::IsSame(is_same)) => holder.on_checked(is_same, now),
                    (Ask::CountNodes, Reply::Count(count)) => holder.on_count(count),
                    (Ask::WriteState, Reply::Written(written)) => holder.on_written(written, now),
                    (Ask::ReadHeartbeats(indices), Reply::Heartbeats(values)) => {
                        holder.on_heartbeats(&indices, &values, now);
                    }
                    _ => {}
                }
                // A holder that is on no list cannot stop what an earlier one writes.
                let is_lost = holder.has_lost(&self.me);
                if is_lost && !self.is_joining() {
                    self.is_evicted = true;
                    self.is_releasing = true;
                }
            }
        }
    }

    fn on_requests(&mut self, texts: Vec<Vec<u8>>, now: Now) {
        let Some(holder) = &mut self.holder else {
            return;
        };
        let epoch = holder.epoch();
        let requests = texts.iter().filter_map(|text| Request::from_text(text));
        let (later, own): (Vec<_>, Vec<_>) = requests.partition(|request| request.epoch > epoch);
        holder.on_requests(own, now);
        if !later.is_empty() {
            self.to_return = later.iter().map(Request::to_text).collect();
            // It fails if there is a later holder.
            self.renew_at = now.monotonic;
        }
    }

    fn on_lease(&mut self, lease: Vec<u8>, now: Now) {
        if !self.is_lease_known || lease != self.lease {
            self.lease_since = now.monotonic;
            let second_poll = now.monotonic.saturating_add(SECOND_POLL);
            if !self.confirms_lease {
                self.poll_lease_at = self.poll_lease_at.min(second_poll);
            }
        } else {
            let free_at = self.lease_since.saturating_add(LEASE_TIMEOUT);
            if free_at > now.monotonic {
                self.poll_lease_at = self.poll_lease_at.min(free_at);
            }
        }
        self.lease_polled = now.monotonic;
        self.confirms_lease = !self.confirms_lease;
        self.is_lease_known = true;
        self.lease = lease;
        self.stay();
    }

    fn on_claimed(&mut self, lease: &[u8], current: Vec<u8>, now: Now) {
        let is_mine = current == lease;
        self.on_lease(current, now);
        match (&self.holder, is_mine) {
            // Nobody else can have asked for these requests.
            (Some(_), true) => self.to_return.clear(),
            (Some(_), false) => {
                // Another node holds it. It may not know this node's request.
                self.holder = None;
                self.heartbeat_at = now.monotonic;
                if let Some(goal) = &mut self.goal {
                    goal.posted = None;
                }
            }
            (None, true) => {
                let Some(Lease {
                    epoch,
                    heartbeat: Some(_),
                    ..
                }) = Lease::from_text(lease)
                else {
                    return;
                };
                let me = self.me.clone();
                let settings = self.settings.clone();
                self.holder = Some(Holder::new(me, settings, epoch, now));
                // It names the nodes that have departed before.
                self.checks_summary = epoch > 1;
                self.renewals = 0;
                self.renew_at = now.monotonic.saturating_add(RENEWAL);
                self.stay();
            }
            (None, false) => {
                self.poll_lease_at = now.monotonic.saturating_add(self.lease_poll_interval())
            }
        }
    }

    /// Notifies a new holder that this node is a member, once.
    fn stay(&mut self) {
        if let (Some(round), None) = (self.round, &self.goal) {
            let request = self.request(RequestKind::Stay { round });
            self.goal = Some(Goal::new(request, Duration::MAX));
        }
    }

    fn on_answer(&mut self, text: Vec<u8>, now: Now) {
        let answer = Answer::from_text(&text);
        self.answer = text;
        if let Some(Answer {
            kind: AnswerKind::NewHolder { .. },
            ..
        }) = answer
        {
            // It may have replaced an answer.
            self.is_lease_known = false;
            self.repeat();
            return;
        }
        let since = self.goal.as_ref().map_or(self.number, |goal| goal.since);
        let is_own = |answer: &Answer| {
            let is_to_any = answer.number >= since && answer.kind.ends_every_request();
            answer.number == self.number || is_to_any
        };
        let Some(answer) = answer.filter(is_own) else {
            return;
        };
        if let AnswerKind::Evicted { round } = answer.kind {
            self.is_evicted |= self.round == Some(round);
            self.repeat();
            return;
        }
        let Some(goal) = &mut self.goal else { return };
        let is_join = matches!(
            goal.request.kind,
            RequestKind::Join { .. } | RequestKind::JoinLate { .. }
        );
        let outcome = match answer.kind {
            AnswerKind::Spare => {
                goal.is_spare = true;
                return;
            }
            AnswerKind::NoLongerSpare => {
                goal.is_spare = false;
                goal.deadline = now.monotonic.saturating_add(self.settings.join_timeout);
                if let RequestKind::JoinLate { after } = goal.request.kind {
                    self.number += 1;
                    goal.request.number = self.number;
                    goal.request.kind = RequestKind::Join { after };
                    goal.posted = None;
                }
                return;
            }
            AnswerKind::Joined(place) if is_join => Ok(Some(place)),
            AnswerKind::Done if !is_join => Ok(None),
            AnswerKind::Closed => Err(Ending::Closed),
            AnswerKind::NotNeeded => Err(Ending::NotNeeded),
            AnswerKind::TimedOut => Err(Ending::TimedOut),
            _ => return,
        };
        let leaves = matches!(goal.request.kind, RequestKind::Exit | RequestKind::Leave);
        let posted = goal.posted;
        self.goal = None;
        if let Ok(Some(place)) = &outcome {
            self.round = Some(place.round);
            self.rank = place.rank;
            self.size = place.size;
            self.is_evicted = false;
            let request = self.request(RequestKind::Stay { round: place.round });
            let mut goal = Goal::new(request, Duration::MAX);
            // The same holder knows it.
            goal.posted = posted;
            self.goal = Some(goal);
        } else if is_join || leaves {
            self.round = None;
            self.is_releasing = true;
        }
        self.outcome = Some(outcome);
    }

    /// Says again what the node requests, as the holder has forgotten it.
    fn repeat(&mut self) {
        let Some(goal) = &mut self.goal else { return };
        if !matches!(goal.request.kind, RequestKind::Stay { .. }) {
            self.number += 1;
            goal.request.number = self.number;
            goal.posted = None;
        }
    }

    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let goal = self.goal.as_ref();
        let goal = goal.map(|it| {
            (
                it.request.kind,
                it.request.number,
                it.posted,
                it.is_spare,
                it.deadline,
            )
        });
        let lease = String::from_utf8_lossy(&self.lease);
        let holder = self.holder.as_ref().map(Holder::describe);
        let asked = &self.asked;
        format!(
            "{goal:?}, round {:?}, lease {lease:?}, {asked:?}, {holder:?}",
            self.round
        )
    }

    fn adopt_summary(&mut self, text: Vec<u8>) {
        if let Some(summary) = Summary::from_text(&text) {
            self.summary = summary;
        }
        self.summary_text = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::Timestamp;

    /// docs/rendezvous.md, GROUP 3.
    #[test]
    fn a_want_without_an_answer_is_posted_again_and_again() {
        let start = Now {
            monotonic: Duration::from_secs(1000),
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        };
        let settings = RendezvousSettings::for_test(1, 4);
        let interval = settings.keep_alive_interval;
        let mut station = Station::new(NodeId::new("node", 1, 0), 7, settings, start);
        let mut time = Duration::ZERO;
        station.join(-1, Duration::MAX, start);
        let (mut clients, mut heartbeat) = (Vec::new(), 0);
        while time < interval * 31 {
            let now = start.after(time);
            let reply = match station.step(now) {
                Ask::WriteHeartbeat(_) => Reply::Done,
                Ask::ReadLease => {
                    // The holder lives.
                    heartbeat += 1;
                    let lease = Lease {
                        epoch: 3,
                        index: 1,
                        heartbeat: Some(heartbeat),
                    };
                    Reply::Value(Some(lease.to_text()))
                }
                Ask::Push(request) => {
                    clients.push((time, request));
                    Reply::Done
                }
                Ask::AwaitAnswer { until, .. } => {
                    time = until - start.monotonic;
                    Reply::Nothing
                }
                other => panic!("{other:?}"),
            };
            station.on_reply(reply, start.after(time));
        }
        let (times, requests): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        let expected = [0, 2, 6, 14, 30].map(|intervals| interval * intervals);
        assert_eq!(times, expected);
        assert!(
            requests.iter().all(|request| *request == requests[0]),
            "{requests:?}"
        );
    }
}
