//! The names of functions that C calls.

/// Gives functions the names in the library that they have here.
macro_rules! exported {
    ($($function:item)+) => {$(
        #[expect(unsafe_code, reason = "C finds exported functions by their plain names")]
        #[unsafe(no_mangle)]
        $function
    )+};
}

pub(crate) use exported;
