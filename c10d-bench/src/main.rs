//! `c10d-bench`: benchmarks of a TCPStore server, relays, a rendezvous, RPC calls, and remote references.
//!
//! The load generator for stores is one thread, so that on two cores the server has one to itself. It uses only the base
//! protocol, so a PyTorch server gets the same bytes. Some figures stand beside a *floor*: a simpler way to the same
//! result, such as a plain call beside a reference, and a server without a journal beside one with it.
#![forbid(unsafe_code)]

mod affinity;
mod child;
mod failure;
mod fleet;
mod goodput;
mod pair;
mod process;
mod relay;
mod rendezvous;
mod report;
mod rpc;
mod rref;
mod servers;
mod store;
mod workload;

use std::process::ExitCode;

use crate::failure::Failure;
use crate::workload::etcd::EtcdMemberArgs;
use clap::Parser;

/// Measures a store server, a rendezvous, RPC calls, or remote references.
#[derive(Debug, Parser)]
#[command(name = "c10d-bench", version)]
enum BenchCommand {
    /// Measures a store server: a new one, or a running one.
    Store(store::StoreBenchArgs),
    /// Measures how long many nodes take to agree on their ranks.
    Rendezvous(rendezvous::RendezvousBenchArgs),
    /// A process of nodes of `rendezvous`.
    #[command(hide = true)]
    RendezvousNodes(rendezvous::RendezvousNodesArgs),
    /// Measures what a relay on each node changes for a store's ranks.
    Relay(relay::RelayBenchArgs),
    /// Measures calls between two workers in two processes.
    Rpc(rpc::RpcBenchArgs),
    /// The second process of `rpc`.
    #[command(hide = true)]
    RpcPeer,
    /// Measures remote references between two workers in two processes.
    Rref(rref::RRefBenchArgs),
    /// Measures how much of its time a training job makes progress while things die.
    Goodput(goodput::GoodputArgs),
    /// The second process of `rref`.
    #[command(hide = true)]
    RrefPeer,
    /// The measured store.
    #[command(hide = true)]
    StoreServer(servers::StoreServerArgs),
    /// The measured relay.
    #[command(hide = true)]
    RelayServer(servers::RelayServerArgs),
    /// A member of etcd, with its options.
    #[command(hide = true)]
    EtcdMember(EtcdMemberArgs),
}

fn main() -> ExitCode {
    let command = BenchCommand::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Rendezvous(args) => rendezvous::run(args),
        BenchCommand::RendezvousNodes(args) => rendezvous::serve(args),
        BenchCommand::Relay(args) => relay::run(args),
        BenchCommand::Rpc(args) => rpc::run(args),
        BenchCommand::RpcPeer => rpc::serve(),
        BenchCommand::Rref(args) => rref::run(args),
        BenchCommand::Goodput(args) => goodput::run(args),
        BenchCommand::RrefPeer => rref::serve(),
        BenchCommand::StoreServer(args) => servers::serve_store(args),
        BenchCommand::RelayServer(args) => servers::serve_relay(args),
        BenchCommand::EtcdMember(args) => args.become_member(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_argument_definitions_are_consistent() {
        BenchCommand::command().debug_assert();
    }
}
