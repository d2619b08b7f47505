//! One call with retries: the consequence of the failure of an attempt, and the error of the whole call.

use std::time::{Duration, Instant};

use super::group::UNMEASURED;
use super::options::RetryOptions;
use crate::error::{CallSite, Outcome, RpcError};

/// The longest pause, as factors and counts can make pauses longer than a clock can express. 10,000 hours,
/// which PyTorch uses as its infinite timeout.
const DELAY_MAX: Duration = Duration::from_secs(10_000 * 3600);

/// The consequence of the failure of an attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The next attempt begins at `at`.
    Again { at: Instant },
    /// The whole call fails with this error.
    GiveUp(RpcError),
}

/// The state of a call with retries so far.
#[derive(Debug)]
pub(crate) struct RetryState {
    /// They have been checked.
    policy: RetryOptions,
    attempts: u32,
    /// Attempts that have timed out.
    timeouts: u32,
    attempt_began: Instant,
    /// The outcome of all attempts: an attempt that was sent may have run.
    outcome: Outcome,
    began: Instant,
    /// The random numbers of the jitter.
    random: fastrand::Rng,
}

impl RetryState {
    pub(crate) fn new(policy: RetryOptions, began: Instant, seed: u64) -> Self {
        Self {
            policy,
            attempts: 0,
            timeouts: 0,
            attempt_began: began,
            outcome: Outcome::NotExecuted,
            began,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Counts an attempt that begins, and returns its timeout. `measured`: after which time an answer is probably
    /// lost; `None` while that is unknown.
    pub(crate) fn begin_attempt(
        &mut self,
        now: Instant,
        measured: Option<Duration>,
    ) -> Option<Duration> {
        self.attempts += 1;
        self.attempt_began = now;
        let longest = self.policy.attempt_timeout;
        let timeout = match self.policy.measured_timeout_min {
            None => longest,
            Some(min) => {
                let doubled = 2_u32.saturating_pow(self.timeouts);
                let timeout = measured.unwrap_or(UNMEASURED).max(min);
                let timeout = timeout.saturating_mul(doubled);
                Some(timeout.min(longest.unwrap_or(Duration::MAX)))
            }
        };
        let end = self
            .policy
            .timeout
            .and_then(|whole| self.began.checked_add(whole));
        let Some(end) = end else {
            return timeout;
        };
        // The attempt may begin late.
        let left = end
            .saturating_duration_since(now)
            .max(Duration::from_millis(1));
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }

    /// Returns how long the answer of the latest attempt took, if that is to be measured.
    pub(crate) fn answered(&self, now: Instant) -> Option<Duration> {
        let is_measured = self.policy.measured_timeout_min.is_some();
        is_measured.then(|| now.saturating_duration_since(self.attempt_began))
    }

    /// Attempts that have begun.
    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Decides after `error`, the failure of the latest attempt.
    pub(crate) fn on_failure(&mut self, error: &RpcError, now: Instant) -> Verdict {
        if error.outcome() != Outcome::NotExecuted {
            self.outcome = Outcome::Unknown;
        }
        if matches!(error, RpcError::Timeout { .. }) {
            self.timeouts = self.timeouts.saturating_add(1);
        }
        let is_retried = match error {
            // An agent that was shut down sends nothing any more, whatever the options are.
            RpcError::Shutdown { .. } => false,
            _ => self.policy.retry_executed || error.is_transient(),
        };
        if !is_retried {
            return Verdict::GiveUp(self.of_all_attempts(error.clone()));
        }
        if self.attempts <= self.policy.max_retries {
            let delay = delay(&self.policy, self.attempts, self.random.f64());
            let at = now.checked_add(delay);
            let is_in_time = |at: &Instant| {
                let time = at.duration_since(self.began);
                self.policy.timeout.is_none_or(|timeout| time < timeout)
            };
            if let Some(at) = at.filter(is_in_time) {
                return Verdict::Again { at };
            }
        }
        let outcome = self.outcome_with(error);
        Verdict::GiveUp(self.exhausted(error.clone(), outcome))
    }

    /// The error of the call when its worker is abandoned; `last` is the error of the latest attempt.
    pub(crate) fn abandoned(&self, last: RpcError) -> RpcError {
        self.exhausted(last, self.outcome)
    }

    /// The error of the call when the agent ends before the next attempt.
    pub(crate) const fn shut_down(&self, call: Box<CallSite>) -> RpcError {
        let outcome = self.outcome;
        RpcError::Shutdown { call, outcome }
    }

    /// Converts the error of the latest attempt to the error of the whole call: when an earlier attempt may have run,
    /// it does not report that the function did not run.
    fn of_all_attempts(&self, error: RpcError) -> RpcError {
        let outcome = self.outcome_with(&error);
        if error.outcome() == outcome {
            return error;
        }
        match error {
            RpcError::Shutdown { call, .. } => RpcError::Shutdown { call, outcome },
            // Its error has no field for the outcome of the earlier attempts.
            last => self.exhausted(last, outcome),
        }
    }

    /// The outcome of all attempts when the latest attempt has failed with `error`.
    fn outcome_with(&self, error: &RpcError) -> Outcome {
        match error.outcome() {
            Outcome::NotExecuted => self.outcome,
            outcome => outcome,
        }
    }

    fn exhausted(&self, last: RpcError, outcome: Outcome) -> RpcError {
        RpcError::RetriesExhausted {
            max_retries: self.policy.max_retries,
            attempts: self.attempts,
            outcome,
            last: Box::new(last),
        }
    }
}

/// The pause before the `retry`-th retry, counted from 1, in whole milliseconds:
/// `retry_duration * backoff ^ (retry - 1)`.
///
/// PyTorch counts the pause from the sending, with exponents 0, 0, 1, 2, ...; an attempt that fails after
/// longer than its pause is retried without one.
fn delay(policy: &RetryOptions, retry: u32, draw: f64) -> Duration {
    let exponent = f64::from(retry.saturating_sub(1));
    let longest = policy.max_delay.min(DELAY_MAX);
    let seconds = policy.retry_duration.as_secs_f64() * policy.backoff.powf(exponent);
    // Zero times an overflow is not a number: a pause of zero remains zero.
    let pause = match Duration::try_from_secs_f64(seconds) {
        _ if policy.retry_duration.is_zero() => Duration::ZERO,
        Ok(pause) => pause.min(longest),
        Err(_) => longest,
    };
    let spread = 1.0 + policy.jitter * (2.0 * draw - 1.0);
    let pause = if policy.jitter > 0.0 {
        pause.mul_f64(spread.max(0.0)).min(longest)
    } else {
        pause
    };
    Duration::from_millis(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;
    use crate::error::NotSent;
    use crate::worker::WorkerInfo;

    fn call() -> Box<CallSite> {
        Box::new(CallSite {
            to: WorkerInfo::new("ps", 1).unwrap(),
            function: "push".into(),
        })
    }

    fn not_sent() -> RpcError {
        RpcError::NotSent {
            call: call(),
            cause: NotSent::Connect("refused".into()),
        }
    }

    fn remote() -> RpcError {
        RpcError::Remote {
            call: call(),
            message: "no such shard".into(),
            panicked: false,
        }
    }

    /// A call whose latest attempt is number `attempts`.
    fn state(policy: RetryOptions, began: Instant, attempts: u32) -> RetryState {
        let mut state = RetryState::new(policy, began, 1);
        state.attempts = attempts;
        state
    }

    fn verdict(
        options: &RetryOptions,
        failed_attempts: u32,
        error: &RpcError,
    ) -> Result<Duration, RpcError> {
        let now = Instant::now();
        let mut state = state(options.clone(), now, failed_attempts);
        match state.on_failure(error, now) {
            Verdict::Again { at } => Ok(at - now),
            Verdict::GiveUp(error) => Err(error),
        }
    }

    fn delays_ms(options: &RetryOptions, retries: u32) -> Vec<u128> {
        let delay_ms = |retry| verdict(options, retry, &not_sent()).unwrap().as_millis();
        (1..=retries).map(delay_ms).collect()
    }

    #[test]
    fn the_pauses_grow_from_the_first_one_by_the_factor() {
        let options = RetryOptions::default().with_max_retries(5);
        assert_eq!(delays_ms(&options, 5), [1000, 1500, 2250, 3375, 5062]);
        let even = options.clone().with_backoff(1.0);
        assert_eq!(delays_ms(&even, 5), [1000; 5]);
        let none = options.with_retry_duration(Duration::ZERO);
        assert_eq!(delays_ms(&none, 5), [0; 5]);
    }

    #[test]
    fn no_pause_exceeds_the_maximum() {
        let options = RetryOptions::default()
            .with_max_retries(5)
            .with_max_delay(Duration::from_millis(2000));
        assert_eq!(delays_ms(&options, 5), [1000, 1500, 2000, 2000, 2000]);
        let policy = options.with_jitter(1.0);
        assert_eq!(delay(&policy, 5, 1.0), Duration::from_millis(2000));
    }

    #[test]
    fn no_options_overflow() {
        for pause_ms in [0, 1, u64::MAX] {
            for backoff in [1.0, 1.5, f64::MAX] {
                let options = RetryOptions::default()
                    .with_max_retries(u32::MAX)
                    .with_retry_duration(Duration::from_millis(pause_ms))
                    .with_backoff(backoff)
                    .with_jitter(1.0);
                let policy = options.clone();
                for retry in [0, 1, 2, 1000, u32::MAX] {
                    for draw in [0.0, 0.5, 1.0] {
                        let delay = delay(&policy, retry, draw);
                        assert!(delay <= DELAY_MAX, "{policy:?}, {retry}: {delay:?}");
                        assert!(
                            pause_ms > 0 || delay.is_zero(),
                            "{policy:?}, {retry}: {delay:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn jitter_is_symmetric() {
        let policy = RetryOptions::default().with_jitter(0.2);
        let delay_ms = |draw| delay(&policy, 2, draw).as_millis();
        assert_eq!(
            [delay_ms(0.0), delay_ms(0.5), delay_ms(1.0)],
            [1200, 1500, 1800]
        );
    }

    #[test]
    fn after_the_last_retry_the_call_fails_with_the_counts_and_the_last_error() {
        let options = RetryOptions::default();
        for attempts in 1..=3 {
            assert!(
                verdict(&options, attempts, &not_sent()).is_ok(),
                "attempt {attempts}"
            );
        }
        let error = verdict(&options, 4, &not_sent()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "The RPC has not succeeded after the specified number of max retries (3). Attempts: 4, \
             the last one: call of `push` on worker ps (id 1) was not sent: refused"
        );
    }

    #[test]
    fn without_retries_the_first_failure_is_the_last() {
        let options = RetryOptions::default().with_max_retries(0);
        let error = verdict(&options, 1, &not_sent()).unwrap_err();
        assert!(
            matches!(
                error,
                RpcError::RetriesExhausted {
                    max_retries: 0,
                    attempts: 1,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_permanent_error_ends_the_call_unless_its_retries_are_requested() {
        let errors = [remote(), RpcError::NoSuchFunction { call: call() }];
        for error in errors {
            let asked = RetryOptions::default().retry_executed(true);
            let ended_by = verdict(&RetryOptions::default(), 1, &error).unwrap_err();
            assert_eq!(ended_by.to_string(), error.to_string());
            assert!(verdict(&asked, 1, &error).is_ok(), "{error}");
        }
        let lost = RpcError::ConnectionLost {
            call: call(),
            cause: Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)),
        };
        assert!(verdict(&RetryOptions::default(), 1, &lost).is_ok());
    }

    #[test]
    fn an_agent_that_was_shut_down_does_not_retry_even_if_requested() {
        let error = RpcError::Shutdown {
            call: call(),
            outcome: Outcome::Unknown,
        };
        let asked = RetryOptions::default().retry_executed(true);
        let ended_by = verdict(&asked, 1, &error).unwrap_err();
        assert!(matches!(ended_by, RpcError::Shutdown { .. }), "{ended_by}");
    }

    #[test]
    fn a_retry_that_would_begin_after_the_timeout_of_the_call_is_not_made() {
        let policy = RetryOptions::default().with_timeout(Duration::from_millis(3000));
        let began = Instant::now();
        let after = |ms, failed_attempts| {
            let now = began + Duration::from_millis(ms);
            state(policy.clone(), began, failed_attempts).on_failure(&not_sent(), now)
        };
        assert!(
            matches!(after(1999, 1), Verdict::Again { at } if at == began + Duration::from_millis(2999))
        );
        let Verdict::GiveUp(error) = after(2000, 1) else {
            panic!("no time is left for it");
        };
        assert!(
            matches!(
                error,
                RpcError::RetriesExhausted {
                    max_retries: 3,
                    attempts: 1,
                    ..
                }
            ),
            "{error}"
        );
        assert!(matches!(after(1600, 2), Verdict::GiveUp(_)));
    }

    fn timed_out() -> RpcError {
        RpcError::Timeout {
            call: call(),
            after: Duration::from_secs(1),
            outcome: Outcome::Unknown,
            cause: None,
        }
    }

    #[test]
    fn attempts_are_counted_and_get_the_timeout_of_the_options() {
        let options = RetryOptions::default().with_attempt_timeout(Duration::from_secs(7));
        let now = Instant::now();
        let mut state = state(options.clone(), now, 0);
        assert_eq!(state.begin_attempt(now, None), Some(Duration::from_secs(7)));
        state.begin_attempt(now, None);
        assert_eq!(state.attempts(), 2);
    }

    /// The timeouts of the attempts of a call whose answers are all lost, and when the call fails.
    fn timeouts_ms(options: &RetryOptions, measured: Option<u64>) -> (Vec<u128>, u128) {
        let began = Instant::now();
        let mut now = began;
        let mut state = RetryState::new(options.clone(), began, 1);
        let mut timeouts = Vec::new();
        loop {
            let measured = measured.map(Duration::from_millis);
            let timeout = state.begin_attempt(now, measured).unwrap();
            timeouts.push(timeout.as_millis());
            now += timeout;
            match state.on_failure(&timed_out(), now) {
                Verdict::Again { at } => now = at,
                Verdict::GiveUp(_) => return (timeouts, (now - began).as_millis()),
            }
        }
    }

    #[test]
    fn measured_timeouts_follow_the_worker_and_double_after_each_that_passed() {
        let options = RetryOptions::default()
            .with_max_retries(5)
            .with_retry_duration(Duration::from_millis(100))
            .with_backoff(1.0)
            .with_attempt_timeout(Duration::from_secs(2))
            .with_measured_timeout(Duration::from_millis(200));
        let timeouts = |measured| timeouts_ms(&options, measured).0;
        assert_eq!(timeouts(Some(1)), [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(timeouts(Some(300)), [300, 600, 1200, 2000, 2000, 2000]);
        assert_eq!(timeouts(None), [1000, 2000, 2000, 2000, 2000, 2000]);
        // An attempt that fails at once is not a measure of the worker's speed.
        let now = Instant::now();
        let mut state = RetryState::new(options.clone(), now, 1);
        for _ in 0..3 {
            let timeout = state.begin_attempt(now, Some(Duration::from_millis(1)));
            assert_eq!(timeout, Some(Duration::from_millis(200)));
            state.on_failure(&not_sent(), now);
        }
    }

    #[test]
    fn the_last_attempt_is_cut_to_the_timeout_of_the_call() {
        let options = RetryOptions::default()
            .with_max_retries(9)
            .with_retry_duration(Duration::from_millis(100))
            .with_backoff(1.0);
        let within = |ms| options.clone().with_timeout(Duration::from_millis(ms));
        assert_eq!(timeouts_ms(&within(3000), None), (vec![3000], 3000));
        let measured = within(1000).with_measured_timeout(Duration::from_millis(200));
        let timeouts = timeouts_ms(&measured, Some(1));
        assert_eq!(timeouts, (vec![200, 400, 200], 1000));
        let endless = within(1000).with_attempt_timeout(None);
        assert_eq!(timeouts_ms(&endless, None), (vec![1000], 1000));
    }

    #[test]
    fn only_measured_calls_are_measured() {
        let now = Instant::now();
        let later = now + Duration::from_millis(30);
        let options = RetryOptions::default();
        let mut plain = state(options.clone(), now, 0);
        plain.begin_attempt(now, None);
        assert_eq!(plain.answered(later), None);
        let options = options.with_measured_timeout(Duration::from_millis(200));
        let mut measured = state(options.clone(), now, 0);
        measured.begin_attempt(now, None);
        measured.begin_attempt(now + Duration::from_millis(10), None);
        assert_eq!(measured.answered(later), Some(Duration::from_millis(20)));
    }

    #[test]
    fn the_seed_determines_the_random_numbers() {
        let options = RetryOptions::default()
            .with_max_retries(9)
            .with_jitter(1.0)
            .with_backoff(1.0);
        let now = Instant::now();
        let delays = |seed| {
            let mut state = RetryState::new(options.clone(), now, seed);
            let delay = |_| {
                state.begin_attempt(now, None);
                match state.on_failure(&not_sent(), now) {
                    Verdict::Again { at } => at - now,
                    Verdict::GiveUp(error) => panic!("{error}"),
                }
            };
            (0..3).map(delay).collect::<Vec<_>>()
        };
        assert_eq!(delays(7), delays(7));
        assert_ne!(delays(7), delays(8));
        assert_ne!(delays(7)[0], delays(7)[1]);
    }

    #[test]
    fn the_final_error_has_the_outcome_of_all_attempts() {
        let options = RetryOptions::default().with_max_retries(1);
        let now = Instant::now();
        let after_timeout = || {
            let mut state = state(options.clone(), now, 1);
            let first = state.on_failure(&timed_out(), now);
            assert!(matches!(first, Verdict::Again { .. }));
            state.begin_attempt(now, None);
            state
        };
        let shutdown = RpcError::Shutdown {
            call: call(),
            outcome: Outcome::NotExecuted,
        };
        let no_function = RpcError::NoSuchFunction { call: call() };
        for last in [not_sent(), shutdown, no_function] {
            assert_eq!(last.outcome(), Outcome::NotExecuted);
            let Verdict::GiveUp(error) = after_timeout().on_failure(&last, now) else {
                panic!("the retries are used up: {last}");
            };
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        }
        let state = after_timeout();
        assert_eq!(state.abandoned(not_sent()).outcome(), Outcome::Unknown);
        assert_eq!(state.shut_down(call()).outcome(), Outcome::Unknown);
        // An answer of the function determines the outcome.
        let Verdict::GiveUp(error) = after_timeout().on_failure(&remote(), now) else {
            panic!("it is not retried");
        };
        assert_eq!(error.outcome(), Outcome::Executed);
    }
}
