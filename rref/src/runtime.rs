//! The shell around the context: lock, step, unlock, carry out the effects.
//!
//! The runtime decides nothing about references and has no threads. The program's threads step the context, and so do
//! the agent's threads when they deliver messages and answers, collect dropped handles, or run at the time that
//! [`RRefContext::next_tick`] returns.
//!
//! At most one lock is held at a time, and no call into the agent or the program is made under it. The one
//! exception is [`DropQueue`]'s: it is taken under the context's lock, for the time of a `mem::take`, so that
//! a thread that reads the context after a drop never finds the handle still counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_agent::{AgentHandle, Reply, RetryGroup, RpcFuture, WorkerId, WorkerInfo, catch_panic};

use crate::async_functions::PendingCalls;
use crate::context::{
    Control, Effect, FetchError, Handle, RRefContext, RequestToken, UserError, UserStatus,
};
use crate::drops::DropQueue;
use crate::id::{ForkId, RRefId};
use crate::options::RRefOptions;
use crate::protocol::{Answer, ForkData, Message, join};
use crate::value::Value;

/// Runs the functions that make values. The layer that has the registered functions implements it.
pub(crate) trait RunCreation: Send + Sync {
    /// Runs the function for `rref`, and reports its result to the context.
    fn run_creation(
        &self,
        runtime: &Arc<Runtime>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    );
}

/// Work that runs the program's code: its functions or its destructors.
pub(crate) type Job = Box<dyn FnOnce(&Arc<Runtime>) + Send>;

/// Called when the owner has confirmed or refused a user. Returns what to run next.
pub(crate) type ConfirmationWaiter = Box<dyn FnOnce(Result<(), UserError>) -> Option<Job> + Send>;

/// Called with a value of this worker, or the reason that there is none.
pub(crate) type ValueWaiter = Box<dyn FnOnce(&Arc<Runtime>, Result<Value, FetchError>) + Send>;

/// The thread that runs the jobs of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOn {
    /// This one, an agent thread that serves a request.
    ThisThread,
    /// Another agent thread: this one is the program's, or has more to do.
    AgentThread,
}

/// A request that waits for the context's answer.
pub(crate) enum Request {
    Answer(Reply),
    /// The answer is a part of a [`Batch`].
    PartOf(BatchToken),
    Value(ValueWaiter),
}

/// Names an open call with several messages.
pub(crate) type BatchToken = u64;

/// A call with several messages, which is answered when all of them are.
struct Batch {
    reply: Reply,
    answers: Vec<(RequestToken, Option<Answer>)>,
    missing: usize,
}

/// The parameters of the message of a creation.
pub(crate) struct CreationDelivery {
    pub(crate) forks: Vec<ForkData>,
    /// How long the owner may take to accept it; `None`: as long as the retries continue.
    pub(crate) timeout: Option<Duration>,
}

/// The state behind the runtime's lock.
pub(crate) struct Inner {
    pub(crate) context: RRefContext<Value>,
    requests: HashMap<RequestToken, Request>,
    next_token: RequestToken,
    batches: HashMap<BatchToken, Batch>,
    /// The waiters by the user that is not confirmed yet.
    waiters: HashMap<ForkId, Vec<ConfirmationWaiter>>,
    /// The future that threads wait on, by such a user: however often they wait, it is a single waiter.
    answered: HashMap<ForkId, RpcFuture<()>>,
    creations: HashMap<ForkId, CreationDelivery>,
    /// How many threads wait for the shutdown's conditions.
    pub(crate) shutdown_waiters: usize,
    pub(crate) is_shutting_down: bool,
    /// The times at which a thread is scheduled to tick; seldom more than two.
    scheduled_ticks: BTreeSet<Instant>,
}

/// The results of a step, carried out without the lock.
enum Todo {
    Send(WorkerId, Control, Message, Option<CreationDelivery>),
    Reply(Reply, Answer),
    ReplyAll(Reply, Vec<Answer>),
    Value(ValueWaiter, Result<Value, FetchError>),
    Confirmation(ConfirmationWaiter, Result<(), UserError>),
    RunCreation(RRefId, WorkerId, Arc<str>, Bytes),
    Free(Value),
}

