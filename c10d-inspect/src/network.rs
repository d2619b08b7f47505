//! The interfaces that lead from node to node, as users give them to gloo and NCCL.

use std::collections::BTreeSet;

use crate::launched::Launched;
use crate::text;

/// The most interfaces that are named, and characters of each.
const INTERFACES_MAX: usize = 4;
const INTERFACE_CHARS_MAX: usize = 32;

/// Returns the assignment that makes NCCL use the interface of the rendezvous, in NCCL's form for exact names, for example
/// `NCCL_SOCKET_IFNAME==eth0`.
pub(crate) fn nccl_assignment(launched: &Launched) -> String {
    let names = interfaces(launched);
    match names.is_empty() {
        true => "NCCL_SOCKET_IFNAME==eth0, with your interface".to_owned(),
        // Each node takes those that it has.
        false => format!("NCCL_SOCKET_IFNAME=={}", names.join(",")),
    }
}

/// Returns a sentence about the interface of NCCL, in jobs of several nodes.
pub(crate) fn nccl_hint(launched: &Launched) -> Option<String> {
    is_spread(launched).then(|| {
        let assignment = nccl_assignment(launched);
        format!(" If NCCL has chosen a network that does not lead there, set {assignment}.")
    })
}

/// Returns the assignment that makes gloo use the interface of the rendezvous, for example `GLOO_SOCKET_IFNAME=eth0`. gloo must
/// have each interface that it is given, so several names are alternatives for different nodes.
pub(crate) fn gloo_assignment(launched: &Launched) -> String {
    let names = interfaces(launched);
    match &names[..] {
        [] => "GLOO_SOCKET_IFNAME=eth0, with your interface".to_owned(),
        [name] => format!("GLOO_SOCKET_IFNAME={name}"),
        names => format!(
            "GLOO_SOCKET_IFNAME to the interface of the node: {}",
            names.join(" or ")
        ),
    }
}

/// Whether the job has several nodes that do not meet at loopback.
pub(crate) fn is_spread(launched: &Launched) -> bool {
    !interfaces(launched).is_empty()
}

/// The different interfaces that launchers have announced.
fn interfaces(launched: &Launched) -> Vec<String> {
    let announced = launched.nodes.iter().map(|node| &node.announced);
    let names = announced.filter_map(|node| node.interface.as_deref());
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    let shown = |name: &str| text::shown_up_to(name.as_bytes(), INTERFACE_CHARS_MAX);
    names.into_iter().take(INTERFACES_MAX).map(shown).collect()
}
