//! Lines of the log that are short enough for a terminal.

use log::{Level, Log, Metadata, Record};

/// The most characters of a message: 160 with the time and the level, which need 29. Terminals and log viewers break or cut
/// longer lines.
const MESSAGE_CHARS_MAX: usize = 131;

/// Cuts each message to one short line, and logs the whole message at the level "debug".
///
/// The text of an error can be of any length, so no author of a line can ensure this. Messages with several lines are left
/// as they are, because the further lines are the output of another program.
pub(crate) struct ShortLines<L>(pub(crate) L);

impl<L: Log> Log for ShortLines<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() > Level::Info || !self.enabled(record.metadata()) {
            return self.0.log(record);
        }
        let whole = record.args().to_string();
        let Some(short) = shortened(&whole) else {
            return self.0.log(record);
        };
        for (level, text) in [(record.level(), &short), (Level::Debug, &whole)] {
            let mut line = Record::builder();
            line.metadata(record.metadata().clone()).level(level);
            self.0.log(&line.args(format_args!("{text}")).build());
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// The beginning of a message that is too long; `None` for other messages.
fn shortened(message: &str) -> Option<String> {
    let is_long = message.chars().nth(MESSAGE_CHARS_MAX).is_some() && !message.contains('\n');
    is_long.then(|| {
        let mut short: String = message.chars().take(MESSAGE_CHARS_MAX - 1).collect();
        short.push('…');
        short
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Recorder(Mutex<Vec<(Level, String)>>, Level);

    impl Log for Recorder {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.level() <= self.1
        }

        fn log(&self, record: &Record<'_>) {
            if self.enabled(record.metadata()) {
                let line = (record.level(), record.args().to_string());
                self.0.lock().unwrap().push(line);
            }
        }

        fn flush(&self) {}
    }

    /// The lines of a log of this level about one message.
    fn logged(level: Level, message: &str) -> Vec<(Level, String)> {
        let log = ShortLines(Recorder(Mutex::default(), level));
        let mut record = Record::builder();
        record.level(Level::Warn);
        log.log(&record.args(format_args!("{message}")).build());
        log.0.0.into_inner().unwrap()
    }

    #[test]
    fn a_long_message_is_cut_and_whole_at_the_level_debug() {
        let long = "é".repeat(132);
        let cut = (Level::Warn, format!("{}…", "é".repeat(130)));
        let whole = (Level::Debug, long.clone());
        let lines = [cut, whole];
        assert_eq!(logged(Level::Info, &long), lines[..1]);
        assert_eq!(logged(Level::Debug, &long), lines);
        assert_eq!(logged(Level::Error, &long), []);
        for message in ["é".repeat(131), format!("output:\n{long}")] {
            assert_eq!(logged(Level::Debug, &message), [(Level::Warn, message)]);
        }
    }
}
