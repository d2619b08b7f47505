//! The call that a function serves: its [`Context`], and the [`Reply`] that answers it later.

use std::cell::RefCell;
use std::fmt;
use std::thread;

use bytes::Bytes;
use c10d_socket::Deadline;

use crate::agent::AgentHandle;
use crate::error::HandlerError;
use crate::future::catch_panic;
use crate::runtime::ReplyTo;
use crate::wire::Failure;
use crate::worker::WorkerInfo;

/// The call that a function serves: the caller, the deadline, and the agent for nested calls.
///
/// ```
/// use rpc_agent::{Context, Registry};
///
/// let mut registry = Registry::new();
/// registry.register("forward", |context: &Context, payload| {
///     let caller = context.caller().to_string();
///     let answer = context.agent().call("worker1", "reverse").send_bytes(payload.to_vec()).wait()?;
///     Ok([caller.as_bytes(), &answer].concat())
/// })?;
/// # Ok::<(), rpc_agent::RegistryError>(())
/// ```
#[derive(Debug)]
pub struct Context {
    pub(crate) call: ServedCall,
}

impl Context {
    /// Returns the worker that made the call.
    #[must_use]
    pub fn caller(&self) -> &WorkerInfo {
        &self.call.reply_to.peer.info
    }

    /// Returns the name that the caller used for the function.
    #[must_use]
    pub fn function(&self) -> &str {
        let config = &self.call.agent.runtime().driver.config;
        config.functions.name(self.call.reply_to.function)
    }

    /// Returns the time when the caller stops waiting; work after that is wasted. [`Deadline::NEVER`] if the call has
    /// no timeout.
    ///
    /// The time starts when the request arrives, so this is later than the caller's own deadline by the time that the
    /// request was on its way.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.call.deadline
    }

    /// Returns the agent that runs the function, for calls to any worker.
    #[must_use]
    pub fn agent(&self) -> &AgentHandle {
        &self.call.agent
    }
}

/// Answers a call later, once, from any thread. Dropping it answers with an error.
///
/// ```
/// use rpc_agent::Registry;
///
/// let mut registry = Registry::new();
/// registry.register_deferred("echo later", |_, payload, reply| {
///     std::thread::spawn(move || reply.send(Ok(payload)));
/// })?;
/// # Ok::<(), rpc_agent::RegistryError>(())
/// ```
pub struct Reply {
    /// `None` once the call is answered.
    pub(crate) pending: Option<ServedCall>,
}

impl Reply {
    /// Answers the call. Does not block. Does nothing if the caller's connection was lost in the meantime.
    pub fn send(mut self, answer: Result<impl Into<Bytes>, HandlerError>) {
        if let Some(call) = self.pending.take() {
            call.answer(answer.map(Into::into));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(call) = self.pending.take() else {
            return;
        };
        let kept = thread::panicking().then(|| keep_for_panic(call.clone()));
        if kept != Some(true) {
            call.dropped();
        }
    }
}

thread_local! {
    /// While this thread runs a deferred function: the calls whose replies were dropped by a panic.
    static DROPPED_BY_PANIC: RefCell<Option<Vec<ServedCall>>> = const { RefCell::new(None) };
}

/// Whether the thread answers the call when the deferred function has ended.
fn keep_for_panic(call: ServedCall) -> bool {
    let kept = DROPPED_BY_PANIC.try_with(|dropped| {
        let mut dropped = dropped.borrow_mut();
        dropped.as_mut().map(|dropped| dropped.push(call)).is_some()
    });
    kept.unwrap_or(false)
}

/// Runs a deferred function. If it panics, returns the text, and the calls that are to be answered with it.
pub(crate) fn run_deferred(run: impl FnOnce()) -> Result<(), (String, Vec<ServedCall>)> {
    DROPPED_BY_PANIC.set(Some(Vec::new()));
    let result = catch_panic(run);
    let dropped = DROPPED_BY_PANIC.take().unwrap_or_default();
    match result {
        Ok(()) => {
            // The function has caught the panic itself.
            dropped.iter().for_each(ServedCall::dropped);
            Ok(())
        }
        Err(text) => Err((text, dropped)),
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("call", &self.pending)
            .finish()
    }
}

/// A call whose function has begun. It must be answered once.
#[derive(Debug, Clone)]
pub(crate) struct ServedCall {
    agent: AgentHandle,
    reply_to: ReplyTo,
    deadline: Deadline,
    /// The function answers through a [`Reply`].
    is_deferred: bool,
}

impl ServedCall {
    /// Counts the call as begun, until it is answered.
    pub(crate) fn begin(
        agent: &AgentHandle,
        reply_to: ReplyTo,
        deadline: Deadline,
        is_deferred: bool,
    ) -> Self {
        let driver = &agent.runtime().driver;
        driver.activity.begin();
        driver.metrics.requests.deferred.add(is_deferred.into());
        Self {
            agent: agent.clone(),
            reply_to,
            deadline,
            is_deferred,
        }
    }

    pub(crate) fn answer(&self, answer: Result<Bytes, HandlerError>) {
        self.end(answer.map_err(|error| match error.is_too_large() {
            true => Failure::AnswerTooLarge { bytes: None },
            false => Failure::Handler(error.message().into()),
        }));
    }

    fn dropped(&self) {
        let error = HandlerError::new("the function dropped its reply without an answer");
        self.answer(Err(error));
    }

    /// Answers that the function panicked.
    pub(crate) fn panicked(&self, text: &str) {
        self.end(Err(Failure::Panicked(text.into())));
    }

    fn end(&self, answer: Result<Bytes, Failure>) {
        // Only the process that was called answers.
        let Ok(runtime) = self.agent.here() else {
            return;
        };
        runtime.driver.answer(&self.reply_to, answer);
        let requests = &runtime.driver.metrics.requests;
        requests.deferred_answered.add(self.is_deferred.into());
        requests.handled.add(1);
        runtime.driver.activity.end();
    }
}
