//! Requests: the function runs, the answer goes back.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use super::AgentHandle;
use super::peer::{Peer, PeerState, Request, ServedCall, WayBack};
use super::poller::Poller;
use super::retries::Delayed;
use super::shared::Shared;
use crate::context::{Context, Reply};
use crate::error::RpcError;
use crate::fault::{Fault, Leg};
use crate::future::panic_text;
use crate::handler_error::HandlerError;
use crate::pool::Work;
use crate::registry::Body;
use crate::wire::{ErrorKind, Frame};

/// What the pool of an agent works for.
pub(crate) struct AgentWork {
    shared: Arc<Shared>,
    poller: Mutex<Poller>,
}

impl AgentWork {
    pub(crate) const fn new(shared: Arc<Shared>, poller: Poller) -> Self {
        let poller = Mutex::new(poller);
        Self { shared, poller }
    }
}

impl Work<Request> for AgentWork {
    fn flush(&self) {
        self.shared.flush_dirty();
    }

    fn has_unsent(&self) -> bool {
        self.shared.has_dirty()
    }

    fn has_collected(&self) -> bool {
        self.shared.has_gathered()
    }

    fn poll(&self, found: &mut VecDeque<Request>) {
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.poll_once(&mut poller, found);
    }

    fn wake_poller(&self) {
        self.shared.sockets.wake();
    }

    fn run(&self, request: Request) {
        self.shared.run_request(request);
    }

    fn refuse(&self, request: Request, threads: usize) {
        let call = &request.call;
        self.shared.end_queueing(call);
        self.shared.metrics.request_refused();
        let reason = format!("all {threads} threads wait for nested calls");
        self.shared
            .answer_error(&call.peer, &call.way_back, ErrorKind::Rejected, &reason);
    }

    fn is_slow(&self, request: &Request) -> bool {
        request.call.function.is_slow()
    }

    fn arrived_at(&self, request: &Request) -> Instant {
        request.call.arrived_at
    }
}

