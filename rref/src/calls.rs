//! What this worker asks of others, and of itself: creations, values, calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rpc_agent::{
    CallOptions, Destination, FutureMessage, Outcome, RpcError, RpcFuture, WorkerId, WorkerInfo,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::{Question, read};
use crate::carry::{self, Forks};
use crate::context::UserError;
use crate::context::{Carrier, Handle, Snapshot, TableSizes, UserStatus};
use crate::error::RRefError;
use crate::future::RRefFuture;
use crate::handle::{Cell, RRef, type_name_of};
use crate::id::RRefId;
use crate::protocol::Message;
use crate::runtime::{
    AWAIT, CALL, Carried, FETCH, Mode, READY, RRefs, RUN, Request, Runtime, ValueWaiter,
};
use crate::serving::join_name;
use crate::value::Value;

/// For so long a fetch is waited for by reading its answer; after that its creation's end is watched too.
const USUAL_WAIT: Duration = Duration::from_millis(20);

impl RRefs {
    /// This worker.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn me(&self) -> Result<WorkerInfo, RRefError> {
        Ok(self.runtime()?.agent.me().clone())
    }

    /// A reference to a value of this worker. Nobody is told of it until it is sent somewhere.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`] and [`RRefError::Shutdown`].
    pub fn rref<T: Serialize + Send + Sync + 'static>(
        &self,
        value: T,
    ) -> Result<RRef<T>, RRefError> {
        let cell = self
            .runtime()?
            .keep(Value::of(value), type_name_of::<T>())?;
        Ok(RRef::of(cell))
    }

    /// [`RRefs::rref`] to a value that never leaves this worker: methods run on it.
    ///
    /// # Errors
    /// As [`RRefs::rref`].
    pub fn rref_opaque<T: Send + Sync + 'static>(&self, value: T) -> Result<RRef<T>, RRefError> {
        let cell = self
            .runtime()?
            .keep(Value::opaque(value), type_name_of::<T>())?;
        Ok(RRef::of(cell))
    }

    /// A reference to a value of this worker that the program gives later, by [`RRef::set_value`],
    /// [`RRef::set_value_opaque`] or [`RRef::set_error`] on any of its handles here. It can be sent before;
    /// requests for the value wait for it, each until its own timeout.
    ///
    /// The value can be given as long as this worker holds a handle, one that came back from another worker
    /// included. At the end of this worker's references a value that was not given becomes an error. PyTorch's
    /// `OwnerRRef` without a value.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use c10d_store::HashStore;
    /// # use rpc_agent::{Agent, AgentOptions, Registry};
    /// # use rref::{Functions, RRef, RRefs};
    /// # const PATIENCE: Duration = Duration::from_secs(30);
    /// # let mut registry = Registry::new();
    /// # let rrefs = RRefs::register(&mut registry, Functions::new())?;
    /// # let options = AgentOptions::new("alone", 0).with_world_size(1).with_host("127.0.0.1");
    /// # let agent = Agent::start(options, registry, Arc::new(HashStore::new()))?;
    /// # rrefs.attach(&agent)?;
    /// let loss: RRef<f64> = rrefs.rref_without_value()?;
    /// let waiting = loss.value_future()?; // and others may fetch it from here
    /// assert!(!loss.has_value()? && !waiting.is_complete());
    /// loss.set_value(0.25)?;
    /// assert_eq!(*waiting.wait()?, 0.25);
    /// # drop((loss, waiting));
    /// # rrefs.shutdown(&agent, PATIENCE)?;
    /// # agent.shutdown(PATIENCE)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`RRefs::rref`].
    pub fn rref_without_value<T: Send + Sync + 'static>(&self) -> Result<RRef<T>, RRefError> {
        let runtime = self.runtime()?;
        let type_name = type_name_of::<T>();
        let rref = runtime
            .step(Mode::Elsewhere, |inner, now| {
                inner.context.create_promised(now, type_name)
            })
            .map_err(|_| RRefError::Shutdown)?;
        let me = runtime.agent.me().id;
        Ok(RRef::of(runtime.own_cell(rref, me, type_name)))
    }

    /// Has a registered function run on a worker, this one included, and its result kept there. Returns a
    /// reference to it at once.
    ///
    /// What goes wrong there is the error of all that is asked of the reference. The function runs once,
    /// even if messages are lost.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn f(rrefs: &rref::RRefs) -> Result<(), rref::RRefError> {
    /// let sum = rrefs.remote::<(i64, i64), i64>("worker1", "add", (1, 2))?;
    /// assert_eq!(sum.to_here(Duration::from_secs(5))?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What shows at once: no such worker, arguments that cannot be encoded.
    pub fn remote<'a, A: Serialize, R: Send + Sync + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
    ) -> Result<RRef<R>, RRefError> {
        self.remote_within(to.into(), function, &arguments, None)
    }

    /// [`RRefs::remote`] with a limit to how long the owner may take to accept the creation, which it does
    /// before the function runs; after that all that is asked of the reference is
    /// [`RRefError::CreationTimedOut`], until the owner has said whether it has accepted it all the same: if
    /// so, the reference is good. Zero: as long as the retries go, which is the default.
    ///
    /// # Errors
    /// As [`RRefs::remote`].
    pub fn remote_with_timeout<'a, A: Serialize, R: Send + Sync + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        timeout: Duration,
    ) -> Result<RRef<R>, RRefError> {
        self.remote_within(to.into(), function, &arguments, Some(timeout))
    }

    fn remote_within<R: Send + Sync + 'static>(
        &self,
        to: Destination<'_>,
        function: &str,
        arguments: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<RRef<R>, RRefError> {
        let runtime = self.runtime()?;
        let owner = runtime.agent.worker(to)?.id;
        let type_name = type_name_of::<R>();
        let cell = runtime.create(owner, None, function, arguments, type_name, timeout)?;
        Ok(RRef::of(cell))
    }

    /// Calls a registered function and waits for its result, for at most the agent's timeout. References
    /// may be among the arguments and in the result.
    ///
    /// # Errors
    /// [`RRefError`].
    pub fn call<'a, A: Serialize, R: DeserializeOwned>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
    ) -> Result<R, RRefError> {
        self.call_with(to, function, arguments, CallOptions::default())
    }

    /// [`RRefs::call`] with options.
    ///
    /// # Errors
    /// [`RRefError`].
    pub fn call_with<'a, A: Serialize, R: DeserializeOwned>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<R, RRefError> {
        let runtime = self.runtime()?;
        runtime
            .call_function(to.into(), function, &arguments, options)?
            .wait(runtime)
    }

    /// [`RRefs::call`] without waiting.
    ///
    /// # Errors
    /// What shows at once; the rest is the future's.
    pub fn call_async<'a, A: Serialize, R: DeserializeOwned + Clone + Send + 'static>(
        &self,
        to: impl Into<Destination<'a>>,
        function: &str,
        arguments: A,
        options: CallOptions,
    ) -> Result<RRefFuture<R>, RRefError> {
        let runtime = self.runtime()?;
        let call = runtime.call_function(to.into(), function, &arguments, options)?;
        Ok(call.into_future(runtime))
    }

    /// All tables at one moment, to be read by people: values, users, and what is under way.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn snapshot(&self) -> Result<Snapshot, RRefError> {
        let runtime = self.runtime()?;
        Ok(runtime.step(Mode::Elsewhere, |inner, now| {
            runtime.give_back(inner, now);
            inner.context.snapshot(now)
        }))
    }

    /// How full the tables are.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn sizes(&self) -> Result<TableSizes, RRefError> {
        let runtime = self.runtime()?;
        Ok(runtime.step(Mode::Elsewhere, |inner, now| {
            runtime.give_back(inner, now);
            inner.context.sizes()
        }))
    }

    /// Whether the tables agree with each other. Takes time in proportion to them.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`]; [`RRefError::Refused`] with the first sentence that does not hold: a defect
    /// of this crate, or a worker that contradicts itself.
    pub fn check_invariants(&self) -> Result<(), RRefError> {
        let checked = self.runtime()?.lock().context.check_invariants();
        checked.map_err(|sentence| RRefError::Refused(sentence.into()))
    }

    /// PyTorch's debug info: its four counters, by their names there.
    ///
    /// # Errors
    /// [`RRefError::NotAttached`].
    pub fn debug_info(&self) -> Result<[(&'static str, usize); 4], RRefError> {
        let sizes = self.sizes()?;
        Ok([
            ("num_owner_rrefs", sizes.owners),
            ("num_pending_users", sizes.pending_users),
            ("num_forks", sizes.forks),
            ("num_pending_futures", sizes.pending_futures),
        ])
    }
}

