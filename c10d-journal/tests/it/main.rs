//! The engine against the model, crashes, damage and full disks.
#![expect(
    clippy::print_stdout,
    reason = "a failure needs its seed, and the parent of a child its positions"
)]

mod damaged;
mod harness;
mod killed;
mod measure;
mod recovered;
mod refused;