impl Inner {
    pub(crate) fn open(&mut self, request: Request) -> RequestToken {
        let token = self.next_token;
        self.next_token += 1;
        self.requests.insert(token, request);
        token
    }

    /// Opens a request for each of `count` messages of one call, in order.
    pub(crate) fn open_batch(&mut self, reply: Reply, count: usize) -> Vec<RequestToken> {
        let batch = self.next_token;
        let tokens = (0..count).map(|_| self.open(Request::PartOf(batch)));
        let tokens: Vec<_> = tokens.collect();
        let answers = tokens.iter().map(|token| (*token, None)).collect();
        let missing = count;
        let open = Batch {
            reply,
            answers,
            missing,
        };
        self.batches.insert(batch, open);
        tokens
    }

    /// Adds an answer to a batch; returns all of them with the last one.
    fn answer_part(
        &mut self,
        batch: BatchToken,
        token: RequestToken,
        answer: Answer,
    ) -> Option<Todo> {
        let open = self.batches.get_mut(&batch)?;
        // Tokens of a batch ascend.
        let part = open.answers.binary_search_by_key(&token, |part| part.0);
        let (_, place) = open.answers.get_mut(part.ok()?)?;
        *place = Some(answer);
        open.missing -= 1;
        if open.missing > 0 {
            return None;
        }
        let Batch { reply, answers, .. } = self.batches.remove(&batch)?;
        let answers = answers.into_iter().filter_map(|(_, answer)| answer);
        Some(Todo::ReplyAll(reply, answers.collect()))
    }

    pub(crate) fn add_creation(&mut self, created: ForkId, delivery: CreationDelivery) {
        self.creations.insert(created, delivery);
    }

    /// Registers `waiter` for the user's confirmation; returns the result instead if it is known.
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

    /// The time of the next tick if no thread is scheduled for it or earlier. The tick then counts as scheduled.
    fn schedule_tick(&mut self) -> Option<Instant> {
        let next = self.context.next_tick()?;
        let is_earlier = self.scheduled_ticks.first().is_none_or(|at| next < *at);
        if is_earlier {
            self.scheduled_ticks.insert(next);
        }
        is_earlier.then_some(next)
    }

    fn take_todo(&mut self) -> Vec<Todo> {
        let effects = self.context.take_effects();
        let mut todo = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Send {
                    to,
                    control,
                    message,
                } => {
                    let creation = match control {
                        Control::Create(fork) => self.creations.remove(&fork),
                        _ => None,
                    };
                    todo.push(Todo::Send(to, control, message, creation));
                }
                Effect::Reply { token, answer } => match self.requests.remove(&token) {
                    Some(Request::Answer(reply)) => todo.push(Todo::Reply(reply, answer)),
                    Some(Request::PartOf(batch)) => {
                        todo.extend(self.answer_part(batch, token, answer));
                    }
                    Some(Request::Value(waiter)) => {
                        let why = match answer {
                            Answer::Refused(why) => why,
                            _ => "the request was not accepted".into(),
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
                } => todo.push(Todo::RunCreation(rref, from, function, arguments)),
                Effect::Confirmed { fork } => self.resolve(fork, &Ok(()), &mut todo),
                Effect::Failed { fork, error } => self.resolve(fork, &Err(error), &mut todo),
                Effect::Free(value) => todo.push(Todo::Free(value)),
            }
        }
        todo
    }

    fn resolve(&mut self, fork: ForkId, result: &Result<(), UserError>, todo: &mut Vec<Todo>) {
        self.answered.remove(&fork);
        let waiters = self.waiters.remove(&fork).unwrap_or_default().into_iter();
        todo.extend(waiters.map(|waiter| Todo::Confirmation(waiter, result.clone())));
    }
}

/// The references of one agent.
pub(crate) struct Runtime {
    pub(crate) agent: AgentHandle,
    pub(crate) options: RRefOptions,
    /// The messages and the liveness checks of all references.
    pub(crate) retry_group: RetryGroup,
    pub(crate) incarnation: u64,
    creator: Arc<dyn RunCreation>,
    inner: Mutex<Inner>,
    /// Notified by each step while [`Inner::shutdown_waiters`] is above zero.
    pub(crate) changed: Condvar,
    drops: DropQueue<Handle>,
    /// The `async` functions that run here.
    pub(crate) pending: Arc<PendingCalls>,
    /// Liveness checks under way: whether the worker is lost.
    pub(crate) checks: Mutex<HashMap<WorkerId, RpcFuture<bool>>>,
}

