//! Finds the problems of the machines of a job from the reports of the nodes. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use c10d_socket::printable;
use serde::Serialize;

use super::facts::{Measured, NodeFacts};

/// The number of nodes above which each node tries only the host and some neighbours.
pub(super) const TABLE_NODES_MAX: usize = 32;
const NEIGHBOURS: usize = 8;

/// The largest difference from the host's clock that is not reported.
const CLOCK_MS_MAX: u64 = 1_000;

/// The shared memory of a container in Docker by default, which batches of DataLoader processes soon fill.
const SHARED_MEMORY_MIN: u64 = 64 << 20;

/// How many open files the serving node needs, for itself and for each node with its workers.
const OWN_FILES: u64 = 64;
const FILES_PER_NODE: u64 = 16;

/// The most characters of a text that another node has written.
const TEXT_CHARS_MAX: usize = 120;

/// The most nodes that one sentence lists.
const NODES_SHOWN_MAX: usize = 4;

/// A node of the check: its facts and, if it got so far, its measurements.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) facts: NodeFacts,
    pub(super) measured: Option<Measured>,
}

/// A failed check, or a problem that affects only some jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Whether the check has failed; otherwise it is a warning.
    pub(super) is_failure: bool,
    /// The numbers of the affected nodes.
    pub(super) nodes: Vec<usize>,
    /// The problem as a sentence, without a full stop.
    pub(super) problem: String,
    /// The remedy.
    pub(super) cure: String,
}

impl Finding {
    fn failure(nodes: &[usize], problem: String, cure: impl Into<String>) -> Self {
        let (nodes, cure) = (nodes.to_vec(), cure.into());
        Self {
            is_failure: true,
            nodes,
            problem,
            cure,
        }
    }

    fn warning(nodes: &[usize], problem: String, cure: impl Into<String>) -> Self {
        Self {
            is_failure: false,
            ..Self::failure(nodes, problem, cure)
        }
    }
}

/// The nodes that node `own` of `count` tries to reach, in this order.
pub(super) fn targets(own: usize, count: usize) -> Vec<usize> {
    if count <= TABLE_NODES_MAX {
        return (0..count).filter(|other| *other != own).collect();
    }
    let neighbours = (1..=NEIGHBOURS).map(|step| (own + step) % count);
    let host = std::iter::once(0).filter(|host| *host != own);
    host.chain(neighbours.filter(|other| *other != 0)).collect()
}

/// Returns the problems, failures first. The node with number 0 serves the store.
pub(super) fn findings(nodes: &[Node]) -> Vec<Finding> {
    let mut found = Vec::new();
    same_options(nodes, &mut found);
    for (number, node) in nodes.iter().enumerate() {
        links(nodes, number, node, &mut found);
        limits(nodes.len(), number, node, &mut found);
        clock(number, node, &mut found);
        if node.measured.is_none() {
            let problem = format!("{} did not finish the check", shown(number, node));
            found.push(Finding::failure(
                &[number],
                problem,
                "see the output of c10d doctor there",
            ));
        }
    }
    names(nodes, &mut found);
    found.sort_by_key(|finding| !finding.is_failure);
    found
}

/// `node 1 (worker-1)`.
fn shown(number: usize, node: &Node) -> String {
    format!("node {number} ({})", text(&node.facts.host))
}

fn text(text: &str) -> String {
    printable(text, TEXT_CHARS_MAX).to_string()
}

