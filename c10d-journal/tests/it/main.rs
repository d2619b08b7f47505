//! The engine against the model, crashes, damage and full disks.
#![expect(
    clippy::print_stdout,
    reason = "a failure needs its seed, and the parent of a child its positions"
)]

mod damaged;
mod harness;
mod killed;
#[cfg(target_os = "linux")]
mod power_loss;
mod recovered;
mod refused;
mod stale;
