//! The last announcement of each connection, within a total.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::message::ConnectionId;
use crate::moment::Moment;
use crate::snapshot::Announcement;

/// The most bytes of all announcements: those of 64 nodes with the longest ones, of thousands with usual ones.
const TOTAL_BYTES_MAX: usize = 64 << 20;

/// The memory of an announcement besides its bytes, so that the number of empty announcements is limited as well.
const OVERHEAD_BYTES: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Announcements {
    by_connection: BTreeMap<ConnectionId, Announced>,
    /// The closed connections with an announcement, in the order of closing. Some may have been removed.
    closed: VecDeque<ConnectionId>,
    /// Invariant: at most [`TOTAL_BYTES_MAX`].
    total_bytes: usize,
    ignored: u64,
}

#[derive(Debug)]
struct Announced {
    at: Moment,
    bytes: Arc<[u8]>,
}

impl Announcements {
    /// Replaces the announcement of an open connection. If there is no room, the announcements of closed connections
    /// are removed. If there is no room even then, the new announcement is ignored and the old announcement stays.
    /// All announcements together may take `bytes_max`, at most 64 MiB.
    pub(super) fn put(
        &mut self,
        connection: ConnectionId,
        at: Moment,
        bytes: &[u8],
        bytes_max: usize,
    ) {
        let cost = OVERHEAD_BYTES + bytes.len();
        let replaced = self.by_connection.get(&connection);
        let freed = replaced.map_or(0, |old| OVERHEAD_BYTES + old.bytes.len());
        while self.total_bytes - freed + cost > TOTAL_BYTES_MAX.min(bytes_max) {
            let Some(oldest) = self.closed.pop_front() else {
                self.ignored += 1;
                return;
            };
            self.remove(oldest);
        }
        self.remove(connection);
        self.total_bytes += cost;
        let bytes = bytes.into();
        self.by_connection
            .insert(connection, Announced { at, bytes });
    }

    /// A connection closed: its announcement is kept while there is room.
    pub(super) fn close(&mut self, connection: ConnectionId) {
        if self.by_connection.contains_key(&connection) {
            self.closed.push_back(connection);
        }
    }

    /// The record of a closed connection is dropped.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.remove(connection);
        // Records are dropped in the order of closing.
        if self.closed.front() == Some(&connection) {
            self.closed.pop_front();
        }
    }

    /// The memory of all of them.
    pub(super) const fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// The number of announcements that there was no room for.
    pub(super) const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Returns all announcements, in the order of their connections.
    pub(super) fn to_vec(&self) -> Vec<Announcement> {
        let all = self.by_connection.iter();
        all.map(|(connection, announced)| Announcement {
            connection: *connection,
            at: announced.at.since_start(),
            bytes: Arc::clone(&announced.bytes),
        })
        .collect()
    }

    fn remove(&mut self, connection: ConnectionId) {
        if let Some(old) = self.by_connection.remove(&connection) {
            self.total_bytes -= OVERHEAD_BYTES + old.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(announcements: &mut Announcements, connection: u64, bytes: usize) {
        let bytes = vec![7; bytes];
        announcements.put(
            ConnectionId(connection),
            Moment::default(),
            &bytes,
            usize::MAX,
        );
    }

    fn connections(announcements: &Announcements) -> Vec<u64> {
        let all = announcements.to_vec();
        all.iter().map(|a| a.connection.0).collect()
    }

    /// docs/spec/wire-extensions.md, ANNOUNCE 1.
    #[test]
    fn the_last_announcement_of_each_connection_is_kept() {
        let mut announcements = Announcements::default();
        for bytes in [10, 0, 30] {
            put(&mut announcements, 4, bytes);
            put(&mut announcements, 2, bytes);
        }
        announcements.close(ConnectionId(4));
        assert_eq!(connections(&announcements), [2, 4]);
        assert_eq!(announcements.to_vec()[0].bytes.len(), 30);
        announcements.forget(ConnectionId(4));
        assert_eq!(connections(&announcements), [2]);
        assert!(announcements.closed.is_empty());
    }

    /// docs/spec/wire-extensions.md, ANNOUNCE 4.
    #[test]
    fn without_room_those_of_closed_connections_go_first_and_then_new_ones_are_ignored() {
        let one = (TOTAL_BYTES_MAX / 4) - OVERHEAD_BYTES;
        let mut announcements = Announcements::default();
        for connection in 1..=4 {
            put(&mut announcements, connection, one);
        }
        put(&mut announcements, 3, one);
        assert_eq!(connections(&announcements), [1, 2, 3, 4], "replaced");
        announcements.close(ConnectionId(2));
        announcements.close(ConnectionId(1));
        put(&mut announcements, 5, 1);
        assert_eq!(connections(&announcements), [1, 3, 4, 5]);
        put(&mut announcements, 6, one);
        assert_eq!(connections(&announcements), [3, 4, 5, 6]);
        assert_eq!(announcements.ignored(), 0);
        put(&mut announcements, 7, one);
        put(&mut announcements, 5, one + 1);
        assert_eq!(connections(&announcements), [3, 4, 5, 6]);
        assert_eq!(announcements.ignored(), 2);
        assert_eq!(announcements.to_vec()[2].bytes.len(), 1);
    }

    /// docs/spec/wire-extensions.md, ANNOUNCE 4.
    #[test]
    fn empty_announcements_are_limited_too() {
        let mut announcements = Announcements::default();
        for connection in 0..100_000 {
            put(&mut announcements, connection, 0);
        }
        assert_eq!(connections(&announcements).len(), 65_536);
    }
}
