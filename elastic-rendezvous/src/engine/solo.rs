//! The engine of a node that reads, changes and writes the state itself, as PyTorch's nodes do.
//!
//! `executor` decides within an operation. This file decides on the next operation, when a member writes a
//! heartbeat, and when a waiting join reads notices and reports.

use std::time::Duration;

use crate::engine::executor::{Executor, Need};
use crate::engine::links::RETURN_PAUSE;
use crate::engine::{Ask, Engine, Reply};
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Joined, Method, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::report::{LostNode, Membership, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::state::{Part, RendezvousState, Token};
use crate::values::timestamp::Now;

/// How soon the node retries a heartbeat that could not be written: after three intervals, the other nodes drop
/// it.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How often a join that waits for absent nodes reads whether they have announced their departure.
const NOTICES_INTERVAL: Duration = Duration::from_secs(1);

/// How often a spare with a place asks whether it may enter the round.
const ENTRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a waiting join reads the state and reports; less often with many nodes, whose state is long.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_OF_MANY: Duration = Duration::from_secs(10);

/// Up to this `max_nodes`, each arrival wakes every waiting participant. Beyond, only changes of the round do:
/// a thousand nodes would otherwise wake a thousand times.
const WOKEN_BY_EACH_JOIN_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Solo {
    executor: Executor,
    /// The operation in progress; `None` for a member between two heartbeats.
    work: Option<Work>,
    /// Whether the node has left its last round by [`Operation::Exit`], so that a join begins with the next one.
    has_exited: bool,
    /// The end of the executor's wait, before which notices and reports are due.
    waits_until: Option<Duration>,
    /// The end of the pause after a write conflict.
    paused_until: Option<Duration>,
    /// When a member checks whether a heartbeat is due.
    rests_until: Duration,
    /// The complete round that this node is a member of.
    round: Option<i64>,
    /// The nodes of the last round that this node joined, in the order of their ranks.
    last_nodes: Vec<NodeId>,
    join_requests: JoinRequests,
    /// The failure of a heartbeat, until it is recorded.
    failed_heartbeat: Option<Step>,
    marks: MarkRequests,
    random: fastrand::Rng,
}

#[derive(Debug, Clone, Copy)]
struct Work {
    operation: Operation,
    deadline: Duration,
    /// The join to start after the node has left its round.
    then: Option<Operation>,
}

impl Work {
    const fn new(operation: Operation, deadline: Duration) -> Self {
        Self {
            operation,
            deadline,
            then: None,
        }
    }
}

/// The requests that a waiting join repeats.
#[derive(Debug, Default)]
struct JoinRequests {
    /// The version of the state for which the notices were read, and when.
    notices: Option<(Option<Token>, Duration)>,
    /// The round that the join has asked to enter, and when.
    entry: Option<(i64, Duration)>,
    /// When the join has reported last, and the round and the numbers of participants and waiting nodes.
    report: Option<(Duration, (i64, usize, usize))>,
}

/// The requests about marks of nodes (docs/spec/rendezvous.md, section 10.3).
#[derive(Debug)]
struct MarkRequests {
    /// When the marks were last requested.
    asked_at: Duration,
    /// When the last request began that has found all other members connected.
    members_connected_at: Option<Duration>,
    /// Whether the request under way sets the mark of this node.
    sets_own: bool,
    /// Whether the last such request has failed. The next heartbeat does not wait for the mark.
    has_own_failed: bool,
}

impl MarkRequests {
    fn on_failure(&mut self) {
        self.has_own_failed |= std::mem::take(&mut self.sets_own);
    }
}

impl Solo {
    /// The engine of the node `me`; `seed` is of the random pauses after write conflicts.
    pub(crate) fn new(me: NodeId, settings: RendezvousSettings, seed: u64, now: Now) -> Self {
        Self {
            executor: Executor::new(me, settings, now),
            work: None,
            has_exited: false,
            waits_until: None,
            paused_until: None,
            rests_until: now.monotonic,
            round: None,
            last_nodes: Vec::new(),
            join_requests: JoinRequests::default(),
            failed_heartbeat: None,
            marks: MarkRequests {
                asked_at: now.monotonic,
                members_connected_at: None,
                sets_own: false,
                has_own_failed: false,
            },
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Keeps the id of this node, which other processes cannot have.
    pub(crate) fn with_kept_id(mut self) -> Self {
        self.executor.keep_id();
        self
    }

    fn start(&mut self, work: Work, now: Now) {
        let Work {
            operation,
            deadline,
            ..
        } = work;
        self.work = Some(work);
        self.waits_until = None;
        self.paused_until = None;
        self.join_requests.report = None;
        self.join_requests.entry = None;
        if operation.is_join() {
            self.executor.links_mut().delay_read(now.monotonic);
        }
        self.executor.begin(operation, deadline, now);
    }

    /// Continues after the end of an operation. Returns its result if it is the last one.
    fn on_end(
        &mut self,
        work: Work,
        result: Result<(), OperationError>,
        now: Now,
    ) -> Option<Result<Answer, OperationError>> {
        let Work {
            operation,
            deadline,
            then,
        } = work;
        if operation != Operation::KeepAlive || result.is_ok() {
            self.work = None;
        }
        if let Err(failure) = result {
            return Some(Err(failure));
        }
        let due = self.executor.heartbeat_due_at();
        if operation == Operation::KeepAlive {
            let interval = self.executor.settings().keep_alive_interval;
            self.rests_until = due.unwrap_or(now.monotonic.saturating_add(interval));
            return None;
        }
        if let Some(join) = then {
            self.start(Work::new(join, deadline), now);
            return None;
        }
        // A node that has just joined knows the state. If all nodes of a large round read it again at once, they would
        // delay each other.
        self.rests_until = due.unwrap_or(now.monotonic);
        self.has_exited |= operation == Operation::Exit;
        let state = self.executor.state();
        let (round, is_closed) = (state.round, state.closed);
        let joined = operation.is_join().then(|| self.joined());
        Some(Ok(Answer {
            round,
            is_closed,
            joined,
        }))
    }

    fn joined(&mut self) -> Joined {
        let state = self.executor.state();
        let mut nodes: Vec<(i64, NodeId)> = state
            .participants
            .iter()
            .map(|(node, &rank)| (rank, node.clone()))
            .collect();
        nodes.sort();
        let has_entered = self.executor.has_entered();
        let highest = nodes
            .last()
            .and_then(|(rank, _)| usize::try_from(*rank).ok());
        let nodes: Vec<NodeId> = nodes.into_iter().map(|(_, node)| node).collect();
        let world_size = match highest {
            // Ranks of lost members may be free.
            Some(highest) if has_entered => highest.saturating_add(1),
            _ => nodes.len(),
        };
        let rank = self.executor.rank().map_or(0, |(rank, _)| rank);
        self.round = Some(state.round);
        let last = std::mem::replace(&mut self.last_nodes, nodes.clone());
        Joined {
            rank: usize::try_from(rank).unwrap_or(0),
            world_size,
            first: nodes.first().unwrap_or(self.executor.me()).clone(),
            is_same_world: last == nodes,
            has_lost_members: last.iter().any(|node| !nodes.contains(node)),
            nodes,
            has_entered,
        }
    }

    /// The request that is due for the marks. Otherwise reduces `until` to the time of the next one.
    fn ask_for_marks(&mut self, until: &mut Duration, now: Now) -> Option<Ask> {
        if self.executor.settings().max_nodes < 2 {
            return None;
        }
        let links = self.executor.links();
        if links.is_own_due() {
            self.marks.sets_own = true;
            return Some(Ask::SetMark);
        }
        let due_at = links.read_due_at()?;
        if due_at > now.monotonic {
            *until = due_at.min(*until);
            return None;
        }
        self.marks.asked_at = now.monotonic;
        Some(Ask::ReadMarks(self.executor.linked()))
    }

    /// How soon a failed request is repeated.
    fn retry_pause(&self) -> Duration {
        let settings = self.executor.settings();
        let is_marked = settings.max_nodes > 1 && self.executor.links().read_due_at().is_some();
        let pause = if is_marked { RETURN_PAUSE } else { RETRY_PAUSE };
        settings.keep_alive_interval.min(pause)
    }

    /// Returns the action that is due before the executor's wait, or the wait.
    fn wait(&mut self, until: Duration, now: Now) -> Ask {
        let at = now.monotonic;
        let mut until = until;
        if let Some(ask) = self.ask_for_marks(&mut until, now) {
            return ask;
        }
        if self.executor.awaits_notices(now) {
            // A node writes its notice before it leaves the state.
            let token = self.executor.to_write().1;
            let is_recent = self
                .join_requests
                .notices
                .as_ref()
                .is_some_and(|(known, read_at)| {
                    known.as_ref() == token && at.saturating_sub(*read_at) < NOTICES_INTERVAL
                });
            if !is_recent {
                self.join_requests.notices = Some((token.cloned(), at));
                return Ask::ReadNotices;
            }
            until = until.min(at.saturating_add(NOTICES_INTERVAL));
        }
        if let Some(round) = self.executor.awaits_entry() {
            match self.join_requests.entry {
                Some((known, read_at))
                    if known == round && at.saturating_sub(read_at) < ENTRY_INTERVAL =>
                {
                    until = until.min(read_at.saturating_add(ENTRY_INTERVAL));
                }
                _ => {
                    self.join_requests.entry = Some((round, at));
                    return Ask::ReadEntry { round };
                }
            }
        }
        let state = self.executor.state();
        let counts = (state.round, state.participants.len(), state.wait_list.len());
        let interval = self.report_interval();
        match self.join_requests.report {
            Some((reported_at, reported))
                if reported == counts && at.saturating_sub(reported_at) < interval =>
            {
                until = until.min(reported_at.saturating_add(interval));
            }
            _ => {
                self.join_requests.report = Some((at, counts));
                return Ask::Report;
            }
        }
        let is_participant = state.participants.contains_key(self.executor.me());
        self.waits_until = None;
        Ask::AwaitState {
            part: if self.are_many() && is_participant {
                Part::Round
            } else {
                Part::Members
            },
            until,
        }
    }

    fn are_many(&self) -> bool {
        self.executor.settings().max_nodes > WOKEN_BY_EACH_JOIN_MAX
    }

    fn report_interval(&self) -> Duration {
        if self.are_many() {
            REPORT_INTERVAL_OF_MANY
        } else {
            REPORT_INTERVAL
        }
    }
}

impl Engine for Solo {
    fn me(&self) -> &NodeId {
        self.executor.me()
    }

    fn begin(&mut self, operation: Operation, deadline: Duration, now: Now) {
        if operation != Operation::Close {
            self.round = None;
        }
        let mut work = Work::new(operation, deadline);
        if operation.is_join() && !std::mem::take(&mut self.has_exited) {
            work.operation = Operation::Exit;
            work.then = Some(operation);
        }
        self.start(work, now);
    }

    fn step(&mut self, now: Now) -> Ask {
        if let Some(until) = self.paused_until.take() {
            return Ask::Pause { until };
        }
        loop {
            if let Some(until) = self.waits_until {
                return self.wait(until, now);
            }
            let work = match self.work {
                Some(work) => work,
                None if now.monotonic < self.rests_until => {
                    let (part, mut until) = (Part::Members, self.rests_until);
                    let marks = self.ask_for_marks(&mut until, now);
                    return marks.unwrap_or(Ask::AwaitState { part, until });
                }
                None => {
                    let limit = self.executor.settings().heartbeat_timeout;
                    let deadline = now.monotonic.saturating_add(limit);
                    let work = Work::new(Operation::KeepAlive, deadline);
                    self.start(work, now);
                    work
                }
            };
            let operation = work.operation;
            match self.executor.step(now) {
                Need::Read => return Ask::ReadState,
                // A node that returns sets its mark first, so that no node that reads its heartbeat drops it.
                Need::Write
                    if (operation.is_join() || operation == Operation::KeepAlive)
                        && self.executor.links().is_own_due()
                        && !self.marks.has_own_failed =>
                {
                    self.marks.sets_own = true;
                    return Ask::SetMark;
                }
                Need::Write => {
                    self.marks.has_own_failed = false;
                    return Ask::WriteState;
                }
                Need::Wait { until } => self.waits_until = Some(until),
                Need::Done(result) => {
                    if let Some(result) = self.on_end(work, result, now) {
                        return Ask::Done(result);
                    }
                }
            }
        }
    }

    fn on_reply(&mut self, reply: Reply, now: Now) {
        self.marks.sets_own = false;
        match reply {
            Reply::State(stored) => self.executor.on_read(stored, now),
            Reply::Written(written) => {
                self.executor.on_written(written, now);
                let longest = self.executor.conflict_pause_max(now);
                self.paused_until = longest.map(|longest| {
                    // Random, so that the nodes do not all retry at the same moment.
                    let pause = longest.mul_f64(self.random.f64());
                    now.monotonic.saturating_add(pause)
                });
            }
            Reply::Entry(round, entry) => {
                let is_new = self.executor.on_entry(round, entry);
                self.waits_until = self.waits_until.filter(|_| !is_new);
            }
            Reply::Done => self.executor.links_mut().on_set(),
            Reply::Marks(marks) => {
                let asked_at = self.marks.asked_at;
                if self.executor.on_marks(marks.as_ref(), asked_at, now) {
                    // Reads the state, in which the lost node may be listed no more.
                    self.waits_until = None;
                    self.rests_until = now.monotonic;
                }
                let (me, links) = (self.executor.me(), self.executor.links());
                // The goodbye of a node that leaves changes no mark that was read before.
                let listed = &self.executor.state().participants;
                let is_here = |node: &NodeId| {
                    node == me || (listed.contains_key(node) && links.is_connected(node))
                };
                if self.round.is_some() && self.last_nodes.iter().all(is_here) {
                    self.marks.members_connected_at = Some(asked_at);
                }
            }
            Reply::Gone(gone) => {
                let is_new = self.executor.on_gone(gone);
                self.waits_until = self.waits_until.filter(|_| !is_new);
            }
            _ => {}
        }
    }

    fn on_failure(&mut self, error: &RendezvousError, now: Now) {
        self.waits_until = None;
        self.marks.on_failure();
        if error.is_outage() {
            self.executor.on_outage();
        }
        let operation = self.work.take().map(|work| work.operation);
        let pause = if error.is_outage() {
            self.retry_pause()
        } else {
            RETRY_PAUSE.min(self.executor.settings().keep_alive_interval)
        };
        let retry_at = now.monotonic.saturating_add(pause);
        match operation {
            Some(Operation::KeepAlive) => {
                self.failed_heartbeat = Some(Step::failed(Method::KeepAlive, error));
                self.rests_until = retry_at;
            }
            // The next wait would fail at once.
            None => {
                self.paused_until = Some(retry_at);
                self.rests_until = retry_at;
            }
            Some(_) => {}
        }
    }

    fn on_outage(&mut self, now: Now) {
        self.waits_until = None;
        self.marks.on_failure();
        self.executor.on_outage();
        self.paused_until = Some(now.monotonic.saturating_add(self.retry_pause()));
    }

    fn is_kept_until(&self) -> Option<Duration> {
        self.round.and(self.executor.is_kept_until())
    }

    fn is_busy(&self) -> bool {
        self.work.is_some()
    }

    fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        Some(self.executor.to_write())
    }

    fn membership(&self) -> Option<Membership> {
        let round = self.round?;
        let state = self.executor.state();
        let max_nodes = self.executor.settings().max_nodes;
        let is_same_round = state.complete && state.round == round;
        let (lost, left) = self.executor.departed();
        Some(Membership {
            // The next round would have no place for them either.
            waiting: if is_same_round && state.participants.len() >= max_nodes {
                Vec::new()
            } else {
                state.wait_list.iter().cloned().collect()
            },
            lost,
            left,
            unnamed: 0,
            members: is_same_round.then_some(state.participants.len()),
            is_evicted: !is_same_round || !state.participants.contains_key(self.executor.me()),
            is_closed: state.closed,
        })
    }

    fn members_connected_at(&self) -> Option<Duration> {
        self.marks.members_connected_at
    }

    fn report(&self, now: Now) -> WaitReport {
        self.executor.report(now)
    }

    fn reason(&self) -> Option<&'static str> {
        self.executor.last_decision().map(|it| it.reason)
    }

    fn take_newly_lost(&mut self, _: Now) -> Vec<LostNode> {
        self.executor.take_newly_lost()
    }

    fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        let steps = [self.executor.take_step(), self.failed_heartbeat.take()];
        let me = self.executor.me();
        let steps = steps.into_iter().flatten();
        steps.map(|step| (me.clone(), step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::{ErrorContext, StoreError};

    use super::*;
    use crate::engine::links::{Mark, Marks};
    use crate::values::state::Written;
    use crate::values::timestamp::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Now {
        Now {
            monotonic: SECOND * 1000,
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        }
    }

    fn node(nodes: usize) -> Solo {
        let settings = RendezvousSettings::for_test(nodes, nodes);
        Solo::new(NodeId::new("a", 1, 0), settings, 1, start())
    }

    /// Reads and writes until the engine asks for something else.
    fn exchange(engine: &mut Solo, stored: &mut Option<(RendezvousState, Token)>, now: Now) -> Ask {
        loop {
            let reply = match engine.step(now) {
                Ask::ReadState => Reply::State(stored.clone()),
                Ask::WriteState => {
                    let (state, _) = engine.to_write().expect("a state");
                    let token = Token::new(crate::values::codec::encode(state));
                    *stored = Some((state.clone(), token.clone()));
                    Reply::Written(Written::Ours(token))
                }
                ask => return ask,
            };
            engine.on_reply(reply, now);
        }
    }

    #[test]
    fn a_member_that_cannot_write_a_heartbeat_tries_again_after_a_second() {
        let (mut engine, mut stored) = (node(1), None);
        let interval = engine.executor.settings().keep_alive_interval;
        engine.begin(Operation::Join, Duration::MAX, start());
        let Ask::Done(Ok(answer)) = exchange(&mut engine, &mut stored, start()) else {
            panic!("{engine:#?}");
        };
        assert_eq!(answer.joined.map(|joined| joined.world_size), Some(1));
        let due = start().after(interval);
        let waits = Ask::AwaitState {
            part: Part::Members,
            until: due.monotonic,
        };
        assert_eq!(engine.step(start()), waits);
        engine.take_steps();

        assert_eq!(engine.step(due), Ask::ReadState);
        assert!(engine.is_busy());
        let run_id = "job".to_owned();
        engine.on_failure(&RendezvousError::ShutDown { run_id }, due);
        assert_eq!(engine.take_steps().len(), 1, "the failure");
        let until = due.monotonic + SECOND;
        let part = Part::Members;
        assert_eq!(engine.step(due), Ask::AwaitState { part, until });
        assert!(engine.membership().is_some());

        let ask = exchange(&mut engine, &mut stored, due.after(SECOND));
        let until = until + interval;
        assert_eq!(ask, Ask::AwaitState { part, until });
    }

    /// Two members of a round.
    fn members(stored: &mut Option<(RendezvousState, Token)>) -> [Solo; 2] {
        let settings = RendezvousSettings::for_test(2, 2);
        let new = |name| Solo::new(NodeId::new(name, 1, 0), settings.clone(), 1, start());
        let mut nodes = ["a", "b"].map(new);
        for at in [0, 1, 0] {
            if !nodes[at].is_busy() {
                nodes[at].begin(Operation::Join, Duration::MAX, start());
            }
            loop {
                let reply = match exchange(&mut nodes[at], stored, start()) {
                    Ask::AwaitState { .. } => break nodes[at].on_reply(Reply::Nothing, start()),
                    Ask::Done(_) => break,
                    _ => Reply::Nothing,
                };
                nodes[at].on_reply(reply, start());
            }
        }
        assert!(nodes.iter().all(|it| !it.is_busy()), "{nodes:#?}");
        nodes
    }

    /// docs/spec/rendezvous.md, LINK 2 and 10. A goodbye changes no mark that another node reads.
    #[test]
    fn a_member_that_has_left_does_not_count_as_connected() {
        let mut stored = None;
        let [mut a, mut b] = members(&mut stored);
        let both = ["a", "b"].map(|name| (NodeId::new(name, 1, 0), Mark::Connected));
        let read = |node: &mut Solo| {
            node.marks.members_connected_at = None;
            node.on_reply(Reply::Marks(Some(both.clone().into())), start());
            node.members_connected_at().is_some()
        };
        assert!(read(&mut a));
        b.begin(Operation::Leave, Duration::MAX, start());
        let left = exchange(&mut b, &mut stored, start());
        assert!(matches!(left, Ask::Done(Ok(_))), "{left:?}");
        a.on_reply(Reply::State(stored.clone()), start());
        assert!(!read(&mut a));
    }

    /// The server may have no room for the connection of a mark.
    #[test]
    fn a_heartbeat_does_not_wait_for_a_mark_that_cannot_be_set() {
        let mut stored = None;
        let [mut a, _] = members(&mut stored);
        let context = ErrorContext::new(c10d_store::Operation::Get, [], "store", SECOND);
        let timeout = SECOND;
        let no_reply = StoreError::NoReply { context, timeout };
        let outage = RendezvousError::connection("job", no_reply);
        a.on_reply(Reply::Done, start());
        a.on_failure(&outage, start());
        let mut asked = Vec::new();
        for seconds in 1..20 {
            let now = start().after(SECOND * seconds);
            match exchange(&mut a, &mut stored, now) {
                Ask::SetMark => {
                    asked.push(stored.as_ref().map(|(_, token)| token.clone()));
                    a.on_failure(&outage, now);
                }
                Ask::ReadMarks(_) => a.on_reply(Reply::Marks(Some(Marks::new())), now),
                _ => a.on_reply(Reply::Nothing, now),
            }
        }
        let first = asked.first().expect("it tries to set its mark");
        assert!(
            asked.iter().any(|it| it != first),
            "no heartbeat was written"
        );
    }

    /// docs/spec/rendezvous.md, LOOP 4.
    #[test]
    fn a_waiting_join_reads_and_reports_each_second() {
        let (mut engine, mut stored) = (node(2), None);
        engine.on_reply(Reply::Marks(None), start());
        engine.begin(Operation::Join, Duration::MAX, start());
        for seconds in 0..3 {
            let now = start().after(SECOND * seconds);
            let asked = exchange(&mut engine, &mut stored, now);
            assert_eq!(asked, Ask::Report, "after {seconds} s");
            engine.on_reply(Reply::Nothing, now);
            let until = now.monotonic + SECOND;
            let part = Part::Members;
            assert_eq!(engine.step(now), Ask::AwaitState { part, until });
            engine.on_reply(Reply::Nothing, now.after(SECOND));
        }
    }

    /// docs/spec/rendezvous.md, LEASE 1.
    #[test]
    fn a_change_that_was_not_written_before_another_read_is_no_step() {
        let (mut engine, mut stored) = (node(1), None);
        engine.begin(Operation::Join, Duration::MAX, start());
        while engine.step(start()) != Ask::WriteState {
            engine.on_reply(Reply::State(None), start());
        }
        // The node has got the lease.
        engine.on_reply(Reply::State(None), start());
        assert_eq!(engine.take_steps(), []);
        let ask = exchange(&mut engine, &mut stored, start());
        assert!(matches!(ask, Ask::Done(Ok(_))), "{ask:?}");
    }
}
