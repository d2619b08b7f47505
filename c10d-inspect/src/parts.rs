//! The lists of a report beside ranks and findings: waits, groups, nodes, unknown processes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use c10d_membership::{Attempt, GroupStage, status_of};

use crate::announced::AnnouncedNode;
use crate::identity::shown_name;
use crate::index::Slot;
use crate::job::Job;
use crate::keys::{Maker, is_watch};
use crate::members::is_whole;
use crate::ranks::last_request;
use crate::report::{Group, MembershipReport, NodeReport, Process, RankSet, WaitFor, milliseconds};
use crate::text;

/// The most entries of one list.
const ENTRIES_MAX: usize = 1000;
/// The most missing members in all groups of a report together.
const MISSING_MAX: usize = 1 << 20;

#[derive(Default)]
struct Waiting {
    since: Duration,
    connections: usize,
    ranks: Vec<usize>,
}

/// The most members that are named of those that a group waits for.
const AWAITED_MAX: usize = 8;

/// The groups whose members agree through the server.
pub(crate) fn memberships(job: &Job<'_>) -> Vec<MembershipReport> {
    let groups = job.index.snapshot.groups.iter();
    groups
        .filter_map(|group| Some((&group.name, status_of(group)?)))
        .map(|(name, status)| {
            let awaited = status.members.iter().filter(|member| member.is_awaited);
            let named = awaited.clone().take(AWAITED_MAX).map(|it| match it.rank {
                Some(rank) => format!("{} (rank {rank})", it.member),
                None => it.member.to_string(),
            });
            MembershipReport {
                // As the client calls it.
                name: text::shown(name.strip_prefix(b"/").unwrap_or(name)),
                stage: status.stage.to_string(),
                is_settled: matches!(status.stage, GroupStage::Committed | GroupStage::Ended(_)),
                generation: status.generation.map_or(0, Attempt::count),
                attempt: status.attempt.count(),
                uuid: status
                    .generation
                    .map_or_else(String::new, |it| it.uuid().to_string()),
                is_whole: is_whole(status),
                ranks: match job
                    .members
                    .as_ref()
                    .filter(|it| it.is_of(name) && is_whole(status))
                {
                    Some(members) => RankSet(members.ranks.clone()),
                    None => RankSet::default(),
                },
                size: status.size,
                members: status.members.len(),
                waits_for: named.collect(),
                waits_for_count: awaited.count(),
                time_left_ms: status.time_left.map(milliseconds),
                departures: status
                    .departures
                    .iter()
                    .map(|(member, reason)| format!("{member} ({reason})"))
                    .collect(),
            }
        })
        .collect()
}

/// The keys that connections wait for, the longest wait first.
pub(crate) fn waits(job: &Job<'_>) -> Vec<WaitFor> {
    let mut waits: HashMap<&[u8], Waiting> = HashMap::new();
    for (slot, connection) in job.index.snapshot.connections.iter().enumerate() {
        let Some(wait) = connection.wait.as_ref().filter(|wait| !is_watch(wait)) else {
            continue;
        };
        for key in &wait.missing {
            let entry = waits.entry(key).or_insert_with(|| Waiting {
                since: wait.since,
                ..Waiting::default()
            });
            entry.since = entry.since.min(wait.since);
            entry.connections += 1;
            entry.ranks.extend(job.who.rank(slot));
        }
    }
    let mut waits: Vec<_> = waits.into_iter().collect();
    waits.sort_unstable_by_key(|&(key, ref waiting)| (waiting.since, key));
    waits.truncate(ENTRIES_MAX);
    let wait_for = |(key, waiting): (&[u8], Waiting)| WaitFor {
        key: text::shown(key),
        meaning: job.meaning(key),
        connections: waiting.connections,
        ranks: RankSet(waiting.ranks.into_iter().collect()),
        age_ms: milliseconds(job.ago(waiting.since)),
    };
    waits.into_iter().map(wait_for).collect()
}