/// Something that was asked and is not answered yet.
pub(crate) struct Call {
    future: FutureMessage,
    question: Question,
}

impl Call {
    pub(crate) fn wait<R: DeserializeOwned>(self, runtime: &Arc<Runtime>) -> Result<R, RRefError> {
        let answer = self.future.wait();
        self.finish(runtime, answer)
    }

    /// Waits for a value; that its creation has failed ends the wait, too.
    pub(crate) fn wait_or_failure<R: DeserializeOwned>(
        self,
        runtime: &Arc<Runtime>,
        cell: &Arc<Cell>,
    ) -> Result<R, RRefError> {
        let Some(user) = cell.user() else {
            return self.wait(runtime);
        };
        if let Some(answer) = self.future.wait_timeout(USUAL_WAIT) {
            return self.finish(runtime, answer);
        }
        let answered = cell.answered(user);
        if !answered.is_complete() {
            let (promise, either) = runtime.agent.promise();
            let promise = Arc::new(promise);
            let ended = Arc::clone(&promise);
            self.future.on_complete(move |_| {
                promise.complete(Ok(()));
            });
            answered.on_complete(move |_| {
                ended.complete(Ok(()));
            });
            either.wait()?;
        }
        match runtime.status(user) {
            Some(UserStatus::Failed(error)) if !self.future.is_complete() => {
                Err(RRefError::of_user(error, cell.rref(), &self.question.on))
            }
            _ => self.wait(runtime),
        }
    }

