//! The state machine of one node of a group, which decides on the next request to the store. Pure.
//!
//! It makes one request at a time, so that it needs one connection.

mod lease;
mod news;
mod tenure;

use std::time::Duration;

use c10d_socket::Silence;

use super::ask::{Ask, Ending, Reply};
use super::holder::Holder;
use super::message::{Lease, Place, RequestKind, Summary};
use super::posting::Posting;
use super::timers::Timers;
use crate::engine::links::RETURN_PAUSE;
use crate::values::goal::Step;
use crate::values::node::NodeId;
use crate::values::settings::{ROLLBACK_WINDOW, RendezvousSettings};
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::Now;

#[derive(Debug)]
pub(crate) struct Station {
    me: NodeId,
    index: u32,
    settings: RendezvousSettings,
    phase: Phase,
    membership: Option<Membership>,
    role: Role,
    own_mark: OwnMark,
    timers: Timers<Timer>,
    exchange: Exchange,
    /// The number of the last request.
    number: u32,
    heartbeats: u64,
    known: Known,
    /// Requests to a later holder that this node took while it believed to be the holder.
    misdirected: Vec<Vec<u8>>,
    leases: Leases,
    /// Whether a request to close was posted after the summary was read: a holder that has closed before may have
    /// exited.
    checks_closing: bool,
}

/// The event that the node waits for.
#[derive(Debug)]
enum Phase {
    Idle,
    /// An answer to its request.
    Requesting(Posting),
    /// The caller, which takes the result. `epoch` is the epoch of a holder that lists the node as a member.
    Ended {
        result: Result<Option<Place>, Ending>,
        epoch: Option<u64>,
    },
    /// A change of its round. It announces to each holder that it is a member.
    Member(Posting),
}

/// The complete round that the node has joined.
#[derive(Debug)]
struct Membership {
    round: i64,
    rank: usize,
    /// The number of nodes in the round.
    size: usize,
    standing: Standing,
}

/// The operation on the store that is in progress, and the results of earlier operations.
#[derive(Debug)]
struct Exchange {
    asked: Ask,
    /// When the operation began.
    asked_at: Duration,
    /// When the last operation began that showed the other nodes that this node lives.
    heard_at: Duration,
    /// The time since which no request has failed.
    connected_since: Duration,
}

/// The last answer and the last summary that were read.
#[derive(Debug, Default)]
struct Known {
    answer: Vec<u8>,
    summary_text: Vec<u8>,
    summary: Summary,
}

/// The history of the lease.
#[derive(Debug, Default)]
struct Leases {
    /// The generation of the leases that were read.
    generation: Option<u64>,
    /// Whether the lease is missing or of another generation than before, or may be.
    has_lost_state: bool,
    /// Whether the lease was polled since a request was posted last.
    has_polled: bool,
}

