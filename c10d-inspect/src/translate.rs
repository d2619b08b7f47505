//! Which ranks an error text of PyTorch is about.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use c10d_store::Snapshot;

use crate::identity::Identities;
use crate::index::{Index, Slot};
use crate::job::Job;
use crate::keys::Family;
use crate::launched::Launched;
use crate::network::{gloo_assignment, is_spread, nccl_assignment};

/// NCCL's messages for a failed connection to another rank, or a missing interface. In lower case.
const NCCL_NETWORK_ERRORS: [&str; 6] = [
    "socketpollconnect",
    "socketstartconnect",
    "call to connect returned",
    "bootstrap : no socket interface found",
    "net/socket : no interface found",
    "net/socket : no usable listening interface found",
];

/// The start of gloo's message about an unknown interface.
const GLOO_INTERFACE_ERRORS: [&str; 2] = [
    "Unable to find address for: ",
    "Unable to find interface for: ",
];

/// The start of gloo's message about ranks that could not connect to each other.
const GLOO_CONNECT_ERROR: &str = "connectFullMesh failed";

const INTERFACE_CHARS_MAX: usize = 64;

/// The most bytes of a text that are read, and the most sentences of the answer.
const TEXT_BYTES_MAX: usize = 64 * 1024;
const SENTENCES_MAX: usize = 4;

/// Names the ranks in an error text: the ranks behind the addresses that gloo prints, whose ports have their bytes
/// swapped, and the ranks whose keys a wait timed out for.
///
/// Returns `None` if the text contains no rank that is known in the store. Ports that no rank has published, such as
/// the ports of outgoing connections, stay unknown.
#[must_use]
pub fn translate(text: &str, snapshot: &Snapshot) -> Option<String> {
    let end = (0..=text.len().min(TEXT_BYTES_MAX))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    let text = &text[..end.unwrap_or(0)];
    let addresses: BTreeSet<SocketAddr> = addresses(text).collect();
    let keys: BTreeSet<&str> = keys(text).collect();
    let chosen = Chosen::of(text);
    if addresses.is_empty() && keys.is_empty() && chosen.is_none() {
        return None;
    }
    let index = Index::new(snapshot);
    let launched = Launched::new(&index);
    let who = Identities::new(&index, &launched);
    let job = Job::new(&index, &launched, &who, None);
    let published = published(&job);
    let of_addresses = addresses.into_iter().filter_map(|address| {
        let port = address.port().swap_bytes();
        let listening = SocketAddr::new(address.ip(), port);
        let (rank, slot) = published.get(&listening).copied().flatten()?;
        let process = slot.map_or_else(String::new, |slot| {
            format!(" ({}, port {port})", who.process(&index, slot))
        });
        Some(format!("{address} is rank {rank}{process}"))
    });
    let of_keys = keys
        .into_iter()
        .filter_map(|key| match job.family(key.as_bytes()) {
            Family::Unknown => None,
            _ => Some(format!(
                "{} is {}",
                crate::text::shown(key.as_bytes()),
                job.meaning(key.as_bytes())
            )),
        });
    let of_network = chosen.and_then(|chosen| chosen.sentence(&launched));
    let of_job = of_addresses.chain(of_keys).take(SENTENCES_MAX);
    let sentences: Vec<String> = of_job.chain(of_network).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// The ranks by the addresses that gloo prints for them in errors: those on which they listen, with the bytes of the port
/// swapped. Without addresses that two ranks have published, and without ranks that the job does not have.
#[must_use]
pub fn published_ranks(snapshot: &Snapshot) -> HashMap<SocketAddr, usize> {
    let index = Index::new(snapshot);
    let launched = Launched::new(&index);
    let who = Identities::new(&index, &launched);
    let job = Job::new(&index, &launched, &who, None);
    let exists = |rank: &usize| job.world_size.is_none_or(|size| *rank < size);
    published(&job)
        .into_iter()
        .filter_map(|(address, found)| {
            let rank = found.map(|(rank, _)| rank).filter(exists)?;
            let printed = SocketAddr::new(address.ip(), address.port().swap_bytes());
            Some((printed, rank))
        })
        .collect()
}

/// The ranks by the addresses that they listen on; `None` for an address that two ranks have published.
fn published(job: &Job<'_>) -> HashMap<SocketAddr, Option<(usize, Option<Slot>)>> {
    let mut published = HashMap::new();
    for state in &job.groups {
        for member in state.members.iter().filter(|member| !member.is_orphan) {
            let Some(rank) = member.rank else { continue };
            let address = member.published.address.address;
            published
                .entry(SocketAddr::new(address.ip().to_canonical(), address.port()))
                .and_modify(|other: &mut Option<(usize, Option<Slot>)>| {
                    if other.is_some_and(|(other, _)| other != rank) {
                        *other = None;
                    }
                })
                .or_insert(Some((rank, member.published.writer)));
        }
    }
    published
}

/// A cause in a text that a variable for the network can cure.
enum Chosen<'t> {
    /// NCCL could not connect.
    ByNccl,
    /// gloo could not connect.
    ByGloo,
    /// gloo does not know the interface with this name.
    Unknown(&'t str),
}

impl<'t> Chosen<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let named = GLOO_INTERFACE_ERRORS.iter().find_map(|start| {
            let (_, rest) = text.split_once(start)?;
            rest.lines().next()
        });
        if let Some(name) = named {
            return Some(Self::Unknown(name));
        }
        if text.contains(GLOO_CONNECT_ERROR) {
            return Some(Self::ByGloo);
        }
        let text = text.to_ascii_lowercase();
        let is_nccl = NCCL_NETWORK_ERRORS.iter().any(|error| text.contains(error));
        is_nccl.then_some(Self::ByNccl)
    }

    /// The cause and the variable; `None` for a job of one node, whose ranks share the network.
    fn sentence(&self, launched: &Launched) -> Option<String> {
        if let Self::Unknown(name) = self {
            return Some(format!(
                "GLOO_SOCKET_IFNAME has {}, which is not an interface of this host: gloo takes exact names. Set {}",
                crate::text::shown_up_to(name.as_bytes(), INTERFACE_CHARS_MAX),
                gloo_assignment(launched)
            ));
        }
        if !is_spread(launched) {
            return None;
        }
        let (library, assignment) = match self {
            Self::ByNccl => ("NCCL", nccl_assignment(launched)),
            Self::ByGloo | Self::Unknown(_) => ("gloo", gloo_assignment(launched)),
        };
        Some(format!(
            "{library} could not connect: if it has chosen the wrong network, set {assignment}"
        ))
    }
}

