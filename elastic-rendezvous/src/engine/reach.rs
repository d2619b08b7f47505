//! Decides which of several addresses of a store to try when, and which one to use.
//!
//! The first candidate is preferred, so the other candidates are tried only when it has failed, or has not answered
//! for [`HEAD_START`]. In a healthy network one attempt is made.

use std::time::Duration;

use c10d_socket::{Backoff, BackoffOptions};

/// How long the first candidate is tried alone.
pub(crate) const HEAD_START: Duration = Duration::from_millis(250);

/// The limit of one attempt.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest attempt. The last attempt on a candidate begins this long before the end.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);

/// The pauses between two attempts on one candidate.
fn pauses() -> BackoffOptions {
    BackoffOptions::default()
        .with_first(Duration::from_millis(50))
        .with_factor(2.0)
        .with_max(Duration::from_secs(2))
}

/// The search for a candidate that works. All times are counted from its beginning.
#[derive(Debug)]
pub(crate) struct Reach {
    candidates: Vec<Candidate>,
    ends_at: Duration,
    /// The candidate with the lowest index that has answered.
    reached: Option<usize>,
}

#[derive(Debug)]
struct Candidate {
    backoff: Backoff,
    was_tried: bool,
    /// When the next attempt is due; `None` while one runs, and after the last one.
    next_at: Option<Duration>,
    is_running: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReachStep {
    /// Begin an attempt on this candidate, and end it after `timeout`.
    Try { candidate: usize, timeout: Duration },
    /// Wait until an attempt has ended, or until this time.
    Wait { until: Duration },
    /// This candidate works.
    Use { candidate: usize },
    /// The search has failed, because no candidate has worked in time.
    GiveUp,
}

impl Reach {
    /// A search among this many candidates, for at most `limit`.
    pub(crate) fn new(candidates: usize, limit: Duration, seed: u64) -> Self {
        let last_at = limit.saturating_sub(ATTEMPT_MIN);
        let candidate = |index| Candidate {
            backoff: Backoff::new(pauses(), seed.wrapping_add(index)),
            was_tried: false,
            next_at: Some(match index {
                0 => Duration::ZERO,
                _ => HEAD_START.min(last_at),
            }),
            is_running: false,
        };
        Self {
            candidates: (0..candidates as u64).map(candidate).collect(),
            ends_at: limit,
            reached: None,
        }
    }

    /// Returns the next step. An attempt counts as begun when it is returned: then ask again, until the step is to wait.
    pub(crate) fn next(&mut self, now: Duration) -> ReachStep {
        if let Some(candidate) = self.reached {
            return ReachStep::Use { candidate };
        }
        let is_due = |it: &Candidate| it.next_at.is_some_and(|at| at <= now);
        if let Some(candidate) = self.candidates.iter().position(is_due) {
            let it = &mut self.candidates[candidate];
            (it.next_at, it.was_tried, it.is_running) = (None, true, true);
            let left = self.ends_at.saturating_sub(now);
            let timeout = left.clamp(ATTEMPT_MIN, ATTEMPT_TIMEOUT);
            return ReachStep::Try { candidate, timeout };
        }
        let next_at = self.candidates.iter().filter_map(|it| it.next_at).min();
        let is_any_running = self.candidates.iter().any(|it| it.is_running);
        match next_at {
            Some(until) => ReachStep::Wait { until },
            // Each attempt ends after its timeout, unless its thread has failed.
            None if is_any_running && now < self.ends_at + ATTEMPT_TIMEOUT => ReachStep::Wait {
                until: now + ATTEMPT_TIMEOUT,
            },
            None => ReachStep::GiveUp,
        }
    }

