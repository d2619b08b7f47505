//! The shell around the context: lock, step, unlock, do what the context asks for.
//!
//! Decides nothing about references. It has no thread: the context is stepped by whoever calls, and by the
//! agent's threads: those that bring messages and answers, one that comes for the handles that were
//! dropped, and one at the time for which the context asks.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use rpc_agent::{
    AgentHandle, CallOptions, NotSent, Outcome, Registry, RegistryError, RegistryId, Reply,
    RetryOptions, RpcError, RpcFuture, WorkerId, WorkerInfo,
};

use crate::context::{Carrier, Handle, RRefContext, UserStatus};
use crate::context::{Control, Delivery, Effect, FetchError, RequestToken, UserError};
use crate::drops::DropQueue;
use crate::error::RRefError;
use crate::functions::Functions;
use crate::handle::Cell;
use crate::id::ForkId;
use crate::options::RRefOptions;
use crate::protocol::{Answer, ForkData, Message};
use crate::serving;
use crate::value::Value;

/// The functions that the agents of a group know: how a worker asks for these things.
pub(crate) const CREATE: &str = "rref/create";
pub(crate) const CONTROL: &str = "rref/control";
pub(crate) const FETCH: &str = "rref/fetch";
pub(crate) const AWAIT: &str = "rref/await";
pub(crate) const READY: &str = "rref/ready";
pub(crate) const CALL: &str = "rref/call";
pub(crate) const RUN: &str = "rref/run";
pub(crate) const HOLDS: &str = "rref/holds";
pub(crate) const ALIVE: &str = "rref/alive";

/// How long a worker has to say that it is alive, each time it is asked, once there is a connection to it.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What registered functions find, from before there is an agent.
pub(crate) struct Hub {
    functions: Arc<Functions>,
    options: RRefOptions,
    registry: RegistryId,
    runtime: OnceLock<Arc<Runtime>>,
}

impl Hub {
    /// The runtime, which begins with the first request or with [`RRefs::attach`].
    pub(crate) fn runtime(self: &Arc<Self>, agent: &AgentHandle) -> &Arc<Runtime> {
        self.runtime.get_or_init(|| Runtime::start(self, agent))
    }
}

/// The references of a worker: makes them, calls functions with them, and ends them.
///
/// Cheap to clone. Its functions are registered before the agent starts, and it is attached to the agent
/// then; it serves references as long as one clone of it is kept.
///
/// ```
/// use rpc_agent::Registry;
/// use rref::{Functions, RRefs};
///
/// let mut registry = Registry::new();
/// let rrefs = RRefs::register(&mut registry, Functions::new())?;
/// // let agent = Agent::start(options, registry, store)?;
/// // rrefs.attach(&agent)?;
/// # drop(rrefs);
/// # Ok::<(), rpc_agent::RegistryError>(())
/// ```
#[derive(Clone)]
pub struct RRefs {
    hub: Arc<Hub>,
}

impl RRefs {
    /// Registers what references need, with these functions to be run by others.
    ///
    /// # Errors
    /// [`RegistryError`]: the registry has references already.
    pub fn register(registry: &mut Registry, functions: Functions) -> Result<Self, RegistryError> {
        Self::register_with(registry, functions, RRefOptions::default())
    }

    /// [`RRefs::register`] with options.
    ///
    /// # Errors
    /// As [`RRefs::register`].
    pub fn register_with(
        registry: &mut Registry,
        functions: Functions,
        options: RRefOptions,
    ) -> Result<Self, RegistryError> {
        let hub = Arc::new(Hub {
            functions: Arc::new(functions),
            options,
            registry: registry.id(),
            runtime: OnceLock::new(),
        });
        serving::register(registry, &hub)?;
        Ok(Self { hub })
    }

    /// Uses the agent that was started with the registry that these were registered in. The first request
    /// of another worker does the same; before either, all is [`RRefError::NotAttached`].
    ///
    /// # Errors
    /// [`RRefError::Refused`] if the agent was started with another registry.
    pub fn attach(&self, agent: &AgentHandle) -> Result<(), RRefError> {
        // It would know neither these functions nor what they are asked about.
        if agent.registry_id() != self.hub.registry {
            let me = agent.me();
            let what = format!("{me} was started with another registry than these references");
            return Err(RRefError::Refused(what.into()));
        }
        self.hub.runtime(agent);
        Ok(())
    }

