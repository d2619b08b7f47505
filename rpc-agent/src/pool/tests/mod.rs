//! The threads of the pool, with work for them.

pub(super) mod fake;
#[cfg(not(shuttle))]
mod threads;
