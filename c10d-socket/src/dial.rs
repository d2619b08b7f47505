//! Which address to try next, and when to give up.
//!
//! Knows no socket and no clock: the outcomes and the present are arguments.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::ConnectErrorParts;
use crate::{Backoff, ConnectError, Deadline, DialFailure, DialStage, HostPort};

/// The course of one attempt to connect, round after round until the deadline. A round looks the
/// name up anew and tries each address once; between rounds there is a pause.
///
/// Calling order: [`step`](Self::step) says what to do; do it and report the outcome with the method
/// named there; repeat.
#[derive(Debug)]
pub(crate) struct DialPlan {
    target: HostPort,
    started: Instant,
    deadline: Deadline,
    backoff: Backoff,
    phase: Phase,
    rounds: u64,
    rounds_max: u64,
    /// The pause before this round was cut short by the deadline, so that no other follows.
    is_last_round: bool,
    ledger: Ledger,
    notice: Notice,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Look the target up until then; report `looked_up` or `lookup_failed`.
    LookUp { by: Deadline },
    /// Connect to this address until then; report `connected` or `connect_failed`.
    Connect { address: SocketAddr, by: Deadline },
    /// Wait until then and ask again.
    Pause { until: Instant },
    /// It has failed.
    GiveUp(ConnectError),
}

#[derive(Debug)]
enum Phase {
    /// A lookup is due.
    LookUp,
    /// The first of the untried addresses is due. `retry`: something failed in this round that may
    /// pass. Invariant: there is an untried address.
    Connect {
        untried: VecDeque<SocketAddr>,
        retry: bool,
    },
    /// Connected; the rest is for when the handshake fails.
    Connected {
        address: SocketAddr,
        untried: VecDeque<SocketAddr>,
    },
    Pause {
        until: Instant,
    },
    Failed {
        timed_out: bool,
    },
}

/// The longest time for one lookup or one address, even if the deadline leaves more. A new try finds
/// a host that has come up, or moved to another address, sooner than the kernel does, whose own
/// retries lie up to a minute apart.
const TRY_TIME_MAX: Duration = Duration::from_secs(10);