    pub(crate) fn of(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    pub(crate) fn runtime(&self) -> Result<&Arc<Runtime>, RRefError> {
        self.hub.runtime.get().ok_or(RRefError::NotAttached)
    }
}

impl fmt::Debug for RRefs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RRefs")
            .field(&self.hub.runtime.get().map(|runtime| runtime.agent.me()))
            .finish()
    }
}

/// Something that runs the program's functions, or its destructors.
pub(crate) type Job = Box<dyn FnOnce(&Arc<Runtime>) + Send>;

/// Told whether a user was confirmed; what follows from that.
pub(crate) type ConfirmationWaiter = Box<dyn FnOnce(Result<(), UserError>) -> Option<Job> + Send>;

/// Given a value.
pub(crate) type ValueWaiter = Box<dyn FnOnce(&Arc<Runtime>, Result<Value, FetchError>) + Send>;

/// Where the program's functions may run that a step leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On this thread, which is one of the agent's and serves a request.
    Here,
    /// On another one: this one is the program's, or has more to do.
    Elsewhere,
}

/// What waits for the context's answer.
pub(crate) enum Request {
    Answer(Reply),
    Value(ValueWaiter),
}

/// What goes with a creation.
pub(crate) struct Carried {
    pub(crate) forks: Vec<ForkData>,
    pub(crate) timeout: Option<Duration>,
}

/// What is behind the lock.
pub(crate) struct Inner {
    pub(crate) context: RRefContext<Value>,
    requests: HashMap<RequestToken, Request>,
    next_token: RequestToken,
    /// Of users that are not confirmed yet.
    waiters: HashMap<ForkId, Vec<ConfirmationWaiter>>,
    carried: HashMap<ForkId, Carried>,
    /// Requests that run, by their first fork: copies that come meanwhile get the same answer.
    pub(crate) serving: HashMap<ForkId, Vec<Reply>>,
    /// How many threads wait for the end.
    pub(crate) awaiting: usize,
    /// One is at it.
    pub(crate) is_ending: bool,
    /// When a thread comes to do what is due. Most often that is one time or two.
    comes_at: BTreeSet<Instant>,
}

/// What a step leads to, without the lock.
enum Todo {
    Send(WorkerId, Control, Message, Option<Carried>),
    Reply(Reply, Answer),
    Value(ValueWaiter, Result<Value, FetchError>),
    Tell(ConfirmationWaiter, Result<(), UserError>),
    Run(Job),
    Free(Value),
}

impl Inner {
    pub(crate) fn open(&mut self, request: Request) -> RequestToken {
        let token = self.next_token;
        self.next_token += 1;
        self.requests.insert(token, request);
        token
    }

    pub(crate) fn carry(&mut self, created: ForkId, carried: Carried) {
        self.carried.insert(created, carried);
    }

    /// Has `waiter` told when it is known whether the user is confirmed; `None` if that is known now.
    pub(crate) fn wait_for(
        &mut self,
        fork: ForkId,
        waiter: impl FnOnce() -> ConfirmationWaiter,
    ) -> Option<Result<(), UserError>> {
        match self.context.status(fork) {
            Some(UserStatus::Confirmed) => Some(Ok(())),
            Some(UserStatus::Failed(error)) => Some(Err(error)),
            Some(UserStatus::Pending) => {
                self.waiters.entry(fork).or_default().push(waiter());
                None
            }
            None => Some(Err(UserError::ShutDown)),
        }
    }

    /// When a thread has to come that does not come already, if so: it counts as sent then.
    fn comes_earlier(&mut self) -> Option<Instant> {
        let next = self.context.next_tick()?;
        let is_earlier = self.comes_at.first().is_none_or(|at| next < *at);
        if is_earlier {
            self.comes_at.insert(next);
        }
        is_earlier.then_some(next)
    }

