//! Ranks of the default group that others wait for and that have not published their address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use super::absence::{Absence, absence, ended, outside};
use super::draft::Draft;
use crate::identity::shown_name;
use crate::index::Slot;
use crate::job::{GroupState, Job, SILENCE_GRACE, WAIT_GRACE};
use crate::keys::Family;
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

/// The most ranks of one kind that are described one by one.
const DESCRIBED_MAX: usize = 3;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    // With several network interfaces or devices the same ranks are missing from all groups.
    let incomplete = job.mains().filter(|state| !state.missing.is_empty());
    if let Some(state) = incomplete.max_by_key(|state| state.members.len()) {
        find_in(job, state, drafts);
    }
}

/// The ranks that wait or waited for the absent ranks, and when the first wait began.
struct Waiters {
    waiting: BTreeSet<usize>,
    gave_up: BTreeSet<usize>,
    /// Their connections closed while they waited.
    left: BTreeSet<usize>,
    since: Duration,
    size: Option<usize>,
}

fn find_in(job: &Job<'_>, state: &GroupState<'_>, drafts: &mut Vec<Draft>) {
    let mut waiters = Waiters {
        waiting: BTreeSet::new(),
        gave_up: BTreeSet::new(),
        left: BTreeSet::new(),
        since: job.index.snapshot.now,
        size: state.size,
    };
    for member in &state.members {
        let Some(rank) = member.rank else { continue };
        let is_open = member
            .published
            .writer
            .is_some_and(|slot| job.index.is_open(slot));
        match member.progress {
            Progress::Waiting { member, since } if state.missing.contains(&member) => {
                let waiting = if is_open {
                    &mut waiters.waiting
                } else {
                    &mut waiters.left
                };
                waiting.insert(rank);
                waiters.since = waiters.since.min(since);
            }
            Progress::GaveUp { member } if state.missing.contains(&member) => {
                waiters.gave_up.insert(rank);
            }
            _ => {}
        }
    }
    if waiters.all().is_empty() {
        return;
    }
    let is_due = waiters.waiting.is_empty()
        || !waiters.gave_up.is_empty()
        || job.ago(waiters.since) >= WAIT_GRACE;
    let mut absent = Absent::default();
    for &rank in &state.missing {
        match absence(job, rank) {
            // A worker that has exited or left will not arrive late, so its absence is reported at once.
            Absence::Ended { .. } | Absence::NodeLost(_) | Absence::Left { .. } => {}
            _ if !is_due => continue,
            _ => {}
        }
        absent.add(job, rank);
    }
    absent.guess(job);
    absent.drafts(job, &waiters, drafts);
}

/// The absent ranks, grouped by their known state.
#[derive(Default)]
struct Absent<'a> {
    never: BTreeMap<usize, Absence<'a>>,
    connected: BTreeMap<usize, Slot>,
    left: BTreeMap<usize, (Slot, Duration)>,
    ended: BTreeMap<usize, Absence<'a>>,
    node_lost: BTreeMap<usize, Absence<'a>>,
    /// Unknown processes that have joined and not published, open and closed.
    candidates: Vec<Slot>,
}

impl<'a> Absent<'a> {
    fn add(&mut self, job: &Job<'a>, rank: usize) {
        let absence = absence(job, rank);
        let table = match absence {
            Absence::Connected(slot) => {
                self.connected.insert(rank, slot);
                return;
            }
            Absence::Left { slot, at } => {
                self.left.insert(rank, (slot, at));
                return;
            }
            Absence::Ended { .. } => &mut self.ended,
            Absence::NodeLost(_) => &mut self.node_lost,
            Absence::NotConnected(_) | Absence::Unknown => &mut self.never,
        };
        table.insert(rank, absence);
    }

    /// Looks for processes of unknown rank that may be the ranks that never connected.
    fn guess(&mut self, job: &Job<'_>) {
        if self.never.is_empty() {
            return;
        }
        self.candidates = (0..job.index.connections.len())
            .filter(|&slot| {
                job.who.rank(slot).is_none()
                    && job.index.process(slot).is_some()
                    && job.index.is_joining(slot)
                    && (!job.index.is_open(slot)
                        || job.ago(job.index.last_active(slot)) >= SILENCE_GRACE)
            })
            .collect();
        // Processes that are still connected precede processes that left.
        self.candidates
            .sort_by_key(|&slot| !job.index.is_open(slot));
        let is_open = |slot: &&Slot| job.index.is_open(**slot);
        if self.candidates.iter().filter(is_open).count() >= self.never.len() {
            self.candidates.retain(|&slot| job.index.is_open(slot));
        }
    }

