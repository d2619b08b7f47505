//! Pairs of hosts between which data is not acknowledged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::activity::{Doing, shown};
use super::evidence::Evidence;
use crate::text;

/// The most pairs in a text.
const PAIRS_MAX: usize = 2;

/// The most connections of a rank that are considered. Launchers announce fewer.
const CONNECTIONS_MAX: usize = 8;

/// Data from ranks on one host that another host has not acknowledged for some seconds.
#[derive(Debug, Default)]
pub(super) struct Unacknowledged {
    ranks: BTreeSet<usize>,
    bytes: u64,
}

/// The pairs of hosts, the pair with the most bytes first: the host of the ranks, if known, and the name of the peer, or
/// its address.
#[derive(Debug, Default)]
pub(super) struct Pairs(Vec<((Option<String>, String), Unacknowledged)>);

impl Pairs {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the pairs by the connections of the waiting ranks. Other peers than hosts of the job, for example a server of
    /// metrics, count only if some ranks are not observed: their hosts may be unknown.
    pub(super) fn new(doings: &BTreeMap<usize, Doing<'_>>, evidence: &Evidence<'_>) -> Self {
        let is_incomplete = doings.values().any(Doing::is_unseen);
        let mut pairs: BTreeMap<(Option<String>, String), Unacknowledged> = BTreeMap::new();
        for (&rank, doing) in doings.iter().filter(|(_, doing)| doing.waits()) {
            for data in doing.unacknowledged.iter().take(CONNECTIONS_MAX) {
                let ip = data.remote.ip().to_canonical();
                if !is_incomplete && !evidence.is_of_job(ip) {
                    continue;
                }
                let host = evidence.host(ip).map(shown);
                // Hosts that are not known can have an address of this host, for example of a bridge.
                let peer = match host.filter(|host| doing.host.as_ref() != Some(host)) {
                    Some(host) => format!("{host} ({ip})"),
                    None => ip.to_string(),
                };
                let pair = pairs.entry((doing.host.clone(), peer)).or_default();
                pair.ranks.insert(rank);
                pair.bytes = pair.bytes.saturating_add(data.bytes);
            }
        }
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by_key(|(_, pair)| Reverse(pair.bytes));
        Self(pairs)
    }

    /// "Host node1 (10.0.0.2) has not acknowledged 4160 bytes from rank 0 on node0." for the first pairs; empty if there
    /// are none.
    pub(super) fn sentences(&self) -> Vec<String> {
        let sentence = |((host, peer), pair): &((Option<String>, String), Unacknowledged)| {
            let on = host
                .as_ref()
                .map_or_else(String::new, |host| format!(" on {host}"));
            format!(
                "Host {peer} has not acknowledged {} from {}{on}.",
                text::count(usize::try_from(pair.bytes).unwrap_or(usize::MAX), "byte"),
                text::ranks(&pair.ranks),
            )
        };
        let mut sentences: Vec<String> = self.0.iter().take(PAIRS_MAX).map(sentence).collect();
        if let Some(more) = self.0.len().checked_sub(PAIRS_MAX).filter(|more| *more > 0) {
            let pairs = text::count(more, "more pair");
            sentences.push(format!(
                "Data between {pairs} of hosts is not acknowledged either."
            ));
        }
        sentences
    }

    /// The two hosts of the first pair, as far as they are known.
    pub(super) fn hosts(&self) -> Vec<String> {
        let first = self.0.first().into_iter();
        first
            .flat_map(|((host, peer), _)| host.iter().chain([peer]).cloned())
            .collect()
    }

