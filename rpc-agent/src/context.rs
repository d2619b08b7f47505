//! What a function is told about the call it serves, and how it answers later.

use std::fmt;

use bytes::Bytes;
use c10d_socket::Deadline;

use crate::agent::{AgentHandle, ServedCall};
use crate::handler_error::HandlerError;
use crate::worker::WorkerInfo;

/// The call that a function serves.
#[derive(Debug)]
pub struct Context {
    pub(crate) agent: AgentHandle,
    pub(crate) call: ServedCall,
}

impl Context {
    /// The worker that called.
    #[must_use]
    pub fn caller(&self) -> &WorkerInfo {
        &self.call.peer.info
    }

    /// The name by which the function was called.
    #[must_use]
    pub fn function(&self) -> &str {
        &self.call.function.name
    }

    /// When the caller gives up. What is still undone then is done in vain.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.call.deadline
    }

    /// The agent that runs the function, for calls of its own to any worker.
    #[must_use]
    pub fn agent(&self) -> &AgentHandle {
        &self.agent
    }
}

/// Answers a call later, once, from any thread. Dropped without an answer, it answers with an error.
///
/// ```
/// use rpc_agent::Registry;
///
/// let mut registry = Registry::new();
/// registry.register_deferred("after a while", |_, payload, reply| {
///     std::thread::spawn(move || reply.send(Ok(payload)));
/// })?;
/// # Ok::<(), rpc_agent::RegistryError>(())
/// ```
pub struct Reply {
    /// `None` once it is answered.
    pub(crate) pending: Option<(AgentHandle, ServedCall)>,
}

impl Reply {
    /// Answers. Does not block; if the caller has gone meanwhile, nothing happens.
    pub fn send(mut self, answer: Result<impl Into<Bytes>, HandlerError>) {
        if let Some((agent, call)) = self.pending.take() {
            agent.answer_later(&call, answer.map(Into::into));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some((agent, call)) = self.pending.take() {
            let error = HandlerError::new("the function dropped its reply without an answer");
            agent.answer_later(&call, Err(error));
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field(
                "to",
                &self.pending.as_ref().map(|(_, call)| &call.peer.info),
            )
            .finish_non_exhaustive()
    }
}
