//! The loop of a rendezvous handler, which carries out what its executor needs.
//!
//! It has its own thread, so that nothing that the handler's owner does delays heartbeats. `executor` and
//! `decide` make all decisions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

use crate::backend::{Part, RendezvousBackend, Stored, Token};
use crate::clock::{Clock, Now};
use crate::error::RendezvousError;
use crate::executor::{Executor, Need, Operation, OperationError};
use crate::goal::{Answer, Goal, Joined};
use crate::handler::{Membership, RendezvousEvent};
use crate::mailbox::{Inbox, Job, Message};
use crate::node::NodeId;
use crate::notices::NoticeBoard;
use crate::recorded_event::{Step, step_of_keep_alive, step_of_result, step_of_start};
use crate::shared::{LOG_INTERVAL, Shared, error_of, log_wait};
use crate::state::RendezvousState;
use crate::stored_state::StoredState;
use crate::watcher::{Found, Watcher};

/// How often a store that cannot be watched is polled, as in PyTorch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a join that waits for absent nodes reads whether they say that they have gone.
const NOTICES_INTERVAL: Duration = Duration::from_secs(1);

/// How often a waiting join reads the state and reports to its listeners; less often with many nodes, whose
/// state is long.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_OF_MANY: Duration = Duration::from_secs(10);

