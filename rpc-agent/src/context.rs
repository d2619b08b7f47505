//! The call that a function serves: its [`Context`], and the [`Reply`] that answers it later.

use std::fmt;

use bytes::Bytes;
use c10d_socket::Deadline;

use crate::agent::AgentHandle;
use crate::handler_error::HandlerError;
use crate::runtime::ReplyTo;
use crate::wire::Failure;
use crate::worker::WorkerInfo;

/// The call that a function serves: who called, until when, and the agent for calls of its own.
#[derive(Debug)]
pub struct Context {
    pub(crate) call: ServedCall,
}

impl Context {
    /// The worker that called.
    #[must_use]
    pub fn caller(&self) -> &WorkerInfo {
        &self.call.reply_to.peer.info
    }

    /// The name by which the function was called.
    #[must_use]
    pub fn function(&self) -> &str {
        let config = &self.call.agent.runtime().driver.config;
        config.functions.name(self.call.reply_to.function)
    }

    /// When the caller stops waiting; work after that is wasted. [`Deadline::NEVER`] if the call has no
    /// timeout.
    ///
    /// The time starts when the request arrives, so this is later than the caller's own deadline by the
    /// time that the request was on its way.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.call.deadline
    }

    /// The agent that runs the function, for calls to any worker.
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
    /// Answers the call. Does not block. Does nothing if the caller's connection was lost meanwhile.
    pub fn send(mut self, answer: Result<impl Into<Bytes>, HandlerError>) {
        if let Some(call) = self.pending.take() {
            call.answer(answer.map(Into::into));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(call) = self.pending.take() {
            let error = HandlerError::new("the function dropped its reply without an answer");
            call.answer(Err(error));
        }
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
        self.end(answer.map_err(|error| Failure::Handler(error.message().into())));
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
