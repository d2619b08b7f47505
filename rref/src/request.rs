//! The requests of this worker to other workers and to itself: creations, values, calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;
use rpc_agent::{Destination, FutureMessage, Outcome, RpcError, RpcFuture, WorkerId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cell::Cell;
use crate::context::{Carrier, Handle, UserError, UserStatus};
use crate::error::RRefError;
use crate::forks::Forks;
use crate::future::RRefFuture;
use crate::id::RRefId;
use crate::id::shared_name;
use crate::liveness::may_mean_lost;
use crate::packing;
use crate::protocol::{AWAIT, CALL, FETCH, Message, READY, RUN, join_name};
use crate::response::{RequestInfo, is_ready, read};
use crate::runtime::{CreationDelivery, Request, RunOn, Runtime, ValueWaiter};
use crate::value::Value;
use crate::value::type_name_of;

/// How long a fetch waits for its response alone. A slower one also watches for a failed creation, which
/// costs a callback.
const FAST_FETCH: Duration = Duration::from_millis(20);

/// How long the check of a worker takes beyond the deadline of a request that has failed just before: a process that has
/// ended refuses connections at once.
const CHECK_TIME_MIN: Duration = Duration::from_millis(250);

/// A request without its response.
pub(crate) struct Call {
    future: FutureMessage,
    info: RequestInfo,
}

impl Call {
    /// Blocks until the response arrives or the request's timeout has passed.
    pub(crate) fn wait<R: DeserializeOwned>(self, runtime: &Arc<Runtime>) -> Result<R, RRefError> {
        let response = self.future.wait();
        self.finish(runtime, response)
    }

    /// [`Call::wait`] for a value, which also ends when the value's creation fails.
    pub(crate) fn wait_or_failure<R: DeserializeOwned>(
        self,
        cell: &Arc<Cell>,
    ) -> Result<R, RRefError> {
        let runtime = cell.runtime();
        let Some(user) = cell.user() else {
            return self.wait(runtime);
        };
        if let Some(response) = self.future.wait_timeout(FAST_FETCH) {
            return self.finish(runtime, response);
        }
        let answered = runtime.answered(user);
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
        match cell.status(user) {
            Some(UserStatus::Failed(error)) if !self.future.is_complete() => {
                Err(RRefError::of_user(error, cell.rref(), &self.info.on))
            }
            _ => self.wait(runtime),
        }
    }

    fn finish<R: DeserializeOwned>(
        &self,
        runtime: &Arc<Runtime>,
        response: Result<Bytes, RpcError>,
    ) -> Result<R, RRefError> {
        match response {
            Ok(response) => decode(runtime, &self.info, &response),
            Err(error) => Err(explain(runtime, self.info.clone(), error).wait()?),
        }
    }

    pub(crate) fn into_future<R: DeserializeOwned + Clone + Send + 'static>(
        self,
        runtime: &Arc<Runtime>,
    ) -> RRefFuture<R> {
        let Self { future, info } = self;
        let runtime = Arc::clone(runtime);
        RRefFuture::of(future.then_async(move |response| match response {
            Ok(response) => RpcFuture::ready(Ok(decode(&runtime, &info, &response))),
            Err(error) => explain(&runtime, info, error).then(|error| Ok(Err(error?))),
        }))
    }
}

fn decode<R: DeserializeOwned>(
    runtime: &Arc<Runtime>,
    info: &RequestInfo,
    response: &[u8],
) -> Result<R, RRefError> {
    let (cells, values) = read(runtime, info, response)?;
    packing::unpack(cells, values).map_err(|error| match error {
        RRefError::Codec(error) => {
            let RequestInfo { function, on, .. } = info;
            RRefError::Codec(format!("the response of `{function}` on {on}: {error}").into())
        }
        error => error,
    })
}

/// Turns the failure of a request into its error. If the worker may be lost, it is asked first, until the request's
/// deadline.
fn explain(runtime: &Arc<Runtime>, info: RequestInfo, error: RpcError) -> RpcFuture<RRefError> {
    let RequestInfo {
        on,
        function,
        rref,
        deadline,
        ..
    } = info;
    let known = match (rref, &error) {
        (Some(rref), RpcError::Timeout { after, .. }) if info.waits_for_value => {
            RRefError::TimedOut {
                rref,
                after: *after,
            }
        }
        (Some(rref), _) if may_mean_lost(&error) => {
            let check = runtime.check_alive(on.id);
            return runtime.known_by(deadline, check).then(move |is_lost| {
                Ok(match is_lost {
                    Ok(true) => RRefError::OwnerLost { owner: on, rref },
                    _ => RRefError::Rpc(error),
                })
            });
        }
        // A function's own error arrives in a response.
        (_, RpcError::Remote { message, .. }) => {
            RRefError::Refused(format!("{on} refused `{function}`: {message}").into())
        }
        (_, RpcError::NoSuchFunction { .. }) => {
            let what = format!("{on} serves no references: call `RRefs::register` there");
            RRefError::Refused(what.into())
        }
        _ => RRefError::Rpc(error),
    };
    RpcFuture::ready(Ok(known))
}

