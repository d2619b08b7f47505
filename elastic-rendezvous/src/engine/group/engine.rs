//! The engine of a node in a group: its station, and the events that the handler receives from it.
//!
//! The station joins, leaves and holds the lease. This file reports a waiting join, derives membership and lost
//! nodes from the summary, and lets a node that finds no holder write the state itself.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ask::{Ask as GroupAsk, Ending};
use super::message::{Place, Summary};
use super::station::Station;
use crate::engine::links::RETURN_PAUSE;
use crate::engine::solo::Solo;
use crate::engine::{Ask, Engine, Reply};
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Joined, Method, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::report::{DroppedNode, LeftNode, LostNode, Membership, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token};
use crate::values::timestamp::Now;

/// When a waiting join reads the summary for its first report, and how often it does so for later reports. Most
/// joins are over before the first report.
const FIRST_REPORT: Duration = Duration::from_secs(3);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How long a member waits after an error of the store, or without a holder.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct GroupEngine {
    station: Station,
    /// Decides instead of the station if the station has found no holder.
    alone: Option<Solo>,
    /// The operation in progress and its deadline; `None` for a member that only stays.
    operation: Option<(Operation, Duration)>,
    asked: Asked,
    closing: Closing,
    joining: Option<Joining>,
    paused_until: Option<Duration>,
    /// The complete round that this node is a member of, and its number of nodes.
    round: Option<(i64, usize)>,
    /// The last round that this node joined.
    last_round: Option<i64>,
    /// The number of nodes of the last round.
    last_size: Option<usize>,
    /// The lost members of this node's round, each with the time when this node has detected the
    /// loss.
    lost: BTreeMap<NodeId, Duration>,
    /// The failure of a heartbeat, until it is recorded.
    failed_heartbeat: Option<Step>,
    seed: u64,
}

/// The purpose of the last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Summary,
    Station { is_heartbeat: bool },
}

/// The progress of closing the rendezvous.
///
/// All nodes of a finished job close it. Most of them find it closed already, so they ask no holder. The holder
/// itself closes it anyway, and empties the queue once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    ReadsSummary,
    IsClosed,
}

/// A waiting join, for its reports.
#[derive(Debug)]
struct Joining {
    since: Duration,
    deadline: Duration,
    report_at: Duration,
    /// The summary that was last read for a report.
    summary: Summary,
    /// Whether it has been read since the last report.
    is_fresh: bool,
}

impl GroupEngine {
    /// Creates the engine of the node `me`, whose id no other process has. `index` is unique among the handlers in this
    /// store, and `seed` determines the pauses after write conflicts.
    pub(crate) fn new(
        me: NodeId,
        index: u32,
        settings: RendezvousSettings,
        seed: u64,
        now: Now,
    ) -> Self {
        Self {
            station: Station::new(me, index, settings, now),
            alone: None,
            operation: None,
            asked: Asked::Nothing,
            closing: Closing::No,
            joining: None,
            paused_until: None,
            round: None,
            last_round: None,
            last_size: None,
            lost: BTreeMap::new(),
            failed_heartbeat: None,
            seed,
        }
    }

    #[cfg(test)]
    pub(crate) const fn station(&self) -> &Station {
        &self.station
    }

    fn step_alone(&mut self, now: Now) -> Option<Ask> {
        let ask = self.alone.as_mut()?.step(now);
        if matches!(ask, Ask::Done(_)) {
            self.alone = None;
            self.operation = None;
        }
        Some(ask)
    }

    fn ask_for_summary(&mut self) -> Ask {
        self.asked = Asked::Summary;
        Ask::Group(GroupAsk::ReadSummary)
    }

    fn on_summary(&mut self, summary: Summary, now: Now) {
        if let Some(joining) = &mut self.joining {
            joining.summary = summary;
            joining.is_fresh = true;
            joining.schedule(now.monotonic);
        } else if self.closing == Closing::ReadsSummary {
            self.closing = Closing::IsClosed;
            // A holder that has closed for another may have requests in its queue.
            if (!summary.is_closed || self.station.is_holder())
                && let Some((_, deadline)) = self.operation
            {
                self.closing = Closing::No;
                self.station.close(deadline, now);
            }
        }
    }

