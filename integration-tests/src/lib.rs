//! Support for whole-system tests: real processes, real faults, and real PyTorch on the other end.
//!
//! The tests themselves are in `tests/`. Those that need PyTorch are ignored unless asked for, see
//! README.md. Nothing here is published, and nothing outside this folder depends on it.
#![forbid(unsafe_code)]

pub mod contract;
pub mod eventually;
pub mod launcher;
pub mod peer;
pub mod process;
pub mod raw_client;
pub mod relay;
pub mod rpc_group;
pub mod torch;
pub mod watchdog;

/// Compiles and runs the Rust examples of the workspace's README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