impl Runtime {
    /// The result of a check by the deadline of its request; `false` without a result.
    fn known_by(&self, deadline: Deadline, check: RpcFuture<bool>) -> RpcFuture<bool> {
        let grace = Deadline::after(Instant::now(), CHECK_TIME_MIN);
        let Some(at) = deadline.at_least(grace).instant() else {
            return check;
        };
        let (promise, known) = self.agent.promise();
        let promise = Arc::new(promise);
        let unknown = Arc::clone(&promise);
        self.agent.spawn_at(at, move || {
            unknown.complete(Ok(false));
        });
        check.on_complete(move |is_lost| {
            promise.complete(is_lost.clone());
        });
        known
    }

    /// Keeps a value of this worker.
    pub(crate) fn keep(
        self: &Arc<Self>,
        value: Value,
        type_name: &'static str,
    ) -> Result<Arc<Cell>, RRefError> {
        let rref = self
            .step(RunOn::AgentThread, |inner, now| {
                inner.context.create_local(now, type_name, value)
            })
            .map_err(|_| RRefError::Shutdown)?;
        Ok(Cell::of_owner(self, rref, type_name))
    }

    /// Creates a reference of this worker to a value that the program sets later.
    pub(crate) fn promise_value<T>(self: &Arc<Self>) -> Result<Arc<Cell>, RRefError> {
        let type_name = type_name_of::<T>();
        let rref = self
            .step(RunOn::AgentThread, |inner, now| {
                inner.context.create_promised(now, type_name)
            })
            .map_err(|_| RRefError::Shutdown)?;
        Ok(Cell::of_owner(self, rref, type_name))
    }

