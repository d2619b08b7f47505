//! The store's state machine. Pure: no socket, clock or thread.
//!
//! Report every accepted connection with [`StoreState::connect`], pass requests one at a time to
//! [`StoreState::handle`], and report every closed connection with [`StoreState::disconnect`]. Replies go to the
//! caller's [`Replies`] in sending order. The behaviour is specified in docs/spec/wire.md, section 5.
//!
//! A snapshot starts with [`StoreState::start_snapshot`] and is copied in slices, between which requests continue.

mod activity;
mod announcements;
mod closed;
#[cfg(test)]
mod crash_tests;
mod delete_prefix;
mod directory;
mod end_waits;
mod ephemeral;
#[cfg(test)]
mod ephemeral_tests;
mod extension;
mod groups;
mod hashing;
mod image;
#[cfg(any(test, debug_assertions))]
mod invariants;
mod lent;
mod memory;
mod missed_ends;
#[cfg(test)]
mod missed_ends_tests;
#[cfg(test)]
mod model_tests;
mod name_map;
mod outcomes;
mod owners;
mod peak;
mod pending_wait;
mod pytorch;
mod queue_take;
mod recorder;
mod recovery;
mod served_groups;
mod slots;
#[cfg(test)]
mod snapshot_tests;
mod stored;
#[cfg(test)]
mod sweep_tests;
mod sweeps;
#[cfg(test)]
mod tests;
mod wait_change;
mod wait_get;
mod waiters;
#[cfg(test)]
mod work_tests;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::groups::Groups;
use crate::message::{ConnId, Replies, Reply};
use crate::moment::Moment;
use crate::snapshot::{CloseReason, Closed, ConnectionId, Counters};
use crate::wire::Opcode;
use announcements::Announcements;
use directory::Directory;
use hashing::ConnHash;
pub(crate) use image::Image;
use image::{ConnectionsImage, KeysImage};
pub(crate) use memory::peer_reserve;
use missed_ends::MissedEnds;
pub(crate) use owners::KeptClient;
use owners::Owners;
pub(crate) use recorder::Recorder;
use served_groups::ServedGroups;
use slots::{NotANumber, Slots};
use stored::Writer;
use sweeps::Sweeps;
use waiters::{ListId, Origin, Waiters, Woken};

/// Why a request is refused. The protocol has no error replies, so the connection is closed after the
/// earlier replies. A refused request changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// ADD or BARRIER on a value that is not a number.
    #[error("the value is not a decimal number")]
    NotANumber,
    /// A write, or a wait for missing keys, for which the store has no memory.
    #[error(
        "the store's data takes {used} bytes and may take {limit} (memory limit): writes are refused until keys are deleted"
    )]
    MemoryFull {
        /// The memory of the data, in bytes.
        used: usize,
        /// The limit of that memory, in bytes.
        limit: usize,
    },
    /// The value of a MEMBERSHIP or MEMBERSHIP_POLL.
    #[error("the value is not a request to a group")]
    NotAGroupRequest,
    /// A MEMBERSHIP or MEMBERSHIP_POLL to a server without groups.
    #[error("unknown command 0x{0:02x}")]
    NoGroups(u8),
    /// The parser handles VALIDATE, so it does not reach the state.
    #[error("unexpected VALIDATE")]
    UnexpectedValidate,
}

/// Copying or comparing this many bytes counts as much work as visiting a key.
const BYTES_PER_WORK: usize = 1024;

/// The completed waits for which memory is kept.
const WOKEN_KEPT: usize = 1024;

/// The most keys of a snapshot, and the most queues. A job of 100,000 ranks has fewer.
const SNAPSHOT_KEYS_MAX: usize = 262_144;

/// A budget of [`StoreState::continue_snapshot`] that takes less than a millisecond.
pub(crate) const SNAPSHOT_SLICE: usize = 4096;

