//! Serves the requests of other workers: creations, values, calls, and messages about references.
//!
//! A request that waits for a value, or for the confirmation of its references, holds no thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use c10d_socket::Deadline;
use rpc_agent::{Context, HandlerError, Outcome, Registry, Reply, WorkerId, WorkerInfo};

use crate::async_functions::Unfinished;
use crate::cell::Cell;
use crate::context::{FetchError, Handle, UserError};
use crate::error::{RRefError, RegisterError};
use crate::functions::{CallContext, Function, Functions, Made, Prepared};
use crate::id::{ForkId, RRefId};
use crate::options::RRefOptions;
use crate::packing::{self, Packed};
use crate::protocol::{
    ALIVE, AWAIT, CALL, CONTROL, CONTROLS, CREATE, DecodeError, FETCH, ForkData, Message, READY,
    RUN, split, split_name,
};
use crate::response::{Failure, Response};
use crate::rrefs::{Hub, RRefs};
use crate::runtime::{Job, Request, RunCreation, RunOn, Runtime, ValueWaiter};
use crate::value::Value;

/// How many copies of a request are answered with the first one. A network makes one or two.
const COPIES_MAX: usize = 16;

type Serve = fn(&Arc<Server>, &Arc<Runtime>, Asked);

/// A request of a worker.
struct Asked {
    from: WorkerInfo,
    deadline: Deadline,
    payload: Bytes,
    reply: Reply,
}

impl RRefs {
    /// Registers the functions of references at the agent's registry, together with `functions`, which other workers
    /// can run.
    ///
    /// # Errors
    /// [`RegisterError::Registry`] if the registry has references already.
    pub fn register(registry: &mut Registry, functions: Functions) -> Result<Self, RegisterError> {
        Self::register_with(registry, functions, RRefOptions::new())
    }

    /// [`RRefs::register`] with options.
    ///
    /// # Errors
    /// The errors of [`RRefs::register`]; [`RegisterError::Retries`] if the options' retries are invalid.
    pub fn register_with(
        registry: &mut Registry,
        functions: Functions,
        options: RRefOptions,
    ) -> Result<Self, RegisterError> {
        options.validate()?;
        let registry_id = registry.id();
        // The hub has the server, which needs the hub for the functions that it runs.
        let mut server = Weak::new();
        let hub = Arc::new_cyclic(|hub: &Weak<Hub>| {
            let created = Arc::new(Server {
                functions,
                hub: Weak::clone(hub),
                calls: Mutex::default(),
            });
            server = Arc::downgrade(&created);
            Hub {
                creator: Arc::new(Creator(created)),
                options,
                registry: registry_id,
                runtime: OnceLock::new(),
            }
        });
        let functions: [(&str, Serve); 9] = [
            (CREATE, Server::create),
            (CONTROL, Server::control),
            (CONTROLS, Server::controls),
            (FETCH, Server::fetch),
            (AWAIT, Server::await_value),
            (READY, Server::is_ready),
            (CALL, Server::call),
            (RUN, Server::run),
            (ALIVE, Server::alive),
        ];
        for (name, serve) in functions {
            // The agent keeps its functions; they do not keep the references.
            let server = Weak::clone(&server);
            registry.register_deferred(name, move |context, payload, reply| {
                begin(&server, serve, context, payload, reply);
            })?;
        }
        Ok(Self::of(hub))
    }
}

fn begin(server: &Weak<Server>, serve: Serve, context: &Context, payload: Bytes, reply: Reply) {
    let server = server.upgrade();
    let hub = server.as_ref().and_then(|server| server.hub.upgrade());
    let (Some(server), Some(hub)) = (server, hub) else {
        return refuse(reply, "this worker no longer serves references");
    };
    let asked = Asked {
        from: context.caller().clone(),
        deadline: context.deadline(),
        payload,
        reply,
    };
    serve(&server, hub.runtime(context.agent()), asked);
}

