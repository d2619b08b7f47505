//! The errors of references, of their registration, and of their shutdown.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::{RegistryError, RetryOptionsError, RpcError, WorkerInfo};

use crate::context::{
    FetchError, ForkError, HeldValue, MissingKind, ReceiveError, SetValueError, UserError,
};
use crate::id::RRefId;

/// The error of a failed operation on a reference. Cheap to clone.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RRefError {
    /// The function that should have made the value failed, or did not run. Every holder gets this error.
    #[error("the value of reference {rref} was not created: {message}")]
    Creation {
        /// The id of the reference.
        rref: RRefId,
        /// The function's message, or the reason why the owner did not run it.
        message: Arc<str>,
    },
    /// The owner did not answer the creation in time, so whether the value exists is unknown. The first
    /// sentence is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node \
         does not exist. ({rref}: {cause})"
    )]
    CreationTimedOut {
        /// The id of the reference.
        rref: RRefId,
        /// The error of the creation.
        cause: Arc<str>,
    },
    /// The owner is dead, and the value is lost with it.
    #[error("the value of reference {rref} is lost: its owner {owner} has died")]
    OwnerLost {
        /// The worker that had the value.
        owner: WorkerInfo,
        /// The id of the reference.
        rref: RRefId,
    },
    /// The value was freed.
    #[error("the value of reference {rref} has been deleted")]
    Deleted {
        /// The id of the reference.
        rref: RRefId,
    },
    /// The value, or the confirmation, was not available in time. The function that makes the value may continue.
    #[error("reference {rref} was not ready after {} ms", after.as_millis())]
    TimedOut {
        /// The id of the reference.
        rref: RRefId,
        /// The timeout of the wait.
        after: Duration,
    },
    /// An operation of the owner was called on another worker. The text is PyTorch's.
    #[error("For {rref}, can't call {operation}() on user {me}. Call it on owner {owner}")]
    NotOwner {
        /// The reference as it is printed.
        rref: Arc<str>,
        /// The operation, by PyTorch's name if it has one.
        operation: &'static str,
        /// The worker that made the call.
        me: WorkerInfo,
        /// The worker that has the value.
        owner: WorkerInfo,
    },
    /// The value or an error was set before. The refused value was dropped.
    #[error("cannot set the value of reference {rref}: it already has a value or an error")]
    AlreadySet {
        /// The id of the reference.
        rref: RRefId,
    },
    /// The called function or method failed.
    #[error("`{function}` on {on} failed: {message}")]
    Function {
        /// The name of the function.
        function: Arc<str>,
        /// The worker that ran it.
        on: WorkerInfo,
        /// The function's message.
        message: Arc<str>,
    },
    /// The value is opaque, so it cannot be fetched.
    #[error("cannot fetch a `{type_name}`: it is opaque and never leaves its owner")]
    Opaque {
        /// The type of the value.
        type_name: Arc<str>,
    },
    /// A value, an argument or a result cannot be encoded or decoded.
    #[error("{0}")]
    Codec(Arc<str>),
    /// This worker or another worker refused the operation.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The reference belongs to another agent of this process.
    #[error("cannot send reference {rref}: it belongs to another agent of this process")]
    Foreign {
        /// The id of the reference.
        rref: RRefId,
    },
    /// The references have no agent yet: see [`RRefs::attach`](crate::RRefs::attach).
    #[error("no agent is attached to the references: call `RRefs::attach`")]
    NotAttached,
    /// The references or the agent were shut down, with or without an error.
    #[error("the references of this worker were shut down")]
    Shutdown,
    /// The call failed; [`RpcError::outcome`] returns whether the function may have run.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

c10d_socket::debug_as_display!(RRefError);

