//! Why workers failed: the report for people, and the error file for the program that started the
//! launcher.
//!
//! In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/__init__.py`.

mod decision;
mod error_file;
mod exit_record;
mod process_failure;
mod summary;

pub(crate) use self::decision::{Decision, is_abort_at_exit};
pub use self::error_file::{ErrorFileError, write_error_file};
pub use self::exit_record::ExitRecord;
pub use self::process_failure::{Failures, ProcessFailure, RootExit};
#[cfg(feature = "launcher")]
pub(crate) use crate::wording::epoch_seconds;
pub use crate::wording::{local_time_and_age, local_time_text};

#[cfg(test)]
mod tests;
