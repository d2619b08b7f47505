//! Which connection belongs to which rank, and how sure that is.
//!
//! A wrong name is worse than none. A process id is only unique on one host, and several hosts or containers can
//! be behind one address, so equal ids alone prove nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::index::{Index, Slot, is_container_pid};
use crate::keys::{Family, GROUP_SIZE_MAX, GroupName, Maker, family};
use crate::launched::Launched;
use crate::report::Sureness;
use crate::text;

/// The ranks of all connections.
#[derive(Debug)]
pub(crate) struct Identities<'a> {
    /// The identities by the connection's place.
    of: Vec<Option<Identity>>,
    /// The connections of each rank, in the order of the index.
    by_rank: BTreeMap<usize, Vec<Slot>>,
    /// The prefix of the keys of the job that this report is about. Ranks of other jobs on the store are unknown.
    pub(crate) prefix: Option<&'a [u8]>,
    hosts: HashMap<Slot, &'a str>,
    /// The only host that has published an address which is also the server's view of it; `None` for several.
    hosts_by_ip: HashMap<IpAddr, Option<&'a str>>,
}

/// The rank of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) sureness: Sureness,
}

impl<'a> Identities<'a> {
    pub(crate) fn new(index: &'a Index<'a>, launched: &Launched) -> Self {
        let prefix = main_prefix(index);
        let claims = claims(index, prefix);
        let mut of: Vec<Option<Identity>> = vec![None; index.connections.len()];
        let identified = launched.identified(index);
        // A worker whose process claims another rank has given ranks to its processes itself.
        let disputed: HashSet<usize> = identified
            .iter()
            .filter(|(slot, rank)| {
                claims
                    .get(slot)
                    .is_some_and(|claim| *claim != Claim::Rank(*rank))
            })
            .map(|&(_, rank)| rank)
            .collect();
        for (slot, rank) in identified {
            if disputed.contains(&rank) {
                continue;
            }
            of[slot] = Some(Identity {
                rank,
                sureness: Sureness::Launched,
            });
        }
        for (&slot, claim) in &claims {
            match *claim {
                // The process knows its rank better than its launcher: it may have given ranks to its children.
                Claim::Rank(rank) if of[slot].is_none_or(|known| known.rank != rank) => {
                    of[slot] = Some(Identity {
                        rank,
                        sureness: Sureness::Claimed,
                    });
                }
                Claim::Rank(_) => {}
                Claim::OfAnotherJob | Claim::Contradiction => of[slot] = None,
            }
        }
        same_process(index, prefix, &claims, &mut of);
        let mut by_rank: BTreeMap<usize, Vec<Slot>> = BTreeMap::new();
        for (slot, identity) in of.iter().enumerate() {
            if let Some(identity) = identity {
                by_rank.entry(identity.rank).or_default().push(slot);
            }
        }
        let mut hosts = HashMap::new();
        let mut hosts_by_ip = HashMap::new();
        for member in index.groups.iter().flat_map(|group| &group.members) {
            let Some(slot) = member.writer else { continue };
            let host = member.address.host.as_str();
            hosts.insert(slot, host);
            let ip = index.connections[slot].peer.ip().to_canonical();
            let is_own = ip == member.address.address.ip().to_canonical();
            let only = hosts_by_ip.entry(ip).or_insert(is_own.then_some(host));
            if !is_own || *only != Some(host) {
                *only = None;
            }
        }
        Self {
            of,
            by_rank,
            prefix,
            hosts,
            hosts_by_ip,
        }
    }

    pub(crate) fn rank(&self, slot: Slot) -> Option<usize> {
        self.of[slot].map(|identity| identity.rank)
    }

    pub(crate) fn identity(&self, slot: Slot) -> Option<Identity> {
        self.of[slot]
    }

