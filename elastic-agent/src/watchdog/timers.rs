//! The timers of the workers: the lines that PyTorch writes about them, which run, and which have expired. Pure.
//!
//! In PyTorch: `FileTimerRequest` (`torch/distributed/elastic/timer/file_based_local_timer.py`); 2.4 to 2.15 write the
//! same lines.

use std::collections::BTreeMap;

use serde_json::Value;

/// How many timers may run at once. A worker has one for each block that it is in.
const TIMERS_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Timer {
    expires_at: f64,
    signal: i32,
}

/// A process with timers that have expired.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expired {
    pub(super) pid: i32,
    /// The names of the timers in the order in which they expired.
    pub(super) scopes: Vec<String>,
    /// The signal of the first of these timers with a signal.
    pub(super) signal: Option<i32>,
}

/// All timers that run, by process and name.
#[derive(Debug, Default)]
pub(super) struct Timers {
    timers: BTreeMap<(i32, String), Timer>,
}

impl Timers {
    /// Starts, replaces or removes a timer. Returns false, and changes nothing, if there are too many.
    pub(super) fn apply(&mut self, request: TimerRequest) -> bool {
        let key = (request.pid, request.scope);
        if request.expires_at < 0.0 {
            self.timers.remove(&key);
            return true;
        }
        if self.timers.len() >= TIMERS_MAX && !self.timers.contains_key(&key) {
            return false;
        }
        let timer = Timer {
            expires_at: request.expires_at,
            signal: request.signal,
        };
        self.timers.insert(key, timer);
        true
    }

    /// Removes the timers of processes that have ended.
    pub(super) fn retain(&mut self, mut is_running: impl FnMut(i32) -> bool) {
        let mut known: Option<(i32, bool)> = None;
        self.timers.retain(|(pid, _), _| {
            let is = match known {
                Some((last, is)) if last == *pid => is,
                _ => is_running(*pid),
            };
            known = Some((*pid, is));
            is
        });
    }

    /// When the next timer expires, in seconds since the epoch.
    pub(super) fn next_expiry(&self) -> Option<f64> {
        let expiries = self.timers.values().map(|timer| timer.expires_at);
        expiries.min_by(f64::total_cmp)
    }

    /// Takes the processes with timers that have expired at `now`, in seconds since the epoch, and removes all their
    /// timers.
    pub(super) fn take_expired(&mut self, now: f64) -> Vec<Expired> {
        let mut expired: BTreeMap<i32, Vec<(Timer, String)>> = BTreeMap::new();
        for ((pid, scope), timer) in &self.timers {
            if timer.expires_at <= now {
                let of_process = expired.entry(*pid).or_default();
                of_process.push((*timer, scope.clone()));
            }
        }
        if expired.is_empty() {
            return Vec::new();
        }
        self.timers.retain(|(pid, _), _| !expired.contains_key(pid));
        let processes = expired.into_iter().map(|(pid, mut timers)| {
            timers.sort_by(|a, b| a.0.expires_at.total_cmp(&b.0.expires_at));
            let signal = timers.iter().map(|(timer, _)| timer.signal);
            Expired {
                pid,
                signal: signal.into_iter().find(|signal| *signal > 0),
                scopes: timers.into_iter().map(|(_, scope)| scope).collect(),
            }
        });
        processes.collect()
    }
}

/// The longest line: PyTorch's client writes no more than PIPE_BUF bytes and the newline, in one piece.
const LINE_BYTES_MAX: usize = 4096;

/// A change of a timer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimerRequest {
    pub(super) pid: i32,
    /// The name of the timer within its process.
    pub(super) scope: String,
    /// When it expires, in seconds since the epoch; negative to remove it.
    pub(super) expires_at: f64,
    /// The number of the signal for the process; 0 or less for none.
    pub(super) signal: i32,
}

impl TimerRequest {
    fn parse(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let integer = |key| i32::try_from(value.get(key)?.as_i64()?).ok();
        Some(Self {
            pid: integer("pid").filter(|pid| *pid > 0)?,
            scope: value.get("scope_id")?.as_str()?.to_owned(),
            expires_at: value.get("expiration_time")?.as_f64()?,
            signal: integer("signal")?,
        })
    }
}

/// Splits what is read into requests, in any pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that has begun.
    line: Vec<u8>,
    /// The present line was too long, and is ignored up to its end.
    is_too_long: bool,
    /// The number of lines that were not requests.
    refused: u64,
}

