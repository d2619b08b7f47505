//! The one loop of a rendezvous handler: carries out what its executor needs.
//!
//! It runs on a thread of its own, so that signs of life are given whatever the handler's owner does.
//! It decides nothing about the rendezvous (`decide`) and knows no store (`backend`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::backend::{Part, RendezvousBackend, Stored, Token};
use crate::clock::Now;
use crate::codec::{self, CodecLimits};
use crate::error::RendezvousError;
use crate::executor::{Ending, Executor, Need, Operation, Written};
use crate::goal::{Answer, Goal};
use crate::handler::{Listener, Membership, RendezvousEvent};
use crate::node::NodeId;
use crate::recorded_event::{Step, step_of_keep_alive, step_of_result, step_of_start};
use crate::report::WaitReport;
use crate::state::RendezvousState;
use crate::timestamp::Timestamp;
use crate::watcher::{Found, Watcher};

/// How often a store is asked that cannot wake us, as in PyTorch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a join that waits looks who is there and tells its listener; with many nodes, whose state
/// is long, more rarely.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_OF_MANY: Duration = Duration::from_secs(10);

/// How often a join that waits writes a line to the log.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Up to so many nodes, each that waits is woken whenever another comes. With more, only when the
/// round is complete or the last call begins: waking a thousand nodes a thousand times helps nobody.
const WOKEN_BY_EACH_JOIN_MAX: usize = 32;

/// What the loop is asked to do.
#[derive(Debug)]
pub(crate) enum Message {
    Run(Job),
    /// What the watcher has found, on which order.
    Found(u64, Found),
    Interrupt,
    Stop,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) goal: Goal,
    pub(crate) reply: Sender<Result<Answer, RendezvousError>>,
}

/// What the loop and the handler's callers share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    membership: Mutex<Option<Result<Membership, String>>>,
    listeners: Mutex<Listeners>,
    /// Set for good: what joins from now on is interrupted.
    pub(crate) is_interrupted: AtomicBool,
    /// Set until it is recorded that this process hosts the store.
    pub(crate) is_new_host: AtomicBool,
}

