//! The version of the library.

use std::ffi::{CStr, c_char};

use crate::border::exported;
use crate::status::c_text;

const VERSION: &CStr = c_text(concat!(env!("CARGO_PKG_VERSION"), "\0"));

exported! {
    /// The version of the library that runs, such as `0.2.0`.
    pub extern "C" fn c10d_version() -> *const c_char {
        VERSION.as_ptr()
    }
}
