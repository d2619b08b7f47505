//! The counters of an agent.
//!
//! Recording is a few relaxed additions and never blocks. A snapshot is taken while calls are running, so
//! its numbers are not of exactly the same moment.

mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering};

pub use snapshot::MetricsSnapshot;

use crate::error::RpcError;
use crate::pool::PoolGauges;

/// The counters of an agent. The counters of callers, handlers and the network have separate cache lines (no false
/// sharing): 128 bytes, because processors fetch lines of 64 bytes in pairs.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) calls: Calls,
    pub(crate) requests: Requests,
    pub(crate) network: Network,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Calls {
    started: Counter,
    succeeded: Counter,
    failed: Counter,
    timeouts: Counter,
    pub(crate) late_responses: Counter,
    pub(crate) retries_sent: Counter,
    pub(crate) retries_exhausted: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Requests {
    /// Received requests. Each must be followed by one `handled` or `refused`.
    pub(crate) received: Counter,
    pub(crate) handled: Counter,
    pub(crate) refused: Counter,
    /// Deferred requests. Each must be followed by one `deferred_answered`, besides `handled`.
    pub(crate) deferred: Counter,
    pub(crate) deferred_answered: Counter,
    pub(crate) panics: Counter,
    queue_len_peak: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Network {
    connections_opened: Counter,
    reconnects: Counter,
    pub(crate) connections_lost: Counter,
    bytes_sent: Counter,
    bytes_received: Counter,
}

impl Metrics {
    /// Must be followed by one [`Metrics::call_succeeded`] or [`Metrics::call_failed`].
    pub(crate) fn call_started(&self) {
        self.calls.started.add(1);
    }

    pub(crate) fn call_succeeded(&self) {
        self.calls.succeeded.add(1);
    }

    /// Counts a failed call, and timeouts separately.
    pub(crate) fn call_failed(&self, error: &RpcError) {
        self.calls.failed.add(1);
        if matches!(error, RpcError::Timeout { .. }) {
            self.calls.timeouts.add(1);
        }
    }

    /// Updates the peak length of the handler queue. Only reads unless it is a new peak.
    pub(crate) fn handler_queue_seen(&self, len: usize) {
        raise(&self.requests.queue_len_peak, len as u64);
    }

    /// `again`: an earlier connection to this worker existed.
    pub(crate) fn connection_opened(&self, again: bool) {
        self.network.connections_opened.add(1);
        if again {
            self.network.reconnects.add(1);
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.network.bytes_sent.add(bytes as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.network.bytes_received.add(bytes as u64);
    }

    /// `retries_waiting`: retries that are waiting to be sent.
    pub(crate) fn snapshot(&self, pool: PoolGauges, retries_waiting: usize) -> MetricsSnapshot {
        let (calls, requests, network) = (&self.calls, &self.requests, &self.network);
        // Ends are read before starts, and subtractions saturate: a call that starts and ends in the meantime makes a
        // gauge too great by one, and never a huge number.
        let calls_succeeded = calls.succeeded.read();
        let calls_failed = calls.failed.read();
        let calls_started = calls.started.read();
        let requests_handled = requests.handled.read();
        let requests_refused = requests.refused.read();
        let requests_received = requests.received.read();
        let deferred_answered = requests.deferred_answered.read();
        let deferred = requests.deferred.read();
        let handler_queue_len = pool.queued as u64;
        MetricsSnapshot {
            calls_started,
            calls_succeeded,
            calls_failed,
            calls_in_flight: calls_started.saturating_sub(calls_succeeded + calls_failed),
            timeouts: calls.timeouts.read(),
            late_responses: calls.late_responses.read(),
            retries_sent: calls.retries_sent.read(),
            retries_exhausted: calls.retries_exhausted.read(),
            retry_queue_len: retries_waiting as u64,
            requests_received,
            requests_handled,
            requests_refused,
            requests_active: requests_received.saturating_sub(requests_handled + requests_refused),
            requests_deferred: deferred.saturating_sub(deferred_answered),
            handler_panics: requests.panics.read(),
            handler_queue_len,
            handler_queue_len_peak: requests
                .queue_len_peak
                .load(Ordering::Relaxed)
                .max(handler_queue_len),
            threads: pool.threads as u64,
            threads_idle: pool.idle as u64,
            threads_waiting: pool.waiting as u64,
            connections_opened: network.connections_opened.read(),
            reconnects: network.reconnects.read(),
            connections_lost: network.connections_lost.read(),
            bytes_sent: network.bytes_sent.read(),
            bytes_received: network.bytes_received.read(),
        }
    }
}

/// A number that only grows. Relaxed, because no other memory depends on it.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Raises a maximum. Only reads if `value` is not greater, which is the usual case.
fn raise(max: &AtomicU64, value: u64) {
    if value > max.load(Ordering::Relaxed) {
        max.fetch_max(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::error::{CallSite, NotSent, Outcome};
    use crate::worker::WorkerInfo;

    fn call(worker: &WorkerInfo) -> Box<CallSite> {
        Box::new(CallSite {
            to: worker.clone(),
            function: "f".into(),
        })
    }

    #[test]
    fn each_recording_changes_only_its_own_numbers() {
        let worker = WorkerInfo::new("ps", 1).unwrap();
        let metrics = Metrics::default();
        for _ in 0..5 {
            metrics.call_started();
        }
        for _ in 0..2 {
            metrics.call_succeeded();
        }
        let timeout = RpcError::Timeout {
            call: call(&worker),
            after: Duration::from_secs(1),
            outcome: Outcome::Unknown,
            cause: None,
        };
        metrics.call_failed(&timeout);
        let not_sent = RpcError::NotSent {
            call: call(&worker),
            cause: NotSent::Injected,
        };
        metrics.call_failed(&not_sent);
        metrics.calls.late_responses.add(1);
        metrics.calls.retries_sent.add(1);
        metrics.calls.retries_exhausted.add(1);
        metrics.requests.received.add(9);
        for _ in 0..3 {
            metrics.requests.handled.add(1);
        }
        metrics.requests.refused.add(1);
        metrics.requests.deferred.add(1);
        metrics.requests.deferred.add(1);
        metrics.requests.deferred_answered.add(1);
        metrics.requests.panics.add(1);
        metrics.handler_queue_seen(7);
        metrics.handler_queue_seen(6);
        metrics.connection_opened(false);
        metrics.connection_opened(true);
        metrics.network.connections_lost.add(1);
        metrics.sent(1000);
        metrics.received(2000);
        let pool = PoolGauges {
            queued: 2,
            threads: 16,
            idle: 10,
            waiting: 3,
        };
        let snapshot = metrics.snapshot(pool, 4);
        let expected = MetricsSnapshot {
            calls_started: 5,
            calls_succeeded: 2,
            calls_failed: 2,
            calls_in_flight: 1,
            timeouts: 1,
            late_responses: 1,
            retries_sent: 1,
            retries_exhausted: 1,
            retry_queue_len: 4,
            requests_received: 9,
            requests_handled: 3,
            requests_refused: 1,
            requests_active: 5,
            requests_deferred: 1,
            handler_panics: 1,
            handler_queue_len: 2,
            handler_queue_len_peak: 7,
            threads: 16,
            threads_idle: 10,
            threads_waiting: 3,
            connections_opened: 2,
            reconnects: 1,
            connections_lost: 1,
            bytes_sent: 1000,
            bytes_received: 2000,
        };
        assert_eq!(snapshot, expected);
    }

    #[test]
    fn debug_info_has_pytorchs_names() {
        let snapshot = MetricsSnapshot {
            threads: 1,
            threads_idle: 2,
            calls_in_flight: 3,
            requests_active: 4,
            requests_deferred: 5,
            retry_queue_len: 6,
            ..MetricsSnapshot::default()
        };
        let info = snapshot.debug_info();
        for (key, value) in [
            ("agent.thread_pool_size", 1),
            ("agent.num_idle_threads", 2),
            ("agent.client_active_calls", 3),
            ("agent.num_pending_requests", 3),
            ("agent.server_active_calls", 4),
            ("agent.server_active_async_calls", 5),
            ("agent.retry_queue_len", 6),
        ] {
            assert_eq!(info[key], value, "{key}");
        }
        assert!(info.keys().all(|key| key.starts_with("agent.")));
    }

    #[test]
    fn no_recording_of_concurrent_threads_is_lost() {
        let metrics = Metrics::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                let metrics = &metrics;
                scope.spawn(move || {
                    for call in 0..10_000 {
                        metrics.call_started();
                        metrics.call_succeeded();
                        metrics.handler_queue_seen(call as usize);
                    }
                });
            }
            for _ in 0..100 {
                let snapshot = metrics.snapshot(PoolGauges::default(), 0);
                assert!(snapshot.calls_in_flight <= 40_000, "{snapshot:?}");
            }
        });
        let snapshot = metrics.snapshot(PoolGauges::default(), 0);
        assert_eq!(snapshot.calls_succeeded, 40_000);
        assert_eq!(snapshot.calls_in_flight, 0);
        assert_eq!(snapshot.handler_queue_len_peak, 9_999);
    }
}
