//! Decides which address to try next, and when to stop.
//!
//! Pure: outcomes and the current time are arguments.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{ConnectErrorParts, GaveUp};
use crate::{Backoff, ConnectError, Deadline, DialFailure, DialStage, HostPort};

/// The state machine of one [`connect`](crate::connect()) call. A round looks up the name and tries
/// each address once; a backoff delay separates rounds.
///
/// Call [`step`](Self::step), carry out the returned step, report its outcome with the method that the
/// step names, and repeat.
#[derive(Debug)]
pub(crate) struct DialPlan {
    target: HostPort,
    started: Instant,
    deadline: Deadline,
    backoff: Backoff,
    phase: Phase,
    rounds: u64,
    rounds_max: u64,
    /// The delay before this round was shortened by the deadline, so no other round follows.
    is_last_round: bool,
    ledger: Ledger,
    notice: Notice,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Look up the target until `by`; report `looked_up` or `lookup_failed`.
    LookUp { by: Deadline },
    /// Connect to the address until `by`; report `connected` or `connect_failed`.
    Connect { address: SocketAddr, by: Deadline },
    /// Sleep until then, then call `step` again.
    Pause { until: Instant },
    /// Connecting has failed.
    GiveUp(ConnectError),
}

#[derive(Debug)]
enum Phase {
    /// The next step is a lookup.
    LookUp,
    /// The next step is the first untried address. `retry`: this round had a transient failure.
    /// Invariant: `untried` is not empty.
    Connect {
        untried: VecDeque<SocketAddr>,
        retry: bool,
    },
    /// Connected. `untried` is for the case that the handshake fails.
    Connected {
        address: SocketAddr,
        untried: VecDeque<SocketAddr>,
    },
    Pause {
        until: Instant,
    },
    Failed {
        reason: GaveUp,
    },
}

/// The longest time for one lookup or one address. A new attempt finds a host that has started, or
/// moved to another address, sooner than the kernel's retransmissions, which are up to a minute apart.
const TRY_TIME_MAX: Duration = Duration::from_secs(10);

/// A delay that would end after the deadline is shortened to leave this time for a final round: ample
/// within a data centre. For a short time limit it is a sixteenth of the limit.
const LAST_ROUND_TIME: Duration = Duration::from_millis(100);

impl DialPlan {
    pub(crate) fn new(
        target: HostPort,
        backoff: Backoff,
        now: Instant,
        deadline: Deadline,
    ) -> Self {
        Self {
            target,
            started: now,
            deadline,
            backoff,
            phase: Phase::LookUp,
            rounds: 1,
            rounds_max: u64::MAX,
            is_last_round: false,
            ledger: Ledger::default(),
            notice: Notice::new(now),
        }
    }

    /// Gives up after `rounds` rounds, even before the deadline.
    pub(crate) fn with_rounds_max(mut self, rounds: u64) -> Self {
        self.rounds_max = rounds;
        self
    }

