//! `c10d bench`: a load generator for any TCPStore server, and a floor to compare with.
//!
//! One thread drives everything, so that on two cores the server has one to itself. Speaks only the
//! base protocol; a PyTorch server is measured with the same bytes.

mod affinity;
mod child;
mod error;
mod fleet;
mod floor;
mod process;
mod report;
mod store;
mod workload;

use clap::Subcommand;

pub(crate) use error::BenchError;

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measures a store's server: a fresh one of its own, or a running one.
    Store(store::StoreBenchArgs),
    /// A server that parses nothing: what the same event loop costs without a store in it.
    #[command(hide = true)]
    Floor(floor::FloorArgs),
}

pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Floor(args) => floor::run(args),
    }
}
