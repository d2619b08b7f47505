//! A map of the next attempts of failed calls, and of jobs, sorted by time point.
//!
//! The retry thread reports failed attempts to it, sleeps until [`Schedule::next_at`], and makes the attempts that are
//! due. There is no clock, thread or channel here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::group::RetryMembership;
use super::state::{RetryState, Verdict};
use crate::error::RpcError;

/// A call with retries that has no result yet. `C` makes its attempts.
#[derive(Debug)]
pub(crate) struct Retried<C> {
    pub(crate) state: RetryState,
    /// `None`: in no group, so never abandoned.
    pub(crate) membership: Option<RetryMembership>,
    pub(crate) call: C,
}

/// An entry of the schedule.
#[derive(Debug)]
pub(crate) enum Due<C, J> {
    /// The next attempt of this call.
    Attempt(Box<Retried<C>>),
    Job(J),
}

/// The waiting calls and jobs, by time point, then in order of arrival.
#[derive(Debug)]
pub(crate) struct Schedule<C, J> {
    waiting: BTreeMap<(Instant, u64), Due<C, J>>,
    /// Number of entries so far.
    seen: u64,
    attempts: usize,
}

impl<C> Retried<C> {
    /// Counts an attempt that begins, and returns its timeout.
    pub(crate) fn begin_attempt(&mut self, now: Instant) -> Option<Duration> {
        let membership = self.membership.as_ref();
        let measured = membership.map(RetryMembership::measured_timeout);
        self.state.begin_attempt(now, measured)
    }

    /// The latest attempt was answered.
    pub(crate) fn answered(&self, now: Instant) {
        if let Some(membership) = &self.membership
            && let Some(took) = self.state.answered(now)
        {
            membership.answered_after(took);
        }
    }

    /// The latest attempt has just ended with `error`: decides how the call continues.
    pub(crate) fn after_failure(&mut self, error: RpcError, now: Instant) -> Verdict {
        match self.state.on_failure(&error, now) {
            Verdict::Again { .. } if self.is_abandoned() => {
                Verdict::GiveUp(self.state.abandoned(error))
            }
            verdict => verdict,
        }
    }

    fn is_abandoned(&self) -> bool {
        let membership = self.membership.as_ref();
        membership.is_some_and(RetryMembership::is_abandoned)
    }
}

