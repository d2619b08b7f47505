//! The last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use crate::border::{self, exported};
use crate::failure::Failure;
use crate::status::{CallOutcome, Status};

/// A failure, and its text for C.
type LastError = (CString, Failure);

thread_local! {
    static LAST: RefCell<Option<LastError>> = const { RefCell::new(None) };
    /// The part of the last error that remains for the destructors of a thread's other values, which may run after the
    /// destructor of `LAST`. It has no destructor itself.
    static LATE: RefCell<Late> = const { RefCell::new(Late::NONE) };
}

/// The longest text of a failure in such a destructor, with the NUL byte that ends it.
const LATE_BYTES_MAX: usize = 1024;

struct Late {
    text: [u8; LATE_BYTES_MAX],
    outcome: CallOutcome,
}

impl Late {
    const NONE: Self = Self {
        text: [0; LATE_BYTES_MAX],
        outcome: CallOutcome::C10D_OUTCOME_NOT_SENT,
    };

    fn keep(&mut self, (text, failure): &LastError) {
        let text = text.as_bytes();
        let len = text.len().min(LATE_BYTES_MAX - 1);
        self.text = Self::NONE.text;
        self.text[..len].copy_from_slice(&text[..len]);
        self.outcome = failure.outcome;
    }
}

/// Keeps a failure until the next one of this thread.
pub(crate) fn keep(failure: Failure) {
    // A key in the text may contain a NUL byte, which would end it for C.
    let text = failure.text.replace('\0', "\\0");
    let mut last = Some((CString::new(text).unwrap_or_default(), failure));
    if LAST.try_with(|slot| slot.replace(last.take())).is_err()
        && let Some(last) = last
    {
        LATE.with_borrow_mut(|late| late.keep(&last));
    }
}

/// Whether this thread is at its end, so that its last error is in `LATE`.
fn is_late() -> bool {
    LAST.try_with(|_| ()).is_err()
}

fn last<T>(read: impl FnOnce(&LastError) -> T) -> Option<T> {
    let read = |slot: &RefCell<Option<LastError>>| slot.borrow().as_ref().map(read);
    LAST.try_with(read).ok().flatten()
}

exported! {
    /// The error text of the last failed call of this thread: the operation, its object and the cause. Empty if no call
    /// has failed. A successful call does not change it. Valid until the next failure of this thread, and until the
    /// thread exits. In destructors that run at the end of a thread, it may be cut after 1023 bytes.
    pub extern "C" fn c10d_last_error() -> *const c_char {
        if is_late() {
            return LATE.with_borrow(|late| late.text.as_ptr().cast());
        }
        last(|(text, _)| text.as_ptr()).unwrap_or(c"".as_ptr())
    }

    /// Whether the last failed call of this thread may have taken effect.
    pub extern "C" fn c10d_last_outcome() -> CallOutcome {
        if is_late() {
            return LATE.with_borrow(|late| late.outcome);
        }
        last(|(_, failure)| failure.outcome).unwrap_or(CallOutcome::C10D_OUTCOME_NOT_SENT)
    }

    /// The missing ranks of the last failed call of this thread, if its status was `C10D_ERROR_MISSING_RANKS`. Returns
    /// a pointer to the first rank, and writes their number to `count`; null if no rank is known. Valid as long as the
    /// text.
    pub extern "C" fn c10d_last_missing_ranks(count: Option<&mut MaybeUninit<usize>>) -> *const usize {
        let Ok(count) = border::result(count, "count") else {
            return ptr::null();
        };
        let ranks = last(|(_, failure)| (failure.missing_ranks.as_ptr(), failure.missing_ranks.len()));
        match ranks {
            Some((first, len)) if len > 0 => {
                *count = len;
                first
            }
            _ => ptr::null(),
        }
    }

    /// The name of a status, such as `C10D_ERROR_TIMEOUT`; `unknown` for a number that is none.
    pub extern "C" fn c10d_status_name(status: i32) -> *const c_char {
        Status::name(status).as_ptr()
    }
}

#[cfg(test)]
pub(crate) fn last_text() -> String {
    last(|(text, _)| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_last_error() {
        keep(Failure::invalid_argument("of one\0thread"));
        let other = std::thread::spawn(last_text);
        assert_eq!(other.join().expect("the thread ends"), "");
        assert_eq!(last_text(), "of one\\0thread");
    }

    /// A value of the thread that is destroyed after the last error: it was made before.
    #[test]
    fn a_destructor_at_the_end_of_a_thread_has_its_own_error() {
        struct AtEnd(std::sync::mpsc::Sender<(bool, String, CallOutcome)>);
        impl Drop for AtEnd {
            fn drop(&mut self) {
                keep(Failure::invalid_argument("late".repeat(1000)).with_unknown_outcome());
                let text =
                    LATE.with_borrow(|late| String::from_utf8_lossy(&late.text).into_owned());
                let _ = self.0.send((is_late(), text, c10d_last_outcome()));
            }
        }
        thread_local! {
            static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        }
        let (sender, received) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Destructors run in the order of first use, or in the reverse one.
            AT_END.set(Some(AtEnd(sender.clone())));
            keep(Failure::invalid_argument("early"));
            thread_local! {
                static AFTER: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
            }
            AFTER.set(Some(AtEnd(sender)));
        });
        thread.join().expect("the thread ends");
        let ends: Vec<_> = received.iter().collect();
        assert_eq!(ends.len(), 2);
        let late: Vec<_> = ends.iter().filter(|(is_late, ..)| *is_late).collect();
        assert!(
            !late.is_empty(),
            "one destructor runs after that of the last error"
        );
        for (_, text, outcome) in late {
            assert_eq!(text.trim_end_matches('\0'), &"late".repeat(256)[..1023]);
            assert_eq!(*outcome, CallOutcome::C10D_OUTCOME_UNKNOWN);
        }
    }

    #[test]
    fn statuses_have_names() {
        assert_eq!(Status::name(0), c"C10D_OK");
        assert_eq!(Status::name(99), c"C10D_ERROR_PANIC");
        assert_eq!(Status::name(-5), c"unknown");
    }
}
