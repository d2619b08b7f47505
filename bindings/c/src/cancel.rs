//! Ends a blocking call from another thread.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use c10d_socket::{Cancel, ProcessBound};

use crate::border;
use crate::failure::Failure;
use crate::interface::{Argument, frees, operations};
use crate::status::Status;

/// Ends blocking calls from another thread. Give it to any number of calls, one after the other or at the same time.
#[derive(Debug, Clone, Default)]
pub struct CancelHandle(Arc<State>);

#[derive(Debug)]
struct State {
    cancel: ProcessBound<Mutex<Cancel>>,
    /// The cancel of a forked child, because a thread of the parent may hold the locks of the parent's cancel.
    of_child: OnceLock<Mutex<Cancel>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cancel: ProcessBound::new(fresh()),
            of_child: OnceLock::new(),
        }
    }
}

fn fresh() -> Mutex<Cancel> {
    Mutex::new(Cancel::new())
}

impl CancelHandle {
    /// The handle that cancels calls which begin now.
    fn lock(&self) -> MutexGuard<'_, Cancel> {
        let cancel = self.0.cancel.get();
        let cancel = cancel.unwrap_or_else(|_| self.0.of_child.get_or_init(fresh));
        cancel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Argument for Option<&CancelHandle> {
    type Checked = Self;

    /// Null is for calls that nothing ends.
    fn check(self, _: &'static str) -> Result<Self, Failure> {
        Ok(self)
    }
}

/// The parameters `timeout_ms` and `cancel` of an operation that waits.
pub(crate) type Wait<'c> = (i64, Option<&'c CancelHandle>);

/// Returns the handle that cancels a call with this C handle.
///
/// # Errors
/// [`Failure`] if the call must not begin.
pub(crate) fn of_call(handle: Option<&CancelHandle>) -> Result<Cancel, Failure> {
    let cancel = handle.map_or(Cancel::NEVER, |handle| handle.lock().clone());
    if cancel.is_cancelled() {
        let text = "cancelled before the call began";
        return Err(Failure::new(Status::C10D_ERROR_INTERRUPTED, text));
    }
    Ok(cancel)
}

operations! {
    /// A new handle that cancels calls. Free it with `c10d_cancel_free`.
    fn c10d_cancel_new() -> cancel: Option<Box<CancelHandle>> = Box::<CancelHandle>::default();

    /// Cancels all blocking calls with this handle: they return `C10D_ERROR_INTERRUPTED`. Later calls do the same at
    /// once, until `c10d_cancel_reset`. A call whose result is present, or arrives at the same time, may return it. To
    /// cancel a wait, the library notifies the server, which has 100 ms to confirm it, or 2 s for
    /// `c10d_store_queue_take`, so that the store stays usable. Any thread may call this function. Does not block.
    fn c10d_cancel_now(cancel: Option<&CancelHandle>) = {
        let cancel = border::not_null(cancel, "cancel")?.lock().clone();
        cancel.cancel();
    };

    /// Lets later calls with this handle wait again. Calls that were cancelled before still end.
    fn c10d_cancel_reset(cancel: Option<&CancelHandle>) = {
        let mut present = border::not_null(cancel, "cancel")?.lock();
        // The calls in progress use the cancelled handle.
        if present.is_cancelled() {
            *present = Cancel::new();
        }
    };
}

frees! {
    /// Frees a handle. Calls with this handle must have returned. Null is ignored.
    fn c10d_cancel_free(cancel: CancelHandle);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use c10d_store::{HashStore, StoreExt, StoreHandle as _};

    use super::*;

    fn wait(cancel: &Cancel, timeout: Duration) -> Status {
        let store = HashStore::new().with_cancel(cancel);
        let waited = store.wait_timeout(&["missing"], Some(timeout));
        Failure::from(waited.expect_err("no such key")).status
    }

    #[test]
    fn a_reset_does_not_save_a_call_that_was_cancelled() {
        let handle = CancelHandle::default();
        let cancel = of_call(Some(&handle)).expect("not cancelled yet");
        c10d_cancel_now(Some(&handle));
        c10d_cancel_reset(Some(&handle));
        let status = wait(&cancel, Duration::MAX);
        assert_eq!(status, Status::C10D_ERROR_INTERRUPTED);
        let cancel = of_call(Some(&handle)).expect("reset");
        let status = wait(&cancel, Duration::from_millis(1));
        assert_eq!(status, Status::C10D_ERROR_TIMEOUT);
    }

    #[test]
    fn a_cancelled_handle_refuses_calls_until_it_is_reset() {
        let handle = CancelHandle::default();
        c10d_cancel_now(Some(&handle));
        let failure = of_call(Some(&handle)).expect_err("cancelled");
        assert_eq!(failure.status, Status::C10D_ERROR_INTERRUPTED);
        c10d_cancel_reset(Some(&handle));
        of_call(Some(&handle)).expect("reset");
    }
}
