//! The gaps of a log file: which bytes it receives of its stream, although it cannot be written at times. Pure.

use std::io;
use std::time::{Duration, Instant};

/// How long a file that could not be written is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The missing output of one log file. Where output is missing, the file gets a line with the number of bytes.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The number of missing bytes that no line has reported.
    missing: u64,
    why_missing: String,
    notice: Option<Notice>,
    /// Set by a failed write.
    retry_at: Option<Instant>,
    is_inside_line: bool,
}

/// A line about missing output, which is being written.
#[derive(Debug)]
struct Notice {
    rest: Vec<u8>,
    is_begun: bool,
    missing: u64,
}

/// The bytes that the file gets next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Bytes of a notice.
    Notice(Vec<u8>),
    /// The output that was given.
    Output,
}

impl Gaps {
    /// Returns the bytes to write before or of `output`. `None` if there are none: `output` is empty or [missing](Self::missed).
    pub(super) fn next(&mut self, now: Instant, output: &[u8]) -> Option<Next> {
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        if self.notice.is_none() && self.missing > 0 {
            let missing = std::mem::take(&mut self.missing);
            let line_end = if self.is_inside_line { "\n" } else { "" };
            let text = format!(
                "{line_end}[c10d: {missing} bytes of output are missing here: {}]\n",
                self.why_missing
            );
            self.notice = Some(Notice {
                rest: text.into_bytes(),
                is_begun: false,
                missing,
            });
        }
        match &self.notice {
            Some(notice) => Some(Next::Notice(notice.rest.clone())),
            None => (!output.is_empty()).then_some(Next::Output),
        }
    }

    /// The file has taken this many bytes of the notice.
    pub(super) fn wrote_notice(&mut self, count: usize) {
        if let Some(notice) = &mut self.notice {
            notice.is_begun = true;
            notice.rest.drain(..count);
            self.is_inside_line = !notice.rest.is_empty();
            if notice.rest.is_empty() {
                self.notice = None;
                self.retry_at = None;
            }
        }
    }

    /// The file has taken this output.
    pub(super) fn wrote(&mut self, output: &[u8]) {
        self.retry_at = None;
        if let Some(last) = output.last() {
            self.is_inside_line = *last != b'\n';
        }
    }

    /// The file did not take what it should get.
    pub(super) fn failed(&mut self, now: Instant, error: &io::Error) {
        self.retry_at = Some(now + RETRY_AFTER);
        self.why_missing = error.to_string();
        // One line reports these bytes together with the bytes that the file misses from now on.
        if let Some(notice) = self.notice.take_if(|notice| !notice.is_begun) {
            self.missing += notice.missing;
        }
    }

    /// The file will not get this many bytes.
    pub(super) const fn missed(&mut self, count: usize) {
        self.missing += count as u64;
    }

    /// Returns when to try again, even without more output; `None` if nothing is missing.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
            .filter(|_| self.missing > 0 || self.notice.is_some())
    }

    /// The next attempt is the last one.
    pub(super) const fn hurry(&mut self) {
        self.retry_at = None;
    }
}

#[cfg(test)]
mod tests {
    use crate::output::gaps::*;

    /// A file with this much room left.
    struct Model {
        gaps: Gaps,
        file: Vec<u8>,
        room: usize,
        attempts: usize,
    }

    impl Model {
        fn new(room: usize) -> Self {
            Self {
                gaps: Gaps::default(),
                file: Vec::new(),
                room,
                attempts: 0,
            }
        }

        fn write(&mut self, bytes: &[u8]) -> Result<usize, io::Error> {
            self.attempts += 1;
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::Error::other("full"));
            }
            self.room -= count;
            self.file.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn take(&mut self, now: Instant, mut output: &[u8]) {
            while let Some(next) = self.gaps.next(now, output) {
                let bytes = match &next {
                    Next::Notice(bytes) => bytes,
                    Next::Output => output,
                };
                match (self.write(bytes), next) {
                    (Ok(count), Next::Notice(_)) => self.gaps.wrote_notice(count),
                    (Ok(count), Next::Output) => {
                        self.gaps.wrote(&output[..count]);
                        output = &output[count..];
                    }
                    (Err(error), _) => self.gaps.failed(now, &error),
                }
            }
            self.gaps.missed(output.len());
        }

        fn text(&self) -> &str {
            std::str::from_utf8(&self.file).unwrap()
        }
    }

    const A_WHILE: Duration = Duration::from_millis(999);

    #[test]
    fn a_line_says_how_much_is_missing_before_the_file_goes_on() {
        let now = Instant::now();
        let mut model = Model::new(8);
        model.take(now, b"first\nsecond\n");
        model.take(now + A_WHILE, b"third\n");
        // Left alone for a while, although there is room.
        model.room = 1000;
        model.take(now + A_WHILE, b"fourth\n");
        assert_eq!((model.text(), model.attempts), ("first\nse", 2));
        assert_eq!(model.gaps.retry_at(), Some(now + RETRY_AFTER));
        model.take(now + RETRY_AFTER, b"fifth\n");
        let expected = "first\nse\n[c10d: 18 bytes of output are missing here: full]\nfifth\n";
        assert_eq!(model.text(), expected);
        assert_eq!(model.gaps.retry_at(), None);
    }

    #[test]
    fn a_line_is_written_without_more_output() {
        let now = Instant::now();
        let mut model = Model::new(0);
        model.take(now, b"lost\n");
        model.room = 1000;
        model.take(now, b"");
        assert_eq!(model.text(), "");
        model.gaps.hurry();
        model.take(now, b"");
        assert_eq!(
            model.text(),
            "[c10d: 5 bytes of output are missing here: full]\n"
        );
        model.take(now, b"");
        assert_eq!(model.gaps.retry_at(), None);
    }

    /// All output is in the file, or counted where it is missing, and each line about that is whole.
    #[test]
    fn any_room_at_any_time_gives_whole_lines_that_count_all() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let mut model = Model::new(0);
        let mut now = Instant::now();
        let mut given = 0;
        for _ in 0..3000 {
            now += Duration::from_millis(random.u64(..700));
            if random.bool() {
                model.room += random.usize(..70);
            }
            let output = vec![b'x'; random.usize(..50)];
            given += output.len();
            model.take(now, &output);
        }
        model.room = 1000;
        model.gaps.hurry();
        model.take(now, b"");
        let text = model.text();
        let written = text.bytes().filter(|byte| *byte == b'x').count();
        let missing = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("[c10d: ")?;
            let count = rest.strip_suffix(" bytes of output are missing here: full]");
            count.expect("a whole line").parse::<usize>().ok()
        });
        assert_eq!(written + missing.sum::<usize>(), given);
        assert!(text.contains("c10d"));
    }
}
