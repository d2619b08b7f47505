//! One call, from its destination to its arguments.

use std::time::Duration;

use bytes::Bytes;

use super::handle::AgentHandle;
use crate::future::{FutureMessage, RpcFuture};
use crate::retry::RetryOptions;
use crate::worker::Destination;

/// A call to a function of a worker, before it is sent. [`AgentHandle::call`] begins it, and sending its arguments
/// makes the call.
///
/// ```no_run
/// # fn f(agent: &rpc_agent::AgentHandle) -> Result<(), rpc_agent::RpcError> {
/// use std::time::Duration;
///
/// let answer = agent
///     .call("worker1", "echo")
///     .with_timeout(Duration::from_secs(5))
///     .send_bytes("hello");
/// assert_eq!(answer.wait()?, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "the call is made when its arguments are sent"]
pub struct Call<'a> {
    pub(crate) agent: &'a AgentHandle,
    pub(crate) to: Destination<'a>,
    pub(crate) function: &'a str,
    /// `None`: the agent's.
    pub(crate) timeout: Option<Option<Duration>>,
    pub(crate) retries: Option<&'a RetryOptions>,
}

impl AgentHandle {
    /// Begins a call. It is made when its arguments are sent, by [`Call::send_bytes`] or, with the feature `typed`, by
    /// `Call::send` or `Call::run`.
    ///
    /// May be called from a function that this agent runs.
    pub fn call<'a>(&'a self, to: impl Into<Destination<'a>>, function: &'a str) -> Call<'a> {
        Call {
            agent: self,
            to: to.into(),
            function,
            timeout: None,
            retries: None,
        }
    }
}

impl<'a> Call<'a> {
    /// Sets how long the call may take; `None` for no limit. Default: [`AgentHandle::timeout`].
    ///
    /// Zero expires before the request is sent: the function never runs. It limits all attempts of a call with
    /// retries together, like [`RetryOptions::with_timeout`], and the shorter of both applies.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = Some(timeout.into());
        self
    }

    /// Repeats the call while it fails. The function must be idempotent: if an answer is lost, it runs again. The
    /// times of `options` apply, and [`Call::with_timeout`] if it is set, but not the agent's timeout.
    pub fn with_retries(mut self, options: &'a RetryOptions) -> Self {
        self.retries = Some(options);
        self
    }

    /// Makes the call with bytes, without waiting. The returned future receives the answer, and all errors.
    pub fn send_bytes(self, payload: impl Into<Bytes>) -> FutureMessage {
        let runtime = match self.agent.here() {
            Ok(runtime) => runtime,
            Err(error) => return RpcFuture::ready(Err(error.into())),
        };
        let (to, payload) = (self.to, payload.into());
        let function = self.function;
        match (self.retries, self.timeout) {
            (None, None) => {
                let timeout = self.agent.timeout();
                runtime.driver.call(to, function, payload, timeout)
            }
            // Zero expires before the first attempt.
            (None, Some(timeout)) | (Some(_), Some(timeout @ Some(Duration::ZERO))) => {
                runtime.driver.call(to, function, payload, timeout)
            }
            (Some(retries), Some(Some(timeout))) => {
                let retries = retries.clone().with_timeout_at_most(timeout);
                runtime.retries.call(to, function, payload, &retries)
            }
            (Some(retries), _) => runtime.retries.call(to, function, payload, retries),
        }
    }
}
