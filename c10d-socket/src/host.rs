//! The name of this host, and its addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::sys;

/// Returns the name that this host has for itself, often without a domain: what `hostname` prints and PyTorch's
/// workers publish. Empty on a host without a name. Does no lookup.
///
/// ```
/// println!("on {}", c10d_socket::host_name());
/// ```
#[must_use]
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Returns the addresses of this host's network interfaces, each with the name of its interface, for example `eth0`.
/// Interfaces without an address are omitted. Does not block.
///
/// ```
/// let addresses = c10d_socket::interface_addresses()?;
/// assert!(addresses.iter().any(|(_, address)| address.is_loopback()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of getifaddrs(3).
pub fn interface_addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut found = Vec::new();
    sys::for_each_interface_address(|name, address| {
        let name = String::from_utf8_lossy(name).into_owned();
        found.push((name, address));
    })?;
    Ok(found)
}

/// Returns the local address of connections to `remote`. Sends nothing: the system only chooses a route. Does not block.
///
/// ```
/// let own = c10d_socket::own_address_towards("127.0.0.1:29500".parse().unwrap())?;
/// assert!(own.is_loopback());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of the system, for example if no route leads there.
pub fn own_address_towards(remote: SocketAddr) -> io::Result<IpAddr> {
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
    fn the_loopback_interface_is_found() {
        let addresses = interface_addresses().unwrap();
        let is_loopback = |(_, address): &(String, IpAddr)| address.is_loopback();
        assert!(addresses.iter().any(is_loopback), "{addresses:?}");
        assert!(
            addresses.iter().all(|(name, _)| !name.is_empty()),
            "{addresses:?}"
        );
    }

    #[test]
    fn this_host_sees_itself_by_loopback() {
        for address in ["127.0.0.1:1", "127.0.0.7:1"] {
            let seen = own_address_towards(address.parse().unwrap()).unwrap();
            assert!(seen.is_loopback(), "{seen}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn it_is_the_kernels() {
        let kernels = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(host_name(), kernels.trim_end());
    }
}