    fn drafts(&self, job: &Job<'_>, waiters: &Waiters, drafts: &mut Vec<Draft>) {
        if !self.ended.is_empty() {
            drafts.push(self.ended(job, waiters));
        }
        if !self.node_lost.is_empty() {
            drafts.push(self.node_lost(job, waiters));
        }
        if !self.left.is_empty() {
            drafts.push(self.left(job, waiters));
        }
        if !self.connected.is_empty() {
            drafts.push(self.connected(job, waiters));
        }
        if !self.never.is_empty() {
            drafts.push(self.never(job, waiters));
        }
    }

    fn ended(&self, job: &Job<'_>, waiters: &Waiters) -> Draft {
        let ends: Vec<_> = self
            .ended
            .iter()
            .filter_map(|(&rank, absence)| match absence {
                Absence::Ended { worker, end, at } => Some((*at, rank, *worker, *end)),
                _ => None,
            })
            .collect();
        let ranks: BTreeSet<usize> = self.ended.keys().copied().collect();
        let first = ends.iter().min_by_key(|(at, ..)| *at);
        let since = first.map_or(waiters.since, |(at, ..)| *at);
        let text = match first {
            Some((at, rank, worker, end)) => {
                let others = match ends.len() {
                    1 => String::new(),
                    _ => format!(
                        " {} ended as well.",
                        text::ranks_start(&without(&ranks, *rank))
                    ),
                };
                format!(
                    "Rank {rank} (pid {} on {}) {} {} ago, before it published its address; {}.{others}",
                    worker.worker.pid,
                    shown_name(&worker.node.announced.host),
                    ended(*end),
                    text::age(job.ago(*at)),
                    waiters.who_waits(),
                )
            }
            None => String::new(),
        };
        waiters.draft(FindingKind::WorkerEnded, text, since, ranks)
    }

    fn node_lost(&self, job: &Job<'_>, waiters: &Waiters) -> Draft {
        let ranks: BTreeSet<usize> = self.node_lost.keys().copied().collect();
        let lost: BTreeSet<(Duration, String)> = self
            .node_lost
            .values()
            .filter_map(|absence| match absence {
                Absence::NodeLost(worker) => Some((
                    worker.node.closed.unwrap_or(worker.node.at),
                    shown_name(&worker.node.announced.host),
                )),
                _ => None,
            })
            .collect();
        let since = lost.first().map_or(waiters.since, |(at, _)| *at);
        let hosts: BTreeSet<&str> = lost.iter().map(|(_, host)| host.as_str()).collect();
        let hosts: Vec<String> = hosts.into_iter().take(8).map(str::to_owned).collect();
        let text = format!(
            "The launcher on {} closed its connection {} ago, and {} there {} not published an \
             address: the node is down, or its launcher was killed. {}.",
            text::joined(&hosts),
            text::age(job.ago(since)),
            text::ranks(&ranks),
            text::verb(ranks.len(), "has", "have"),
            text::capitalized(&waiters.who_waits()),
        );
        waiters.draft(FindingKind::NodeLost, text, since, ranks)
    }

    fn left(&self, job: &Job<'_>, waiters: &Waiters) -> Draft {
        let ranks: BTreeSet<usize> = self.left.keys().copied().collect();
        let since = self
            .left
            .values()
            .map(|&(_, at)| at)
            .min()
            .unwrap_or(waiters.since);
        let names = capped(self.left.iter().map(|(&rank, &(slot, _))| {
            format!("rank {rank} ({})", job.who.process(job.index, slot))
        }));
        let text = format!(
            "{} closed {} {} ago in init_process_group without publishing an address; {}.",
            text::capitalized(&text::joined(&names)),
            text::verb(names.len(), "its connection", "their connections"),
            text::age(job.ago(since)),
            waiters.who_waits(),
        );
        waiters.draft(FindingKind::LostInInit, text, since, ranks)
    }

    fn connected(&self, job: &Job<'_>, waiters: &Waiters) -> Draft {
        let ranks: BTreeSet<usize> = self.connected.keys().copied().collect();
        let opened = self
            .connected
            .values()
            .map(|&slot| job.index.connections[slot].opened);
        let since = opened.min().unwrap_or(waiters.since);
        let names = capped(self.connected.iter().map(|(&rank, &slot)| {
            let process = job.who.process(job.index, slot);
            let stopped = job
                .launched
                .worker(rank)
                .and_then(|worker| Some((worker.stopped_pid()?, worker.seen())));
            match stopped {
                Some((pid, seen)) => format!(
                    "rank {rank} ({process}, pid {pid} is in state T{}: stopped)",
                    text::seen(job.ago(seen))
                ),
                None => format!("rank {rank} ({process})"),
            }
        }));
        let text = format!(
            "{} connected {} ago and then stopped: {} not published an address.{}",
            text::capitalized(&text::joined(&names)),
            text::age(job.ago(since)),
            text::verb(ranks.len(), "it has", "they have"),
            waiters.sentence(),
        );
        waiters.draft(FindingKind::NotPublished, text, since, ranks)
    }

