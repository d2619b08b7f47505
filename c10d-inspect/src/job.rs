//! All that is known of a job: the decoded snapshot, the launchers' tables, and who is who.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use c10d_store::Opcode;

use crate::identity::{Identities, shown_name};
use crate::index::{GlooGroup, Index, Published, Slot};
use crate::keys::{Family, GROUP_SIZE_MAX, family, is_watch, meaning};
use crate::launched::{Launched, Worker};
use crate::members::Members;
use crate::progress::{Progress, progress};
use crate::report::{RankSet, WorkersStore};
use crate::text;
use crate::workers_stores::workers_stores;

/// How long a wait lasts before it is a finding: ranks of one job start that far apart.
pub(crate) const WAIT_GRACE: Duration = Duration::from_secs(2);

/// How long a rank is silent in the middle of joining a group before it counts as frozen.
pub(crate) const SILENCE_GRACE: Duration = Duration::from_secs(2);

/// The most missing members of all groups together: a stranger can publish addresses of many huge groups.
const MISSING_MAX: usize = 1 << 20;

/// Everything that findings are made of.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) index: &'a Index<'a>,
    pub(crate) launched: &'a Launched,
    pub(crate) who: &'a Identities<'a>,
    /// The groups that are being made or have been made, in the order of the index.
    pub(crate) groups: Vec<GroupState<'a>>,
    /// The places of the default groups of the job.
    mains: Vec<usize>,
    /// The number of ranks.
    pub(crate) world_size: Option<usize>,
    /// The group of survivors that the workers form, if they do.
    pub(crate) members: Option<Members>,
    /// The waits of open connections, by the first missing key, without watchers of changes.
    pub(crate) waits: BTreeMap<&'a [u8], Waiting>,
    /// The workers' stores of the runs whose nodes meet here.
    pub(crate) workers_stores: Vec<WorkersStore>,
}

/// The connections that wait for one key.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) since: Duration,
    pub(crate) slots: Vec<Slot>,
    /// The number of clients that a BARRIER is for.
    pub(crate) barrier: Option<usize>,
}

/// A gloo group, with the progress of each member.
#[derive(Debug)]
pub(crate) struct GroupState<'a> {
    pub(crate) group: &'a GlooGroup<'a>,
    /// The members that have published, in the order of the group's members.
    pub(crate) members: Vec<MemberState<'a>>,
    /// The ranks in the group that have not published.
    pub(crate) missing: BTreeSet<usize>,
    /// The size, if a member has published it.
    pub(crate) size: Option<usize>,
}