/// A pause that would reach beyond the deadline is cut so that this much is left for one last round:
/// plenty for a connection within a data centre. With a short limit it is a sixteenth of that.
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

    /// Gives up after so many rounds, also when there is time left.
    pub(crate) fn with_rounds_max(mut self, rounds: u64) -> Self {
        self.rounds_max = rounds;
        self
    }

    /// What to do now. In the first round a deadline that has passed does not keep an address from
    /// being tried, only from being waited for: so each gets its look even with no time at all.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        match self.phase {
            Phase::Pause { until } if now < until => return Step::Pause { until },
            // Asked for a further connection after a good one: that is a new round.
            Phase::Pause { .. } | Phase::Connected { .. } => {
                self.rounds += 1;
                self.phase = Phase::LookUp;
            }
            Phase::LookUp | Phase::Connect { .. } | Phase::Failed { .. } => {}
        }
        let is_failed = matches!(self.phase, Phase::Failed { .. });
        if !is_failed && self.rounds > 1 && self.deadline.has_passed(now) {
            self.phase = Phase::Failed { timed_out: true };
        }
        match &self.phase {
            Phase::LookUp => Step::LookUp {
                by: self.share(now, 1),
            },
            Phase::Connect { untried, .. } => Step::Connect {
                address: untried[0],
                by: self.share(now, untried.len()),
            },
            Phase::Failed { timed_out } => Step::GiveUp(self.summary(now, *timed_out)),
            Phase::Pause { .. } | Phase::Connected { .. } => unreachable!("left above"),
        }
    }

    /// The lookup gave these addresses, at least one, in the order to try them.
    pub(crate) fn looked_up(&mut self, addresses: Vec<SocketAddr>) {
        debug_assert!(!addresses.is_empty(), "no address is a failed lookup");
        self.phase = Phase::Connect {
            untried: addresses.into(),
            retry: false,
        };
    }

    /// The lookup failed. That may pass: names of a cluster are often registered while it starts.
    pub(crate) fn lookup_failed(&mut self, now: Instant, error: io::Error) {
        self.ledger.record(DialStage::Lookup, error);
        self.end_round(now, true);
    }

    /// The address of the last step accepted the connection.
    pub(crate) fn connected(&mut self) {
        if let Phase::Connect { untried, .. } = &mut self.phase
            && let Some(address) = untried.pop_front()
        {
            let untried = std::mem::take(untried);
            self.phase = Phase::Connected { address, untried };
        }
    }

    /// The address of the last step did not accept the connection.
    pub(crate) fn connect_failed(&mut self, now: Instant, error: io::Error) {
        if let Phase::Connect { untried, retry } = &mut self.phase
            && let Some(address) = untried.pop_front()
        {
            *retry |= may_pass(&error);
            let retry = *retry;
            let is_round_over = untried.is_empty();
            self.ledger.record(DialStage::Connect(address), error);
            if is_round_over {
                self.end_round(now, retry);
            }
        }
    }

    /// The connection was of no use: the next address is tried, or the next round after a pause.
    /// Ignored when there is no connection.
    pub(crate) fn handshake_failed(&mut self, now: Instant, error: io::Error) {
        let Phase::Connected { address, untried } = &mut self.phase else {
            return;
        };
        self.ledger.record(DialStage::Handshake(*address), error);
        let untried = std::mem::take(untried);
        if untried.is_empty() {
            self.end_round(now, true);
        } else if self.deadline.has_passed(now) {
            self.phase = Phase::Failed { timed_out: true };
        } else {
            self.phase = Phase::Connect {
                untried,
                retry: true,
            };
        }
    }

    /// Whether it is time to tell an operator that this goes on; `true` once for each occasion.
    pub(crate) fn take_notice(&mut self, now: Instant) -> bool {
        self.notice.take(now)
    }

    /// The target, the time taken and left, and the last failure, for the log.
    pub(crate) fn progress(&self, now: Instant) -> String {
        let elapsed = now.saturating_duration_since(self.started).as_secs_f64();
        let mut text = format!(
            "{} after {elapsed:.1}s, {} rounds",
            self.target, self.rounds
        );
        if let Some(last) = self.ledger.failures.last() {
            text += &format!(", last: {last}");
        }
        if let Some(left) = self.deadline.remaining(now) {
            text += &format!("; trying for {:.1}s more", left.as_secs_f64());
        }
        text
    }

    /// Until when one of `count` equal shares of the remaining time lasts.
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
            Phase::Failed { timed_out: false }
        } else if let Some(until) = self.pause_end(now) {
            Phase::Pause { until }
        } else {
            Phase::Failed { timed_out: true }
        };
    }

    /// When the pause that starts now ends; `None` when no time is left for another round.
    fn pause_end(&mut self, now: Instant) -> Option<Instant> {
        let delay = self.backoff.next_delay();
        let Some(at) = self.deadline.instant() else {
            // An end beyond what the clock can express is no end to wait for.
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

    fn summary(&self, now: Instant, timed_out: bool) -> ConnectError {
        ConnectError::new(ConnectErrorParts {
            target: self.target.clone(),
            timed_out,
            elapsed: now.saturating_duration_since(self.started),
            limit: self.deadline.remaining(self.started),
            rounds: self.rounds,
            failures: self.ledger.failures.clone(),
            forgotten: self.ledger.forgotten,
        })
    }
}

/// Whether a connection that failed like this may succeed a moment later: the server does not listen
/// yet, or its machine does not answer yet.
///
/// PyTorch's list (torch/csrc/distributed/c10d/socket.cpp), and "no route to host": what a machine of the same network gives
/// while it boots. The others (no permission, no network, no such local address) do not pass by
/// waiting for the server.
fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
    )
}

/// What failed so far, each thing once, the latest last.
#[derive(Debug, Default)]
struct Ledger {
    failures: Vec<DialFailure>,
    forgotten: u64,
}

/// A name whose addresses change all the time must not fill the memory of a client that waits for
/// days.
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

/// When to tell an operator: first after a time in which a server on this machine has answered, then at
/// doubling intervals, at least once a minute.
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