    fn take_todo(&mut self) -> Vec<Todo> {
        let mut todo = Vec::new();
        for effect in self.context.take_effects() {
            match effect {
                Effect::Send {
                    to,
                    control,
                    message,
                } => {
                    let carried = match control {
                        Control::Create(fork) => self.carried.remove(&fork),
                        _ => None,
                    };
                    todo.push(Todo::Send(to, control, message, carried));
                }
                Effect::Reply { token, answer } => match self.requests.remove(&token) {
                    Some(Request::Answer(reply)) => todo.push(Todo::Reply(reply, answer)),
                    Some(Request::Value(waiter)) => {
                        let why = match answer {
                            Answer::Refused(why) => why,
                            _ => "the request was not taken".into(),
                        };
                        todo.push(Todo::Value(waiter, Err(FetchError::Failed(why))));
                    }
                    None => {}
                },
                Effect::AnswerFetch { token, result } => {
                    if let Some(Request::Value(waiter)) = self.requests.remove(&token) {
                        todo.push(Todo::Value(waiter, result));
                    }
                }
                Effect::RunFunction {
                    rref,
                    from,
                    function,
                    arguments,
                } => todo.push(Todo::Run(Box::new(move |runtime| {
                    runtime.run_creation(rref, from, &function, &arguments);
                }))),
                Effect::Confirmed { fork } => self.tell(fork, &Ok(()), &mut todo),
                Effect::Failed { fork, error } => self.tell(fork, &Err(error), &mut todo),
                Effect::Free(value) => todo.push(Todo::Free(value)),
            }
        }
        todo
    }

    fn tell(&mut self, fork: ForkId, result: &Result<(), UserError>, todo: &mut Vec<Todo>) {
        let waiters = self.waiters.remove(&fork).unwrap_or_default();
        let told = waiters.into_iter();
        todo.extend(told.map(|waiter| Todo::Tell(waiter, result.clone())));
    }
}

/// The references of an agent.
pub(crate) struct Runtime {
    hub: Weak<Hub>,
    pub(crate) agent: AgentHandle,
    pub(crate) functions: Arc<Functions>,
    pub(crate) options: RRefOptions,
    pub(crate) incarnation: u64,
    inner: Mutex<Inner>,
    pub(crate) changed: Condvar,
    drops: DropQueue<Handle>,
    checks: Mutex<HashMap<WorkerId, RpcFuture<bool>>>,
}

impl Runtime {
    fn start(hub: &Arc<Hub>, agent: &AgentHandle) -> Arc<Self> {
        let incarnation = agent.incarnation();
        let runtime = Arc::new(Self {
            hub: Arc::downgrade(hub),
            agent: agent.clone(),
            functions: Arc::clone(&hub.functions),
            options: hub.options.clone(),
            incarnation,
            inner: Mutex::new(Inner {
                context: RRefContext::new(
                    agent.me().id,
                    incarnation,
                    hub.options.timing(),
                    Instant::now(),
                ),
                requests: HashMap::new(),
                next_token: 0,
                waiters: HashMap::new(),
                carried: HashMap::new(),
                serving: HashMap::new(),
                awaiting: 0,
                is_ending: false,
                comes_at: BTreeSet::new(),
            }),
            changed: Condvar::new(),
            drops: DropQueue::new(),
            checks: Mutex::default(),
        });
        // The agent outlives its references: it does not keep them.
        let weak = Arc::downgrade(&runtime);
        agent.on_peer_lost(move |worker, _| {
            if let Some(runtime) = weak.upgrade() {
                // Whether the worker is gone, or the connection only, shows soon.
                runtime.check_alive(worker.id).on_complete(|_| {});
            }
        });
        let weak = Arc::downgrade(&runtime);
        agent.on_peer_left(move |worker, incarnation| {
            if let Some(runtime) = weak.upgrade() {
                runtime.lose(worker.id, incarnation);
            }
        });
        let weak = Arc::downgrade(&runtime);
        agent.on_end(move || {
            if let Some(runtime) = weak.upgrade() {
                runtime.collect(Mode::Here);
                runtime.step(Mode::Here, |inner, now| inner.context.end(now));
            }
        });
        runtime
    }

    pub(crate) fn rrefs(&self) -> Result<RRefs, RRefError> {
        self.hub.upgrade().map(RRefs::of).ok_or(RRefError::Shutdown)
    }

