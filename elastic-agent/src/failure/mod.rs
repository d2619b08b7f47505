//! Why workers failed: the report for people, and the error file for the program that started the
//! launcher.
//!
//! In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/__init__.py`.

mod abort_at_exit;
mod decision;
mod error_file;
mod exit_record;
mod last_words;
mod local_time;
mod process_failure;
mod summary;

#[cfg(feature = "launcher")]
pub(crate) use self::abort_at_exit::CURE;
pub(crate) use self::abort_at_exit::is_abort_at_exit;
pub(crate) use self::decision::Decision;
pub use self::error_file::{ErrorFileError, write_error_file};
pub use self::exit_record::ExitRecord;
#[cfg(feature = "launcher")]
pub(crate) use self::local_time::epoch_seconds;
pub use self::local_time::{local_time_and_age, local_time_text};
pub use self::process_failure::{Failures, ProcessFailure, RootExit};

#[cfg(test)]
mod tests;
