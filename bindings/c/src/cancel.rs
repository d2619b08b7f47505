//! Ends a blocking call from another thread.
//!
//! It wakes no thread: a call that was given a handle asks it every 50 ms.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use c10d_socket::interruptible;

use crate::border::{self, Place};
use crate::failure::Failure;
use crate::guard::{self, call};
use crate::status::Status;

/// Ends blocking calls from another thread. Give it to any number of calls, one after the other or at the same time.
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<State>);

/// Without a lock, which a thread of the parent may hold when a child is forked.
#[derive(Debug, Default)]
struct State {
    is_cancelled: AtomicBool,
    /// How often it was cancelled: a call that began before ends, even after a reset.
    cancels: AtomicU64,
}

impl CancelHandle {
    /// The number of cancels when a call begins; `None` if it must not begin.
    fn begin(&self) -> Option<u64> {
        let cancels = self.0.cancels.load(SeqCst);
        (!self.0.is_cancelled.load(SeqCst)).then_some(cancels)
    }
}

/// Runs a call that `cancel` can end.
pub(crate) fn run<T>(
    cancel: Option<&CancelHandle>,
    operation: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(cancel) = cancel else {
        return operation();
    };
    let Some(cancels) = cancel.begin() else {
        let text = "cancelled before the call began";
        return Err(Failure::new(Status::C10D_ERROR_INTERRUPTED, text));
    };
    let cancel = cancel.clone();
    interruptible(move || cancel.0.cancels.load(SeqCst) != cancels, operation)
}

/// A new handle that cancels calls. Free it with `c10d_cancel_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_new(
    cancel: Option<&mut MaybeUninit<Option<Box<CancelHandle>>>>,
) -> Status {
    call(|| {
        let place: Place<'_, CancelHandle> = cancel;
        *border::result(place, None, "cancel")? = Some(Box::default());
        Ok(())
    })
}

/// Ends all blocking calls that were given this handle: within 50 ms they return `C10D_ERROR_INTERRUPTED`, as later
/// ones do at once, until `c10d_cancel_reset`. A call whose result is present, or arrives at the same time, may return
/// it. To cancel a wait, the server is told, which has 100 ms to confirm it: the store stays usable. Any thread may
/// call it. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_now(cancel: Option<&CancelHandle>) -> Status {
    call(|| {
        let state = &border::not_null(cancel, "cancel")?.0;
        state.is_cancelled.store(true, SeqCst);
        state.cancels.fetch_add(1, SeqCst);
        Ok(())
    })
}

/// Lets later calls with this handle wait again. Calls that were cancelled before still end.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_reset(cancel: Option<&CancelHandle>) -> Status {
    call(|| {
        let state = &border::not_null(cancel, "cancel")?.0;
        state.is_cancelled.store(false, SeqCst);
        Ok(())
    })
}

/// Frees a handle. No call that was given it may be in progress. Null is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_free(cancel: Option<Box<CancelHandle>>) {
    guard::value((), || drop(cancel));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use c10d_store::{HashStore, Store as _};

    use super::*;

    fn wait(store: &HashStore, timeout: Duration) -> Result<(), Failure> {
        Ok(store.wait_timeout(&["missing"], Some(timeout))?)
    }

    #[test]
    fn a_reset_does_not_save_a_call_that_was_cancelled() {
        let store = HashStore::new();
        let cancel = CancelHandle::default();
        let failure = run(Some(&cancel), || {
            c10d_cancel_now(Some(&cancel));
            c10d_cancel_reset(Some(&cancel));
            wait(&store, Duration::MAX)
        });
        let failure = failure.expect_err("cancelled");
        assert_eq!(failure.status(), Status::C10D_ERROR_INTERRUPTED);
    }

    /// The cancel arrives when the operation has its result: it is returned, and the next wait is not interrupted.
    #[test]
    fn a_late_cancel_does_not_end_the_next_call() {
        let store = HashStore::new();
        let cancel = CancelHandle::default();
        let result = run(Some(&cancel), || {
            assert_eq!(c10d_cancel_now(Some(&cancel)), Status::C10D_OK);
            Ok(7)
        });
        assert_eq!(result.expect("the operation has its result"), 7);
        let failure = wait(&store, Duration::from_millis(1)).expect_err("no such key");
        assert_eq!(failure.status(), Status::C10D_ERROR_TIMEOUT);
    }

    #[test]
    fn a_cancelled_handle_refuses_calls_until_it_is_reset() {
        let cancel = CancelHandle::default();
        c10d_cancel_now(Some(&cancel));
        let failure = run(Some(&cancel), || Ok(())).expect_err("cancelled");
        assert_eq!(failure.status(), Status::C10D_ERROR_INTERRUPTED);
        c10d_cancel_reset(Some(&cancel));
        run(Some(&cancel), || Ok(())).expect("reset");
    }

    #[test]
    fn a_panicking_call_ends_too() {
        let cancel = CancelHandle::default();
        let status = call(|| run(Some(&cancel), || panic!("broken")));
        assert_eq!(status, Status::C10D_ERROR_PANIC);
        c10d_cancel_now(Some(&cancel));
        assert!(!c10d_socket::is_interrupted());
    }
}
