//! A snapshot with its keys decoded and its connections by number.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use c10d_store::Opcode;
use c10d_store::unstable::{CAPABILITY_MASK, CAPABILITY_NONCE};
use c10d_store::{ConnectionId, ConnectionRecord, KeyRecord, Snapshot, Version};

use crate::keys::{Family, GlooAddress, GroupName, Maker, family, gloo_address};

/// The place of a connection in [`Index::connections`].
pub(crate) type Slot = usize;

/// A snapshot, decoded.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    pub(crate) snapshot: &'a Snapshot,
    /// The open connections, then the closed ones.
    pub(crate) connections: Vec<&'a ConnectionRecord>,
    slots: HashMap<ConnectionId, Slot>,
    /// The gloo groups, in the order of their keys.
    pub(crate) groups: Vec<GlooGroup<'a>>,
    by_stem: HashMap<&'a [u8], usize>,
    /// All other keys of PyTorch, with their meanings.
    pub(crate) others: Vec<(Family<'a>, &'a KeyRecord)>,
}

/// A group whose members publish addresses under one stem.
#[derive(Debug)]
pub(crate) struct GlooGroup<'a> {
    pub(crate) stem: &'a [u8],
    pub(crate) name: GroupName<'a>,
    /// The members that have published, by rank in the group.
    pub(crate) members: Vec<Published<'a>>,
    /// The number of members that most members say; `None` if none says one.
    pub(crate) size: Option<usize>,
    /// When the newest of the members' connections was opened.
    last_opened: Option<Duration>,
}

/// A member that has published its address.
#[derive(Debug)]
pub(crate) struct Published<'a> {
    pub(crate) rank: usize,
    pub(crate) key: &'a KeyRecord,
    pub(crate) address: GlooAddress,
    /// The connection that wrote the current address; `None` if it closed long ago.
    pub(crate) writer: Option<Slot>,
    pub(crate) previous: Option<Previous>,
}

/// The write before the current one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Previous {
    pub(crate) version: Version,
    pub(crate) writer: Option<Slot>,
    pub(crate) written: Duration,
}

impl<'a> Index<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        let connections: Vec<_> = snapshot
            .connections
            .iter()
            .chain(&snapshot.closed)
            .collect();
        let slots = connections
            .iter()
            .enumerate()
            .map(|(slot, c)| (c.id, slot))
            .collect();
        let mut index = Self {
            snapshot,
            connections,
            slots,
            groups: Vec::new(),
            by_stem: HashMap::new(),
            others: Vec::new(),
        };
        for key in &snapshot.keys {
            index.add_key(key);
        }
        for group in &mut index.groups {
            group.members.sort_unstable_by_key(|member| member.rank);
            group.members.dedup_by_key(|member| member.rank);
        }
        for place in 0..index.groups.len() {
            let group = &index.groups[place];
            let writers = group.members.iter().filter_map(|member| member.writer);
            index.groups[place].last_opened =
                writers.map(|slot| index.connections[slot].opened).max();
            index.groups[place].size = index.agreed_size(&index.groups[place]);
        }
        index
    }

    fn add_key(&mut self, key: &'a KeyRecord) {
        let family = family(&key.key);
        if let Family::Member(member) = family {
            if let Some(address) = gloo_address(&key.value_head, key.value_len) {
                let group = *self.by_stem.entry(member.stem).or_insert_with(|| {
                    self.groups.push(GlooGroup {
                        stem: member.stem,
                        name: member.group,
                        members: Vec::new(),
                        size: None,
                        last_opened: None,
                    });
                    self.groups.len() - 1
                });
                let previous = key.previous.map(|(version, writer, written)| Previous {
                    version,
                    writer: self.slot(writer),
                    written,
                });
                let writer = self.slot(key.writer);
                self.groups[group].members.push(Published {
                    rank: member.rank,
                    key,
                    address,
                    writer,
                    previous,
                });
            }
        } else if family != Family::Unknown {
            self.others.push((family, key));
        }
    }

    /// The size that most members of the current run say; of equally frequent ones the largest.
    fn agreed_size(&self, group: &GlooGroup<'_>) -> Option<usize> {
        let mut votes: HashMap<usize, usize> = HashMap::new();
        for member in &group.members {
            if let Some(size) = member.address.size {
                let weight = if self.is_orphan(group, member) { 0 } else { 1 };
                *votes.entry(size).or_default() += weight;
            }
        }
        votes
            .into_iter()
            .max_by_key(|&(size, votes)| (votes, size))
            .map(|(size, _)| size)
    }

    /// Whether a member's connection closed before another member had even connected: it cannot be in a group
    /// with that one.
    pub(crate) fn is_orphan(&self, group: &GlooGroup<'_>, member: &Published<'_>) -> bool {
        let Some(last_opened) = group.last_opened else {
            return false;
        };
        match member.writer.map(|slot| self.connections[slot]) {
            Some(writer) => writer.closed.is_some_and(|closed| closed.at < last_opened),
            None => member.key.written < last_opened,
        }
    }

    pub(crate) fn has_group(&self, stem: &[u8]) -> bool {
        self.by_stem.contains_key(stem)
    }

    pub(crate) fn slot(&self, id: ConnectionId) -> Option<Slot> {
        self.slots.get(&id).copied()
    }

    /// The process behind a connection: its address and the id that it sent. `None` for this crate's own clients.
    pub(crate) fn process(&self, slot: Slot) -> Option<(IpAddr, u32)> {
        let connection = self.connections[slot];
        let nonce = connection.nonce.filter(|&nonce| !is_own_client(nonce))?;
        Some((connection.peer.ip().to_canonical(), nonce))
    }

    pub(crate) fn is_open(&self, slot: Slot) -> bool {
        self.connections[slot].closed.is_none()
    }

    /// How long ago a moment was.
    pub(crate) fn ago(&self, moment: Duration) -> Duration {
        self.snapshot.now.saturating_sub(moment)
    }

    /// When a connection sent its last request, or was opened.
    pub(crate) fn last_active(&self, slot: Slot) -> Duration {
        let connection = self.connections[slot];
        connection
            .last
            .as_ref()
            .map_or(connection.opened, |last| last.at)
    }

    /// Whether the last request of a connection joins a job: nothing is known of its rank yet.
    pub(crate) fn is_joining(&self, slot: Slot) -> bool {
        let connection = self.connections[slot];
        connection
            .last
            .as_ref()
            .is_some_and(|last| last.command == Opcode::Add && family(&last.key) == Family::Init)
    }
}

/// Whether a process id is one of the first of its namespace. On a host those belong to the kernel: the process runs
/// in a container, and other containers with the same address can have the same id.
pub(crate) const fn is_container_pid(pid: u32) -> bool {
    pid < 300
}

/// Whether a nonce belongs to this crate's client, which sends no process id.
pub(crate) const fn is_own_client(nonce: u32) -> bool {
    nonce & !CAPABILITY_MASK == CAPABILITY_NONCE
}

impl<'a> GlooGroup<'a> {
    pub(crate) fn member(&self, rank: usize) -> Option<&Published<'a>> {
        let place = self
            .members
            .binary_search_by_key(&rank, |member| member.rank)
            .ok()?;
        Some(&self.members[place])
    }

    /// Whether ranks in the group are global ranks.
    pub(crate) fn is_default(&self) -> bool {
        self.name.is_default()
    }

    pub(crate) fn is_of_savers(&self) -> bool {
        self.name.maker == Maker::Saver
    }
}
