//! The form of the exported functions.
//!
//! `operations!` makes those that return a status: a function is its C signature and its own body, because the macro
//! checks the arguments. `frees!` makes those that free a handle.

use crate::border::{BytesArray, CText};
use crate::failure::Failure;

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
                $crate::guard::call(|| {
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
                $crate::guard::value((), || drop($handle));
            }
        )+}
    };
}

pub(crate) use {frees, operations};