    /// Continues after the end of the station's goal.
    fn on_end(&mut self, result: Result<Option<Place>, Ending>, now: Now) -> Ask {
        let Some((operation, deadline)) = self.operation else {
            // This node had no operation: the other nodes have dropped it, and none of them holds the
            // lease.
            let until = now.monotonic.saturating_add(RETRY_PAUSE);
            return Ask::Pause { until };
        };
        if result == Err(Ending::NoHolder) && !operation.is_join() {
            let (me, settings) = (self.station.me().clone(), self.station.settings().clone());
            let mut alone = Solo::new(me, settings, self.seed, now).with_kept_id();
            alone.begin(operation, deadline, now);
            self.alone = Some(alone);
            return self.step(now);
        }
        self.operation = None;
        Ask::Done(match result {
            Ok(Some(place)) => Ok(self.enter_round(place)),
            Ok(None) => {
                let is_closed = operation == Operation::Close || self.station.summary().is_closed;
                Ok(self.answer(is_closed))
            }
            Err(Ending::Closed) => Err(OperationError::Closed),
            Err(Ending::NotNeeded) => Err(OperationError::GracefulExit),
            // A join never ends without a holder: this node would become it.
            Err(Ending::TimedOut | Ending::NoHolder) => Err(OperationError::Timeout),
        })
    }

    /// How soon a failed request is repeated.
    fn retry_pause(&self) -> Duration {
        if self.station.is_marked() {
            RETURN_PAUSE
        } else {
            RETRY_PAUSE
        }
    }

    fn answer(&self, is_closed: bool) -> Answer {
        Answer {
            round: self.station.summary().round,
            is_closed,
            joined: None,
        }
    }

    fn enter_round(&mut self, place: Place) -> Answer {
        let last = self.last_round.replace(place.round);
        let last_size = self.last_size.replace(place.size);
        self.round = Some((place.round, place.size));
        self.joining = None;
        self.lost.clear();
        Answer {
            round: place.round,
            is_closed: false,
            joined: Some(Joined {
                rank: place.rank,
                world_size: place.size,
                first: place.first,
                is_same_world: last == Some(place.same_as),
                nodes: Vec::new(),
                has_entered: false,
                has_lost_members: last_size.is_some_and(|last| place.size < last),
            }),
        }
    }
}

impl Engine for GroupEngine {
    fn me(&self) -> &NodeId {
        self.station.me()
    }

    fn begin(&mut self, operation: Operation, deadline: Duration, now: Now) {
        if operation != Operation::Close {
            self.round = None;
        }
        self.operation = Some((operation, deadline));
        self.alone = None;
        self.joining = None;
        self.paused_until = None;
        self.closing = Closing::No;
        match operation {
            // A holder lets no node into a running round.
            Operation::Join | Operation::Enter => {
                self.joining = Some(Joining::new(now.monotonic, deadline));
                let after = self.last_round.unwrap_or(-1);
                self.station.join(after, deadline, now);
            }
            Operation::Close => self.closing = Closing::ReadsSummary,
            Operation::Leave => self.station.leave(deadline, now),
            Operation::Exit => self.station.exit(deadline, now),
            // The station writes its heartbeats without a request.
            Operation::KeepAlive => self.operation = None,
        }
    }

    fn step(&mut self, now: Now) -> Ask {
        if self.station.has_lost_state() {
            return Ask::StartAnew;
        }
        if let Some(ask) = self.step_alone(now) {
            return ask;
        }
        self.asked = Asked::Nothing;
        if let Some(until) = self.paused_until.take() {
            return Ask::Pause { until };
        }
        match self.closing {
            Closing::No => {}
            Closing::ReadsSummary => return self.ask_for_summary(),
            Closing::IsClosed => {
                self.closing = Closing::No;
                self.operation = None;
                return Ask::Done(Ok(self.answer(true)));
            }
        }
        if let Some(joining) = &mut self.joining {
            if std::mem::take(&mut joining.is_fresh) {
                return Ask::Report;
            }
            if joining.report_at <= now.monotonic {
                return self.ask_for_summary();
            }
        }
        let mut ask = self.station.step(now);
        if let (Some(until), Some(joining)) = (ask.until_mut(), &self.joining) {
            *until = joining.report_at.min(*until);
        }
        let is_heartbeat = matches!(ask, GroupAsk::WriteHeartbeat(_));
        self.asked = Asked::Station { is_heartbeat };
        match ask {
            GroupAsk::ReadState => Ask::ReadState,
            GroupAsk::CheckState => Ask::CheckState,
            GroupAsk::WriteState => Ask::WriteState,
            GroupAsk::ReadMarks(nodes) => Ask::ReadMarks(nodes),
            GroupAsk::SetMark => Ask::SetMark,
            GroupAsk::Idle => Ask::Pause {
                until: Duration::MAX,
            },
            GroupAsk::Done(result) => {
                self.asked = Asked::Nothing;
                self.on_end(result, now)
            }
            ask => Ask::Group(ask),
        }
    }

    fn on_reply(&mut self, reply: Reply, now: Now) {
        if let Some(alone) = &mut self.alone {
            return alone.on_reply(reply, now);
        }
        match self.asked {
            Asked::Nothing => {}
            Asked::Summary => {
                let summary = match reply {
                    Reply::Value(Some(text)) => Summary::from_text(&text),
                    _ => None,
                };
                self.on_summary(summary.unwrap_or_default(), now);
            }
            Asked::Station { .. } => {
                self.station.on_reply(reply, now);
            }
        }
    }

