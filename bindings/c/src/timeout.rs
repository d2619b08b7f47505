//! Times of C calls, in milliseconds.

use std::time::Duration;

use crate::failure::Failure;

/// A time limit: the call waits until it succeeds.
pub const C10D_FOREVER: i64 = -1;

/// A time limit: the call checks once, without waiting.
pub const C10D_CHECK_ONCE: i64 = 0;

/// A time limit: the default timeout of the store.
pub const C10D_DEFAULT: i64 = -2;

/// The time limit; the outer `None` is the default.
#[expect(
    clippy::option_option,
    reason = "the inner one is a time limit as everywhere, the outer one whether there is one"
)]
pub(crate) fn explicit(timeout_ms: i64) -> Result<Option<Option<Duration>>, Failure> {
    match timeout_ms {
        C10D_DEFAULT => Ok(None),
        C10D_FOREVER => Ok(Some(None)),
        _ => match u64::try_from(timeout_ms) {
            Ok(ms) => Ok(Some(Some(Duration::from_millis(ms)))),
            Err(_) => Err(Failure::invalid_argument(format!(
                "a timeout of {timeout_ms} ms: give milliseconds from 0 on, C10D_FOREVER or C10D_DEFAULT"
            ))),
        },
    }
}

/// The milliseconds that C reads, rounded up.
pub(crate) fn to_ms(timeout: Option<Duration>) -> i64 {
    timeout.map_or(C10D_FOREVER, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        i64::try_from(ms).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_become_limits_and_back() {
        assert_eq!(explicit(-2).unwrap(), None);
        assert_eq!(explicit(-1).unwrap(), Some(None));
        assert_eq!(explicit(0).unwrap(), Some(Some(Duration::ZERO)));
        let limit = explicit(1500).unwrap();
        assert_eq!(limit, Some(Some(Duration::from_millis(1500))));
        assert!(explicit(i64::MAX).unwrap().is_some());
        for refused in [-3, i64::MIN] {
            let failure = explicit(refused).unwrap_err();
            assert!(failure.text.contains(&refused.to_string()), "{failure:?}");
        }
        assert_eq!(to_ms(None), C10D_FOREVER);
        assert_eq!(to_ms(Some(Duration::from_micros(1))), 1);
        assert_eq!(to_ms(Some(Duration::from_secs(300))), 300_000);
        assert_eq!(to_ms(Some(Duration::MAX)), i64::MAX);
    }
}
