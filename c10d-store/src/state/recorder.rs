//! Records what requests change, and which names have changes that a crash would take back.
//!
//! Effects gather in a batch, which has a position, until the batch before it is durable. A reply depends on the
//! newest position among the names that its request looked at, and the writes before it of the same connection.

use std::collections::HashSet;
use std::sync::Arc;

use super::conn_hash::ConnHash;
use super::key_hash::KeyHash;
use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnId;

/// A set with room for at most this many keeps its memory.
const KEPT_NAMES: usize = 4096;

/// What a batch changes, and by whose requests.
#[derive(Debug, Default)]
struct Changes {
    names: HashSet<Arc<[u8]>, KeyHash>,
    writers: HashSet<ConnId, ConnHash>,
}

impl Changes {
    fn clear(&mut self) {
        self.names.clear();
        self.names.shrink_to(KEPT_NAMES);
        self.writers.clear();
        self.writers.shrink_to(KEPT_NAMES);
    }
}

#[derive(Debug)]
pub(super) struct Recorder {
    writer: BatchWriter,
    /// The position of the batch that gathers.
    gathering: u64,
    gathered: Changes,
    /// Those of the batch before it, while that is being appended.
    appending: Changes,
    is_appending: bool,
    /// The number of changes so far.
    changes: u64,
    /// Whose request is being handled.
    requester: Option<ConnId>,
    /// What the replies of the current request depend on; 0 if on nothing that a crash would take back.
    dependency: u64,
}

impl Recorder {
    /// Everything up to this position is durable.
    pub(super) fn new(durable: u64) -> Self {
        Self {
            writer: BatchWriter::default(),
            gathering: durable + 1,
            gathered: Changes::default(),
            appending: Changes::default(),
            is_appending: false,
            changes: 0,
            requester: None,
            dependency: 0,
        }
    }

    /// A request begins. Its replies acknowledge all writes before it of the same connection (docs/wire.md, ORDER 3).
    pub(super) fn begin(&mut self, requester: ConnId) {
        self.requester = Some(requester);
        self.dependency = if self.gathered.writers.contains(&requester) {
            self.gathering
        } else if self.is_appending && self.appending.writers.contains(&requester) {
            self.gathering - 1
        } else {
            0
        };
    }

    /// Something begins that no request asks for, and that may show all names.
    pub(super) fn begin_event(&mut self) {
        self.requester = None;
        self.dependency = 0;
        self.look_at_all();
    }

    /// The request looks at this name, which need not exist.
    pub(super) fn look(&mut self, key: &[u8]) {
        if self.dependency == self.gathering {
            return;
        }
        if self.gathered.names.contains(key) {
            self.dependency = self.gathering;
        } else if self.is_appending && self.appending.names.contains(key) {
            self.dependency = self.gathering - 1;
        }
    }

    /// The request looks at all names.
    pub(super) fn look_at_all(&mut self) {
        if !self.writer.is_empty() {
            self.dependency = self.gathering;
        } else if self.is_appending {
            self.dependency = self.dependency.max(self.gathering - 1);
        }
    }

    /// The request changes this name.
    pub(super) fn record(&mut self, key: &[u8], effect: Effect<'_>) {
        self.writer.push(effect);
        self.changes += 1;
        if !self.gathered.names.contains(key) {
            self.gathered.names.insert(key.into());
        }
        if let Some(requester) = self.requester {
            self.gathered.writers.insert(requester);
        }
        self.dependency = self.gathering;
    }

    /// Something happens to a session, which no reply shows.
    pub(super) fn record_session(&mut self, effect: Effect<'_>) {
        self.writer.push(effect);
    }

    /// The number of changes so far, without those of sessions.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) const fn dependency(&self) -> u64 {
        self.dependency
    }

    /// The bytes that have gathered.
    pub(super) const fn gathered_bytes(&self) -> usize {
        self.writer.len()
    }

    /// What everything depends on that is known now.
    pub(super) const fn newest(&self) -> u64 {
        if self.writer.is_empty() {
            self.gathering - 1
        } else {
            self.gathering
        }
    }

    /// The next batch and its position, if there is one and no other is being appended. Takes memory for the one after it.
    pub(super) fn take_batch(&mut self, memory: &mut Vec<u8>) -> Option<(u64, Vec<u8>)> {
        if self.is_appending || self.writer.is_empty() {
            return None;
        }
        let position = self.gathering;
        self.is_appending = true;
        self.gathering += 1;
        std::mem::swap(&mut self.gathered, &mut self.appending);
        let batch = self.writer.finish(position, std::mem::take(memory));
        Some((position, batch))
    }

    /// The batch that was taken last is durable.
    pub(super) fn appended(&mut self) {
        self.is_appending = false;
        self.appending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: ConnId = ConnId(1);
    const READER: ConnId = ConnId(2);

    fn put(recorder: &mut Recorder, key: &[u8]) {
        recorder.begin(WRITER);
        recorder.record(key, Effect::Put { key, value: b"" });
    }

    fn look(recorder: &mut Recorder, key: &[u8]) -> u64 {
        recorder.begin(READER);
        recorder.look(key);
        recorder.dependency()
    }

    #[test]
    fn a_look_depends_on_the_newest_change_that_is_not_durable() {
        let mut recorder = Recorder::new(6);
        let mut memory = Vec::new();
        assert_eq!(recorder.take_batch(&mut memory), None);
        put(&mut recorder, b"a");
        assert_eq!(
            (look(&mut recorder, b"a"), look(&mut recorder, b"b")),
            (7, 0)
        );
        let (position, _) = recorder.take_batch(&mut memory).expect("a batch");
        assert_eq!((position, recorder.newest()), (7, 7));
        put(&mut recorder, b"b");
        assert_eq!(recorder.take_batch(&mut memory), None, "one at a time");
        assert_eq!(
            (look(&mut recorder, b"a"), look(&mut recorder, b"b")),
            (7, 8)
        );
        recorder.look(b"a");
        assert_eq!(recorder.dependency(), 8, "the newest of two");
        recorder.begin_event();
        assert_eq!((recorder.dependency(), recorder.newest()), (8, 8));
        put(&mut recorder, b"a");
        assert_eq!(look(&mut recorder, b"a"), 8, "changed again");
        assert_eq!(look(&mut recorder, b"c"), 0);
        recorder.begin(WRITER);
        assert_eq!(recorder.dependency(), 8, "a reply acknowledges the write");

        recorder.appended();
        assert_eq!(
            (look(&mut recorder, b"a"), look(&mut recorder, b"b")),
            (8, 8)
        );
        let (position, _) = recorder.take_batch(&mut memory).expect("a batch");
        assert_eq!(position, 8);
        recorder.begin_event();
        assert_eq!(recorder.dependency(), 8);
        recorder.appended();
        assert_eq!(
            (look(&mut recorder, b"a"), look(&mut recorder, b"b")),
            (0, 0)
        );
        recorder.begin_event();
        assert_eq!(recorder.dependency(), 0);
        recorder.begin(WRITER);
        assert_eq!(recorder.dependency(), 0);
    }
}
