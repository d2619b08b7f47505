//! The C interface of `c10d-store` and `c10d`. Its users read `include/c10d.h`, which cbindgen makes from this
//! crate, and the README beside it.
//!
//! Each exported function is safe Rust: it takes handles as references that may be null, and everything else as
//! types of `border`, the one file that reads and writes through C's pointers. The macros of `interface`
//! give the functions their form, and run their bodies so that no panic leaves the library.

#![deny(unsafe_code)]

#[cfg(not(panic = "unwind"))]
compile_error!("the C interface catches panics: build it with panic = \"unwind\"");

// In the order of the header.
pub mod status;

pub mod last_error;

pub mod library;

pub mod options;

pub mod store;

pub mod operations;

pub mod cancel;

pub mod server;

pub mod environment;

pub mod group;

pub mod border;
pub mod failure;
pub mod interface;