    /// Creates a value by a function, or by a method of `target`'s value.
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
        let forks = packing::pack(self, owner, target, arguments, &mut bytes)?;
        let arguments = Bytes::from(bytes);
        if self.is_me(owner) {
            let rref = self
                .step(RunOn::AgentThread, |inner, now| {
                    inner.context.create_here(now, type_name)
                })
                .map_err(|_| RRefError::Shutdown)?;
            forks.commit(Carrier::Call);
            let function = function.to_owned();
            self.spawn(Box::new(move |runtime| {
                runtime.run_creation(rref, owner, &function, &arguments);
            }));
            return Ok(Cell::of_owner(self, rref, type_name));
        }
        let function: Arc<str> = function.into();
        let created = self.step(RunOn::AgentThread, |inner, now| {
            let fork = inner
                .context
                .create_remote(owner, type_name, function, arguments)?;
            for data in forks.data() {
                inner.context.commit_fork(now, data, Carrier::Call);
            }
            let delivery = CreationDelivery {
                forks: forks.data().to_vec(),
                timeout,
            };
            inner.add_creation(fork, delivery);
            let handle = Handle::User(fork);
            Ok((handle, inner.context.rref_of(handle)))
        });
        let (handle, rref) = match created {
            Ok((handle, Some(rref))) => (handle, rref),
            Ok((_, None)) | Err(UserError::ShutDown) => return Err(RRefError::Shutdown),
            Err(error) => return Err(RRefError::Refused(error.to_string().into())),
        };
        forks.disarm();
        let type_name = shared_name(type_name);
        Ok(Cell::new(Arc::clone(self), handle, rref, owner, type_name))
    }

    /// Whether a value of this worker is ready or failed.
    pub(crate) fn has_value(&self, cell: &Cell) -> Result<bool, RRefError> {
        cell.check_owned()?;
        Ok(self.lock().context.try_value(cell.rref()).is_some())
    }

    /// Sets the value of a promised reference, or its error.
    pub(crate) fn set_value(
        self: &Arc<Self>,
        rref: RRefId,
        result: Result<Value, Arc<str>>,
    ) -> Result<(), RRefError> {
        self.step(RunOn::AgentThread, |inner, now| {
            inner.context.set_value(now, rref, result)
        })
        .map_err(|error| RRefError::of_set_value(error, rref))
    }

    /// A future of a value of this worker.
    pub(crate) fn value_future<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        cell: &Cell,
        typed: fn(Value) -> Result<T, RRefError>,
    ) -> Result<RRefFuture<T>, RRefError> {
        cell.check_owned()?;
        let rref = cell.rref();
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
        self.step(RunOn::AgentThread, |inner, now| {
            let token = inner.open(Request::Value(waiter));
            inner.context.fetch(now, token, rref, None);
        });
        Ok(RRefFuture::of(future))
    }

    /// Requests a copy of the value from its owner. A timeout of zero does not wait for the value to be made.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        cell: &Cell,
        timeout: Option<Duration>,
    ) -> Result<Call, RRefError> {
        cell.check_usable()?;
        if timeout != Some(Duration::ZERO) {
            return Ok(self.request_value(FETCH, cell, timeout));
        }
        let Call { future, info } = self.request_ready(cell);
        let runtime = Arc::clone(self);
        let (rref, owner) = (cell.rref(), cell.owner());
        let future = future.then_async(move |response| match response {
            Ok(response) if is_ready(&response) => {
                let payload = Message::Fetch { rref }.encode(runtime.incarnation);
                let agent = &runtime.agent;
                agent.call(owner, FETCH).send_bytes(payload)
            }
            response => RpcFuture::ready(response),
        });
        Ok(Call { future, info })
    }

    /// Waits until the owner has the value. A timeout of zero checks once, by a round trip to the owner.
    pub(crate) fn wait_ready(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        timeout: Option<Duration>,
    ) -> Result<(), RRefError> {
        cell.check_usable()?;
        if timeout != Some(Duration::ZERO) {
            return self
                .request_value(AWAIT, cell, timeout)
                .wait_or_failure(cell);
        }
        if self.is_me(cell.owner()) {
            return self.try_own(cell.rref()).map(drop);
        }
        self.request_ready(cell).wait_or_failure(cell)
    }

    /// A value of this worker if it is ready.
    fn try_own(&self, rref: RRefId) -> Result<Value, RRefError> {
        let found = self.lock().context.try_value(rref);
        match found {
            Some(Ok(value)) => Ok(value),
            Some(Err(message)) => Err(RRefError::Creation { rref, message }),
            None => Err(RRefError::TimedOut {
                rref,
                after: Duration::ZERO,
            }),
        }
    }

    /// A value of this worker. A timeout of zero checks once.
    pub(crate) fn local_value(
        self: &Arc<Self>,
        cell: &Cell,
        timeout: Option<Duration>,
    ) -> Result<Value, RRefError> {
        let rref = cell.rref();
        match self.try_own(rref) {
            Err(RRefError::TimedOut { .. }) => cell.check_owned()?,
            found => return found,
        }
        if timeout == Some(Duration::ZERO) {
            return self.try_own(rref);
        }
        self.request_value(AWAIT, cell, timeout).wait::<()>(self)?;
        self.try_own(rref).map_err(|error| match error {
            RRefError::TimedOut { .. } => RRefError::Deleted { rref },
            error => error,
        })
    }

    /// Sends a request that its owner answers when it has the value.
    fn request_value(
        self: &Arc<Self>,
        function: &'static str,
        cell: &Cell,
        timeout: Option<Duration>,
    ) -> Call {
        let (rref, owner) = (cell.rref(), cell.owner());
        let payload = Message::Fetch { rref }.encode(self.incarnation);
        let info = RequestInfo {
            on: self.worker(owner),
            function: function.into(),
            rref: Some(rref),
            waits_for_value: true,
            timeout: timeout.unwrap_or(Duration::MAX),
            deadline: Deadline::after(Instant::now(), timeout),
        };
        Call {
            future: self
                .agent
                .call(owner, function)
                .with_timeout(timeout)
                .send_bytes(payload),
            info,
        }
    }

    /// Asks the owner whether it has the value, which it answers at once.
    fn request_ready(self: &Arc<Self>, cell: &Cell) -> Call {
        let (rref, owner) = (cell.rref(), cell.owner());
        let payload = Message::Fetch { rref }.encode(self.incarnation);
        let info = RequestInfo {
            on: self.worker(owner),
            function: READY.into(),
            rref: Some(rref),
            // Its call has the agent's timeout, which does not depend on the value.
            waits_for_value: false,
            timeout: Duration::ZERO,
            deadline: Deadline::after(Instant::now(), self.agent.timeout()),
        };
        let agent = &self.agent;
        let future = agent.call(owner, READY).send_bytes(payload);
        Call { future, info }
    }

    /// Completes when the owner has confirmed or refused the user: with the error if it cannot be used.
    pub(crate) fn confirmation(self: &Arc<Self>, cell: &Arc<Cell>) -> RRefFuture<()> {
        let Some(user) = cell.user() else {
            return RRefFuture::of(RpcFuture::ready(Ok(Ok(()))));
        };
        let cell = Arc::clone(cell);
        let answered = self.answered(user);
        RRefFuture::of(answered.then(move |answered| answered.map(|()| cell.check_usable())))
    }

    /// Waits until the owner has confirmed or refused the user. A timeout of zero checks once.
    pub(crate) fn wait_confirmed(
        self: &Arc<Self>,
        cell: &Cell,
        timeout: Option<Duration>,
    ) -> Result<(), RRefError> {
        let Some(user) = cell.user() else {
            return Ok(());
        };
        let answered = self.answered(user);
        match timeout {
            None => answered.wait()?,
            Some(timeout) => match answered.wait_timeout(timeout) {
                Some(answered) => answered?,
                None => {
                    return Err(RRefError::TimedOut {
                        rref: cell.rref(),
                        after: timeout,
                    });
                }
            },
        }
        cell.check_usable()
    }

    /// Calls a method of the value, on its owner.
    pub(crate) fn call_method(
        self: &Arc<Self>,
        cell: &Cell,
        method: &str,
        arguments: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<Call, RRefError> {
        cell.check_usable()?;
        let (rref, owner) = (cell.rref(), cell.owner());
        let mut bytes = Vec::new();
        let forks = packing::pack(self, owner, None, arguments, &mut bytes)?;
        let function: Arc<str> = method.into();
        let message = Message::Call {
            rref,
            function: Arc::clone(&function),
            arguments: bytes.into(),
        };
        let info = RequestInfo {
            on: self.worker(owner),
            function,
            rref: Some(rref),
            waits_for_value: false,
            timeout: timeout.unwrap_or(Duration::MAX),
            deadline: Deadline::after(Instant::now(), timeout),
        };
        let payload = message.encode(self.incarnation);
        Ok(self.request_with_forks(CALL, info, payload, forks, timeout))
    }

    pub(crate) fn call_function(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        arguments: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<Call, RRefError> {
        let on = self.agent.worker(to)?;
        let mut bytes = Vec::new();
        join_name(function, &mut bytes).map_err(|error| RRefError::Refused(error.into()))?;
        let forks = packing::pack(self, on.id, None, arguments, &mut bytes)?;
        let info = RequestInfo {
            on,
            function: function.into(),
            rref: None,
            waits_for_value: false,
            timeout: timeout.unwrap_or(Duration::MAX),
            deadline: Deadline::after(Instant::now(), timeout),
        };
        Ok(self.request_with_forks(RUN, info, bytes, forks, timeout))
    }

    fn request_with_forks(
        self: &Arc<Self>,
        function: &'static str,
        info: RequestInfo,
        payload: Vec<u8>,
        forks: Forks,
        timeout: Option<Duration>,
    ) -> Call {
        let forks = forks.commit(Carrier::Call);
        let call = self.agent.call(info.on.id, function);
        let future = call.with_timeout(timeout).send_bytes(payload);
        if !forks.is_empty() {
            let runtime = Arc::clone(self);
            future.on_complete(move |response| {
                let outcome = match response {
                    // Every response implies that the references were received.
                    Ok(_) => Outcome::Executed,
                    // The request may have been refused before its references were received.
                    Err(RpcError::Remote { .. }) => Outcome::Unknown,
                    Err(error) => error.outcome(),
                };
                runtime.settle_forks(&forks, outcome);
            });
        }
        Call { future, info }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::io;

    use c10d_store::HashStore;
    use rpc_agent::{Agent, AgentOptions, CallSite, Registry};

    use super::*;
    use crate::functions::Functions;
    use crate::id::{GloballyUniqueId, RRefId};
    use crate::rrefs::RRefs;

    #[test]
    fn a_request_does_not_wait_beyond_its_deadline_for_what_became_of_its_worker() {
        let patience = Duration::from_secs(60);
        let mut registry = Registry::new();
        let rrefs = RRefs::register(&mut registry, Functions::new()).unwrap();
        let options = AgentOptions::new("alone", 0)
            .with_world_size(1)
            .with_host("127.0.0.1");
        let agent = Agent::start(options, registry, Arc::new(HashStore::new())).unwrap();
        rrefs.attach(agent.handle()).unwrap();
        let runtime = rrefs.runtime().unwrap();
        let on = runtime.agent.me().clone();
        // The worker accepts connections and is silent.
        let (_unanswered, check) = RpcFuture::new();
        runtime.checks.lock().unwrap().insert(on.id, check);
        let error = RpcError::ConnectionLost {
            call: Box::new(CallSite {
                to: on.clone(),
                function: "f".into(),
            }),
            cause: Arc::new(io::ErrorKind::ConnectionReset.into()),
        };
        let id = GloballyUniqueId {
            created_on: on.id,
            incarnation: 1,
            local_id: 0,
        };
        let info = RequestInfo {
            on,
            function: "f".into(),
            rref: Some(RRefId(id)),
            waits_for_value: true,
            timeout: Duration::from_millis(100),
            deadline: Deadline::after(Instant::now(), Duration::from_millis(100)),
        };
        let explained = explain(runtime, info, error).wait_timeout(patience);
        let explained = explained.expect("it ends").unwrap();
        assert!(matches!(explained, RRefError::Rpc(_)), "{explained}");
        drop(rrefs);
        agent.shutdown(patience).unwrap();
    }
}
