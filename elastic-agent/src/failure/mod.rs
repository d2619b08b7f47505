//! Why workers failed, told to people and to those who started the launcher.
//!
//! Does not decide what follows from a failure. In PyTorch:
//! `torch/distributed/elastic/multiprocessing/errors/__init__.py`.

mod error_file;
mod local_time;
mod process_failure;
mod signal_name;
mod summary;

pub use self::error_file::{ErrorFileError, write_error_file};
pub use self::local_time::local_time_text;
pub use self::process_failure::{Failures, ProcessFailure};
pub(crate) use self::signal_name::signal_name;

#[cfg(test)]
mod tests;
