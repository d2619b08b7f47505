//! Runs the built benchmarks as users do.
#![forbid(unsafe_code)]

mod goodput;
mod options;
mod process;
mod relay;
mod rendezvous;
mod rpc;
mod rref;
mod store;
