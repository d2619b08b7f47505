//! Sends requests and answers: the way that every message takes, and into which tests put faults.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::driver::Driver;
use super::peers::PeerEntry;
use crate::error::{CallSite, NotSent, RpcError};
use crate::fault::{Fault, Leg};
use crate::future::Promise;
use crate::peer::{CallId, FunctionId, NewCall, ReplyRoute};
use crate::wire::Failure;

/// Where an answer goes.
#[derive(Debug, Clone)]
pub(crate) struct ReplyTo {
    pub(crate) peer: Arc<PeerEntry>,
    pub(crate) route: ReplyRoute,
    /// The function that was called.
    pub(crate) function: FunctionId,
}

/// Sends each message once, at once, unless a plan says otherwise. None of the methods blocks.
impl Driver {
    /// Makes a call; its future has the result, whatever it is.
    pub(super) fn request(
        self: &Arc<Self>,
        peer: &Arc<PeerEntry>,
        mut call: NewCall<'_, Promise<Bytes>>,
        payload: Bytes,
    ) {
        let timeout = call.timeout;
        let fault = self.fault(Leg::Request, call.function, peer, &payload);
        match fault {
            Fault::Deliver => self.request_now(peer, call, payload),
            Fault::Fail => {
                let site = CallSite::of(&peer.info, call.function);
                let cause = NotSent::Injected;
                let error = RpcError::NotSent { call: site, cause };
                self.complete(peer, &call.promise, call.started_at, Err(error));
            }
            Fault::Lose => {
                self.expect(peer, call, payload.len());
            }
            Fault::Duplicate { copies } => {
                call.is_repeated = true;
                if let Some(id) = self.expect(peer, call, payload.len()) {
                    for _ in 0..=copies {
                        self.send(peer, id, payload.clone(), timeout);
                    }
                }
            }
            Fault::Delay(delay) => {
                if let Some(id) = self.expect(peer, call, payload.len()) {
                    let (driver, peer) = (Arc::clone(self), Arc::clone(peer));
                    let left = timeout.map(|timeout| timeout.saturating_sub(delay));
                    self.later(delay, move || driver.send(&peer, id, payload, left));
                }
            }
            Fault::Cut => {
                self.request_now(peer, call, payload);
                cut(peer);
            }
        }
    }

    /// Answers a request.
    pub(crate) fn answer(self: &Arc<Self>, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        let payload = match answer {
            Ok(payload) => payload,
            failure => return self.answer_now(to, failure),
        };
        let function = self.config.functions.name(to.function);
        match self.fault(Leg::Answer, function, &to.peer, &payload) {
            Fault::Deliver => self.answer_now(to, Ok(payload)),
            Fault::Fail | Fault::Lose => {}
            Fault::Duplicate { copies } => {
                for _ in 0..=copies {
                    self.answer_now(to, Ok(payload.clone()));
                }
            }
            Fault::Delay(delay) => {
                let (driver, to) = (Arc::clone(self), to.clone());
                self.later(delay, move || driver.answer_now(&to, Ok(payload)));
            }
            Fault::Cut => {
                self.answer_now(to, Ok(payload));
                cut(&to.peer);
            }
        }
    }

    fn fault(&self, leg: Leg, function: &str, peer: &PeerEntry, payload: &[u8]) -> Fault {
        let plan = self.faults.as_ref();
        plan.map_or(Fault::Deliver, |plan| {
            plan.decide(leg, function, peer.info.id, payload)
        })
    }

    fn later(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        // After the agent's end there is nothing to send: what comes back is dropped.
        let _ = self.timer.schedule(Instant::now() + delay, Box::new(job));
    }

    fn request_now(
        &self,
        peer: &Arc<PeerEntry>,
        call: NewCall<'_, Promise<Bytes>>,
        payload: Bytes,
    ) {
        let deadline_ms = call.deadline_ms;
        self.step(peer, |core| core.call(call, payload));
        self.sockets.expect_at(deadline_ms);
    }

    /// Begins a call without sending its request. `None` when it has failed.
    fn expect(
        &self,
        peer: &Arc<PeerEntry>,
        call: NewCall<'_, Promise<Bytes>>,
        payload_bytes: usize,
    ) -> Option<CallId> {
        let deadline_ms = call.deadline_ms;
        let id = self.step(peer, |core| core.expect(call, payload_bytes));
        self.sockets.expect_at(deadline_ms);
        id
    }

    /// Sends the request of a call that has no answer yet. `timeout` is what is left to the call.
    fn send(&self, peer: &Arc<PeerEntry>, id: CallId, payload: Bytes, timeout: Option<Duration>) {
        let now = Instant::now();
        self.step(peer, |core| core.send(id, payload, timeout, now));
    }

    fn answer_now(&self, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        if !self.step(&to.peer, |core| core.respond(to.route, answer)) {
            let function = self.config.functions.name(to.function);
            let (me, info) = (self.me(), &to.peer.info);
            log::debug!("{me}: {info}: answer of `{function}` dropped: its connection has ended");
        }
    }
}

/// Cuts the connection to a peer.
fn cut(peer: &PeerEntry) {
    let state = peer.lock();
    let socket = state
        .core
        .connection()
        .map(|(_, socket)| Arc::clone(socket));
    drop(state);
    if let Some(socket) = socket {
        let _ = socket.stream.shutdown(Shutdown::Both);
    }
}
