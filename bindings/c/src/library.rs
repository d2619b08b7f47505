//! The library as a whole: its version, and its log lines on standard error.

use std::ffi::{CStr, c_char};
use std::io::{self, Write};
use std::sync::OnceLock;

use log::{LevelFilter, Log, Metadata, Record};

use crate::border::exported;
use crate::failure::Failure;
use crate::interface::operations;
use crate::status::{Status, c_text};

const VERSION: &CStr = c_text(concat!(env!("CARGO_PKG_VERSION"), "\0"));

exported! {
    /// The version of the library that runs, such as `0.2.0`.
    pub extern "C" fn c10d_version() -> *const c_char {
        VERSION.as_ptr()
    }
}

/// A log level: nothing, the default.
pub const C10D_LOG_NOTHING: i32 = 0;

/// A log level: also what the library could not do.
pub const C10D_LOG_WARNINGS: i32 = 2;

/// A log level: also the progress of what takes long, such as a connect to a server that has not started.
pub const C10D_LOG_PROGRESS: i32 = 3;

/// A log level: also each connection and retry.
pub const C10D_LOG_DEBUG: i32 = 4;

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // It logs the bytes of etcd's requests and answers, with tokens and the values of the store.
        if record.target().starts_with("ureq_proto") {
            return;
        }
        let level = record.level().as_str().to_lowercase();
        let line = format!("c10d: {level}: {}\n", record.args());
        // A single write, so that lines of several processes do not mix. A failure cannot be reported anywhere.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

operations! {
    /// Writes the library's log lines of this level and of more severe levels to standard error from now on, in all
    /// threads: `C10D_LOG_WARNINGS`, `C10D_LOG_PROGRESS`, `C10D_LOG_DEBUG`, or `C10D_LOG_NOTHING`, the default. With
    /// `C10D_LOG_PROGRESS`, a slow connect reports why it waits.
    fn c10d_log_to_stderr(level: i32) = {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let filter = match level {
            C10D_LOG_NOTHING => LevelFilter::Off,
            C10D_LOG_WARNINGS => LevelFilter::Warn,
            C10D_LOG_PROGRESS => LevelFilter::Info,
            C10D_LOG_DEBUG => LevelFilter::Debug,
            _ => {
                let text = format!("a log level of {level}: give one of C10D_LOG_NOTHING to C10D_LOG_DEBUG");
                return Err(Failure::invalid_argument(text));
            }
        };
        if !INSTALLED.get_or_init(|| log::set_logger(&StandardError).is_ok()) {
            let text = "cannot write the log: this program has another logger for Rust";
            return Err(Failure::new(Status::C10D_ERROR_UNSUPPORTED, text));
        }
        log::set_max_level(filter);
    };
}