/// The mark of this node (docs/spec/rendezvous.md, section 10.3).
#[derive(Debug)]
struct OwnMark {
    status: MarkStatus,
    /// How long this node waits before it tries again to set its mark.
    pause: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkStatus {
    Unset,
    Set,
    /// The store cannot have marks, or has no place for another connection.
    Unsupported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Sure,
    /// The summary allows that the node was evicted: it reads its answer.
    Doubtful,
    Evicted,
}

/// A node's part in the lease: the node holds the lease, or follows the holder.
#[derive(Debug)]
enum Role {
    Follower(LeaseView),
    Holder(Box<Tenure>),
}

#[derive(Debug)]
struct Tenure {
    holder: Holder,
    /// The lease as it was written last.
    lease: Vec<u8>,
    renewals: u64,
    /// The silence of this holder for the other nodes, since the last renewal that succeeded was requested.
    silence: Silence<Duration>,
    /// Whether to empty the queue first. Other nodes may have seen the lease as free and have left
    /// alone, so that their requests are in the queue.
    drains_queue: bool,
    phase: TenurePhase,
    /// When the holder leaves its round itself, and until when it may put that off; `None` while it does not want to.
    leaves: Option<(Duration, Duration)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TenurePhase {
    /// The stored summary is to be read: the previous holder wrote it, or a holder has replaced ours in
    /// the meantime.
    Checking,
    Serving,
    /// Gives the lease back. The last summary lets the next holder know that this node has left.
    Leaving,
    /// Gives the lease back without a summary: the other nodes have evicted the node, and may have a holder
    /// already.
    Evicted,
    /// Has closed the rendezvous for itself, and answers those that posted the same request before they could know it:
    /// until then at the latest. `has_taken`: from the queue, after the summary was written.
    Closing {
        until: Duration,
        has_taken: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Deadline,
    Heartbeat,
    LeasePoll,
    /// A poll soon after the previous poll.
    SecondPoll,
    /// Post the request again.
    Repeat,
    Renewal,
    /// Set the mark of this node.
    Mark,
}

/// The lease in the view of a node that does not hold it.
#[derive(Debug)]
enum LeaseView {
    /// To be read at once.
    Unknown,
    Known {
        lease: Vec<u8>,
        /// The silence of the holder since this lease was read first.
        silence: Silence<Duration>,
        /// When the lease was read last.
        polled: Duration,
    },
}

impl LeaseView {
    /// A lease that was read at this time, and is free without a renewal within `timeout`.
    fn new(lease: Vec<u8>, at: Duration, timeout: Duration) -> Self {
        Self::Known {
            lease,
            silence: Silence::new(at, timeout),
            polled: at,
        }
    }

    /// Whether the lease was given back, or was seen without a renewal for its timeout.
    fn is_free(&self) -> bool {
        let Self::Known {
            lease,
            silence,
            polled,
        } = self
        else {
            return false;
        };
        let lease = Lease::from_text(lease);
        lease.is_none_or(|lease| lease.renewal.is_none()) || silence.is_lost(*polled)
    }

    /// The epoch of the lease; `None` before the first one.
    fn epoch(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Known { lease, .. } => Lease::from_text(lease).map(|lease| lease.epoch),
        }
    }
}

impl Station {
    /// Creates the station of the node `me`. `index` is unique among the handlers in this store.
    pub(crate) fn new(me: NodeId, index: u32, settings: RendezvousSettings, now: Now) -> Self {
        Self {
            me,
            index,
            settings,
            phase: Phase::Idle,
            membership: None,
            role: Role::Follower(LeaseView::Unknown),
            own_mark: OwnMark {
                status: MarkStatus::Unset,
                pause: RETURN_PAUSE,
            },
            timers: [(Timer::Heartbeat, now.monotonic)].into(),
            exchange: Exchange {
                asked: Ask::Idle,
                asked_at: now.monotonic,
                heard_at: now.monotonic,
                connected_since: now.monotonic,
            },
            number: 0,
            heartbeats: 0,
            known: Known::default(),
            misdirected: Vec::new(),
            leases: Leases::default(),
            checks_closing: false,
        }
    }

    /// Whether the lease is missing or of another generation than before, or may be: the store has lost its data, and
    /// another node may have this one's index.
    pub(crate) const fn has_lost_state(&self) -> bool {
        self.leases.has_lost_state
    }

    /// Returns the time until which the other nodes keep this node in its round if they receive no
    /// sign of life from it.
    pub(crate) fn is_kept_until(&self) -> Duration {
        self.exchange
            .heard_at
            .saturating_add(self.settings.dead_after())
    }

    pub(crate) const fn me(&self) -> &NodeId {
        &self.me
    }

    pub(crate) const fn settings(&self) -> &RendezvousSettings {
        &self.settings
    }

    pub(crate) const fn summary(&self) -> &Summary {
        &self.known.summary
    }

    pub(crate) fn is_evicted(&self) -> bool {
        let membership = self.membership.as_ref();
        membership.is_some_and(|it| it.standing == Standing::Evicted)
    }

    /// Whether the other nodes learn at once that this node has lost its connection.
    pub(crate) fn is_marked(&self) -> bool {
        self.own_mark.status == MarkStatus::Set
    }

    pub(crate) const fn is_holder(&self) -> bool {
        matches!(self.role, Role::Holder(_))
    }

    const fn holder(&self) -> Option<&Holder> {
        match &self.role {
            Role::Holder(tenure) => Some(&tenure.holder),
            Role::Follower(_) => None,
        }
    }

