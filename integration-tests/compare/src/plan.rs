//! What is measured, how often and for how long.

use std::time::Duration;

/// A payload, and how many of it are in flight where it is about throughput.
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
    // 64 of them would measure the machine's memory.
    Load {
        name: "1 MiB",
        payload_bytes: 1 << 20,
        in_flight: 8,
    },
];

/// How often, and how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    pub(crate) rounds: u16,
    /// For one figure of one rival.
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
