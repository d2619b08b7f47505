//! What other workers ask of this one: creations, values, calls, and the messages about references.
//!
//! No request occupies a thread while it waits, for a value or for the confirmation of its references.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use c10d_socket::Deadline;
use rpc_agent::{
    Context, HandlerError, Outcome, Registry, RegistryError, Reply, WorkerId, WorkerInfo,
};

use crate::answer::{Answered, Failure};
use crate::carry::{self, Packed};
use crate::context::Handle;
use crate::context::{FetchError, UserError};
use crate::functions::{CallContext, Function, Prepared};
use crate::handle::Cell;
use crate::id::{ForkId, RRefId};
use crate::protocol::Message;
use crate::runtime::{
    ALIVE, AWAIT, CALL, CONTROL, CREATE, FETCH, HOLDS, Hub, Job, Mode, READY, RUN, Request,
    Runtime, ValueWaiter,
};
use crate::value::Value;

/// So many copies of a request are answered with the first one. A network makes one or two.
const COPIES_MAX: usize = 16;

type Serve = fn(&Arc<Runtime>, Asked);

/// A request of a worker.
struct Asked {
    from: WorkerInfo,
    deadline: Deadline,
    payload: Bytes,
    reply: Reply,
}

/// Registers all of it.
pub(crate) fn register(registry: &mut Registry, hub: &Arc<Hub>) -> Result<(), RegistryError> {
    let functions: [(&str, Serve); 9] = [
        (CREATE, create),
        (CONTROL, control),
        (FETCH, fetch),
        (AWAIT, await_value),
        (READY, is_ready),
        (CALL, call),
        (RUN, run),
        (HOLDS, holds),
        (ALIVE, alive),
    ];
    for (name, serve) in functions {
        // The agent keeps its functions; they do not keep the references.
        let hub = Arc::downgrade(hub);
        registry.register_deferred(name, move |context, payload, reply| {
            begin(&hub, serve, context, payload, reply);
        })?;
    }
    Ok(())
}

fn begin(hub: &Weak<Hub>, serve: Serve, context: &Context, payload: Bytes, reply: Reply) {
    let Some(hub) = hub.upgrade() else {
        return refuse(reply, "this worker serves no references any more");
    };
    let asked = Asked {
        from: context.caller().clone(),
        deadline: context.deadline(),
        payload,
        reply,
    };
    serve(hub.runtime(context.agent()), asked);
}

fn refuse(reply: Reply, why: impl Into<String>) {
    reply.send(Err::<Bytes, _>(HandlerError::new(why)));
}

/// A value is to be made here.
fn create(runtime: &Arc<Runtime>, asked: Asked) {
    match Message::decode(&asked.payload) {
        // An unknown function is a failed one: so every holder of the reference is told.
        Ok((incarnation, message @ Message::RemoteCall { .. })) => {
            pass_on(runtime, asked, incarnation, message);
        }
        Ok(_) => refuse(asked.reply, "this is no creation"),
        Err(error) => refuse(asked.reply, error.to_string()),
    }
}

/// Another worker's context has something to say.
fn control(runtime: &Arc<Runtime>, asked: Asked) {
    match Message::decode(&asked.payload) {
        Ok((_, Message::RemoteCall { .. } | Message::Fetch { .. } | Message::Call { .. })) => {
            refuse(asked.reply, "this is no control message");
        }
        Ok((incarnation, message)) => pass_on(runtime, asked, incarnation, message),
        Err(error) => refuse(asked.reply, error.to_string()),
    }
}

fn pass_on(runtime: &Arc<Runtime>, asked: Asked, incarnation: u64, message: Message) {
    let from = asked.from.id;
    runtime.step(Mode::Here, |inner, now| {
        let token = inner.open(Request::Answer(asked.reply));
        let deadline = asked.deadline.instant();
        inner
            .context
            .receive(now, from, incarnation, token, deadline, message);
    });
}

