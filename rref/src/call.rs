//! One call with references, from its destination to its arguments.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::Destination;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cell::Cell;
use crate::error::RRefError;
use crate::future::RRefFuture;
use crate::handle::RRef;
use crate::request::Call;
use crate::runtime::Runtime;
use crate::value::type_name_of;

/// A call, before it is sent, of a function ([`RRefs::call`](crate::RRefs::call)) or of a method of a value
/// ([`RRef::call`]). Sending its arguments makes it. References may be among the arguments and in the result.
///
/// ```no_run
/// # fn f(rrefs: &rref::RRefs, counter: &rref::RRef<std::sync::Mutex<u64>>) -> Result<(), rref::RRefError> {
/// let sum: i64 = rrefs.call("worker1", "add").run((1, 2))?;
/// let later = counter.call("count up").send::<_, u64>(1)?;
/// let kept = rrefs.call("worker1", "add").remote::<_, i64>((1, 2))?;
/// # drop((sum, later, kept));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the call is made when its arguments are sent"]
pub struct RRefCall<'a> {
    callee: Callee<'a>,
    name: &'a str,
    /// `None`: the default.
    timeout: Option<Option<Duration>>,
}

#[derive(Clone)]
enum Callee<'a> {
    /// A call to a worker, or the error of every call, for example before the references are attached.
    Worker(Result<&'a Arc<Runtime>, RRefError>, Destination<'a>),
    Value(&'a Arc<Cell>),
}

impl<T: Send + Sync + 'static> RRef<T> {
    /// Begins a call of a registered method of the value, on its owner. It is made when its arguments are sent: for the
    /// result ([`RRefCall::run`], [`RRefCall::send`]) or for a reference to it ([`RRefCall::remote`]).
    ///
    /// ```no_run
    /// # fn f(counter: &rref::RRef<std::sync::Mutex<u64>>) -> Result<(), rref::RRefError> {
    /// let count: u64 = counter.call("count up").run(1_u64)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call<'a>(&'a self, method: &'a str) -> RRefCall<'a> {
        RRefCall::new(Callee::Value(&self.cell), method)
    }
}

impl<'a> RRefCall<'a> {
    pub(crate) const fn of_function(
        runtime: Result<&'a Arc<Runtime>, RRefError>,
        to: Destination<'a>,
        name: &'a str,
    ) -> Self {
        Self::new(Callee::Worker(runtime, to), name)
    }

    const fn new(callee: Callee<'a>, name: &'a str) -> Self {
        Self {
            callee,
            name,
            timeout: None,
        }
    }

    /// Sets how long the call may take; `None` for no limit. Default: the agent's timeout. The function may continue
    /// after it.
    ///
    /// For [`RRefCall::remote`], it is how long the owner may take to accept the creation, which it does before the
    /// function runs. Default: as long as the retries of
    /// [`RRefOptions::with_retries`](crate::RRefOptions::with_retries) continue. A time below 1 ms counts as 1 ms.
    /// Ignored for a creation on this worker, which accepts it at once. After the timeout each use of the reference
    /// fails with [`RRefError::CreationTimedOut`], until the owner has reported whether it accepted the creation; if
    /// so, the reference can be used.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = Some(timeout.into());
        self
    }

    /// Makes the call, and blocks until its result arrives.
    ///
    /// # Errors
    /// [`RRefError::Function`] if the function failed; [`RRefError::Rpc`] if the call failed, for example after a
    /// timeout; [`RRefError::Codec`] or [`RRefError::Refused`] if the arguments or the result cannot be sent;
    /// [`RRefError::NotAttached`]; [`RRefError::Shutdown`]. For a method, also [`RRefError::Creation`] if the value
    /// does not exist, and [`RRefError::OwnerLost`].
    pub fn run<A: Serialize, R: DeserializeOwned>(self, arguments: A) -> Result<R, RRefError> {
        let (runtime, call) = self.start(&arguments)?;
        call.wait(runtime)
    }

    /// [`RRefCall::run`] without blocking.
    ///
    /// # Errors
    /// The errors that are known at once; the future returns later errors.
    pub fn send<A: Serialize, R: DeserializeOwned + Clone + Send + 'static>(
        self,
        arguments: A,
    ) -> Result<RRefFuture<R>, RRefError> {
        let (runtime, call) = self.start(&arguments)?;
        Ok(call.into_future(runtime))
    }

    /// Has the callee run the function and keep its result, and returns a reference to the result. Never blocks.
    ///
    /// The function runs once, even if messages are lost. If it fails, each use of the reference fails with
    /// [`RRefError::Creation`].
    ///
    /// # Errors
    /// [`RRefError::Rpc`] if there is no such worker; [`RRefError::Codec`] or [`RRefError::Refused`] if the
    /// arguments cannot be sent; [`RRefError::NotAttached`]; [`RRefError::Shutdown`].
    pub fn remote<A: Serialize, R: Send + Sync + 'static>(
        self,
        arguments: A,
    ) -> Result<RRef<R>, RRefError> {
        let (runtime, owner, target) = match self.callee {
            Callee::Worker(runtime, to) => {
                let runtime = runtime?;
                (runtime, runtime.agent.worker(to)?.id, None)
            }
            Callee::Value(cell) => (cell.here()?, cell.owner(), Some(cell)),
        };
        let (type_name, timeout) = (type_name_of::<R>(), self.timeout.flatten());
        let cell = runtime.create(owner, target, self.name, &arguments, type_name, timeout)?;
        Ok(RRef::of(cell))
    }

    fn start(self, arguments: &impl Serialize) -> Result<(&'a Arc<Runtime>, Call), RRefError> {
        let runtime = match &self.callee {
            Callee::Worker(runtime, _) => runtime.clone()?,
            Callee::Value(cell) => cell.here()?,
        };
        let timeout = self.timeout.unwrap_or_else(|| runtime.agent.timeout());
        let call = match self.callee {
            Callee::Worker(_, to) => runtime.call_function(to, self.name, arguments, timeout),
            Callee::Value(cell) => runtime.call_method(cell, self.name, arguments, timeout),
        };
        Ok((runtime, call?))
    }
}

impl fmt::Debug for RRefCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RRefCall")
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