/// Up to this `max_nodes`, each arrival wakes every waiting participant. Beyond, only changes of the round do:
/// a thousand nodes would otherwise wake a thousand times.
const WOKEN_BY_EACH_JOIN_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct NodeLoop {
    clock: Clock,
    executor: Executor,
    states: StoredState,
    shared: Arc<Shared>,
    inbox: Inbox,
    jobs: VecDeque<Job>,
    watch: Option<Watch>,
    /// The complete round of which this node is a member.
    round: Option<i64>,
    /// The nodes of the last round that this node joined, in the order of their ranks.
    last_nodes: Vec<NodeId>,
    /// The last attempt to read the state has failed, so the executor's may be outdated.
    is_unknown: bool,
    is_stopping: bool,
    has_lease: bool,
    /// Whether the node has left its last round by [`Goal::Exit`], so that a join begins with the next one.
    has_exited: bool,
    notices: NoticeBoard,
    /// For which version of the state, and when, a join has read the notices to decide.
    notices_read: Option<(Option<Token>, Duration)>,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Watch {
    watcher: Watcher,
    /// The number of the last request.
    number: u64,
    /// The request in progress; `None` if there is none or its result would be outdated.
    request: Option<(Option<Token>, Part)>,
}

/// What a waiting join has reported so far.
#[derive(Debug, Default)]
struct Reported {
    /// The round and the numbers of participants and waiting nodes.
    counts: Option<(i64, usize, usize)>,
    reported_at: Option<Duration>,
    logged_at: Option<Duration>,
}

impl NodeLoop {
    /// Creates the loop of the node `executor`; `to_loop` is a sending end of `inbox`, for the watcher.
    pub(crate) fn new(
        clock: Clock,
        executor: Executor,
        backend: Arc<dyn RendezvousBackend>,
        shared: Arc<Shared>,
        inbox: Inbox,
        to_loop: Sender<Message>,
        seed: u64,
    ) -> Result<Self, RendezvousError> {
        let watch = match backend.watch()? {
            None => None,
            Some(watch) => Some(Watch::start(watch, to_loop)?),
        };
        let run_id = executor.settings().run_id.clone();
        let notices = shared.notices.clone();
        Ok(Self {
            clock,
            executor,
            states: StoredState::new(backend, &run_id),
            shared,
            inbox,
            jobs: VecDeque::new(),
            watch,
            round: None,
            last_nodes: Vec::new(),
            is_unknown: false,
            is_stopping: false,
            has_lease: false,
            has_exited: false,
            notices: NoticeBoard::new(notices),
            notices_read: None,
            random: fastrand::Rng::with_seed(seed),
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
                self.record(step_of_result(job.goal, &result));
                // The caller may no longer wait.
                let _ = job.reply.send(result);
            } else if self.round.is_some() {
                self.monitor();
            } else {
                self.receive(None);
            }
        }
        for job in self.jobs.drain(..) {
            let _ = job.reply.send(Err(RendezvousError::ShutDown {
                run_id: self.executor.settings().run_id.clone(),
            }));
        }
    }

    fn carry_out(&mut self, goal: Goal) -> Result<Answer, RendezvousError> {
        let now = self.clock.now().monotonic;
        let settings = self.executor.settings().clone();
        match goal {
            Goal::Join => {
                self.shared.refuse_if_interrupted(self.run_id())?;
                self.exit_round();
                let deadline = now.saturating_add(settings.join_timeout);
                if !std::mem::take(&mut self.has_exited) {
                    self.operate(Operation::Exit, deadline)?;
                }
                let joined = self.operate(Operation::Join, deadline);
                if matches!(joined, Err(RendezvousError::Interrupted { .. })) {
                    self.roll_back();
                }
                joined?;
                self.enter_round();
                return Ok(self.joined());
            }
            Goal::Close | Goal::Shutdown => {
                let deadline = now.saturating_add(settings.close_timeout);
                self.operate(Operation::Close, deadline)?;
            }
            Goal::Leave => {
                self.exit_round();
                let deadline = now.saturating_add(settings.close_timeout);
                self.operate(Operation::Leave, deadline)?;
            }
            Goal::Exit => {
                self.exit_round();
                let deadline = now.saturating_add(settings.join_timeout);
                self.operate(Operation::Exit, deadline)?;
                self.has_exited = true;
            }
            Goal::Read => {
                self.read()?;
                self.publish();
            }
        }
        Ok(self.answer())
    }

    /// Leaves after an interrupted join.
    fn roll_back(&mut self) {
        let limit = self.executor.settings().heartbeat_timeout;
        let deadline = self.clock.now().monotonic.saturating_add(limit);
        if let Err(error) = self.operate(Operation::Leave, deadline) {
            log::warn!(
                "node {} cannot leave the rendezvous after an interrupted join: {error}",
                self.executor.me().named()
            );
        }
    }

    /// Runs one operation to its end and releases the write lease, also after an error.
    fn operate(&mut self, operation: Operation, deadline: Duration) -> Result<(), RendezvousError> {
        let begun = self.clock.now();
        let result = self.step_through(operation, deadline, begun);
        self.release_lease();
        result?.map_err(|failure| {
            let now = self.clock.now();
            let waited = now.monotonic.saturating_sub(begun.monotonic);
            let run_id = self.executor.settings().run_id.clone();
            error_of(failure, operation, &run_id, waited, || {
                self.notices.refresh(self.executor.me());
                let mut report = self.executor.report_of_timeout(now);
                report.add_not_joining(self.notices.not_joining());
                report
            })
        })
    }

    fn step_through(
        &mut self,
        operation: Operation,
        deadline: Duration,
        begun: Now,
    ) -> Result<Result<(), OperationError>, RendezvousError> {
        self.executor.begin(operation, deadline, begun);
        let mut reported = Reported::default();
        loop {
            let now = self.clock.now();
            let need = self.executor.step(now);
            if let Some(decision) = self.executor.last_decision() {
                log::trace!(
                    "{}: {operation:?}: {:?} by {:?} ({})",
                    self.executor.me(),
                    decision.action,
                    decision.rule,
                    decision.reason,
                );
            }
            match need {
                Need::Read => self.read()?,
                Need::Write => self.write()?,
                Need::Wait { until } => {
                    if self.has_learned_from_notices(now) {
                        continue;
                    }
                    self.release_lease();
                    self.report(&mut reported, now);
                    let until = reported.reported_at.map_or(until, |at| {
                        until.min(at.saturating_add(self.report_interval()))
                    });
                    let until = if self.executor.awaits_notices(now) {
                        until.min(now.monotonic.saturating_add(NOTICES_INTERVAL))
                    } else {
                        until
                    };
                    let part = if self.are_many()
                        && self
                            .executor
                            .state()
                            .participants
                            .contains_key(self.executor.me())
                    {
                        Part::Round
                    } else {
                        Part::Members
                    };
                    self.wait(part, until);
                    if self.is_stopping {
                        return Err(RendezvousError::ShutDown {
                            run_id: self.executor.settings().run_id.clone(),
                        });
                    }
                    if operation == Operation::Join {
                        self.shared.refuse_if_interrupted(self.run_id())?;
                    }
                }
                Need::Done(result) => return Ok(result),
            }
        }
    }

    /// Reads the notices, if the join waits for nodes that may have written one. Returns whether to decide again.
    fn has_learned_from_notices(&mut self, now: Now) -> bool {
        if !self.executor.awaits_notices(now) {
            return false;
        }
        // A node writes its notice before it leaves the state.
        let token = self.executor.to_write().1;
        let is_recent = self.notices_read.as_ref().is_some_and(|(known, at)| {
            known.as_ref() == token && now.monotonic.saturating_sub(*at) < NOTICES_INTERVAL
        });
        if is_recent {
            return false;
        }
        self.notices_read = Some((token.cloned(), now.monotonic));
        self.notices.refresh(self.executor.me());
        self.executor.on_gone(self.notices.gone())
    }

    fn answer(&self) -> Answer {
        let state = self.executor.state();
        Answer {
            round: state.round,
            is_closed: state.closed,
            joined: None,
        }
    }

    /// The answer to a join.
    fn joined(&mut self) -> Answer {
        let state = self.executor.state();
        let mut nodes: Vec<(i64, NodeId)> = state
            .participants
            .iter()
            .map(|(node, &rank)| (rank, node.clone()))
            .collect();
        nodes.sort();
        let nodes: Vec<NodeId> = nodes.into_iter().map(|(_, node)| node).collect();
        let rank = self.executor.rank().map_or(0, |(rank, _)| rank);
        let last = std::mem::replace(&mut self.last_nodes, nodes.clone());
        Answer {
            joined: Some(Joined {
                rank: usize::try_from(rank).unwrap_or(0),
                world_size: nodes.len(),
                first: nodes.first().unwrap_or(self.executor.me()).clone(),
                is_same_world: last == nodes,
                nodes,
            }),
            ..self.answer()
        }
    }

    fn enter_round(&mut self) {
        self.round = Some(self.executor.state().round);
        self.publish();
    }

    fn exit_round(&mut self) {
        self.round = None;
        self.shared.forget_membership();
    }

    /// Writes a heartbeat if one is due, then waits until the next one or a message.
    fn monitor(&mut self) {
        let now = self.clock.now().monotonic;
        let due = self.executor.heartbeat_due_at();
        let until = match due.filter(|&due| due > now) {
            // A node that has just joined knows the state. If all nodes of a large round read it again at once,
            // they would delay each other.
            Some(due) => due,
            None => self.keep_alive(now),
        };
        while !self.is_stopping
            && self.jobs.is_empty()
            && self.clock.now().monotonic < until
            && self.round.is_some()
        {
            self.wait(Part::Members, until);
            if !self.is_unknown {
                self.publish();
            }
        }
    }

    /// Reads the state and writes a heartbeat if one is due. Returns when the next one is due.
    fn keep_alive(&mut self, now: Duration) -> Duration {
        let limit = self.executor.settings().heartbeat_timeout;
        let interval = self.executor.settings().keep_alive_interval;
        let result = self.operate(Operation::KeepAlive, now.saturating_add(limit));
        self.record([step_of_keep_alive(&result)]);
        match result {
            Ok(()) => {
                self.is_unknown = false;
                self.publish();
                self.executor
                    .heartbeat_due_at()
                    .unwrap_or(now.saturating_add(interval))
            }
            Err(error) => {
                self.publish_failure(&error);
                // Retry soon: after three intervals the others drop this node.
                let failed_at = self.clock.now().monotonic;
                failed_at.saturating_add(interval.min(POLL_INTERVAL))
            }
        }
    }

    /// Waits for a message, a change of the state or `until`, whichever is first. Polls a store that cannot be
    /// watched.
    fn wait(&mut self, part: Part, until: Duration) {
        let token = self.executor.to_write().1.cloned();
        let now = self.clock.now().monotonic;
        match &mut self.watch {
            Some(watch) => {
                watch.request(token, part);
                self.receive(Some(until.saturating_sub(now)));
            }
            None => {
                let pause = until.saturating_sub(now).min(POLL_INTERVAL);
                if self.receive(Some(pause)) {
                    return;
                }
                if let Err(error) = self.read() {
                    self.publish_failure(&error);
                }
            }
        }
    }

    /// Handles one message, after a wait of at most `timeout` (`None`: indefinitely). Returns whether there
    /// was one.
    fn receive(&mut self, timeout: Option<Duration>) -> bool {
        match self.inbox.receive(timeout) {
            Ok(Message::Run(job)) => self.jobs.push_back(job),
            Ok(Message::Found(number, found)) => self.on_found(number, found),
            // The flag is already set, and checked after each wait. The watcher has its own connection.
            Ok(Message::Interrupt | Message::Settled) => {}
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => self.is_stopping = true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    fn on_found(&mut self, number: u64, found: Found) {
        let Some(watch) = &mut self.watch else { return };
        match found {
            Err(error) => {
                // The watch would probably fail again at once. If the store itself fails, the next read
                // reports it.
                log::warn!("cannot watch the rendezvous, polling once a second instead: {error}");
                self.watch = None;
            }
            // The state was read or written since, so this one may be older.
            Ok(_) if watch.number != number || watch.request.take().is_none() => {}
            Ok(stored) => {
                if let Err(error) = self.on_state(stored) {
                    self.publish_failure(&error);
                }
            }
        }
    }

    fn read(&mut self) -> Result<(), RendezvousError> {
        let stored = self.states.read()?;
        self.adopt(stored);
        Ok(())
    }

    fn on_state(&mut self, stored: Option<Stored>) -> Result<(), RendezvousError> {
        let stored = stored.map(|stored| self.states.decode(stored));
        self.adopt(stored.transpose()?);
        Ok(())
    }

    fn adopt(&mut self, stored: Option<(RendezvousState, Token)>) {
        self.is_unknown = false;
        self.executor.on_read(stored, self.clock.now());
        self.report_lost();
        self.discard_watch_result();
    }

    fn write(&mut self) -> Result<(), RendezvousError> {
        if !self.has_lease && self.states.backend().acquire_write_lease() {
            self.has_lease = true;
            // Others have written while this node waited, so it decides anew.
            return self.read();
        }
        let steps = self.executor.take_steps();
        self.record(steps);
        let (state, token) = self.executor.to_write();
        let written = self.states.write(state, token)?;
        self.release_lease();
        self.executor.on_written(written, self.clock.now());
        let steps = self.executor.take_steps();
        self.record(steps);
        self.report_lost();
        self.discard_watch_result();
        if let Some(pause) = self.conflict_pause() {
            self.receive(Some(pause));
        }
        Ok(())
    }

    fn release_lease(&mut self) {
        if std::mem::take(&mut self.has_lease) {
            self.states.backend().release_write_lease();
        }
    }

    /// A random pause after a write conflict, so that the nodes do not all retry at the same moment.
    fn conflict_pause(&mut self) -> Option<Duration> {
        let longest = self.executor.conflict_pause_max(self.clock.now())?;
        Some(longest.mul_f64(self.random.f64()))
    }

    fn discard_watch_result(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.request = None;
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

    /// Reports a waiting join to the listeners and the log.
    fn report(&mut self, reported: &mut Reported, now: Now) {
        let state = self.executor.state();
        let counts = (state.round, state.participants.len(), state.wait_list.len());
        let has_changed = reported.counts.replace(counts) != Some(counts);
        let is_time = |last: Option<Duration>, interval: Duration| {
            last.is_none_or(|last| now.monotonic.saturating_sub(last) >= interval)
        };
        if has_changed || is_time(reported.reported_at, self.report_interval()) {
            // Most joins are over before the second report.
            if reported.reported_at.replace(now.monotonic).is_some() {
                self.notices.refresh(self.executor.me());
            }
            let mut report = self.executor.report(now);
            report.add_not_joining(self.notices.not_joining());
            if is_time(reported.logged_at, LOG_INTERVAL) {
                // The first line comes after one interval: most joins are over by then.
                if reported.logged_at.is_some() {
                    log_wait(&report, self.executor.last_decision().map(|it| it.reason));
                }
                reported.logged_at = Some(now.monotonic);
            }
            self.shared.notify(RendezvousEvent::Waiting(&report));
        }
    }

    fn record(&self, steps: impl IntoIterator<Item = Step>) {
        self.shared.record(self.run_id(), self.executor.me(), steps);
    }

    fn run_id(&self) -> &str {
        &self.executor.settings().run_id
    }

    fn report_lost(&mut self) {
        for lost in self.executor.take_newly_lost() {
            log::warn!("lost node {lost}");
            self.shared.notify(RendezvousEvent::NodeLost(&lost));
        }
    }

    fn publish(&self) {
        let Some(round) = self.round else { return };
        let state = self.executor.state();
        let me = self.executor.me();
        let max_nodes = self.executor.settings().max_nodes;
        let is_same_round = state.complete && state.round == round;
        let (lost, left) = self.executor.departed();
        let membership = Membership {
            // The next round would have no place for them either.
            waiting: if is_same_round && state.participants.len() >= max_nodes {
                Vec::new()
            } else {
                state.wait_list.iter().cloned().collect()
            },
            lost,
            left,
            unnamed: 0,
            is_evicted: !is_same_round || !state.participants.contains_key(me),
            is_closed: state.closed,
        };
        self.shared.publish(membership);
    }

    fn publish_failure(&mut self, error: &RendezvousError) {
        self.is_unknown = true;
        if self.round.is_some() {
            self.shared.publish_failure(error);
        }
    }
}

impl Watch {
    fn start(
        watch: Arc<dyn crate::backend::StateWatch>,
        to_loop: Sender<Message>,
    ) -> Result<Self, RendezvousError> {
        let watcher = Watcher::start(watch, move |number, found| {
            // The loop may have ended.
            let _ = to_loop.send(Message::Found(number, found));
        })?;
        Ok(Self {
            watcher,
            number: 0,
            request: None,
        })
    }

    fn request(&mut self, known: Option<Token>, part: Part) {
        let request = (known, part);
        if self.request.as_ref() == Some(&request) {
            return;
        }
        self.number += 1;
        self.watcher.request(self.number, request.0.clone(), part);
        self.request = Some(request);
    }
}
