//! The rivals' servers and clients.

mod bare;
mod contract;
mod rpc_agent;
mod runtime;
mod tarpc;
mod tonic;

use std::net::SocketAddr;

use crate::error::CompareError;
use crate::rival::{Family, Rival};
use contract::Announce;
pub(crate) use contract::Client;

/// Serves on a free port of 127.0.0.1 until the process exits; returns only on an error.
pub(crate) fn serve(rival: Rival, announce: Announce<'_>) -> Result<(), CompareError> {
    match (rival.family(), rival.flavor().unwrap_or_default()) {
        (Family::Bare, _) => bare::serve(announce),
        (Family::RpcAgent, _) => rpc_agent::serve(announce),
        (Family::Tarpc, flavor) => tarpc::serve(rival, flavor, announce),
        (Family::Tonic, flavor) => tonic::serve(rival, flavor, announce),
    }
}

/// Connects a client.
pub(crate) fn connect(rival: Rival, address: SocketAddr) -> Result<Box<dyn Client>, CompareError> {
    Ok(match (rival.family(), rival.flavor().unwrap_or_default()) {
        (Family::Bare, _) => Box::new(bare::Echo::connect(address)?),
        (Family::RpcAgent, _) => Box::new(rpc_agent::AgentClient::connect(address)?),
        (Family::Tarpc, flavor) => Box::new(tarpc::connect(rival, flavor, address)?),
        (Family::Tonic, flavor) => Box::new(tonic::connect(rival, flavor, address)?),
    })
}
