//! Sends requests and answers: the way that every message takes, and into which tests put faults.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::driver::Driver;
use super::entry::PeerEntry;
use crate::error::{CallSite, NotSent, RpcError};
use crate::fault::{Fault, FaultPlan, Leg};
use crate::future::{Job, Promise};
use crate::peer::{CallId, FunctionId, NewCall, ReplyRoute};
use crate::timer::TimerThread;
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
pub(crate) struct Sender {
    pub(super) driver: Arc<Driver>,
    pub(super) faults: Option<FaultPlan>,
    /// Sends what a fault delays.
    pub(super) timer: Arc<TimerThread<Job>>,
}

impl Sender {
    /// Makes a call; its future has the result, whatever it is.
    pub(crate) fn request(
        &self,
        peer: &Arc<PeerEntry>,
        mut call: NewCall<'_, Promise<Bytes>>,
        payload: Bytes,
    ) {
        let driver = &self.driver;
        let timeout = call.timeout;
        let fault = self.fault(Leg::Request, call.function, peer, &payload);
        match fault {
            Fault::Deliver => driver.request(peer, call, payload),
            Fault::Fail => {
                let site = Box::new(CallSite {
                    to: peer.info.clone(),
                    function: call.function.into(),
                });
                let cause = NotSent::Injected;
                let error = RpcError::NotSent { call: site, cause };
                driver.complete(peer, &call.promise, call.started_at, Err(error));
            }
            Fault::Lose => {
                driver.expect(peer, call, payload.len());
            }
            Fault::Duplicate { copies } => {
                call.is_repeated = true;
                if let Some(id) = driver.expect(peer, call, payload.len()) {
                    for _ in 0..=copies {
                        driver.send(peer, id, payload.clone(), timeout);
                    }
                }
            }
            Fault::Delay(delay) => {
                if let Some(id) = driver.expect(peer, call, payload.len()) {
                    let (driver, peer) = (Arc::clone(driver), Arc::clone(peer));
                    let left = timeout.map(|timeout| timeout.saturating_sub(delay));
                    self.later(delay, move || driver.send(&peer, id, payload, left));
                }
            }
            Fault::Cut => {
                driver.request(peer, call, payload);
                cut(peer);
            }
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        let driver = &self.driver;
        let payload = match answer {
            Ok(payload) => payload,
            failure => return driver.answer(to, failure),
        };
        let function = driver.config.functions.name(to.function);
        match self.fault(Leg::Answer, function, &to.peer, &payload) {
            Fault::Deliver => driver.answer(to, Ok(payload)),
            Fault::Fail | Fault::Lose => {}
            Fault::Duplicate { copies } => {
                for _ in 0..=copies {
                    driver.answer(to, Ok(payload.clone()));
                }
            }
            Fault::Delay(delay) => {
                let (driver, to) = (Arc::clone(driver), to.clone());
                self.later(delay, move || driver.answer(&to, Ok(payload)));
            }
            Fault::Cut => {
                driver.answer(to, Ok(payload));
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
}

impl Driver {
    fn request(&self, peer: &Arc<PeerEntry>, call: NewCall<'_, Promise<Bytes>>, payload: Bytes) {
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

    fn answer(&self, to: &ReplyTo, answer: Result<Bytes, Failure>) {
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