impl Runtime {
    /// Starts serving references on an agent. The agent's callbacks do not keep the runtime alive.
    pub(crate) fn start(
        agent: &AgentHandle,
        creator: Arc<dyn RunCreation>,
        options: &RRefOptions,
    ) -> Arc<Self> {
        let incarnation = agent.incarnation();
        let me = agent.me().id;
        let runtime = Arc::new(Self {
            agent: agent.clone(),
            options: options.clone(),
            retry_group: RetryGroup::new(),
            incarnation,
            creator,
            inner: Mutex::new(Inner {
                context: RRefContext::new(me, incarnation, options.timing(), Instant::now()),
                requests: HashMap::new(),
                next_token: 0,
                batches: HashMap::new(),
                waiters: HashMap::new(),
                answered: HashMap::new(),
                creations: HashMap::new(),
                shutdown_waiters: 0,
                is_shutting_down: false,
                scheduled_ticks: BTreeSet::new(),
            }),
            changed: Condvar::new(),
            drops: DropQueue::new(),
            pending: PendingCalls::new(agent),
            checks: Mutex::default(),
        });
        let weak = Arc::downgrade(&runtime);
        agent.on_peer_lost(move |worker, _| {
            if let Some(runtime) = weak.upgrade() {
                // Distinguishes a dead worker from a lost connection.
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
                runtime.pending.end();
                runtime.collect_drops(RunOn::ThisThread);
                runtime.step(RunOn::ThisThread, |inner, now| inner.context.end(now));
            }
        });
        runtime
    }

    pub(crate) fn is_me(&self, worker: WorkerId) -> bool {
        self.agent.me().id == worker
    }

    /// The worker with this id, without a name if the agent does not know it.
    pub(crate) fn worker(&self, id: WorkerId) -> WorkerInfo {
        let known = self.agent.worker(id);
        known.unwrap_or_else(|_| WorkerInfo::unnamed(id))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under this lock is a defect of this crate; continuing is better than failing all callers.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the context under the lock, and carries out the effects after it.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        run_on: RunOn,
        step: impl FnOnce(&mut Inner, Instant) -> R,
    ) -> R {
        let now = Instant::now();
        let mut inner = self.lock();
        let result = step(&mut inner, now);
        if inner.context.next_tick().is_some_and(|at| at <= now) {
            inner.context.tick(now);
        }
        let todo = inner.take_todo();
        let is_awaited = inner.shutdown_waiters > 0;
        let tick_at = inner.schedule_tick();
        drop(inner);
        if is_awaited {
            self.changed.notify_all();
        }
        if let Some(at) = tick_at {
            self.tick_at(at);
        }
        self.carry_out(todo, run_on);
        result
    }

    /// Schedules an agent thread for the next due action.
    fn tick_at(self: &Arc<Self>, at: Instant) {
        let runtime = Arc::downgrade(self);
        self.agent.spawn_at(at, move || {
            if let Some(runtime) = runtime.upgrade() {
                runtime.step(RunOn::ThisThread, |inner, _| {
                    inner.scheduled_ticks.remove(&at);
                });
            }
        });
    }