fn refuse(reply: Reply, why: impl Into<String>) {
    reply.send(Err::<Bytes, _>(HandlerError::new(why)));
}

fn no_function(name: &str) -> String {
    format!("no function named `{name}` is registered in this worker's `Functions`")
}

/// Runs the registered functions for other workers.
struct Server {
    functions: Functions,
    hub: Weak<Hub>,
    /// The calls with references that are being served, by their first fork. Copies of a request get the same
    /// answer.
    calls: Mutex<HashMap<ForkId, Vec<Reply>>>,
}

/// The destination of a call's answer.
enum ReplyTo {
    One(Reply),
    /// The answer goes to all copies of the request with this first fork.
    Copies(ForkId),
}

/// The code that runs when the pending references are confirmed, or one of them is refused.
type Continuation = Box<dyn FnOnce(&Arc<Runtime>, Result<(), String>) + Send>;

/// Takes the result of a function, on the thread on which it has ended.
type Finish = Box<dyn FnOnce(&Arc<Runtime>, Result<Value, String>) + Send>;

/// Waits for several confirmations.
struct Gate {
    state: Mutex<GateState>,
}

struct GateState {
    pending: usize,
    continuation: Option<Continuation>,
    failure: Option<String>,
}

impl Gate {
    /// Counts one confirmation. The last one returns what to run.
    fn pass(&self, result: Result<(), UserError>) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = result {
            state.failure.get_or_insert_with(|| {
                format!("a reference among the arguments cannot be used: {error}")
            });
        }
        state.pending -= 1;
        if state.pending > 0 {
            return None;
        }
        let continuation = state.continuation.take()?;
        let result = state.failure.take().map_or(Ok(()), Err);
        Some(Box::new(move |runtime| continuation(runtime, result)))
    }
}

/// Answers a request for a value: with it, or with the reason that there is none.
type AnswerFetch = fn(&Arc<Runtime>, Result<Value, FetchError>, WorkerId) -> Response;

impl Server {
    fn create(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        match Message::decode(&asked.payload) {
            // An unknown function is accepted, too, so that each holder of the reference gets its error.
            Ok((incarnation, message @ Message::RemoteCall { .. })) => {
                hand_to_context(runtime, asked, incarnation, message);
            }
            Ok(_) => refuse(asked.reply, "not a creation"),
            Err(error) => refuse(asked.reply, error.to_string()),
        }
    }

    fn control(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        match control_message(&asked.payload) {
            Ok((incarnation, message)) => hand_to_context(runtime, asked, incarnation, message),
            Err(why) => refuse(asked.reply, why),
        }
    }

    /// Several control messages in one step.
    fn controls(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        let parts = split(&asked.payload).map_err(|error: DecodeError| error.to_string());
        let messages: Result<Vec<(u64, Message)>, String> =
            parts.and_then(|parts| parts.iter().map(control_message).collect());
        let messages = match messages {
            Ok(messages) if messages.is_empty() => return refuse(asked.reply, "no message"),
            Ok(messages) => messages,
            Err(why) => return refuse(asked.reply, why),
        };
        runtime.step(RunOn::ThisThread, |inner, now| {
            let tokens = inner.open_batch(asked.reply, messages.len());
            for (token, (incarnation, message)) in tokens.into_iter().zip(messages) {
                let (from, deadline) = (asked.from.id, asked.deadline.instant());
                inner
                    .context
                    .receive(now, from, incarnation, token, deadline, message);
            }
        });
    }

    fn fetch(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        answer_fetch(runtime, asked, |runtime, value, from| match value {
            Ok(value) => Response::value(runtime, from, &value),
            Err(error) => Response::failure(&Failure::of_fetch(error)),
        });
    }

    fn await_value(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        answer_fetch(runtime, asked, |_, value, _| match value {
            Ok(_) => Response::ready(),
            Err(error) => Response::failure(&Failure::of_fetch(error)),
        });
    }