    pub(crate) fn is_me(&self, worker: WorkerId) -> bool {
        self.agent.me().id == worker
    }

    /// A worker that a reference names.
    pub(crate) fn worker(&self, id: WorkerId) -> WorkerInfo {
        let known = self.agent.worker(id);
        known.unwrap_or_else(|_| WorkerInfo::unnamed(id))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under this lock is a defect of this crate; going on is better than taking all
        // callers along.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the context, and does what that leads to.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        mode: Mode,
        step: impl FnOnce(&mut Inner, Instant) -> R,
    ) -> R {
        let now = Instant::now();
        let mut inner = self.lock();
        let result = step(&mut inner, now);
        if inner.context.next_tick().is_some_and(|at| at <= now) {
            inner.context.tick(now);
        }
        let todo = inner.take_todo();
        let is_awaited = inner.awaiting > 0;
        let comes_at = inner.comes_earlier();
        drop(inner);
        if is_awaited {
            self.changed.notify_all();
        }
        if let Some(at) = comes_at {
            self.come_at(at);
        }
        self.perform(todo, mode);
        result
    }

    /// Has a thread come to do what is due.
    fn come_at(self: &Arc<Self>, at: Instant) {
        let runtime = Arc::downgrade(self);
        self.agent.spawn_at(at, move || {
            if let Some(runtime) = runtime.upgrade() {
                runtime.step(Mode::Here, |inner, _| {
                    inner.comes_at.remove(&at);
                });
            }
        });
    }

    fn perform(self: &Arc<Self>, todo: Vec<Todo>, mode: Mode) {
        let mut jobs: Vec<Job> = Vec::new();
        let mut freed = Vec::new();
        for todo in todo {
            match todo {
                Todo::Send(to, control, message, carried) => {
                    self.send(to, control, &message, carried);
                }
                Todo::Reply(reply, answer) => {
                    reply.send(Ok(answer.encode(self.incarnation)));
                }
                Todo::Tell(waiter, result) => jobs.extend(waiter(result)),
                Todo::Value(waiter, result) => {
                    jobs.push(Box::new(move |runtime| waiter(runtime, result)));
                }
                Todo::Run(job) => jobs.push(job),
                Todo::Free(value) => freed.push(value),
            }
        }
        if !freed.is_empty() {
            match mode {
                Mode::Here => self.free_all(freed),
                // A destructor is the program's, and whose locks are held here is not known.
                Mode::Elsewhere => jobs.push(Box::new(move |runtime| runtime.free_all(freed))),
            }
        }
        let last = match mode {
            Mode::Here => jobs.pop(),
            Mode::Elsewhere => None,
        };
        for job in jobs {
            self.spawn(job);
        }
        if let Some(job) = last {
            job(self);
        }
    }

    fn free_all(&self, values: Vec<Value>) {
        for value in values {
            self.free(value);
        }
    }

    /// Drops a value. If its destructor panics, that costs nobody else anything.
    pub(crate) fn free(&self, value: Value) {
        let what = format!("the destructor of a `{}`", value.type_name());
        let _ = self.contained(&what, || drop(value));
    }

    pub(crate) fn spawn(self: &Arc<Self>, job: Job) {
        let runtime = Arc::clone(self);
        self.agent.spawn(move || job(&runtime));
    }

    /// Notes that the last clone of a handle was dropped. Sends nothing, and does not take the context's
    /// lock: it can be held further up on this thread's stack.
    pub(crate) fn let_go(self: &Arc<Self>, handle: Handle) {
        if self.drops.push(handle) {
            self.spawn(Box::new(|runtime| runtime.collect(Mode::Here)));
        }
    }

    /// Gives the dropped handles back to the context.
    pub(crate) fn collect(self: &Arc<Self>, mode: Mode) {
        self.step(mode, |inner, now| self.give_back(inner, now));
    }

    /// [`Runtime::collect`], in the midst of a step. They are taken under the context's lock, so that who
    /// looks at the context next sees all of them given back.
    pub(crate) fn give_back(&self, inner: &mut Inner, now: Instant) {
        for handle in self.drops.take() {
            inner.context.drop_handle(now, handle);
        }
    }

