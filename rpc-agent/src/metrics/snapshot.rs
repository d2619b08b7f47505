//! What a program reads of an agent's counters.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::histogram::LatencySnapshot;
use crate::worker::WorkerInfo;

/// An agent's counters at one moment. Counters start at 0 with the agent and only grow; gauges say how
/// many there are now.
///
/// A retry is a call of its own here: a call that succeeds with its second retry is two failed calls and
/// one that succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Calls made by this worker.
    pub calls_started: u64,
    /// Of these, the ones that have their result.
    pub calls_succeeded: u64,
    /// Of these, the ones that ended with an error, whatever the error is.
    pub calls_failed: u64,
    /// Gauge: calls without an answer yet.
    pub calls_in_flight: u64,
    /// Calls that failed because their deadline passed.
    pub timeouts: u64,
    /// Answers that came after their calls had ended, and were dropped.
    pub late_responses: u64,
    /// From the start of a call to its result, of the calls that succeeded.
    pub latency: LatencySnapshot,

    /// Sends repeated by calls with retries.
    pub retries_sent: u64,
    /// Calls with retries that failed for good.
    pub retries_exhausted: u64,
    /// Gauge: retries that wait for their time.
    pub retry_queue_len: u64,

    /// Requests that came from other workers or this one.
    pub requests_received: u64,
    /// Of these, the ones that were answered, with a result or an error of the function.
    pub requests_handled: u64,
    /// Of these, the ones refused before a function ran: an unknown function, a full queue, a deadline
    /// that had passed, a shutdown.
    pub requests_refused: u64,
    /// Gauge: requests received and not yet answered.
    pub requests_active: u64,
    /// Gauge: of these, the ones that are answered through a [`Reply`](crate::Reply).
    pub requests_deferred: u64,
    /// Functions that panicked.
    pub handler_panics: u64,
    /// Gauge: requests that wait for a thread.
    pub handler_queue_len: u64,
    /// The most that ever waited.
    pub handler_queue_len_peak: u64,

    /// Gauge: threads of the agent.
    pub threads: u64,
    /// Gauge: threads that have nothing to do.
    pub threads_idle: u64,
    /// Gauge: threads whose function waits for a call of its own.
    pub threads_waiting: u64,

    /// Connections opened, by either side.
    pub connections_opened: u64,
    /// Of these, the ones that replaced an earlier connection to the same worker.
    pub reconnects: u64,
    /// Connections that ended otherwise than by a goodbye.
    pub connections_lost: u64,
    /// Bytes given to the system to be sent, with all framing.
    pub bytes_sent: u64,
    /// Bytes received, with all framing.
    pub bytes_received: u64,

    /// The same for each worker there was a connection with, by id.
    pub peers: Vec<PeerSnapshot>,
}

impl MetricsSnapshot {
    /// The numbers under the names of PyTorch's debug information where it has one, and the others in the
    /// same manner. Times are in microseconds.
    ///
    /// ```
    /// use rpc_agent::MetricsSnapshot;
    ///
    /// let metrics = MetricsSnapshot::default();
    /// assert_eq!(metrics.debug_info()["agent.client_active_calls"], 0);
    /// ```
    #[must_use]
    pub fn debug_info(&self) -> BTreeMap<&'static str, u64> {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
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
            ("agent.latency_p50_us", us(self.latency.quantile(0.5))),
            ("agent.latency_p99_us", us(self.latency.quantile(0.99))),
            ("agent.latency_max_us", us(self.latency.max())),
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

impl fmt::Display for MetricsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "calls: {} started, {} succeeded, {} failed ({} timed out), {} in flight, {} late responses",
            self.calls_started,
            self.calls_succeeded,
            self.calls_failed,
            self.timeouts,
            self.calls_in_flight,
            self.late_responses,
        )?;
        writeln!(f, "latency: {}", self.latency)?;
        writeln!(
            f,
            "retries: {} sent, {} exhausted, {} waiting",
            self.retries_sent, self.retries_exhausted, self.retry_queue_len,
        )?;
        writeln!(
            f,
            "requests: {} received, {} handled ({} panicked), {} refused, {} active ({} deferred)",
            self.requests_received,
            self.requests_handled,
            self.handler_panics,
            self.requests_refused,
            self.requests_active,
            self.requests_deferred,
        )?;
        writeln!(
            f,
            "threads: {}, {} idle, {} waiting; queue: {}, peak {}",
            self.threads,
            self.threads_idle,
            self.threads_waiting,
            self.handler_queue_len,
            self.handler_queue_len_peak,
        )?;
        write!(
            f,
            "connections: {} opened ({} again), {} lost; bytes: {} sent, {} received",
            self.connections_opened,
            self.reconnects,
            self.connections_lost,
            self.bytes_sent,
            self.bytes_received,
        )?;
        for peer in &self.peers {
            write!(f, "\n{peer}")?;
        }
        Ok(())
    }
}

/// What was exchanged with one worker, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerSnapshot {
    /// The worker.
    pub worker: WorkerInfo,
    /// Calls made to it.
    pub calls_started: u64,
    /// Of these, the ones that ended with an error, whatever the error is.
    pub calls_failed: u64,
    /// Bytes given to the system to be sent to it, with all framing.
    pub bytes_sent: u64,
    /// Bytes received from it, with all framing.
    pub bytes_received: u64,
    /// How long the last call to it took that succeeded: the way there and back, and its function.
    pub last_round_trip: Option<Duration>,
}

impl fmt::Display for PeerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "worker {} (id {}): {} calls, {} failed; bytes: {} sent, {} received",
            self.worker.name,
            self.worker.id,
            self.calls_started,
            self.calls_failed,
            self.bytes_sent,
            self.bytes_received,
        )?;
        match self.last_round_trip {
            Some(time) => write!(f, "; last round trip {time:.1?}"),
            None => Ok(()),
        }
    }
}
