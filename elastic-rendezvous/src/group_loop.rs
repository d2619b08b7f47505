//! The loop of a handler in a group, which carries out what its station asks of the store.
//!
//! As in `node_loop`, it has its own thread. It makes one request at a time over the store's one connection; a message
//! ends a wait that is in progress. `group` makes all decisions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use c10d_store::StoreError;

use crate::backend::RendezvousBackend;
use crate::clock::{Clock, Now};
use crate::error::RendezvousError;
use crate::executor::{Executor, Need, Operation, OperationError};
use crate::goal::{Answer, Goal, Joined};
use crate::group::{Ask, Ending, Place, Reply, Station, Summary};
use crate::group_store::GroupStore;
use crate::handler::{Membership, RendezvousEvent};
use crate::mailbox::{Inbox, Job, Message};
use crate::node::NodeId;
use crate::notices::NoticeBoard;
use crate::recorded_event::{Step, step_of_keep_alive, step_of_result, step_of_start};
use crate::report::{DroppedNode, LeftNode, LostNode, WaitReport};
use crate::settings::RendezvousSettings;
use crate::shared::{LOG_INTERVAL, Shared, error_of, log_wait};
use crate::stored_state::StoredState;

/// When a waiting join reads the summary for its first report, and how often for the later ones. Most joins are over
/// before the first.
const FIRST_REPORT: Duration = Duration::from_secs(3);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How long a member waits after an error of the store, or without a holder.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct GroupLoop {
    clock: Clock,
    station: Station,
    group: GroupStore,
    states: StoredState,
    shared: Arc<Shared>,
    inbox: Inbox,
    jobs: VecDeque<Job>,
    /// The complete round of which this node is a member.
    round: Option<i64>,
    /// Of the last round that this node joined.
    world_size: usize,
    /// The last round that this node joined.
    last_round: Option<i64>,
    /// The join in progress.
    joining: Option<Joining>,
    /// Whether the handler waits on the store after a join. Two waits at a time would need two connections.
    is_settling: bool,
    /// The members of this node's round that were lost, and when this node has learned it.
    lost: BTreeMap<NodeId, Duration>,
    /// What the published membership was made of.
    published: Option<(Summary, bool)>,
    is_stopping: bool,
    notices: NoticeBoard,
}

/// A waiting join, for its reports.
#[derive(Debug)]
struct Joining {
    since: Duration,
    deadline: Duration,
    report_at: Duration,
    log_at: Duration,
    /// As last read for a report.
    summary: Summary,
}

impl GroupLoop {
    /// Creates the loop of the node `me`. Blocks for at most the store's timeout.
    pub(crate) fn new(
        clock: Clock,
        me: NodeId,
        settings: RendezvousSettings,
        backend: Arc<dyn RendezvousBackend>,
        group: GroupStore,
        shared: Arc<Shared>,
        inbox: Inbox,
    ) -> Result<Self, RendezvousError> {
        let states = StoredState::new(backend, &settings.run_id);
        let index = group
            .count_handler()
            .map_err(|error| RendezvousError::connection(&settings.run_id, error))?;
        let notices = shared.notices.clone();
        Ok(Self {
            clock,
            station: Station::new(me, index, settings, clock.now()),
            group,
            states,
            shared,
            inbox,
            jobs: VecDeque::new(),
            round: None,
            world_size: 0,
            last_round: None,
            joining: None,
            is_settling: false,
            lost: BTreeMap::new(),
            published: None,
            is_stopping: false,
            notices: NoticeBoard::new(notices),
        })
    }

    /// Runs until a [`Message::Stop`].
    pub(crate) fn run(mut self) {
        while !self.is_stopping {
            if let Some(job) = self.jobs.pop_front() {
                if self.shared.is_new_host.swap(false, Ordering::AcqRel) {
                    self.record([Step::HostsStore]);
                }
                self.record(step_of_start(job.goal));
                let result = self.carry_out(job.goal);
                self.joining = None;
                if self.round.is_none() {
                    self.release();
                }
                self.record(step_of_result(job.goal, &result));
                self.is_settling = job.goal == Goal::Join && result.is_ok();
                // The caller may no longer wait.
                if job.reply.send(result).is_err() {
                    self.is_settling = false;
                }
            } else if self.round.is_some() {
                self.rest();
            } else {
                self.receive(None);
            }
        }
        self.release();
        for job in self.jobs.drain(..) {
            let run_id = self.station.settings().run_id.clone();
            let _ = job.reply.send(Err(RendezvousError::ShutDown { run_id }));
        }
    }