    const fn holder_mut(&mut self) -> Option<&mut Holder> {
        match &mut self.role {
            Role::Holder(tenure) => Some(&mut tenure.holder),
            Role::Follower(_) => None,
        }
    }

    /// The state to be written and the token it is based on, after [`Ask::WriteState`].
    pub(crate) fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        self.holder().map(Holder::to_write)
    }

    /// Takes what this node, as the holder, has changed for whom since the last call, and the results of its writes.
    pub(crate) fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        self.holder_mut().map_or_else(Vec::new, Holder::take_steps)
    }

    /// Begins to join a round after `after`, for at most until `deadline`.
    pub(crate) fn join(&mut self, after: i64, deadline: Duration, now: Now) {
        self.membership = None;
        self.begin(RequestKind::Join { after }, deadline, now);
    }

    /// Begins to leave the current round. The node can join another round later.
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
        self.phase = Phase::Requesting(Posting::new(kind, self.number, None));
        self.timers.set(Timer::Deadline, deadline);
        self.timers.set(Timer::SecondPoll, now.monotonic);
    }

    /// A request has failed: whatever this node held or posted may be lost.
    pub(crate) fn on_failure(&mut self, now: Now) {
        self.leases.has_lost_state |= self.leases.generation.is_none();
        self.exchange.connected_since = now.monotonic;
        if self.own_mark.status == MarkStatus::Set {
            self.timers.set(Timer::Mark, now.monotonic);
        } else if self.exchange.asked == Ask::SetMark {
            // The next requests are more urgent.
            let interval = self.settings.keep_alive_interval;
            self.timers.set_in(Timer::Mark, now.monotonic, interval);
        }
        self.follow(LeaseView::Unknown, now);
    }

    /// Begins to follow another holder, which may know neither this node nor its request.
    fn follow(&mut self, view: LeaseView, now: Now) {
        self.role = Role::Follower(view);
        self.timers.cancel(Timer::Renewal);
        self.timers.set(Timer::Heartbeat, now.monotonic);
        if let Phase::Requesting(posting) | Phase::Member(posting) = &mut self.phase {
            posting.epoch = None;
        }
    }

    /// The next operation. Its result goes to [`on_reply`](Self::on_reply).
    pub(crate) fn step(&mut self, now: Now) -> Ask {
        let ask = self.next(now);
        self.exchange.asked = ask.clone();
        self.exchange.asked_at = now.monotonic;
        ask
    }

    fn next(&mut self, now: Now) -> Ask {
        let at = now.monotonic;
        if let Some(ask) = self.next_of_release(now) {
            return ask;
        }
        if let (Some(request), Role::Follower(_)) = (self.misdirected.last(), &self.role) {
            return Ask::Push(request.clone());
        }
        if self.timers.is_due(Timer::Deadline, at) {
            self.on_deadline();
        }
        match &self.phase {
            Phase::Ended { result, epoch } => {
                let (result, epoch) = (result.clone(), *epoch);
                if let Some(ask) = self.next_of_closing(now) {
                    return ask;
                }
                return self.done(result, epoch);
            }
            Phase::Idle if !self.is_holder() => return Ask::Idle,
            Phase::Idle | Phase::Requesting(_) | Phase::Member(_) => {}
        }
        match &self.role {
            Role::Follower(_) => self.next_as_follower(now),
            Role::Holder(_) => self.next_as_holder(now),
        }
    }

    /// Reports the result of the goal.
    fn done(&mut self, result: Result<Option<Place>, Ending>, epoch: Option<u64>) -> Ask {
        self.timers.cancel(Timer::Deadline);
        self.timers.cancel(Timer::Repeat);
        self.phase = match &self.membership {
            Some(membership) => {
                let kind = RequestKind::Stay {
                    round: membership.round,
                };
                Phase::Member(Posting::new(kind, self.number, epoch))
            }
            None => Phase::Idle,
        };
        Ask::Done(result)
    }

    fn next_as_follower(&mut self, now: Now) -> Ask {
        let at = now.monotonic;
        if self.timers.is_due(Timer::Heartbeat, at) {
            return self.next_heartbeat(at);
        }
        if self.timers.is_due(Timer::Mark, at) {
            return Ask::SetMark;
        }
        let Role::Follower(view) = &self.role else {
            return Ask::Idle;
        };
        let LeaseView::Known { lease, .. } = view else {
            return self.poll_lease(at);
        };
        let epoch = view.epoch();
        if view.is_free() {
            if self.may_hold() {
                // Two stores, one after the other, never have their first holders at the same microsecond.
                let now = now.wall.as_micros().unsigned_abs();
                let generation = self.leases.generation.unwrap_or(now);
                let epoch = epoch.unwrap_or(0).saturating_add(1);
                return Ask::Claim {
                    expected: lease.clone(),
                    lease: self.lease(epoch, Some(0), generation),
                };
            }
            // A holder that is alive after all and takes an earlier request of this node must find this
            // request as well.
            if matches!(&self.phase, Phase::Requesting(posting) if posting.epoch == epoch) {
                return if self.leases.has_polled {
                    self.done(Err(Ending::NoHolder), None)
                } else {
                    self.poll_lease(at)
                };
            }
        }
        if self.timers.is_due(Timer::LeasePoll, at) || self.timers.is_due(Timer::SecondPoll, at) {
            return self.poll_lease(at);
        }
        if let Some(membership) = &mut self.membership
            && membership.standing == Standing::Doubtful
        {
            membership.standing = Standing::Sure;
            return Ask::ReadAnswer;
        }
        if let Phase::Requesting(posting) | Phase::Member(posting) = &mut self.phase
            && (posting.epoch != epoch || self.timers.is_due(Timer::Repeat, at))
        {
            let intervals = posting.post(epoch);
            let pause = self.settings.keep_alive_interval.saturating_mul(intervals);
            self.timers.set_in(Timer::Repeat, at, pause);
            self.checks_closing = posting.kind == RequestKind::Close;
            return Ask::Push(posting.request(&self.me, self.index).to_text());
        }
        if std::mem::take(&mut self.checks_closing) {
            return Ask::ReadSummary;
        }
        let until = self.timers.next(|_| true);
        if self.is_requesting() {
            let known = self.known.answer.clone();
            Ask::AwaitAnswer { known, until }
        } else {
            let known = self.known.summary_text.clone();
            Ask::AwaitSummary { known, until }
        }
    }

    fn next_heartbeat(&mut self, at: Duration) -> Ask {
        let interval = self.settings.keep_alive_interval;
        // From then on, nodes do not write at the same time.
        let to_next = if self.heartbeats == 0 {
            self.staggered(interval / 2, interval)
        } else {
            interval
        };
        self.heartbeats += 1;
        self.timers
            .set(Timer::Heartbeat, at.saturating_add(to_next));
        // The heartbeat has ended the wait: to end and begin it again for a poll costs twice what the poll does.
        let soon = if self.polls_with_heartbeats() {
            interval.saturating_mul(2)
        } else {
            interval / 2
        };
        for poll in [Timer::LeasePoll, Timer::SecondPoll] {
            if self.timers.is_due(poll, at.saturating_add(soon)) {
                self.timers.set(poll, at);
            }
        }
        Ask::WriteHeartbeat(self.heartbeats)
    }

    fn on_deadline(&mut self) {
        let deadline = self.timers.at(Timer::Deadline);
        self.timers.cancel(Timer::Deadline);
        let Phase::Requesting(posting) = &mut self.phase else {
            return;
        };
        if let RequestKind::Join { after } = posting.kind {
            self.number += 1;
            posting.replace(RequestKind::JoinLate { after }, self.number);
            self.timers
                .set_in(Timer::Deadline, deadline, ROLLBACK_WINDOW);
        } else {
            self.phase = Phase::Ended {
                result: Err(Ending::TimedOut),
                epoch: None,
            };
            self.retire(TenurePhase::Leaving);
        }
    }

    /// Gives the lease back next, if this node holds it.
    const fn retire(&mut self, phase: TenurePhase) {
        if let Role::Holder(tenure) = &mut self.role {
            tenure.phase = phase;
        }
    }

    /// This time for each node that may take part.
    fn per_node(&self, time: Duration) -> Duration {
        time.saturating_mul(u32::try_from(self.settings.max_nodes).unwrap_or(u32::MAX))
    }

    /// A time between these, such that not all nodes do the same at the same time.
    fn staggered(&self, least: Duration, most: Duration) -> Duration {
        const PHASES: u32 = 1 << 12;
        // The golden ratio: also few nodes, with successive numbers, are far apart.
        let phase = self.index.wrapping_mul(0x9E37_79B9) >> (u32::BITS - PHASES.trailing_zeros());
        let width = most.saturating_sub(least);
        least.saturating_add(width.saturating_mul(phase) / PHASES)
    }

    const fn is_requesting(&self) -> bool {
        matches!(self.phase, Phase::Requesting(_))
    }

    const fn is_joining(&self) -> bool {
        matches!(&self.phase, Phase::Requesting(posting) if posting.kind.is_join())
    }

    /// Whether this node may hold the lease. Only a node that is listed, or will be by its own request, can write the
    /// change that stops an earlier holder.
    fn may_hold(&self) -> bool {
        self.is_joining() || (self.membership.is_some() && !self.is_evicted())
    }

    /// Takes the result of the last operation.
    pub(crate) fn on_reply(&mut self, reply: Reply, now: Now) {
        let asked = std::mem::replace(&mut self.exchange.asked, Ask::Idle);
        // A holder writes its heartbeat into the state.
        let is_heard = matches!(
            (&asked, &reply),
            (Ask::WriteHeartbeat(_), Reply::Done)
                | (Ask::WriteState, Reply::Written(Written::Ours(_)))
        );
        if is_heard {
            self.exchange.heard_at = self.exchange.asked_at;
        }
        match (asked, reply) {
            (Ask::ReadLease, Reply::Value(lease)) => {
                self.leases.has_polled = true;
                self.on_lease(lease.unwrap_or_default(), now);
            }
            (Ask::Claim { lease, .. }, Reply::Value(current)) => {
                self.on_claimed(&lease, current.unwrap_or_default(), now);
            }
            (Ask::AwaitAnswer { .. } | Ask::ReadAnswer, Reply::Value(Some(text))) => {
                self.on_answer(text, now);
            }
            (Ask::AwaitSummary { .. }, Reply::Value(Some(text))) => self.on_summary(text, now),
            (Ask::SetMark, Reply::Done) => {
                self.timers.cancel(Timer::Mark);
                self.own_mark.status = MarkStatus::Set;
                self.own_mark.pause = RETURN_PAUSE;
            }
            (Ask::SetMark, Reply::Nothing) if self.own_mark.status == MarkStatus::Set => {
                // The server may have no room for the connection.
                self.timers
                    .set_in(Timer::Mark, now.monotonic, self.own_mark.pause);
                self.own_mark.pause =
                    (self.own_mark.pause * 2).min(self.settings.keep_alive_interval);
            }
            (Ask::SetMark, _) => {
                self.timers.cancel(Timer::Mark);
                self.own_mark.status = MarkStatus::Unsupported;
            }
            (Ask::ReadSummary, Reply::Value(text)) => {
                let text = text.unwrap_or_default();
                if let Some(holder) = self.holder_mut() {
                    holder.on_summary(text);
                } else if Summary::from_text(&text).is_some_and(|it| it.is_closed) {
                    let (result, epoch) = (Ok(None), None);
                    self.phase = Phase::Ended { result, epoch };
                }
            }
            (Ask::Push(request), Reply::Done) if self.misdirected.last() == Some(&request) => {
                self.misdirected.pop();
            }
            (Ask::Push(_), Reply::Done) => self.leases.has_polled = false,
            (Ask::TakeRequests { .. }, Reply::Requests(texts)) => self.on_requests(&texts, now),
            (asked, reply) => self.on_reply_to_holder(asked, reply, now),
        }
    }

    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
        let (phase, asked) = (&self.phase, &self.exchange.asked);
        let membership = &self.membership;
        let role = match &self.role {
            Role::Follower(view) => format!("{view:?}"),
            Role::Holder(tenure) => tenure.holder.describe(),
        };
        format!("{phase:?}, {membership:?}, {asked:?}, {role}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::timestamp::Timestamp;

    /// docs/spec/rendezvous.md, GROUP 3.
    #[test]
    fn a_request_without_an_answer_is_posted_again_and_again() {
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
                        renewal: Some(heartbeat),
                        generation: 1,
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
