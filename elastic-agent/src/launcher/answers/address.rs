//! Where the launcher listens for questions about its workers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, own_address_towards, resolve};

/// How long the name of the store's host may take. The workers have started already, and the agent waits.
const NAME_TIMEOUT: Duration = Duration::from_millis(500);

/// Listens on the address that this node uses to reach the workers' store, because it is on the network of the job.
pub(super) fn listen(store: &HostPort, nodes: usize) -> io::Result<TcpListener> {
    let deadline = Deadline::after(Instant::now(), NAME_TIMEOUT);
    let stores = resolve(store, deadline, &Cancel::NEVER).unwrap_or_default();
    let towards = stores
        .first()
        .and_then(|store| own_address_towards(*store).ok());
    // All nodes have this address.
    let is_here = store.host() == "localhost"
        || store
            .host()
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    let nodes = if is_here { 1 } else { nodes };
    TcpListener::bind(SocketAddr::new(choose(towards, nodes), 0))
}

/// Returns the address to listen on. The node that serves the store may reach it by loopback, where other nodes cannot
/// connect, and then listens on all interfaces.
fn choose(towards_store: Option<IpAddr>, nodes: usize) -> IpAddr {
    match towards_store {
        Some(ip) if nodes == 1 || !ip.is_loopback() => ip,
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        None if nodes == 1 => Ipv4Addr::LOCALHOST.into(),
        Some(IpAddr::V4(_)) | None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(towards: Option<&str>, nodes: usize) -> String {
        choose(towards.map(|ip| ip.parse().unwrap()), nodes).to_string()
    }

    #[test]
    fn all_interfaces_are_used_only_if_other_nodes_could_not_ask_otherwise() {
        assert_eq!(chosen(Some("10.0.0.3"), 4), "10.0.0.3");
        assert_eq!(chosen(Some("10.0.0.3"), 1), "10.0.0.3");
        assert_eq!(chosen(Some("127.0.0.1"), 1), "127.0.0.1");
        assert_eq!(chosen(Some("127.0.1.1"), 4), "0.0.0.0");
        assert_eq!(chosen(Some("::1"), 4), "::");
        assert_eq!(chosen(None, 1), "127.0.0.1");
        assert_eq!(chosen(None, 4), "0.0.0.0");
    }

    #[test]
    fn a_job_on_this_host_alone_is_asked_by_loopback() {
        for (host, nodes) in [("127.0.0.1", 1), ("127.0.0.1", 4), ("localhost", 4)] {
            let store = HostPort::new(host, 29500);
            let address = listen(&store, nodes).unwrap().local_addr().unwrap();
            assert!(address.ip().is_loopback(), "{host}");
        }
    }
}
