//! The activity of one connection so far.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::message::ConnectionId;
use crate::message::Outline;
use crate::moment::Moment;
use crate::snapshot::{ConnectionRecord, LastRequest, Version};
use crate::wire::{Opcode, REFUSAL_NONCE};

/// The bytes kept of the last request's first key. The keys of PyTorch's groups are shorter.
const KEY_BYTES_MAX: usize = 96;

/// The versions kept of the values read last: a power of two.
const READS_MAX: usize = 8;

/// The identity and the last steps of one connection. Inline, so that a request allocates nothing; a test keeps the
/// memory of an entry within 256 bytes. The fields that most requests change are the first fields, so that they share
/// a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Activity {
    last: Last,
    key: [u8; KEY_BYTES_MAX],
    origin: Origin,
    /// A ring of versions, 0 for none.
    reads: [u64; READS_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Last {
    id: ConnectionId,
    requests: u64,
    /// The time when the last request arrived.
    at: Moment,
    number: i64,
    key_count: u32,
    /// The command of the last request; `None` before the first request.
    command: Option<Opcode>,
    key_len: u8,
    is_key_cut: bool,
    next_read: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    opened: Moment,
    peer: SocketAddr,
    nonce: u32,
    has_nonce: bool,
    resumes: bool,
}

/// The activity of a closed connection. Shares equal parts with the activity of another connection: ranks often end
/// alike, at the same step.
#[derive(Debug, Clone)]
pub(super) struct PastActivity {
    last: Last,
    origin: Origin,
    key: Arc<[u8]>,
    /// The newest first.
    reads: Arc<[Version]>,
}

impl Activity {
    pub(super) const fn new(id: ConnectionId, peer: SocketAddr, opened: Moment) -> Self {
        Self {
            last: Last {
                id,
                requests: 0,
                at: opened,
                number: 0,
                key_count: 0,
                command: None,
                key_len: 0,
                is_key_cut: false,
                next_read: 0,
            },
            key: [0; KEY_BYTES_MAX],
            origin: Origin {
                opened,
                peer,
                nonce: 0,
                has_nonce: false,
                resumes: false,
            },
            reads: [0; READS_MAX],
        }
    }

    pub(super) const fn id(&self) -> ConnectionId {
        self.last.id
    }

    /// When the last request arrived, or otherwise when the connection was opened. A PING does not count.
    pub(super) const fn last_request(&self) -> Moment {
        self.last.at
    }

    pub(super) const fn peer(&self) -> SocketAddr {
        self.origin.peer
    }

    /// Records a request. A request without a key keeps the key of the previous request, which shows the purpose of
    /// the connection. A PING is counted only: it belongs to the handshake.
    #[inline]
    pub(super) fn note_request(&mut self, request: &Outline<'_>, now: Moment) {
        let last = &mut self.last;
        last.requests += 1;
        if request.command == Opcode::Ping && request.nonce == REFUSAL_NONCE {
            return;
        }
        if request.command == Opcode::Ping {
            self.origin.nonce = request.nonce;
            self.origin.has_nonce = true;
            return;
        }
        last.command = Some(request.command);
        last.at = now;
        last.number = request.number;
        last.key_count = u32::try_from(request.key_count).unwrap_or(u32::MAX);
        if let Some(key) = request.key {
            let kept = key.len().min(KEY_BYTES_MAX);
            self.key[..kept].copy_from_slice(&key[..kept]);
            last.key_len = kept as u8;
            last.is_key_cut = kept < key.len();
        }
    }

    /// Records that it is a client of a session.
    pub(super) const fn note_resumes(&mut self) {
        self.origin.resumes = true;
    }

    /// Records that the connection was sent the value with this version.
    #[inline]
    pub(super) const fn note_read(&mut self, version: u64) {
        let next = &mut self.last.next_read;
        self.reads[*next as usize % READS_MAX] = version;
        *next = next.wrapping_add(1);
    }

    /// The record of an open connection that waits for nothing.
    pub(super) fn to_record(self) -> ConnectionRecord {
        record(self.last, self.origin, self.key(), self.reads().collect())
    }

    /// This activity once the connection has closed, after the one with this activity.
    pub(super) fn ended(&self, before: Option<&PastActivity>) -> PastActivity {
        let key = before.map(|before| &before.key);
        let reads = before.map(|before| &before.reads);
        PastActivity {
            last: self.last,
            origin: self.origin,
            key: match key {
                Some(key) if **key == *self.key() => Arc::clone(key),
                _ => self.key().into(),
            },
            reads: match reads {
                Some(reads) if self.reads().eq(reads.iter().copied()) => Arc::clone(reads),
                _ => self.reads().collect(),
            },
        }
    }

    fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.last.key_len)]
    }

    /// The versions of the values read last, the newest first.
    fn reads(&self) -> impl Iterator<Item = Version> {
        let next = usize::from(self.last.next_read);
        let newest_first =
            (1..=READS_MAX).map(move |back| self.reads[next.wrapping_sub(back) % READS_MAX]);
        newest_first
            .take_while(|version| *version != 0)
            .map(Version)
    }
}