    fn never(&self, job: &Job<'_>, waiters: &Waiters) -> Draft {
        let ranks: BTreeSet<usize> = self.never.keys().copied().collect();
        if let Some(slot) = self.probable_slot(job) {
            return self.probable(job, waiters, ranks, slot);
        }
        let mut text = waiters.start(job, &ranks);
        text.push_str(text::verb(ranks.len(), ": it has", ": they have"));
        text.push_str(" never connected to this store.");
        text.push_str(&waiters.sentence());
        text.push_str(&self.known_outside(job));
        text.push_str(&self.candidates_sentence(job));
        waiters.draft(FindingKind::NeverConnected, text, waiters.since, ranks)
    }

    /// One rank is absent and one process has joined without publishing: probably, not certainly, the same.
    ///
    /// A process whose connection is closed is not the process of a running worker, and it may be the process of a worker
    /// that is known to have exited. It is returned only if neither kind of worker is a candidate.
    fn probable_slot(&self, job: &Job<'_>) -> Option<Slot> {
        let [slot] = self.candidates[..] else {
            return None;
        };
        let mut absences = self.never.values();
        let (Some(absence), None) = (absences.next(), absences.next()) else {
            return None;
        };
        let is_only_loss = matches!(absence, Absence::Unknown)
            && self.ended.is_empty()
            && self.node_lost.is_empty();
        (job.index.is_open(slot) || is_only_loss).then_some(slot)
    }

    fn probable(
        &self,
        job: &Job<'_>,
        waiters: &Waiters,
        ranks: BTreeSet<usize>,
        slot: Slot,
    ) -> Draft {
        let connection = job.index.connections[slot];
        let process = job.who.process(job.index, slot);
        let mut text = waiters.start(job, &ranks);
        let (kind, since) = match connection.closed {
            None => {
                text.push_str(&format!(
                    ": it has not published its address. It is probably {process}, which connected \
                     {} ago and then stopped.{}",
                    text::age(job.ago(connection.opened)),
                    waiters.sentence(),
                ));
                (FindingKind::NotPublished, connection.opened)
            }
            Some(closed) => {
                text.push_str(&format!(
                    ": it has not published its address. It was probably {process}, which closed \
                     its connection {} ago in init_process_group; {}.",
                    text::age(job.ago(closed.at)),
                    waiters.who_waits(),
                ));
                (FindingKind::LostInInit, closed.at)
            }
        };
        text.push_str(&self.known_outside(job));
        waiters.draft(kind, text, since, ranks)
    }

    /// Describes the ranks that never connected, as far as the launchers have reported them.
    fn known_outside(&self, job: &Job<'_>) -> String {
        let mut described: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        let mut hosts: BTreeSet<String> = BTreeSet::new();
        let assigned = assigned_nodes(job);
        for (&rank, absence) in &self.never {
            match absence {
                Absence::NotConnected(worker) => {
                    hosts.insert(shown_name(&worker.node.announced.host));
                    if described.len() < DESCRIBED_MAX {
                        described
                            .entry(outside(job, *worker))
                            .or_default()
                            .insert(rank);
                    }
                }
                _ => {
                    let node = assigned.iter().find(|node| node.ranks.contains(&rank));
                    if let Some(node) = node.filter(|_| described.len() < DESCRIBED_MAX) {
                        let place = format!("on node {} ({})", node.agent, node.ip);
                        described.entry(place).or_default().insert(rank);
                    }
                }
            }
        }
        let mut text = String::new();
        let mut left_out = self.never.len();
        for (description, ranks) in described.iter().take(DESCRIBED_MAX) {
            left_out -= ranks.len();
            let is = text::verb(ranks.len(), "is", "are");
            text.push_str(&format!(
                " {} {is} {description}.",
                text::ranks_start(ranks)
            ));
        }
        if left_out > 0 && hosts.len() > 1 {
            let hosts: Vec<String> = hosts.into_iter().take(8).collect();
            text.push_str(&format!(
                " The missing ranks run on {}.",
                text::joined(&hosts)
            ));
        }
        text
    }