/// The groups, those that are incomplete first.
pub(crate) fn groups(job: &Job<'_>) -> Vec<Group> {
    let mut states: Vec<_> = job.groups.iter().collect();
    states.sort_by_key(|state| (state.is_complete(), !state.group.is_default()));
    states.truncate(ENTRIES_MAX);
    let mut left = MISSING_MAX;
    states
        .into_iter()
        .map(|state| {
            let missing = if state.missing.len() <= left {
                left -= state.missing.len();
                RankSet(state.missing.clone())
            } else {
                RankSet::default()
            };
            Group {
                name: text::shown(state.group.name.name),
                kind: match state.group.name.maker {
                    Maker::Process => "gloo",
                    Maker::Rpc => "RPC",
                    Maker::Saver => "checkpoint savers",
                }
                .to_owned(),
                size: state.size,
                arrived: state
                    .members
                    .iter()
                    .filter(|member| !member.is_orphan)
                    .count(),
                missing,
                is_complete: state.is_complete(),
            }
        })
        .collect()
}

/// The nodes that announced workers. A launcher that waits for other nodes announces none.
pub(crate) fn nodes(job: &Job<'_>) -> Vec<NodeReport> {
    // Later announcements of a node replace earlier announcements, for example after a restart of its
    // launcher.
    let mut nodes: BTreeMap<(Option<usize>, String), NodeReport> = BTreeMap::new();
    let nodes_of_workers = job.launched.nodes.iter();
    for node in nodes_of_workers.filter(|node| !node.announced.workers.is_empty()) {
        let announced = &node.announced;
        let host = shown_name(&announced.host);
        let connection = node.connection.map(|slot| job.index.connections[slot]);
        let report = NodeReport {
            host: host.clone(),
            node_rank: announced.node_rank,
            pid: announced.pid,
            address: connection.map(|connection| connection.peer),
            ranks: RankSet(announced.workers.iter().map(|worker| worker.rank).collect()),
            is_connected: node.closed.is_none(),
            announced_ms: milliseconds(job.ago(node.at)),
            restarts: announced.restarts,
            debug_address: announced.debug_address,
            is_observed: announced.workers.iter().any(|it| it.sample.is_some()),
            is_quiet: is_quiet(announced),
        };
        nodes.insert((announced.node_rank, host), report);
    }
    nodes.into_values().collect()
}

fn is_quiet(node: &AnnouncedNode) -> bool {
    let mut samples = node.workers.iter().filter_map(|it| it.sample.as_ref());
    node.explain_after_ms
        .is_some_and(|after| samples.any(|sample| sample.quiet_ms >= after / 2))
}

/// The processes with open connections whose rank is not known; launchers and this crate's clients left out.
pub(crate) fn unknown_processes(job: &Job<'_>) -> Vec<Process> {
    let mut slots: BTreeMap<(IpAddr, u32), Vec<Slot>> = BTreeMap::new();
    for slot in 0..job.index.snapshot.connections.len() {
        if let (None, Some(process)) = (job.who.rank(slot), job.index.process(slot)) {
            slots.entry(process).or_default().push(slot);
        }
    }
    let launchers: BTreeSet<Slot> = job
        .launched
        .nodes
        .iter()
        .filter_map(|node| node.connection)
        .collect();
    slots
        .into_values()
        .filter(|slots| !slots.iter().any(|slot| launchers.contains(slot)))
        .take(ENTRIES_MAX)
        .map(|slots| {
            let records = slots.iter().map(|&slot| job.index.connections[slot]);
            let waiting = records.clone().find_map(|record| record.wait.as_ref());
            let latest = records
                .clone()
                .max_by_key(|record| record.last.as_ref().map(|last| last.at));
            Process {
                name: job.who.unknown(job.index, slots[0]),
                connections: records.map(|record| record.peer).collect(),
                last_request: latest.and_then(last_request),
                waits_for: waiting
                    .and_then(|wait| wait.missing.first())
                    .map(|key| text::shown(key)),
            }
        })
        .collect()
}
