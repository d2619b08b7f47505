//! The errors of calls, of functions, and of the start of an agent. The error of a call has its outcome: whether the
//! function may have run.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::{CredentialsError, ListenError, OtherProcess};
use c10d_store::StoreError;

use crate::directory::DirectoryError;
use crate::retry::RetryOptionsError;
use crate::worker::{WorkerError, WorkerInfo};

/// Identifies the call in an error: the callee and the function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// The callee of the call.
    pub to: WorkerInfo,
    /// The name of the function, as the caller passed it.
    pub function: Arc<str>,
}

impl CallSite {
    pub(crate) fn of(to: &WorkerInfo, function: impl Into<Arc<str>>) -> Box<Self> {
        Box::new(Self {
            to: to.clone(),
            function: function.into(),
        })
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerInfo { id, name } = &self.to;
        write!(f, "call of `{}` on worker {name} (id {id})", self.function)
    }
}

/// Whether the function of a failed call ran, which decides whether it is safe to repeat the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The function did not run: no byte of the request was sent, or the callee refused it.
    NotExecuted,
    /// The request was sent, perhaps in part, and no answer arrived.
    Unknown,
    /// The function ran.
    Executed,
}

impl Outcome {
    /// The outcome of a request without an answer.
    pub(crate) const fn of_request(is_unsent: bool) -> Self {
        if is_unsent {
            Self::NotExecuted
        } else {
            Self::Unknown
        }
    }
}

/// The two messages of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallMessage {
    /// The request, from the caller to the callee.
    Request,
    /// The answer, from the callee to the caller.
    Answer,
}

impl fmt::Display for CallMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Answer => "answer",
        })
    }
}