/// A member that has published.
#[derive(Debug)]
pub(crate) struct MemberState<'a> {
    pub(crate) published: &'a Published<'a>,
    pub(crate) progress: Progress,
    /// Whether the member's connection closed before another member had connected.
    pub(crate) is_orphan: bool,
    /// The member's global rank, if known.
    pub(crate) rank: Option<usize>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        index: &'a Index<'a>,
        launched: &'a Launched,
        who: &'a Identities<'a>,
        world_size: Option<usize>,
    ) -> Self {
        let mut job = Self {
            index,
            launched,
            who,
            groups: Vec::new(),
            mains: Vec::new(),
            world_size: None,
            members: Members::new(index.snapshot, launched),
            waits: BTreeMap::new(),
            workers_stores: workers_stores(index),
        };
        job.waits = waits(index, |slot| {
            who.rank(slot).is_none_or(|rank| !job.is_left_out(rank))
        });
        if job.has_workers() {
            job.workers_stores.clear();
        }
        job.world_size = world_size
            .filter(|&size| size <= GROUP_SIZE_MAX)
            .or_else(|| job.known_world_size());
        let mut missing = MISSING_MAX;
        job.groups = index
            .groups
            .iter()
            .map(|group| job.group_state(group, &mut missing))
            .collect();
        job.mains = (0..job.groups.len())
            .filter(|&place| job.is_main(job.groups[place].group))
            .collect();
        job
    }

    /// Whether the group of survivors works without this rank, so that it cannot be the cause.
    pub(crate) fn is_left_out(&self, rank: usize) -> bool {
        let mut members = self.members.iter();
        members.any(|it| it.left_out.contains(&rank))
    }

    /// The workers that can be a cause, in the order of their ranks.
    pub(crate) fn workers(&self) -> impl Iterator<Item = Worker<'_>> {
        let workers = self.launched.workers();
        workers.filter(|worker| !self.is_left_out(worker.worker.rank))
    }

    /// The ranks that take part now: of survivors, the members of the current generation.
    pub(crate) fn ranks_now(&self) -> Option<BTreeSet<usize>> {
        match self.members.as_ref().filter(|it| !it.ranks.is_empty()) {
            Some(members) => Some(members.ranks.clone()),
            None => self.world_size.map(|size| (0..size).collect()),
        }
    }

    /// Whether the workers of a job use this store.
    fn has_workers(&self) -> bool {
        self.who.seen().next().is_some() || self.launched.workers().next().is_some()
    }

    fn known_world_size(&self) -> Option<usize> {
        let mut mains = self.index.groups.iter().filter(|group| self.is_main(group));
        self.launched
            .world_size()
            .or_else(|| mains.find_map(|group| group.size))
            .or_else(|| self.assigned_world_size())
            .or_else(|| self.barrier_size())
    }

    /// The number of ranks in the assignment of the first launcher: `[first rank, ranks, ..]`. `None` if the workers
    /// use another store, because these are not the ranks of this store.
    fn assigned_world_size(&self) -> Option<usize> {
        if !self.workers_stores.is_empty() {
            return None;
        }
        let mut assigned = self.index.others.iter().filter_map(|(family, key)| {
            matches!(family, Family::ElasticRanks { .. }).then_some(*key)
        });
        assigned.find_map(|key| {
            let numbers: [usize; 4] = serde_json::from_slice(&key.value_head).ok()?;
            Some(numbers[1]).filter(|&size| size <= GROUP_SIZE_MAX)
        })
    }

    /// The largest number of clients that one BARRIER is for.
    fn barrier_size(&self) -> Option<usize> {
        let waiting = self.index.snapshot.connections.iter();
        waiting
            .filter(|connection| connection.wait.is_some())
            .filter_map(|connection| connection.last.as_ref())
            .filter(|last| last.command == Opcode::Barrier)
            .filter_map(|last| usize::try_from(last.number).ok())
            .filter(|&size| size <= GROUP_SIZE_MAX)
            .max()
    }

    /// Whether the group is the default group of the job that the report is about.
    pub(crate) fn is_main(&self, group: &GlooGroup<'_>) -> bool {
        group.is_default() && self.who.is_of_job(&group.name)
    }

    fn group_state(&self, group: &'a GlooGroup<'a>, missing_left: &mut usize) -> GroupState<'a> {
        // The size that the members have published counts for the group; the launcher decides between members that
        // disagree.
        let is_said = |size: &usize| {
            group
                .members
                .iter()
                .any(|member| member.address.size == Some(*size))
        };
        let size = match self.world_size.filter(|_| self.is_main(group)) {
            Some(size) if group.size.is_none() || is_said(&size) => Some(size),
            _ => group.size,
        };
        let unpublished = size.unwrap_or(0).saturating_sub(group.members.len());
        let size = size.filter(|_| unpublished <= *missing_left);
        *missing_left -= unpublished.min(*missing_left);
        let members: Vec<_> = group
            .members
            .iter()
            .map(|published| MemberState {
                published,
                progress: progress(self.index, group, published),
                is_orphan: self.index.is_orphan(group, published),
                rank: self.global_rank(group, published),
            })
            .collect();
        let mut missing: BTreeSet<usize> = BTreeSet::new();
        if size.is_none() {
            // Of a group that connects lazily, only what is waited for is known to be missing.
            missing.extend(members.iter().filter_map(|member| match member.progress {
                Progress::Waiting { member, .. } => {
                    let exists = self.world_size.is_none_or(|size| member < size);
                    (exists && group.member(member).is_none()).then_some(member)
                }
                _ => None,
            }));
        }
        let mut next = 0;
        for rank in members
            .iter()
            .map(|member| member.published.rank)
            .chain(size)
        {
            missing.extend(next..rank.min(size.unwrap_or(0)));
            next = rank + 1;
        }
        GroupState {
            group,
            members,
            missing,
            size,
        }
    }

    fn global_rank(&self, group: &GlooGroup<'_>, member: &Published<'_>) -> Option<usize> {
        if self.is_main(group) {
            return Some(member.rank);
        }
        self.who.rank(member.writer?)
    }

    /// Whether a rank has published in a default group: then ranks of RPC may be others.
    pub(crate) fn has_default_group(&self) -> bool {
        self.index.groups.iter().any(GlooGroup::is_default)
    }

    /// The default groups of the job: one a device or network interface.
    pub(crate) fn mains(&self) -> impl Iterator<Item = &GroupState<'a>> {
        self.mains.iter().map(|&place| &self.groups[place])
    }

    /// The default group whose addresses were written last.
    pub(crate) fn newest_main(&self) -> Option<&GroupState<'a>> {
        self.mains().max_by_key(|state| {
            state
                .members
                .iter()
                .map(|member| member.published.key.version)
                .max()
        })
    }

    /// Whether the rank has an open connection.
    pub(crate) fn is_connected(&self, rank: usize) -> bool {
        self.who
            .connections(rank)
            .iter()
            .any(|&slot| self.index.is_open(slot))
    }

    /// The time since which all open connections of a rank are away, and one of them; `None` if one is not away.
    pub(crate) fn away_since(&self, rank: usize) -> Option<(Duration, Slot)> {
        let slots = self.who.connections(rank).iter().copied();
        let mut open = slots.filter(|&slot| self.index.is_open(slot)).peekable();
        open.peek()?;
        let away = open.map(|slot| Some((self.index.connections[slot].away_since?, slot)));
        let away: Option<Vec<_>> = away.collect();
        away?.into_iter().max()
    }

    /// The main connection of a rank: the connection with its latest address; without an address, the newest open
    /// connection, or the newest closed connection if none is open.
    pub(crate) fn main_connection(&self, rank: usize) -> Option<Slot> {
        let published = self
            .mains()
            .filter_map(|state| state.group.member(rank))
            .max_by_key(|member| member.key.version)
            .and_then(|member| member.writer);
        published.or_else(|| {
            let slots = self.who.connections(rank).iter().copied();
            slots.max_by_key(|&slot| {
                (
                    self.index.is_open(slot),
                    self.index.connections[slot].opened,
                )
            })
        })
    }

    /// The state of a rank as far as it is known, for example "pid 4711 on vm, connected, idle for 31 s".
    pub(crate) fn status(&self, rank: usize) -> String {
        let launched = || {
            let worker = self.launched.worker(rank)?;
            let host = shown_name(&worker.node.announced.host);
            let how = match worker.end() {
                Some(_) => "ended",
                None => "not connected",
            };
            Some(format!("pid {} on {host}, {how}", worker.worker.pid))
        };
        let Some(slot) = self.main_connection(rank) else {
            return launched().unwrap_or_else(|| "never connected".to_owned());
        };
        let process = self.who.process(self.index, slot);
        let connection = self.index.connections[slot];
        match (&connection.closed, &connection.wait) {
            (Some(closed), _) => {
                format!("{process}, left {} ago", text::age(self.ago(closed.at)))
            }
            (None, Some(wait)) => {
                let what = wait.missing.first().map(|key| self.meaning(key));
                format!("{process}, waits for {}", what.unwrap_or_default())
            }
            (None, None) => {
                let idle = self.ago(self.index.last_active(slot));
                format!("{process}, connected, idle for {}", text::age(idle))
            }
        }
    }

    /// Returns the meaning of a key in this job.
    pub(crate) fn family<'k>(&self, key: &'k [u8]) -> Family<'k> {
        family(key).within(self.world_size)
    }

    /// Returns the meaning of a key in words.
    pub(crate) fn meaning(&self, key: &[u8]) -> String {
        meaning(key, self.world_size)
    }

    pub(crate) fn ago(&self, moment: Duration) -> Duration {
        self.index.ago(moment)
    }
}