    fn is_ready(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        let deadline = Deadline::at(Instant::now());
        self.await_value(runtime, Asked { deadline, ..asked });
    }

    fn call(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        let (incarnation, rref, function, arguments) = match Message::decode(&asked.payload) {
            Ok((
                incarnation,
                Message::Call {
                    rref,
                    function,
                    arguments,
                },
            )) => (incarnation, rref, function, arguments),
            Ok(_) => return refuse(asked.reply, "not a method call"),
            Err(error) => return refuse(asked.reply, error.to_string()),
        };
        match self.functions.find(&function) {
            Some(found) if found.is_method => {
                let on = Some((rref, incarnation));
                self.serve_call(runtime, found, &arguments, on, asked);
            }
            Some(_) => refuse(asked.reply, format!("`{function}` is not a method")),
            None => refuse(asked.reply, no_function(&function)),
        }
    }

    fn run(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        let Some((function, arguments)) = split_name(&asked.payload) else {
            return refuse(asked.reply, "the request ends within the function's name");
        };
        match self.functions.find(&function) {
            Some(found) if !found.is_method => {
                self.serve_call(runtime, found, &arguments, None, asked);
            }
            Some(_) => refuse(asked.reply, format!("`{function}` is a method")),
            None => refuse(asked.reply, no_function(&function)),
        }
    }

    fn alive(self: &Arc<Self>, runtime: &Arc<Runtime>, asked: Asked) {
        let mut incarnation = [0; 8];
        LittleEndian::write_u64(&mut incarnation, runtime.incarnation);
        asked.reply.send(Ok(incarnation.to_vec()));
    }

    /// Runs a function, on a value if `on` names one, and answers with its result.
    fn serve_call(
        self: &Arc<Self>,
        runtime: &Arc<Runtime>,
        function: &Arc<Function>,
        arguments: &Bytes,
        on: Option<(RRefId, u64)>,
        asked: Asked,
    ) {
        let Asked {
            from,
            deadline,
            reply,
            ..
        } = asked;
        let packed = match Packed::parse(arguments) {
            Ok(packed) => packed,
            Err(error) => return refuse(reply, error.to_string()),
        };
        let Some(reply_to) = self.begin_call(packed.forks.first(), reply) else {
            return;
        };
        let received = match runtime.receive_forks(&packed.forks) {
            Ok(received) => received,
            Err(error) => {
                let why = error.to_string();
                let replies = self.replies(reply_to).into_iter();
                return replies.for_each(|reply| refuse(reply, why.clone()));
            }
        };
        let prepared = match prepare(runtime, function, received.cells, packed.values) {
            Ok(prepared) => prepared,
            Err(why) => {
                let response = Response::failure(&Failure::Function(why));
                return response.send(self.replies(reply_to));
            }
        };
        let id = from.id;
        let call = PreparedCall {
            server: Arc::clone(self),
            function: Arc::clone(function),
            prepared,
            caller: from,
            deadline,
            reply_to,
        };
        when_confirmed(
            runtime,
            &received.pending,
            Box::new(move |runtime, confirmed| {
                if let Err(why) = confirmed {
                    return call.run(runtime, Err(Failure::Function(why)));
                }
                let Some((rref, incarnation)) = on else {
                    return call.run(runtime, Ok(None));
                };
                request_value(
                    runtime,
                    (id, incarnation),
                    deadline,
                    rref,
                    Box::new(move |runtime, value| {
                        call.run(runtime, value.map(Some).map_err(Failure::of_fetch));
                    }),
                );
            }),
        );
    }
}

/// A call that waits until its references are confirmed and the value of its method is ready.
struct PreparedCall {
    server: Arc<Server>,
    function: Arc<Function>,
    prepared: Prepared,
    caller: WorkerInfo,
    deadline: Deadline,
    reply_to: ReplyTo,
}