    fn carry_out(&mut self, goal: Goal) -> Result<Answer, RendezvousError> {
        let now = self.clock.now();
        let close_deadline = now
            .monotonic
            .saturating_add(self.station.settings().close_timeout);
        match goal {
            Goal::Join => self.join(now),
            Goal::Close | Goal::Shutdown => {
                // When a job ends, all its nodes close it.
                if !self.read_summary()?.is_closed {
                    self.station.close(close_deadline, now);
                    self.finish(Operation::Close, close_deadline, now)?;
                }
                Ok(self.answer(true))
            }
            Goal::Leave => {
                self.exit_round();
                self.station.leave(close_deadline, now);
                self.finish(Operation::Leave, close_deadline, now)?;
                Ok(self.answer(self.station.summary().is_closed))
            }
            Goal::Exit => {
                let deadline = now
                    .monotonic
                    .saturating_add(self.station.settings().join_timeout);
                self.exit_round();
                self.station.exit(deadline, now);
                self.finish(Operation::Exit, deadline, now)?;
                Ok(self.answer(self.station.summary().is_closed))
            }
            Goal::Read => {
                let state = self.states.read()?;
                Ok(self.answer(state.is_some_and(|(state, _)| state.closed)))
            }
        }
    }

    fn join(&mut self, now: Now) -> Result<Answer, RendezvousError> {
        let run_id = self.station.settings().run_id.clone();
        self.shared.refuse_if_interrupted(&run_id)?;
        self.exit_round();
        let deadline = now
            .monotonic
            .saturating_add(self.station.settings().join_timeout);
        self.joining = Some(Joining::new(now.monotonic, deadline));
        let after = self.last_round.unwrap_or(-1);
        self.station.join(after, deadline, now);
        let result = self.pursue();
        if matches!(result, Err(RendezvousError::Interrupted { .. })) {
            self.roll_back();
        }
        match result? {
            Ok(Some(place)) => Ok(self.enter_round(place)),
            Err(Ending::Closed) => Err(RendezvousError::Closed { run_id }),
            Err(Ending::NotNeeded) => Err(RendezvousError::GracefulExit { run_id }),
            // A join never ends without a holder: this node would become it.
            Ok(None) | Err(Ending::TimedOut | Ending::NoHolder) => {
                let report = self.report(self.clock.now().monotonic);
                Err(RendezvousError::Timeout {
                    report: Box::new(report),
                })
            }
        }
    }

    /// Leaves after an interrupted join.
    fn roll_back(&mut self) {
        self.joining = None;
        let now = self.clock.now();
        let limit = self.station.settings().heartbeat_timeout;
        let deadline = now.monotonic.saturating_add(limit);
        self.station.leave(deadline, now);
        if let Err(error) = self.finish(Operation::Leave, deadline, now) {
            log::warn!(
                "node {} cannot leave the rendezvous after an interrupted join: {error}",
                self.station.me().named()
            );
        }
    }

    /// Runs the station until it has left or closed the rendezvous, or does so without it if there is no holder.
    fn finish(
        &mut self,
        operation: Operation,
        deadline: Duration,
        begun: Now,
    ) -> Result<(), RendezvousError> {
        match self.pursue()? {
            Ok(_) => Ok(()),
            Err(Ending::NoHolder) => self.operate_alone(operation, deadline),
            Err(ending) => {
                let failure = match ending {
                    Ending::Closed => OperationError::Closed,
                    Ending::NotNeeded => OperationError::GracefulExit,
                    Ending::TimedOut | Ending::NoHolder => OperationError::Timeout,
                };
                Err(self.error_of(failure, operation, begun))
            }
        }
    }