/// All names of the store with their values, queues and waiters, and the state of the connections.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    slots: Slots,
    waiters: Waiters,
    directory: Directory,
    announcements: Announcements,
    owners: Owners,
    sweeps: Sweeps,
    groups: ServedGroups,
    /// The current time, as last set by the server.
    now: Moment,
    /// The connection whose request is being handled.
    requester: ConnectionId,
    waits_cancelled: u64,
    /// The most memory of the data in bytes; `None` for no limit.
    memory_max: Option<usize>,
    /// The memory besides the data that peers take.
    peer_bytes: usize,
    /// The memory of the journal's state of sessions.
    carried_bytes: usize,
    peak: peak::Peak,
    /// Requests carried out, keys visited for them, and bytes copied, in [`BYTES_PER_WORK`].
    work: u64,
    /// Connections that were woken by a push and have not sent their next request, each with the queue's
    /// name. If that request is not a pop or take, the wakeup passes to the next waiter, so that no wait continues
    /// while the queue has an element.
    reserved_wakeups: HashMap<ConnId, Box<[u8]>>,
    /// Connections whose wait END_WAITS has ended, and that have not sent their next request.
    ended_waits: HashSet<ConnId, ConnHash>,
    missed_ends: MissedEnds,
    snapshot: Option<Box<SnapshotInProgress>>,
    /// Scratch space, empty between calls.
    woken: Vec<Woken>,
    emptied: Vec<Arc<[u8]>>,
    /// Comparisons with known values, for the test that waits with the same known value share one.
    #[cfg(test)]
    comparisons: u64,
}

/// The complete parts of a snapshot.
#[derive(Debug)]
struct SnapshotInProgress {
    now: Moment,
    counters: Counters,
    announcements: Vec<crate::snapshot::Announcement>,
    groups: Vec<crate::snapshot::GroupRecord>,
    connections: Option<ConnectionsImage>,
    keys: Option<KeysImage>,
}

impl StoreState {
    /// An empty store.
    pub(crate) fn new(groups: Option<Box<dyn Groups>>) -> Self {
        Self {
            groups: ServedGroups::new(groups),
            ..Self::default()
        }
    }

    /// Adds an accepted connection.
    pub(crate) fn connect(&mut self, conn: ConnId, peer: SocketAddr) {
        self.directory.connect(conn, peer, self.now);
    }