impl PreparedCall {
    /// Runs the function on the value of its method, if it is one, and answers with the result; with the failure if there
    /// is no such value.
    fn run(self, runtime: &Arc<Runtime>, on: Result<Option<Value>, Failure>) {
        let (caller, deadline) = (self.caller, self.deadline);
        let (id, server, reply_to) = (caller.id, Arc::clone(&self.server), self.reply_to);
        let answer = move |runtime: &Arc<Runtime>, made: Result<Value, Failure>| {
            let response = match made {
                Ok(result) => Response::value(runtime, id, &result),
                Err(failure) => Response::failure(&failure),
            };
            response.send(server.replies(reply_to));
        };
        let on = match on {
            Ok(_) if deadline.has_passed(Instant::now()) => {
                let why = "the caller's deadline passed before the function could start";
                return answer(runtime, Err(Failure::Function(why.to_owned())));
            }
            Ok(on) => on,
            Err(failure) => return answer(runtime, Err(failure)),
        };
        let finish: Finish = Box::new(move |runtime, made| {
            answer(runtime, made.map_err(Failure::Function));
        });
        let call = (&*self.function, self.prepared, on.as_ref());
        self.server
            .run_prepared(runtime, call, &caller, deadline, finish);
    }
}

impl Server {
    fn calls(&self) -> MutexGuard<'_, HashMap<ForkId, Vec<Reply>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the destination of the answer of a call with this first fork. `None` for a copy of a call that is
    /// being served.
    fn begin_call(&self, first: Option<&ForkData>, reply: Reply) -> Option<ReplyTo> {
        let Some(ForkData { fork, .. }) = first else {
            return Some(ReplyTo::One(reply));
        };
        let mut calls = self.calls();
        let Some(copies) = calls.get_mut(fork) else {
            calls.insert(*fork, vec![reply]);
            return Some(ReplyTo::Copies(*fork));
        };
        if copies.len() < COPIES_MAX {
            copies.push(reply);
        } else {
            drop(calls);
            let why = format!("{COPIES_MAX} copies of this request are being served");
            refuse(reply, why);
        }
        None
    }

    fn replies(&self, reply_to: ReplyTo) -> Vec<Reply> {
        match reply_to {
            ReplyTo::One(reply) => vec![reply],
            ReplyTo::Copies(key) => self.calls().remove(&key).unwrap_or_default(),
        }
    }

    /// Runs a function, on a value if it is a method. `finish` takes its result: on this thread, unless the function
    /// is `async`.
    fn run_prepared(
        &self,
        runtime: &Arc<Runtime>,
        (function, prepared, on): (&Function, Prepared, Option<&Value>),
        caller: &WorkerInfo,
        deadline: Deadline,
        finish: Finish,
    ) {
        let Some(hub) = self.hub.upgrade() else {
            return finish(runtime, Err(RRefError::Shutdown.to_string()));
        };
        let context = CallContext {
            rrefs: RRefs::of(hub),
            caller: caller.clone(),
            deadline,
        };
        let name = Arc::clone(&function.name);
        let made =
            runtime.contain_panic(format_args!("function `{name}`"), || prepared(context, on));
        let text = |error: HandlerError| error.message().to_owned();
        let future = match made.and_then(|made| made.map_err(text)) {
            Err(why) => return finish(runtime, Err(why)),
            Ok(Made::Now(value)) => return finish(runtime, Ok(value)),
            Ok(Made::Later(future)) => future,
        };
        let ends_in = Arc::clone(runtime);
        let done = Box::new(
            move |made: Result<Result<Value, HandlerError>, Unfinished>| {
                let made = match made {
                    Ok(made) => made.map_err(text),
                    Err(Unfinished::Panicked(message)) => {
                        Err(ends_in.panicked(format_args!("function `{name}`"), &message))
                    }
                    Err(unfinished) => Err(unfinished.to_string()),
                };
                finish(&ends_in, made);
            },
        );
        runtime.pending.start(caller.id, future, deadline, done);
    }