fn waits<'a>(index: &Index<'a>, counts: impl Fn(Slot) -> bool) -> BTreeMap<&'a [u8], Waiting> {
    let mut waits = BTreeMap::new();
    for (slot, connection) in index.connections.iter().enumerate() {
        let is_open = index.is_open(slot) && counts(slot);
        let Some(wait) = connection.wait.as_ref().filter(|_| is_open) else {
            continue;
        };
        let Some(key) = wait.missing.first() else {
            continue;
        };
        if is_watch(wait) {
            continue;
        }
        let clients = connection
            .last
            .as_ref()
            .filter(|_| wait.command == Opcode::Barrier)
            .and_then(|last| usize::try_from(last.number).ok());
        let waiting: &mut Waiting = waits.entry(&**key).or_insert_with(|| Waiting {
            since: wait.since,
            slots: Vec::new(),
            barrier: clients,
        });
        waiting.since = waiting.since.min(wait.since);
        waiting.slots.push(slot);
    }
    waits
}

impl GroupState<'_> {
    /// The known global ranks of the members that `select` returns true for.
    pub(crate) fn ranks(&self, select: impl Fn(&MemberState<'_>) -> bool) -> RankSet {
        let members = self.members.iter().filter(|member| select(member));
        RankSet(members.filter_map(|member| member.rank).collect())
    }

    /// Whether all members have published, and none of them for a group of an earlier run.
    pub(crate) fn is_complete(&self) -> bool {
        self.size.is_some()
            && self.missing.is_empty()
            && !self.members.iter().any(|member| member.is_orphan)
    }
}