/// A copy of a value is wanted.
fn fetch(runtime: &Arc<Runtime>, asked: Asked) {
    with_fetched(runtime, asked, |runtime, value, from| match value {
        Ok(value) => Answered::value(runtime, from, &value),
        Err(error) => Answered::failure(&Failure::of_fetch(error)),
    });
}

/// A value is waited for, and is not wanted.
fn await_value(runtime: &Arc<Runtime>, asked: Asked) {
    with_fetched(runtime, asked, |_, value, _| match value {
        Ok(_) => Answered::nothing(),
        Err(error) => Answered::failure(&Failure::of_fetch(error)),
    });
}

/// Whether a value has been made or given is asked, and answered at once.
fn is_ready(runtime: &Arc<Runtime>, asked: Asked) {
    let deadline = Deadline::at(Instant::now());
    await_value(runtime, Asked { deadline, ..asked });
}

fn with_fetched(
    runtime: &Arc<Runtime>,
    asked: Asked,
    answer: fn(&Arc<Runtime>, Result<Value, FetchError>, WorkerId) -> Answered,
) {
    let Asked {
        from,
        deadline,
        payload,
        reply,
    } = asked;
    let (incarnation, rref) = match Message::decode(&payload) {
        Ok((incarnation, Message::Fetch { rref })) => (incarnation, rref),
        Ok(_) => return refuse(reply, "this asks for no value"),
        Err(error) => return refuse(reply, error.to_string()),
    };
    let id = from.id;
    runtime.give_value(
        (id, incarnation),
        deadline,
        rref,
        Box::new(move |runtime, value| answer(runtime, value, id).send(vec![reply])),
    );
}

/// A function is to be run on a value.
fn call(runtime: &Arc<Runtime>, asked: Asked) {
    let (incarnation, rref, function, arguments) = match Message::decode(&asked.payload) {
        Ok((
            incarnation,
            Message::Call {
                rref,
                function,
                arguments,
            },
        )) => (incarnation, rref, function, arguments),
        Ok(_) => return refuse(asked.reply, "this is no call of a method"),
        Err(error) => return refuse(asked.reply, error.to_string()),
    };
    match runtime.functions.find(&function) {
        Some(found) if found.is_method => {
            let on = Some((rref, incarnation));
            runtime.serve_call(&Arc::clone(found), &arguments, on, asked);
        }
        Some(_) => refuse(asked.reply, format!("`{function}` is no method")),
        None => refuse(asked.reply, no_function(&function)),
    }
}

/// A function is to be run.
fn run(runtime: &Arc<Runtime>, asked: Asked) {
    let Some((function, arguments)) = split_name(&asked.payload) else {
        return refuse(asked.reply, "the request ends within the function's name");
    };
    match runtime.functions.find(&function) {
        Some(found) if !found.is_method => {
            runtime.serve_call(&Arc::clone(found), &arguments, None, asked);
        }
        Some(_) => refuse(asked.reply, format!("`{function}` is a method")),
        None => refuse(asked.reply, no_function(&function)),
    }
}

/// The references that a value of this worker holds are wanted.
fn holds(runtime: &Arc<Runtime>, asked: Asked) {
    let rref = match Message::decode(&asked.payload) {
        Ok((_, Message::Fetch { rref })) => rref,
        Ok(_) => return refuse(asked.reply, "this names no value"),
        Err(error) => return refuse(asked.reply, error.to_string()),
    };
    asked.reply.send(Ok(runtime.encode_held(rref)));
}

/// It is asked whether this worker is alive.
fn alive(runtime: &Arc<Runtime>, asked: Asked) {
    let mut incarnation = [0; 8];
    LittleEndian::write_u64(&mut incarnation, runtime.incarnation);
    asked.reply.send(Ok(incarnation.to_vec()));
}

/// The request for a function to be run: its name, behind its length in one byte, and the arguments.
pub(crate) fn join_name(function: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    let len = u8::try_from(function.len())
        .map_err(|_| format!("a function's name has {} bytes", function.len()))?;
    bytes.push(len);
    bytes.extend_from_slice(function.as_bytes());
    Ok(())
}