    /// Reads, changes and writes the state as a node without a group does.
    fn operate_alone(
        &mut self,
        operation: Operation,
        deadline: Duration,
    ) -> Result<(), RendezvousError> {
        let begun = self.clock.now();
        let (me, settings) = (self.station.me().clone(), self.station.settings().clone());
        let mut executor = Executor::new(me, settings, begun);
        executor.begin(operation, deadline, begun);
        loop {
            let now = self.clock.now();
            match executor.step(now) {
                Need::Read => executor.on_read(self.states.read()?, self.clock.now()),
                Need::Write => {
                    self.record(executor.take_steps());
                    let (state, token) = executor.to_write();
                    let written = self.states.write(state, token)?;
                    executor.on_written(written, self.clock.now());
                    self.record(executor.take_steps());
                    if let Some(longest) = executor.conflict_pause_max(self.clock.now()) {
                        self.receive(Some(longest.mul_f64(fastrand::f64())));
                    }
                }
                Need::Wait { until } => {
                    let pause = until.saturating_sub(now.monotonic);
                    self.receive(Some(pause.min(RETRY_PAUSE)));
                }
                Need::Done(result) => {
                    return result.map_err(|failure| self.error_of(failure, operation, begun));
                }
            }
            if self.is_stopping {
                return Err(self.shut_down_error());
            }
        }
    }

    fn error_of(
        &self,
        failure: OperationError,
        operation: Operation,
        begun: Now,
    ) -> RendezvousError {
        let now = self.clock.now().monotonic;
        let waited = now.saturating_sub(begun.monotonic);
        let run_id = &self.station.settings().run_id;
        error_of(failure, operation, run_id, waited, || self.report(now))
    }

    fn shut_down_error(&self) -> RendezvousError {
        RendezvousError::ShutDown {
            run_id: self.station.settings().run_id.clone(),
        }
    }

    /// Runs the station until its goal is reached, or not.
    fn pursue(&mut self) -> Result<Result<Option<Place>, Ending>, RendezvousError> {
        loop {
            self.receive_all();
            if self.is_stopping {
                return Err(self.shut_down_error());
            }
            if self.joining.is_some() {
                let run_id = &self.station.settings().run_id;
                self.shared.refuse_if_interrupted(run_id)?;
                self.report_if_due()?;
            }
            if let Some(result) = self.turn()? {
                return Ok(result);
            }
        }
    }

    /// Carries out one request of the station. Returns the result of its goal at the end.
    fn turn(&mut self) -> Result<Option<Result<Option<Place>, Ending>>, RendezvousError> {
        let ask = match self.station.step(self.clock.now()) {
            Ask::Done(result) => return Ok(Some(result)),
            ask => ask,
        };
        self.record_for_all();
        match self.perform(ask) {
            Ok(reply) => {
                self.station.on_reply(reply, self.clock.now());
                self.record_for_all();
                Ok(None)
            }
            Err(error) => {
                self.station.on_failure(self.clock.now());
                Err(error)
            }
        }
    }

    fn perform(&mut self, ask: Ask) -> Result<Reply, RendezvousError> {
        let index = self.station.index();
        let reply = match ask {
            Ask::Idle | Ask::Done(_) => {
                self.receive(None);
                return Ok(Reply::Nothing);
            }
            Ask::CountNodes => self.group.handlers().map(Reply::Count),
            Ask::ReadState => return Ok(Reply::State(self.states.read()?)),
            Ask::CheckState => {
                let token = self.station.to_write().and_then(|(_, token)| token);
                let is_same = self.states.backend().is_current(token)?;
                return Ok(Reply::IsSame(is_same));
            }
            Ask::WriteState => {
                let Some((state, token)) = self.station.to_write() else {
                    return Ok(Reply::Nothing);
                };
                return Ok(Reply::Written(self.states.write(state, token)?));
            }
            Ask::WriteHeartbeat(heartbeat) => {
                let written = self.group.write_heartbeat(index, heartbeat);
                let written = written.map_err(|error| self.failed(error));
                if self.round.is_some() {
                    self.record([step_of_keep_alive(&written)]);
                }
                return written.map(|()| Reply::Done);
            }
            Ask::ReadLease => self.group.read_lease().map(Reply::Value),
            Ask::Claim { expected, lease } => self
                .group
                .claim(&expected, &lease)
                .map(|lease| Reply::Value(Some(lease))),
            Ask::Push(request) => self.group.push(&request).map(|()| Reply::Done),
            Ask::ReadSummary => self.group.read_summary().map(Reply::Value),
            Ask::ReadAnswer => self.group.read_answer(index).map(Reply::Value),
            Ask::AwaitAnswer { known, until } => {
                let answer = self.wait(until, |group, timeout| {
                    group.await_answer(index, &known, timeout)
                });
                answer.map(value_or_nothing)
            }
            Ask::AwaitSummary { known, until } => {
                let summary =
                    self.wait(until, |group, timeout| group.await_summary(&known, timeout));
                summary.map(value_or_nothing)
            }
            Ask::TakeRequests { until } => {
                let requests = self.wait(until, |group, timeout| group.take_requests(timeout));
                requests.map(|requests| requests.map_or(Reply::Nothing, Reply::Requests))
            }
            Ask::WriteAnswers(answers) => self.group.write_answers(&answers).map(|()| Reply::Done),
            Ask::WriteSummary(text) => self.group.write_summary(&text).map(|()| Reply::Done),
            Ask::ReadHeartbeats(indices) => {
                self.group.read_heartbeats(&indices).map(Reply::Heartbeats)
            }
        };
        reply.map_err(|error| self.failed(error))
    }

