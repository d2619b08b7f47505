//! The call that a function serves: its [`Context`], and the [`Reply`] that answers it later.

use std::fmt;

use bytes::Bytes;
use c10d_socket::Deadline;

use crate::agent::{AgentHandle, ServedCall};
use crate::handler_error::HandlerError;
use crate::worker::WorkerInfo;

/// The call that a function serves: who called, until when, and the agent for calls of its own.
#[derive(Debug)]
pub struct Context {
    pub(crate) agent: AgentHandle,
    pub(crate) call: ServedCall,
}

impl Context {
    /// The worker that called.
    #[must_use]
    pub fn caller(&self) -> &WorkerInfo {
        self.call.caller()
    }

    /// The name by which the function was called.
    #[must_use]
    pub fn function(&self) -> &str {
        let config = &self.agent.runtime().driver.config;
        config.functions.name(self.call.function())
    }

    /// When the caller stops waiting; work after that is wasted. [`Deadline::NEVER`] if the call has no
    /// timeout.
    ///
    /// The time starts when the request arrives, so this is later than the caller's own deadline by the
    /// time that the request was on its way.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.call.deadline()
    }

    /// The agent that runs the function, for calls to any worker.
    #[must_use]
    pub fn agent(&self) -> &AgentHandle {
        &self.agent
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
    pub(crate) pending: Option<(AgentHandle, ServedCall)>,
}

impl Reply {
    /// Answers the call. Does not block. Does nothing if the caller's connection was lost meanwhile.
    pub fn send(mut self, answer: Result<impl Into<Bytes>, HandlerError>) {
        if let Some((agent, call)) = self.pending.take() {
            call.answer(agent.runtime(), answer.map(Into::into));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some((agent, call)) = self.pending.take() {
            let error = HandlerError::new("the function dropped its reply without an answer");
            call.answer(agent.runtime(), Err(error));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("to", &self.pending.as_ref().map(|(_, call)| call.caller()))
            .finish_non_exhaustive()
    }
}