    /// Sends a message of the context's until it is answered, and tells the context how that ended.
    fn send(
        self: &Arc<Self>,
        to: WorkerId,
        control: Control,
        message: &Message,
        carried: Option<Carried>,
    ) {
        let function = match control {
            Control::Create(_) => CREATE,
            _ => CONTROL,
        };
        let timeout = carried.as_ref().and_then(|carried| carried.timeout);
        let retries = self.options.retries_within(timeout);
        let bytes = message.encode(self.incarnation);
        let runtime = Arc::clone(self);
        self.agent
            .call_bytes_with_retries(to, function, bytes, &retries)
            .on_complete(move |answer| runtime.sent(to, control, answer, carried));
    }

    fn sent(
        self: &Arc<Self>,
        to: WorkerId,
        control: Control,
        answer: &Result<Bytes, RpcError>,
        carried: Option<Carried>,
    ) {
        let delivery = delivery_of(answer);
        let accepted = Answer::RemoteAccept;
        let is_accepted =
            matches!(&delivery, Delivery::Answered { answer, .. } if *answer == accepted);
        // What is refused may have been accepted before, by an attempt whose answer was lost.
        let outcome = match &delivery {
            Delivery::NotDelivered(_) => Outcome::NotExecuted,
            _ => Outcome::Unknown,
        };
        self.step(Mode::Elsewhere, |inner, now| {
            inner.context.control_finished(now, control, delivery);
        });
        match carried {
            Some(carried) if is_accepted => self.commit_forks(&carried.forks, Carrier::Answer),
            Some(carried) => self.settle_forks(&carried.forks, outcome),
            None => {}
        }
        if let Err(error) = answer
            && is_about_the_way(error)
        {
            self.check_alive(to).on_complete(|_| {});
        }
    }

    /// Finds out whether a worker's process has ended; if so the context is told before this completes.
    /// One that cannot be reached any more for as long as the agent dials counts as ended.
    pub(crate) fn check_alive(self: &Arc<Self>, worker: WorkerId) -> RpcFuture<bool> {
        let (promise, found) = RpcFuture::new();
        {
            let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(check) = checks.get(&worker) {
                return check.clone();
            }
            checks.insert(worker, found.clone());
        }
        let asked = self.agent.incarnation_of(worker);
        // Longer than it is dialed, so that it shows whether there is a connection at all.
        let timeout = self.agent.connect_timeout().saturating_add(ALIVE_TIMEOUT);
        let soon = CallOptions::default().with_timeout(timeout);
        let runtime = Arc::clone(self);
        let check = self
            .agent
            .call_bytes_async(worker, ALIVE, Bytes::new(), soon)
            .then_async(move |answer| match verdict(&answer) {
                Some(verdict) => RpcFuture::ready(Ok(verdict)),
                None => {
                    let retries = RetryOptions::default()
                        .with_max_retries(5)
                        .with_retry_duration(Duration::from_millis(100))
                        .with_attempt_timeout(timeout);
                    runtime
                        .agent
                        .call_bytes_with_retries(worker, ALIVE, Bytes::new(), &retries)
                        .then(move |answer| Ok(verdict(&answer).unwrap_or(Verdict::Unclear)))
                }
            });
        let runtime = Arc::clone(self);
        check.on_complete(move |verdict| {
            let is_lost = match verdict {
                Ok(Verdict::Alive { incarnation }) => runtime.is_other(worker, *incarnation),
                // It may have been replaced while it was asked: then its successor lives.
                Ok(Verdict::Dead) => runtime.lose(worker, asked),
                Ok(Verdict::Unclear) | Err(_) => false,
            };
            let mut checks = runtime
                .checks
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            checks.remove(&worker);
            drop(checks);
            promise.complete(Ok(is_lost));
        });
        found
    }

    /// A process of a worker lives: whether it is another one than was known, which has ended then.
    fn is_other(self: &Arc<Self>, worker: WorkerId, incarnation: u64) -> bool {
        self.step(Mode::Elsewhere, |inner, now| {
            let known = inner.context.incarnation_of(worker);
            inner.context.hear(now, worker, incarnation);
            known.is_some_and(|known| known != incarnation)
        })
    }

