//! Measures latencies, and their statistics.

use std::time::{Duration, Instant};

/// Repeats an operation for `time`, at least once. Returns how long each took.
pub(super) fn repeat<E>(
    time: Duration,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Duration>, E> {
    let mut times = Vec::new();
    let mut started = Instant::now();
    let end = started + time;
    while times.is_empty() || started < end {
        operation()?;
        times.push(started.elapsed());
        started = Instant::now();
    }
    Ok(times)
}

/// The median and the 99th percentile in microseconds. `times` holds at least one.
pub(super) fn percentiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let last = times.len() - 1;
    [last / 2, last * 99 / 100].map(|index| times[index].as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times: Vec<_> = (1..=201).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(&mut times), [101.0, 199.0]);
        assert_eq!(percentiles(&mut [Duration::from_micros(7)]), [7.0, 7.0]);
    }
}
