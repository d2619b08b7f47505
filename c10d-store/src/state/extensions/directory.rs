//! The open connections with their activity, the connections that closed last, and totals.
//!
//! A snapshot copies them in slices. The record of a connection that changes before its turn is copied first.

use std::net::SocketAddr;

use super::activity::Activity;
use super::closed::ClosedConnections;
use super::image::{ConnectionImage, ConnectionsImage, MISSING_MAX, WaitImage};
use crate::message::{CloseReason, ConnectionId};
use crate::message::{ConnId, Outline};
use crate::moment::Moment;
use crate::snapshot::{Closed, Counters, PendingWait};
use crate::state::waiters::Waiters;
use crate::wire::Opcode;

/// An open connection, or the place of one. Aligned, so that most requests touch one cache line of it, and reads
/// two.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    /// [`VACANT`] if no connection is open.
    generation: u32,
    /// The last snapshot that has copied this connection, or need not.
    copied_in: u32,
    activity: Activity,
}

/// The generation of no connection.
const VACANT: u32 = u32::MAX;

impl Entry {
    const fn is_open(&self) -> bool {
        self.generation != VACANT
    }
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    /// The entries by [`ConnId::slot`].
    entries: Vec<Entry>,
    open: usize,
    /// The number of connections so far, and the last one's id.
    opened: u64,
    /// Connections handed over. They count as if they had not been opened.
    handed_over: u64,
    closed: ClosedConnections,
    closed_by: [u64; 3],
    /// The numbers of requests by [`Opcode::index`].
    requests: RequestCounts,
    /// The number of snapshots started so far.
    snapshots: u32,
    copy: Option<Box<Copying>>,
}

/// A number of requests for each command. Arrays of more than 32 elements have no default.
#[derive(Debug)]
struct RequestCounts([u64; Opcode::COUNT]);

impl Default for RequestCounts {
    fn default() -> Self {
        Self([0; Opcode::COUNT])
    }
}

/// A snapshot in progress.
#[derive(Debug)]
struct Copying {
    image: ConnectionsImage,
    /// The entries to visit. Entries do not move; an entry that is made later carries the snapshot's number.
    next_entry: usize,
    entries_end: usize,
}

impl Directory {
    /// A connection was accepted.
    pub(super) fn connect(&mut self, conn: ConnId, peer: SocketAddr, now: Moment) {
        let slot = conn.slot() as usize;
        self.opened += 1;
        let entry = Entry {
            generation: conn.generation(),
            copied_in: self.snapshots,
            activity: Activity::new(ConnectionId(self.opened), peer, now),
        };
        if slot >= self.entries.len() {
            let vacant = Entry {
                generation: VACANT,
                ..entry
            };
            self.entries.resize(slot + 1, vacant);
        }
        debug_assert!(!self.entries[slot].is_open(), "{conn:?} is already open");
        self.entries[slot] = entry;
        self.open += 1;
    }

    /// Records that a connection that was just opened is a client of a session.
    pub(super) fn note_resumes(&mut self, conn: ConnId) {
        if let Some(entry) = entry_mut(&mut self.entries, conn) {
            entry.activity.note_resumes();
        }
    }

    /// Records a request. Returns the connection's id; `None` for a connection that is not open.
    #[inline]
    pub(super) fn note_request(
        &mut self,
        conn: ConnId,
        request: &Outline<'_>,
        now: Moment,
        waiters: &Waiters,
    ) -> Option<ConnectionId> {
        self.requests.0[request.command.index()] += 1;
        if self.copy.is_some() {
            self.keep(conn, waiters);
        }
        let entry = entry_mut(&mut self.entries, conn)?;
        entry.activity.note_request(request, now);
        Some(entry.activity.id())
    }