    /// A worker's process has ended, unless the agent is connected to a later one by now. Whether it has.
    fn lose(self: &Arc<Self>, worker: WorkerId, incarnation: Option<u64>) -> bool {
        let had_part = self.step(Mode::Elsewhere, |inner, now| {
            // Under the lock: who is heard of after that is not taken for dead.
            let present = self.agent.incarnation_of(worker);
            if present != incarnation {
                if let Some(present) = present {
                    inner.context.hear(now, worker, present);
                }
                return false;
            }
            let had_part = inner.context.has_part(worker);
            inner.context.peer_lost(now, worker, incarnation);
            had_part
        });
        if had_part {
            let lost = self.worker(worker);
            log::warn!("{}: {lost} was lost", self.agent.me());
        }
        // Nobody waits for their ends any more but the group's end.
        self.agent.give_up_retries(worker);
        true
    }

    /// Complete when it is known whether a user's owner knows of it.
    pub(crate) fn answered(&self, user: ForkId) -> RpcFuture<()> {
        let (promise, answered) = self.agent.promise();
        let known = self.lock().wait_for(user, || {
            Box::new(move |_| {
                promise.complete(Ok(()));
                None
            })
        });
        match known {
            Some(_) => RpcFuture::ready(Ok(())),
            None => answered,
        }
    }

    pub(crate) fn status(&self, fork: ForkId) -> Option<UserStatus> {
        self.lock().context.status(fork)
    }

    pub(crate) fn has_timed_out(&self, fork: ForkId) -> bool {
        self.lock().context.has_timed_out(fork)
    }

    pub(crate) fn fork(self: &Arc<Self>, cell: &Cell, to: WorkerId) -> Result<ForkData, RRefError> {
        let forked = self.step(Mode::Elsewhere, |inner, now| {
            inner.context.fork(now, cell.handle(), to)
        });
        forked.map_err(|error| RRefError::of_fork(error, cell.rref(), &self.worker(cell.owner())))
    }

    pub(crate) fn commit_forks(self: &Arc<Self>, forks: &[ForkData], carrier: Carrier) {
        if forks.is_empty() {
            return;
        }
        self.step(Mode::Elsewhere, |inner, now| {
            for fork in forks {
                inner.context.commit_fork(now, fork, carrier);
            }
        });
    }

    pub(crate) fn undo_forks(self: &Arc<Self>, forks: &[ForkData]) {
        self.step(Mode::Elsewhere, |inner, now| {
            for fork in forks {
                inner.context.undo_fork(now, fork);
            }
        });
    }

    /// What is known of the message that carried these forks.
    pub(crate) fn settle_forks(self: &Arc<Self>, forks: &[ForkData], outcome: Outcome) {
        if forks.is_empty() {
            return;
        }
        match outcome {
            Outcome::Executed => self.step(Mode::Elsewhere, |inner, now| {
                for fork in forks {
                    inner.context.fork_has_arrived(now, fork);
                }
            }),
            Outcome::NotExecuted => self.undo_forks(forks),
            Outcome::Unknown => self.step(Mode::Elsewhere, |inner, now| {
                for fork in forks {
                    inner.context.fork_outcome_unknown(now, fork);
                }
            }),
        }
    }

    /// Receives the references that came with a message.
    pub(crate) fn receive_forks(
        self: &Arc<Self>,
        forks: &[ForkData],
    ) -> Result<Received, RRefError> {
        let mut received = Received::default();
        if forks.is_empty() {
            return Ok(received);
        }
        let (handles, error) = self.step(Mode::Elsewhere, |inner, now| {
            let mut handles = Vec::with_capacity(forks.len());
            for fork in forks {
                match inner.context.receive_fork(now, fork) {
                    Ok(one) => handles.push(one),
                    Err(error) => return (handles, Some(error)),
                }
            }
            (handles, None)
        });
        for (one, fork) in handles.into_iter().zip(forks) {
            if let (Handle::User(user), false) = (one.handle, one.is_confirmed) {
                received.pending.push(user);
            }
            received.cells.push(Cell::new(
                Arc::clone(self),
                one.handle,
                fork.rref,
                fork.owner,
                Arc::clone(&fork.type_name),
            ));
        }
        match error {
            Some(error) => Err(RRefError::of_receive(&error)),
            None => Ok(received),
        }
    }

