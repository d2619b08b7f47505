//! Runs the body of each exported function: panics and failures become a status.

use std::any::Any;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

use crate::failure::Failure;
use crate::last_error;
use crate::status::Status;

/// Runs `body`, keeps its failure as the thread's last error, and returns its status.
///
/// Later calls use the same data after a panic. This is sound because locks of this library and of the stores ignore
/// poisoning, and keep their invariants at every step.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::C10D_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => panicked(payload),
    };
    let status = failure.status;
    // The text of a failure is no reason to fail in another way.
    let kept = panic::catch_unwind(AssertUnwindSafe(|| last_error::keep(failure)));
    kept.map_or(Status::C10D_ERROR_PANIC, |()| status)
}

/// Runs `body` like [`call`], for a function that does not return a status. Returns `fallback` after a panic.
pub(crate) fn value<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        discard(payload);
        fallback
    })
}

fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let message = if let Some(text) = payload.downcast_ref::<&str>() {
        *text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "without a message"
    };
    let text = format!("the library panicked, please report it: {message}");
    discard(payload);
    Failure::new(Status::C10D_ERROR_PANIC, text).with_unknown_outcome()
}

/// Drops the payload of a panic, whose destructor may also panic.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_error::last_text;
    use crate::status::CallOutcome;

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        let status = call(|| panic!("no rank {}", 3));
        assert_eq!(status, Status::C10D_ERROR_PANIC);
        assert_eq!(
            last_text(),
            "the library panicked, please report it: no rank 3"
        );
        assert_eq!(
            last_error::c10d_last_outcome(),
            CallOutcome::C10D_OUTCOME_UNKNOWN
        );
        assert_eq!(call(|| panic!("plain text")), Status::C10D_ERROR_PANIC);
        assert!(last_text().ends_with("plain text"));
    }

    #[test]
    fn a_payload_whose_destructor_panics_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let status = call(|| panic::panic_any(Bomb));
        assert_eq!(status, Status::C10D_ERROR_PANIC);
        assert!(last_text().ends_with("without a message"));
        assert_eq!(value(7, || panic::panic_any(Bomb)), 7);
    }

    #[test]
    fn success_keeps_the_last_error() {
        let status = call(|| Err(Failure::invalid_argument("key is null")));
        assert_eq!(status, Status::C10D_ERROR_INVALID_ARGUMENT);
        assert_eq!(call(|| Ok(())), Status::C10D_OK);
        assert_eq!(last_text(), "key is null");
    }
}
