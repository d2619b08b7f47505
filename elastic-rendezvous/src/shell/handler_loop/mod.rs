//! The loop of a rendezvous handler, which carries out what its engine asks.
//!
//! It has its own thread, so that nothing that the handler's owner does delays heartbeats. It makes one request at a
//! time; a message ends a wait that is in progress. Engines make all decisions.

mod current;
mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use c10d_store::{Store, in_brief};

use self::current::{Current, Outage};
use crate::engine::{Ask, Engine, Reply};
use crate::shell::access::Access;
use crate::shell::backend::{RendezvousBackend, StateWatch};
use crate::shell::group_store::GroupStore;
use crate::shell::handler::RendezvousEvent;
use crate::shell::handler_state::{Shared, error_of, log_wait};
use crate::shell::mailbox::{Inbox, Job, Message};
use crate::shell::marks::MarkBoard;
use crate::shell::notices::NoticeBoard;
use crate::shell::stored_state::StoredState;
use crate::shell::write_lease::LeaseUse;
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Goal, Operation, OperationError, Step};
use crate::values::recorded_event::step_of_result;
use crate::values::report::{Membership, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::{Now, Timestamp};

/// A join that ends earlier does not read the notices for its report.
const NOTICES_AFTER: Duration = Duration::from_millis(500);

/// Makes the engine of this node while it is in no round, with its index in the group, if it is in one.
pub(crate) type NewEngine = Box<dyn Fn(Option<u32>, Now) -> Box<dyn Engine> + Send>;

/// The parts that make up the loop of a handler.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) settings: RendezvousSettings,
    pub(crate) new_engine: NewEngine,
    pub(crate) access: Access,
    pub(crate) backend: Arc<dyn RendezvousBackend>,
    pub(crate) shared: Arc<Shared>,
    /// The rendezvous' store. A call makes one attempt.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inbox: Inbox,
}

pub(crate) struct HandlerLoop {
    clock: Clock,
    settings: RendezvousSettings,
    engine: Box<dyn Engine>,
    new_engine: NewEngine,
    states: StoredState,
    /// The keys of the group, and the node's index in it.
    group: Option<(GroupStore, u32)>,
    lease: LeaseUse,
    watch: Option<Arc<dyn StateWatch>>,
    marks: Option<MarkBoard>,
    shared: Arc<Shared>,
    inbox: Inbox,
    jobs: VecDeque<Job>,
    notices: NoticeBoard,
    store: Arc<dyn Store>,
    current: Current,
    outage: Outage,
    is_member: bool,
    /// The last operation has left or closed the rendezvous.
    has_left: bool,
    /// The last request has failed, so what the engine knows may be outdated.
    is_unknown: bool,
    /// Whether the handler waits on the store after a join. Two waits at a time would need two connections.
    is_settling: bool,
    is_stopping: bool,
}

impl HandlerLoop {
    pub(crate) fn new(parts: Parts) -> Self {
        let (group, lease, watch, marks) = match parts.access {
            Access::Group {
                store,
                index,
                marks,
            } => (Some((store, index)), None, None, marks),
            Access::Own {
                lease,
                watch,
                marks,
            } => (None, lease, watch, marks),
        };
        let index = group.as_ref().map(|(_, index)| *index);
        Self {
            states: StoredState::new(parts.backend, &parts.settings.run_id),
            store: parts.store,
            notices: NoticeBoard::new(parts.shared.notices.clone()),
            clock: parts.clock,
            settings: parts.settings,
            engine: (parts.new_engine)(index, parts.clock.now()),
            new_engine: parts.new_engine,
            group,
            lease: LeaseUse::new(lease),
            watch,
            marks,
            shared: parts.shared,
            inbox: parts.inbox,
            jobs: VecDeque::new(),
            current: Current::NONE,
            outage: Outage::default(),
            is_member: false,
            has_left: false,
            is_unknown: false,
            is_settling: false,
            is_stopping: false,
        }
    }

    /// Runs until a [`Message::Stop`].
    pub(crate) fn run(mut self) {
        while !self.is_stopping {
            if self.is_member && (self.engine.is_busy() || self.jobs.is_empty()) {
                self.stay();
            } else if let Some(job) = self.jobs.pop_front() {
                if self.shared.is_new_host.swap(false, Ordering::AcqRel) {
                    self.record([Step::HostsStore]);
                }
                let result = self.carry_out(job.goal);
                self.record(step_of_result(job.goal, &result));
                self.is_settling = job.goal.is_join() && result.is_ok();
                // The caller may no longer wait.
                if job.reply.send(result).is_err() {
                    self.is_settling = false;
                }
            } else {
                self.receive(None);
            }
        }
        self.release();
        // A node that is dropped counts as lost when its connection closes. A store that is out of reach would delay the end.
        let says_goodbye = self.has_left || self.shared.was_closed.load(Ordering::Acquire);
        let is_outage = self.is_unknown || self.outage.is_any();
        if let Some(marks) = self.marks.as_mut().filter(|_| says_goodbye && !is_outage) {
            marks.remove_own(self.engine.me());
        }
        for job in std::mem::take(&mut self.jobs) {
            let _ = job.reply.send(Err(self.shut_down_error()));
        }
    }