    fn finish<R: DeserializeOwned>(
        &self,
        runtime: &Arc<Runtime>,
        answer: Result<Bytes, RpcError>,
    ) -> Result<R, RRefError> {
        match answer {
            Ok(answer) => decode(runtime, &self.question, &answer),
            Err(error) => {
                let question = self.question.clone();
                Err(explain(runtime, question, error).wait()?)
            }
        }
    }

    pub(crate) fn into_future<R: DeserializeOwned + Clone + Send + 'static>(
        self,
        runtime: &Arc<Runtime>,
    ) -> RRefFuture<R> {
        let Self { future, question } = self;
        let runtime = Arc::clone(runtime);
        RRefFuture::of(future.then_async(move |answer| match answer {
            Ok(answer) => RpcFuture::ready(Ok(decode(&runtime, &question, &answer))),
            Err(error) => explain(&runtime, question, error).then(|error| Ok(Err(error?))),
        }))
    }
}

fn decode<R: DeserializeOwned>(
    runtime: &Arc<Runtime>,
    question: &Question,
    answer: &[u8],
) -> Result<R, RRefError> {
    let (cells, values) = read(runtime, question, answer)?;
    carry::unpack(cells, values).map_err(|error| match error {
        RRefError::Codec(error) => {
            let Question { function, on, .. } = question;
            RRefError::Codec(format!("what `{function}` on {on} has answered: {error}").into())
        }
        error => error,
    })
}