    /// The address of an open connection's peer.
    pub(super) fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        let entry = self.entries.get(conn.slot() as usize)?;
        (entry.generation == conn.generation()).then(|| entry.activity.peer())
    }

    /// The id of an open connection, and when its last request arrived, or it was opened.
    pub(super) fn last_request(&self, conn: ConnId) -> Option<(ConnectionId, Moment)> {
        let entry = self.entries.get(conn.slot() as usize)?;
        let activity = &entry.activity;
        (entry.generation == conn.generation()).then(|| (activity.id(), activity.last_request()))
    }

    /// Records that a value was sent to a connection. [`keep`](Self::keep) must have been called.
    #[inline]
    pub(super) fn note_read(&mut self, conn: ConnId, version: u64) {
        if let Some(entry) = entry_mut(&mut self.entries, conn) {
            entry.activity.note_read(version);
        }
    }

    /// A connection closed: keeps its record. Calls `dropped` for each connection whose record is dropped for it.
    /// Returns the connection's id; `None` if it was not open.
    pub(super) fn close(
        &mut self,
        conn: ConnId,
        closed: Closed,
        waiters: &Waiters,
        dropped: impl FnMut(ConnectionId),
    ) -> Option<ConnectionId> {
        self.keep(conn, waiters);
        let activity = self.take(conn)?;
        self.closed_by[closed.reason as usize] += 1;
        let wait = pending_wait(conn, waiters);
        self.closed.push(&activity, wait, closed, dropped);
        Some(activity.id())
    }

    /// A connection now belongs to another protocol: removes it as if it had not been opened.
    pub(super) fn hand_over(&mut self, conn: ConnId, waiters: &Waiters) {
        self.keep(conn, waiters);
        if self.take(conn).is_some() {
            self.handed_over += 1;
        }
    }

    /// Sets the totals of connections and requests.
    pub(super) fn count(&self, counters: &mut Counters) {
        let requests = Opcode::ALL.map(|command| (command, self.requests.0[command.index()]));
        counters.requests = requests
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        counters.connections = self.open;
        counters.opened = self.opened - self.handed_over;
        counters.handed_over = self.handed_over;
        counters.closed_by_peer = self.closed_by[CloseReason::Peer as usize];
        counters.closed_by_failure = self.closed_by[CloseReason::Failed as usize];
        counters.closed_by_refusal = self.closed_by[CloseReason::Refused as usize];
    }

    /// Whether records must be kept before they change.
    pub(super) const fn is_copying(&self) -> bool {
        self.copy.is_some()
    }

    /// Starts a snapshot of the current moment. A snapshot in progress is dropped.
    pub(super) fn start_copy(&mut self, waiters: &Waiters) {
        self.snapshots = self.snapshots.wrapping_add(1);
        let missing_max = waiters.len().min(self.open * MISSING_MAX);
        self.copy = Some(Box::new(Copying {
            image: ConnectionsImage {
                open: Vec::with_capacity(self.open),
                closed: self.closed.clone(),
                missing: Vec::with_capacity(missing_max),
            },
            next_entry: 0,
            entries_end: self.entries.len(),
        }));
    }

    /// Copies the record of a connection that is about to change, if a snapshot needs it.
    pub(super) fn keep(&mut self, conn: ConnId, waiters: &Waiters) {
        let snapshot = self.snapshots;
        if let Some(copy) = &mut self.copy
            && let Some(entry) = entry_mut(&mut self.entries, conn)
        {
            copy.copy(conn.slot(), entry, snapshot, waiters);
        }
    }

    /// Visits connections for at most `budget`, and takes their cost off it. Returns the copy once it is
    /// complete.
    pub(super) fn copy_slice(
        &mut self,
        budget: &mut usize,
        waiters: &Waiters,
    ) -> Option<ConnectionsImage> {
        let copy = self.copy.as_mut()?;
        while copy.next_entry < copy.entries_end {
            if *budget == 0 {
                return None;
            }
            let entry = &mut self.entries[copy.next_entry];
            if entry.is_open() {
                // `next_entry` is the slot of a connection, which is a `u32`.
                let cost = copy.copy(copy.next_entry as u32, entry, self.snapshots, waiters);
                *budget = budget.saturating_sub(cost);
            }
            *budget = budget.saturating_sub(1);
            copy.next_entry += 1;
        }
        Some(self.copy.take()?.image)
    }

    /// The records of all connections at once, open ones by entry.
    #[cfg(test)]
    pub(super) fn records(
        &self,
        waiters: &Waiters,
    ) -> (
        Vec<crate::snapshot::ConnectionRecord>,
        Vec<crate::snapshot::ConnectionRecord>,
    ) {
        let entries = self.entries.iter().enumerate();
        let open = entries
            .filter(|(_, entry)| entry.is_open())
            .map(|(slot, entry)| {
                let mut record = entry.activity.to_record();
                let conn = ConnId::new(slot as u32, entry.generation);
                record.wait = pending_wait(conn, waiters);
                record.away_since = waiters.away_since(conn).map(Moment::since_start);
                record
            });
        (open.collect(), self.closed.records().collect())
    }

    /// The number of entries, including those of closed connections.
    #[cfg(debug_assertions)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Panics if an invariant is violated, which is a bug in this module.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        let open = self.entries.iter().filter(|entry| entry.is_open()).count();
        assert_eq!(open, self.open, "the open connections are counted");
        let closed: u64 = self.closed_by.iter().sum();
        assert_eq!(
            self.opened,
            open as u64 + closed + self.handed_over,
            "every connection is open, closed or handed over"
        );
    }

    fn take(&mut self, conn: ConnId) -> Option<Activity> {
        let entry = entry_mut(&mut self.entries, conn)?;
        entry.generation = VACANT;
        self.open -= 1;
        Some(entry.activity)
    }
}

/// The entry of an open connection.
#[inline]
fn entry_mut(entries: &mut [Entry], conn: ConnId) -> Option<&mut Entry> {
    let entry = entries.get_mut(conn.slot() as usize)?;
    (entry.generation == conn.generation()).then_some(entry)
}

impl Copying {
    /// Copies a connection unless that has been done. Returns the number of missing keys copied.
    fn copy(&mut self, slot: u32, entry: &mut Entry, snapshot: u32, waiters: &Waiters) -> usize {
        if entry.copied_in == snapshot {
            return 0;
        }
        entry.copied_in = snapshot;
        let conn = ConnId::new(slot, entry.generation);
        let waiting = waiters.waiting_of(conn);
        let start = self.image.missing.len();
        let wait = waiting.map(|waiting| {
            let missing = waiters.missing_of(waiting).take(MISSING_MAX);
            self.image.missing.extend(missing.cloned());
            WaitImage {
                origin: waiting.origin,
                missing_count: waiting.missing as usize,
                missing: (start, self.image.missing.len() - start),
            }
        });
        self.image.open.push(ConnectionImage {
            activity: entry.activity,
            wait,
            away_since: waiters.away_since(conn),
        });
        self.image.missing.len() - start
    }
}

fn pending_wait(conn: ConnId, waiters: &Waiters) -> Option<PendingWait> {
    let waiting = waiters.waiting_of(conn)?;
    let missing = waiters.missing_of(waiting).take(MISSING_MAX);
    Some(PendingWait {
        command: waiting.origin.command,
        since: waiting.origin.since.since_start(),
        missing: missing.cloned().collect(),
        missing_count: waiting.missing as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_costs_at_most_256_bytes_more() {
        assert!(size_of::<Entry>() <= 256);
    }
}
