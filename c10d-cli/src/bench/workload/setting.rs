//! How a workload is to be measured.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::affinity::Cores;
use super::super::error::BenchError;
use super::super::fleet::Fleet;
use super::super::process::Process;
use super::requests;

/// What all workloads need to know.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Setting {
    /// The server that is measured.
    pub(in super::super) server: SocketAddr,
    /// Its process, when it is known and on this machine.
    pub(in super::super) process: Option<Process>,
    /// Where this thread and the servers that it starts run.
    pub(in super::super) cores: Option<Cores>,
    /// Whether to measure the floor too.
    pub(in super::super) floor: bool,
    /// How often each figure is measured.
    pub(in super::super) rounds: usize,
    /// How long a round of a workload without an end of its own lasts.
    pub(in super::super) round_time: Duration,
    /// Connections that may be on their way at a time.
    pub(in super::super) connect_window: usize,
}

impl Setting {
    /// A fleet of so many connections that have said hello.
    pub(super) fn fleet(&self, connections: usize) -> Result<Fleet, BenchError> {
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