    /// Waits on the store until this time, a message or the next report.
    fn wait<T>(
        &mut self,
        until: Duration,
        wait: impl FnOnce(&GroupStore, Duration) -> Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let report_at = self.joining.as_ref().map(|joining| joining.report_at);
        let until = report_at.map_or(until, |at| until.min(at));
        let timeout = until.saturating_sub(self.clock.now().monotonic);
        if self.is_settling && !self.station.is_holder() {
            self.receive(Some(timeout));
            return Ok(None);
        }
        let waited = self
            .inbox
            .wait(self.joining.is_some(), || wait(&self.group, timeout));
        match waited {
            Err(message) => {
                self.on_message(message);
                Ok(None)
            }
            Ok((Err(StoreError::Interrupted { .. }), _)) => Ok(None),
            Ok((result, was_rung)) => {
                if was_rung {
                    self.group.take_back_interrupt()?;
                }
                result
            }
        }
    }

    /// Gives the lease back, if this node holds it.
    fn release(&mut self) {
        let Some(Ask::Claim { expected, lease }) = self.station.release() else {
            return;
        };
        if let Err(error) = self.group.claim(&expected, &lease) {
            log::debug!("cannot release the lease of the rendezvous: {error}");
        }
    }

    /// Carries out one request of a member, and publishes what it has learned.
    fn rest(&mut self) {
        self.receive_all();
        if self.is_stopping || !self.jobs.is_empty() {
            return;
        }
        match self.turn() {
            Ok(None) => self.publish(),
            // No request was pending: the others have dropped this node, and none of them holds the lease.
            Ok(Some(_)) => {
                self.publish();
                self.receive(Some(RETRY_PAUSE));
            }
            Err(error) => {
                self.published = None;
                self.shared.publish_failure(&error);
                self.receive(Some(RETRY_PAUSE));
            }
        }
    }

    fn receive_all(&mut self) {
        while let Ok(message) = self.inbox.try_receive() {
            self.on_message(message);
        }
    }

    /// Handles one message, after a wait of at most `timeout` (`None`: indefinitely).
    fn receive(&mut self, timeout: Option<Duration>) {
        match self.inbox.receive(timeout) {
            Ok(message) => self.on_message(message),
            Err(RecvTimeoutError::Disconnected) => self.is_stopping = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Run(job) => self.jobs.push_back(job),
            // The flag is already set, and checked after each wait. There is no watcher.
            Message::Interrupt | Message::Found(..) => {}
            Message::Settled => self.is_settling = false,
            Message::Stop => self.is_stopping = true,
        }
    }

    fn read_summary(&self) -> Result<Summary, RendezvousError> {
        let text = self.group.read_summary();
        let text = text.map_err(|error| self.failed(error))?;
        let summary = text.and_then(|text| Summary::from_text(&text));
        Ok(summary.unwrap_or_default())
    }

    fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(&self.station.settings().run_id, error)
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
        self.round = Some(place.round);
        self.world_size = place.size;
        self.lost.clear();
        self.publish();
        Answer {
            round: place.round,
            is_closed: false,
            joined: Some(Joined {
                rank: place.rank,
                world_size: place.size,
                first: place.first,
                is_same_world: last == Some(place.same_as),
                nodes: Vec::new(),
            }),
        }
    }

    fn exit_round(&mut self) {
        self.round = None;
        self.published = None;
        self.shared.forget_membership();
    }

    fn record(&self, steps: impl IntoIterator<Item = Step>) {
        let run_id = &self.station.settings().run_id;
        self.shared.record(run_id, self.station.me(), steps);
    }

    /// As the holder: records what it has changed for each node, as an event of that node.
    fn record_for_all(&mut self) {
        let run_id = &self.station.settings().run_id.clone();
        for (node, step) in self.station.take_steps() {
            self.shared.record(run_id, &node, [step]);
        }
    }

    fn publish(&mut self) {
        let Some(round) = self.round else { return };
        let (summary, is_evicted) = (self.station.summary(), self.station.is_evicted());
        let is_known =
            |(known, was_evicted): &(Summary, bool)| known == summary && *was_evicted == is_evicted;
        if self.published.as_ref().is_some_and(is_known) {
            return;
        }
        self.published = Some((summary.clone(), is_evicted));
        let membership = membership_of(summary, round, self.world_size, is_evicted);
        let now = self.clock.now().monotonic;
        for lost in &membership.lost {
            if self.lost.insert(lost.node.clone(), now).is_none() {
                log::warn!("lost node {lost}");
                self.shared.notify(RendezvousEvent::NodeLost(lost));
            }
        }
        self.shared.publish(membership);
    }

    /// Reports a waiting join to the listeners and the log.
    fn report_if_due(&mut self) -> Result<(), RendezvousError> {
        let now = self.clock.now().monotonic;
        let is_due = |joining: &Joining| joining.report_at <= now;
        if !self.joining.as_ref().is_some_and(is_due) {
            return Ok(());
        }
        let summary = self.read_summary()?;
        let Some(joining) = &mut self.joining else {
            return Ok(());
        };
        joining.summary = summary;
        joining.schedule(now);
        let must_log = joining.log_at <= now;
        if must_log {
            joining.log_at = now.saturating_add(LOG_INTERVAL);
        }
        self.notices.refresh(self.station.me());
        let report = self.report(now);
        if must_log {
            log_wait(&report, None);
        }
        self.shared.notify(RendezvousEvent::Waiting(&report));
        Ok(())
    }

    fn report(&self, now: Duration) -> WaitReport {
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
        let mut report = WaitReport {
            run_id: settings.run_id.clone(),
            round: summary.round,
            is_complete: summary.is_complete,
            min_nodes: settings.min_nodes,
            max_nodes: settings.max_nodes,
            waited: now.saturating_sub(since),
            time_left: deadline.saturating_sub(now),
            // Only the holder of the state knows.
            last_call_left: None,
            joined: summary.joined,
            participants: Vec::new(),
            waiting: summary.waiting.named.clone(),
            spares: Vec::new(),
            suspects: Vec::new(),
            silent: Vec::new(),
            absent: absent.map(|(node, _)| node.clone()).collect(),
            dropped: dropped.collect(),
            not_joining: Vec::new(),
        };
        report.add_not_joining(self.notices.not_joining());
        report
    }
}

impl Joining {
    fn new(since: Duration, deadline: Duration) -> Self {
        Self {
            since,
            deadline,
            // A join that times out earlier also reads the summary once.
            report_at: since.saturating_add(FIRST_REPORT).min(deadline),
            log_at: since.saturating_add(LOG_INTERVAL),
            summary: Summary::default(),
        }
    }

    fn schedule(&mut self, now: Duration) {
        self.report_at = now.saturating_add(REPORT_INTERVAL);
        if now < self.deadline {
            self.report_at = self.report_at.min(self.deadline);
        }
    }
}

fn value_or_nothing(value: Option<Vec<u8>>) -> Reply {
    value.map_or(Reply::Nothing, |value| Reply::Value(Some(value)))
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
    // Until the next round is complete, the departures are those from this one.
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
        }
    }

    /// docs/rendezvous.md, GROUP 9.
    #[test]
    fn a_member_learns_of_its_own_round_and_of_later_ones() {
        let membership = membership_of(&summary(), 3, 7, false);
        assert_eq!(membership.waiting, [node("w")]);
        let lost = LostNode::new(node("x"), Duration::from_secs(15));
        assert_eq!(membership.lost, [lost]);
        assert_eq!(membership.left, [LeftNode::new(node("y"), true)]);
        assert!(!membership.is_evicted);
        assert_eq!(membership.unnamed, 0);
        // A node is gone of which a new holder does not know.
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

        // It is complete: the departures are from that one.
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
