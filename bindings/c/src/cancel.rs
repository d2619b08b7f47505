//! Ends a wait from another thread.
//!
//! A store's interrupt is for a thread, and stays until its next wait. A C caller thinks in calls: it cancels the one
//! that it gave this handle to. So the handle knows which calls are in progress, interrupts their threads only, and a
//! call that ends while it is interrupted takes the interrupt back before it returns.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use c10d_store::Store;

use crate::border;
use crate::failure::Failure;
use crate::guard::{self, call};
use crate::status::Status;
use crate::store::{Place, StoreHandle};

/// Ends waiting calls from another thread. Give it to any number of calls, one after the other or at the same time.
#[derive(Debug, Default)]
pub struct CancelHandle(Arc<Mutex<Calls>>);

/// The calls that one handle can cancel.
#[derive(Debug, Default)]
struct Calls {
    is_cancelled: bool,
    in_progress: Vec<InProgress>,
    last_id: u64,
}

#[derive(Debug)]
struct InProgress {
    id: u64,
    store: Arc<dyn Store>,
    thread: ThreadId,
    is_interrupted: bool,
}

impl Calls {
    /// Adds a call and returns its number; `None` if it is cancelled already.
    fn begin(&mut self, store: Arc<dyn Store>, thread: ThreadId) -> Option<u64> {
        if self.is_cancelled {
            return None;
        }
        self.last_id += 1;
        self.in_progress.push(InProgress {
            id: self.last_id,
            store,
            thread,
            is_interrupted: false,
        });
        Some(self.last_id)
    }

    /// Removes a call, and returns whether its thread was or will be interrupted.
    fn end(&mut self, id: u64) -> bool {
        let position = self.in_progress.iter().position(|call| call.id == id);
        position.is_some_and(|index| self.in_progress.swap_remove(index).is_interrupted)
    }

    /// The threads to interrupt, each once for a call.
    fn cancel(&mut self) -> Vec<(Arc<dyn Store>, ThreadId)> {
        self.is_cancelled = true;
        let calls = self.in_progress.iter_mut();
        let news = calls.filter(|call| !call.is_interrupted);
        news.map(|call| {
            call.is_interrupted = true;
            (Arc::clone(&call.store), call.thread)
        })
        .collect()
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    // Each change leaves the list complete.
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A key that has no value, and how long a call waits for the interrupt that another thread is about to send.
const MISSING_KEY: &str = "c10d/interrupt";
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a call on `handle` that `cancel` can end.
pub(crate) fn run<T>(
    cancel: Option<&CancelHandle>,
    handle: &StoreHandle,
    operation: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(cancel) = cancel else {
        return operation();
    };
    if !handle.can_interrupt {
        let text = format!("{}: its calls cannot be cancelled", handle.store.label());
        return Err(Failure::new(Status::C10D_ERROR_UNSUPPORTED, text));
    }
    let calls = Arc::clone(&cancel.0);
    let begun = lock(&calls).begin(Arc::clone(&handle.store), thread::current().id());
    let Some(id) = begun else {
        let text = format!("{}: cancelled before the call began", handle.store.label());
        return Err(Failure::new(Status::C10D_ERROR_INTERRUPTED, text));
    };
    let ending = Ending {
        calls: &calls,
        store: &*handle.store,
        id,
        has_noticed: false,
    };
    let mut ending = ending;
    let result = operation();
    let status = result.as_ref().err().map(Failure::status);
    ending.has_noticed = status == Some(Status::C10D_ERROR_INTERRUPTED);
    result
}

/// Ends a call, after a panic too.
struct Ending<'a> {
    calls: &'a Mutex<Calls>,
    store: &'a dyn Store,
    id: u64,
    /// Whether the operation was ended by the interrupt.
    has_noticed: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let is_interrupted = lock(self.calls).end(self.id);
        if is_interrupted && !self.has_noticed {
            // The operation has ended for another reason. The interrupt would end this thread's next wait: this one.
            let _ = self
                .store
                .wait_timeout(&[MISSING_KEY], Some(INTERRUPT_TIMEOUT));
        }
    }
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

/// Ends all calls that wait and were given this handle: they return `C10D_ERROR_INTERRUPTED`, as do later ones, until
/// `c10d_cancel_reset`. A call whose value is present, or arrives at the same time, may return it. Any thread may call
/// it. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_now(cancel: Option<&CancelHandle>) -> Status {
    call(|| {
        let cancel = border::not_null(cancel, "cancel")?;
        let threads = lock(&cancel.0).cancel();
        for (store, thread) in threads {
            store.interrupt(thread);
        }
        Ok(())
    })
}

/// Lets later calls with this handle wait again. Calls that were cancelled before still end.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_cancel_reset(cancel: Option<&CancelHandle>) -> Status {
    call(|| {
        let cancel = border::not_null(cancel, "cancel")?;
        lock(&cancel.0).is_cancelled = false;
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
    use c10d_store::HashStore;

    use super::*;

    fn handle() -> StoreHandle {
        StoreHandle::interruptible(Arc::new(HashStore::new()))
    }

    fn wait(store: &StoreHandle, key: &str, timeout: Duration) -> Result<(), Failure> {
        Ok(store.store.wait_timeout(&[key], Some(timeout))?)
    }

    #[test]
    fn a_call_is_interrupted_once_and_none_begins_after_it() {
        let store = handle().store;
        let this = thread::current().id();
        let mut calls = Calls::default();
        let first = calls
            .begin(Arc::clone(&store), this)
            .expect("not cancelled");
        let second = calls
            .begin(Arc::clone(&store), this)
            .expect("not cancelled");
        assert!(!calls.end(first), "it ended before");
        assert_eq!(calls.cancel().len(), 1);
        assert_eq!(calls.cancel().len(), 0);
        assert!(calls.begin(store, this).is_none());
        assert!(calls.end(second));
        assert!(!calls.end(second));
    }

    /// The cancel arrives when the operation has its result: it is returned, and the next wait is not interrupted.
    #[test]
    fn a_late_cancel_does_not_end_the_next_call() {
        let store = handle();
        let cancel = CancelHandle::default();
        let result = run(Some(&cancel), &store, || {
            assert_eq!(c10d_cancel_now(Some(&cancel)), Status::C10D_OK);
            Ok(7)
        });
        assert_eq!(result.expect("the operation has its result"), 7);
        let failure = wait(&store, "missing", Duration::from_millis(1)).expect_err("no such key");
        assert_eq!(failure.status(), Status::C10D_ERROR_TIMEOUT);
    }

    #[test]
    fn a_cancelled_handle_refuses_calls_until_it_is_reset() {
        let store = handle();
        let cancel = CancelHandle::default();
        c10d_cancel_now(Some(&cancel));
        let failure = run(Some(&cancel), &store, || Ok(())).expect_err("cancelled");
        assert_eq!(failure.status(), Status::C10D_ERROR_INTERRUPTED);
        c10d_cancel_reset(Some(&cancel));
        run(Some(&cancel), &store, || Ok(())).expect("reset");
    }

    #[test]
    fn a_panicking_call_ends_too() {
        let store = handle();
        let cancel = CancelHandle::default();
        let status = call(|| run(Some(&cancel), &store, || panic!("broken")));
        assert_eq!(status, Status::C10D_ERROR_PANIC);
        assert!(lock(&cancel.0).in_progress.is_empty());
    }
}
