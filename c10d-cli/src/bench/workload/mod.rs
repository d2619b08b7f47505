//! What is measured, one kind of workload a file.

mod client;
mod large;
mod ping;
mod ranks;
mod requests;
mod throughput;

pub(super) use client::client;
pub(super) use large::large_values;
pub(super) use ping::ping;
pub(super) use ranks::{RanksShape, ranks};
pub(super) use throughput::{Kind, Throughput};

use std::net::SocketAddr;
use std::time::Duration;

use super::affinity::Cores;
use super::error::BenchError;
use super::fleet::Fleet;
use super::process::Process;

/// What all workloads need to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    /// The server that is measured.
    pub(super) server: SocketAddr,
    /// Its process, when it is known and on this machine.
    pub(super) process: Option<Process>,
    /// Where this thread and the servers that it starts run.
    pub(super) cores: Option<Cores>,
    /// Whether to measure the floor too.
    pub(super) floor: bool,
    /// How often each figure is measured.
    pub(super) rounds: usize,
    /// How long a round of a workload without an end of its own lasts.
    pub(super) round_time: Duration,
    /// Connections that may be on their way at a time.
    pub(super) connect_window: usize,
}

impl Setting {
    /// A fleet of so many connections that have said hello.
    fn fleet(&self, connections: usize) -> Result<Fleet, BenchError> {
        let mut fleet = Fleet::new(self.server)?;
        let hello = requests::hello();
        fleet.connect(
            connections,
            self.connect_window,
            &hello,
            requests::HELLO_REPLY.len(),
            |links, reply| {
                if reply == requests::HELLO_REPLY {
                    Ok(())
                } else {
                    Err(links.wrong_answer("PING", format!("{reply:02x?}")))
                }
            },
        )?;
        Ok(fleet)
    }
}
