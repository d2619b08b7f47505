//! An agent's counters at one moment, for programs and operators.

use std::collections::BTreeMap;

/// An agent's counters at one moment. Counters start at 0 when the agent starts, and only grow. Gauges are
/// the present number.
///
/// Each attempt of a call with retries counts as a call: a call that succeeds with its second retry counts as two
/// failed calls and one successful call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Calls made by this worker.
    pub calls_started: u64,
    /// Calls that returned a value. They are included in `calls_started`.
    pub calls_succeeded: u64,
    /// Calls that failed with any error. They are included in `calls_started`.
    pub calls_failed: u64,
    /// Gauge: calls that have not been answered.
    pub calls_in_flight: u64,
    /// Calls that failed because their deadline passed.
    pub timeouts: u64,
    /// Answers that arrived after their call had ended, and were dropped.
    pub late_responses: u64,

    /// Retries sent, first attempts not included.
    pub retries_sent: u64,
    /// Calls with retries that failed after their last attempt.
    pub retries_exhausted: u64,
    /// Gauge: retries that are waiting to be sent.
    pub retry_queue_len: u64,

    /// Requests received, including this worker's requests to itself.
    pub requests_received: u64,
    /// Requests answered with a value or an error of the function. They are included in `requests_received`.
    pub requests_handled: u64,
    /// Requests refused before a function ran: unknown function, full queue, passed deadline, shutdown. They are
    /// included in `requests_received`.
    pub requests_refused: u64,
    /// Gauge: received requests that are not answered yet.
    pub requests_active: u64,
    /// Gauge: requests that a [`Reply`](crate::Reply) will answer. They are included in `requests_active`.
    pub requests_deferred: u64,
    /// Functions that panicked.
    pub handler_panics: u64,
    /// Gauge: requests that are waiting for a thread.
    pub handler_queue_len: u64,
    /// The greatest `handler_queue_len` so far.
    pub handler_queue_len_peak: u64,

    /// Gauge: threads of the agent's pool.
    pub threads: u64,
    /// Gauge: threads without work.
    pub threads_idle: u64,
    /// Gauge: threads whose function waits for a nested call.
    pub threads_waiting: u64,

    /// Connections opened by either side.
    pub connections_opened: u64,
    /// Connections to a worker that had a connection before. They are included in `connections_opened`.
    pub reconnects: u64,
    /// Connections that ended without a Goodbye.
    pub connections_lost: u64,
    /// Bytes written to sockets, framing included.
    pub bytes_sent: u64,
    /// Bytes read from sockets, framing included.
    pub bytes_received: u64,
}

impl MetricsSnapshot {
    /// Returns the numbers, each under PyTorch's name in its debug info if there is one, otherwise under a similar
    /// name.
    ///
    /// ```
    /// use rpc_agent::MetricsSnapshot;
    ///
    /// let metrics = MetricsSnapshot::default();
    /// assert_eq!(metrics.debug_info()["agent.client_active_calls"], 0);
    /// ```
    #[must_use]
    pub fn debug_info(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::from([
            // PyTorch's.
            ("agent.thread_pool_size", self.threads),
            ("agent.num_idle_threads", self.threads_idle),
            ("agent.client_active_calls", self.calls_in_flight),
            ("agent.server_active_calls", self.requests_active),
            ("agent.server_active_async_calls", self.requests_deferred),
            ("agent.num_pending_requests", self.calls_in_flight),
            // Ours.
            ("agent.calls_started", self.calls_started),
            ("agent.calls_succeeded", self.calls_succeeded),
            ("agent.calls_failed", self.calls_failed),
            ("agent.timeouts", self.timeouts),
            ("agent.late_responses", self.late_responses),
            ("agent.retries_sent", self.retries_sent),
            ("agent.retries_exhausted", self.retries_exhausted),
            ("agent.retry_queue_len", self.retry_queue_len),
            ("agent.requests_received", self.requests_received),
            ("agent.requests_handled", self.requests_handled),
            ("agent.requests_refused", self.requests_refused),
            ("agent.handler_panics", self.handler_panics),
            ("agent.handler_queue_len", self.handler_queue_len),
            ("agent.handler_queue_len_peak", self.handler_queue_len_peak),
            ("agent.num_waiting_threads", self.threads_waiting),
            ("agent.connections_opened", self.connections_opened),
            ("agent.reconnects", self.reconnects),
            ("agent.connections_lost", self.connections_lost),
            ("agent.bytes_sent", self.bytes_sent),
            ("agent.bytes_received", self.bytes_received),
        ])
    }
}