/// The error of a failed call.
///
/// Cheap to clone: each thread that waits for the call receives the error. [`RpcError::outcome`] returns whether the
/// function may have run, [`RpcError::is_transient`] whether a later attempt may succeed.
///
/// ```
/// use rpc_agent::{Outcome, RpcError};
///
/// fn may_repeat(error: &RpcError) -> bool {
///     error.is_transient() && error.outcome() == Outcome::NotExecuted
/// }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline passed before the answer arrived. The text begins like PyTorch's text.
    #[error(
        "RPC ran for more than set timeout ({} ms) and will now be marked with an error: {call}, {}",
        after.as_millis(),
        describe_timeout(*outcome, cause.as_deref())
    )]
    Timeout {
        /// The call that failed.
        call: Box<CallSite>,
        /// The call's timeout.
        after: Duration,
        /// [`Outcome::NotExecuted`] if the request was never sent, or arrived too late to start.
        outcome: Outcome,
        /// Why the request was not sent, such as the last failure to connect. `None` if it was sent.
        cause: Option<Arc<str>>,
    },
    /// No byte of the request was sent.
    #[error("{call} was not sent: {cause}")]
    NotSent {
        /// The call that failed.
        call: Box<CallSite>,
        /// The reason why it was not sent.
        cause: NotSent,
    },
    /// The connection was lost while the request was being sent, or before its answer arrived. The
    /// function may have run.
    #[error("{call}: connection lost before the answer came, outcome unknown: {cause}")]
    ConnectionLost {
        /// The call that failed.
        call: Box<CallSite>,
        /// The error of the connection.
        cause: Arc<io::Error>,
    },
    /// The function returned an error, or panicked. The text begins like PyTorch's text.
    #[error("Error on Node {}: {call}: {}: {message}", call.to.id, if *panicked { "the function panicked" } else { "the function failed" })]
    Remote {
        /// The call that failed.
        call: Box<CallSite>,
        /// The text of the function's error, or of its panic.
        message: Arc<str>,
        /// Whether the function panicked.
        panicked: bool,
    },
    /// The callee has no function of this name.
    #[error("{call}: the worker has no function of this name; register it before its agent starts")]
    NoSuchFunction {
        /// The call that failed.
        call: Box<CallSite>,
    },
    /// The callee refused the request because its queue is full or all its threads wait.
    #[error("{call} was refused by the worker: {reason}")]
    Rejected {
        /// The call that failed.
        call: Box<CallSite>,
        /// The callee's text.
        reason: Arc<str>,
    },
    /// The group has no worker of this name or id. The text is PyTorch's.
    #[error("name:{},rank:{} could not find destination {wanted}", me.name, me.id)]
    NoSuchWorker {
        /// The worker that made the call.
        me: Box<WorkerInfo>,
        /// The destination as the caller gave it: `name <name>` or `id <id>`.
        wanted: Arc<str>,
    },
    /// A call with retries failed: no retry or no time is left, or retries to its worker were abandoned. It is also
    /// returned when the last attempt failed with an error that is not retried while an earlier attempt may have run.
    /// The first sentence is PyTorch's.
    #[error(
        "The RPC has not succeeded after the specified number of max retries ({max_retries}). {}, the \
         last one: {last}",
        describe_attempts(*max_retries, *attempts, *outcome, last)
    )]
    RetriesExhausted {
        /// [`RetryOptions::with_max_retries`](crate::RetryOptions::with_max_retries) of the call.
        max_retries: u32,
        /// Attempts made, the first one included.
        attempts: u32,
        /// The outcome of all attempts together.
        outcome: Outcome,
        /// Error of the last attempt.
        last: Box<Self>,
    },
    /// This worker's agent was shut down before the answer arrived.
    #[error("{call}: this worker's agent was shut down, {}", describe_outcome(*outcome))]
    Shutdown {
        /// The call that failed.
        call: Box<CallSite>,
        /// [`Outcome::NotExecuted`] if the request was never sent.
        outcome: Outcome,
    },
    /// The request or the answer is longer than both workers accept. See
    /// [`AgentOptions::with_message_bytes_max`](crate::AgentOptions::with_message_bytes_max).
    #[error(
        "{call}: the {message} has {}, the lower message_bytes_max of both workers is {bytes_max}", bytes.map_or_else(|| "too many bytes".to_owned(), |bytes| format!("{bytes} bytes"))
    )]
    TooLarge {
        /// The call that failed.
        call: Box<CallSite>,
        /// Which of the two messages of the call is too long.
        message: CallMessage,
        /// Length of its payload; `None` if the callee did not report it.
        bytes: Option<u64>,
        /// The longest payload that both workers accept.
        bytes_max: u64,
    },
    /// The arguments cannot be encoded, or the answer is not a value of the expected type.
    #[error("{call}: {what}")]
    Codec {
        /// The call that failed.
        call: Box<CallSite>,
        /// The codec's error.
        what: Arc<str>,
        /// [`Outcome::NotExecuted`] if the arguments could not be encoded.
        outcome: Outcome,
    },
    /// The options of a call with retries are invalid. The call sent nothing.
    #[error(transparent)]
    RetryOptions(#[from] RetryOptionsError),
    /// A forked child used the agent of its parent. This has no effect on the parent's agent.
    #[error("cannot use this worker's agent: {0}")]
    OtherProcess(#[from] OtherProcess),
    /// A continuation of a future panicked, or a [`Promise`](crate::Promise) was dropped uncompleted.
    #[error("{0}")]
    Broken(Arc<str>),
}

c10d_socket::debug_as_display!(RpcError);

/// The reason why a request was not sent.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// This worker could not connect to the callee; the text is the reason.
    #[error("{0}")]
    Connect(Arc<str>),
    /// The list of the group's members does not have this process, or the callee's copy of the list does not. Shows
    /// nothing about whether the callee still runs.
    #[error("{0}")]
    Excluded(Arc<str>),
    /// The connection was lost while the request was queued.
    #[error("connection lost: {0}")]
    ConnectionLost(Arc<io::Error>),
    /// The callee does not read fast enough, and too many bytes are queued for it.
    #[error(
        "{waiting_bytes} bytes are queued for this worker already, backlog_bytes_max is {max_bytes}"
    )]
    Backlog {
        /// Bytes queued for the callee.
        waiting_bytes: u64,
        /// The limit: see [`AgentOptions::with_backlog_bytes_max`](crate::AgentOptions::with_backlog_bytes_max).
        max_bytes: u64,
    },
    /// Injected by a [`FaultInjector`](crate::FaultInjector). The text is PyTorch's.
    #[error("Send attempt failed intentionally")]
    Injected,
}

c10d_socket::debug_as_display!(NotSent);