    fn on_failure(&mut self, error: &RendezvousError, now: Now) {
        if self.asked == (Asked::Station { is_heartbeat: true }) && self.round.is_some() {
            self.failed_heartbeat = Some(Step::failed(Method::KeepAlive, error));
        }
        self.station.on_failure(now);
        self.alone = None;
        self.operation = None;
        self.closing = Closing::No;
        self.paused_until = Some(now.monotonic.saturating_add(self.retry_pause()));
    }

    fn on_outage(&mut self, now: Now) {
        self.station.on_failure(now);
        if let Some(alone) = &mut self.alone {
            alone.on_outage(now);
        }
        self.paused_until = Some(now.monotonic.saturating_add(self.retry_pause()));
    }

    fn is_kept_until(&self) -> Option<Duration> {
        self.round.map(|_| self.station.is_kept_until())
    }

    fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        match &self.alone {
            Some(alone) => alone.to_write(),
            None => self.station.to_write(),
        }
    }

    fn membership(&self) -> Option<Membership> {
        let (round, world_size) = self.round?;
        let (summary, is_evicted) = (self.station.summary(), self.station.is_evicted());
        let mut membership = membership_of(summary, round, world_size, is_evicted);
        let overdue = self.station.settings().dead_after() / 2;
        for lost in &mut membership.lost {
            // Nodes with a connection are lost after a longer silence (docs/spec/rendezvous.md, section 5.4).
            lost.is_disconnected = lost.silence <= overdue;
        }
        Some(membership)
    }

    fn report(&self, now: Now) -> WaitReport {
        let now = now.monotonic;
        let settings = self.station.settings();
        let (summary, since, deadline) = match &self.joining {
            Some(joining) => (&joining.summary, joining.since, joining.deadline),
            None => (self.station.summary(), now, now),
        };
        let dropped = summary.lost.named.iter().map(|(node, silence)| {
            let at = self.lost.get(node).copied().unwrap_or(now);
            DroppedNode {
                node: node.clone(),
                silence: *silence,
                ago: now.saturating_sub(at),
            }
        });
        let absent = summary
            .left
            .named
            .iter()
            .filter(|(_, is_joining)| !is_joining);
        WaitReport {
            is_complete: summary.is_complete,
            waited: now.saturating_sub(since),
            time_left: deadline.saturating_sub(now),
            joined: summary.joined,
            waiting: summary.waiting.named.clone(),
            absent: absent.map(|(node, _)| node.clone()).collect(),
            dropped: dropped.collect(),
            ..WaitReport::of(
                &settings.run_id,
                summary.round,
                settings.min_nodes,
                settings.max_nodes,
            )
        }
    }

    fn take_newly_lost(&mut self, now: Now) -> Vec<LostNode> {
        let lost = self.membership().unwrap_or_default().lost.into_iter();
        lost.filter(|lost| {
            let is_new = !self.lost.contains_key(&lost.node);
            self.lost.entry(lost.node.clone()).or_insert(now.monotonic);
            is_new
        })
        .collect()
    }

    fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        let mut steps = match &mut self.alone {
            Some(alone) => alone.take_steps(),
            None => self.station.take_steps(),
        };
        let own = self.failed_heartbeat.take();
        steps.extend(own.map(|step| (self.station.me().clone(), step)));
        steps
    }

    fn release(&mut self) -> Option<GroupAsk> {
        self.station.release()
    }
}

impl Joining {
    fn new(since: Duration, deadline: Duration) -> Self {
        Self {
            since,
            deadline,
            // A join that times out earlier also reads the summary once.
            report_at: since.saturating_add(FIRST_REPORT).min(deadline),
            summary: Summary::default(),
            is_fresh: false,
        }
    }

    fn schedule(&mut self, now: Duration) {
        self.report_at = now.saturating_add(REPORT_INTERVAL);
        if now < self.deadline {
            self.report_at = self.report_at.min(self.deadline);
        }
    }
}

