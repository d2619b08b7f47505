//! Calls to the peer, and their answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::end::REPLACED;
use super::state::{Peer, Phase};
use crate::error::{CallMessage, NotSent, Outcome, RpcError};
use crate::peer::call::{NewCall, PendingCall, ReplyRoute, budget_ms};
use crate::peer::effect::{Count, Effect};
use crate::peer::in_flight::CallId;
use crate::wire::{self, Failure};

impl<P, S: Clone> Peer<P, S> {
    /// Makes a call.
    pub(crate) fn call(&mut self, call: NewCall<'_, P>, payload: Bytes) {
        let (timeout, now) = (call.timeout, call.started_at);
        if let Some(id) = self.expect(call, payload.len()) {
            self.send(id, payload, timeout, now);
        }
    }

    /// Begins a call without sending its request: for a test that loses or delays it. `None` when the call has failed.
    pub(crate) fn expect(&mut self, call: NewCall<'_, P>, payload_bytes: usize) -> Option<CallId> {
        if *self.last_function != *call.function {
            self.last_function = Arc::from(call.function);
        }
        let pending = PendingCall {
            promise: call.promise,
            function: Arc::clone(&self.last_function),
            timeout: call.timeout,
            is_repeated: call.is_repeated,
        };
        if let Err(error) = self.check(&pending, payload_bytes as u64) {
            self.complete(pending, Err(error));
            return None;
        }
        Some(self.in_flight.insert(call.deadline_ms, pending))
    }

    /// Sends the request of an unanswered call, and sends it again for a test that doubles it. `timeout` is the
    /// remaining time of the call.
    pub(crate) fn send(
        &mut self,
        id: CallId,
        payload: Bytes,
        timeout: Option<Duration>,
        now: Instant,
    ) {
        let Some(call) = self.in_flight.get(id) else {
            return;
        };
        let budget_ms = budget_ms(timeout);
        if matches!(self.phase, Phase::Own) {
            let function = self.config.functions.find(&call.function);
            self.effects.push(Effect::Count(Count::OwnRequest));
            let route = ReplyRoute {
                connection: None,
                call: id.get(),
            };
            self.request(route, budget_ms, function, payload, now);
            return;
        }
        let function = &call.function;
        self.outgoing
            .push_request(id.get(), budget_ms, function, payload);
        match self.phase {
            Phase::Connected(_) => self.send_queued(),
            Phase::Absent(before) => self.begin_dial(before, now),
            Phase::Dialing { .. } | Phase::Own | Phase::Replaced => {}
        }
    }

    /// Whether a call with this id, from the wire, has no answer yet.
    pub(crate) fn is_awaited(&self, id: u64) -> bool {
        self.in_flight.contains(CallId::from_wire(id))
    }

    /// Returns how many calls have no answer.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The earliest deadline of a call, in milliseconds of the caller's clock.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.in_flight.next_deadline_ms()
    }

    /// Fails the calls whose deadline has passed.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if self.next_deadline_ms().is_none_or(|next| next > now_ms) {
            return;
        }
        let expired = self.in_flight.expire(now_ms);
        let ids: HashSet<u64> = expired.iter().map(|(id, _)| id.get()).collect();
        let mut unsent = self.outgoing.withdraw(&ids);
        let cause: Option<Arc<str>> = match &self.phase {
            Phase::Own => None,
            Phase::Connected(_) => {
                (!unsent.is_empty()).then(|| "the worker does not read what is sent to it".into())
            }
            Phase::Absent(_) | Phase::Dialing { .. } | Phase::Replaced => {
                unsent = ids.into_iter().collect();
                let cause = self.last_failure.clone();
                Some(cause.unwrap_or_else(|| "no connection has been made yet".into()))
            }
        };
        unsent.sort_unstable();
        for (id, call) in expired {
            let is_unsent = !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let error = RpcError::Timeout {
                call: self.site(&call.function),
                after: call.timeout.unwrap_or_default(),
                outcome: Outcome::of_request(is_unsent),
                cause: cause.clone().filter(|_| is_unsent),
            };
            self.complete(call, Err(error));
        }
    }

    fn check(&self, pending: &PendingCall<P>, payload_bytes: u64) -> Result<(), RpcError> {
        let function = &pending.function;
        let call = || self.site(function);
        if matches!(self.phase, Phase::Replaced) {
            return Err(RpcError::NotSent {
                call: call(),
                cause: NotSent::Connect(REPLACED.into()),
            });
        }
        if self.is_closing {
            return Err(RpcError::Shutdown {
                call: call(),
                outcome: Outcome::NotExecuted,
            });
        }
        let bytes_max = self.largest_message();
        if payload_bytes > bytes_max {
            return Err(RpcError::TooLarge {
                call: call(),
                message: CallMessage::Request,
                bytes: Some(payload_bytes),
                bytes_max,
            });
        }
        if function.is_empty() || function.len() > wire::FUNCTION_NAME_BYTES_MAX {
            return Err(RpcError::NoSuchFunction { call: call() });
        }
        let waiting_bytes = self.outgoing.unsent_bytes();
        let max_bytes = self.config.backlog_bytes_max;
        if waiting_bytes > 0 && waiting_bytes + payload_bytes > max_bytes {
            return Err(RpcError::NotSent {
                call: call(),
                cause: NotSent::Backlog {
                    waiting_bytes,
                    max_bytes,
                },
            });
        }
        if pending.timeout == Some(Duration::ZERO) {
            // It expires before it is sent.
            return Err(RpcError::Timeout {
                call: call(),
                after: Duration::ZERO,
                outcome: Outcome::of_request(!pending.is_repeated),
                cause: Some("its timeout is zero".into()),
            });
        }
        Ok(())
    }

    pub(super) fn answered(&mut self, id: u64, answer: Result<Bytes, Failure>) {
        match self.in_flight.complete(CallId::from_wire(id)) {
            Some(call) => {
                let result = answer.map_err(|failure| {
                    failure.into_error(self.site(&call.function), &call, self.largest_message())
                });
                self.complete(call, result);
            }
            // Its deadline has passed, or it was answered before.
            None => self.effects.push(Effect::Count(Count::LateAnswer)),
        }
    }
}
