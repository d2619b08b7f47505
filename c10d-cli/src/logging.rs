//! The log of the command, with lines that are short enough for a terminal.

use log::{Level, Log, Metadata, Record};

use crate::terminal;

/// The most characters of a message: 160 with the time and the level, which need 29. Terminals and log viewers break or cut
/// longer lines.
const MESSAGE_CHARS_MAX: usize = 131;

/// Sends the log to standard error, above the live line.
pub(crate) fn start(default_level: &str) {
    let has_colors =
        terminal::is_live() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let style = if has_colors { "always" } else { "never" };
    let environment = env_logger::Env::default()
        .default_filter_or(default_level)
        .default_write_style_or(style);
    let logger = env_logger::Builder::from_env(environment)
        // The modules that log are for those who choose by them.
        .format_target(std::env::var_os(env_logger::DEFAULT_FILTER_ENV).is_some())
        // py-spy logs texts from the memory of workers without escaping them.
        .filter_module("py_spy", log::LevelFilter::Off)
        // It logs the bytes of etcd's requests and answers, with tokens and the values of the store.
        .filter_module("ureq_proto", log::LevelFilter::Off)
        .target(env_logger::Target::Pipe(Box::new(terminal::StandardError)))
        .build();
    let level = logger.filter();
    // Only this function sets a logger.
    if log::set_boxed_logger(Box::new(ShortLines(logger))).is_ok() {
        log::set_max_level(level);
    }
}

/// Cuts each message to one short line, and logs the whole message at the level "debug".
///
/// The text of an error can be of any length, so no author of a line can ensure this. Messages with several lines are left
/// as they are, because the further lines are the output of another program.
struct ShortLines<L>(L);

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
