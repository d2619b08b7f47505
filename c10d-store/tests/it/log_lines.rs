//! Records the warnings and errors that the crate logs, for tests.

use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw::LONG;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Starts recording. Later calls have no effect.
pub(crate) fn record() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&Recorder).expect("no other logger in this binary");
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// How many lines contain one of the texts.
pub(crate) fn count_with(texts: &[String]) -> usize {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let has_one = |line: &&String| texts.iter().any(|text| line.contains(text));
    lines.iter().filter(has_one).count()
}

/// Waits for a line that contains `text`.
pub(crate) fn wait_for(text: &str) -> String {
    let deadline = Instant::now() + LONG;
    loop {
        let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.iter().find(|line| line.contains(text)) {
            return line.clone();
        }
        drop(lines);
        assert!(Instant::now() < deadline, "no log line contains {text:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