    /// An attempt has ended.
    pub(crate) fn ended(&mut self, candidate: usize, is_reached: bool, now: Duration) {
        if is_reached {
            let best = self.reached.map_or(candidate, |best| best.min(candidate));
            self.reached = Some(best);
        }
        let last_at = self.ends_at.saturating_sub(ATTEMPT_MIN);
        if let Some(it) = self.candidates.get_mut(candidate) {
            it.is_running = false;
            it.next_at = (now < last_at).then(|| last_at.min(now + it.backoff.next_delay()));
        }
        if candidate == 0 {
            // The head start is over.
            for other in self.candidates.iter_mut().filter(|it| !it.was_tried) {
                other.next_at = Some(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LIMIT: Duration = Duration::from_secs(30);

    /// When a candidate answers: after this long from this time on; before, it refuses at once.
    #[derive(Debug, Clone, Copy)]
    enum Host {
        Refuses,
        Silent,
        Answers { from: Duration, after: Duration },
    }

    /// Returns the choice, its time, and the attempts on each candidate.
    fn search(hosts: &[Host], limit: Duration, seed: u64) -> (Option<usize>, Duration, Vec<usize>) {
        let mut reach = Reach::new(hosts.len(), limit, seed);
        let mut running: Vec<(Duration, usize, bool)> = Vec::new();
        let mut attempts = vec![0; hosts.len()];
        let mut now = Duration::ZERO;
        loop {
            match reach.next(now) {
                ReachStep::Use { candidate } => return (Some(candidate), now, attempts),
                ReachStep::GiveUp => {
                    assert!(running.is_empty(), "an attempt still runs");
                    return (None, now, attempts);
                }
                ReachStep::Try { candidate, timeout } => {
                    assert!(timeout <= ATTEMPT_TIMEOUT);
                    assert!(!running.iter().any(|it| it.1 == candidate));
                    attempts[candidate] += 1;
                    let (takes, works) = match hosts[candidate] {
                        Host::Silent => (timeout, false),
                        Host::Answers { from, after } if now >= from => {
                            (after.min(timeout), after <= timeout)
                        }
                        Host::Refuses | Host::Answers { .. } => (MS, false),
                    };
                    running.push((now + takes, candidate, works));
                }
                ReachStep::Wait { until } => {
                    assert!(until > now, "the search spins at {now:?}");
                    let first = running.iter().map(|it| it.0).min();
                    now = first.map_or(until, |first| first.min(until));
                    let ended = running.extract_if(.., |it| it.0 <= now);
                    for (_, candidate, works) in ended.collect::<Vec<_>>() {
                        reach.ended(candidate, works, now);
                    }
                }
            }
        }
    }

    const fn answers(after_ms: u64) -> Host {
        Host::Answers {
            from: Duration::ZERO,
            after: Duration::from_millis(after_ms),
        }
    }

    #[test]
    fn a_healthy_network_costs_one_attempt() {
        let (chosen, at, attempts) = search(&[answers(1), answers(1), answers(1)], LIMIT, 1);
        assert_eq!((chosen, at, attempts), (Some(0), MS, vec![1, 0, 0]));
    }

    #[test]
    fn a_silent_first_candidate_costs_its_head_start() {
        let (chosen, at, _) = search(&[Host::Silent, Host::Refuses, answers(3)], LIMIT, 2);
        assert_eq!((chosen, at), (Some(2), HEAD_START + 3 * MS));
    }

    #[test]
    fn a_refused_first_candidate_costs_nothing() {
        let (chosen, at, _) = search(&[Host::Refuses, answers(3)], LIMIT, 3);
        assert_eq!((chosen, at), (Some(1), 4 * MS));
    }

    #[test]
    fn a_slow_first_candidate_is_preferred() {
        // A network with a round trip of 300 ms.
        let (chosen, _, attempts) = search(&[answers(900), answers(900)], LIMIT, 4);
        assert_eq!((chosen, attempts), (Some(0), vec![1, 1]));
    }

    #[test]
    fn of_candidates_that_answer_at_once_the_first_is_chosen() {
        let mut reach = Reach::new(3, LIMIT, 5);
        reach.ended(2, true, MS);
        reach.ended(1, true, MS);
        assert_eq!(reach.next(MS), ReachStep::Use { candidate: 1 });
    }

    #[test]
    fn a_server_that_listens_later_is_found() {
        for seed in 0..50 {
            for from_ms in [40, 900, 9_000, 27_000] {
                let from = Duration::from_millis(from_ms);
                let late = Host::Answers { from, after: MS };
                let (chosen, at, attempts) = search(&[Host::Silent, late], LIMIT, seed);
                assert_eq!(chosen, Some(1), "seed {seed}, from {from:?}");
                assert!(at <= from + 4 * ATTEMPT_TIMEOUT, "seed {seed}: {at:?}");
                assert!(attempts[1] < 40, "seed {seed}: {attempts:?}");
            }
        }
    }

    #[test]
    fn the_search_ends_at_its_limit() {
        for seed in 0..50 {
            for limit_ms in [0, 1, 100, 240, 1_000, 2_500, 15_000, 30_000] {
                let limit = Duration::from_millis(limit_ms);
                let hosts = [Host::Refuses, Host::Silent, answers(2_500)];
                let (chosen, at, attempts) = search(&hosts, limit, seed);
                assert_eq!(chosen, None, "seed {seed}");
                assert!(
                    at <= limit + 2 * ATTEMPT_MIN,
                    "seed {seed}: {at:?} of {limit:?}"
                );
                assert!(
                    attempts.iter().all(|it| *it >= 1),
                    "seed {seed}: {attempts:?}"
                );
            }
        }
    }

    #[test]
    fn without_candidates_there_is_nothing_to_wait_for() {
        assert_eq!(Reach::new(0, LIMIT, 6).next(MS), ReachStep::GiveUp);
    }
}