    fn carry_out(&mut self, goal: Goal) -> Result<Answer, RendezvousError> {
        let settings = &self.settings;
        let (operation, limit) = match goal {
            Goal::Join => (Operation::Join, settings.join_timeout),
            Goal::Enter => (Operation::Enter, settings.join_timeout),
            Goal::Exit => (Operation::Exit, settings.join_timeout),
            Goal::Close | Goal::Shutdown => (Operation::Close, settings.close_timeout),
            Goal::Leave => (Operation::Leave, settings.close_timeout),
            Goal::Read => {
                let stored = self.states.read()?;
                let state = stored.map_or_else(RendezvousState::default, |(state, _)| state);
                return Ok(Answer {
                    round: state.round,
                    is_closed: state.closed,
                    joined: None,
                });
            }
        };
        if operation.is_join() {
            self.refuse_if_interrupted()?;
        }
        let result = self.operate(operation, limit);
        if matches!(result, Err(RendezvousError::Interrupted { .. })) {
            let limit = self.settings.heartbeat_timeout;
            if let Err(error) = self.operate(Operation::Leave, limit) {
                log::warn!("cannot leave the interrupted join: {}", in_brief(&error));
            }
        }
        self.is_member |= result.as_ref().is_ok_and(|answer| answer.joined.is_some());
        if self.is_member {
            self.publish();
        } else {
            self.release();
        }
        result
    }

    /// Runs one operation to its end.
    fn operate(
        &mut self,
        operation: Operation,
        limit: Duration,
    ) -> Result<Answer, RendezvousError> {
        if operation != Operation::Close {
            self.is_member = false;
            self.shared.forget_membership();
        }
        let now = self.clock.now();
        self.current = Current::new(operation, now.monotonic, limit);
        self.engine.begin(operation, self.current.deadline, now);
        let result = loop {
            if let Some(result) = self.turn().transpose() {
                break result;
            }
        };
        self.current = Current::NONE;
        self.has_left = matches!(operation, Operation::Leave | Operation::Close) && result.is_ok();
        self.lease.release();
        result
    }

    /// Carries out one request of a member, and publishes what it has learned.
    fn stay(&mut self) {
        match self.turn() {
            Ok(_) if self.is_unknown => {}
            Ok(_) => self.publish(),
            Err(_) if self.is_stopping => {}
            Err(error) => {
                self.lease.release();
                self.is_unknown = true;
                self.publish_unknown(&error);
            }
        }
    }

    /// Carries out what the engine asks next. Returns the result of the operation at its end.
    fn turn(&mut self) -> Result<Option<Answer>, RendezvousError> {
        while let Ok(message) = self.inbox.try_receive() {
            self.on_message(message);
        }
        if self.is_stopping {
            return Err(self.shut_down_error());
        }
        if self.current.operation.is_join() {
            self.refuse_if_interrupted()?;
        }
        let replied = match self.engine.step(self.clock.now()) {
            Ask::Done(Ok(answer)) => return Ok(Some(answer)),
            Ask::Done(Err(failure)) if self.current.is_any() => {
                return Err(self.error_of(failure));
            }
            Ask::Done(Err(failure)) => Err(self.error_of(failure)),
            ask => self.perform(ask),
        };
        let replied = match replied {
            Err(error @ RendezvousError::StateLost { .. }) => self.start_anew(Some(error)),
            replied => replied,
        };
        let now = self.clock.now();
        let result = match replied {
            Ok(reply) => {
                // A pause shows nothing.
                if !matches!(reply, Reply::Nothing) {
                    self.outage.end(now.monotonic);
                    self.is_unknown = false;
                }
                self.engine.on_reply(reply, now);
                Ok(None)
            }
            Err(error) if self.may_continue(&error, now.monotonic) => {
                self.lease.release();
                self.engine.on_outage(now);
                Ok(None)
            }
            Err(error) => {
                self.engine.on_failure(&error, now);
                Err(error)
            }
        };
        if let Some(former) = self.shared.set_me(self.engine.me()) {
            let (me, former) = (self.engine.me().local_id, former.named());
            log::debug!(
                "another process is the node {former}: this one joins with the local id {me}"
            );
        }
        let connected_at = self.engine.members_connected_at();
        *self.shared.members_connected_at() = connected_at.map(|at| self.clock.moment(at));
        self.record_steps();
        for lost in self.engine.take_newly_lost(now) {
            log::warn!("lost node {lost}");
            self.shared.notify(RendezvousEvent::NodeLost(&lost));
        }
        result
    }

    /// Waits for a message for at most `timeout` (`None`: indefinitely) and handles it. Returns whether there was one.
    fn receive(&mut self, timeout: Option<Duration>) -> bool {
        match self.inbox.receive(timeout) {
            Ok(message) => self.on_message(message),
            Err(RecvTimeoutError::Disconnected) => self.is_stopping = true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Run(job) => self.jobs.push_back(job),
            // The flag is already set, and checked after each wait.
            Message::Interrupt => {}
            Message::Settled => self.is_settling = false,
            Message::Stop => self.is_stopping = true,
        }
    }

