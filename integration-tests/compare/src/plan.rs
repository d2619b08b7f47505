//! Payloads, rounds and durations of the measurements.

use std::time::Duration;

/// A payload, and the number of calls in flight when throughput is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) payload_bytes: usize,
    pub(crate) in_flight: usize,
}

pub(crate) const LOADS: [Load; 3] = [
    Load {
        name: "64 B",
        payload_bytes: 64,
        in_flight: 64,
    },
    Load {
        name: "1 KiB",
        payload_bytes: 1 << 10,
        in_flight: 64,
    },
    // 64 in flight would measure the memory bandwidth.
    Load {
        name: "1 MiB",
        payload_bytes: 1 << 20,
        in_flight: 8,
    },
];

/// The number of rounds and the duration of each measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    pub(crate) rounds: u16,
    /// The duration for one figure of one rival in a round.
    pub(crate) time: Duration,
    pub(crate) warm_up: Duration,
}

impl Plan {
    pub(crate) fn new(rounds: u16, seconds: f64) -> Self {
        let time = Duration::from_secs_f64(seconds);
        Self {
            rounds,
            time,
            warm_up: time / 2,
        }
    }

    pub(crate) fn quick() -> Self {
        Self {
            rounds: 1,
            time: Duration::from_millis(50),
            warm_up: Duration::from_millis(10),
        }
    }
}
