//! What the context asks of the shell that drives it, and how the shell reports back.

use std::sync::Arc;

use bytes::Bytes;
use rpc_agent::WorkerId;

use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

/// Names a request that waits for its answer. Drawn by the shell; unique among those that are open.
pub type RequestToken = u64;

/// Which of the context's own messages it is, in the report of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Control {
    /// The creation of a value, by the creator's user.
    Create(ForkId),
    /// A child's registration.
    ForkRequest(ForkId),
    /// The release of a child's parent.
    ChildAccept(ForkId),
    /// The end of a creation whose outcome is unknown.
    Abandon(ForkId),
    /// The question whether a child has arrived.
    Probe(ForkId),
    /// The question whether the owner knows a child.
    Query(ForkId),
    /// Deletions; one such message to an owner is under way at a time.
    Deletes {
        /// The owner.
        owner: WorkerId,
        /// Counts the batches of this context.
        batch: u64,
    },
}

/// What the shell does, outside of its lock and in this order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Effect<V> {
    /// Send, with retries (each message may run twice at its receiver), and report the end once by
    /// [`control_finished`](crate::context::RRefContext::control_finished).
    Send {
        /// To whom; another worker.
        to: WorkerId,
        /// For the report.
        control: Control,
        /// What.
        message: Message,
    },
    /// Answer a request.
    Reply {
        /// Which.
        token: RequestToken,
        /// With what.
        answer: Answer,
    },
    /// Run a function, then report its result by
    /// [`function_finished`](crate::context::RRefContext::function_finished). Asked once for a reference.
    RunFunction {
        /// The reference that gets the result.
        rref: RRefId,
        /// Who asked.
        from: WorkerId,
        /// Which function.
        function: Arc<str>,
        /// Its arguments, encoded.
        arguments: Bytes,
    },
    /// Answer a request for a value.
    AnswerFetch {
        /// Which.
        token: RequestToken,
        /// The value.
        result: Result<V, FetchError>,
    },
    /// The owner knows this user.
    Confirmed {
        /// Which.
        fork: ForkId,
    },
    /// This user is of no use. After [`UserError::CreationUnknown`] it may still be confirmed.
    Failed {
        /// Which.
        fork: ForkId,
        /// Why.
        error: UserError,
    },
    /// Drop a value: nobody refers to it.
    Free(V),
}

impl<V: std::fmt::Debug> std::fmt::Debug for Effect<V> {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send {
                to,
                control,
                message,
            } => f
                .debug_struct("Send")
                .field("to", to)
                .field("control", control)
                .field("message", message)
                .finish(),
            Self::Reply { token, answer } => f
                .debug_struct("Reply")
                .field("token", token)
                .field("answer", answer)
                .finish(),
            Self::RunFunction {
                rref,
                from,
                function,
                arguments,
            } => f
                .debug_struct("RunFunction")
                .field("rref", rref)
                .field("from", from)
                .field("function", function)
                .field("arguments_bytes", &arguments.len())
                .finish(),
            Self::AnswerFetch { token, result } => f
                .debug_struct("AnswerFetch")
                .field("token", token)
                .field("result", result)
                .finish(),
            Self::Confirmed { fork } => f.debug_struct("Confirmed").field("fork", fork).finish(),
            Self::Failed { fork, error } => f
                .debug_struct("Failed")
                .field("fork", fork)
                .field("error", error)
                .finish(),
            Self::Free(it) => f.debug_tuple("Free").field(it).finish(),
        }
    }
}

/// How a message that was sent with retries has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The peer answered.
    Answered {
        /// The incarnation of who answered.
        incarnation: u64,
        /// What.
        answer: Answer,
    },
    /// It is certain that no attempt has arrived.
    NotDelivered(Arc<str>),
    /// The peer answered with an error.
    Refused(Arc<str>),
    /// No attempt was answered; each may have arrived.
    Unknown(Arc<str>),
}

/// Why a user is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// The owner did not create the value.
    #[error("the creation of the reference's value failed: {0}")]
    CreationFailed(Arc<str>),
    /// No answer came. The first sentence is PyTorch's.
    #[error(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node \
         does not exist.: {0}"
    )]
    CreationUnknown(Arc<str>),
    /// The owner refused the user: the value is gone, or there is too much of something.
    #[error("the owner refused the reference: {0}")]
    Refused(Arc<str>),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, was lost")]
    OwnerLost(WorkerId),
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// A worker cannot be asked to create for itself; see
    /// [`create_here`](crate::context::RRefContext::create_here).
    #[error("the value is to be created here")]
    OwnerIsHere,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Nobody referred to it any more.
    #[error("the value of the reference {0} has been deleted")]
    Deleted(RRefId),
    /// It is named as one of this worker's making, and none has this name.
    #[error("no reference was named {0} here")]
    Invented(RRefId),
    /// It was not there by the request's deadline.
    #[error("the value of the reference {0} was not there by the deadline")]
    TimedOut(RRefId),
    /// The function that should have made it failed, in its words.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The request comes from a process that was declared dead.
    #[error("worker {0} was given up as dead here")]
    GivenUp(WorkerId),
    /// Too many requests wait for values.
    #[error("{max} requests wait for values already")]
    TooMany {
        /// The limit.
        max: usize,
    },
}

/// Why a reference does not take a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GiveError {
    /// It has a value or an error.
    #[error("the reference has a value or an error already")]
    AlreadyGiven,
    /// A function makes its value.
    #[error("the value of the reference is made by a function")]
    MadeByFunction,
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
}

/// Why a reference cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The user is of no use.
    #[error(transparent)]
    User(#[from] UserError),
    /// The handle was given back. The words are PyTorch's.
    #[error("the reference has been deleted. Cannot call fork an UserRRef after deletion.")]
    Deleted,
}

/// Why a reference that came in a message is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// A message is decoded once, and not after its sender was told that it had not come.
    #[error("the fork {0} was received before, or given up by its sender")]
    ReceivedBefore(ForkId),
    /// It is not named by its parent, or as something of this worker's making that has no such name.
    #[error("the fork {0} was not named by whom it says")]
    Invented(ForkId),
    /// Its value is gone: the sender did not keep to the protocol, or was given up as dead.
    #[error("the value of the reference {0} has been deleted")]
    Deleted(RRefId),
    /// The owner is dead.
    #[error("worker {0}, the owner of the reference, was lost")]
    OwnerLost(WorkerId),
    /// The owner has it with another type.
    #[error("the reference {rref} is of type `{ours}`, and came as `{theirs}`")]
    TypeMismatch {
        /// The reference.
        rref: RRefId,
        /// The owner's type.
        ours: Arc<str>,
        /// The message's.
        theirs: Arc<str>,
    },
    /// The references of this worker were shut down.
    #[error("the references of this worker were shut down")]
    ShutDown,
    /// There are too many references whose creation has not come.
    #[error("{max} references wait for their creation already")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// Too many messages about references have no answer yet.
    #[error("{max} messages about references have no answer yet")]
    TooManyMessages {
        /// The limit.
        max: usize,
    },
}