fn split_name(payload: &Bytes) -> Option<(String, Bytes)> {
    let (&len, rest) = payload.split_first()?;
    let (name, _) = rest.split_at_checked(usize::from(len))?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some((name, payload.slice(1 + usize::from(len)..)))
}

fn no_function(name: &str) -> String {
    format!("no function named `{name}` is among the `Functions` that were registered there")
}

/// To whom the answer of a call goes.
enum Askers {
    One(Reply),
    /// Copies of the request may come while it is served: it is known by its first fork.
    Copies(ForkId),
}

/// What runs when all references are confirmed, or when one of them cannot be.
type Continuation = Box<dyn FnOnce(&Arc<Runtime>, Result<(), String>) + Send>;

/// Waits for several confirmations.
struct Gate {
    state: Mutex<(usize, Option<Continuation>, Option<String>)>,
}

impl Gate {
    /// One of them is known. The last one returns what is to be done.
    fn pass(&self, result: Result<(), UserError>) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, continuation, failure) = &mut *state;
        if let Err(error) = result {
            failure.get_or_insert_with(|| {
                format!("a reference among the arguments cannot be used: {error}")
            });
        }
        *left -= 1;
        if *left > 0 {
            return None;
        }
        let continuation = continuation.take()?;
        let result = failure.take().map_or(Ok(()), Err);
        Some(Box::new(move |runtime| continuation(runtime, result)))
    }
}

impl Runtime {
    /// Has a waiter given a value of this worker, now or when it is there, or told why there is none.
    fn give_value(
        self: &Arc<Self>,
        (from, incarnation): (WorkerId, u64),
        deadline: Deadline,
        rref: RRefId,
        waiter: ValueWaiter,
    ) {
        self.step(Mode::Here, |inner, now| {
            let token = inner.open(Request::Value(waiter));
            let deadline = deadline.instant();
            if self.is_me(from) {
                return inner.context.fetch(now, token, rref, deadline);
            }
            let message = Message::Fetch { rref };
            inner
                .context
                .receive(now, from, incarnation, token, deadline, message);
        });
    }

    /// Runs a function that has been called, and answers.
    fn serve_call(
        self: &Arc<Self>,
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
        let askers = match packed.forks.first() {
            None => Askers::One(reply),
            Some(first) => {
                let key = first.fork;
                let mut inner = self.lock();
                if let Some(copies) = inner.serving.get_mut(&key) {
                    if copies.len() < COPIES_MAX {
                        return copies.push(reply);
                    }
                    drop(inner);
                    return refuse(reply, format!("it has come {COPIES_MAX} times already"));
                }
                inner.serving.insert(key, vec![reply]);
                Askers::Copies(key)
            }
        };
        let received = match self.receive_forks(&packed.forks) {
            Ok(received) => received,
            Err(error) => {
                let why = error.to_string();
                let replies = self.replies(askers).into_iter();
                return replies.for_each(|reply| refuse(reply, why.clone()));
            }
        };
        let prepared = match self.prepare(function, received.cells, packed.values) {
            Ok(prepared) => prepared,
            Err(why) => {
                let answer = Answered::failure(&Failure::Function(why));
                return answer.send(self.replies(askers));
            }
        };
        let function = Arc::clone(function);
        let caller = from.clone();
        let finish = move |runtime: &Arc<Self>, on: Result<Option<Value>, Failure>| {
            let made = on.and_then(|on| {
                if deadline.has_passed(Instant::now()) {
                    let why = "the caller has given up before the function could begin";
                    return Err(Failure::Function(why.to_owned()));
                }
                runtime
                    .run_prepared(&function, prepared, &caller, deadline, on.as_ref())
                    .map_err(Failure::Function)
            });
            let answer = match made {
                Ok(result) => Answered::value(runtime, caller.id, &result),
                Err(failure) => Answered::failure(&failure),
            };
            answer.send(runtime.replies(askers));
        };
        self.when_confirmed(
            &received.pending,
            Box::new(move |runtime, confirmed| {
                if let Err(why) = confirmed {
                    return finish(runtime, Err(Failure::Function(why)));
                }
                let Some((rref, incarnation)) = on else {
                    return finish(runtime, Ok(None));
                };
                runtime.give_value(
                    (from.id, incarnation),
                    deadline,
                    rref,
                    Box::new(move |runtime, value| {
                        finish(runtime, value.map(Some).map_err(Failure::of_fetch));
                    }),
                );
            }),
        );
    }