    /// Decodes the arguments of a creation, and runs its function when their references are confirmed.
    fn begin_creation(
        self: &Arc<Self>,
        runtime: &Arc<Runtime>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    ) -> Result<(), String> {
        let packed = Packed::parse(arguments).map_err(|error| error.to_string())?;
        // Before anything can fail: references that were received are returned when they are dropped.
        let received = runtime.receive_forks(&packed.forks).map_err(|error| {
            if runtime.is_me(from) {
                // No call of another worker settles those that were not received.
                runtime.settle_forks(&packed.forks, Outcome::Unknown);
            }
            error.to_string()
        })?;
        let function = self
            .functions
            .find(function)
            .ok_or_else(|| no_function(function))?;
        // The reference to a method's value precedes all other references.
        let target = match (function.is_method, received.cells.first()) {
            (false, _) => None,
            (true, Some(first)) => Some(Arc::clone(first)),
            (true, None) => {
                let name = &function.name;
                return Err(format!(
                    "`{name}` is a method, and the request names no value"
                ));
            }
        };
        let prepared = prepare(runtime, function, received.cells, packed.values)?;
        let function = Arc::clone(function);
        let caller = runtime.worker(from);
        let server = Arc::clone(self);
        when_confirmed(
            runtime,
            &received.pending,
            Box::new(move |runtime, confirmed| {
                if let Err(why) = confirmed {
                    return finish_creation(runtime, rref, Err(why));
                }
                let on = target.as_ref().map(|target| target.handle());
                let finish: Finish = Box::new(move |runtime, made| {
                    drop(target);
                    finish_creation(runtime, rref, made);
                });
                let run = move |runtime: &Arc<Runtime>, on: Result<Option<Value>, String>| match on
                {
                    Ok(on) => {
                        let call = (&*function, prepared, on.as_ref());
                        server.run_prepared(runtime, call, &caller, Deadline::NEVER, finish);
                    }
                    Err(why) => finish(runtime, Err(why)),
                };
                let on = match on {
                    None => return run(runtime, Ok(None)),
                    Some(Handle::Owner(on)) => on,
                    Some(Handle::User(_)) => {
                        let why = "the method's value is on another worker";
                        return run(runtime, Err(why.to_owned()));
                    }
                };
                request_value(
                    runtime,
                    (runtime.agent.me().id, runtime.incarnation),
                    Deadline::NEVER,
                    on,
                    Box::new(move |runtime, value| {
                        let value = value.map(Some).map_err(|error| error.to_string());
                        run(runtime, value);
                    }),
                );
            }),
        );
        Ok(())
    }
}

/// The creation of a value on this worker, for another worker or for itself.
struct Creator(Arc<Server>);

impl RunCreation for Creator {
    fn run_creation(
        &self,
        runtime: &Arc<Runtime>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    ) {
        let begun = self
            .0
            .begin_creation(runtime, rref, from, function, arguments);
        if let Err(why) = begun {
            finish_creation(runtime, rref, Err(why));
        }
    }
}

fn finish_creation(runtime: &Arc<Runtime>, rref: RRefId, made: Result<Value, String>) {
    // Dropped without the lock, because its destructor is the program's code.
    let mut mismatched = None;
    runtime.step(RunOn::ThisThread, |inner, now| {
        let expected = inner.context.type_name_of(Handle::Owner(rref));
        let made = made.map_err(Arc::from).and_then(|value| match expected {
            Some(expected) if *expected != *value.type_name() => {
                let error = format!(
                    "the function returns a `{}`, the reference is to a `{expected}`",
                    value.type_name()
                );
                mismatched = Some(value);
                Err(Arc::from(error))
            }
            _ => Ok(value),
        });
        inner.context.function_finished(now, rref, made);
    });
    if let Some(value) = mismatched {
        runtime.free(value);
    }
}

