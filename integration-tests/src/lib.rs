//! Helpers for whole-system tests with real processes, injected faults and real PyTorch.
//!
//! The tests are in `tests/`. Tests that need PyTorch are ignored by default; see README.md. This package is not
//! published, and no other package depends on it.
#![forbid(unsafe_code)]

pub mod broken_job;
pub mod contract;
pub mod durable_store;
pub mod eventually;
pub mod hosts;
pub mod launcher;
pub mod peer;
pub mod planned_ranks;
pub mod process;
pub mod raw_client;
pub mod relay;
pub mod torch;
pub mod watchdog;

/// Compiles and runs the Rust examples of the workspace's README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
