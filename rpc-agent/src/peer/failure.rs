//! Why a request has no value as its answer, as the callee reports it to the caller.

use std::sync::Arc;

use crate::error::{CallMessage, CallSite, Outcome, RpcError};
use crate::wire::{ErrorKind, Frame};

use super::call::PendingCall;

/// The answer to a request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The function returned an error.
    Handler(Arc<str>),
    /// The function panicked.
    Panicked(Arc<str>),
    /// No function of this name is registered.
    NoSuchFunction,
    /// The request did not begin: a limit was reached.
    Rejected(Arc<str>),
    /// The function ran, but its answer exceeds the limit.
    AnswerTooLarge { bytes: Option<u64> },
    /// The deadline passed before the function began.
    DeadlinePassed,
}

impl Failure {
    pub(super) fn received(kind: ErrorKind, text: Arc<str>) -> Self {
        match kind {
            ErrorKind::Handler => Self::Handler(text),
            ErrorKind::Panicked => Self::Panicked(text),
            ErrorKind::NoSuchFunction => Self::NoSuchFunction,
            ErrorKind::Rejected => Self::Rejected(text),
            ErrorKind::AnswerTooLarge { bytes } => Self::AnswerTooLarge { bytes },
            ErrorKind::DeadlinePassed => Self::DeadlinePassed,
        }
    }

    /// The frame that reports it.
    pub(super) fn frame(self, id: u64) -> Frame<'static> {
        let (kind, text) = match self {
            Self::Handler(text) => (ErrorKind::Handler, text.to_string()),
            Self::Panicked(text) => (ErrorKind::Panicked, text.to_string()),
            Self::NoSuchFunction => (ErrorKind::NoSuchFunction, String::new()),
            Self::Rejected(text) => (ErrorKind::Rejected, text.to_string()),
            Self::AnswerTooLarge { bytes } => (ErrorKind::AnswerTooLarge { bytes }, String::new()),
            Self::DeadlinePassed => (ErrorKind::DeadlinePassed, String::new()),
        };
        let text = text.into();
        Frame::Error { id, kind, text }
    }

    /// The error of the call that got this answer. `message_bytes_max` is the limit of the pair.
    pub(super) fn into_error<P>(
        self,
        call: Box<CallSite>,
        pending: &PendingCall<P>,
        message_bytes_max: u64,
    ) -> RpcError {
        match self {
            Self::Handler(message) => RpcError::Remote {
                call,
                message,
                panicked: false,
            },
            Self::Panicked(message) => RpcError::Remote {
                call,
                message,
                panicked: true,
            },
            Self::NoSuchFunction => RpcError::NoSuchFunction { call },
            Self::Rejected(reason) => RpcError::Rejected { call, reason },
            Self::AnswerTooLarge { bytes } => RpcError::TooLarge {
                call,
                message: CallMessage::Answer,
                bytes,
                bytes_max: message_bytes_max,
            },
            Self::DeadlinePassed => RpcError::Timeout {
                call,
                after: pending.timeout.unwrap_or_default(),
                outcome: Outcome::NotExecuted,
                cause: Some("its deadline had passed before the function could begin".into()),
            },
        }
    }
}