/// Why a request about a reference failed: the worker may be gone, which takes a moment to find out.
fn explain(runtime: &Arc<Runtime>, question: Question, error: RpcError) -> RpcFuture<RRefError> {
    let Question {
        on, function, rref, ..
    } = question;
    let known = match (rref, &error) {
        (Some(rref), RpcError::Timeout { after, .. }) if question.is_for_value => {
            RRefError::TimedOut {
                rref,
                after: *after,
            }
        }
        (Some(rref), _) if crate::runtime::is_about_the_way(&error) => {
            return runtime.check_alive(on.id).then(move |is_lost| {
                Ok(match is_lost {
                    Ok(true) => RRefError::OwnerLost { owner: on, rref },
                    _ => RRefError::Rpc(error),
                })
            });
        }
        // What the function itself says is an answer of another kind.
        (_, RpcError::Remote { message, .. }) => {
            RRefError::Refused(format!("`{function}` was not run on {on}: {message}").into())
        }
        (_, RpcError::NoSuchFunction { .. }) => {
            let what =
                format!("{on} serves no references: `RRefs::register` is to be called there");
            RRefError::Refused(what.into())
        }
        _ => RRefError::Rpc(error),
    };
    RpcFuture::ready(Ok(known))
}

impl Runtime {
    fn keep(
        self: &Arc<Self>,
        value: Value,
        type_name: &'static str,
    ) -> Result<Arc<Cell>, RRefError> {
        let me = self.agent.me();
        let rref = self
            .step(Mode::Elsewhere, |inner, now| {
                inner.context.create_local(now, type_name, value)
            })
            .map_err(|_| RRefError::Shutdown)?;
        Ok(self.own_cell(rref, me.id, type_name))
    }

    fn own_cell(self: &Arc<Self>, rref: RRefId, me: WorkerId, type_name: &str) -> Arc<Cell> {
        Cell::new(
            Arc::clone(self),
            Handle::Owner(rref),
            rref,
            me,
            type_name.into(),
        )
    }

    /// Has a value made by a function; by a method if `target`, the value that it runs on, is given.
    pub(crate) fn create(
        self: &Arc<Self>,
        owner: WorkerId,
        target: Option<&Arc<Cell>>,
        function: &str,
        arguments: &impl Serialize,
        type_name: &'static str,
        timeout: Option<Duration>,
    ) -> Result<Arc<Cell>, RRefError> {
        let mut bytes = Vec::new();
        let forks = carry::pack(self, owner, target, arguments, &mut bytes)?;
        let arguments = Bytes::from(bytes);
        if self.is_me(owner) {
            let rref = self
                .step(Mode::Elsewhere, |inner, now| {
                    inner.context.create_here(now, type_name)
                })
                .map_err(|_| RRefError::Shutdown)?;
            // Decoded by this worker, or by nobody.
            forks.commit(Carrier::Call);
            let function = function.to_owned();
            self.spawn(Box::new(move |runtime| {
                runtime.run_creation(rref, owner, &function, &arguments);
            }));
            return Ok(self.own_cell(rref, owner, type_name));
        }
        let function: Arc<str> = function.into();
        let created = self.step(Mode::Elsewhere, |inner, now| {
            let fork = inner
                .context
                .create_remote(now, owner, type_name, function, arguments)?;
            for data in forks.data() {
                inner.context.commit_fork(now, data, Carrier::Call);
            }
            let carried = Carried {
                forks: forks.data().to_vec(),
                timeout,
            };
            inner.carry(fork, carried);
            let handle = Handle::User(fork);
            Ok((handle, inner.context.rref_of(handle)))
        });
        let (handle, rref) = match created {
            Ok((handle, Some(rref))) => (handle, rref),
            Ok((_, None)) | Err(UserError::ShutDown) => return Err(RRefError::Shutdown),
            Err(error) => return Err(RRefError::Refused(error.to_string().into())),
        };
        forks.disarm();
        let type_name = type_name.into();
        Ok(Cell::new(Arc::clone(self), handle, rref, owner, type_name))
    }

    /// Whether a reference can be used at all.
    fn check_usable(&self, cell: &Cell) -> Result<(), RRefError> {
        let Some(user) = cell.user() else {
            return self.check_owned(cell.handle());
        };
        match self.status(user) {
            Some(UserStatus::Failed(error)) => Err(RRefError::of_user(
                error,
                cell.rref(),
                &self.worker(cell.owner()),
            )),
            Some(_) => Ok(()),
            None => Err(RRefError::Shutdown),
        }
    }