fn list(numbers: &[usize]) -> String {
    let shown = numbers.iter().take(NODES_SHOWN_MAX).map(usize::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    let word = if numbers.len() == 1 { "node" } else { "nodes" };
    match numbers.len().saturating_sub(NODES_SHOWN_MAX) {
        0 => format!("{word} {shown}"),
        more => format!("{word} {shown} and {more} more"),
    }
}

const fn verb<'v>(numbers: &[usize], of_one: &'v str, of_many: &'v str) -> &'v str {
    if numbers.len() == 1 { of_one } else { of_many }
}

fn addresses(ips: &[IpAddr]) -> String {
    let ips = ips.iter().map(IpAddr::to_string);
    ips.collect::<Vec<_>>().join(", ")
}

/// Returns, for each value that more than one node has, the numbers of the nodes with this value.
fn repeated<K: Ord>(nodes: &[Node], key: impl Fn(&Node) -> Option<K>) -> BTreeMap<K, Vec<usize>> {
    let mut by_key: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        if let Some(key) = key(node) {
            by_key.entry(key).or_default().push(number);
        }
    }
    by_key.retain(|_, numbers| numbers.len() > 1);
    by_key
}

fn same_options(nodes: &[Node], found: &mut Vec<Finding>) {
    let Some(host) = nodes.first() else {
        return;
    };
    let differing = |differs: &dyn Fn(&NodeFacts) -> bool| -> Vec<usize> {
        let numbers = nodes.iter().enumerate();
        let numbers = numbers.filter(|(_, node)| differs(&node.facts));
        numbers.map(|(number, _)| number).collect()
    };
    let (min, max) = host.facts.nodes;
    let others = differing(&|facts| facts.nodes != (min, max));
    if !others.is_empty() {
        found.push(Finding::failure(
            &others,
            format!(
                "{} {} another --nnodes than node 0, which has {min}:{max}",
                list(&others),
                verb(&others, "has", "have")
            ),
            "give all nodes the same --nnodes",
        ));
    }
    for (rank, numbers) in repeated(nodes, |node| node.facts.node_rank) {
        found.push(Finding::failure(
            &numbers,
            format!("{} have the same --node-rank {rank}", list(&numbers)),
            "give each node its own --node-rank, from 0 up",
        ));
    }
    let others = differing(&|facts| facts.version != host.facts.version);
    if let Some(&first) = others.first() {
        found.push(Finding::warning(
            &others,
            format!(
                "{} {} c10d {}, and node 0 runs {}",
                list(&others),
                verb(&others, "runs", "run"),
                text(&nodes[first].facts.version),
                text(&host.facts.version)
            ),
            "install the same release on all nodes",
        ));
    }
}

fn links(nodes: &[Node], number: usize, node: &Node, found: &mut Vec<Finding>) {
    let links = node.measured.iter().flat_map(|measured| &measured.links);
    for link in links {
        let Some(other) = nodes.get(link.to) else {
            continue;
        };
        let address = &other.facts.address;
        if let Err(cause) = &link.took_us {
            found.push(Finding::failure(
                &[number, link.to],
                format!(
                    "{} cannot reach {} at {} port {}: {}",
                    shown(number, node),
                    shown(link.to, other),
                    text(&address.host),
                    address.port,
                    text(cause)
                ),
                format!(
                    "open the port between the nodes (--workers-port fixes it), or let node {} advertise an address of \
                     a network that both nodes share, with --local-addr",
                    link.to
                ),
            ));
        }
    }
}

