//! Makes calls: finds the worker, makes the future, sends the request.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::Deadline;

use super::driver::Driver;
use super::peers::PeerEntry;
use crate::clock::milliseconds;
use crate::error::RpcError;
use crate::future::{FutureMessage, Hint, Promise, RpcFuture};
use crate::peer::NewCall;
use crate::worker::Destination;

/// Represents no timeout.
const NONE_MS: u64 = u64::MAX;

impl Driver {
    /// The timeout of calls without an explicit timeout; `None` for no limit.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        match self.timeout_ms.load(Ordering::Relaxed) {
            NONE_MS => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout_ms
            .store(timeout.map_or(NONE_MS, milliseconds), Ordering::Relaxed);
    }

    /// Makes a call.
    pub(crate) fn call(
        self: &Arc<Self>,
        to: Destination<'_>,
        function: &str,
        payload: Bytes,
        timeout: Option<Duration>,
    ) -> FutureMessage {
        match self.find(to) {
            Ok(peer) => {
                let pending = self.promise_driven_by(peer.hint());
                self.call_as(pending, &peer, function, payload, timeout)
            }
            Err(error) => self.failed(error),
        }
    }

    /// Makes a call to a worker that was found. The answer completes the promise, and so the returned future.
    pub(super) fn call_as(
        self: &Arc<Self>,
        (promise, future): (Promise<Bytes>, FutureMessage),
        peer: &Arc<PeerEntry>,
        function: &str,
        payload: Bytes,
        timeout: Option<Duration>,
    ) -> FutureMessage {
        let started_at = Instant::now();
        self.metrics.call_started();
        self.activity.begin_call();
        let call = NewCall {
            promise,
            function,
            started_at,
            timeout,
            deadline_ms: self.clock.deadline_ms(started_at, timeout),
            is_repeated: false,
        };
        self.request(peer, call, payload);
        future
    }

    /// A future that has failed.
    pub(super) fn failed(&self, error: RpcError) -> FutureMessage {
        let (promise, future) = self.promise();
        promise.complete(Err(error));
        future
    }

    /// A pending future whose callbacks run on the agent's threads.
    pub(crate) fn promise<T: Clone + Send + 'static>(&self) -> (Promise<T>, RpcFuture<T>) {
        self.promise_driven_by(Hint::NONE)
    }

    /// The worker that a call is for. Blocks in a dynamic group, for one request to the store, if it is not known.
    pub(crate) fn find(&self, to: Destination<'_>) -> Result<Arc<PeerEntry>, RpcError> {
        let found = match &to {
            // Workers may leave: the list of members has the owner of a name or an id.
            to if self.directory.is_dynamic() => {
                let once = Deadline::at(self.clock.start());
                let worker = self.directory.look_up(to, once).unwrap_or_else(|error| {
                    log::warn!("{}: {error}", self.me());
                    None
                });
                self.check_members();
                worker.map(|worker| self.peer_of(worker))
            }
            Destination::Id(id) => self.peers.get(*id),
            Destination::Name(name) => self.peers.named(name),
            Destination::Info(info) => {
                let peer = self.peers.get(info.id.get());
                peer.filter(|peer| peer.info == **info)
            }
        };
        found.ok_or_else(|| self.no_such_worker(&to))
    }

    fn promise_driven_by<T: Clone + Send + 'static>(
        &self,
        hint: Hint,
    ) -> (Promise<T>, RpcFuture<T>) {
        RpcFuture::with_executor(Some(Arc::clone(&self.executor)), hint)
    }
}
