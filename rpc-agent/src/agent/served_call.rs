//! A call that a function of this agent serves, and its answer.

use bytes::Bytes;
use c10d_socket::Deadline;

use crate::handler_error::HandlerError;
use crate::peer::FunctionId;
use crate::runtime::{ReplyTo, Runtime};
use crate::wire::Failure;
use crate::worker::WorkerInfo;

/// A call whose function has begun. It must be answered once.
#[derive(Debug, Clone)]
pub(crate) struct ServedCall {
    reply_to: ReplyTo,
    deadline: Deadline,
    /// The function answers through a `Reply`.
    is_deferred: bool,
}

impl ServedCall {
    /// Counts the call as begun, until it is answered.
    pub(super) fn begin(
        runtime: &Runtime,
        reply_to: ReplyTo,
        deadline: Deadline,
        is_deferred: bool,
    ) -> Self {
        runtime.driver.activity.begin();
        if is_deferred {
            runtime.driver.metrics.requests.deferred.add(1);
        }
        Self {
            reply_to,
            deadline,
            is_deferred,
        }
    }

    pub(crate) fn caller(&self) -> &WorkerInfo {
        &self.reply_to.peer.info
    }

    /// The function that was called.
    pub(crate) fn function(&self) -> FunctionId {
        self.reply_to.function
    }

    /// When the caller stops waiting.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Answers the call.
    pub(crate) fn answer(&self, runtime: &Runtime, answer: Result<Bytes, HandlerError>) {
        let answer = answer.map_err(|error| Failure::Handler(error.message().into()));
        self.end(runtime, answer);
    }

    /// Answers that the function panicked.
    pub(super) fn panicked(&self, runtime: &Runtime, text: &str) {
        self.end(runtime, Err(Failure::Panicked(text.into())));
    }

    fn end(&self, runtime: &Runtime, answer: Result<Bytes, Failure>) {
        runtime.sender.answer(&self.reply_to, answer);
        let requests = &runtime.driver.metrics.requests;
        if self.is_deferred {
            requests.deferred_answered.add(1);
        }
        requests.handled.add(1);
        runtime.driver.activity.end();
    }
}