impl RRefError {
    /// The error of a failed user.
    pub(crate) fn of_user(error: UserError, rref: RRefId, owner: &WorkerInfo) -> Self {
        match error {
            UserError::CreationFailed(message) => Self::Creation { rref, message },
            UserError::CreationUnknown(cause) => Self::CreationTimedOut { rref, cause },
            UserError::OwnerLost(_) => Self::OwnerLost {
                owner: owner.clone(),
                rref,
            },
            UserError::ShutDown => Self::Shutdown,
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why a reference cannot be forked.
    pub(crate) fn of_fork(error: ForkError, rref: RRefId, owner: &WorkerInfo) -> Self {
        match error {
            ForkError::User(error) => Self::of_user(error, rref, owner),
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why a value cannot be set.
    pub(crate) fn of_set_value(error: SetValueError, rref: RRefId) -> Self {
        match error {
            SetValueError::AlreadySet => Self::AlreadySet { rref },
            SetValueError::MadeByFunction => Self::Refused(format!("{rref}: {error}").into()),
            SetValueError::ShutDown => Self::Shutdown,
        }
    }

    /// Why a value of this worker does not exist.
    pub(crate) fn of_own(error: FetchError, rref: RRefId) -> Self {
        match error {
            FetchError::Failed(message) => Self::Creation { rref, message },
            FetchError::Deleted(_) => Self::Deleted { rref },
            error => Self::Refused(error.to_string().into()),
        }
    }

    /// Why a received reference is refused.
    pub(crate) fn of_receive(error: &ReceiveError) -> Self {
        match error {
            ReceiveError::Deleted(rref) => Self::Deleted { rref: *rref },
            ReceiveError::ShutDown => Self::Shutdown,
            error => Self::Refused(error.to_string().into()),
        }
    }
}

/// The error of references that could not be registered.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The registry already has references.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// [`RRefOptions::with_retries`](crate::RRefOptions::with_retries) got invalid options.
    #[error("invalid retry options of references: {0}")]
    Retries(#[from] RetryOptionsError),
}

c10d_socket::debug_as_display!(RegisterError);

/// A group of entries that a shutdown still waited for when it timed out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The worker that could finish the entries.
    pub worker: WorkerInfo,
    /// The kind of the entries.
    pub what: MissingKind,
    /// The number of the entries.
    pub count: usize,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.worker, self.count, self.what)
    }
}

/// The error of references that were not shut down completely.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The references have no agent.
    #[error("no agent is attached to the references: call `RRefs::attach`")]
    NotAttached,
    /// A forked child used the references of its parent. This has no effect on the parent's references.
    #[error("cannot shut down the references: {0}")]
    OtherProcess(#[from] c10d_socket::OtherProcess),
    /// The agent is not the attached agent. The call had no effect.
    #[error("the references belong to the agent of {attached}, not to the agent of {given}")]
    OtherAgent {
        /// The worker of the attached agent.
        attached: WorkerInfo,
        /// The worker of the given agent.
        given: WorkerInfo,
    },
    /// Another thread is shutting the references down. The call had no effect.
    #[error("another thread is shutting down the references of this worker")]
    InProgress,
    /// A worker of the group is dead or has not called the shutdown in time. All values that could be freed have been
    /// freed.
    #[error(transparent)]
    Barrier(#[from] rpc_agent::TerminationError),
    /// Workers still used references when the shutdown timed out. All values that could be freed have been freed.
    #[error("references are still in use after {} ms: {}", after.as_millis(), join(missing))]
    Missing {
        /// The timeout of the wait.
        after: Duration,
        /// The entries that the shutdown still waited for, by worker.
        missing: Vec<Missing>,
        /// The values that were held at the beginning of the shutdown.
        report: Box<LeakReport>,
    },
}

c10d_socket::debug_as_display!(ShutdownError);

fn join(missing: &[Missing]) -> String {
    let texts: Vec<String> = missing.iter().map(Missing::to_string).collect();
    texts.join("; ")
}

/// The held values of one worker. `Display` prints one line for each value and holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The owner of the values.
    pub worker: WorkerInfo,
    /// The held values.
    pub values: Vec<HeldValue>,
}

impl LeakReport {
    /// Returns whether no value is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: values held: {}", self.worker, self.values.len())?;
        for value in &self.values {
            let type_name = value.type_name.as_deref().unwrap_or("unknown type");
            write!(
                f,
                "\n  {} `{type_name}`, {}, {} old, references here: {}",
                value.rref,
                value.state,
                seconds(value.age),
                value.handles
            )?;
            for holder in &value.held_by {
                write!(
                    f,
                    "\n    on {} for {} as {}",
                    holder.worker,
                    seconds(holder.age),
                    holder.fork
                )?;
            }
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
