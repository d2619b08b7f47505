//! The built command, run as a user runs it.
#![forbid(unsafe_code)]

mod bench;
mod client;
mod command;
mod process;
mod run;
mod run_failures;
mod run_options;
#[cfg(target_os = "linux")]
mod run_terminal;
mod serve;