/// The addresses in a text, written as `[127.0.0.1]:42420`.
pub(crate) fn addresses(text: &str) -> impl Iterator<Item = SocketAddr> {
    text.match_indices("]:").filter_map(|(end, _)| {
        let start = text[..end].rfind('[')?;
        let ip: IpAddr = text[start + 1..end].parse().ok()?;
        let rest = &text[end + 2..];
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some(SocketAddr::new(
            ip.to_canonical(),
            rest[..digits].parse().ok()?,
        ))
    })
}

/// The keys that a wait timed out for: `keys: /default_pg/0//cpu//0/2`, several separated by commas.
pub(crate) fn keys(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("keys: ").flat_map(|(at, found)| {
        let rest = &text[at + found.len()..];
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        rest[..end].split(',').filter(|key| !key.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Script;

    #[test]
    fn a_failed_connection_names_the_variable_of_the_network() {
        let mut script = Script::new();
        let ranks = script.run_all(2);
        let (launcher, mut node) = script.launch(&ranks);
        let nccl = "ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n\
                    ncclOsSocketPollConnect: connect to 127.0.1.1<38011> returned Connection refused";
        let gloo = "RuntimeError: Gloo connectFullMesh failed with [.../pair.h:311] Connect timeout [none]";
        for text in [nccl, gloo] {
            assert_eq!(
                translate(text, &script.snapshot()),
                None,
                "a job of one node"
            );
        }
        node.interface = Some("eth0".to_owned());
        script.store.announce(launcher, &node);
        let unknown =
            "[enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: ^lo\nnext";
        for (text, parts) in [
            (
                nccl,
                &["NCCL could not connect", "set NCCL_SOCKET_IFNAME==eth0"][..],
            ),
            (
                gloo,
                &["gloo could not connect", "set GLOO_SOCKET_IFNAME=eth0"],
            ),
            (
                unknown,
                &[
                    "GLOO_SOCKET_IFNAME has ^lo, which",
                    "GLOO_SOCKET_IFNAME=eth0",
                ],
            ),
        ] {
            let meaning = translate(text, &script.snapshot()).expect(text);
            assert!(parts.iter().all(|part| meaning.contains(part)), "{meaning}");
        }
        node.interface = Some("a\nb".to_owned());
        let (_, mut other) = script.launch(&ranks);
        other.interface = Some("ib0".to_owned());
        script.store.announce(launcher, &node);
        let meaning = translate(nccl, &script.snapshot()).expect("a meaning");
        assert!(!meaning.contains('\n'), "{meaning:?}");
    }

    #[test]
    fn swapped_ports_are_translated_into_ranks() {
        let mut script = Script::new();
        let ranks = script.run_all(4);
        let snapshot = script.snapshot();
        // Rank 2 listens on port 30102.
        let port = 30_102_u16.swap_bytes();
        let text = format!(
            "Gloo connectFullMesh failed with [.../pair.cc:152] timed out connecting: SO_ERROR: Connection \
             refused, remote=[127.0.0.1]:{port}$0"
        );
        assert_eq!(
            translate(&text, &snapshot).as_deref(),
            Some(&*format!(
                "127.0.0.1:{port} is rank 2 (pid 4102 on vm, port 30102)"
            ))
        );
        assert_eq!(42420_u16.swap_bytes(), 46245);
        for unknown in [
            "Connection closed by peer [127.0.0.1]:49582",
            "Connection closed by peer [127.0.0.1]:30102",
            "[]:",
            "]:",
            "[127.0.0.1]:",
            "[::1]:99999999",
            "keys: ",
            "keys: /mine",
            "",
        ] {
            assert_eq!(translate(unknown, &snapshot), None, "{unknown}");
        }
        assert_eq!(
            translate(
                "wait timeout after 15000ms, keys: /default_pg/0//cpu//0/2",
                &snapshot
            )
            .as_deref(),
            Some("/default_pg/0//cpu//0/2 is the address of rank 2 in the default group")
        );
        script.close(&ranks[2]);
        assert!(translate(&text, &script.snapshot()).is_some());
    }
}
