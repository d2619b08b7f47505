//! A model of the store's server, as far as a snapshot shows it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::Opcode;
use c10d_store::{
    Announcement, CloseReason, Closed, ConnectionId, ConnectionRecord, KeyRecord, LastRequest,
    PendingWait, Snapshot, Version,
};

use crate::announced::AnnouncedNode;

/// How many closed connections a snapshot has at most.
const CLOSED_MAX: usize = 50_000;

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) now: Duration,
    connections: BTreeMap<ConnectionId, ConnectionRecord>,
    closed: Vec<ConnectionRecord>,
    keys: BTreeMap<Vec<u8>, KeyRecord>,
    announcements: BTreeMap<ConnectionId, Announcement>,
    next_connection: u64,
    next_version: u64,
    /// Connections that may be waiting for a key, by key.
    waiters: BTreeMap<Vec<u8>, Vec<ConnectionId>>,
}

impl Store {
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn connect(&mut self, peer: SocketAddr, nonce: u32) -> ConnectionId {
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let mut record = ConnectionRecord::new(id, peer, self.now);
        record.nonce = Some(nonce);
        record.requests = 2;
        self.connections.insert(id, record);
        id
    }

    pub(crate) fn close(&mut self, id: ConnectionId) {
        if let Some(mut record) = self.connections.remove(&id) {
            record.closed = Some(Closed {
                at: self.now,
                reason: CloseReason::Peer,
            });
            self.closed.push(record);
            if self.closed.len() > CLOSED_MAX {
                self.closed.remove(0);
            }
        }
    }

    /// The relay of a connection has lost its own.
    pub(crate) fn set_away(&mut self, id: ConnectionId) {
        let record = self.connections.get_mut(&id).expect("an open connection");
        record.away_since = Some(self.now);
    }

    pub(crate) fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub(crate) fn is_waiting(&self, id: ConnectionId) -> bool {
        self.connections
            .get(&id)
            .is_some_and(|record| record.wait.is_some())
    }

    fn request(&mut self, id: ConnectionId, command: Opcode, key: &str, keys: usize, number: i64) {
        let now = self.now;
        let record = self.connections.get_mut(&id).expect("an open connection");
        record.requests += 1;
        record.last = Some(LastRequest {
            command,
            key: key.as_bytes()[..key.len().min(96)].into(),
            is_key_cut: key.len() > 96,
            key_count: keys,
            number,
            at: now,
        });
    }

    pub(crate) fn set(&mut self, id: ConnectionId, key: &str, value: &[u8]) {
        self.request(id, Opcode::Set, key, 1, 0);
        self.write(id, key, value);
    }

    pub(crate) fn add(&mut self, id: ConnectionId, key: &str, number: i64) -> i64 {
        self.request(id, Opcode::Add, key, 1, number);
        let before = self.keys.get(key.as_bytes());
        let before = before.map_or(0, |record| {
            String::from_utf8_lossy(&record.value_head)
                .parse::<i64>()
                .expect("a number")
        });
        self.write(id, key, (before + number).to_string().as_bytes());
        before + number
    }

    fn write(&mut self, id: ConnectionId, key: &str, value: &[u8]) {
        self.next_version += 1;
        let mut record = KeyRecord::new(
            key.as_bytes(),
            value,
            Version(self.next_version),
            id,
            self.now,
        );
        if let Some(before) = self.keys.get(key.as_bytes()) {
            record.previous = Some((before.version, before.writer, before.written));
        }
        self.keys.insert(key.as_bytes().to_vec(), record);
        for waiter in self.waiters.remove(key.as_bytes()).unwrap_or_default() {
            let Some(connection) = self.connections.get_mut(&waiter) else {
                continue;
            };
            let Some(wait) = &mut connection.wait else {
                continue;
            };
            wait.missing.retain(|missing| **missing != *key.as_bytes());
            wait.missing_count -= 1;
            if wait.missing_count == 0 {
                connection.wait = None;
            }
        }
    }

    /// Whether all keys exist; otherwise the connection waits for them.
    pub(crate) fn wait(&mut self, id: ConnectionId, keys: &[String]) -> bool {
        self.request(id, Opcode::Wait, &keys[0], keys.len(), 0);
        let missing: Vec<&String> = keys
            .iter()
            .filter(|key| !self.keys.contains_key(key.as_bytes()))
            .collect();
        if missing.is_empty() {
            return true;
        }
        let wait = PendingWait {
            command: Opcode::Wait,
            since: self.now,
            missing: missing
                .iter()
                .take(16)
                .map(|key| Arc::from(key.as_bytes()))
                .collect(),
            missing_count: missing.len(),
        };
        for key in missing {
            self.waiters
                .entry(key.as_bytes().to_vec())
                .or_default()
                .push(id);
        }
        self.connections
            .get_mut(&id)
            .expect("an open connection")
            .wait = Some(wait);
        false
    }

    /// Makes the connection's wait one for a change.
    pub(crate) fn watch(&mut self, id: ConnectionId) {
        let record = self.connections.get_mut(&id).expect("an open connection");
        if let Some(wait) = &mut record.wait {
            wait.command = Opcode::WaitChange;
        }
    }

    pub(crate) fn barrier(&mut self, id: ConnectionId, key: &str, clients: i64) {
        self.request(id, Opcode::Barrier, key, 1, clients);
        let wait = PendingWait {
            command: Opcode::Barrier,
            since: self.now,
            missing: vec![Arc::from(key.as_bytes())],
            missing_count: 1,
        };
        self.connections
            .get_mut(&id)
            .expect("an open connection")
            .wait = Some(wait);
    }

    pub(crate) fn cancel_wait(&mut self, id: ConnectionId) {
        let record = self.connections.get_mut(&id).expect("an open connection");
        record.wait = None;
        record.requests += 1;
        let now = self.now;
        let last = record.last.as_mut().expect("a wait");
        last.command = Opcode::CancelWait;
        last.at = now;
    }

    pub(crate) fn get(&mut self, id: ConnectionId, keys: &[String]) {
        let command = if keys.len() == 1 {
            Opcode::Get
        } else {
            Opcode::MultiGet
        };
        self.request(id, command, &keys[0], keys.len(), 0);
        for key in keys {
            let version = self.keys[key.as_bytes()].version;
            let record = self.connections.get_mut(&id).expect("an open connection");
            record.reads.insert(0, version);
            record.reads.truncate(8);
        }
    }

    pub(crate) fn announce(&mut self, id: ConnectionId, node: &AnnouncedNode) {
        self.announce_bytes(id, &serde_json::to_vec(node).expect("plain values"));
    }

    pub(crate) fn announce_bytes(&mut self, id: ConnectionId, bytes: &[u8]) {
        let announcement = Announcement {
            connection: id,
            at: self.now,
            bytes: bytes.into(),
        };
        self.announcements.insert(id, announcement);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.now = self.now;
        snapshot.connections = self.connections.values().cloned().collect();
        snapshot.closed = self.closed.clone();
        snapshot.keys = self.keys.values().cloned().collect();
        snapshot.announcements = self.announcements.values().cloned().collect();
        snapshot
    }
}
