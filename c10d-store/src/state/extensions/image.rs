//! The copy of a moment that a snapshot is made of.
//!
//! The server's thread copies as little as possible, and makes no allocation for a single record; the requesting
//! thread converts the copy to its public form.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::activity::Activity;
use super::closed::ClosedConnections;
use crate::moment::Moment;
use crate::snapshot::{
    Announcement, ConnectionRecord, Counters, GroupRecord, KeyRecord, PendingWait, QueueRecord,
    Snapshot, VALUE_HEAD_BYTES_MAX, Version,
};
use crate::state::slot::{Stored, Written};
use crate::state::waiters::Origin;

/// The most missing keys of a wait in a snapshot.
pub(super) const MISSING_MAX: usize = 16;

/// Everything of one moment.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) now: Moment,
    pub(super) is_kept: bool,
    pub(super) counters: Counters,
    pub(super) announcements: Vec<Announcement>,
    pub(super) groups: Vec<GroupRecord>,
    pub(super) connections: ConnectionsImage,
    pub(super) keys: KeysImage,
}

/// The connections of one moment.
#[derive(Debug, Default)]
pub(super) struct ConnectionsImage {
    pub(super) open: Vec<ConnectionImage>,
    pub(super) closed: ClosedConnections,
    /// The missing keys of all waits, one after the other.
    pub(super) missing: Vec<Arc<[u8]>>,
}

#[derive(Debug)]
pub(super) struct ConnectionImage {
    pub(super) activity: Activity,
    pub(super) wait: Option<WaitImage>,
    pub(super) away_since: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct WaitImage {
    pub(super) origin: Origin,
    /// The number of all missing keys.
    pub(super) missing_count: usize,
    /// Where its missing keys start, and how many of them are copied.
    pub(super) missing: (usize, usize),
}

/// The keys of one moment.
#[derive(Debug, Default)]
pub(in crate::state) struct KeysImage {
    pub(super) keys: Vec<KeyImage>,
    /// The first bytes of all values, one after the other.
    heads: Vec<u8>,
    pub(super) queues: Vec<(Arc<[u8]>, usize)>,
    pub(super) left_out: usize,
}

/// A key, still with its value.
#[derive(Debug)]
pub(super) struct KeyImage {
    key: Arc<[u8]>,
    value_len: usize,
    written: Written,
    previous: Option<Written>,
}

impl KeysImage {
    /// An empty one with room for this number of keys, with values of this number of bytes in all.
    pub(in crate::state) fn with_capacity(keys: usize, value_bytes: usize) -> Self {
        Self {
            keys: Vec::with_capacity(keys),
            heads: Vec::with_capacity(value_bytes.min(keys * VALUE_HEAD_BYTES_MAX)),
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, key: &Arc<[u8]>, stored: &Stored) {
        let value = stored.value.as_bytes();
        self.heads
            .extend_from_slice(&value[..value.len().min(VALUE_HEAD_BYTES_MAX)]);
        self.keys.push(KeyImage {
            key: Arc::clone(key),
            value_len: value.len(),
            written: stored.written,
            previous: stored.previous,
        });
    }
}

/// The complete parts of a snapshot.
#[derive(Debug)]
pub(super) struct SnapshotInProgress {
    pub(super) now: Moment,
    pub(super) counters: Counters,
    pub(super) announcements: Vec<Announcement>,
    pub(super) groups: Vec<GroupRecord>,
    pub(super) connections: Option<ConnectionsImage>,
    pub(super) keys: Option<KeysImage>,
}

impl Image {
    /// The public form. `started` is the server's start by the system's clock.
    pub(crate) fn to_snapshot(&self, started: SystemTime) -> Snapshot {
        let mut connections: Vec<ConnectionRecord> = self
            .connections
            .open
            .iter()
            .map(|connection| self.open_connection(connection))
            .collect();
        connections.sort_unstable_by_key(|connection| connection.id);
        Snapshot {
            now: self.now.since_start(),
            started: Some(started),
            server_time: Duration::ZERO,
            is_kept: self.is_kept,
            connections,
            closed: self.connections.closed.records().collect(),
            keys: self.key_records(),
            keys_left_out: self.keys.left_out,
            queues: self.queue_records(),
            announcements: self.announcements.clone(),
            groups: self.groups.clone(),
            counters: self.counters.clone(),
        }
    }

    fn open_connection(&self, connection: &ConnectionImage) -> ConnectionRecord {
        let mut record = connection.activity.to_record();
        record.away_since = connection.away_since.map(Moment::since_start);
        record.wait = connection.wait.as_ref().map(|wait| {
            let (start, count) = wait.missing;
            PendingWait {
                command: wait.origin.command,
                since: wait.origin.since.since_start(),
                missing: self.connections.missing[start..start + count].to_vec(),
                missing_count: wait.missing_count,
            }
        });
        record
    }

    fn key_records(&self) -> Vec<KeyRecord> {
        let mut heads = &self.keys.heads[..];
        let mut records = Vec::with_capacity(self.keys.keys.len());
        for image in &self.keys.keys {
            let (head, rest) = heads.split_at(image.value_len.min(VALUE_HEAD_BYTES_MAX));
            heads = rest;
            let Written {
                version,
                writer,
                at,
            } = image.written;
            let mut record = KeyRecord::new(
                &image.key,
                head,
                Version(version.get()),
                writer,
                at.since_start(),
            );
            record.value_len = image.value_len;
            record.previous = image.previous.map(|previous| {
                let Written {
                    version,
                    writer,
                    at,
                } = previous;
                (Version(version.get()), writer, at.since_start())
            });
            records.push(record);
        }
        records
    }

    fn queue_records(&self) -> Vec<QueueRecord> {
        let queues = self.keys.queues.iter();
        queues
            .map(|(key, length)| QueueRecord {
                key: (**key).into(),
                length: *length,
            })
            .collect()
    }
}