    fn replies(&self, askers: Askers) -> Vec<Reply> {
        match askers {
            Askers::One(reply) => vec![reply],
            Askers::Copies(key) => self.lock().serving.remove(&key).unwrap_or_default(),
        }
    }

    /// Decodes a function's arguments.
    fn prepare(
        &self,
        function: &Arc<Function>,
        cells: Vec<Arc<Cell>>,
        values: &[u8],
    ) -> Result<Prepared, String> {
        let what = format!("the decoding for `{}`", function.name);
        let (prepared, error) =
            carry::unpack_with(cells, || self.contained(&what, || function.prepare(values)));
        match (prepared, error) {
            (_, Some(error)) => Err(format!("wrong arguments: {error}")),
            (Err(panicked), None) => Err(panicked),
            (Ok(prepared), None) => prepared.map_err(|error| error.message().to_owned()),
        }
    }

    fn run_prepared(
        &self,
        function: &Arc<Function>,
        prepared: Prepared,
        caller: &WorkerInfo,
        deadline: Deadline,
        on: Option<&Value>,
    ) -> Result<Value, String> {
        let context = CallContext {
            rrefs: self.rrefs().map_err(|error| error.to_string())?,
            caller: caller.clone(),
            deadline,
        };
        let what = format!("function `{}`", function.name);
        self.contained(&what, || prepared(&context, on))?
            .map_err(|error| error.message().to_owned())
    }

    /// Makes a value that another worker, or this one, has asked for.
    pub(crate) fn run_creation(
        self: &Arc<Self>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    ) {
        let begun = self.begin_creation(rref, from, function, arguments);
        if let Err(why) = begun {
            self.finish_creation(rref, Err(why));
        }
    }

    fn begin_creation(
        self: &Arc<Self>,
        rref: RRefId,
        from: WorkerId,
        function: &str,
        arguments: &Bytes,
    ) -> Result<(), String> {
        let packed = Packed::parse(arguments).map_err(|error| error.to_string())?;
        // First of all: what has been received is given back, whatever fails after that.
        let received = self.receive_forks(&packed.forks).map_err(|error| {
            if self.is_me(from) {
                // No call ends that would tell of those that were not taken.
                self.settle_forks(&packed.forks, Outcome::Unknown);
            }
            error.to_string()
        })?;
        let function = self
            .functions
            .find(function)
            .ok_or_else(|| no_function(function))?;
        // A method's value comes before all other references, which are counted on from there.
        let target = match (function.is_method, received.cells.first()) {
            (false, _) => None,
            (true, Some(first)) => Some(Arc::clone(first)),
            (true, None) => {
                let name = &function.name;
                return Err(format!("`{name}` is a method, and there is no value"));
            }
        };
        let prepared = self.prepare(function, received.cells, packed.values)?;
        let function = Arc::clone(function);
        let caller = self.worker(from);
        self.when_confirmed(
            &received.pending,
            Box::new(move |runtime, confirmed| {
                if let Err(why) = confirmed {
                    return runtime.finish_creation(rref, Err(why));
                }
                let Some(target) = target else {
                    let made =
                        runtime.run_prepared(&function, prepared, &caller, Deadline::NEVER, None);
                    return runtime.finish_creation(rref, made);
                };
                let Handle::Owner(on) = target.handle() else {
                    let why = "the method's value is on another worker".to_owned();
                    return runtime.finish_creation(rref, Err(why));
                };
                runtime.give_value(
                    (runtime.agent.me().id, runtime.incarnation),
                    Deadline::NEVER,
                    on,
                    Box::new(move |runtime, value| {
                        let made = match value {
                            Ok(value) => runtime.run_prepared(
                                &function,
                                prepared,
                                &caller,
                                Deadline::NEVER,
                                Some(&value),
                            ),
                            Err(error) => Err(error.to_string()),
                        };
                        drop(target);
                        runtime.finish_creation(rref, made);
                    }),
                );
            }),
        );
        Ok(())
    }