impl PastActivity {
    pub(super) const fn id(&self) -> ConnectionId {
        self.last.id
    }

    /// The record of a connection that waits for nothing.
    pub(super) fn to_record(&self) -> ConnectionRecord {
        record(self.last, self.origin, &self.key, self.reads.to_vec())
    }
}

fn record(last: Last, origin: Origin, key: &[u8], reads: Vec<Version>) -> ConnectionRecord {
    let mut record = ConnectionRecord::new(last.id, origin.peer, origin.opened.since_start());
    record.nonce = origin.has_nonce.then_some(origin.nonce);
    record.requests = last.requests;
    record.last = last.command.map(|command| LastRequest {
        command,
        key: key.into(),
        is_key_cut: last.is_key_cut,
        key_count: last.key_count as usize,
        number: last.number,
        at: last.at.since_start(),
    });
    record.resumes = origin.resumes;
    record.reads = reads;
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline<'a>(command: Opcode, key: Option<&'a [u8]>) -> Outline<'a> {
        Outline {
            command,
            key,
            key_count: usize::from(key.is_some()),
            number: 0,
            nonce: 0,
        }
    }

    fn new_activity() -> Activity {
        let peer = ([127, 0, 0, 1], 4711).into();
        Activity::new(ConnectionId(7), peer, Moment::default())
    }

    #[test]
    fn a_request_without_a_key_keeps_the_key_of_the_one_before() {
        let mut activity = new_activity();
        assert_eq!(activity.to_record().last, None);
        let long = [b'k'; KEY_BYTES_MAX + 1];
        let at = |seconds| Moment::from(std::time::Duration::from_secs(seconds));
        activity.note_request(&outline(Opcode::Wait, Some(&long)), at(3));
        activity.note_request(&outline(Opcode::CancelWait, None), at(4));
        let mut ping = outline(Opcode::Ping, None);
        ping.nonce = 4711;
        activity.note_request(&ping, at(5));

        let record = activity.to_record();
        assert_eq!((record.requests, record.nonce), (3, Some(4711)));
        let last = record.last.expect("a request");
        assert_eq!(last.command, Opcode::CancelWait);
        assert_eq!((&*last.key, last.is_key_cut), (&long[1..], true));
        assert_eq!((last.key_count, last.at), (0, at(4).since_start()));

        activity.note_request(&outline(Opcode::Get, Some(b"")), at(6));
        let last = activity.to_record().last.expect("a request");
        assert_eq!((&*last.key, last.is_key_cut), (&b""[..], false));
    }

    #[test]
    fn the_last_eight_reads_are_kept_with_the_newest_first() {
        let mut activity = new_activity();
        assert_eq!(activity.to_record().reads, []);
        activity.note_read(5);
        activity.note_read(3);
        assert_eq!(activity.to_record().reads, [Version(3), Version(5)]);
        for version in 10..300 {
            activity.note_read(version);
        }
        let expected: Vec<Version> = (292..300).rev().map(Version).collect();
        assert_eq!(activity.to_record().reads, expected);
    }
}
