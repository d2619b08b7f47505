//! The evidence about each rank of a job that may make no progress.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::announced::{AnnouncedNode, AnnouncedSample, WorkerEnd};
use crate::stacks::Stacks;

/// The greatest age of a sample that is evidence. A launcher with a reason for samples announces them every 5 s.
const SAMPLE_AGE_MAX_MS: u64 = 12_000;

/// How long a job makes no progress before that is an alarm, if no launcher announces it.
const ALARM_AFTER_MS: u64 = 30_000;

/// The shortest such time that counts.
const ALARM_AFTER_MS_MIN: u64 = 1000;

/// The most addresses of hosts that are kept.
const ADDRESSES_MAX: usize = 1 << 16;

/// The evidence about the ranks of a job.
#[derive(Debug, Default)]
pub(crate) struct Evidence<'a> {
    pub(crate) ranks: BTreeMap<usize, RankEvidence<'a>>,
    /// How long a job makes no progress before that is an alarm, in milliseconds; `None` if no launcher announces it.
    pub(crate) alarm_after_ms: Option<u64>,
    /// The number of process groups in the store besides the default group; `None` if even the default group is unknown.
    pub(crate) other_groups: Option<usize>,
    /// The hosts with these addresses; `None` for an address that several hosts have, such as the address of a bridge
    /// between containers.
    hosts: BTreeMap<IpAddr, Option<&'a str>>,
}

/// The evidence about a rank.
#[derive(Debug)]
pub(crate) struct RankEvidence<'a> {
    pub(crate) seen: Seen<'a>,
    /// The rank's wait for a key of the store, if there is one.
    pub(crate) store_wait: Option<StoreWait>,
    /// The rank's host, if known.
    pub(crate) host: Option<String>,
}

/// The newest observation of a rank by its launcher, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    Sample(Observation<'a>),
    /// The rank's worker exited, this many milliseconds ago.
    Ended {
        end: WorkerEnd,
        ago_ms: u64,
    },
    /// The launcher has announced the rank without a sample.
    NotSampled,
    /// The newest sample is this many milliseconds old.
    Stale {
        age_ms: u64,
    },
    /// The rank is missing from all announcements, for example because torchrun started it.
    NotLaunched,
    /// The rank runs on another node, whose observations are not available here.
    OutOfReach,
}

/// A sample, with its stacks.
#[derive(Debug)]
pub(crate) struct Observation<'a> {
    pub(crate) sample: &'a AnnouncedSample,
    pub(crate) age_ms: u64,
    pub(crate) stacks: Option<&'a Stacks>,
    pub(crate) stacks_before: Option<&'a Stacks>,
}

/// A wait in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreWait {
    /// The meaning of the key, for example "the address of rank 2".
    pub(crate) meaning: String,
    pub(crate) age_ms: u64,
    /// Whether it is too short for the rules of the store. Later, they show which rank it waits for.
    pub(crate) is_new: bool,
}

impl<'a> Evidence<'a> {
    /// Adds what a launcher has announced, `ago_ms` milliseconds ago, about the ranks for which `counts` is true.
    pub(crate) fn add(
        &mut self,
        node: &'a AnnouncedNode,
        ago_ms: u64,
        counts: impl Fn(usize) -> bool,
    ) {
        let workers = node.workers.iter().filter(|worker| counts(worker.rank));
        // A lost launcher, or an announcement of others, does not decide about the job.
        if workers.clone().next().is_some() {
            let own = node.explain_after_ms.map(|it| it.max(ALARM_AFTER_MS_MIN));
            let after = [self.alarm_after_ms, own];
            self.alarm_after_ms = after.into_iter().flatten().min();
        }
        for ip in &node.addresses {
            self.add_address(*ip, &node.host);
        }
        for worker in workers {
            let seen = match (worker.end, &worker.sample) {
                (Some(end), _) => Seen::Ended {
                    end,
                    ago_ms: end.ago_ms.saturating_add(ago_ms),
                },
                (None, Some(sample)) => observed(node, sample, ago_ms),
                (None, None) => Seen::NotSampled,
            };
            let evidence = RankEvidence::new(seen, Some(node.host.clone()));
            self.ranks.insert(worker.rank, evidence);
        }
    }

    /// Notes that a host has an address.
    pub(crate) fn add_address(&mut self, ip: IpAddr, host: &'a str) {
        let ip = ip.to_canonical();
        if ip.is_loopback() || (self.hosts.len() >= ADDRESSES_MAX && !self.hosts.contains_key(&ip))
        {
            return;
        }
        let known = self.hosts.entry(ip).or_insert(Some(host));
        *known = known.filter(|known| *known == host);
    }

    /// Whether an address belongs to a host of the job.
    pub(super) fn is_of_job(&self, ip: IpAddr) -> bool {
        self.hosts.contains_key(&ip)
    }

    /// The host with an address, if only one has it.
    pub(super) fn host(&self, ip: IpAddr) -> Option<&'a str> {
        self.hosts.get(&ip.to_canonical()).copied().flatten()
    }

    /// Whether there is a sample that is evidence.
    pub(crate) fn has_sample(&self) -> bool {
        let mut ranks = self.ranks.values();
        ranks.any(|rank| matches!(rank.seen, Seen::Sample(_)))
    }

    pub(super) fn alarm_after_ms(&self) -> u64 {
        self.alarm_after_ms.unwrap_or(ALARM_AFTER_MS)
    }
}

fn observed<'a>(node: &'a AnnouncedNode, sample: &'a AnnouncedSample, ago_ms: u64) -> Seen<'a> {
    let age_ms = sample.taken_ago_ms.saturating_add(ago_ms);
    if age_ms > SAMPLE_AGE_MAX_MS {
        return Seen::Stale { age_ms };
    }
    let stacks = |place: Option<usize>| node.stacks.get(place?);
    Seen::Sample(Observation {
        sample,
        age_ms,
        stacks: stacks(sample.stacks),
        stacks_before: stacks(sample.stacks_before),
    })
}

impl<'a> RankEvidence<'a> {
    /// Creates the evidence about a rank that does not wait in the store.
    pub(crate) const fn new(seen: Seen<'a>, host: Option<String>) -> Self {
        Self {
            seen,
            store_wait: None,
            host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announced::AnnouncedWorker;

    #[test]
    fn only_launchers_of_ranks_decide_when_a_standstill_is_an_alarm() {
        let node = |rank, explain_after_ms| AnnouncedNode {
            workers: vec![AnnouncedWorker {
                rank,
                ..AnnouncedWorker::default()
            }],
            explain_after_ms: Some(explain_after_ms),
            ..AnnouncedNode::default()
        };
        let nodes = [node(0, 60_000), node(1, 20_000), node(7, 0)];
        let mut evidence = Evidence::default();
        for node in &nodes {
            evidence.add(node, 0, |rank| rank < 2);
        }
        assert_eq!(evidence.alarm_after_ms(), 20_000);
        evidence.add(&nodes[2], 0, |_| true);
        assert_eq!(evidence.alarm_after_ms(), ALARM_AFTER_MS_MIN);
    }
}
