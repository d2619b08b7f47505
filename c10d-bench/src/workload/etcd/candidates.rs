//! Servers of one store in etcd: one serves, and the other servers are standbys.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use c10d_journal::{EtcdDirectory, EtcdOptions, EtcdStatus};
use c10d_socket::{Cancel, Deadline};

use super::site::Site;
use crate::affinity::Cores;
use crate::child::ServerChild;
use crate::failure::Failure;

const CANDIDATES: usize = 3;

/// How long a server may take to lead or to follow, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Candidates {
    address: String,
    directory: EtcdDirectory,
    cores: Option<Cores>,
    servers: Vec<ServerChild>,
}

impl Candidates {
    /// Starts servers, and waits until one serves and the other servers follow.
    pub(super) fn start(site: &Site, prefix: &str, cores: Option<Cores>) -> Result<Self, Failure> {
        let address = site.address(prefix);
        let options: EtcdOptions = address.parse()?;
        let mut this = Self {
            address,
            directory: EtcdDirectory::new(options),
            cores,
            servers: Vec::new(),
        };
        this.refill()?;
        Ok(this)
    }

    /// The address at which clients find the leading server.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Replaces the servers that have exited, or no longer lead, and waits until one serves and the other
    /// servers follow.
    pub(super) fn refill(&mut self) -> Result<(), Failure> {
        let by = Deadline::after(Instant::now(), TIMEOUT);
        let status = self.directory.status(by, &Cancel::NEVER)?;
        self.servers.retain(|server| {
            let address = server.address().to_string();
            status.candidates.iter().any(|it| it.address == address)
        });
        while self.servers.len() < CANDIDATES {
            self.add()?;
        }
        self.leader().map(drop)
    }

    /// Starts one more, and waits until it follows.
    fn add(&mut self) -> Result<(), Failure> {
        let option = format!("--etcd={}", self.address);
        let server = ServerChild::start_silent(&["store-server".to_owned(), option], self.cores)?;
        let address = server.address().to_string();
        self.servers.push(server);
        self.wait("a server does not follow", |status| {
            let mut candidates = status.candidates.iter();
            candidates.any(|it| it.address == address).then_some(())
        })
    }

    /// The server that serves.
    pub(super) fn leader(&self) -> Result<&ServerChild, Failure> {
        self.index_of_leader().map(|index| &self.servers[index])
    }

    /// The server that serves, which is no candidate any more.
    pub(super) fn take_leader(&mut self) -> Result<ServerChild, Failure> {
        let index = self.index_of_leader()?;
        Ok(self.servers.swap_remove(index))
    }

    fn index_of_leader(&self) -> Result<usize, Failure> {
        let index_of = |address: SocketAddr| {
            let mut servers = self.servers.iter();
            servers.position(|server| server.address() == address)
        };
        self.wait("no server serves", |status| {
            index_of(status.leader.as_ref()?.address.parse().ok()?)
        })
    }

    fn wait<T>(
        &self,
        what: &str,
        mut found: impl FnMut(&EtcdStatus) -> Option<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let by = Deadline::at(deadline);
            let status = self.directory.status(by, &Cancel::NEVER)?;
            if let Some(found) = found(&status) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!("{what} within {TIMEOUT:?}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
