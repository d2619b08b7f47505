//! The version of the library.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::ffi::{CStr, c_char};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has no NUL byte"),
    };

/// The version of the library that runs, such as `0.2.0`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_version() -> *const c_char {
    VERSION.as_ptr()
}