    /// The connections of a rank, closed ones included.
    pub(crate) fn connections(&self, rank: usize) -> &[Slot] {
        self.by_rank.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// The ranks that have or had a connection.
    pub(crate) fn seen(&self) -> impl Iterator<Item = usize> {
        self.by_rank.keys().copied()
    }

    /// The host of a connection: the name that its process published, otherwise its address.
    pub(crate) fn host(&self, index: &Index<'_>, slot: Slot) -> String {
        let ip = index.connections[slot].peer.ip().to_canonical();
        let by_ip = || self.hosts_by_ip.get(&ip).copied().flatten();
        match self.hosts.get(&slot).copied().or_else(by_ip) {
            Some(host) => host.to_owned(),
            None => ip.to_string(),
        }
    }

    /// "pid 4711 on vm".
    pub(crate) fn process(&self, index: &Index<'_>, slot: Slot) -> String {
        let host = self.host(index, slot);
        match index.process(slot) {
            Some((_, pid)) => format!("pid {pid} on {host}"),
            None => format!("a process on {host}"),
        }
    }

    /// "unknown process 4711 on 10.0.0.3".
    pub(crate) fn unknown(&self, index: &Index<'_>, slot: Slot) -> String {
        let host = self.host(index, slot);
        match (index.process(slot), index.connections[slot].nonce) {
            (Some((_, pid)), _) => format!("unknown process {pid} on {host}"),
            (None, Some(_)) => format!("c10d client on {host}"),
            (None, None) => format!("unknown process on {host}"),
        }
    }

    /// "Rank 2 (pid 4711 on vm)" without the capital.
    pub(crate) fn name(&self, index: &Index<'_>, slot: Slot) -> String {
        match self.rank(slot) {
            Some(rank) => format!("rank {rank} ({})", self.process(index, slot)),
            None => self.unknown(index, slot),
        }
    }

    /// Whether a group belongs to the job that this report is about.
    pub(crate) fn is_of_job(&self, group: &GroupName<'_>) -> bool {
        group.maker != Maker::Process || self.prefix.is_none_or(|prefix| prefix == group.prefix)
    }
}

/// The rank in a connection's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Rank(usize),
    OfAnotherJob,
    /// The connection wrote keys of two ranks.
    Contradiction,
}

/// The prefix that most connected ranks have used to publish. If several prefixes have equally many ranks, it is
/// the prefix that was written last.
fn main_prefix<'a>(index: &Index<'a>) -> Option<&'a [u8]> {
    let mut prefixes: BTreeMap<&[u8], (usize, Duration)> = BTreeMap::new();
    for group in index.groups.iter().filter(|group| group.is_default()) {
        for member in &group.members {
            let is_open = member.writer.is_some_and(|slot| index.is_open(slot));
            let (open, last) = prefixes.entry(group.name.prefix).or_default();
            *open += usize::from(is_open);
            *last = (*last).max(member.key.written);
        }
    }
    prefixes
        .into_iter()
        .max_by_key(|&(_, score)| score)
        .map(|(prefix, _)| prefix)
}

/// The keys written by connections that only a single rank writes.
fn claims(index: &Index<'_>, prefix: Option<&[u8]>) -> HashMap<Slot, Claim> {
    let mut claims = HashMap::new();
    let mut add = |slot: Option<Slot>, claim: Claim| {
        if let Some(slot) = slot {
            claims
                .entry(slot)
                .and_modify(|before| {
                    if *before != claim {
                        *before = Claim::Contradiction;
                    }
                })
                .or_insert(claim);
        }
    };
    let defaults = index.groups.iter().filter(|group| group.is_default());
    let has_default = defaults.clone().next().is_some();
    for group in defaults {
        let is_main = Some(group.name.prefix) == prefix;
        for member in &group.members {
            let claim = if is_main {
                Claim::Rank(member.rank)
            } else {
                Claim::OfAnotherJob
            };
            add(member.writer, claim);
            add(member.previous.and_then(|previous| previous.writer), claim);
        }
    }
    // Ranks of RPC are the ranks of the job only if the job has no other ranks.
    if !has_default {
        for group in index
            .groups
            .iter()
            .filter(|group| group.name.maker == Maker::Rpc)
        {
            for member in &group.members {
                add(member.writer, Claim::Rank(member.rank));
            }
        }
    }
    for (family, key) in &index.others {
        match *family {
            Family::DebugServer { rank } if rank < GROUP_SIZE_MAX => {
                add(index.slot(key.writer), Claim::Rank(rank));
                let previous = key.previous.and_then(|(_, writer, _)| index.slot(writer));
                add(previous, Claim::Rank(rank));
            }
            Family::RpcName { rank } if !has_default && rank < GROUP_SIZE_MAX => {
                add(index.slot(key.writer), Claim::Rank(rank));
            }
            _ => {}
        }
    }
    claims
}

