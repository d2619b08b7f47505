//! The built command, run as a user runs it.
#![forbid(unsafe_code)]

mod bench;
mod client;
mod process;
mod serve;
