//! What can go wrong with a call, and what is known about it then.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::retry::RetryOptionsError;
use crate::worker::WorkerInfo;

/// Which call: to whom, of which function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// The worker called.
    pub to: WorkerInfo,
    /// The function's name.
    pub function: Arc<str>,
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerInfo { id, name } = &self.to;
        write!(f, "call of `{}` on worker {name} (id {id})", self.function)
    }
}

/// What is known of a failed call's execution. Decides whether a repetition can do harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// No byte of the request left this worker, or its receiver said that it did not begin.
    NotExecuted,
    /// The request was sent, or may have been, and no answer came.
    Unknown,
    /// The function ran, and its error came back.
    Executed,
}

/// The two messages of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallMessage {
    /// From the caller to the callee.
    Request,
    /// From the callee back to the caller.
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

/// Why a call has no result. Cheap to clone: a call's error is given to everyone who waits for it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The deadline passed. The first words are PyTorch's.
    #[error(
        "RPC ran for more than set timeout ({} ms) and will now be marked with an error: {call}, {}",
        after.as_millis(),
        describe_timeout(*outcome, cause.as_deref())
    )]
    Timeout {
        /// The call.
        call: Box<CallSite>,
        /// The call's own timeout.
        after: Duration,
        /// Whether the request had been sent.
        outcome: Outcome,
        /// Why it had not been sent, as far as it is known: the last failure to connect.
        cause: Option<Arc<str>>,
    },
    /// The request could not be sent.
    #[error("{call} was not sent: {cause}")]
    NotSent {
        /// The call.
        call: Box<CallSite>,
        /// Why.
        cause: NotSent,
    },
    /// The connection ended after the request had been sent, or while it was. Whether the function
    /// ran is not known.
    #[error("{call}: connection lost before the answer came, outcome unknown: {cause}")]
    ConnectionLost {
        /// The call.
        call: Box<CallSite>,
        /// How it ended.
        cause: Arc<io::Error>,
    },
    /// The function returned an error, or panicked.
    #[error("Error on Node {}: {call}: {}: {message}", call.to.id, describe_remote(*panicked))]
    Remote {
        /// The call.
        call: Box<CallSite>,
        /// The handler's words, or those of the panic.
        message: Arc<str>,
        /// Whether it panicked.
        panicked: bool,
    },
    /// The worker has no function of this name.
    #[error("{call}: no function of this name is registered there")]
    NoSuchFunction {
        /// The call.
        call: Box<CallSite>,
    },
    /// The worker refused the request before running it.
    #[error("{call} was refused there: {reason}")]
    Rejected {
        /// The call.
        call: Box<CallSite>,
        /// In the words of the worker.
        reason: Arc<str>,
    },
    /// No worker of the group is called so.
    #[error("name:{},rank:{} could not find destination {wanted}", me.name, me.id)]
    NoSuchWorker {
        /// The worker that asked.
        me: Box<WorkerInfo>,
        /// What it asked for: `name <name>` or `id <id>`.
        wanted: Arc<str>,
    },
    /// A call with retries failed: all its attempts, or as many as there was time for, or as were made
    /// until its worker was given up. Also when the last one failed in a way that ends the call, and an
    /// earlier one may have run. The first sentence is PyTorch's.
    #[error(
        "The RPC has not succeeded after the specified number of max retries ({max_retries}). {}, the \
         last one: {last}",
        describe_attempts(*max_retries, *attempts, *outcome, last)
    )]
    RetriesExhausted {
        /// The most retries that were asked for.
        max_retries: u32,
        /// How often the request was given to the network: 1 and the retries made.
        attempts: u32,
        /// Of all attempts: if one of them may have run, it is not known whether the function did.
        outcome: Outcome,
        /// The last attempt's error.
        last: Box<Self>,
    },
    /// The agent was shut down. With [`Outcome::Unknown`] the request had been sent.
    #[error("{call}: the agent was shut down, {}", describe_outcome(*outcome))]
    Shutdown {
        /// The call.
        call: Box<CallSite>,
        /// Whether the request had been sent.
        outcome: Outcome,
    },
    /// The request or the answer is greater than a message may be.
    #[error(
        "{call}: the {message} has {}, the lower message_bytes_max of both workers is {bytes_max}", describe_length(*bytes)
    )]
    TooLarge {
        /// The call.
        call: Box<CallSite>,
        /// Which of the two messages of the call is too long.
        message: CallMessage,
        /// Length of its payload; `None` if the callee did not report it.
        bytes: Option<u64>,
        /// The longest payload that both workers accept.
        bytes_max: u64,
    },
    /// A value could not be encoded, or the answer is no value of the expected type.
    #[error("{call}: {what}")]
    Codec {
        /// The call.
        call: Box<CallSite>,
        /// What could not be done.
        what: Arc<str>,
        /// Whether it was the answer.
        outcome: Outcome,
    },
    /// The options of a call with retries make no sense.
    #[error(transparent)]
    RetryOptions(#[from] RetryOptionsError),
    /// A continuation of a future panicked, or a future was given up by who should complete it.
    #[error("{0}")]
    Broken(Arc<str>),
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a request was not sent.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// No connection could be made.
    #[error("{0}")]
    Connect(Arc<str>),
    /// The connection ended while the request waited to be sent.
    #[error("connection lost: {0}")]
    ConnectionLost(Arc<io::Error>),
    /// So much waits to be sent to this worker that no more is accepted.
    #[error("{waiting_bytes} bytes wait to be sent to it already, the limit is {max_bytes}")]
    Backlog {
        /// Waiting.
        waiting_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A test's fault. The words are PyTorch's.
    #[error("Send attempt failed intentionally")]
    Injected,
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl fmt::Debug for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RpcError {
    /// What is known of the call's execution.
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
            | Self::NoSuchWorker { .. } => Outcome::NotExecuted,
            Self::TooLarge { message, .. } => match message {
                CallMessage::Request => Outcome::NotExecuted,
                CallMessage::Answer => Outcome::Executed,
            },
            Self::ConnectionLost { .. } | Self::Broken(_) => Outcome::Unknown,
            Self::Remote { .. } => Outcome::Executed,
        }
    }

    /// Whether the same call can succeed a little later: what failed is the way, not the call.
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

    /// Which call it was, where the error belongs to one.
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
            Self::NoSuchWorker { .. } | Self::RetryOptions(_) | Self::Broken(_) => None,
        }
    }
}

fn describe_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotExecuted => "the request was never sent",
        Outcome::Unknown => "the request had been sent, outcome unknown",
        Outcome::Executed => "after the function ran",
    }
}

fn describe_length(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("{bytes} bytes"),
        None => "too many bytes".to_owned(),
    }
}

fn describe_timeout(outcome: Outcome, cause: Option<&str>) -> String {
    match cause {
        Some(cause) => format!("{}: {cause}", describe_outcome(outcome)),
        None => describe_outcome(outcome).to_owned(),
    }
}

fn describe_attempts(max_retries: u32, attempts: u32, outcome: Outcome, last: &RpcError) -> String {
    let early = if attempts > max_retries {
        ""
    } else {
        "Given up earlier. "
    };
    // The last one's own words would say that the function did not run.
    let earlier = if outcome == Outcome::Unknown && last.outcome() == Outcome::NotExecuted {
        ", of which one may have run"
    } else {
        ""
    };
    format!("{early}Attempts: {attempts}{earlier}")
}

fn describe_remote(panicked: bool) -> &'static str {
    if panicked {
        "the function panicked"
    } else {
        "the function failed"
    }
}