impl<C, J> Schedule<C, J> {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            seen: 0,
            attempts: 0,
        }
    }

    /// Keeps a job until `at`.
    pub(crate) fn add_job(&mut self, at: Instant, job: J) {
        self.insert(at, Due::Job(job));
    }

    /// An attempt has failed. Returns the call and its error, unless another attempt waits now.
    pub(crate) fn failed(
        &mut self,
        mut call: Box<Retried<C>>,
        error: RpcError,
        now: Instant,
    ) -> Option<(Box<Retried<C>>, RpcError)> {
        match call.after_failure(error, now) {
            Verdict::GiveUp(error) => Some((call, error)),
            Verdict::Again { at } => {
                self.attempts += 1;
                self.insert(at, Due::Attempt(call));
                None
            }
        }
    }

    /// The first time point.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes out the first entry, if its time has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Due<C, J>> {
        let first = self.waiting.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let due = first.remove();
        self.attempts -= usize::from(matches!(due, Due::Attempt(_)));
        Some(due)
    }

    /// Takes out the calls that were abandoned.
    pub(crate) fn take_abandoned(&mut self) -> Vec<Box<Retried<C>>> {
        let mut abandoned = Vec::new();
        for (key, due) in std::mem::take(&mut self.waiting) {
            match due {
                Due::Attempt(call) if call.is_abandoned() => abandoned.push(call),
                due => drop(self.waiting.insert(key, due)),
            }
        }
        self.attempts -= abandoned.len();
        abandoned
    }

    /// Takes all entries out: the agent ends.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Due<C, J>> + use<C, J> {
        self.attempts = 0;
        std::mem::take(&mut self.waiting).into_values()
    }

    /// Returns how many attempts wait.
    pub(crate) const fn attempts(&self) -> usize {
        self.attempts
    }

    fn insert(&mut self, at: Instant, due: Due<C, J>) {
        self.waiting.insert((at, self.seen), due);
        self.seen += 1;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::error::{CallSite, Outcome};
    use crate::retry::{RetryGroup, RetryOptions};
    use crate::worker::{WorkerId, WorkerInfo};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn timed_out() -> RpcError {
        RpcError::Timeout {
            call: CallSite::of(&WorkerInfo::new("ps", 1).unwrap(), "push"),
            after: ms(1),
            outcome: Outcome::Unknown,
            cause: None,
        }
    }

    fn retried(options: &RetryOptions, name: usize, began: Instant) -> Box<Retried<usize>> {
        let worker = WorkerId::new(1).unwrap();
        let group = options.group.as_ref();
        Box::new(Retried {
            state: RetryState::new(options.clone(), began, name as u64),
            membership: group.map(|group| RetryMembership::new(group, worker)),
            call: name,
        })
    }

    #[test]
    fn what_waits_leaves_at_its_time_point_then_in_order() {
        let began = Instant::now();
        let mut schedule = Schedule::<usize, char>::new();
        for (at, name) in [(5, 'c'), (3, 'a'), (9, 'e'), (3, 'b'), (5, 'd')] {
            schedule.add_job(began + ms(at), name);
        }
        let mut run = |now| {
            let mut names = String::new();
            while let Some(Due::Job(name)) = schedule.pop_due(began + ms(now)) {
                names.push(name);
            }
            (names, schedule.next_at().map(|at| at - began))
        };
        assert_eq!(run(2), (String::new(), Some(ms(3))));
        assert_eq!(run(5), ("abcd".to_owned(), Some(ms(9))));
        assert_eq!(run(9), ("e".to_owned(), None));
    }

    #[test]
    fn an_earlier_time_point_comes_first_whenever_it_was_added() {
        let began = Instant::now();
        let options = RetryOptions::default().with_retry_duration(ms(500));
        let mut schedule = Schedule::<usize, ()>::new();
        assert!(
            schedule
                .failed(retried(&options, 0, began), timed_out(), began)
                .is_none()
        );
        assert_eq!(schedule.next_at(), Some(began + ms(500)));
        let sooner = options.with_retry_duration(ms(20));
        assert!(
            schedule
                .failed(retried(&sooner, 1, began), timed_out(), began)
                .is_none()
        );
        assert_eq!(
            (schedule.next_at(), schedule.attempts()),
            (Some(began + ms(20)), 2)
        );
        let Some(Due::Attempt(call)) = schedule.pop_due(began + ms(20)) else {
            panic!("it is due");
        };
        assert_eq!((call.call, schedule.attempts()), (1, 1));
    }

    #[test]
    fn abandoned_calls_leave_at_once_and_others_and_jobs_stay() {
        let (began, worker) = (Instant::now(), WorkerId::new(1).unwrap());
        let group = RetryGroup::new();
        let plain = RetryOptions::default();
        let grouped = plain.clone().with_group(&group);
        let mut schedule = Schedule::<usize, ()>::new();
        schedule.add_job(began + ms(1), ());
        for (name, options) in [&grouped, &plain, &grouped].into_iter().enumerate() {
            assert!(
                schedule
                    .failed(retried(options, name, began), timed_out(), began)
                    .is_none()
            );
        }
        let in_flight = retried(&grouped, 3, began);
        assert!(schedule.take_abandoned().is_empty());
        group.abandon(worker);
        let abandoned = schedule.take_abandoned();
        let names: Vec<_> = abandoned.iter().map(|call| call.call).collect();
        assert_eq!((names, schedule.attempts()), (vec![0, 2], 1));
        // A call whose attempt is under way ends when that fails.
        let (_, error) = schedule.failed(in_flight, timed_out(), began).unwrap();
        assert!(
            matches!(error, RpcError::RetriesExhausted { .. }),
            "{error}"
        );
        assert_eq!((schedule.take_all().count(), schedule.attempts()), (2, 0));
    }

    /// Calls whose attempts all fail, in virtual time: after a random time, or by their timeout.
    #[test]
    fn any_calls_end_once_by_their_deadline_and_never_begin_an_attempt_early() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        for _ in 0..200 {
            let began = Instant::now();
            let mut now = began;
            let mut schedule = Schedule::<usize, ()>::new();
            // Attempts under way, by their end.
            let mut flying: BTreeMap<(Instant, usize), Box<Retried<usize>>> = BTreeMap::new();
            let (mut ends, mut limits, mut due_at) = (Vec::new(), Vec::new(), Vec::new());
            let calls = random.usize(1..40);
            for name in 0..calls {
                let limit = ms(random.u64(1..400));
                let options = RetryOptions::default()
                    .with_max_retries(random.u32(0..6))
                    .with_retry_duration(ms(random.u64(0..100)))
                    .with_attempt_timeout(ms(random.u64(1..100)))
                    .with_timeout(limit);
                limits.push(began + limit);
                due_at.push(began);
                ends.push(None);
                let mut call = retried(&options, name, began);
                let timeout = call.begin_attempt(now).unwrap();
                flying.insert((now + timeout, name), call);
            }
            while ends.contains(&None) {
                let landing = flying.first_key_value().map(|((at, _), _)| *at);
                now = landing.into_iter().chain(schedule.next_at()).min().unwrap();
                while let Some(first) = flying.first_entry().filter(|first| first.key().0 <= now) {
                    let (at, name) = *first.key();
                    let call = first.remove();
                    match schedule.failed(call, timed_out(), at) {
                        Some((call, _)) => {
                            assert_eq!(ends[name].replace(at), None);
                            assert_eq!(call.call, name);
                        }
                        None => due_at[name] = at,
                    }
                }
                while let Some(due) = schedule.pop_due(now) {
                    let Due::Attempt(mut call) = due else {
                        panic!("there are no jobs");
                    };
                    assert!(now >= due_at[call.call]);
                    let timeout = call.begin_attempt(now).unwrap();
                    let takes = timeout.min(ms(random.u64(0..120)));
                    flying.insert((now + takes, call.call), call);
                }
            }
            for (end, limit) in ends.into_iter().zip(limits) {
                assert!(end.is_some_and(|end| end <= limit));
            }
            assert_eq!((schedule.next_at(), schedule.attempts()), (None, 0));
        }
    }
}
