//! The launcher's screen: standard error, with the live line on a terminal.

use std::io::Write as _;
use std::time::Duration;

use elastic_agent::Screen;

use crate::terminal;

/// Standard error, through the queue that all output of this command takes.
#[derive(Debug)]
pub(super) struct Terminal;

impl Screen for Terminal {
    fn message(&self, text: &str) {
        self.text(&format!("c10d run: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = terminal::StandardError.write_all(text.as_bytes());
    }

    fn is_live(&self) -> bool {
        terminal::is_live()
    }

    fn show(&self, line: &str) {
        terminal::show(line);
    }

    fn hide(&self) {
        terminal::hide();
    }

    fn finish(&self, stuck_max: Duration) {
        terminal::finish(stuck_max);
    }
}
