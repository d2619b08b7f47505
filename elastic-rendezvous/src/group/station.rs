//! One node of a group: what it asks the store next. Pure.
//!
//! It makes one request at a time, so that it needs one connection.

use std::time::Duration;

use super::holder::{Holder, Task};
use super::message::{Answer, AnswerKind, Mark, Place, Summary, Want, WantKind};
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

/// A want is posted again after 2 intervals of heartbeats, and then each time after twice as long, up to 2 intervals
/// times two to the power of this.
const DOUBLINGS_MAX: u32 = 8;

/// For each node that may take part, the interval of those that wait for an answer is longer by this: whatever their
/// number, one of them looks each millisecond.
const LOOK_INTERVAL_PER_NODE: Duration = Duration::from_millis(1);

/// The longest interval of nodes that wait for an answer, as fewer than may take part can be there.
const ASKING_INTERVAL_MAX: Duration = Duration::from_secs(11);

/// How often the members with the lowest ranks look at the lease, at least.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How many members look at the lease that often.
const DEPUTIES: usize = 4;

/// How often the other members look at it, in intervals of heartbeats: in case the deputies die with the holder.
const INTERVALS_PER_LOOK: u32 = 12;

/// After so long a node looks a second time: only a mark that has not changed meanwhile tells anything.
const SECOND_LOOK: Duration = Duration::from_millis(2100);

/// One request to the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    /// Writes the node's own heartbeat.
    Beat(u64),
    /// The mark of the lease, if there is one.
    ReadMark,
    /// Replaces the mark if it is the expected one; empty for none.
    Claim {
        expected: Vec<u8>,
        mark: Vec<u8>,
    },
    /// Puts a want into the queue.
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
    Summarize(Vec<u8>),
    /// The heartbeats of these nodes; empty for one that has written none.
    ReadBeats(Vec<u32>),
    /// Takes all wants from the queue, or waits for one.
    AwaitWants {
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
    Beats(Vec<Vec<u8>>),
    Wants(Vec<Vec<u8>>),
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
    want: Want,
    /// The number of its first want: an answer to any of them is one to the goal.
    since: u32,
    /// The epoch of the holder that was told.
    posted: Option<u64>,
    /// When to post it again: a holder that dies takes with it what it took from the queue.
    repeat_at: Duration,
    doublings: u32,
    deadline: Duration,
    is_spare: bool,
}

