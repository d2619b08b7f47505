//! Calls whose arguments and results are serde types, encoded with postcard.
//!
//! Requires the feature `typed`. A typed call is a call with bytes that encodes its arguments and decodes
//! its result, so typed callers and untyped functions can be mixed. Caller and callee must use the same
//! types: postcard does not describe itself, and a wrong type is detected only if the bytes do not fit it.
//!
//! ```
//! use rpc_agent::Registry;
//! use rpc_agent::typed::{decode, encode};
//!
//! let mut registry = Registry::new();
//! registry.register_typed("add", |_, (a, b): (i64, i64)| Ok(a + b))?;
//! // The same with bytes:
//! registry.register("sub", |_, payload| {
//!     let (a, b): (i64, i64) = decode(payload)?;
//!     Ok(encode(&(a - b))?)
//! })?;
//! # Ok::<(), rpc_agent::RegistryError>(())
//! ```
//!
//! A `Vec<u8>` is encoded byte by byte. The types of the crate `serde_bytes` reduce that to one copy, and
//! [`Call::send_bytes`] makes none.

mod bounded;
mod codec;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::codec::{CodecError, decode, encode, encode_within};
use crate::agent::Call;
use crate::context::Context;
use crate::error::HandlerError;
use crate::error::{CallMessage, CallSite, Outcome, RpcError};
use crate::future::RpcFuture;
use crate::registry::{Registry, RegistryError};
use crate::worker::{Destination, WorkerInfo};

impl Registry {
    /// Registers a function of serde types: [`Registry::register`] with its arguments decoded and its
    /// result encoded. Several arguments are a tuple. If the arguments are not a value of `A`, the function
    /// does not run, and the caller receives an error that names the type.
    ///
    /// # Errors
    /// The errors of [`Registry::register`].
    pub fn register_typed<A, R, F>(&mut self, name: &str, function: F) -> Result<(), RegistryError>
    where
        A: DeserializeOwned,
        R: Serialize,
        F: Fn(&Context, A) -> Result<R, HandlerError> + Send + Sync + 'static,
    {
        self.register(name, move |context, payload| {
            let arguments = decode(payload).map_err(wrong_arguments)?;
            let result = function(context, arguments)?;
            let limit = context.agent().message_bytes_max();
            encode_within(&result, limit).map_err(|error| match error {
                CodecError::TooLarge { .. } => HandlerError::too_large(error.to_string()),
                error => error.into(),
            })
        })
    }
}

impl Call<'_> {
    /// [`Call::send_bytes`] with the arguments encoded and the answer decoded. Several arguments are a tuple. An answer
    /// that cannot be decoded is not retried.
    ///
    /// The future fails with [`RpcError::Codec`] if the arguments cannot be encoded or the answer is not a value of `R`.
    ///
    /// ```no_run
    /// # fn f(agent: &rpc_agent::AgentHandle) -> Result<(), rpc_agent::RpcError> {
    /// let sums = ["worker1", "worker2"].map(|worker| agent.call(worker, "add").send::<_, i64>((1, 2)));
    /// for sum in sums {
    ///     assert_eq!(sum.wait()?, 3);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn send<A: Serialize, R: DeserializeOwned + Clone + Send + 'static>(
        self,
        arguments: A,
    ) -> RpcFuture<R> {
        let worker = match self.agent.worker(self.to.clone()) {
            Ok(worker) => worker,
            Err(error) => return RpcFuture::ready(Err(error)),
        };
        let function: Arc<str> = self.function.into();
        let call = Call {
            to: Destination::Info(&worker),
            ..self
        };
        match encode_within(&arguments, call.agent.message_bytes_max()) {
            Ok(payload) => call.send_bytes(payload).then(move |answer| {
                let answer = decode(&answer?);
                answer.map_err(|error| not_coded(worker, function, &error, Outcome::Executed))
            }),
            Err(error) => {
                let error = not_coded(worker, function, &error, Outcome::NotExecuted);
                RpcFuture::ready(Err(error))
            }
        }
    }

    /// [`Call::send`] that blocks until the function has returned: for answers that cannot be cloned.
    ///
    /// ```no_run
    /// # fn f(agent: &rpc_agent::AgentHandle) -> Result<(), rpc_agent::RpcError> {
    /// let sum: i64 = agent.call("worker1", "add").run((1, 2))?;
    /// assert_eq!(sum, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RpcError`] of the call; [`RpcError::Codec`] if the arguments cannot be encoded or the answer is not a value
    /// of `R`.
    pub fn run<A: Serialize, R: DeserializeOwned>(self, arguments: A) -> Result<R, RpcError> {
        let (agent, to, function) = (self.agent, self.to.clone(), self.function);
        // Looking up the worker costs time, so it is done only for an error.
        let failed = |error: CodecError, outcome| match agent.worker(to) {
            Ok(worker) => not_coded(worker, function.into(), &error, outcome),
            Err(no_such_worker) => no_such_worker,
        };
        let payload = match encode_within(&arguments, agent.message_bytes_max()) {
            Ok(payload) => payload,
            Err(error) => return Err(failed(error, Outcome::NotExecuted)),
        };
        let answer = self.send_bytes(payload).wait()?;
        decode(&answer).map_err(|error| failed(error, Outcome::Executed))
    }
}

fn wrong_arguments(error: CodecError) -> HandlerError {
    HandlerError::new(format!("wrong arguments: {error}"))
}

fn not_coded(to: WorkerInfo, function: Arc<str>, error: &CodecError, outcome: Outcome) -> RpcError {
    let call = Box::new(CallSite { to, function });
    if let CodecError::TooLarge { bytes_max, .. } = *error {
        return RpcError::TooLarge {
            call,
            message: CallMessage::Request,
            bytes: None,
            bytes_max,
        };
    }
    RpcError::Codec {
        call,
        what: error.to_string().into(),
        outcome,
    }
}