impl Shared {
    fn end_queueing(&self, call: &ServedCall) {
        let mut state = call.peer.lock();
        state.requests_queued = state.requests_queued.saturating_sub(1);
        drop(state);
        self.requests_queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a request off its worker's account, or has it wait until that worker has read some answers:
    /// more of them would pile up here.
    fn take_or_park(&self, request: Request) -> Option<Request> {
        let limit = self.options.backlog_bytes_max;
        let may_run = |state: &mut PeerState| {
            let may_run = state.outgoing.unsent_bytes() <= limit;
            if may_run {
                state.requests_queued = state.requests_queued.saturating_sub(1);
                self.requests_queued.fetch_sub(1, Ordering::Relaxed);
            }
            may_run
        };
        if may_run(&mut request.call.peer.lock()) {
            return Some(request);
        }
        let peer = Arc::clone(&request.call.peer);
        let mut state = peer.lock();
        if may_run(&mut state) {
            return Some(request);
        }
        state.parked.push_back(request);
        None
    }

    fn run_request(self: &Arc<Self>, request: Request) {
        let Some(Request { call, payload }) = self.take_or_park(request) else {
            return;
        };
        let began = Instant::now();
        if call.deadline.has_passed(began) {
            self.metrics.request_refused();
            self.answer_error(&call.peer, &call.way_back, ErrorKind::DeadlinePassed, "");
            return;
        }
        self.activity.begin();
        let function = Arc::clone(&call.function);
        let context = Context {
            agent: AgentHandle::new(Arc::clone(self)),
            call,
        };
        match &function.body {
            Body::Direct(run) => {
                let result = catch_unwind(AssertUnwindSafe(|| run(&context, payload)));
                function.ran_for(began.elapsed());
                self.answer_result(&context.call, result);
            }
            Body::Deferred(run) => {
                self.metrics.request_deferred();
                let reply = Reply {
                    pending: Some((context.agent.clone(), context.call.clone())),
                };
                let result = catch_unwind(AssertUnwindSafe(|| run(&context, payload, reply)));
                function.ran_for(began.elapsed());
                if let Err(panic) = result {
                    // The reply was dropped on the way, and has answered; the log has the reason.
                    self.metrics.handler_panicked();
                    log::error!(
                        "{}: function `{}` panicked: {}",
                        self.me,
                        function.name,
                        panic_text(&*panic)
                    );
                }
            }
        }
    }

    fn answer_result(
        self: &Arc<Self>,
        call: &ServedCall,
        result: Result<Result<Bytes, HandlerError>, Box<dyn Any + Send>>,
    ) {
        match result {
            Ok(answer) => self.answer(call, answer),
            Err(panic) => {
                let words = panic_text(&*panic);
                self.metrics.handler_panicked();
                log::error!(
                    "{}: function `{}` panicked, called by {}: {words}",
                    self.me,
                    call.function.name,
                    call.peer.info
                );
                self.request_ended(call);
                self.answer_error(&call.peer, &call.way_back, ErrorKind::Panicked, words);
            }
        }
    }

    /// Answers a call that has begun.
    pub(crate) fn answer(self: &Arc<Self>, call: &ServedCall, answer: Result<Bytes, HandlerError>) {
        match answer {
            Ok(payload) => self.answer_payload(call, payload),
            Err(error) => {
                self.answer_error(
                    &call.peer,
                    &call.way_back,
                    ErrorKind::Handler,
                    error.message(),
                );
            }
        }
        self.request_ended(call);
    }

    fn request_ended(&self, call: &ServedCall) {
        if matches!(call.function.body, Body::Deferred(_)) {
            self.metrics.deferred_answered();
        }
        self.metrics.request_handled();
        self.activity.end();
    }

    fn answer_payload(self: &Arc<Self>, call: &ServedCall, payload: Bytes) {
        let peer = &call.peer;
        if payload.len() as u64 > peer.message_bytes_max(self.options.message_bytes_max) {
            let bytes = Some(payload.len() as u64);
            let kind = ErrorKind::AnswerTooLarge { bytes };
            self.answer_error(peer, &call.way_back, kind, "");
            return;
        }
        let mut copies = 1;
        let mut cuts = false;
        if let Some(faults) = &self.options.faults {
            match faults.decide(Leg::Answer, &call.function.name, peer.info.id, &payload) {
                Fault::Deliver => {}
                Fault::Fail | Fault::Lose => copies = 0,
                Fault::Duplicate { copies: more } => copies += more,
                Fault::Cut => cuts = true,
                Fault::Delay(delay) => {
                    let delayed = Delayed::Answer {
                        call: call.clone(),
                        payload,
                    };
                    let _ = self.timer.schedule(Instant::now() + delay, delayed);
                    return;
                }
            }
        }
        for _ in 0..copies {
            self.send_answer(call, payload.clone());
        }
        if cuts {
            self.cut_for_test(peer);
        }
    }

    /// Gives an answer to the connection, or to the caller on this very worker.
    pub(crate) fn send_answer(self: &Arc<Self>, call: &ServedCall, payload: Bytes) {
        let peer = &call.peer;
        if peer.is_self {
            if let Some(own) = self.answered(peer, call.way_back.id) {
                self.complete(peer, own, Ok(payload));
            }
            return;
        }
        let mut state = peer.lock();
        if !state.leads(&call.way_back) {
            log::debug!(
                "{}: nobody is there for an answer to {}",
                self.me,
                peer.info
            );
            return;
        }
        state.outgoing.push_response(call.way_back.id, payload);
        self.flush_soon(peer, state);
    }

    /// Answers that a call failed.
    pub(crate) fn answer_error(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        way_back: &WayBack,
        kind: ErrorKind,
        text: &str,
    ) {
        let id = way_back.id;
        if peer.is_self {
            if let Some(own) = self.answered(peer, id) {
                let error: RpcError = self.error_of(peer, &own, kind, text.into());
                self.complete(peer, own, Err(error));
            }
            return;
        }
        let mut state = peer.lock();
        if !state.leads(way_back) {
            return;
        }
        let text = text.into();
        state.outgoing.push_frame(&Frame::Error { id, kind, text });
        self.flush_soon(peer, state);
    }
}
