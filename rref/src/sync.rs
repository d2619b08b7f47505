//! The lock of what has model tests: the standard library's, or a model checker's.
//!
//! Built with `--cfg shuttle`, every use of it is a point where another thread can come between. What has
//! no model tests takes its locks from the standard library, as a model checker's work in a model only.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
