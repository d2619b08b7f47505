//! A failure that the callee reports, as the error of the call.

use crate::error::{CallMessage, CallSite, Outcome, RpcError};
use crate::wire::Failure;

use super::call::PendingCall;

impl Failure {
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
