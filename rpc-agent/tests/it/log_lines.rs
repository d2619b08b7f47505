//! Records the warnings and errors of a test that has a process of its own.

use std::sync::{Mutex, PoisonError};

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

/// Starts recording.
pub(crate) fn record() {
    log::set_logger(&Recorder).expect("no other logger in this process");
    log::set_max_level(log::LevelFilter::Warn);
}

/// The lines so far.
pub(crate) fn lines() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
