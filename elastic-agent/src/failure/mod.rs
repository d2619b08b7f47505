//! Why workers failed: the report for people, and the error file for the program that started the
//! launcher.
//!
//! In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/__init__.py`.

mod error_file;
mod local_time;
mod process_failure;
mod summary;

pub use self::error_file::{ErrorFileError, write_error_file};
#[cfg(feature = "launcher")]
pub(crate) use self::local_time::epoch_seconds;
pub use self::local_time::{local_time_and_age, local_time_text};
pub use self::process_failure::{Failures, ProcessFailure};

#[cfg(test)]
mod tests;
