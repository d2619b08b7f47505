//! The relay of a node: its workers reach their store through it, on loopback.
//!
//! Each round has a new one, in this process, on a port that is the same on all nodes.

mod agreement;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use c10d_relay::{Relay, RelayError, RelayOptions};
use c10d_socket::{Cancel, Deadline, HostPort, ListenOptions, listen};
use elastic_rendezvous::{BoardError, RendezvousInfo};

pub(crate) use self::agreement::Member;
pub use self::agreement::NodeRelayError;

/// Several launchers on one machine have the same port at different loopback addresses, from 127.0.0.1 to this one.
/// Linux has all of 127.0.0.0/8, other systems only the first.
const LAST_HOST: u8 = 8;

/// How long a stopping relay waits for requests that the workers have sent before they exited. Processes that survived
/// their worker can hold connections longer.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(1);

/// A running relay. Drop stops it.
#[derive(Debug)]
pub(crate) struct NodeRelay {
    relay: Relay,
    address: HostPort,
}

impl NodeRelay {
    /// Agrees with the other nodes on a port, and starts the relay to the workers' store of the round. Waits for the
    /// other nodes and for the store for at most the round's timeout each, or until `cancel` interrupts the wait.
    ///
    /// `known` is the port of the same round, if this node has taken part in it before, for example in a static
    /// rendezvous, where the other nodes do not restart their workers.
    pub(crate) fn start(
        round: &RendezvousInfo,
        fixed: Option<u16>,
        known: Option<u16>,
        cancel: &Cancel,
    ) -> Result<Self, NodeRelayError> {
        let master = &round.bootstrap.master;
        if !round.bootstrap.is_agent_store {
            return Err(NodeRelayError::NoAgentStore {
                master: master.clone(),
            });
        }
        let timeout = round.store.timeout();
        let (port, listener) = match known {
            Some(port) => bound(port)?,
            // The other nodes have agreed already, and do not wait for a node that enters their round.
            None if round.world_size == 1 || round.has_entered => bound(fixed.unwrap_or(0))?,
            None => {
                let member = Member {
                    board: &round.board().with_cancel(cancel),
                    group_rank: round.rank,
                    group_world_size: round.world_size,
                    fixed,
                    timeout,
                };
                member.agree(bind)?
            }
        };
        let not_bound = |source| NodeRelayError::NotBound { port, source };
        let host = listener.local_addr().map_err(not_bound)?.ip();
        let mut options = RelayOptions::default();
        if let Some(credentials) = &round.bootstrap.credentials {
            options = options.with_credentials(credentials.clone());
        }
        let relay = Relay::start(round.bootstrap.address(), vec![listener], options);
        let relay = Self {
            relay: relay.map_err(NodeRelayError::Start)?,
            address: HostPort::new(host.to_string(), port),
        };
        relay.await_session(master, timeout, cancel)?;
        Ok(relay)
    }

    /// Returns the address at which the workers of this node reach the relay.
    pub(crate) const fn address(&self) -> &HostPort {
        &self.address
    }

    /// Stops the relay when the workers have exited and their last requests are on their way.
    pub(crate) fn end(self) {
        let deadline = Deadline::after(Instant::now(), LAST_REQUESTS_TIMEOUT);
        self.relay.finish(deadline);
    }

    /// Waits until the store has accepted the relay, so that a wrong secret or a store of another kind is an error here
    /// and no hang of the workers.
    fn await_session(
        &self,
        master: &HostPort,
        timeout: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<(), NodeRelayError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, timeout);
        match self.relay.wait_until_connected(deadline, cancel) {
            Ok(()) => Ok(()),
            Err(RelayError::Cancelled) => Err(BoardError::Interrupted.into()),
            Err(source) => Err(NodeRelayError::NotConnected {
                master: master.clone(),
                waited: started.elapsed(),
                source,
            }),
        }
    }
}

fn bound(port: u16) -> Result<(u16, TcpListener), NodeRelayError> {
    bind(port).map_err(|source| NodeRelayError::NotBound { port, source })
}

/// Listens on the port at the first loopback address where it is free; on any port of 127.0.0.1 for port 0.
fn bind(port: u16) -> io::Result<(u16, TcpListener)> {
    let last = if port == 0 { 1 } else { LAST_HOST };
    let mut first_error = None;
    for host in 1..=last {
        match bind_at(Ipv4Addr::new(127, 0, 0, host), port) {
            Ok(listener) => return Ok((listener.local_addr()?.port(), listener)),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

fn bind_at(host: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let options = ListenOptions::default()
        .with_host(host.to_string())
        .with_port(port);
    let mut listeners = listen(&options).map_err(io::Error::other)?;
    listeners
        .pop()
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn any_port_is_one_of_127_0_0_1() {
        let (port, listener) = bind(0).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(address, (Ipv4Addr::LOCALHOST, port).into());
        assert_ne!(port, 0);
    }

    /// docs/spec/rendezvous.md, RELAY 2.
    #[cfg(target_os = "linux")]
    #[test]
    fn launchers_on_one_machine_have_the_same_port_at_different_addresses() {
        let mut taken: Vec<u8> = Vec::new();
        for _ in 0..20 {
            let (port, first) = bind(0).unwrap();
            let mut all = vec![first];
            let error = loop {
                match bind(port) {
                    Ok((same, listener)) => {
                        assert_eq!(same, port);
                        all.push(listener);
                    }
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains("127.0.0.1"), "{error}");
            let addresses = all.iter().map(|it| it.local_addr().unwrap());
            let hosts = addresses.map(|address| {
                assert_eq!(address.port(), port);
                match address.ip() {
                    IpAddr::V4(host) => host.octets()[3],
                    IpAddr::V6(host) => panic!("{host}"),
                }
            });
            taken = hosts.collect();
            assert!(taken.is_sorted(), "{taken:?}");
            // Another program may have the port at some of the addresses: thousands of connections do.
            let mut left_out = (1..=LAST_HOST).filter(|host| !taken.contains(host));
            let is_in_use = |host| bind_at(Ipv4Addr::new(127, 0, 0, host), port).is_err();
            if taken.len() > 1 && left_out.all(is_in_use) {
                return;
            }
        }
        panic!("only {taken:?}");
    }
}