impl Goal {
    const fn new(want: Want, deadline: Duration) -> Self {
        Self {
            since: want.number,
            want,
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
        self.want.epoch = epoch.unwrap_or_default();
        self.want.to_text()
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
    beat: u64,
    beat_at: Duration,
    mark: Vec<u8>,
    is_mark_known: bool,
    /// When this mark was seen first.
    mark_since: Duration,
    /// When the node looked at the mark last.
    mark_seen: Duration,
    look_at: Duration,
    /// Whether the last look was the first of two.
    has_looked: bool,
    holder: Option<Holder>,
    /// The request in progress.
    asked: Ask,
    own_beat: u64,
    renew_at: Duration,
    answer: Vec<u8>,
    summary_text: Vec<u8>,
    summary: Summary,
    reads_answer: bool,
    /// Wants for a later holder that this node took while it believed to be the holder.
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
            beat: 0,
            beat_at: now.monotonic,
            mark: Vec::new(),
            is_mark_known: false,
            mark_since: now.monotonic,
            mark_seen: now.monotonic,
            look_at: now.monotonic,
            has_looked: false,
            holder: None,
            asked: Ask::Idle,
            own_beat: 0,
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
        self.begin(WantKind::Join { after }, deadline, now);
    }

    /// Begins to leave the current round, to join another one later.
    pub(crate) fn exit(&mut self, deadline: Duration, now: Now) {
        self.begin(WantKind::Exit, deadline, now);
    }

    pub(crate) fn leave(&mut self, deadline: Duration, now: Now) {
        self.begin(WantKind::Leave, deadline, now);
    }

    pub(crate) fn close(&mut self, deadline: Duration, now: Now) {
        self.begin(WantKind::Close, deadline, now);
    }

    fn begin(&mut self, kind: WantKind, deadline: Duration, now: Now) {
        self.number += 1;
        self.outcome = None;
        self.look_at = self.look_at.min(now.monotonic);
        self.has_looked = true;
        self.goal = Some(Goal::new(self.want(kind), deadline));
    }

    fn want(&self, kind: WantKind) -> Want {
        Want {
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
        let mark = Mark {
            epoch: holder.epoch(),
            index: self.index,
            beat: None,
        };
        Some(Ask::Claim {
            expected: self.mark.clone(),
            mark: mark.to_text(),
        })
    }

    /// A request has failed: whatever this node held or posted may be lost.
    pub(crate) fn on_failure(&mut self, now: Now) {
        self.holder = None;
        self.is_mark_known = false;
        self.beat_at = now.monotonic;
        self.look_at = now.monotonic;
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
            let stays = |goal: &Goal| matches!(goal.want.kind, WantKind::Stay { .. });
            if !self.goal.as_ref().is_some_and(stays)
                && let Some(text) = self.holder.as_mut().and_then(Holder::take_unsent_summary)
            {
                self.adopt_summary(text.clone());
                return Ask::Summarize(text);
            }
            self.is_releasing = false;
            if let Some(ask) = self.release() {
                self.is_mark_known = false;
                return ask;
            }
        }
        if let (Some(want), None) = (self.to_return.last(), &self.holder) {
            return Ask::Push(want.clone());
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
        if self.beat_at <= at {
            let interval = self.settings.keep_alive_interval;
            // From then on not all at the same time.
            let to_next = if self.beat == 0 {
                self.staggered(interval / 2, interval)
            } else {
                interval
            };
            self.beat += 1;
            self.beat_at = at.saturating_add(to_next);
            return Ask::Beat(self.beat);
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
        if !self.is_mark_known || self.look_at <= at {
            self.look_at = at.saturating_add(self.look_interval());
            return Ask::ReadMark;
        }
        if self.reads_answer {
            self.reads_answer = false;
            return Ask::ReadAnswer;
        }
        let epoch = Mark::from_text(&self.mark).map(|mark| mark.epoch);
        if let Some(goal) = &mut self.goal
            && (goal.posted != epoch || goal.repeat_at <= at)
        {
            return Ask::Push(goal.post(epoch, at, &self.settings));
        }
        let repeat_at = self
            .goal
            .as_ref()
            .map_or(Duration::MAX, |goal| goal.repeat_at);
        let until = self.beat_at.min(self.look_at).min(repeat_at);
        match &self.goal {
            Some(goal) if !matches!(goal.want.kind, WantKind::Stay { .. }) => {
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
            goal.want.epoch = holder.epoch();
            holder.on_wants([goal.want.clone()], now);
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
            Task::Summarize(text) => {
                self.adopt_summary(text.clone());
                Ask::Summarize(text)
            }
            Task::ReadBeats(indices) => {
                let others: Vec<u32> = indices.into_iter().filter(|it| *it != self.index).collect();
                Ask::ReadBeats(others)
            }
            Task::Wait(until) => Ask::AwaitWants {
                until: until.min(self.renew_at),
            },
        }
    }

    fn check_deadline(&mut self, at: Duration) -> Option<Ending> {
        let goal = self.goal.as_mut()?;
        if goal.deadline >= at {
            return None;
        }
        match goal.want.kind {
            WantKind::Stay { .. } => None,
            _ if goal.is_spare => None,
            WantKind::Join { after } => {
                self.number += 1;
                goal.want.number = self.number;
                goal.want.kind = WantKind::JoinLate { after };
                goal.posted = None;
                None
            }
            WantKind::JoinLate { .. } => {
                (goal.deadline.saturating_add(ROLLBACK_WINDOW) < at).then_some(Ending::TimedOut)
            }
            WantKind::Exit | WantKind::Leave | WantKind::Close => Some(Ending::TimedOut),
        }
    }

    fn look_interval(&self) -> Duration {
        let least = LOOK_INTERVAL;
        if self.is_asking() {
            let nodes = u32::try_from(self.settings.max_nodes).unwrap_or(u32::MAX);
            let more = LOOK_INTERVAL_PER_NODE.saturating_mul(nodes);
            let most = least.saturating_add(more).min(ASKING_INTERVAL_MAX);
            return self.staggered(least, most);
        }
        if self.rank < DEPUTIES {
            return self.staggered(least, least.saturating_add(least / 4));
        }
        let interval = self.settings.keep_alive_interval;
        let most = interval.saturating_mul(INTERVALS_PER_LOOK);
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
        goal.is_some_and(|goal| !matches!(goal.want.kind, WantKind::Stay { .. }))
    }

    fn is_joining(&self) -> bool {
        self.goal.as_ref().is_some_and(|goal| {
            matches!(
                goal.want.kind,
                WantKind::Join { .. } | WantKind::JoinLate { .. }
            )
        })
    }

    /// Only a node that is listed, or will be by its own want, can write what stops an earlier holder.
    fn may_hold(&self) -> bool {
        self.is_joining() || (self.round.is_some() && !self.is_evicted)
    }

    fn is_lease_free(&self) -> bool {
        if !self.is_mark_known {
            return false;
        }
        match Mark::from_text(&self.mark) {
            Some(Mark { beat: Some(_), .. }) => {
                self.mark_seen.saturating_sub(self.mark_since) >= LEASE_TIMEOUT
            }
            _ => true,
        }
    }

    fn claim(&self) -> Ask {
        let epoch = Mark::from_text(&self.mark).map_or(0, |mark| mark.epoch);
        let mark = Mark {
            epoch: epoch.saturating_add(1),
            index: self.index,
            beat: Some(0),
        };
        Ask::Claim {
            expected: self.mark.clone(),
            mark: mark.to_text(),
        }
    }

    fn renew(&mut self, at: Duration) -> Ask {
        self.renew_at = at.saturating_add(RENEWAL);
        self.own_beat += 1;
        let epoch = self.holder.as_ref().map_or(0, Holder::epoch);
        let mark = Mark {
            epoch,
            index: self.index,
            beat: Some(self.own_beat),
        };
        Ask::Claim {
            expected: self.mark.clone(),
            mark: mark.to_text(),
        }
    }

    /// Takes the result of the last request.
    pub(crate) fn on_reply(&mut self, reply: Reply, now: Now) {
        let asked = std::mem::replace(&mut self.asked, Ask::Idle);
        match (asked, reply) {
            (Ask::ReadMark, Reply::Value(mark)) => self.on_mark(mark.unwrap_or_default(), now),
            (Ask::Claim { mark, .. }, Reply::Value(current)) => {
                self.on_claimed(&mark, current.unwrap_or_default(), now);
            }
            (Ask::AwaitAnswer { .. } | Ask::ReadAnswer, Reply::Value(Some(text))) => {
                self.on_answer(text, now);
            }
            (Ask::AwaitSummary { .. }, Reply::Value(Some(text))) => {
                self.adopt_summary(text);
                let epoch = Mark::from_text(&self.mark).map_or(0, |mark| mark.epoch);
                self.is_mark_known &= self.summary.epoch <= epoch;
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
            (Ask::Push(want), Reply::Done) if self.to_return.last() == Some(&want) => {
                self.to_return.pop();
            }
            (Ask::AwaitWants { .. }, Reply::Wants(texts)) => self.on_wants(texts, now),
            (asked, reply) => {
                let Some(holder) = &mut self.holder else {
                    return;
                };
                match (asked, reply) {
                    (Ask::ReadState, Reply::State(stored)) => holder.on_state(stored, now),
                    (Ask::CheckState, Reply::IsSame(is_same)) => holder.on_checked(is_same, now),
                    (Ask::CountNodes, Reply::Count(count)) => holder.on_count(count),
                    (Ask::WriteState, Reply::Written(written)) => holder.on_written(written, now),
                    (Ask::ReadBeats(indices), Reply::Beats(values)) => {
                        holder.on_beats(&indices, &values, now);
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

    fn on_wants(&mut self, texts: Vec<Vec<u8>>, now: Now) {
        let Some(holder) = &mut self.holder else {
            return;
        };
        let epoch = holder.epoch();
        let wants = texts.iter().filter_map(|text| Want::from_text(text));
        let (later, own): (Vec<_>, Vec<_>) = wants.partition(|want| want.epoch > epoch);
        holder.on_wants(own, now);
        if !later.is_empty() {
            self.to_return = later.iter().map(Want::to_text).collect();
            // It fails if there is a later holder.
            self.renew_at = now.monotonic;
        }
    }

    fn on_mark(&mut self, mark: Vec<u8>, now: Now) {
        if !self.is_mark_known || mark != self.mark {
            self.mark_since = now.monotonic;
            let second_look = now.monotonic.saturating_add(SECOND_LOOK);
            if !self.has_looked {
                self.look_at = self.look_at.min(second_look);
            }
        } else {
            let free_at = self.mark_since.saturating_add(LEASE_TIMEOUT);
            if free_at > now.monotonic {
                self.look_at = self.look_at.min(free_at);
            }
        }
        self.mark_seen = now.monotonic;
        self.has_looked = !self.has_looked;
        self.is_mark_known = true;
        self.mark = mark;
        self.stay();
    }

    fn on_claimed(&mut self, mark: &[u8], current: Vec<u8>, now: Now) {
        let is_mine = current == mark;
        self.on_mark(current, now);
        match (&self.holder, is_mine) {
            // Nobody else can have asked for these wants.
            (Some(_), true) => self.to_return.clear(),
            (Some(_), false) => {
                // Another node holds it. It may not know what this one wanted.
                self.holder = None;
                self.beat_at = now.monotonic;
                if let Some(goal) = &mut self.goal {
                    goal.posted = None;
                }
            }
            (None, true) => {
                let Some(Mark {
                    epoch,
                    beat: Some(_),
                    ..
                }) = Mark::from_text(mark)
                else {
                    return;
                };
                let me = self.me.clone();
                let settings = self.settings.clone();
                self.holder = Some(Holder::new(me, settings, epoch, now));
                // It names the nodes that have departed before.
                self.checks_summary = epoch > 1;
                self.own_beat = 0;
                self.renew_at = now.monotonic.saturating_add(RENEWAL);
                self.stay();
            }
            (None, false) => self.look_at = now.monotonic.saturating_add(self.look_interval()),
        }
    }

    /// Tells a new holder that this node is a member, once.
    fn stay(&mut self) {
        if let (Some(round), None) = (self.round, &self.goal) {
            let want = self.want(WantKind::Stay { round });
            self.goal = Some(Goal::new(want, Duration::MAX));
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
            self.is_mark_known = false;
            self.repeat();
            return;
        }
        let since = self.goal.as_ref().map_or(self.number, |goal| goal.since);
        let is_own = |answer: &Answer| {
            let is_to_any = answer.number >= since && answer.kind.ends_every_want();
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
            goal.want.kind,
            WantKind::Join { .. } | WantKind::JoinLate { .. }
        );
        let outcome = match answer.kind {
            AnswerKind::Spare => {
                goal.is_spare = true;
                return;
            }
            AnswerKind::NoLongerSpare => {
                goal.is_spare = false;
                goal.deadline = now.monotonic.saturating_add(self.settings.join_timeout);
                if let WantKind::JoinLate { after } = goal.want.kind {
                    self.number += 1;
                    goal.want.number = self.number;
                    goal.want.kind = WantKind::Join { after };
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
        let leaves = matches!(goal.want.kind, WantKind::Exit | WantKind::Leave);
        let posted = goal.posted;
        self.goal = None;
        if let Ok(Some(place)) = &outcome {
            self.round = Some(place.round);
            self.rank = place.rank;
            self.size = place.size;
            self.is_evicted = false;
            let want = self.want(WantKind::Stay { round: place.round });
            let mut goal = Goal::new(want, Duration::MAX);
            // The same holder knows it.
            goal.posted = posted;
            self.goal = Some(goal);
        } else if is_join || leaves {
            self.round = None;
            self.is_releasing = true;
        }
        self.outcome = Some(outcome);
    }

    /// Says again what the node wants, as the holder has forgotten it.
    fn repeat(&mut self) {
        let Some(goal) = &mut self.goal else { return };
        if !matches!(goal.want.kind, WantKind::Stay { .. }) {
            self.number += 1;
            goal.want.number = self.number;
            goal.posted = None;
        }
    }

    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let goal = self.goal.as_ref();
        let goal = goal.map(|it| {
            (
                it.want.kind,
                it.want.number,
                it.posted,
                it.is_spare,
                it.deadline,
            )
        });
        let mark = String::from_utf8_lossy(&self.mark);
        let holder = self.holder.as_ref().map(Holder::describe);
        let asked = &self.asked;
        format!(
            "{goal:?}, round {:?}, mark {mark:?}, {asked:?}, {holder:?}",
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
        let (mut posts, mut beat) = (Vec::new(), 0);
        while time < interval * 31 {
            let now = start.after(time);
            let reply = match station.step(now) {
                Ask::Beat(_) => Reply::Done,
                Ask::ReadMark => {
                    // The holder lives.
                    beat += 1;
                    let mark = Mark {
                        epoch: 3,
                        index: 1,
                        beat: Some(beat),
                    };
                    Reply::Value(Some(mark.to_text()))
                }
                Ask::Push(want) => {
                    posts.push((time, want));
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
        let (times, wants): (Vec<_>, Vec<_>) = posts.into_iter().unzip();
        let expected = [0, 2, 6, 14, 30].map(|intervals| interval * intervals);
        assert_eq!(times, expected);
        assert!(wants.iter().all(|want| *want == wants[0]), "{wants:?}");
    }
}
