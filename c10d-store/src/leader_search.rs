//! Which server of a moving store to try, how long, and when to ask the directory again. Pure: the current time and
//! the answers of the directory and the servers are arguments.

use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Deadline};

use crate::address::Leader;

/// How often the directory is asked while an attempt lasts.
pub(crate) const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// The longest attempt, and the longest lookup.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(10);

/// The time of the second attempt at the same server. It doubles with each further attempt, because thousands of clients may
/// come back at once.
const FIRST_ATTEMPT_TIME: Duration = Duration::from_secs(1);

/// The longest pause: another server takes over within seconds.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The search of one client for the leading server. It lasts as long as the client, so that it has the server that
/// was tried last after a lost connection.
///
/// Call `step`, carry out what it returns, report the outcome with the method that the step names, and repeat.
#[derive(Debug)]
pub struct LeaderSearch {
    phase: Phase,
    /// The server that was tried last.
    tried: Option<Leader>,
    /// The attempts at it without success.
    attempts: u32,
    backoff: Backoff,
    begins_at_tried: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the directory until this deadline; report `looked_up`.
    LookUp { by: Deadline },
    /// Try this server until this deadline, and ask the directory every [`LOOKUP_INTERVAL`] in the meantime: when it names
    /// [another server](is_other), end the attempt. Report `reached` or `failed`.
    Try { leader: Leader, by: Deadline },
    /// Wait until this time.
    Pause { until: Instant },
    /// There is no time left for another attempt.
    GiveUp,
}

#[derive(Debug)]
enum Phase {
    Start,
    Try(Leader),
    Pause(Instant),
}

/// Whether the directory, which names `found`, has made an attempt at `tried` pointless.
pub(crate) fn is_other(tried: &Leader, found: &Leader) -> bool {
    tried != found
}

impl LeaderSearch {
    /// Creates a search that has tried no server yet. `seed` is for the lengths of the pauses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            phase: Phase::Start,
            tried: None,
            attempts: 0,
            backoff: Backoff::new(BackoffOptions::default().with_max(PAUSE_MAX), seed),
            begins_at_tried: false,
        }
    }

    /// Sets that each search begins at the server of the previous search, and looks up only when that fails. For a
    /// client without a permanent connection.
    #[must_use]
    pub const fn beginning_at_tried(mut self) -> Self {
        self.begins_at_tried = true;
        self
    }

    /// Another search begins, with a lookup, even if its deadline has passed.
    pub(crate) fn start(&mut self) {
        if self.begins_at_tried && matches!(self.phase, Phase::Try(_)) {
            // It may need its time to answer.
            self.attempts = 0;
        } else {
            self.phase = Phase::Start;
        }
    }

    pub(crate) fn step(&mut self, now: Instant, deadline: Deadline) -> Step {
        let within = |time| Deadline::after(now, time).min(deadline);
        match &self.phase {
            Phase::Pause(_) if deadline.has_passed(now) => Step::GiveUp,
            Phase::Pause(until) if now < *until => Step::Pause {
                until: deadline.instant().map_or(*until, |at| at.min(*until)),
            },
            Phase::Start | Phase::Pause(_) => Step::LookUp {
                by: within(ATTEMPT_TIME_MAX),
            },
            Phase::Try(leader) => {
                let leader = leader.clone();
                if self.tried.as_ref().is_none_or(|it| is_other(it, &leader)) {
                    self.tried = Some(leader.clone());
                    self.attempts = 0;
                    self.backoff.reset();
                }
                let time = match self.attempts {
                    0 => ATTEMPT_TIME_MAX,
                    further => FIRST_ATTEMPT_TIME.saturating_mul(1 << (further - 1).min(4)),
                };
                self.attempts += 1;
                Step::Try {
                    leader,
                    by: within(time.min(ATTEMPT_TIME_MAX)),
                }
            }
        }
    }

    /// The directory names this server; `None` if none leads, or it does not answer.
    pub(crate) fn looked_up(&mut self, leader: Option<Leader>, now: Instant) {
        match leader {
            Some(leader) => self.phase = Phase::Try(leader),
            None => self.pause(now),
        }
    }

    /// The attempt has succeeded: one after the loss of this server is a further one at it.
    pub(crate) fn reached(&mut self) {
        self.attempts = 1;
        self.backoff.reset();
    }

    /// The attempt has failed, or was ended as the directory names `other` by now.
    pub(crate) fn failed(&mut self, other: Option<Leader>, now: Instant) {
        self.looked_up(other, now);
    }

    fn pause(&mut self, now: Instant) {
        self.phase = Phase::Pause(now + self.backoff.next_delay());
    }
}

#[cfg(test)]
mod tests;
