//! How a workload is measured.

use std::net::SocketAddr;
use std::time::Duration;

use c10d_socket::TlsClient;

use super::super::affinity::Cores;
use super::super::error::BenchError;
use super::super::fleet::Fleet;
use super::super::process::Process;
use super::requests;

/// The settings of all workloads.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Setting {
    /// The measured server.
    pub(in super::super) server: SocketAddr,
    /// The server's process, if it is known and on this machine.
    pub(in super::super) process: Option<Process>,
    /// The cores of this thread and of the servers that it starts.
    pub(in super::super) cores: Option<Cores>,
    /// Whether to measure the floor.
    pub(in super::super) floor: bool,
    /// How often each figure is measured.
    pub(in super::super) rounds: usize,
    /// How long a round lasts, for workloads without a natural end.
    pub(in super::super) round_time: Duration,
    /// How many connections are opened at a time.
    pub(in super::super) connect_window: usize,
}

impl Setting {
    /// Opens a fleet of connections that have completed the handshake, with a secret or plain.
    pub(super) fn fleet(
        &self,
        connections: usize,
        tls: Option<&TlsClient>,
    ) -> Result<Fleet, BenchError> {
        let mut fleet = Fleet::new(self.server, tls.cloned())?;
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
