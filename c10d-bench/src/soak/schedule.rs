//! When a soak does what. Knows no clock.

use std::time::Duration;

use super::SoakArgs;

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
    pub(super) fn new(args: &SoakArgs) -> Self {
        let duration = args.duration();
        let second = Duration::from_secs(1);
        let restart = args.restart_every.map_or(duration / 8, |minutes| {
            Duration::from_secs_f64(minutes * 60.0)
        });
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
