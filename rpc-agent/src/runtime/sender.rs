//! Sends requests and answers: the way that every message takes, and that a test can put faults into.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::driver::Driver;
use super::entry::PeerEntry;
use crate::error::{CallSite, NotSent, RpcError};
use crate::future::Promise;
use crate::peer::{CallId, Failure, FunctionId, NewCall, ReplyRoute};

/// Where an answer goes.
#[derive(Debug, Clone)]
pub(crate) struct ReplyTo {
    pub(crate) peer: Arc<PeerEntry>,
    pub(crate) route: ReplyRoute,
    /// The function that was called.
    pub(crate) function: FunctionId,
}

/// Sends messages. None of the methods blocks.
pub(crate) trait Sender: Send + Sync {
    /// Makes a call; its future has the result, whatever it is.
    fn request(&self, peer: &Arc<PeerEntry>, call: NewCall<'_, Promise<Bytes>>, payload: Bytes);

    /// Answers a request.
    fn answer(&self, to: &ReplyTo, answer: Result<Bytes, Failure>);
}

/// Sends every message once, at once.
#[derive(Clone)]
pub(crate) struct DirectSender {
    driver: Arc<Driver>,
}

impl DirectSender {
    pub(super) fn new(driver: &Arc<Driver>) -> Self {
        Self {
            driver: Arc::clone(driver),
        }
    }

    /// Begins a call without sending its request. `None` when it has failed.
    pub(super) fn expect(
        &self,
        peer: &Arc<PeerEntry>,
        call: NewCall<'_, Promise<Bytes>>,
        payload_bytes: usize,
    ) -> Option<CallId> {
        let deadline_ms = call.deadline_ms;
        let id = self
            .driver
            .step(peer, |core| core.expect(call, payload_bytes));
        self.expect_deadline(deadline_ms);
        id
    }

    /// Sends the request of a call that has no answer yet. `timeout` is what is left to the call.
    pub(super) fn send(
        &self,
        peer: &Arc<PeerEntry>,
        id: CallId,
        payload: Bytes,
        timeout: Option<Duration>,
    ) {
        let now = std::time::Instant::now();
        self.driver
            .step(peer, |core| core.send(id, payload, timeout, now));
    }

    /// Fails a call before it begins.
    pub(super) fn fail(
        &self,
        peer: &Arc<PeerEntry>,
        call: NewCall<'_, Promise<Bytes>>,
        cause: NotSent,
    ) {
        let site = Box::new(CallSite {
            to: peer.info.clone(),
            function: call.function.into(),
        });
        let error = RpcError::NotSent { call: site, cause };
        self.driver
            .complete(peer, &call.promise, call.started_at, Err(error));
    }

    /// Cuts the connection to a peer.
    pub(super) fn cut(&self, peer: &PeerEntry) {
        let socket = {
            let state = peer.lock();
            state
                .core
                .connection()
                .map(|(_, socket)| Arc::clone(socket))
        };
        if let Some(socket) = socket {
            let _ = socket.stream.shutdown(Shutdown::Both);
        }
    }

    /// The function that was called.
    pub(super) fn function(&self, to: &ReplyTo) -> &str {
        self.driver.config.functions.name(to.function)
    }

    fn expect_deadline(&self, deadline_ms: Option<u64>) {
        if let Some(deadline_ms) = deadline_ms {
            self.driver.sockets.expect_at(deadline_ms);
        }
    }
}

impl Sender for DirectSender {
    fn request(&self, peer: &Arc<PeerEntry>, call: NewCall<'_, Promise<Bytes>>, payload: Bytes) {
        let driver = &self.driver;
        let deadline_ms = call.deadline_ms;
        driver.step(peer, |core| core.call(call, payload));
        self.expect_deadline(deadline_ms);
    }

    fn answer(&self, to: &ReplyTo, answer: Result<Bytes, Failure>) {
        let driver = &self.driver;
        let is_sent = driver.step(&to.peer, |core| core.respond(to.route, answer));
        if !is_sent {
            let (me, info, function) = (driver.me(), &to.peer.info, self.function(to));
            log::debug!("{me}: {info}: answer of `{function}` dropped: its connection has ended");
        }
    }
}
