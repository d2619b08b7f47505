//! What follows from the failure of an attempt.
//!
//! A pure function: the present and the random number are arguments.

use std::time::{Duration, Instant};

use super::options::RetryPolicy;
use crate::error::RpcError;

/// The longest pause: with factors and counts as callers like them, a pause can be longer than clocks can
/// express. Ten thousand hours, PyTorch's notion of ever.
const DELAY_MAX: Duration = Duration::from_secs(10_000 * 3600);

/// What follows.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The request is sent again at this moment.
    Again { at: Instant },
    /// The whole call fails with this.
    GiveUp(RpcError),
}

/// What follows from `error`, with which attempt number `failed_attempts` has just ended. `began` is when
/// the whole call did. `draw` is evenly from 0 to 1 and is of use to jitter only.
pub(super) fn on_failure(
    policy: &RetryPolicy,
    failed_attempts: u32,
    began: Instant,
    now: Instant,
    error: &RpcError,
    draw: f64,
) -> Verdict {
    // An agent that was shut down sends nothing any more, whatever one asks for.
    let is_worth_it = match error {
        RpcError::Shutdown { .. } => false,
        _ => policy.retry_executed || error.is_transient(),
    };
    if !is_worth_it {
        return Verdict::GiveUp(error.clone());
    }
    if failed_attempts <= policy.max_retries {
        let at = now.checked_add(delay(policy, failed_attempts, draw));
        let is_in_time = |at: &Instant| at.duration_since(began) <= policy.total_time_max;
        if let Some(at) = at.filter(is_in_time) {
            return Verdict::Again { at };
        }
    }
    Verdict::GiveUp(RpcError::RetriesExhausted {
        max_retries: policy.max_retries,
        attempts: failed_attempts,
        // Who has seen the other attempts, knows more.
        outcome: error.outcome(),
        last: Box::new(error.clone()),
    })
}

/// The pause before the `retry`-th retry, counted from 1, in whole milliseconds:
/// `retry_duration * backoff ^ (retry - 1)`.
///
/// PyTorch counts the pause from the sending, with exponents 0, 0, 1, 2, ...; so an attempt that fails
/// after longer than its pause is repeated without any.
fn delay(policy: &RetryPolicy, retry: u32, draw: f64) -> Duration {
    let exponent = f64::from(retry.saturating_sub(1));
    let longest = policy.max_delay.min(DELAY_MAX);
    let seconds = policy.retry_duration.as_secs_f64() * policy.backoff.powf(exponent);
    // Zero times an overflow is no number: no pause stays none.
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

    use super::super::options::RetryOptions;
    use super::*;
    use crate::error::{CallSite, NotSent, Outcome};
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

    fn verdict(
        options: &RetryOptions,
        failed_attempts: u32,
        error: &RpcError,
    ) -> Result<Duration, RpcError> {
        let now = Instant::now();
        match on_failure(
            &options.checked().unwrap(),
            failed_attempts,
            now,
            now,
            error,
            0.5,
        ) {
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
        let none = options.with_retry_duration_ms(0);
        assert_eq!(delays_ms(&none, 5), [0; 5]);
    }

    #[test]
    fn no_pause_is_longer_than_the_longest() {
        let options = RetryOptions::default()
            .with_max_retries(5)
            .with_max_delay(Duration::from_millis(2000));
        assert_eq!(delays_ms(&options, 5), [1000, 1500, 2000, 2000, 2000]);
        let policy = options.with_jitter(1.0).checked().unwrap();
        assert_eq!(delay(&policy, 5, 1.0), Duration::from_millis(2000));
    }

    #[test]
    fn no_options_overflow() {
        for pause_ms in [0, 1, i64::MAX] {
            for backoff in [1.0, 1.5, f64::MAX] {
                let options = RetryOptions::default()
                    .with_max_retries(i64::MAX)
                    .with_retry_duration_ms(pause_ms)
                    .with_backoff(backoff)
                    .with_jitter(1.0);
                let policy = options.checked().unwrap();
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
    fn jitter_reaches_evenly_to_both_sides() {
        let policy = RetryOptions::default().with_jitter(0.2).checked().unwrap();
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
    fn an_error_that_a_retry_would_not_mend_ends_the_call_unless_asked() {
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
    fn a_shut_down_agent_does_not_retry_even_if_asked() {
        let error = RpcError::Shutdown {
            call: call(),
            outcome: Outcome::Unknown,
        };
        let asked = RetryOptions::default().retry_executed(true);
        let ended_by = verdict(&asked, 1, &error).unwrap_err();
        assert!(matches!(ended_by, RpcError::Shutdown { .. }), "{ended_by}");
    }

    #[test]
    fn a_retry_that_would_begin_after_the_total_time_is_not_made() {
        let policy = RetryOptions::default()
            .with_total_time_max(Duration::from_millis(3000))
            .checked()
            .unwrap();
        let began = Instant::now();
        let after = |ms, failed_attempts| {
            let now = began + Duration::from_millis(ms);
            on_failure(&policy, failed_attempts, began, now, &not_sent(), 0.5)
        };
        assert!(
            matches!(after(2000, 1), Verdict::Again { at } if at == began + Duration::from_millis(3000))
        );
        let Verdict::GiveUp(error) = after(2001, 1) else {
            panic!("it would begin 1 ms too late");
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
}