/// The host names, which torchrun's nodes and gloo advertise.
fn names(nodes: &[Node], found: &mut Vec<Finding>) {
    if nodes.len() < 2 {
        return;
    }
    // Nodes at loopback addresses are on one machine.
    let machine = |node: &Node| (!is_at_loopback(node)).then(|| node.facts.host.clone());
    for (host, numbers) in repeated(nodes, machine) {
        found.push(Finding::warning(
            &numbers,
            format!(
                "{} have the same host name \"{}\"",
                list(&numbers),
                text(&host)
            ),
            "give each machine its own host name, so that logs and reports can tell them apart",
        ));
    }
    let is_loopback = |node: &Node| node.facts.name_leads_to.iter().any(IpAddr::is_loopback);
    for (number, node) in nodes.iter().enumerate() {
        let own: Option<IpAddr> = node.facts.address.host.parse().ok();
        if is_at_loopback(node) {
            continue;
        }
        let cure = format!(
            "let the name lead to {} on all nodes, in DNS or /etc/hosts; c10d run itself uses the address",
            text(&node.facts.address.host)
        );
        if is_loopback(node) {
            found.push(Finding::warning(
                &[number],
                format!(
                    "the host name of {} leads to {} there, which gloo and torchrun's nodes would advertise",
                    shown(number, node),
                    addresses(&node.facts.name_leads_to)
                ),
                cure,
            ));
            continue;
        }
        let seen_by = |sees: &dyn Fn(Option<&[IpAddr]>) -> bool| -> Vec<usize> {
            let others = nodes.iter().enumerate().filter(|(_, other)| {
                let links = other.measured.iter().flat_map(|measured| &measured.links);
                let mut links = links.filter(|link| link.to == number);
                links.any(|link| sees(link.name_leads_to.as_deref()))
            });
            others.map(|(number, _)| number).collect()
        };
        let unknown = seen_by(&|name| name.is_none());
        let elsewhere =
            seen_by(&|name| name.is_some_and(|ips| own.is_some_and(|own| !ips.contains(&own))));
        let finds = format!("{} another address for", verb(&elsewhere, "finds", "find"));
        for (numbers, what) in [(unknown, "cannot look up"), (elsewhere, &*finds)] {
            if !numbers.is_empty() {
                found.push(Finding::warning(
                    &[&numbers[..], &[number]].concat(),
                    format!(
                        "{} {what} the host name of {}",
                        list(&numbers),
                        shown(number, node)
                    ),
                    cure.clone(),
                ));
            }
        }
    }
}

fn is_at_loopback(node: &Node) -> bool {
    c10d_socket::is_loopback_name(&node.facts.address.host)
}

fn limits(count: usize, number: usize, node: &Node, found: &mut Vec<Finding>) {
    let facts = &node.facts;
    let needed = OWN_FILES + FILES_PER_NODE.saturating_mul(count as u64);
    if let Some(limit) = facts.open_files.filter(|limit| *limit < needed) {
        found.push(Finding::failure(
            &[number],
            format!(
                "{} may open {limit} files, and a store for {count} nodes needs about {needed}",
                shown(number, node)
            ),
            "raise the hard limit: `ulimit -Hn`, LimitNOFILE of systemd, or --ulimit nofile of Docker",
        ));
    }
    if let Some(bytes) = facts
        .shared_memory
        .filter(|bytes| *bytes <= SHARED_MEMORY_MIN)
    {
        found.push(Finding::warning(
            &[number],
            format!("{} has {} MiB of shared memory", shown(number, node), bytes >> 20),
            "start the container with --shm-size or --ipc=host, as DataLoader processes and NCCL need more",
        ));
    }
    for (option, port) in &facts.ports_at_risk {
        let (first, last) = facts.ephemeral_ports.unwrap_or_default();
        found.push(Finding::warning(
            &[number],
            format!(
                "port {port} ({}) of {} can be taken by an outgoing connection of the system ({first}-{last})",
                text(option),
                shown(number, node)
            ),
            "choose a port below, or add it to net.ipv4.ip_local_reserved_ports",
        ));
    }
}

fn clock(number: usize, node: &Node, found: &mut Vec<Finding>) {
    let clock = node.measured.as_ref().and_then(|measured| measured.clock);
    let Some(clock) = clock else {
        return;
    };
    let difference = clock.ahead_ms.unsigned_abs();
    if difference.saturating_sub(clock.within_ms) > CLOCK_MS_MAX {
        let side = if clock.ahead_ms > 0 {
            "ahead of"
        } else {
            "behind"
        };
        found.push(Finding::warning(
            &[number],
            format!(
                "the clock of {} is {:.1} s {side} that of node 0",
                shown(number, node),
                difference as f64 / 1e3
            ),
            "synchronize the clocks (chrony, NTP): to torchrun's nodes, a node whose clock differs by some seconds is lost",
        ));
    }
}

#[cfg(test)]
mod tests;