    /// The next step. With a deadline that has passed, the first round still tries each address, but
    /// waits for none.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        match self.phase {
            Phase::Pause { until } if now < until => return Step::Pause { until },
            // Another connection after a successful one is a new round.
            Phase::Pause { .. } | Phase::Connected { .. } => {
                self.rounds += 1;
                self.phase = Phase::LookUp;
            }
            Phase::LookUp | Phase::Connect { .. } | Phase::Failed { .. } => {}
        }
        let is_failed = matches!(self.phase, Phase::Failed { .. });
        if !is_failed && self.rounds > 1 && self.deadline.has_passed(now) {
            self.phase = Phase::Failed {
                reason: GaveUp::TimedOut,
            };
        }
        match &self.phase {
            Phase::LookUp => Step::LookUp {
                by: self.share(now, 1),
            },
            Phase::Connect { untried, .. } => Step::Connect {
                address: untried[0],
                by: self.share(now, untried.len()),
            },
            Phase::Failed { reason } => Step::GiveUp(self.summary(now, *reason)),
            Phase::Pause { .. } | Phase::Connected { .. } => unreachable!("handled above"),
        }
    }

    /// The lookup returned these addresses, at least one, in the order to try them.
    pub(crate) fn looked_up(&mut self, addresses: Vec<SocketAddr>) {
        debug_assert!(
            !addresses.is_empty(),
            "a lookup without addresses has failed"
        );
        self.phase = Phase::Connect {
            untried: addresses.into(),
            retry: false,
        };
    }

    /// The lookup failed, which is retried: a cluster often registers its names while it starts.
    pub(crate) fn lookup_failed(&mut self, now: Instant, error: io::Error) {
        self.ledger.record(DialStage::Lookup, error);
        self.end_round(now, true);
    }

    /// Connecting to the address of the last step succeeded.
    pub(crate) fn connected(&mut self) {
        if let Phase::Connect { untried, .. } = &mut self.phase
            && let Some(address) = untried.pop_front()
        {
            let untried = std::mem::take(untried);
            self.phase = Phase::Connected { address, untried };
        }
    }

    /// Connecting to the address of the last step failed.
    pub(crate) fn connect_failed(&mut self, now: Instant, error: io::Error) {
        if let Phase::Connect { untried, retry } = &mut self.phase
            && let Some(address) = untried.pop_front()
        {
            *retry |= is_transient(&error);
            let retry = *retry;
            let is_round_over = untried.is_empty();
            self.ledger.record(DialStage::Connect(address), error);
            if is_round_over {
                self.end_round(now, retry);
            }
        }
    }

    /// The handshake on the last connection failed: the next address is due, or the next round after a
    /// delay. Ignored without a connection.
    pub(crate) fn handshake_failed(&mut self, now: Instant, error: io::Error) {
        let Phase::Connected { address, untried } = &mut self.phase else {
            return;
        };
        self.ledger.record(DialStage::Handshake(*address), error);
        let untried = std::mem::take(untried);
        if untried.is_empty() {
            self.end_round(now, true);
        } else if self.deadline.has_passed(now) {
            self.phase = Phase::Failed {
                reason: GaveUp::TimedOut,
            };
        } else {
            self.phase = Phase::Connect {
                untried,
                retry: true,
            };
        }
    }

    /// The caller wants no further attempts.
    pub(crate) fn cancelled(&mut self) {
        self.phase = Phase::Failed {
            reason: GaveUp::Cancelled,
        };
    }

    /// Whether a progress message for the operator is due; `true` once for each.
    pub(crate) fn take_notice(&mut self, now: Instant) -> bool {
        self.notice.take(now)
    }

    /// The target, the elapsed and remaining time, and the last failure, for the log.
    pub(crate) fn progress(&self, now: Instant) -> String {
        let elapsed = now.saturating_duration_since(self.started).as_secs_f64();
        let mut text = format!(
            "{} after {elapsed:.1}s, {} rounds",
            self.target, self.rounds
        );
        if let Some(left) = self.deadline.remaining(now) {
            text += &format!("; trying for {:.1}s more", left.as_secs_f64());
        }
        // At the end, which may be cut.
        if let Some(last) = self.ledger.failures.last() {
            text += &format!("; last: {}", last.error());
        }
        text
    }

    /// The end of the first of `count` equal shares of the remaining time.
    fn share(&self, now: Instant, count: usize) -> Deadline {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let time = match self.deadline.remaining(now) {
            Some(remaining) => (remaining / count).min(TRY_TIME_MAX),
            None => TRY_TIME_MAX,
        };
        Deadline::after(now, time)
    }

    fn end_round(&mut self, now: Instant, retry: bool) {
        self.phase = if !retry || self.rounds >= self.rounds_max {
            Phase::Failed {
                reason: GaveUp::NoUsableAddress,
            }
        } else if let Some(until) = self.pause_end(now) {
            Phase::Pause { until }
        } else {
            Phase::Failed {
                reason: GaveUp::TimedOut,
            }
        };
    }

    /// The end of a delay that starts at `now`; `None` when no time is left for another round.
    fn pause_end(&mut self, now: Instant) -> Option<Instant> {
        let delay = self.backoff.next_delay();
        let Some(at) = self.deadline.instant() else {
            // The fallback is for a delay beyond what the clock can express.
            return Some(now.checked_add(delay).unwrap_or(now + TRY_TIME_MAX));
        };
        let limit = at.saturating_duration_since(self.started);
        let last_start = at.checked_sub(LAST_ROUND_TIME.min(limit / 16))?;
        if self.is_last_round || now >= last_start {
            return None;
        }
        match now.checked_add(delay) {
            Some(until) if until < last_start => Some(until),
            _ => {
                self.is_last_round = true;
                Some(last_start)
            }
        }
    }

    fn summary(&self, now: Instant, reason: GaveUp) -> ConnectError {
        ConnectError::new(ConnectErrorParts {
            target: self.target.clone(),
            reason,
            elapsed: now.saturating_duration_since(self.started),
            limit: self.deadline.remaining(self.started),
            rounds: self.rounds,
            failures: self.ledger.failures.clone(),
            forgotten: self.ledger.forgotten,
        })
    }
}

/// Whether the error is transient: the server does not listen yet, or its machine does not answer yet.
///
/// The list of PyTorch (`torch/csrc/distributed/c10d/socket.cpp`), and "no route to host", which a machine on the
/// same network causes while it boots. Other errors (no permission, no network, no such local address) do not
/// disappear by waiting for the server.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
    )
}

/// The failures so far, one entry for each stage, the latest last.
#[derive(Debug, Default)]
struct Ledger {
    failures: Vec<DialFailure>,
    forgotten: u64,
}

/// Bounds the memory of a client that waits for days for a name whose addresses keep changing.
const FAILURES_MAX: usize = 16;

impl Ledger {
    fn record(&mut self, stage: DialStage, error: io::Error) {
        let known = self.failures.iter().position(|each| each.stage == stage);
        let count = known.map_or(0, |index| self.failures.remove(index).count);
        if self.failures.len() == FAILURES_MAX {
            self.forgotten += self.failures.remove(0).count;
        }
        self.failures.push(DialFailure {
            stage,
            count: count + 1,
            error: Arc::new(error),
        });
    }
}

/// When the next progress message is due: after 1 s (a local server has answered by then), then at
/// doubling intervals up to 60 s.
#[derive(Debug)]
struct Notice {
    at: Instant,
    interval: Duration,
}

impl Notice {
    fn new(now: Instant) -> Self {
        let interval = Duration::from_secs(1);
        Self {
            at: now + interval,
            interval,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        if now < self.at {
            return false;
        }
        self.interval = (self.interval * 2).min(Duration::from_secs(60));
        self.at = now + self.interval;
        true
    }
}

#[cfg(test)]
mod tests;