    /// Whether the operation continues although its request has failed. Notes an outage of the
    /// store.
    fn may_continue(&mut self, error: &RendezvousError, now: Duration) -> bool {
        let attempt = self.settings.dead_after() / 3;
        error.is_outage()
            && self.states.backend().is_reconnecting()
            && self
                .outage
                .lets_continue(&self.current, error, attempt, now)
    }

    /// Continues as a node that is in no round: the store has lost what this one knows.
    fn start_anew(&mut self, lost: Option<RendezvousError>) -> Result<Reply, RendezvousError> {
        self.states.backend().start_anew()?;
        self.notices.start_anew();
        if let Some(marks) = &mut self.marks {
            marks.start_anew();
        }
        if let Some((group, index)) = &mut self.group {
            let counted = group.count_handler();
            *index = counted.map_err(|error| self.states.failed(error))?;
        }
        match lost {
            Some(error) => log::warn!("{error}"),
            // The engine cannot tell, and this node had nothing to lose.
            None if !self.is_member => {}
            None => log::warn!(
                "the {} has lost the data of the group, so its nodes begin another round",
                self.states.backend().label()
            ),
        }
        let now = self.clock.now();
        let index = self.group.as_ref().map(|(_, index)| *index);
        self.engine = (self.new_engine)(index, now);
        if self.current.is_any() {
            let Current {
                operation,
                deadline,
                ..
            } = self.current;
            self.engine.begin(operation, deadline, now);
        }
        if std::mem::take(&mut self.is_member) {
            let known = self.shared.membership().and_then(Result::ok);
            let is_evicted = true;
            self.shared.publish(Membership {
                is_evicted,
                ..known.unwrap_or_default()
            });
        }
        Ok(Reply::Nothing)
    }

    /// Publishes that the member's view of its round is out of date, or that the round is over for it: the other nodes
    /// have received nothing from it for a long time, so that they have dropped it or will drop it.
    fn publish_unknown(&mut self, error: &RendezvousError) {
        let now = self.clock.now().monotonic;
        let until = self.engine.is_kept_until();
        let left = until.and_then(|until| until.checked_sub(now));
        let known = self.engine.membership().unwrap_or_default();
        if known.is_closed || left.is_some_and(|left| !left.is_zero()) {
            // After the end of the job, its store stops as well.
            let is_logged = self.outage.replace_logged();
            let left = left.filter(|_| !known.is_closed && !is_logged);
            return self.shared.publish_failure(error, left);
        }
        if !matches!(self.shared.membership(), Some(Ok(it)) if it.is_evicted) {
            log::warn!(
                "this node could not send heartbeats for {:.0} s, so the other nodes have dropped it: {}",
                self.settings.dead_after().as_secs_f64(),
                in_brief(error),
            );
        }
        let is_evicted = true;
        self.shared.publish(Membership {
            is_evicted,
            ..known
        });
    }

    fn publish(&self) {
        if let Some(membership) = self.engine.membership() {
            self.shared.publish(membership);
        }
    }

    /// Reports a waiting join to the listeners and the log.
    fn report(&mut self) {
        let now = self.clock.now().monotonic;
        if self.current.lasted(now) >= NOTICES_AFTER {
            self.notices.refresh(self.engine.me());
        }
        let report = self.waiting();
        if self.current.is_line_due(now) {
            log_wait(&report, self.engine.reason());
        }
        self.shared.notify(RendezvousEvent::Waiting(&report));
    }

    fn waiting(&self) -> WaitReport {
        let mut report = self.engine.report(self.clock.now());
        report.add_not_joining(self.notices.not_joining());
        report
    }

    fn error_of(&mut self, failure: OperationError) -> RendezvousError {
        let waited = self.current.lasted(self.clock.now().monotonic);
        let operation = self.current.operation;
        let run_id = self.settings.run_id.clone();
        error_of(failure, operation, &run_id, waited, || {
            self.notices.refresh(self.engine.me());
            self.waiting()
        })
    }

    fn refuse_if_interrupted(&self) -> Result<(), RendezvousError> {
        self.shared.refuse_if_interrupted(&self.settings.run_id)
    }

    fn shut_down_error(&self) -> RendezvousError {
        RendezvousError::ShutDown {
            run_id: self.settings.run_id.clone(),
        }
    }

    fn record(&self, steps: impl IntoIterator<Item = Step>) {
        let me = self.engine.me();
        self.shared.record(&self.settings.run_id, me, steps);
    }

    /// Records the engine's steps, each as an event of the node that it is about.
    fn record_steps(&mut self) {
        for (node, step) in self.engine.take_steps() {
            self.shared.record(&self.settings.run_id, &node, [step]);
        }
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

    /// The moment at this time of the monotonic clock.
    pub(crate) fn moment(self, monotonic: Duration) -> Instant {
        self.start + monotonic
    }

    pub(crate) fn now(self) -> Now {
        Now {
            monotonic: self.start.elapsed(),
            wall: Timestamp::from_system_time(SystemTime::now()),
        }
    }
}
