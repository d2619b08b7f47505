//! `c10d bench`: a load generator for any TCPStore server, with a floor to compare with; a
//! rendezvous of many nodes; calls between two workers, and references to each other's values.
//!
//! The load generator is one thread, so that on two cores the server has one to itself. It speaks
//! only the base protocol; a PyTorch server is measured with the same bytes.

mod affinity;
mod child;
mod error;
mod fleet;
mod floor;
mod latency;
mod pair;
mod process;
mod rendezvous;
mod report;
mod rpc;
mod rref;
mod store;
mod workload;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measures a store's server: a fresh one of its own, or a running one.
    Store(store::StoreBenchArgs),
    /// Measures how long many nodes take to agree on their ranks.
    Rendezvous(rendezvous::RendezvousBenchArgs),
    /// Measures calls between two workers, in one process and in two.
    Rpc(rpc::RpcBenchArgs),
    /// The other side of `rpc`, as a process of its own.
    #[command(hide = true)]
    RpcPeer(rpc::RpcPeerArgs),
    /// Measures references to values on another worker, in one process and in two.
    Rref(rref::RRefBenchArgs),
    /// The other side of `rref`, as a process of its own.
    #[command(hide = true)]
    RrefPeer,
    /// A server that parses nothing: what the same event loop costs without a store in it.
    #[command(hide = true)]
    Floor(floor::FloorArgs),
}

pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Rendezvous(args) => rendezvous::run(args),
        BenchCommand::Rpc(args) => rpc::run(args),
        BenchCommand::RpcPeer(args) => rpc::serve(args),
        BenchCommand::Rref(args) => rref::run(args),
        BenchCommand::RrefPeer => rref::serve(),
        BenchCommand::Floor(args) => floor::run(args),
    }
}