/// Gives further connections of a process the rank that the process claimed on its first connection.
///
/// A process id proves this only if the address is not shared: a claimed connection must have published exactly
/// the peer address that the server has recorded, all connections with this address and id must agree, and the
/// further connection must be about the same job. The intervals must overlap, because ids are reused.
fn same_process(
    index: &Index<'_>,
    prefix: Option<&[u8]>,
    claims: &HashMap<Slot, Claim>,
    of: &mut [Option<Identity>],
) {
    let own_addresses = own_addresses(index);
    let mut processes: HashMap<(IpAddr, u32), Vec<Slot>> = HashMap::new();
    for slot in 0..index.connections.len() {
        if let Some(process) = index.process(slot) {
            processes.entry(process).or_default().push(slot);
        }
    }
    for ((ip, pid), mut slots) in processes {
        if slots.len() < 2 || is_container_pid(pid) {
            continue;
        }
        slots.sort_unstable_by_key(|&slot| index.connections[slot].opened);
        for present in continuous(index, &slots) {
            let mut ranks = present.iter().filter_map(|slot| claims.get(slot));
            let Some(&Claim::Rank(rank)) = ranks.next() else {
                continue;
            };
            let is_contradicted = ranks.any(|&claim| claim != Claim::Rank(rank))
                || present
                    .iter()
                    .any(|&slot| of[slot].is_some_and(|other| other.rank != rank));
            let is_own =
                ip.is_loopback() || present.iter().any(|slot| own_addresses.contains(slot));
            if is_contradicted || !is_own {
                continue;
            }
            for &slot in present {
                if of[slot].is_none() && is_about_job(index, prefix, slot) {
                    of[slot] = Some(Identity {
                        rank,
                        sureness: Sureness::SameProcess,
                    });
                }
            }
        }
    }
}

/// The connections whose processes have published the same address as the server has recorded for them.
fn own_addresses(index: &Index<'_>) -> HashSet<Slot> {
    let members = index.groups.iter().flat_map(|group| &group.members);
    members
        .filter_map(|member| {
            let slot = member.writer?;
            let peer = index.connections[slot].peer.ip().to_canonical();
            (peer == member.address.address.ip().to_canonical()).then_some(slot)
        })
        .collect()
}

/// Cuts connections, in the order of opening, into runs during which one was open at any moment.
fn continuous<'s>(index: &Index<'_>, slots: &'s [Slot]) -> Vec<&'s [Slot]> {
    let mut runs = Vec::new();
    let mut start = 0;
    let mut end = Duration::ZERO;
    for (place, &slot) in slots.iter().enumerate() {
        let connection = index.connections[slot];
        if place > 0 && connection.opened >= end {
            runs.push(&slots[start..place]);
            start = place;
            end = Duration::ZERO;
        }
        end = end.max(connection.closed.map_or(Duration::MAX, |closed| closed.at));
    }
    runs.push(&slots[start..]);
    runs
}

/// Whether the last request is about a part of the job that a rank starts after it has published its address. A
/// connection that only joins can belong to another host behind the same address.
fn is_about_job(index: &Index<'_>, prefix: Option<&[u8]>, slot: Slot) -> bool {
    let connection = index.connections[slot];
    let waited = connection
        .wait
        .as_ref()
        .and_then(|wait| wait.missing.first());
    let last = connection.last.as_ref().map(|last| &*last.key);
    let Some(key) = waited.map(|key| &**key).or(last) else {
        return false;
    };
    match family(key) {
        Family::Member(member) => {
            !member.group.is_default()
                && (member.group.maker != Maker::Process || Some(member.group.prefix) == prefix)
        }
        Family::DebugServer { .. } => true,
        _ => false,
    }
}

/// Escapes a name that a launcher announced.
pub(crate) fn shown_name(name: &str) -> String {
    text::shown(name.as_bytes())
}
