//! The addresses of this machine.

use std::net::IpAddr;

use c10d_socket::interface_addresses;

/// The most addresses that are announced.
const ADDRESSES_MAX: usize = 64;

/// The addresses of this machine's interfaces, without loopback and those of a single link, at most 64. None if the system does
/// not list them.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let is_of_link = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let all = interface_addresses().unwrap_or_default().into_iter();
    let mut own: Vec<IpAddr> = all
        .map(|(_, address)| address)
        .filter(|it| !it.is_loopback() && !is_of_link(it))
        .collect();
    own.sort_unstable();
    own.dedup();
    own.truncate(ADDRESSES_MAX);
    own
}