    /// "Check the network between node0 and node1 (10.0.0.2), for example with c10d doctor." `None` if there are no pairs.
    pub(super) fn advice(&self) -> Option<String> {
        let ((host, peer), _) = self.0.first()?;
        let between = match host {
            Some(host) => format!("between {host} and {peer}"),
            None => format!("to {peer}"),
        };
        Some(format!(
            "Check the network {between}, for example with c10d doctor."
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::fixtures::{Observed, node};
    use super::super::{Evidence, RankEvidence, Seen, judge};
    use crate::announced::{AnnouncedNode, UnacknowledgedData};
    use crate::report::FindingKind;

    /// A node whose only rank waits at a line, and has sent these bytes to peers that do not acknowledge them.
    fn waiting(rank: usize, line: u32, sent: &[(&str, u64)]) -> AnnouncedNode {
        let observed = Observed::waits("all_reduce", line).with(|it| {
            let data = sent.iter().map(|(remote, bytes)| UnacknowledgedData {
                remote: remote.parse().expect("an address"),
                bytes: *bytes,
            });
            it.sample.unacknowledged = data.collect();
        });
        let mut node = node(&format!("node{rank}"), 2, &[(rank, observed)]);
        let own: IpAddr = format!("10.0.0.{rank}").parse().expect("an address");
        // Each host also has a bridge between its containers.
        node.addresses = vec![own, [172, 17, 0, 1].into(), [127, 0, 0, 1].into()];
        node
    }

    fn finding(nodes: &[AnnouncedNode]) -> (FindingKind, String) {
        let mut evidence = Evidence::default();
        for node in nodes {
            evidence.add(node, 0, |_| true);
        }
        let finding = judge(&evidence).and_then(|verdict| verdict.finding);
        let finding = finding.expect("a finding");
        let are_named = finding.text.contains("has not acknowledged");
        assert_eq!(finding.hosts.len(), if are_named { 2 } else { 0 });
        (finding.kind, finding.text)
    }

    #[test]
    fn the_hosts_between_which_data_is_not_acknowledged_are_named() {
        let first = waiting(
            0,
            41,
            &[("10.0.0.1:5000", 4000), ("[::ffff:10.0.0.1]:5001", 160)],
        );
        let (kind, text) = finding(&[first, waiting(1, 41, &[])]);
        assert_eq!(kind, FindingKind::TransportStalled);
        assert_eq!(
            text,
            "All ranks are in all_reduce (train.py:41), so the network or the transport is the likely cause. Host node1 (10.0.0.1) \
             has not acknowledged 4160 bytes from rank 0 on node0. Check the network between node0 and node1 (10.0.0.1), for \
             example with c10d doctor."
        );
    }

    #[test]
    fn an_address_of_no_host_or_of_several_is_shown_without_a_name() {
        let peers = [
            ("192.0.2.7:1", 1),
            ("172.17.0.1:1", 30),
            ("127.0.0.1:1", 20),
            ("[2001:db8::1]:1", 2),
        ];
        let (_, text) = finding(&[waiting(0, 41, &peers), waiting(1, 41, &[])]);
        // The other peers are not hosts of the job.
        let expected = "cause. Host 172.17.0.1 has not acknowledged 30 bytes from rank 0 on node0. Check the network between node0 and \
            172.17.0.1, for example with c10d doctor.";
        assert!(text.ends_with(expected), "{text}");
        let mut torchrun = waiting(0, 41, &peers);
        torchrun.world_size = Some(3);
        let mut evidence = Evidence::default();
        evidence.add(&torchrun, 0, |_| true);
        let unseen = RankEvidence::new(Seen::NotLaunched, None);
        evidence.ranks.insert(2, unseen);
        let text = judge(&evidence)
            .and_then(|it| it.finding)
            .expect("a finding")
            .text;
        let expected = "Host 172.17.0.1 has not acknowledged 30 bytes from rank 0 on node0. Host 127.0.0.1 has not acknowledged 20 \
            bytes from rank 0 on node0. Data between 2 more pairs of hosts is not acknowledged either.";
        assert!(text.contains(expected), "{text}");
    }

    /// A lost link can stop ranks in different calls.
    #[test]
    fn hosts_are_named_whichever_calls_the_ranks_are_in() {
        let nodes = [waiting(0, 41, &[("10.0.0.1:1", 9)]), waiting(1, 57, &[])];
        let (kind, text) = finding(&nodes);
        assert_eq!(kind, FindingKind::CallsDiffer);
        assert!(text.contains(". Host node1 (10.0.0.1) has not"), "{text}");
        assert!(text.ends_with("with c10d doctor."), "{text}");
        let mut alone = Evidence::default();
        alone.add(&nodes[0], 0, |_| true);
        assert!(judge(&alone).is_some());
    }
}
