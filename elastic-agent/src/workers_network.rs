//! The network interface that workers use between nodes, and whether gloo needs its name.
//!
//! gloo listens at the first address of the host's name that this host has, otherwise at loopback
//! (`makeDeviceForHostname` in PyTorch's `ProcessGroupGloo.cpp`). If this is a loopback address, ranks of other nodes
//! would connect to themselves.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, host_name, interface_addresses, resolve_local};
use elastic_rendezvous::RendezvousInfo;

/// The limit for looking up the host's name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The facts about the network between the nodes of a round that workers need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkersNetwork {
    /// The interface with this node's address of the rendezvous connection; `None` in a job of one node, and for nodes that
    /// meet at loopback.
    pub(crate) interface: Option<String>,
    /// Whether gloo would listen at loopback unless this launcher gives it the interface.
    pub(crate) is_name_loopback: bool,
}

impl WorkersNetwork {
    /// Reads the facts from the system. In a job of several nodes, looks up the host's name, which blocks for at most 2
    /// s, or until `cancel` ends it. Without `cancel`, the name is not needed, because the user has chosen the interface.
    pub(crate) fn of(round: &RendezvousInfo, cancel: Option<&Cancel>) -> Self {
        let local = round.route.local.filter(|_| round.world_size > 1);
        let interfaces = || interface_addresses().unwrap_or_default();
        let interface = local.and_then(|local| interface_with(local, &interfaces()));
        Self::with(interface, cancel, |cancel| {
            let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
            let own = resolve_local(&HostPort::new(host_name(), 0), deadline, cancel);
            own.unwrap_or_default()
        })
    }

    fn with(
        interface: Option<String>,
        cancel: Option<&Cancel>,
        look_up: impl FnOnce(&Cancel) -> Vec<SocketAddr>,
    ) -> Self {
        let cancel = cancel.filter(|_| interface.is_some());
        Self {
            interface,
            is_name_loopback: cancel.is_some_and(|cancel| leads_to_loopback(&look_up(cancel))),
        }
    }

    /// Returns the interface that gloo needs in `GLOO_SOCKET_IFNAME`.
    pub(crate) fn for_gloo(&self) -> Option<&str> {
        self.interface.as_deref().filter(|_| self.is_name_loopback)
    }
}

/// Returns the name of the interface with this address, unless that is loopback.
fn interface_with(local: IpAddr, interfaces: &[(String, IpAddr)]) -> Option<String> {
    let local = local.to_canonical();
    let mut interfaces = interfaces.iter().filter(|_| !local.is_loopback());
    let found = interfaces.find(|(_, address)| address.to_canonical() == local);
    found.map(|(name, _)| name.clone())
}

/// Whether gloo would choose loopback of the addresses of the host's name that this host has.
fn leads_to_loopback(own: &[SocketAddr]) -> bool {
    own.first()
        .is_none_or(|address| address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_is_that_of_the_address() {
        let interfaces = [
            ("lo", "127.0.0.1"),
            ("lo", "192.168.77.5"),
            ("eth0", "10.8.8.1"),
            ("eth0", "fd00:8::1"),
            ("ib0", "10.9.0.1"),
        ];
        let interfaces = interfaces.map(|(name, it)| (name.to_owned(), it.parse().unwrap()));
        for (local, name) in [
            ("10.8.8.1", Some("eth0")),
            ("::ffff:10.9.0.1", Some("ib0")),
            ("fd00:8::1", Some("eth0")),
            ("10.8.8.2", None),
            ("127.0.0.1", None),
        ] {
            let found = interface_with(local.parse().unwrap(), &interfaces);
            assert_eq!(found.as_deref(), name, "{local}");
        }
    }

    #[test]
    fn the_first_address_of_the_name_decides() {
        for (own, is_loopback) in [
            (&[][..], true),
            (&["127.0.1.1:0"], true),
            (&["[::1]:0", "10.8.8.1:0"], true),
            (&["10.8.8.1:0", "127.0.0.1:0"], false),
            (&["192.168.77.5:0"], false),
        ] {
            let own: Vec<SocketAddr> = own.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(leads_to_loopback(&own), is_loopback, "{own:?}");
        }
    }

    #[test]
    fn the_name_is_not_looked_up_if_the_user_has_chosen_the_interface_or_there_is_one_node() {
        let eth0 = || Some("eth0".to_owned());
        for (interface, cancel) in [(eth0(), None), (None, Some(&Cancel::NEVER))] {
            let network = WorkersNetwork::with(interface.clone(), cancel, |_| panic!("a lookup"));
            assert_eq!(network.interface, interface);
            assert_eq!(network.for_gloo(), None);
        }
        let network = WorkersNetwork::with(eth0(), Some(&Cancel::NEVER), |_| Vec::new());
        assert_eq!(network.for_gloo(), Some("eth0"));
    }

    #[test]
    fn gloo_is_given_an_interface_only_if_the_name_leads_to_loopback() {
        let network = |is_name_loopback| WorkersNetwork {
            interface: Some("eth0".to_owned()),
            is_name_loopback,
        };
        assert_eq!(network(true).for_gloo(), Some("eth0"));
        assert_eq!(network(false).for_gloo(), None);
        assert_eq!(WorkersNetwork::default().for_gloo(), None);
    }
}
