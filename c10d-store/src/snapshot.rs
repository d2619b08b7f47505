//! The state of a server's connections and keys at one moment, as plain values.
//!
//! Independent of ranks and of the meaning of keys, which `c10d-inspect` derives from a snapshot. Times count from
//! the start of the server.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use c10d_socket::printable;

use crate::message::{CloseReason, ConnectionId};
use crate::wire::Opcode;

/// The state of a server at one moment: all parts belong to the same moment, [`now`](Self::now).
///
/// It has the names of keys, and only the first bytes of values, which are for decoding and must not be shown: they
/// can be secret, and PyTorch's contain uninitialized memory.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The moment of the snapshot, since the server's start.
    pub now: Duration,
    /// The server's start by the system's clock.
    pub started: Option<SystemTime>,
    /// The time that the server's thread has spent on this snapshot, in all slices.
    pub server_time: Duration,
    /// Whether a journal keeps the store, so that another server can continue it.
    pub is_kept: bool,
    /// The open connections, in the order in which they were accepted.
    pub connections: Vec<ConnectionRecord>,
    /// The connections that closed last, in the order of closing. The server keeps a bounded number.
    pub closed: Vec<ConnectionRecord>,
    /// The keys that have a value, in no particular order.
    pub keys: Vec<KeyRecord>,
    /// The number of keys that exceed the limit of a snapshot and are therefore missing.
    pub keys_left_out: usize,
    /// The queues that are not empty.
    pub queues: Vec<QueueRecord>,
    /// The process groups whose members agree through the server, in the order of their names.
    pub groups: Vec<GroupRecord>,
    /// The announcements of launchers: the last announcement of each connection, including closed connections.
    pub announcements: Vec<Announcement>,
    /// Totals since the server's start.
    pub counters: Counters,
}

/// A connection, open or closed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionRecord {
    /// The id of the connection.
    pub id: ConnectionId,
    /// The address of the other end, from the server's point of view.
    pub peer: SocketAddr,
    /// The nonce of its last PING. PyTorch's clients send their process id, as seen in their own process
    /// namespace; this crate's send [`CAPABILITY_NONCE`](crate::unstable::CAPABILITY_NONCE).
    pub nonce: Option<u32>,
    /// The time when the connection was accepted, since the server's start.
    pub opened: Duration,
    /// The number of requests so far.
    pub requests: u64,
    /// The last request of the connection; `None` if it has sent only the handshake.
    pub last: Option<LastRequest>,
    /// The wait of the connection; for a closed connection, its wait at the time when it closed.
    pub wait: Option<PendingWait>,
    /// The versions of the values that the connection read last, the newest first (at most 8).
    pub reads: Vec<Version>,
    /// When and why the connection closed; `None` while it is open.
    pub closed: Option<Closed>,
    /// Whether this client survives a server restart, because it uses a relay or
    /// [`with_resume`](crate::TcpStoreOptions::with_resume).
    pub resumes: bool,
    /// The time when the client lost its connection to the server, since the server's start, if it uses a relay or
    /// [`with_resume`](crate::TcpStoreOptions::with_resume) and is currently disconnected. `None` if it has a
    /// connection, or is closed.
    pub away_since: Option<Duration>,
}

impl ConnectionRecord {
    /// Creates the record of an open connection that has sent nothing.
    #[must_use]
    pub const fn new(id: ConnectionId, peer: SocketAddr, opened: Duration) -> Self {
        Self {
            id,
            peer,
            nonce: None,
            opened,
            requests: 0,
            last: None,
            wait: None,
            reads: Vec::new(),
            closed: None,
            resumes: false,
            away_since: None,
        }
    }
}

/// The number of one write of one value; later writes to the same server have greater numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);

/// The last request of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRequest {
    /// The command on the wire; an operation of the client may need several commands.
    pub command: Opcode,
    /// The first key of the request, cut to 96 bytes; for a command without keys, the key of the previous request.
    pub key: Box<[u8]>,
    /// Whether the key is cut.
    pub is_key_cut: bool,
    /// The number of keys in the request.
    pub key_count: usize,
    /// The number of an ADD, or the world size of a BARRIER; 0 for other commands.
    pub number: i64,
    /// The time when the request arrived, since the server's start.
    pub at: Duration,
}

