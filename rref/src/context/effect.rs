//! The requests of the context to its shell, and the shell's reports back.

use std::sync::Arc;

use bytes::Bytes;
use rpc_agent::WorkerId;

use super::error::{FetchError, UserError};
use crate::id::{ForkId, RRefId};
use crate::protocol::{Answer, Message};

/// Names an open request. Drawn by the shell.
pub(crate) type RequestToken = u64;

/// Identifies one of the context's own messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Control {
    /// Creates a value, for the creator's user.
    Create(ForkId),
    /// Registers a child.
    ForkRequest(ForkId),
    /// Releases a child's parent.
    ChildAccept(ForkId),
    /// Settles a creation whose outcome is unknown.
    Abandon(ForkId),
    /// Asks whether a child has arrived.
    Probe(ForkId),
    /// A query whether the owner has a child.
    Query(ForkId),
    /// A request that deletes users.
    Deletes {
        owner: WorkerId,
        /// Counts this context's batches.
        batch: u64,
    },
}

/// An action that the shell carries out, without its lock and in this order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Effect<V> {
    /// Send with retries, so the receiver may handle it twice, and report the outcome once by
    /// [`control_finished`](crate::context::RRefContext::control_finished).
    Send {
        /// The other worker, which receives the message.
        to: WorkerId,
        control: Control,
        message: Message,
    },
    /// Answer a request.
    Reply { token: RequestToken, answer: Answer },
    /// Run a function, and report its result by
    /// [`function_finished`](crate::context::RRefContext::function_finished). Once for each reference.
    RunFunction {
        /// The reference that gets the result.
        rref: RRefId,
        /// The worker that created the value.
        from: WorkerId,
        function: Arc<str>,
        /// Packed, with their references.
        arguments: Bytes,
    },
    /// Answer a request for a value.
    AnswerFetch {
        token: RequestToken,
        result: Result<V, FetchError>,
    },
    /// The owner has this user.
    Confirmed { fork: ForkId },
    /// This user cannot be used. After [`UserError::CreationUnknown`] it may still be confirmed.
    Failed { fork: ForkId, error: UserError },
    /// Drop a value without users and handles.
    Free(V),
}

impl<V: std::fmt::Debug> std::fmt::Debug for Effect<V> {
    /// Prints lengths instead of arguments, which can be long and secret.
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

/// The outcome of a message that was sent with retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The peer answered.
    Answered {
        /// The incarnation of the process that answered.
        incarnation: u64,
        answer: Answer,
    },
    /// The attempts have not arrived.
    NotDelivered(Arc<str>),
    /// The peer answered with an error.
    Refused(Arc<str>),
    /// The attempts were not answered; each may have arrived.
    Unknown(Arc<str>),
}

/// The message that carries a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Carrier {
    /// A call, whose outcome its sender learns. Its references are not probed during that time, because it may wait
    /// for a thread of its receiver.
    Call,
    /// An answer, whose arrival is not reported.
    Answer,
}

/// A counted handle of the program: all clones of an `RRef` together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Handle {
    /// A value of this worker.
    Owner(RRefId),
    /// A value of another worker.
    User(ForkId),
}

/// A received reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// The program returns it by `drop_handle`.
    pub(crate) handle: Handle,
    /// Whether the owner has it; if not, [`Effect::Confirmed`] or [`Effect::Failed`] follows.
    pub(crate) is_confirmed: bool,
}

/// The state of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UserStatus {
    /// The owner has not answered.
    Pending,
    /// The owner has confirmed the user.
    Confirmed,
    /// The user cannot be used.
    Failed(UserError),
}