    /// Runs the program's code; a panic is its error.
    pub(crate) fn contained<R>(&self, what: &str, run: impl FnOnce() -> R) -> Result<R, String> {
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
            let words = panic
                .downcast_ref::<&str>()
                .map(|words| (*words).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "it said nothing".to_owned());
            log::error!("{}: {what} panicked: {words}", self.agent.me());
            format!("{what} panicked: {words}")
        })
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(self.agent.me()).finish()
    }
}

/// References that came with a message.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) cells: Vec<Arc<Cell>>,
    /// Those that are not confirmed yet.
    pub(crate) pending: Vec<ForkId>,
}

/// What the end of a call with retries means.
fn delivery_of(answer: &Result<Bytes, RpcError>) -> Delivery {
    let error = match answer {
        Ok(bytes) => {
            return match Answer::decode(bytes) {
                Ok((incarnation, answer)) => Delivery::Answered {
                    incarnation,
                    answer,
                },
                Err(error) => Delivery::Refused(error.to_string().into()),
            };
        }
        Err(error) => error,
    };
    let text: Arc<str> = error.to_string().into();
    match error {
        RpcError::Remote { message, .. } => Delivery::Refused(Arc::clone(message)),
        RpcError::NoSuchFunction { .. } => Delivery::Refused(text),
        error if error.outcome() == Outcome::NotExecuted => Delivery::NotDelivered(text),
        _ => Delivery::Unknown(text),
    }
}

/// Whether a failure may mean that the worker is gone.
pub(crate) fn is_about_the_way(error: &RpcError) -> bool {
    match error {
        RpcError::RetriesExhausted { last, .. } => is_about_the_way(last),
        RpcError::NotSent { cause, .. } => !matches!(cause, NotSent::Injected),
        RpcError::ConnectionLost { .. } | RpcError::NoSuchWorker { .. } => true,
        _ => false,
    }
}

/// What the answer to [`ALIVE`] means.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Alive { incarnation: u64 },
    Dead,
    Unclear,
}

/// Whether a worker is gone that was asked; `None` if asking again may tell.
fn verdict(answer: &Result<Bytes, RpcError>) -> Option<Verdict> {
    match answer {
        Ok(bytes) if bytes.len() == 8 => Some(Verdict::Alive {
            incarnation: LittleEndian::read_u64(bytes),
        }),
        Err(RpcError::RetriesExhausted { last, .. }) => verdict(&Err((**last).clone())),
        Err(RpcError::NotSent {
            cause: NotSent::Connect(_),
            ..
        })
        | Err(RpcError::NoSuchWorker { .. }) => Some(Verdict::Dead),
        // A connection that was lost may be made again, or not.
        Err(RpcError::ConnectionLost { .. } | RpcError::NotSent { .. }) => None,
        Ok(_) | Err(_) => Some(Verdict::Unclear),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use c10d_store::HashStore;
    use rpc_agent::{Agent, AgentOptions};

    use super::*;

    #[test]
    fn a_drop_of_the_last_clone_does_not_wait_for_the_contexts_lock() {
        let mut registry = Registry::new();
        let rrefs = RRefs::register(&mut registry, Functions::new()).unwrap();
        let options = AgentOptions::new("alone", 0)
            .with_world_size(1)
            .with_host("127.0.0.1");
        let agent = Agent::start(options, registry, Arc::new(HashStore::new())).unwrap();
        rrefs.attach(&agent).unwrap();
        let number = rrefs.rref(1_i64).unwrap();
        let runtime = rrefs.runtime().unwrap();

        let locked = runtime.lock();
        let (dropped, is_dropped) = mpsc::channel();
        let dropping = thread::spawn(move || {
            drop(number);
            dropped.send(()).unwrap();
        });
        let within = is_dropped.recv_timeout(Duration::from_secs(60));
        drop(locked);
        within.expect("the drop waits for no lock");
        dropping.join().unwrap();
        rrefs.leave(Duration::from_secs(60)).unwrap();
        agent.shutdown_now();
    }
}
