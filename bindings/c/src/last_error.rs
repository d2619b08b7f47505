//! The last failure of each thread.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use crate::border;
use crate::failure::Failure;
use crate::status::{CallOutcome, Status};

#[derive(Debug)]
struct LastError {
    text: CString,
    outcome: CallOutcome,
    missing_ranks: Vec<usize>,
}

thread_local! {
    static LAST: RefCell<Option<LastError>> = const { RefCell::new(None) };
}

/// Keeps a failure until the next one of this thread.
pub(crate) fn keep(failure: &Failure) {
    // A key in the text may contain a NUL byte, which would end it for C.
    let text = failure.text().replace('\0', "\\0");
    let last = LastError {
        text: CString::new(text).unwrap_or_default(),
        outcome: failure.outcome(),
        missing_ranks: failure.missing_ranks().to_vec(),
    };
    // Destructors of a thread's other values may call the library after this one was destroyed.
    let _ = LAST.try_with(|slot| slot.replace(Some(last)));
}

fn last<T>(read: impl FnOnce(&LastError) -> T) -> Option<T> {
    let read = |slot: &RefCell<Option<LastError>>| slot.borrow().as_ref().map(read);
    LAST.try_with(read).ok().flatten()
}

/// The text of the last call of this thread that failed: which operation, on what, why. Empty if none has failed. A
/// call that succeeds leaves it as it is. Valid until the next failure of this thread, and until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_last_error() -> *const c_char {
    last(|error| error.text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Whether the last call of this thread that failed can have taken effect.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_last_outcome() -> CallOutcome {
    last(|error| error.outcome).unwrap_or(CallOutcome::C10D_OUTCOME_NOT_SENT)
}

/// The ranks that were missing when the last call of this thread failed, with the status
/// `C10D_ERROR_MISSING_RANKS`. Writes their number to `count`, and returns the first of them; null if none is known.
/// Valid as long as the text.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_last_missing_ranks(count: Option<&mut MaybeUninit<usize>>) -> *const usize {
    let Ok(count) = border::result(count, 0, "count") else {
        return ptr::null();
    };
    let ranks = last(|error| (error.missing_ranks.as_ptr(), error.missing_ranks.len()));
    match ranks {
        Some((first, len)) if len > 0 => {
            *count = len;
            first
        }
        _ => ptr::null(),
    }
}

/// The name of a status, such as `C10D_ERROR_TIMEOUT`; `unknown` for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_status_name(status: i32) -> *const c_char {
    Status::name(status).as_ptr()
}

#[cfg(test)]
pub(crate) fn last_text() -> String {
    last(|error| error.text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_last_error() {
        keep(&Failure::invalid_argument("of one\0thread"));
        let other = std::thread::spawn(last_text);
        assert_eq!(other.join().expect("the thread ends"), "");
        assert_eq!(last_text(), "of one\\0thread");
    }

    #[test]
    fn statuses_have_names() {
        assert_eq!(Status::name(0), c"C10D_OK");
        assert_eq!(Status::name(99), c"C10D_ERROR_PANIC");
        assert_eq!(Status::name(-5), c"unknown");
    }
}