    /// Removes a closed connection: its pending wait, a wakeup that it has not used, and its keys. Its record is kept,
    /// until 16,384 others have closed. A second call has no effect.
    pub(crate) fn disconnect(
        &mut self,
        conn: ConnId,
        reason: CloseReason,
        replies: &mut impl Replies,
    ) {
        self.look_at_all();
        let closed = Closed {
            at: self.now.since_start(),
            reason,
        };
        let announcements = &mut self.announcements;
        let dropped = |dropped| announcements.forget(dropped);
        let closed = self.directory.close(conn, closed, &self.waiters, dropped);
        if let Some(closed) = closed {
            self.announcements.close(closed);
        }
        self.requester = closed.unwrap_or_default();
        self.cancel(conn);
        self.waiters.set_away(conn, None);
        if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, None, replies);
        }
        self.ended_waits.remove(&conn);
        self.sweeps.forget(conn);
        self.end_owner(conn, replies);
        self.end_speaker(conn, replies);
    }

    /// The session of a connection has lost its link, or has a new link (docs/spec/wire-extensions.md, SESSION 11). A
    /// connection that is away receives no element of a queue, and passes on a wakeup. A connection that returns
    /// receives the available elements.
    pub(crate) fn set_away(&mut self, conn: ConnId, is_away: bool, replies: &mut impl Replies) {
        self.directory.keep(conn, &self.waiters);
        if !self.waiters.set_away(conn, is_away.then_some(self.now)) {
            return;
        }
        self.look_at_all();
        if !is_away {
            self.give_elements(conn, replies);
        } else if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, None, replies);
        }
    }

    /// Removes a connection that has sent no request and belongs to another protocol, as if it had not been
    /// accepted.
    pub(crate) fn hand_over(&mut self, conn: ConnId) {
        self.directory.hand_over(conn, &self.waiters);
    }

    /// Sets the current time.
    pub(crate) const fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// The current time.
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    /// The totals, except those of bytes and of connections that were turned away.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.directory.count(&mut counters);
        counters.keys = self.slots.value_count();
        counters.stored_bytes = self.slots.stored_bytes();
        counters.waits = self.waiters.waiting();
        counters.waits_cancelled = self.waits_cancelled;
        counters
    }

    /// A measure of the work that all requests so far have caused, in units of about 100 ns: a request counts, as
    /// does each key, wait and kilobyte that it visits. It bounds the time between two readings of the clock.
    pub(crate) const fn work(&self) -> u64 {
        self.work.wrapping_add(self.waiters.visits())
    }

    /// Whether requests have freed so much memory, which the allocator may keep, that returning it to the system is worth
    /// the time. Counts from the last time that it did.
    /// `kept_bytes` are in use besides the data.
    pub(crate) fn take_released(&mut self, kept_bytes: usize) -> bool {
        let used = self.memory() + kept_bytes;
        self.waiters.take_released() | self.peak.has_fallen_to(used)
    }

    /// The number of announcements that there was no room for.
    pub(crate) const fn announcements_ignored(&self) -> u64 {
        self.announcements.ignored()
    }

    /// Starts a snapshot of the current moment, with these totals. A snapshot in progress is dropped.
    pub(crate) fn start_snapshot(&mut self, counters: Counters) {
        self.slots.start_copy(SNAPSHOT_KEYS_MAX);
        self.directory.start_copy(&self.waiters);
        self.snapshot = Some(Box::new(SnapshotInProgress {
            now: self.now,
            counters,
            announcements: self.announcements.to_vec(),
            groups: self.groups.records(self.now),
            connections: None,
            keys: None,
        }));
    }

    /// Whether a snapshot is in progress.
    pub(crate) const fn is_in_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Continues the snapshot in progress by about `budget` records. Returns it once it is complete.
    pub(crate) fn continue_snapshot(&mut self, mut budget: usize) -> Option<Image> {
        let mut snapshot = self.snapshot.take()?;
        if snapshot.connections.is_none() {
            snapshot.connections = self.directory.copy_slice(&mut budget, &self.waiters);
        }
        if snapshot.connections.is_some() {
            snapshot.keys = self.slots.copy_slice(&mut budget);
        }
        match *snapshot {
            SnapshotInProgress {
                now,
                counters,
                announcements,
                groups,
                connections: Some(connections),
                keys: Some(keys),
            } => Some(Image {
                now,
                is_kept: self.slots.recorder.is_some(),
                counters,
                announcements,
                groups,
                connections,
                keys,
            }),
            unfinished => {
                self.snapshot = Some(Box::new(unfinished));
                None
            }
        }
    }

    /// Copies the records of the connections whose waits are about to change, if a snapshot needs them.
    fn keep_waiting_connections(&mut self, list: ListId) {
        if self.directory.is_copying() {
            for conn in self.waiters.connections_of(list) {
                self.directory.keep(conn, &self.waiters);
            }
        }
    }

    /// The number of waiting connections.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    /// The number of names that a connection waits for.
    pub(crate) fn missing_names(&self, conn: ConnId) -> usize {
        let waiting = self.waiters.waiting_of(conn);
        waiting.map_or(0, |waiting| waiting.missing as usize)
    }

    /// The address of an open connection's peer.
    pub(crate) fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        self.directory.peer(conn)
    }

    /// Sends a piece of a reply, which waits for the position on which the request depends.
    #[inline]
    fn reply(&self, replies: &mut impl Replies, conn: ConnId, reply: Reply<'_>) {
        if let Some(recorder) = &self.slots.recorder {
            replies.depend_on(recorder.dependency());
        }
        replies.reply(conn, reply);
    }

    const fn writer(&self) -> Writer {
        Writer {
            connection: self.requester,
            at: self.now,
        }
    }

    const fn origin(&self, command: Opcode) -> Origin {
        Origin {
            command,
            since: self.now,
        }
    }
}

impl From<NotANumber> for Refusal {
    fn from(_: NotANumber) -> Self {
        Self::NotANumber
    }
}

/// The [work](StoreState::work) of copying or comparing bytes.
const fn work_of(bytes: &[u8]) -> u64 {
    (bytes.len() / BYTES_PER_WORK) as u64
}

/// Counts are `i64` on the wire; memory ends long before their limit.
fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