/// The membership of a node that joined `round`.
fn membership_of(summary: &Summary, round: i64, world_size: usize, is_evicted: bool) -> Membership {
    let is_later = summary.round > round;
    let is_this = summary.round == round && summary.is_complete;
    let mut membership = Membership {
        is_evicted: is_evicted || is_later,
        is_closed: summary.is_closed,
        ..Membership::default()
    };
    // Until the next round is complete, the departures are from this round.
    if is_this || is_later {
        membership.waiting.clone_from(&summary.waiting.named);
    }
    if is_this || (is_later && !summary.is_complete) {
        let lost = summary.lost.named.iter();
        let left = summary.left.named.iter();
        membership.lost = lost
            .map(|(node, silence)| LostNode::new(node.clone(), *silence))
            .collect();
        membership.left = left
            .map(|(node, is_joining)| LeftNode::new(node.clone(), *is_joining))
            .collect();
    }
    if is_this {
        let gone = world_size.saturating_sub(summary.joined);
        membership.unnamed = gone.saturating_sub(membership.departed());
    }
    membership
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::state::Written;
    use crate::values::timestamp::Timestamp;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 1, 0)
    }

    /// A summary of round 3, in which one node waits, one was lost and one has left.
    fn summary() -> Summary {
        Summary {
            epoch: 1,
            round: 3,
            is_complete: true,
            is_closed: false,
            joined: 5,
            waiting: [node("w")].into_iter().collect(),
            lost: [(node("x"), Duration::from_secs(15))].into_iter().collect(),
            left: [(node("y"), true)].into_iter().collect(),
            ..Summary::default()
        }
    }

    #[test]
    fn a_node_that_finds_no_holder_leaves_by_itself() {
        let start = Now {
            monotonic: Duration::from_secs(1000),
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        };
        let settings = RendezvousSettings::for_test(1, 40);
        let mut engine = GroupEngine::new(node("a"), 1, settings, 1, start);
        engine.begin(Operation::Leave, Duration::MAX, start);
        loop {
            let reply = match engine.step(start) {
                Ask::Group(GroupAsk::WriteHeartbeat(_)) => Reply::Done,
                Ask::Group(GroupAsk::ReadLease) => Reply::Value(None),
                Ask::ReadState => break,
                other => panic!("{other:?}"),
            };
            engine.on_reply(reply, start);
        }
        let mut state = RendezvousState::default();
        state.wait_list.insert(node("a"));
        state.last_heartbeats.insert(node("a"), start.wall);
        let token = Token::new(*b"first");
        engine.on_reply(Reply::State(Some((state, token))), start);
        assert_eq!(engine.step(start), Ask::WriteState);
        let (state, _) = engine.to_write().expect("a state");
        assert!(state.wait_list.is_empty());
        engine.on_reply(Reply::Written(Written::Ours(Token::new(*b"second"))), start);
        let ask = engine.step(start);
        assert!(matches!(ask, Ask::Done(Ok(_))), "{ask:?}");
    }

    /// docs/spec/rendezvous.md, GROUP 9.
    #[test]
    fn a_member_learns_of_its_own_round_and_of_later_ones() {
        let membership = membership_of(&summary(), 3, 7, false);
        assert_eq!(membership.waiting, [node("w")]);
        let lost = LostNode::new(node("x"), Duration::from_secs(15));
        assert_eq!(membership.lost, [lost]);
        assert_eq!(membership.left, [LeftNode::new(node("y"), true)]);
        assert!(!membership.is_evicted);
        assert_eq!(membership.unnamed, 0);
        // One node is missing that the new holder has never listed.
        let membership = membership_of(&summary(), 3, 8, false);
        assert_eq!((membership.unnamed, membership.departed()), (1, 3));
        assert!(membership_of(&summary(), 3, 7, true).is_evicted);

        // The next round is open: the departures are from the last one.
        let open = Summary {
            is_complete: false,
            ..summary()
        };
        let membership = membership_of(&open, 2, 7, false);
        assert!(membership.is_evicted);
        assert_eq!(membership.departed(), 2);

        // The next round is complete: the departures are from that round.
        let membership = membership_of(&summary(), 2, 7, false);
        assert!(membership.is_evicted);
        assert_eq!((membership.departed(), membership.waiting.len()), (0, 1));
    }

    #[test]
    fn an_older_summary_says_only_whether_the_rendezvous_is_closed() {
        let closed = Summary {
            is_closed: true,
            ..summary()
        };
        let expected = Membership {
            is_closed: true,
            ..Membership::default()
        };
        assert_eq!(membership_of(&closed, 4, 7, false), expected);
        assert_eq!(
            membership_of(&Summary::default(), 0, 7, false),
            Membership::default()
        );
    }

    #[test]
    fn a_join_reports_after_seconds_and_at_its_deadline() {
        let second = Duration::from_secs(1);
        let mut joining = Joining::new(second, second * 13);
        assert_eq!(joining.report_at, second * 4);
        joining.schedule(second * 4);
        assert_eq!(joining.report_at, second * 13);
        joining.schedule(second * 12);
        assert_eq!(joining.report_at, second * 13);
        joining.schedule(second * 13);
        assert_eq!(joining.report_at, second * 23);
        assert_eq!(Joining::new(second, second / 2).report_at, second / 2);
    }
}