    fn finish_creation(self: &Arc<Self>, rref: RRefId, made: Result<Value, String>) {
        // Its destructor is the program's: it runs without the lock.
        let mut wrong = None;
        self.step(Mode::Here, |inner, now| {
            let expected = inner.context.type_name_of(Handle::Owner(rref));
            let made = made.map_err(Arc::from).and_then(|value| match expected {
                Some(expected) if *expected != *value.type_name() => {
                    let error = format!(
                        "the function returns a `{}`, the reference is to a `{expected}`",
                        value.type_name()
                    );
                    wrong = Some(value);
                    Err(Arc::from(error))
                }
                _ => Ok(value),
            });
            inner.context.function_finished(now, rref, made);
        });
        if let Some(wrong) = wrong {
            self.free(wrong);
        }
    }

    /// Runs `then` when the owners have confirmed these users: at once if there are none. No thread waits.
    fn when_confirmed(self: &Arc<Self>, pending: &[ForkId], then: Continuation) {
        if pending.is_empty() {
            return then(self, Ok(()));
        }
        // One more than there are, so that it does not open before all have been looked at.
        let gate = Arc::new(Gate {
            state: Mutex::new((pending.len() + 1, Some(then), None)),
        });
        let known: Vec<_> = {
            let mut inner = self.lock();
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
            debug_assert!(none.is_none(), "the gate is opened last");
        }
        if let Some(job) = gate.pass(Ok(())) {
            job(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::functions::FUNCTION_NAME_BYTES_MAX;

    proptest! {
        #[test]
        fn a_name_and_its_arguments_come_back_unchanged(name in "\\PC{0,60}", arguments: Vec<u8>) {
            let mut bytes = Vec::new();
            join_name(&name, &mut bytes).unwrap();
            let named = bytes.len();
            bytes.extend_from_slice(&arguments);
            let bytes = Bytes::from(bytes);
            prop_assert_eq!(split_name(&bytes), Some((name, Bytes::from(arguments))));
            for end in 0..named {
                prop_assert_eq!(split_name(&bytes.slice(..end)), None);
            }
        }

        #[test]
        fn any_bytes_are_a_name_and_arguments_or_none(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            if let Some((name, arguments)) = split_name(&bytes) {
                let mut joined = Vec::new();
                join_name(&name, &mut joined).unwrap();
                joined.extend_from_slice(&arguments);
                prop_assert_eq!(joined, bytes);
            }
        }
    }

    #[test]
    fn the_longest_name_fits_and_a_longer_one_is_refused_and_leaves_no_bytes() {
        let longest = "n".repeat(FUNCTION_NAME_BYTES_MAX);
        let mut bytes = Vec::new();
        join_name(&longest, &mut bytes).unwrap();
        assert_eq!(split_name(&bytes.into()), Some((longest, Bytes::new())));

        let mut bytes = Vec::new();
        let error = join_name(&"n".repeat(FUNCTION_NAME_BYTES_MAX + 1), &mut bytes);
        assert_eq!(error, Err("a function's name has 256 bytes".to_owned()));
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_name_that_is_no_utf_8_or_longer_than_the_request_is_none() {
        for bytes in [
            &b""[..],
            b"\x01",
            b"\xff",
            b"\x03ab",
            b"\x02\xff\xfe",
            b"\x01\xc3\xa9",
        ] {
            assert_eq!(
                split_name(&Bytes::copy_from_slice(bytes)),
                None,
                "{bytes:?}"
            );
        }
        let empty = Some((String::new(), Bytes::new()));
        assert_eq!(split_name(&Bytes::from_static(&[0])), empty);
    }
}
