//! Sends requests and answers: the one path of every message, where tests inject faults.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::driver::Driver;
use super::peers::PeerEntry;
use crate::error::{CallMessage, CallSite, NotSent, RpcError};
use crate::future::Promise;
use crate::options::Fault;
use crate::peer::{FunctionId, NewCall, ReplyRoute};
use crate::wire::Failure;

/// The destination of an answer.
#[derive(Debug, Clone)]
pub(crate) struct ReplyTo {
    pub(crate) peer: Arc<PeerEntry>,
    pub(crate) route: ReplyRoute,
    /// The function that was called.
    pub(crate) function: FunctionId,
}

/// Sends each message once, at once, unless there is a fault plan. None of the methods blocks.
impl Driver {
    /// Makes a call; its future has the result, whatever it is.
    pub(super) fn request(
        self: &Arc<Self>,
        peer: &Arc<PeerEntry>,
        mut call: NewCall<'_, Promise<Bytes>>,
        payload: Bytes,
    ) {
        let Some(fault) = self.fault(CallMessage::Request, call.function, peer, &payload) else {
            let deadline_ms = call.deadline_ms;
            self.step(peer, |core| core.call(call, payload));
            return self.sockets.expect_at(deadline_ms);
        };
        let Fault::Send {
            copies,
            after,
            cuts,
        } = fault
        else {
            let site = CallSite::of(&peer.info, call.function);
            let cause = NotSent::Injected;
            let error = RpcError::NotSent { call: site, cause };
            return self.complete(&call.promise, Err(error));
        };
        let left = call.timeout.map(|timeout| timeout.saturating_sub(after));
        call.is_repeated = copies > 1;
        let deadline_ms = call.deadline_ms;
        let id = self.step(peer, |core| core.expect(call, payload.len()));
        self.sockets.expect_at(deadline_ms);
        if let Some(id) = id {
            self.send(peer, (copies, after, cuts), move |driver, peer| {
                let (payload, now) = (payload.clone(), Instant::now());
                driver.step(peer, |core| core.send(id, payload, left, now));
            });
        }
    }

    /// Answers a request.
    pub(crate) fn answer(self: &Arc<Self>, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        let function = self.config.functions.name(to.function);
        let fault = answer
            .as_ref()
            .ok()
            .and_then(|payload| self.fault(CallMessage::Answer, function, &to.peer, payload));
        let Some(fault) = fault else {
            return self.answer_now(to, answer);
        };
        if let Fault::Send {
            copies,
            after,
            cuts,
        } = fault
        {
            let (peer, to) = (&to.peer, to.clone());
            self.send(peer, (copies, after, cuts), move |driver, _| {
                driver.answer_now(&to, answer.clone());
            });
        }
    }

    fn fault(
        &self,
        message: CallMessage,
        function: &str,
        peer: &PeerEntry,
        payload: &[u8],
    ) -> Option<Fault> {
        let faults = self.faults.as_ref()?;
        let fault = faults.decide(message, function, peer.info.id, payload)?;
        let (me, to) = (self.me(), &peer.info);
        log::debug!("{me}: fault injected into the {message} of `{function}` to {to}: {fault:?}");
        Some(fault)
    }

    /// Sends a message according to a fault.
    fn send(
        self: &Arc<Self>,
        peer: &Arc<PeerEntry>,
        (copies, after, cuts): (u32, Duration, bool),
        send_one: impl Fn(&Self, &Arc<PeerEntry>) + Send + 'static,
    ) {
        let (driver, peer) = (Arc::clone(self), Arc::clone(peer));
        let send_all = move || {
            (0..copies).for_each(|_| send_one(&driver, &peer));
            if cuts {
                cut(&peer);
            }
        };
        if after.is_zero() {
            return send_all();
        }
        self.run_at(Instant::now() + after, Box::new(send_all));
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
