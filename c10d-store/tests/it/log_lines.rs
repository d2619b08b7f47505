//! Records the warnings and errors that are logged in this process. The tests of `rpc-agent` also use this file.

use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// The lines so far.
pub(crate) fn lines() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Waits for a line that contains `text`.
pub(crate) fn wait_for(text: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(line) = lines().into_iter().find(|line| line.contains(text)) {
            return line;
        }
        assert!(Instant::now() < deadline, "no log line contains {text:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
