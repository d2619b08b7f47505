//! The locks of code with model tests: the standard library's, or with `--cfg shuttle` the model checker's.
//!
//! The model checker's locks work inside a model only, so code without model tests uses the standard library's.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
