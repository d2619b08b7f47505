//! The lines that PyTorch's timers write: one JSON object for each timer that begins or ends.
//!
//! In PyTorch: `FileTimerRequest` (`torch/distributed/elastic/timer/file_based_local_timer.py`); 2.4 to 2.15 write the
//! same.

use serde_json::Value;

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
    /// How many lines were no requests.
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

    /// How many lines were no requests since the last call.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
