//! The address of this machine that another one sees.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The local address of connections to `remote`. Sends nothing: the system only chooses a route.
pub(super) fn own_address_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_sees_itself_by_loopback() {
        for address in ["127.0.0.1:1", "127.0.0.7:1"] {
            let seen = own_address_towards(address.parse().unwrap()).unwrap();
            assert!(seen.is_loopback(), "{seen}");
        }
    }
}