    /// Whether a value of this worker that is referred to is still there: until the end it is.
    fn check_owned(&self, handle: Handle) -> Result<(), RRefError> {
        let owner = self.lock().context.owner_of(handle);
        owner.map(drop).ok_or(RRefError::Shutdown)
    }

    /// Asks the owner for a copy of the value.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        timeout: Duration,
    ) -> Result<Call, RRefError> {
        self.check_usable(cell)?;
        Ok(self.ask_for_value(FETCH, cell.rref(), cell.owner(), timeout))
    }

    /// Whether the owner has the value now.
    pub(crate) fn check_value(self: &Arc<Self>, cell: &Arc<Cell>) -> Result<(), RRefError> {
        self.check_usable(cell)?;
        let (rref, owner) = (cell.rref(), cell.owner());
        if self.is_me(owner) {
            let found = self.lock().context.try_value(rref);
            return match found {
                Some(Ok(_)) => Ok(()),
                Some(Err(message)) => Err(RRefError::Creation { rref, message }),
                None => Err(RRefError::TimedOut {
                    rref,
                    after: Duration::ZERO,
                }),
            };
        }
        let payload = Message::Fetch { rref }.encode(self.incarnation);
        let question = Question {
            on: self.worker(owner),
            function: READY.into(),
            rref: Some(rref),
            is_for_value: false,
            timeout: Duration::ZERO,
        };
        let options = CallOptions::default();
        let future = self.agent.call_bytes_async(owner, READY, payload, options);
        Call { future, question }.wait_or_failure(self, cell)
    }

    /// Whether a reference of this worker has a value or an error.
    pub(crate) fn has_value(&self, rref: RRefId) -> Result<bool, RRefError> {
        self.check_owned(Handle::Owner(rref))?;
        Ok(self.lock().context.try_value(rref).is_some())
    }

    /// Gives a reference of this worker its value, or an error.
    pub(crate) fn give(
        self: &Arc<Self>,
        rref: RRefId,
        result: Result<Value, Arc<str>>,
    ) -> Result<(), RRefError> {
        self.step(Mode::Elsewhere, |inner, now| {
            inner.context.give(now, rref, result)
        })
        .map_err(|error| RRefError::of_give(error, rref))
    }

    /// A value of this worker, when there is one.
    pub(crate) fn value_future<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        rref: RRefId,
        typed: fn(Value) -> Result<T, RRefError>,
    ) -> Result<RRefFuture<T>, RRefError> {
        self.check_owned(Handle::Owner(rref))?;
        let found = self.lock().context.try_value(rref);
        if let Some(found) = found {
            let found = found.map_err(|message| RRefError::Creation { rref, message });
            return Ok(RRefFuture::of(RpcFuture::ready(Ok(found.and_then(typed)))));
        }
        let (promise, future) = self.agent.promise();
        let waiter: ValueWaiter = Box::new(move |_, found| {
            let found = found.map_err(|error| RRefError::of_own(error, rref));
            promise.complete(Ok(found.and_then(typed)));
        });
        self.step(Mode::Elsewhere, |inner, now| {
            let token = inner.open(Request::Value(waiter));
            inner.context.fetch(now, token, rref, None);
        });
        Ok(RRefFuture::of(future))
    }

    fn ask_for_value(
        self: &Arc<Self>,
        function: &'static str,
        rref: RRefId,
        owner: WorkerId,
        timeout: Duration,
    ) -> Call {
        let payload = Message::Fetch { rref }.encode(self.incarnation);
        let question = Question {
            on: self.worker(owner),
            function: function.into(),
            rref: Some(rref),
            is_for_value: true,
            timeout,
        };
        let options = CallOptions::default().with_timeout(timeout);
        Call {
            future: self
                .agent
                .call_bytes_async(owner, function, payload, options),
            question,
        }
    }

    /// Waits until the owner has the value.
    pub(crate) fn await_value(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        timeout: Duration,
    ) -> Result<(), RRefError> {
        self.check_usable(cell)?;
        let (rref, owner) = (cell.rref(), cell.owner());
        self.ask_for_value(AWAIT, rref, owner, timeout)
            .wait_or_failure(self, cell)
    }

    /// A value of this worker.
    pub(crate) fn local_value(
        self: &Arc<Self>,
        rref: RRefId,
        timeout: Duration,
    ) -> Result<Value, RRefError> {
        let look = || self.lock().context.try_value(rref);
        let found = match look() {
            Some(found) => Some(found),
            None => {
                self.check_owned(Handle::Owner(rref))?;
                let me = self.agent.me().id;
                self.ask_for_value(AWAIT, rref, me, timeout)
                    .wait::<()>(self)?;
                look()
            }
        };
        match found {
            Some(Ok(value)) => Ok(value),
            Some(Err(message)) => Err(RRefError::Creation { rref, message }),
            None => Err(RRefError::Deleted { rref }),
        }
    }

    pub(crate) fn wait_confirmed(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        timeout: Duration,
    ) -> Result<(), RRefError> {
        let Some(user) = cell.user() else {
            return Ok(());
        };
        let answered = cell.answered(user);
        let is_known = if timeout.is_zero() {
            answered.wait()?;
            true
        } else {
            answered.wait_timeout(timeout).transpose()?.is_some()
        };
        if !is_known {
            return Err(RRefError::TimedOut {
                rref: cell.rref(),
                after: timeout,
            });
        }
        self.check_usable(cell)
    }

    /// Has a method run on the owner.
    pub(crate) fn call_value(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        method: &str,
        arguments: &impl Serialize,
        options: CallOptions,
    ) -> Result<Call, RRefError> {
        self.check_usable(cell)?;
        let (rref, owner) = (cell.rref(), cell.owner());
        let mut bytes = Vec::new();
        let forks = carry::pack(self, owner, None, arguments, &mut bytes)?;
        let function: Arc<str> = method.into();
        let message = Message::Call {
            rref,
            function: Arc::clone(&function),
            arguments: bytes.into(),
        };
        let question = Question {
            on: self.worker(owner),
            function,
            rref: Some(rref),
            is_for_value: false,
            timeout: options.timeout().unwrap_or_else(|| self.agent.timeout()),
        };
        let payload = message.encode(self.incarnation);
        Ok(self.ask(CALL, question, payload, forks, options))
    }

    /// Has a function run.
    fn call_function(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        arguments: &impl Serialize,
        options: CallOptions,
    ) -> Result<Call, RRefError> {
        let on = self.agent.worker(to)?;
        let mut bytes = Vec::new();
        join_name(function, &mut bytes).map_err(|error| RRefError::Refused(error.into()))?;
        let forks = carry::pack(self, on.id, None, arguments, &mut bytes)?;
        let question = Question {
            on,
            function: function.into(),
            rref: None,
            is_for_value: false,
            timeout: options.timeout().unwrap_or_else(|| self.agent.timeout()),
        };
        Ok(self.ask(RUN, question, bytes, forks, options))
    }

    /// Sends a request with references.
    fn ask(
        self: &Arc<Self>,
        function: &'static str,
        question: Question,
        payload: Vec<u8>,
        forks: Forks,
        options: CallOptions,
    ) -> Call {
        let forks = forks.commit(Carrier::Call);
        let future = self
            .agent
            .call_bytes_async(question.on.id, function, payload, options);
        if !forks.is_empty() {
            let runtime = Arc::clone(self);
            future.on_complete(move |answer| {
                let outcome = match answer {
                    // Whatever it says: its references were received, or its sender would have been told.
                    Ok(_) => Outcome::Executed,
                    // The request may have been refused before its references were received.
                    Err(RpcError::Remote { .. }) => Outcome::Unknown,
                    Err(error) => error.outcome(),
                };
                runtime.settle_forks(&forks, outcome);
            });
        }
        Call { future, question }
    }
}
