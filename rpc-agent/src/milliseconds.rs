//! Durations in whole milliseconds, as deadlines are kept and sent.

use std::time::Duration;

/// Rounded up, so that no time becomes none at all; `u64::MAX` at most.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    // Not by `as_nanos`: a division of 128 bits takes as long as the rest of a small call's bookkeeping.
    let of_second = u64::from(time.subsec_nanos().div_ceil(1_000_000));
    time.as_secs()
        .saturating_mul(1_000)
        .saturating_add(of_second)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_milliseconds() {
        let ns = Duration::from_nanos;
        let cases = [
            (0, 0),
            (1, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (999_999_999, 1_000),
        ];
        for (time_ns, ms) in cases {
            assert_eq!(milliseconds(ns(time_ns)), ms, "{time_ns} ns");
        }
        assert_eq!(milliseconds(Duration::from_millis(1 << 50)), 1 << 50);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }
}