    fn carry_out(self: &Arc<Self>, todo: Vec<Todo>, run_on: RunOn) {
        let mut jobs: Vec<Job> = Vec::new();
        let mut freed = Vec::new();
        let mut controls: BTreeMap<WorkerId, Vec<(Control, Message)>> = BTreeMap::new();
        for todo in todo {
            match todo {
                Todo::Send(to, control @ Control::Create(_), message, creation) => {
                    self.send(to, control, &message, creation);
                }
                Todo::Send(to, control, message, _) => {
                    controls.entry(to).or_default().push((control, message));
                }
                Todo::ReplyAll(reply, answers) => {
                    let answers = answers.iter().map(|answer| answer.encode(self.incarnation));
                    reply.send(Ok(join(answers)));
                }
                Todo::Reply(reply, answer) => {
                    reply.send(Ok(answer.encode(self.incarnation)));
                }
                Todo::Confirmation(waiter, result) => jobs.extend(waiter(result)),
                Todo::Value(waiter, result) => {
                    jobs.push(Box::new(move |runtime| waiter(runtime, result)));
                }
                Todo::RunCreation(rref, from, function, arguments) => {
                    jobs.push(Box::new(move |runtime| {
                        runtime.run_creation(rref, from, &function, &arguments);
                    }));
                }
                Todo::Free(value) => freed.push(value),
            }
        }
        for (to, controls) in controls {
            self.send_all(to, controls);
        }
        if !freed.is_empty() {
            match run_on {
                RunOn::ThisThread => self.free_all(freed),
                // A destructor is the program's code, and this thread may hold the program's locks.
                RunOn::AgentThread => jobs.push(Box::new(move |runtime| runtime.free_all(freed))),
            }
        }
        let last = match run_on {
            RunOn::ThisThread => jobs.pop(),
            RunOn::AgentThread => None,
        };
        for job in jobs {
            self.spawn(job);
        }
        if let Some(job) = last {
            job(self);
        }
    }

    pub(crate) fn run_creation(
        self: &Arc<Self>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    ) {
        self.creator
            .run_creation(self, rref, from, function, arguments);
    }

    fn free_all(&self, values: Vec<Value>) {
        for value in values {
            self.free(value);
        }
    }

    /// Drops a value. A panic of its destructor is logged.
    pub(crate) fn free(&self, value: Value) {
        let what = value.type_name();
        let _ = self.contain_panic(format_args!("the destructor of a `{what}`"), || drop(value));
    }

    /// Runs a job on an agent thread.
    pub(crate) fn spawn(self: &Arc<Self>, job: Job) {
        let runtime = Arc::clone(self);
        self.agent.spawn(move || job(&runtime));
    }

    /// Queues a handle whose last clone was dropped. Sends nothing and does not take the context's lock,
    /// which a caller up this thread's stack may hold.
    pub(crate) fn queue_drop(self: &Arc<Self>, handle: Handle) {
        if self.drops.push(handle) {
            self.spawn(Box::new(|runtime| {
                runtime.collect_drops(RunOn::ThisThread);
            }));
        }
    }

    /// Returns the dropped handles to the context.
    pub(crate) fn collect_drops(self: &Arc<Self>, run_on: RunOn) {
        self.step(run_on, |inner, now| self.collect_drops_in_step(inner, now));
    }

    /// [`Runtime::collect_drops`] inside a step.
    pub(crate) fn collect_drops_in_step(&self, inner: &mut Inner, now: Instant) {
        for handle in self.drops.take() {
            inner.context.drop_handle(now, handle);
        }
    }

    /// Completes when the owner has confirmed or refused the user; the user's status shows which.
    pub(crate) fn answered(&self, user: ForkId) -> RpcFuture<()> {
        let mut inner = self.lock();
        if let Some(answered) = inner.answered.get(&user) {
            return answered.clone();
        }
        if !matches!(inner.context.status(user), Some(UserStatus::Pending)) {
            return RpcFuture::ready(Ok(()));
        }
        let (promise, answered) = self.agent.promise();
        let known = inner.wait_for(user, || {
            Box::new(move |_| {
                promise.complete(Ok(()));
                None
            })
        });
        debug_assert!(known.is_none(), "the user is pending");
        inner.answered.insert(user, answered.clone());
        answered
    }

    /// Runs the program's code. A panic is logged, and becomes the error.
    pub(crate) fn contain_panic<R>(
        &self,
        what: fmt::Arguments<'_>,
        run: impl FnOnce() -> R,
    ) -> Result<R, String> {
        catch_panic(run).map_err(|message| self.panicked(what, &message))
    }

    /// Logs a panic of the program's code; returns the error that it becomes.
    pub(crate) fn panicked(&self, what: fmt::Arguments<'_>, message: &str) -> String {
        log::error!("{}: {what} panicked: {message}", self.agent.me());
        format!("{what} panicked: {message}")
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runtime").field(self.agent.me()).finish()
    }
}
