//! Decides when long waits are reported in the log, and formats the report.
//!
//! Pure: the current time is an argument, the log line a result. A wait of minutes is normal in a job
//! whose workers have all joined (a barrier, a slow step), so a report is a warning only while workers
//! are missing.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::{Printable, printable};

/// The longest interval between two reports of one wait.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// The most characters shown of a key.
const KEY_CHARS_MAX: usize = 80;

/// Decides when the next report is due. Armed only while a connection waits.
#[derive(Debug)]
pub(super) struct StallWatch {
    after: Duration,
    due: Option<Instant>,
    /// The oldest wait of the last report, and the interval after it.
    reported: Option<(Instant, Duration)>,
}

/// A report of the waits.
#[derive(Debug)]
pub(super) struct Stall {
    /// The number of waiting connections.
    pub(super) waiting: usize,
    pub(super) oldest_since: Instant,
    pub(super) oldest_peer: SocketAddr,
    /// Some of the keys, each with the number of connections that wait for it.
    pub(super) keys: Vec<(Vec<u8>, usize)>,
    pub(super) more_keys: usize,
    pub(super) workers: Workers,
}

/// The workers of the job, as far as the server knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workers {
    /// The number of workers in the job, if known.
    pub(super) world_size: Option<usize>,
    /// The number of workers that have counted themselves, if any has.
    pub(super) joined: Option<i64>,
    pub(super) connections: usize,
}

impl Workers {
    /// Whether workers are certainly missing. Every worker has at least one connection.
    fn are_missing(self) -> bool {
        let Some(world_size) = self.world_size else {
            return false;
        };
        match self.joined {
            Some(joined) => i64::try_from(world_size).is_ok_and(|size| joined < size),
            None => self.connections < world_size,
        }
    }
}

impl StallWatch {
    pub(super) const fn new(after: Duration) -> Self {
        Self {
            after,
            due: None,
            reported: None,
        }
    }

    /// Must be called whenever the number of waits may have changed.
    pub(super) fn observe(&mut self, is_anyone_waiting: bool, now: impl FnOnce() -> Instant) {
        if !is_anyone_waiting {
            self.due = None;
            self.reported = None;
        } else if self.due.is_none() {
            self.due = now().checked_add(self.after);
        }
    }

    /// When the next report may be due.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether to report the oldest wait now; sets the next due time.
    pub(super) fn is_report_due(&mut self, oldest_since: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(oldest_since) < self.after {
            self.due = oldest_since.checked_add(self.after);
            return false;
        }
        let pause = match self.reported {
            Some((since, pause)) if since == oldest_since => (pause * 2).min(PAUSE_MAX.max(pause)),
            _ => self.after,
        };
        self.reported = Some((oldest_since, pause));
        self.due = now.checked_add(pause);
        true
    }
}

impl Stall {
    /// The log level and line.
    pub(super) fn line(&self, now: Instant) -> (log::Level, String) {
        let level = if self.workers.are_missing() {
            log::Level::Warn
        } else {
            log::Level::Debug
        };
        let age = now.saturating_duration_since(self.oldest_since);
        let mut line = format!(
            "{}; waiting connections: {}, the longest for {} s: {}; keys waited for: ",
            self.workers,
            self.waiting,
            age.as_secs(),
            self.oldest_peer
        );
        for (index, (key, connections)) in self.keys.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            line.push_str(&format!("{separator}\"{}\" (by {connections})", shown(key)));
        }
        if self.more_keys > 0 {
            line.push_str(&format!(" and {} more", self.more_keys));
        }
        (level, line)
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.joined, self.world_size) {
            (Some(joined), Some(size)) => write!(f, "{joined} of {size} workers have joined"),
            (Some(joined), None) => write!(f, "{joined} workers have joined"),
            (None, Some(size)) => write!(f, "{} connections for {size} workers", self.connections),
            (None, None) => write!(f, "{} connections", self.connections),
        }
    }
}

/// A key as its user wrote it.
fn shown(key: &[u8]) -> Printable<'_> {
    printable(key.strip_prefix(b"/").unwrap_or(key), KEY_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(now: Instant, workers: Workers) -> Stall {
        Stall {
            waiting: 3,
            oldest_since: now - Duration::from_secs(30),
            oldest_peer: ([10, 0, 0, 2], 41234).into(),
            keys: vec![(b"/epoch".to_vec(), 2), (vec![b'k'; 200], 1)],
            more_keys: 5,
            workers,
        }
    }

    /// An hour in virtual time.
    #[test]
    fn one_wait_is_reported_at_growing_intervals_and_only_while_it_lasts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = StallWatch::new(Duration::from_secs(30));
        watch.observe(false, || unreachable!("the time does not matter"));
        assert_eq!(watch.due(), None);
        watch.observe(true, || start);

        let mut reports = Vec::new();
        while let Some(due) = watch.due().filter(|due| *due <= at(3600)) {
            assert!(watch.is_report_due(start, due));
            reports.push((due - start).as_secs());
            watch.observe(true, || unreachable!("it is armed"));
        }
        assert_eq!(
            reports,
            [30, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]
        );
        watch.observe(false, || unreachable!("the time does not matter"));
        assert_eq!(watch.due(), None);
    }

    #[test]
    fn short_waits_are_not_reported_and_reports_keep_the_first_interval() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = StallWatch::new(Duration::from_secs(30));
        watch.observe(true, || start);
        // The first wait has ended, and a later one is the oldest.
        assert!(!watch.is_report_due(at(20), at(30)));
        assert_eq!(watch.due(), Some(at(50)));
        assert!(watch.is_report_due(at(20), at(50)));
        // A different wait each time: the interval neither grows nor shrinks.
        assert_eq!(watch.due(), Some(at(80)));
        assert!(watch.is_report_due(at(21), at(80)));
        assert_eq!(watch.due(), Some(at(110)));
    }

    #[test]
    fn a_report_is_a_warning_only_while_workers_are_missing() {
        let now = Instant::now();
        let level = |world_size, joined, connections| {
            let workers = Workers {
                world_size,
                joined,
                connections,
            };
            stall(now, workers).line(now).0
        };
        use log::Level::{Debug, Warn};
        assert_eq!(level(Some(4), Some(3), 9), Warn);
        assert_eq!(level(Some(4), Some(4), 4), Debug);
        assert_eq!(level(Some(4), Some(8), 4), Debug, "joined again");
        assert_eq!(level(Some(4), None, 3), Warn);
        assert_eq!(level(Some(4), None, 4), Debug);
        assert_eq!(level(None, Some(3), 3), Debug);
        assert_eq!(level(None, None, 1), Debug);
    }

    #[test]
    fn the_line_names_what_is_known_and_is_bounded() {
        let now = Instant::now();
        let workers = Workers {
            world_size: Some(4),
            joined: Some(3),
            connections: 3,
        };
        let (_, line) = stall(now, workers).line(now);
        let long = "k".repeat(79);
        assert_eq!(
            line,
            format!(
                "3 of 4 workers have joined; waiting connections: 3, the longest for 30 s: \
                 10.0.0.2:41234; keys waited for: \"epoch\" (by 2), \"{long}…\" (by 1) and 5 more"
            )
        );
    }
}