#[derive(Default)]
struct Listeners(Vec<Listener>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

impl Shared {
    /// The membership, why it is not known, or `None` when the node is in no round.
    pub(crate) fn membership(&self) -> Option<Result<Membership, String>> {
        self.membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn add_listener(&self, listener: Listener) {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.0.push(listener);
    }

    /// Returns whether it is another than before.
    fn set_membership(&self, membership: Option<Result<Membership, String>>) -> bool {
        let mut present = self
            .membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_new = *present != membership;
        *present = membership;
        is_new
    }

    fn tell(&self, event: RendezvousEvent<'_>) {
        for listener in self.listeners() {
            listener(&event);
        }
    }

    fn listeners(&self) -> Vec<Listener> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .clone()
    }
}

/// Both clocks of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Now {
        Now {
            monotonic: self.start.elapsed(),
            wall: Timestamp::from_system_time(SystemTime::now()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct NodeLoop {
    clock: Clock,
    executor: Executor,
    backend: Arc<dyn RendezvousBackend>,
    limits: CodecLimits,
    shared: Arc<Shared>,
    inbox: Receiver<Message>,
    jobs: VecDeque<Job>,
    watch: Option<Watch>,
    /// The complete round that this node is in.
    round: Option<i64>,
    is_stopping: bool,
    has_lease: bool,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Watch {
    watcher: Watcher,
    /// Counts what the watcher was told to look for.
    order: u64,
    /// What it looks for; `None` when it looks for nothing, or what it finds is old by now.
    present: Option<(Option<Token>, Part)>,
}

/// When a join that waits was last talked about.
#[derive(Debug, Default)]
struct Telling {
    participants: Option<(i64, usize, usize)>,
    reported: Option<Duration>,
    logged: Option<Duration>,
}

impl NodeLoop {
    /// The loop of the node `executor`; `to_loop` is the other end of `inbox`, for the watcher.
    pub(crate) fn new(
        clock: Clock,
        executor: Executor,
        backend: Arc<dyn RendezvousBackend>,
        shared: Arc<Shared>,
        inbox: Receiver<Message>,
        to_loop: Sender<Message>,
        seed: u64,
    ) -> Result<Self, RendezvousError> {
        let watch = match backend.watch()? {
            None => None,
            Some(watch) => Some(Watch::start(watch, to_loop)?),
        };
        Ok(Self {
            clock,
            executor,
            backend,
            limits: CodecLimits::default(),
            shared,
            inbox,
            jobs: VecDeque::new(),
            watch,
            round: None,
            is_stopping: false,
            has_lease: false,
            random: fastrand::Rng::with_seed(seed),
        })
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        while !self.is_stopping {
            if let Some(job) = self.jobs.pop_front() {
                if self.shared.is_new_host.swap(false, Ordering::AcqRel) {
                    self.record([Step::HostsStore]);
                }
                self.record(step_of_start(job.goal));
                let result = self.carry_out(job.goal);
                self.record(step_of_result(job.goal, &result));
                // Whoever asked may have gone.
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
                self.refuse_if_interrupted()?;
                self.forget_world();
                let deadline = now.saturating_add(settings.join_timeout);
                self.operate(Operation::Exit, deadline)?;
                let joined = self.operate(Operation::Join, deadline);
                if matches!(joined, Err(RendezvousError::Interrupted { .. })) {
                    self.take_back();
                }
                joined?;
                self.remember_world();
            }
            Goal::Close | Goal::Shutdown => {
                let deadline = now.saturating_add(settings.close_timeout);
                self.operate(Operation::Close, deadline)?;
            }
            Goal::Leave => {
                self.forget_world();
                let deadline = now.saturating_add(settings.close_timeout);
                self.operate(Operation::Leave, deadline)?;
            }
            Goal::Read => {
                self.read()?;
                self.publish();
            }
        }
        Ok(self.answer())
    }

    /// After a join that was given up.
    fn take_back(&mut self) {
        let limit = self.executor.settings().heartbeat_timeout;
        let deadline = self.clock.now().monotonic.saturating_add(limit);
        if let Err(error) = self.operate(Operation::Leave, deadline) {
            log::warn!(
                "{} has given up joining and cannot leave: {error}",
                self.executor.me()
            );
        }
    }

    /// Runs one operation to its end and releases the write lease, also after an error.
    fn operate(&mut self, operation: Operation, deadline: Duration) -> Result<(), RendezvousError> {
        let begun = self.clock.now();
        let result = self.step_through(operation, deadline, begun);
        self.release_lease();
        result?.map_err(|ending| self.error_of(ending, operation, begun))
    }

    fn step_through(
        &mut self,
        operation: Operation,
        deadline: Duration,
        begun: Now,
    ) -> Result<Result<(), Ending>, RendezvousError> {
        self.executor.begin(operation, deadline, begun);
        let mut telling = Telling::default();
        loop {
            let now = self.clock.now();
            let need = self.executor.step(now);
            if let Some(decision) = self.executor.last_decision() {
                log::trace!(
                    "{}: {operation:?}: {:?}, as {} ({})",
                    self.executor.me(),
                    decision.action,
                    decision.reason,
                    decision.rule,
                );
            }
            match need {
                Need::Read => self.read()?,
                Need::Write => self.write()?,
                Need::Wait { until } => {
                    self.release_lease();
                    self.tell(&mut telling, now);
                    let until = telling.reported.map_or(until, |at| {
                        until.min(at.saturating_add(self.report_interval()))
                    });
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
                        self.refuse_if_interrupted()?;
                    }
                }
                Need::Done(result) => return Ok(result),
            }
        }
    }

    fn error_of(&mut self, ending: Ending, operation: Operation, begun: Now) -> RendezvousError {
        let run_id = self.executor.settings().run_id.clone();
        let now = self.clock.now();
        match (ending, operation) {
            (Ending::Closed, _) => RendezvousError::Closed { run_id },
            (Ending::GracefulExit, _) => RendezvousError::GracefulExit { run_id },
            (Ending::Timeout, Operation::Join | Operation::Exit) => RendezvousError::Timeout {
                report: Box::new(self.executor.report_of_timeout(now)),
            },
            (Ending::Timeout, operation) => RendezvousError::TooSlow {
                run_id,
                what: match operation {
                    Operation::Close => "close",
                    Operation::KeepAlive => "give a sign of life in",
                    _ => "leave",
                },
                timeout: now.monotonic.saturating_sub(begun.monotonic),
            },
        }
    }

    fn refuse_if_interrupted(&self) -> Result<(), RendezvousError> {
        if self.shared.is_interrupted.load(Ordering::Acquire) {
            return Err(RendezvousError::Interrupted {
                run_id: self.executor.settings().run_id.clone(),
            });
        }
        Ok(())
    }

    fn answer(&self) -> Answer {
        let state = self.executor.state();
        let mut nodes: Vec<(i64, NodeId)> = state
            .participants
            .iter()
            .map(|(node, &rank)| (rank, node.clone()))
            .collect();
        nodes.sort();
        let rank = self.executor.rank().map_or(0, |(rank, _)| rank);
        Answer {
            round: state.round,
            is_closed: state.closed,
            rank: usize::try_from(rank).unwrap_or(0),
            nodes: nodes.into_iter().map(|(_, node)| node).collect(),
        }
    }

    fn remember_world(&mut self) {
        self.round = Some(self.executor.state().round);
        self.publish();
    }

    fn forget_world(&mut self) {
        self.round = None;
        self.shared.set_membership(None);
    }

    /// One turn of watching over a complete round: a sign of life if it is due, else a wait.
    fn monitor(&mut self) {
        let now = self.clock.now().monotonic;
        let due = self.executor.heartbeat_due_at();
        let until = match due.filter(|&due| due > now) {
            // Whoever has just joined knows the state: that all nodes of a large round read it again
            // at the same moment would hold them all up.
            Some(due) => due,
            None => self.keep_alive(now),
        };
        while !self.is_stopping
            && self.jobs.is_empty()
            && self.clock.now().monotonic < until
            && self.round.is_some()
        {
            self.wait(Part::Members, until);
            self.publish();
        }
    }

    /// Reads the state, and writes only if a sign of life is due. Returns when the next one is.
    fn keep_alive(&mut self, now: Duration) -> Duration {
        let limit = self.executor.settings().heartbeat_timeout;
        let interval = self.executor.settings().keep_alive_interval;
        let result = self.operate(Operation::KeepAlive, now.saturating_add(limit));
        self.record([step_of_keep_alive(&result)]);
        match result {
            Ok(()) => {
                self.publish();
                self.executor
                    .heartbeat_due_at()
                    .unwrap_or(now.saturating_add(interval))
            }
            Err(error) => {
                self.publish_failure(&error);
                // The others do not wait for long: three times the interval in all.
                let failed_at = self.clock.now().monotonic;
                failed_at.saturating_add(interval.min(POLL_INTERVAL))
            }
        }
    }

    /// Waits for a message, a change of the state or `until`, whichever comes first; against a store
    /// that cannot wake us, for a second at most.
    fn wait(&mut self, part: Part, until: Duration) {
        let token = self.executor.to_write().1.cloned();
        let now = self.clock.now().monotonic;
        match &mut self.watch {
            Some(watch) => {
                watch.look_for(token, part);
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

    /// Takes one message, waiting for it for at most `timeout`; whether there was one.
    fn receive(&mut self, timeout: Option<Duration>) -> bool {
        let message = match timeout {
            None => self
                .inbox
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => self.inbox.recv_timeout(timeout),
        };
        match message {
            Ok(Message::Run(job)) => self.jobs.push_back(job),
            Ok(Message::Found(order, found)) => self.on_found(order, found),
            // The flag is set already: it is looked at after each wait.
            Ok(Message::Interrupt) => {}
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => self.is_stopping = true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    fn on_found(&mut self, order: u64, found: Found) {
        let Some(watch) = &mut self.watch else { return };
        match found {
            Err(error) => {
                // A watch that has failed would fail again at once. What the store itself has to say
                // comes out when it is asked.
                log::warn!("cannot wait for changes, asking once a second instead: {error}");
                self.watch = None;
            }
            // The state was read or written since: what was found may be older.
            Ok(_) if watch.order != order || watch.present.take().is_none() => {}
            Ok(stored) => {
                if let Err(error) = self.take_in(stored) {
                    self.publish_failure(&error);
                }
            }
        }
    }

    fn read(&mut self) -> Result<(), RendezvousError> {
        let stored = self.backend.get_state()?;
        self.take_in(stored)
    }

    fn take_in(&mut self, stored: Option<Stored>) -> Result<(), RendezvousError> {
        let stored = match stored {
            None => None,
            Some(stored) => Some((self.decode(&stored.state)?, stored.token)),
        };
        self.executor.on_read(stored, self.clock.now());
        self.tell_lost();
        self.what_was_found_is_old();
        Ok(())
    }

    fn write(&mut self) -> Result<(), RendezvousError> {
        if !self.has_lease && self.backend.acquire_write_lease() {
            self.has_lease = true;
            // Others have written while this node waited, so it decides anew.
            return self.read();
        }
        let steps = self.executor.take_steps();
        self.record(steps);
        let (state, token) = self.executor.to_write();
        let bytes = codec::encode(state);
        let written = self.backend.set_state(&bytes, token)?;
        self.release_lease();
        let written = match written {
            None => Written::Nothing,
            Some(written) if written.is_ours => Written::Ours(written.stored.token),
            Some(written) => {
                let state = self.decode(&written.stored.state)?;
                Written::Theirs(Box::new(state), written.stored.token)
            }
        };
        self.executor.on_written(written, self.clock.now());
        let steps = self.executor.take_steps();
        self.record(steps);
        self.tell_lost();
        self.what_was_found_is_old();
        if let Some(pause) = self.conflict_pause() {
            self.receive(Some(pause));
        }
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<RendezvousState, RendezvousError> {
        codec::decode(bytes, &self.limits).map_err(|source| RendezvousError::CorruptState {
            store: self.backend.label(),
            key: format!("torch.rendezvous.{}", self.executor.settings().run_id),
            source,
        })
    }

    fn release_lease(&mut self) {
        if std::mem::take(&mut self.has_lease) {
            self.backend.release_write_lease();
        }
    }

    /// A random pause after others were faster, so that not all try again at the same moment.
    fn conflict_pause(&mut self) -> Option<Duration> {
        let longest = self.executor.conflict_pause_max(self.clock.now())?;
        Some(longest.mul_f64(self.random.f64()))
    }

    fn what_was_found_is_old(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.present = None;
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

    /// Tells the listener and the log about a join that waits.
    fn tell(&self, telling: &mut Telling, now: Now) {
        let state = self.executor.state();
        let present = (state.round, state.participants.len(), state.wait_list.len());
        let has_changed = telling.participants.replace(present) != Some(present);
        let is_time = |last: Option<Duration>, interval: Duration| {
            last.is_none_or(|last| now.monotonic.saturating_sub(last) >= interval)
        };
        if has_changed || is_time(telling.reported, self.report_interval()) {
            telling.reported = Some(now.monotonic);
            let report = self.executor.report(now);
            if is_time(telling.logged, LOG_INTERVAL) {
                // The first one only after a while: a join that works is not worth a line.
                if telling.logged.is_some() {
                    log_wait(&report, self.executor.last_decision().map(|it| it.reason));
                }
                telling.logged = Some(now.monotonic);
            }
            self.shared.tell(RendezvousEvent::Waiting(&report));
        }
    }

    /// Hands PyTorch's events of these steps to the listeners.
    fn record(&self, steps: impl IntoIterator<Item = Step>) {
        let listeners = self.shared.listeners();
        if listeners.is_empty() {
            return;
        }
        for step in steps {
            let run_id = &self.executor.settings().run_id;
            let event = step.event(run_id, self.executor.me());
            for listener in &listeners {
                listener(&RendezvousEvent::Recorded(&event));
            }
        }
    }

    fn tell_lost(&mut self) {
        for lost in self.executor.take_newly_lost() {
            log::warn!("lost {lost}");
            self.shared.tell(RendezvousEvent::NodeLost(&lost));
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
            // Another round would have no room for them either.
            waiting: if is_same_round && state.participants.len() >= max_nodes {
                Vec::new()
            } else {
                state.wait_list.iter().cloned().collect()
            },
            lost,
            left,
            is_evicted: !is_same_round || !state.participants.contains_key(me),
            is_closed: state.closed,
        };
        if self.shared.set_membership(Some(Ok(membership))) {
            self.shared.tell(RendezvousEvent::MembershipChanged);
        }
    }

    fn publish_failure(&self, error: &RendezvousError) {
        if self.round.is_none() {
            return;
        }
        let text = error.to_string();
        let was_known = matches!(self.shared.membership(), Some(Ok(_)));
        if was_known {
            log::warn!("the state of the rendezvous is not known: {text}");
        }
        if self.shared.set_membership(Some(Err(text))) && was_known {
            self.shared.tell(RendezvousEvent::MembershipChanged);
        }
    }
}

impl Watch {
    fn start(
        watch: Arc<dyn crate::backend::StateWatch>,
        to_loop: Sender<Message>,
    ) -> Result<Self, RendezvousError> {
        let watcher = Watcher::start(watch, move |order, found| {
            // The loop may have ended.
            let _ = to_loop.send(Message::Found(order, found));
        })?;
        Ok(Self {
            watcher,
            order: 0,
            present: None,
        })
    }

    fn look_for(&mut self, known: Option<Token>, part: Part) {
        let wanted = (known, part);
        if self.present.as_ref() == Some(&wanted) {
            return;
        }
        self.order += 1;
        self.watcher.order(self.order, wanted.0.clone(), part);
        self.present = Some(wanted);
    }
}

fn log_wait(report: &WaitReport, reason: Option<&str>) {
    log::info!(
        "waiting for {:.0} s, at most {:.0} s more: {report}; this node {}",
        report.waited.as_secs_f64(),
        report.time_left.as_secs_f64(),
        reason.unwrap_or("waits"),
    );
}