impl RpcError {
    /// Returns whether the function ran, as far as this worker can determine.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Timeout { outcome, .. }
            | Self::Shutdown { outcome, .. }
            | Self::RetriesExhausted { outcome, .. }
            | Self::Codec { outcome, .. } => *outcome,
            Self::NotSent { .. }
            | Self::NoSuchFunction { .. }
            | Self::Rejected { .. }
            | Self::RetryOptions(_)
            | Self::OtherProcess(_)
            | Self::NoSuchWorker { .. } => Outcome::NotExecuted,
            Self::TooLarge { message, .. } => match message {
                CallMessage::Request => Outcome::NotExecuted,
                CallMessage::Answer => Outcome::Executed,
            },
            Self::ConnectionLost { .. } | Self::Broken(_) => Outcome::Unknown,
            Self::Remote { .. } => Outcome::Executed,
        }
    }

    /// Returns whether the same call may succeed later: the network or the callee's load caused the error.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. }
                | Self::NotSent { .. }
                | Self::ConnectionLost { .. }
                | Self::Rejected { .. }
        )
    }

    /// Returns the failed call; `None` for [`NoSuchWorker`](Self::NoSuchWorker),
    /// [`RetryOptions`](Self::RetryOptions), [`OtherProcess`](Self::OtherProcess) and [`Broken`](Self::Broken).
    #[must_use]
    pub fn call(&self) -> Option<&CallSite> {
        match self {
            Self::Timeout { call, .. }
            | Self::NotSent { call, .. }
            | Self::ConnectionLost { call, .. }
            | Self::Remote { call, .. }
            | Self::NoSuchFunction { call }
            | Self::Rejected { call, .. }
            | Self::Shutdown { call, .. }
            | Self::TooLarge { call, .. }
            | Self::Codec { call, .. } => Some(call),
            Self::RetriesExhausted { last, .. } => last.call(),
            Self::NoSuchWorker { .. }
            | Self::RetryOptions(_)
            | Self::OtherProcess(_)
            | Self::Broken(_) => None,
        }
    }
}

fn describe_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotExecuted => "the request was never sent",
        Outcome::Unknown => "the request was sent, outcome unknown",
        Outcome::Executed => "after the function ran",
    }
}

fn describe_timeout(outcome: Outcome, cause: Option<&str>) -> String {
    let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
    format!("{}{cause}", describe_outcome(outcome))
}

fn describe_attempts(max_retries: u32, attempts: u32, outcome: Outcome, last: &RpcError) -> String {
    let early = if attempts > max_retries {
        ""
    } else {
        "Stopped early. "
    };
    // The text of the last error alone would report that the function did not run.
    let earlier = if outcome == Outcome::Unknown && last.outcome() == Outcome::NotExecuted {
        ", and one of them may have run"
    } else {
        ""
    };
    format!("{early}Attempts: {attempts}{earlier}")
}

/// The error of an agent that did not start.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name or the rank is invalid.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The agent cannot listen on its host and port.
    #[error("cannot listen for other workers: {0}")]
    Listen(#[from] ListenError),
    /// The secret or the certificate cannot be used.
    #[error("cannot use the credentials: {0}")]
    Credentials(#[from] CredentialsError),
    /// A socket that the agent uses internally cannot be created.
    #[error("cannot set up the sockets: {0}")]
    Socket(#[source] io::Error),
    /// The agent cannot join the group.
    #[error(transparent)]
    Directory(Box<DirectoryError>),
    /// The store cannot be used.
    #[error("cannot use the store: {0}")]
    Store(#[source] StoreError),
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

c10d_socket::debug_as_display!(StartError);

impl From<DirectoryError> for StartError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(Box::new(error))
    }
}

/// The error of a function, which its caller receives as text. Text beyond 64 KiB is cut.
///
/// Any [`std::error::Error`] converts into it with `?`; the causes are part of the text.
///
/// ```
/// use rpc_agent::HandlerError;
///
/// fn parse(payload: &[u8]) -> Result<u64, HandlerError> {
///     let text = std::str::from_utf8(payload)?;
///     text.parse().map_err(|_| HandlerError::new(format!("{text:?} is not a number")))
/// }
///
/// assert_eq!(parse(b"x").unwrap_err().message(), "\"x\" is not a number");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    /// The answer has more bytes than a message may have.
    is_too_large: bool,
}

impl HandlerError {
    /// Creates an error with this text.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            is_too_large: false,
        }
    }

    /// The answer has too many bytes; the caller receives [`RpcError::TooLarge`](crate::RpcError::TooLarge).
    #[cfg(feature = "typed")]
    pub(crate) const fn too_large(message: String) -> Self {
        Self {
            message,
            is_too_large: true,
        }
    }

    pub(crate) const fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Returns the text of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// Would conflict with `From<T> for T` if this type implemented `Error`.
impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_text_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot load the shard")]
        struct Outer(#[source] std::num::ParseIntError);
        let outer = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(
            HandlerError::from(outer).message(),
            "cannot load the shard: invalid digit found in string"
        );
    }
}
