//! The form of the exported functions, whose panics and failures become a status.
//!
//! `operations!` makes those that return a status: a function is its C signature and its own body, because the macro
//! checks the arguments. `frees!` makes those that free a handle.

use std::any::Any;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

use crate::border::{BytesArray, CText};
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
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
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

/// An argument of a C caller, as the body of an operation receives it.
pub(crate) trait Argument {
    /// The type that the body receives.
    type Checked;

    /// Refuses null where it has no meaning, and handles of the process that forked this one.
    fn check(self, name: &'static str) -> Result<Self::Checked, Failure>;
}

macro_rules! taken_as_given {
    ($($type:ty),+) => {$(
        impl Argument for $type {
            type Checked = Self;

            fn check(self, _: &'static str) -> Result<Self, Failure> {
                Ok(self)
            }
        }
    )+};
}

taken_as_given!(bool, i32, i64, u16, u64, usize);
taken_as_given!(BytesArray, CText);

/// Defines exported functions that return a status.
///
/// ```text
/// /// The comment of the header.
/// fn c10d_store_get(store: Option<&StoreHandle>, key: KeyPointer[key_len]; wait) -> value: Buffer = {
///     let (waiting, timeout) = store.waiting(wait)?;
///     waiting.get_timeout(&store.key(&key)?, timeout)?
/// };
/// ```
///
/// The parameters have the types of C and are in its order. A pointer has the parameter with its length in brackets
/// behind it: the body receives both as a [`Counted`](crate::border::Counted), and every other argument as
/// [`Argument::check`] returns it. The parameters `timeout_ms` and `cancel` of an operation that waits follow these; the
/// body receives both as a tuple. Their type `CancelHandle` is the caller's to import, because its file uses this macro.
///
/// Results are the last parameters. Each is the default of its type until the body has returned its value, or a
/// tuple of two, and stays so after a failure. Null is refused, unless `or_null` says that the caller may have no use
/// for the result.
///
/// The body may fail with everything that becomes a [`Failure`]; a panic becomes a status.
macro_rules! operations {
    (@place $result:ident) => {
        Some($crate::border::result($result, stringify!($result))?)
    };
    (@place $result:ident or_null) => {
        $crate::border::result_or_null($result)
    };
    // Named by its repetition, as the parameters of an operation that waits have to be.
    (@timeout $wait:ident) => {
        i64
    };
    (@argument $name:ident) => {
        $crate::interface::Argument::check($name, stringify!($name))?
    };
    (@argument $name:ident $len:ident) => {
        $crate::border::Counted::new($name, $len, stringify!($name))
    };
    (@return $body:expr) => {
        let () = $body;
    };
    (@return $body:expr, $result:ident) => {
        $crate::border::fill($result, $body);
    };
    (@return $body:expr, $first:ident, $second:ident) => {
        let (first, second) = $body;
        $crate::border::fill($first, first);
        $crate::border::fill($second, second);
    };
    ($(
        $(#[$attribute:meta])*
        fn $function:ident($($name:ident: $type:ty $([$len:ident])?),* $(,)? $(; $wait:ident)?)
        $(-> $($result:ident $(($null:ident))?: $value:ty),+)? = $body:expr;
    )+) => {
        $crate::border::exported! {$(
            $(#[$attribute])*
            pub extern "C" fn $function(
                $($name: $type, $($len: usize,)?)*
                $(
                    timeout_ms: $crate::interface::operations!(@timeout $wait),
                    cancel: Option<&CancelHandle>,
                )?
                $($($result: Option<&mut std::mem::MaybeUninit<$value>>,)+)?
            ) -> $crate::status::Status {
                $crate::interface::call(|| {
                    $($(let $result = $crate::interface::operations!(@place $result $($null)?);)+)?
                    $(let $name = $crate::interface::operations!(@argument $name $($len)?);)*
                    $(let $wait = (timeout_ms, cancel);)?
                    $crate::interface::operations!(@return $body $($(, $result)+)?);
                    Ok(())
                })
            }
        )+}
    };
}

/// Defines functions that free a handle. They leave null alone, and return nothing, even after a panic.
macro_rules! frees {
    ($($(#[$attribute:meta])* fn $function:ident($handle:ident: $type:ty);)+) => {
        $crate::border::exported! {$(
            $(#[$attribute])*
            pub extern "C" fn $function($handle: Option<Box<$type>>) {
                $crate::interface::guarded((), || drop($handle));
            }
        )+}
    };
}

pub(crate) use {frees, operations};

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
        assert_eq!(guarded(7, || panic::panic_any(Bomb)), 7);
    }

    #[test]
    fn success_keeps_the_last_error() {
        let status = call(|| Err(Failure::invalid_argument("key is null")));
        assert_eq!(status, Status::C10D_ERROR_INVALID_ARGUMENT);
        assert_eq!(call(|| Ok(())), Status::C10D_OK);
        assert_eq!(last_text(), "key is null");
    }
}
