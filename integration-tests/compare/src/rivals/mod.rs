//! Who is compared, and what each of them has to be able to do.

mod bare;
mod rpc_agent;
mod runtime;
mod tarpc;
mod tonic;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;

use crate::error::CompareError;
pub(crate) use runtime::Flavor;

/// Longer than any call takes on a machine that works.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Longer than any payload here; what a server reserves memory for at most.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One column of figures. What uses tokio is there once for each of its runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rival {
    /// Blocking sockets, one thread on each side, a length before each payload: the floor.
    Bare,
    RpcAgent,
    TarpcMultiThread,
    TarpcCurrentThread,
    TonicMultiThread,
    TonicCurrentThread,
}

/// Whom the table names: the better of a rival's runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Bare,
    RpcAgent,
    Tarpc,
    Tonic,
}

impl Family {
    pub(crate) const ALL: [Self; 4] = [Self::Bare, Self::RpcAgent, Self::Tarpc, Self::Tonic];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare TCP",
            Self::RpcAgent => "rpc-agent",
            Self::Tarpc => "tarpc",
            Self::Tonic => "tonic",
        }
    }
}

/// Puts the address where the client will find it.
pub(crate) type Announce<'a> = &'a mut dyn FnMut(SocketAddr) -> io::Result<()>;

impl Rival {
    pub(crate) fn family(self) -> Family {
        match self {
            Self::Bare => Family::Bare,
            Self::RpcAgent => Family::RpcAgent,
            Self::TarpcMultiThread | Self::TarpcCurrentThread => Family::Tarpc,
            Self::TonicMultiThread | Self::TonicCurrentThread => Family::Tonic,
        }
    }

    /// The runtime of tokio it runs on, if it does.
    pub(crate) fn flavor(self) -> Option<Flavor> {
        match self {
            Self::Bare | Self::RpcAgent => None,
            Self::TarpcMultiThread | Self::TonicMultiThread => Some(Flavor::MultiThread),
            Self::TarpcCurrentThread | Self::TonicCurrentThread => Some(Flavor::CurrentThread),
        }
    }

    /// Serves on a free port of 127.0.0.1 until the process ends; returns only with an error.
    pub(crate) fn serve(self, announce: Announce<'_>) -> Result<(), CompareError> {
        match (self.family(), self.flavor().unwrap_or_default()) {
            (Family::Bare, _) => bare::serve(announce),
            (Family::RpcAgent, _) => rpc_agent::serve(announce),
            (Family::Tarpc, flavor) => tarpc::serve(self, flavor, announce),
            (Family::Tonic, flavor) => tonic::serve(self, flavor, announce),
        }
    }

    /// A client with its connection made.
    pub(crate) fn connect(self, address: SocketAddr) -> Result<Box<dyn Client>, CompareError> {
        Ok(match (self.family(), self.flavor().unwrap_or_default()) {
            (Family::Bare, _) => Box::new(bare::Echo::connect(address)?),
            (Family::RpcAgent, _) => Box::new(rpc_agent::AgentClient::connect(address)?),
            (Family::Tarpc, flavor) => Box::new(tarpc::connect(self, flavor, address)?),
            (Family::Tonic, flavor) => Box::new(tonic::connect(self, flavor, address)?),
        })
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family().name())?;
        match self.flavor() {
            Some(flavor) => write!(f, " ({})", flavor.name()),
            None => Ok(()),
        }
    }
}

/// What is asked of every rival: to have payloads echoed over one connection.
pub(crate) trait Client {
    /// One call, and its answer.
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, CompareError>;

    /// One call after the other until `time` has passed, at least one: how long each took.
    fn one_in_flight(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, CompareError>;

    /// As many calls in flight as asked for, until `time` has passed; then waits for the answers
    /// that are still out, which count.
    fn window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<Throughput, CompareError>;
}

/// Calls answered, and the time from the first request to the last answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    pub(crate) calls: u64,
    pub(crate) elapsed: Duration,
}

/// What is checked of every answer that is measured; the bytes themselves are compared once, before.
fn check_length(rival: Rival, payload: &[u8], answer: &[u8]) -> Result<(), CompareError> {
    if answer.len() == payload.len() {
        return Ok(());
    }
    Err(CompareError::WrongAnswer {
        rival,
        detail: format!("{} bytes for {}", answer.len(), payload.len()),
    })
}