/// A wait that the server has not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingWait {
    /// The command: WAIT, BARRIER, WAIT_GET, WAIT_CHANGE or QUEUE_TAKE.
    pub command: Opcode,
    /// The time when the wait arrived, since the server's start.
    pub since: Duration,
    /// The missing keys, at most 16, in the order of the request.
    pub missing: Vec<Arc<[u8]>>,
    /// The number of all missing keys.
    pub missing_count: usize,
}

/// The time and the reason of the close of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// The time when the connection closed, since the server's start.
    pub at: Duration,
    /// The reason why the connection closed.
    pub reason: CloseReason,
}

/// A key that has a value.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyRecord {
    /// The key on the wire, including the `/` that clients put first.
    pub key: Box<[u8]>,
    /// The first bytes of the value, at most 256. For decoding by shape only.
    pub value_head: Box<[u8]>,
    /// The length of the whole value in bytes.
    pub value_len: usize,
    /// The current value's number.
    pub version: Version,
    /// The time when the current value was written, since the server's start.
    pub written: Duration,
    /// The connection that wrote the current value.
    pub writer: ConnectionId,
    /// The previous value: its number, its writer, and when it was written. `None` for the first value.
    pub previous: Option<(Version, ConnectionId, Duration)>,
}

impl KeyRecord {
    /// Creates the record of a key that was written once.
    #[must_use]
    pub fn new(
        key: &[u8],
        value: &[u8],
        version: Version,
        writer: ConnectionId,
        written: Duration,
    ) -> Self {
        Self {
            key: key.into(),
            value_head: value[..value.len().min(VALUE_HEAD_BYTES_MAX)].into(),
            value_len: value.len(),
            version,
            written,
            writer,
            previous: None,
        }
    }
}

/// The most bytes of a value in a snapshot: enough for the fixed part of an address that gloo publishes.
pub const VALUE_HEAD_BYTES_MAX: usize = 256;

impl std::fmt::Debug for KeyRecord {
    /// The value's length only: the bytes can be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRecord")
            .field("key", &printable(&self.key, usize::MAX))
            .field("value_len", &self.value_len)
            .field("version", &self.version)
            .field("writer", &self.writer)
            .field("previous", &self.previous)
            .finish_non_exhaustive()
    }
}

/// A queue that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRecord {
    /// The queue's key.
    pub key: Box<[u8]>,
    /// The number of elements.
    pub length: usize,
}

/// A process group whose members agree through the server (docs/spec/membership.md).
#[derive(Debug, Clone)]
pub struct GroupRecord {
    /// The name, as a key.
    pub name: Box<[u8]>,
    /// The status of the group, which `c10d_membership::status_of` reads. The store does not look into it.
    pub status: Arc<dyn Any + Send + Sync>,
}

/// A launcher's announcement about its workers (docs/spec/wire-extensions.md, ANNOUNCE). The store does not look into
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The connection that sent it. [`Snapshot::closed`] shows whether it is still valid.
    pub connection: ConnectionId,
    /// The time when the announcement arrived, since the server's start.
    pub at: Duration,
    /// The announced bytes.
    pub bytes: Arc<[u8]>,
}

impl std::fmt::Debug for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcement")
            .field("connection", &self.connection)
            .field("at", &self.at)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// Totals since the server's start, and current numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests by command, in the order of the command bytes; unused commands are omitted.
    pub requests: Vec<(Opcode, u64)>,
    /// Connections that are open.
    pub connections: usize,
    /// The number of accepted connections.
    pub opened: u64,
    /// Connections closed by the peer.
    pub closed_by_peer: u64,
    /// Connections closed by an error of the system.
    pub closed_by_failure: u64,
    /// Connections closed because of an invalid request or a late handshake.
    pub closed_by_refusal: u64,
    /// Connections turned away because a limit was reached.
    pub rejected: u64,
    /// Connections handed over because they speak HTTP.
    pub handed_over: u64,
    /// Keys that have a value.
    pub keys: usize,
    /// The bytes of all values and keys.
    pub stored_bytes: usize,
    /// Connections that wait.
    pub waits: usize,
    /// Waits that their clients have cancelled.
    pub waits_cancelled: u64,
    /// Bytes received from clients.
    pub received_bytes: u64,
    /// Bytes sent to clients.
    pub sent_bytes: u64,
}
