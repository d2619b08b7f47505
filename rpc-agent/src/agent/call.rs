//! One call, from its destination to its arguments.

use std::time::Duration;

use bytes::Bytes;

use super::handle::AgentHandle;
use crate::future::{FutureMessage, RpcFuture};
use crate::retry::RetryOptions;
use crate::worker::Destination;

/// A call that is about to be made: [`AgentHandle::call`] begins one, and sending its arguments makes it.
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
    pub(crate) timeout: Option<Duration>,
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
            timeout: self.timeout(),
            retries: None,
        }
    }
}

impl<'a> Call<'a> {
    /// How long the call may take; `None` for no limit. Default: [`AgentHandle::timeout`].
    ///
    /// Zero expires before the request is sent: the function never runs.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Repeats the call while it fails. The function must be idempotent: if an answer is lost, it runs again. All times
    /// are those of `options`.
    pub fn with_retries(mut self, options: &'a RetryOptions) -> Self {
        self.retries = Some(options);
        self
    }

    /// Makes the call with bytes, without waiting. The future has the answer, and all errors.
    pub fn send_bytes(self, payload: impl Into<Bytes>) -> FutureMessage {
        let runtime = match self.agent.here() {
            Ok(runtime) => runtime,
            Err(error) => return RpcFuture::ready(Err(error.into())),
        };
        let (to, payload) = (self.to, payload.into());
        match self.retries {
            None => runtime
                .driver
                .call(to, self.function, payload, self.timeout),
            Some(retries) => runtime.retries.call(to, self.function, payload, retries),
        }
    }
}