    fn candidates_sentence(&self, job: &Job<'_>) -> String {
        if self.candidates.is_empty() {
            return String::new();
        }
        let names = capped(
            self.candidates
                .iter()
                .map(|&slot| job.who.process(job.index, slot)),
        );
        format!(
            " {} whose rank is not known connected and did not publish an address: {}.",
            text::capitalized(&text::count(self.candidates.len(), "process")),
            text::joined(&names),
        )
    }
}

impl Waiters {
    /// "Waiting for rank 2 (1 of 4) for 31 s", "Gave up waiting for rank 2 (1 of 4)".
    fn start(&self, job: &Job<'_>, ranks: &BTreeSet<usize>) -> String {
        let mut of = text::ranks(ranks);
        if let Some(size) = self.size {
            of.push_str(&format!(" ({} of {size})", ranks.len()));
        }
        if self.waiting.is_empty() {
            let verb = if self.gave_up.is_empty() {
                "left while waiting"
            } else {
                "gave up waiting"
            };
            format!("{} {verb} for {of}", text::ranks_start(&self.all()))
        } else {
            format!("Waiting for {of} for {}", text::age(job.ago(self.since)))
        }
    }

    /// " Ranks 0, 1 and 3 wait in init_process_group.", or nothing.
    fn sentence(&self) -> String {
        let mut sentence = if self.waiting.is_empty() {
            String::new()
        } else {
            format!(
                " {} {} in init_process_group.",
                text::ranks_start(&self.waiting),
                text::verb(self.waiting.len(), "waits", "wait"),
            )
        };
        if !self.waiting.is_empty() && !self.gave_up.is_empty() {
            sentence.push_str(&format!(" {} gave up.", text::ranks_start(&self.gave_up)));
        }
        if !self.waiting.is_empty() && !self.left.is_empty() {
            sentence.push_str(&format!(
                " {} left in the meantime.",
                text::ranks_start(&self.left)
            ));
        }
        sentence
    }

    /// The ranks that wait or have waited.
    fn all(&self) -> BTreeSet<usize> {
        let sets = [&self.waiting, &self.gave_up, &self.left];
        sets.into_iter().flatten().copied().collect()
    }

    /// "ranks 0 and 1 will wait until they time out".
    fn who_waits(&self) -> String {
        if self.waiting.is_empty() {
            let all = self.all();
            let were = text::verb(all.len(), "was", "were");
            return format!("{} {were} waiting", text::ranks(&all));
        }
        let ranks = text::ranks(&self.waiting);
        format!("{ranks} will wait until they time out")
    }

    fn draft(
        &self,
        kind: FindingKind,
        text: String,
        since: Duration,
        culprits: BTreeSet<usize>,
    ) -> Draft {
        let mut draft = Draft::new(kind, text, since)
            .caused_by(culprits)
            .waited_by(self.all());
        draft.is_stall = !self.waiting.is_empty();
        draft
    }
}

/// A node and its ranks, by the launchers' own keys.
struct AssignedNode {
    ranks: Range<usize>,
    agent: usize,
    ip: IpAddr,
}

fn assigned_nodes(job: &Job<'_>) -> Vec<AssignedNode> {
    let mut sizes = BTreeMap::new();
    let mut firsts = Vec::new();
    for (family, key) in &job.index.others {
        match *family {
            Family::ElasticRole { agent } => {
                let role = serde_json::from_slice::<serde_json::Value>(&key.value_head);
                let size = role
                    .ok()
                    .and_then(|role| role.get("local_world_size")?.as_u64());
                sizes.extend(size.map(|size| (agent, (size, key.writer))));
            }
            Family::ElasticRanks { agent } => {
                let numbers = serde_json::from_slice::<[usize; 4]>(&key.value_head);
                firsts.extend(numbers.ok().map(|[first, ..]| (agent, first)));
            }
            _ => {}
        }
    }
    let node = |(agent, first): (usize, usize)| {
        let (size, writer) = *sizes.get(&agent)?;
        let slot = job.index.slot(writer)?;
        Some(AssignedNode {
            ranks: first..first.saturating_add(usize::try_from(size).ok()?),
            agent,
            ip: job.index.connections[slot].peer.ip().to_canonical(),
        })
    };
    firsts.into_iter().filter_map(node).collect()
}

/// Returns at most 3 names, then how many more there are.
fn capped(names: impl ExactSizeIterator<Item = String>) -> Vec<String> {
    let count = names.len();
    let mut names: Vec<String> = names.take(DESCRIBED_MAX).collect();
    if count > DESCRIBED_MAX {
        names.push(format!("{} more", count - DESCRIBED_MAX));
    }
    names
}

fn without(ranks: &BTreeSet<usize>, rank: usize) -> BTreeSet<usize> {
    ranks
        .iter()
        .copied()
        .filter(|&other| other != rank)
        .collect()
}
