//! Requests from the peer, and our answers.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;

use super::state::Peer;
use crate::peer::call::{ReplyRoute, Request};
use crate::peer::config::FunctionId;
use crate::peer::effect::{Count, Effect, End};
use crate::wire::{Failure, Frame};

impl<P, S: Clone> Peer<P, S> {
    /// A thread is about to run a request that was admitted. `None` when that must wait until the peer has read some
    /// of its answers: more of them would pile up here.
    pub(crate) fn begin_request(&mut self, request: Request) -> Option<Request> {
        if self.has_backlog() {
            self.admission.parked.push_back(request);
            return None;
        }
        self.admission.left(1);
        Some(request)
    }

    /// Refuses an admitted request, because no thread can run it.
    pub(crate) fn refuse_admitted(&mut self, route: ReplyRoute, reason: Arc<str>) {
        self.admission.left(1);
        self.effects.push(Effect::Count(Count::RequestRefused));
        self.respond(route, Err(Failure::Rejected(reason)));
    }

    /// Answers a request. False when the connection of the request has ended.
    pub(crate) fn respond(&mut self, route: ReplyRoute, answer: Result<Bytes, Failure>) -> bool {
        let limit = self.largest_message();
        let answer = match answer {
            Ok(payload) if payload.len() as u64 > limit => Err(Failure::AnswerTooLarge {
                bytes: Some(payload.len() as u64),
            }),
            answer => answer,
        };
        match route.connection {
            None => self.answered(route.call, answer),
            Some(connection) if self.is_connected_by(connection) => {
                match answer {
                    Ok(payload) => self.outgoing.push_response(route.call, payload),
                    Err(failure) => {
                        let id = route.call;
                        self.outgoing.push_frame(&Frame::Error { id, failure });
                    }
                }
                self.send_queued();
            }
            Some(_) => return false,
        }
        true
    }

    /// Requests that have not begun, those that no thread has taken included.
    pub(crate) fn requests_queued(&self) -> usize {
        self.admission.queued
    }

    pub(super) fn request(
        &mut self,
        route: ReplyRoute,
        budget_ms: u32,
        function: Option<FunctionId>,
        payload: Bytes,
        now: Instant,
    ) {
        let Some(function) = function else {
            return self.refuse(route, Failure::NoSuchFunction);
        };
        let deadline = if budget_ms == 0 {
            Deadline::NEVER
        } else {
            Deadline::after(now, Duration::from_millis(u64::from(budget_ms)))
        };
        let request = Request {
            route,
            function,
            deadline,
            arrived_at: now,
            payload,
        };
        let queued_max = self.config.requests_queued_max;
        if self.admission.queued >= queued_max {
            let reason = format!("{queued_max} requests of this worker wait already");
            return self.refuse(route, Failure::Rejected(reason.into()));
        }
        self.admission.queued += 1;
        if self.has_backlog() {
            self.admission.parked.push_back(request);
        } else {
            self.effects.push(Effect::Admit(request));
        }
    }

    /// Refuses a request. A refusal waits for no thread and takes no place in a queue, so a peer that sends requests
    /// without end and reads no answer loses its connection.
    fn refuse(&mut self, route: ReplyRoute, failure: Failure) {
        self.effects.push(Effect::Count(Count::RequestRefused));
        if self.has_backlog() {
            self.admission.refused_unread += 1;
        }
        if self.admission.refused_unread > self.config.requests_queued_max {
            let text = "closed: the peer is not reading, and its refused-request limit is reached";
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, text);
            return self.end_connection(End::Failed(error));
        }
        self.respond(route, Err(failure));
    }

    fn has_backlog(&self) -> bool {
        self.outgoing.unsent_bytes() > self.config.backlog_bytes_max
    }
}
