//! Whether an agent's loop answers. Pure: `now` is in seconds since the epoch.

use std::time::Duration;

/// PyTorch's: after this time without progress an agent counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Whether an agent makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulse {
    /// Whether the agent's loop, and its watchdog's if there is one, have made progress in the last 60 s.
    pub is_alive: bool,
    /// When they did last, in seconds since the epoch.
    pub last_progress: u64,
}

/// The probes of an agent.
#[derive(Debug, Default)]
pub(super) struct Probes {
    is_supervising: bool,
    /// The time of a probe without an answer. There is one at a time, so that probes do not pile up.
    unanswered_since: Option<f64>,
}

impl Probes {
    pub(super) fn set_supervising(&mut self, is_supervising: bool) {
        self.is_supervising = is_supervising;
        self.unanswered_since = None;
    }

    /// Whether to send a probe now.
    pub(super) fn begin(&mut self, now: f64) -> bool {
        let must_send = self.is_supervising && self.unanswered_since.is_none();
        if must_send {
            self.unanswered_since = Some(now);
        }
        must_send
    }

    pub(super) fn answer(&mut self) {
        self.unanswered_since = None;
    }

    /// The pulse as of now. `watchdog`: when the watchdog made progress last, if there is one.
    pub(super) fn pulse(&self, watchdog: Option<f64>, now: f64) -> Pulse {
        let oldest = [self.unanswered_since, watchdog]
            .into_iter()
            .flatten()
            .fold(now, f64::min);
        Pulse {
            is_alive: now - oldest <= DEAD_AFTER.as_secs_f64(),
            last_progress: oldest as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(is_alive: bool, last_progress: u64) -> Pulse {
        Pulse {
            is_alive,
            last_progress,
        }
    }

    #[test]
    fn an_agent_that_does_not_answer_is_dead_after_a_minute() {
        let mut probes = Probes::default();
        probes.set_supervising(true);
        assert!(probes.begin(100.0));
        probes.answer();
        assert_eq!(probes.pulse(None, 100.5), pulse(true, 100));
        assert!(probes.begin(110.0));
        assert!(!probes.begin(120.0), "one probe at a time");
        assert_eq!(probes.pulse(None, 170.0), pulse(true, 110));
        assert_eq!(probes.pulse(None, 170.5), pulse(false, 110));
        probes.answer();
        assert_eq!(probes.pulse(None, 171.0), pulse(true, 171));
    }

    #[test]
    fn an_agent_that_does_not_supervise_is_not_asked() {
        let mut probes = Probes::default();
        assert!(!probes.begin(100.0));
        assert_eq!(probes.pulse(None, 900.0), pulse(true, 900));
        probes.set_supervising(true);
        assert!(probes.begin(900.0));
        probes.set_supervising(false);
        assert_eq!(probes.pulse(None, 1000.0), pulse(true, 1000));
    }

    #[test]
    fn a_watchdog_that_stands_still_counts() {
        let probes = Probes::default();
        assert_eq!(probes.pulse(Some(999.0), 1000.0), pulse(true, 999));
        assert_eq!(probes.pulse(Some(900.0), 1000.0), pulse(false, 900));
        // A wall clock that was set back.
        assert_eq!(probes.pulse(Some(2000.0), 1000.0), pulse(true, 1000));
    }
}