impl Lines {
    /// Passes the requests in `bytes` on.
    pub(super) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(TimerRequest)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.append(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            let is_too_long = std::mem::take(&mut self.is_too_long);
            match TimerRequest::parse(&line).filter(|_| !is_too_long) {
                Some(request) => take(request),
                None => self.refused += 1,
            }
        }
        self.append(rest);
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.line.len() + bytes.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Returns the number of lines since the last call that were not requests.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pid: i32, scope: &str, expires_at: f64, signal: i32) -> TimerRequest {
        TimerRequest {
            pid,
            scope: scope.to_owned(),
            expires_at,
            signal,
        }
    }

    fn expired(pid: i32, scopes: &[&str], signal: Option<i32>) -> Expired {
        Expired {
            pid,
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            signal,
        }
    }

    fn timers(requests: impl IntoIterator<Item = TimerRequest>) -> Timers {
        let mut timers = Timers::default();
        for request in requests {
            assert!(timers.apply(request));
        }
        timers
    }

    #[test]
    fn a_timer_expires_once_at_its_time() {
        let mut timers = timers([request(1, "a", 100.0, 9)]);
        assert_eq!(timers.next_expiry(), Some(100.0));
        assert_eq!(timers.take_expired(99.9), []);
        assert_eq!(timers.take_expired(100.0), [expired(1, &["a"], Some(9))]);
        assert_eq!(timers.take_expired(200.0), []);
        assert_eq!(timers.next_expiry(), None);
    }

    #[test]
    fn a_timer_that_ends_or_begins_anew_does_not_expire() {
        let mut timers = timers([
            request(1, "a", 100.0, 9),
            request(1, "b", 100.0, 9),
            request(2, "a", 100.0, 9),
            request(1, "a", -1.0, 0),
            request(1, "b", 300.0, 9),
            request(7, "unknown", -1.0, 0),
        ]);
        assert_eq!(timers.take_expired(200.0), [expired(2, &["a"], Some(9))]);
        assert_eq!(timers.next_expiry(), Some(300.0));
    }

    #[test]
    fn the_first_signal_counts_and_other_timers_of_the_process_end() {
        let mut timers = timers([
            request(1, "a", 103.0, 9),
            request(1, "b", 102.0, 15),
            request(1, "c", 101.0, 0),
            request(1, "d", 500.0, 9),
            request(2, "a", 101.0, -1),
            request(3, "a", 500.0, 9),
        ]);
        let expected = [
            expired(1, &["c", "b", "a"], Some(15)),
            expired(2, &["a"], None),
        ];
        assert_eq!(timers.take_expired(104.0), expected);
        assert_eq!(timers.take_expired(1000.0), [expired(3, &["a"], Some(9))]);
    }

    #[test]
    fn the_number_of_timers_is_limited() {
        let many = (0..4096).map(|number| request(1 + number / 8, &number.to_string(), 1.0, 9));
        let mut timers = timers(many);
        assert!(!timers.apply(request(1, "new", 1.0, 9)));
        assert!(timers.apply(request(1, "0", 2.0, 9)));
        timers.retain(|pid| pid != 1);
        assert_eq!(timers.timers.len(), 4096 - 8);
        assert!(timers.apply(request(1, "new", 1.0, 9)));
    }

    #[test]
    fn any_number_is_a_time() {
        for time in [0.0, f64::MAX, f64::INFINITY, f64::NAN, 1e-300] {
            let mut timers = timers([request(1, "a", time, 9)]);
            timers.take_expired(100.0);
            timers.next_expiry();
        }
    }

    const ACQUIRE: &[u8] = br#"{"version": 1, "pid": 42, "scope_id": "a.py#7", "expiration_time": 1800000000.5, "signal": 9}
"#;

    fn requests(pieces: &[&[u8]]) -> (Vec<TimerRequest>, u64) {
        let mut lines = Lines::default();
        let mut requests = Vec::new();
        for piece in pieces {
            lines.push(piece, |request| requests.push(request));
        }
        let refused = lines.take_refused();
        assert_eq!(lines.take_refused(), 0);
        (requests, refused)
    }

    #[test]
    fn requests_of_pytorch_are_read_in_any_pieces() {
        let release =
            br#"{"version": 1, "pid": 42, "scope_id": "a.py#7", "expiration_time": -1, "signal": 0}
"#;
        let all = [ACQUIRE, release].concat();
        let expected = |expires_at, signal| TimerRequest {
            pid: 42,
            scope: "a.py#7".to_owned(),
            expires_at,
            signal,
        };
        let expected = vec![expected(1_800_000_000.5, 9), expected(-1.0, 0)];
        for size in 1..=all.len() {
            let pieces: Vec<&[u8]> = all.chunks(size).collect();
            assert_eq!(requests(&pieces), (expected.clone(), 0), "{size}");
        }
    }

    #[test]
    fn lines_that_are_no_requests_are_counted_and_hide_no_other() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let mut deep = vec![b'['; LINE_BYTES_MAX];
        deep.push(b'\n');
        for bad in [
            b"\n".as_slice(),
            b"no json\n",
            b"{}\n",
            br#"{"pid": 0, "scope_id": "a", "expiration_time": 1, "signal": 9}
"#,
            br#"{"pid": -1, "scope_id": "a", "expiration_time": 1, "signal": 9}
"#,
            br#"{"pid": 99999999999, "scope_id": "a", "expiration_time": 1, "signal": 9}
"#,
            br#"{"pid": 1, "scope_id": 2, "expiration_time": 1, "signal": 9}
"#,
            br#"{"pid": 1, "scope_id": "a", "expiration_time": NaN, "signal": 9}
"#,
            &deep,
            &[&long[..], b"\n"].concat(),
        ] {
            let (requests, refused) = requests(&[bad, ACQUIRE]);
            assert_eq!((requests.len(), refused), (1, 1), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            lines.push(&[b'x'; 1000], |request| panic!("{request:?}"));
            assert!(lines.line.len() <= LINE_BYTES_MAX);
        }
    }
}