fn control_message(bytes: &Bytes) -> Result<(u64, Message), String> {
    match Message::decode(bytes) {
        Ok((_, Message::RemoteCall { .. } | Message::Fetch { .. } | Message::Call { .. })) => {
            Err("not a control message".to_owned())
        }
        decoded => decoded.map_err(|error| error.to_string()),
    }
}

/// Has the context answer a message, at once or later.
fn hand_to_context(runtime: &Arc<Runtime>, asked: Asked, incarnation: u64, message: Message) {
    let from = asked.from.id;
    runtime.step(RunOn::ThisThread, |inner, now| {
        let token = inner.open(Request::Answer(asked.reply));
        let deadline = asked.deadline.instant();
        inner
            .context
            .receive(now, from, incarnation, token, deadline, message);
    });
}

fn answer_fetch(runtime: &Arc<Runtime>, asked: Asked, answer: AnswerFetch) {
    let Asked {
        from,
        deadline,
        payload,
        reply,
    } = asked;
    let (incarnation, rref) = match Message::decode(&payload) {
        Ok((incarnation, Message::Fetch { rref })) => (incarnation, rref),
        Ok(_) => return refuse(reply, "not a request for a value"),
        Err(error) => return refuse(reply, error.to_string()),
    };
    let id = from.id;
    request_value(
        runtime,
        (id, incarnation),
        deadline,
        rref,
        Box::new(move |runtime, value| answer(runtime, value, id).send(vec![reply])),
    );
}

/// Calls `waiter` with a value of this worker when it is ready, or with the reason that there is none.
fn request_value(
    runtime: &Arc<Runtime>,
    (from, incarnation): (WorkerId, u64),
    deadline: Deadline,
    rref: RRefId,
    waiter: ValueWaiter,
) {
    runtime.step(RunOn::ThisThread, |inner, now| {
        let token = inner.open(Request::Value(waiter));
        let deadline = deadline.instant();
        if runtime.is_me(from) {
            return inner.context.fetch(now, token, rref, deadline);
        }
        let message = Message::Fetch { rref };
        inner
            .context
            .receive(now, from, incarnation, token, deadline, message);
    });
}

/// Decodes a function's arguments.
fn prepare(
    runtime: &Runtime,
    function: &Function,
    cells: Vec<Arc<Cell>>,
    values: &[u8],
) -> Result<Prepared, String> {
    let name = &function.name;
    let (prepared, error) = packing::unpack_with(cells, || {
        let what = format_args!("decoding the arguments of `{name}`");
        runtime.contain_panic(what, || function.prepare(values))
    });
    match (prepared, error) {
        (_, Some(error)) => Err(format!("wrong arguments: {error}")),
        (Err(panicked), None) => Err(panicked),
        (Ok(prepared), None) => prepared.map_err(|error| error.message().to_owned()),
    }
}

/// Runs `then` when the owners have confirmed these users: at once if there are none. Holds no thread.
fn when_confirmed(runtime: &Arc<Runtime>, pending: &[ForkId], then: Continuation) {
    if pending.is_empty() {
        return then(runtime, Ok(()));
    }
    // One more than the users, so that the gate does not open before all are registered with it.
    let gate = Arc::new(Gate {
        state: Mutex::new(GateState {
            pending: pending.len() + 1,
            continuation: Some(then),
            failure: None,
        }),
    });
    let known: Vec<_> = {
        let mut inner = runtime.lock();
        let known = pending.iter().filter_map(|fork| {
            inner.wait_for(*fork, || {
                let gate = Arc::clone(&gate);
                Box::new(move |result| gate.pass(result))
            })
        });
        known.collect()
    };
    for result in known {
        let none = gate.pass(result);
        debug_assert!(none.is_none(), "the gate opens last");
    }
    if let Some(job) = gate.pass(Ok(())) {
        job(runtime);
    }
}
