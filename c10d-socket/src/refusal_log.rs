//! Log lines about refused peers, limited in number.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::strangers::network;

/// Lines in an interval: enough to see what happens, and from where.
const LINES_MAX: u32 = 20;

/// Lines about one address in an interval, so that it does not hide other addresses.
const LINES_OF_ADDRESS_MAX: u32 = 4;

const INTERVAL: Duration = Duration::from_secs(10);

/// Decides which events that peers cause are logged, since a peer can cause thousands a second: in 10 s, 20 lines, and
/// 4 about one address. Counts the other events, to log their number later.
///
/// Pure: the time is an argument. Memory is bounded.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    since: Instant,
    /// Lines of this interval.
    lines: u32,
    by_address: HashMap<Option<IpAddr>, u32>,
    /// Events that were not logged, and not reported yet.
    silent: u64,
}

impl RefusalLog {
    /// No line yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            lines: 0,
            by_address: HashMap::new(),
            silent: 0,
        }
    }

    /// Counts an event. `address` is `None` if no single address has caused it. Returns the line to log about it, if any:
    /// the text, and how many events before it were not logged.
    pub(crate) fn line(
        &mut self,
        address: impl Into<Option<IpAddr>>,
        text: impl Display,
        now: Instant,
    ) -> Option<String> {
        self.next_interval(now);
        if self.lines >= LINES_MAX {
            self.silent += 1;
            return None;
        }
        let address = address.into().map(network);
        let of_address = self.by_address.entry(address).or_default();
        if *of_address >= LINES_OF_ADDRESS_MAX {
            self.silent += 1;
            return None;
        }
        *of_address += 1;
        self.lines += 1;
        Some(match std::mem::take(&mut self.silent) {
            0 => text.to_string(),
            silent => format!("{text} ({silent} earlier refusals were not logged)"),
        })
    }

    /// When [`report`](Self::report) has a line, unless an earlier line has the number.
    pub(crate) fn due(&self) -> Option<Instant> {
        (self.silent > 0).then(|| self.since + INTERVAL)
    }

    /// The line to log about events that were not logged, once their interval is over.
    pub(crate) fn report(&mut self, now: Instant) -> Option<String> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let passed = now.saturating_duration_since(self.since).as_secs();
        self.next_interval(now);
        let silent = std::mem::take(&mut self.silent);
        Some(format!(
            "{silent} more refusals in the last {passed} s were not logged"
        ))
    }

    fn next_interval(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= INTERVAL {
            self.since = now;
            self.lines = 0;
            self.by_address.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn one_address_gets_few_lines_and_all_together_get_more() {
        let start = Instant::now();
        let mut log = RefusalLog::new(start);
        for _ in 0..4 {
            assert_eq!(log.line(address(0), "x", start).as_deref(), Some("x"));
        }
        assert_eq!(log.line(address(0), "x", start), None);
        let line = log.line(address(1), "y", start);
        let text = "y (1 earlier refusals were not logged)";
        assert_eq!(line.as_deref(), Some(text));
        for number in 2..17 {
            assert_eq!(log.line(address(number), "z", start).as_deref(), Some("z"));
        }
        for number in 17..24 {
            assert_eq!(log.line(address(number), "z", start), None);
        }
        // In the next interval there is room again, and the first line counts the other events.
        let line = log.line(address(0), "x", start + INTERVAL);
        let text = "x (7 earlier refusals were not logged)";
        assert_eq!(line.as_deref(), Some(text));
        assert_eq!(log.due(), None);
    }

    #[test]
    fn what_was_not_logged_is_reported_when_no_line_follows() {
        let start = Instant::now();
        let mut log = RefusalLog::new(start);
        assert_eq!(log.due(), None);
        let lines = (0..5000).filter_map(|_| log.line(address(7), "x", start));
        assert_eq!(lines.count(), 4);
        let due = log.due().expect("4996 were not logged");
        assert_eq!(log.report(due - Duration::from_millis(1)), None);
        let report = log.report(due).expect("it is due");
        assert_eq!(
            report,
            "4996 more refusals in the last 10 s were not logged"
        );
        assert_eq!((log.due(), log.report(due + INTERVAL)), (None, None));
        assert_eq!(log.line(address(7), "x", due).as_deref(), Some("x"));
    }

    #[test]
    fn a_flood_of_many_addresses_costs_bounded_lines_and_memory() {
        let start = Instant::now();
        let mut log = RefusalLog::new(start);
        let (mut lines, mut reported) = (0, 0);
        // 100 s.
        for number in 0..1_000_000_u32 {
            let now = start + Duration::from_micros(100) * number;
            lines += usize::from(log.line(address(number), "x", now).is_some());
            reported += usize::from(log.report(now).is_some());
            assert!(log.by_address.len() <= LINES_MAX as usize);
        }
        assert_eq!((lines, reported), (200, 0), "the lines count the others");
    }
}
