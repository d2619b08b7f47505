//! The built command, run as a user runs it.
#![forbid(unsafe_code)]

mod bench;
mod client;
mod command;
mod process;
mod run;
mod run_failures;
mod run_options;
mod serve;
