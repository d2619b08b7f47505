//! Long waits on a store that a caller can interrupt.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::StoreError;

/// How often a wait checks whether it is interrupted.
pub(crate) const SLICE: Duration = Duration::from_secs(1);

/// Why a wait ended before its deadline without a result.
#[derive(Debug)]
pub(crate) enum Cut {
    /// The caller interrupted it.
    Interrupted,
    /// The store failed.
    Failed(StoreError),
}

/// Repeats a call with a short timeout until it succeeds. `None` after the deadline.
pub(crate) fn in_slices<T>(
    deadline: Deadline,
    is_interrupted: &dyn Fn() -> bool,
    call: impl Fn(Duration) -> Result<T, StoreError>,
) -> Result<Option<T>, Cut> {
    loop {
        if is_interrupted() {
            return Err(Cut::Interrupted);
        }
        let left = deadline.remaining(Instant::now()).unwrap_or(Duration::MAX);
        match call(left.min(SLICE)) {
            Ok(value) => return Ok(Some(value)),
            // A busy server may answer late that the timeout has passed.
            Err(StoreError::Timeout { .. } | StoreError::NoReply { .. }) if left > SLICE => {}
            Err(StoreError::Timeout { .. }) => return Ok(None),
            Err(error) => return Err(Cut::Failed(error)),
        }
    }
}
