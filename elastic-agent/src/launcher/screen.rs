//! Where a launcher writes what is for people: beside the log, which goes through the crate `log`.

use std::fmt::Debug;
use std::io::{self, Write as _};
use std::time::Duration;

/// What a launcher says to people. Its methods are called from several threads.
pub trait Screen: Debug + Send + Sync {
    /// Writes a message of whole lines that starts in the launcher's name. Must not fail: nobody may read it.
    fn message(&self, text: &str);

    /// Writes whole lines as they are, for example a report on failures.
    fn text(&self, text: &str);

    /// Whether [`show`](Self::show) has an effect.
    fn is_live(&self) -> bool {
        false
    }

    /// Replaces the line that shows what is going on. Its text may come from other nodes, and can have any characters.
    fn show(&self, line: &str) {
        let _ = line;
    }

    /// Removes that line, before workers write to the same terminal.
    fn hide(&self) {}

    /// Waits until all is written, unless nothing was accepted for `stuck_max`.
    fn finish(&self, stuck_max: Duration) {
        let _ = stuck_max;
    }
}

/// Writes to the standard error of this process, and waits for its reader.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandardError;

impl Screen for StandardError {
    fn message(&self, text: &str) {
        self.text(&format!("launcher: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
