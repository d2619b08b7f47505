//! When a soak does what. Knows no clock.

use std::time::Duration;

/// When things are due, in the time of the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub(super) duration: Duration,
    pub(super) sample: Duration,
    /// An event of the long job.
    pub(super) event: Duration,
    /// A restart of a server: the store and the relay take turns.
    pub(super) restart: Duration,
    pub(super) warm_up: Duration,
}

impl Schedule {
    /// `restart_every`: between two restarts of one server, if it is not the default.
    pub(super) fn new(duration: Duration, restart_every: Option<Duration>) -> Self {
        let second = Duration::from_secs(1);
        let restart = restart_every.unwrap_or(duration / 8);
        Self {
            duration,
            sample: (duration / 60).clamp(4 * second, 60 * second),
            event: (duration / 500).clamp(3 * second, 30 * second),
            // Two servers.
            restart: restart / 2,
            warm_up: duration / 10,
        }
    }
}
