//! Records the changes of requests, and the names whose changes a crash would undo.
//!
//! Effects gather in a batch, which has a position, until the batch before it is durable. A reply depends on the
//! newest position among the names that its request read, and on earlier writes of the same connection.
//!
//! Each name stores its last effect, so that a further value for it replaces the value in the batch: a batch is kept
//! as a whole or not at all, and intermediate values are never shown.

use std::cell::Cell;
use std::collections::HashMap;

use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnId;
use crate::state::hashing::KeyHash;

/// A map with room for at most this many names keeps its memory.
const KEPT_NAMES: usize = 4096;

/// The place of an effect in the sequence of all effects since the start: the bytes before it. Older effects have
/// smaller marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::state) struct Mark(u64);

#[derive(Debug)]
pub(crate) struct Recorder {
    writer: BatchWriter,
    /// The mark at which the gathering batch begins, and the mark at which the previous batch begins. They are equal
    /// if the previous batch is durable.
    gathers_from: Mark,
    undurable_from: Mark,
    /// The position of the batch that gathers.
    gathering: u64,
    /// Everything up to this position is durable.
    durable: u64,
    /// The position of each connection's last write, by slot.
    written_by: Vec<u64>,
    /// The last effects of names that were removed and are not durable, as those have no slot.
    removed: HashMap<Box<[u8]>, Mark, KeyHash>,
    /// The number of changes so far.
    changes: u64,
    /// Whose request is being handled.
    requester: Option<ConnId>,
    /// The position on which the replies of the current request depend; 0 if a crash would undo nothing that they
    /// show.
    dependency: Cell<u64>,
}

impl Recorder {
    /// Everything up to this position is durable.
    pub(super) fn new(durable: u64) -> Self {
        // Names without an effect have a smaller one.
        let first = Mark(1);
        Self {
            writer: BatchWriter::default(),
            gathers_from: first,
            undurable_from: first,
            gathering: durable + 1,
            durable,
            written_by: Vec::new(),
            removed: HashMap::default(),
            changes: 0,
            requester: None,
            dependency: Cell::new(0),
        }
    }

    /// A request begins. Its replies acknowledge all writes before it of the same connection (docs/spec/wire.md, ORDER 3).
    #[inline]
    pub(super) fn begin(&mut self, requester: ConnId) {
        self.requester = Some(requester);
        // Perhaps by a connection that had the slot before. Then it waits for one batch without need.
        let written = self.written_by.get(requester.slot() as usize).copied();
        let undurable = written.filter(|position| *position > self.durable);
        self.dependency.set(undurable.unwrap_or(0));
    }

    /// Something begins that no request asks for, and that may show all names.
    pub(super) fn begin_event(&mut self) {
        self.requester = None;
        self.dependency.set(0);
        self.look_at_all();
    }

    /// The request reads this name, whose last effect is `last`.
    #[inline]
    pub(in crate::state) fn look(&self, key: &[u8], last: Mark) {
        if self.dependency.get() == self.gathering {
            return;
        }
        self.depend_on(last);
        if !self.removed.is_empty()
            && let Some(last) = self.removed.get(key)
        {
            self.depend_on(*last);
        }
    }

    #[inline]
    fn depend_on(&self, effect: Mark) {
        let position = if effect >= self.gathers_from {
            self.gathering
        } else if effect >= self.undurable_from {
            self.gathering - 1
        } else {
            return;
        };
        self.dependency.set(self.dependency.get().max(position));
    }

    /// The request reads all names.
    pub(super) fn look_at_all(&self) {
        self.dependency
            .set(self.newest().max(self.dependency.get()));
        if self.dependency.get() <= self.durable {
            self.dependency.set(0);
        }
    }

    /// The request changes a name, whose last effect was `last`. Returns the new last effect.
    #[inline]
    #[must_use]
    pub(in crate::state) fn record(&mut self, last: Mark, effect: Effect<'_>) -> Mark {
        self.changes += 1;
        self.dependency.set(self.gathering);
        if let Some(requester) = self.requester {
            let slot = requester.slot() as usize;
            if slot >= self.written_by.len() {
                self.written_by.resize(slot + 1, 0);
            }
            self.written_by[slot] = self.gathering;
        }
        if let Effect::Put { value, .. } = effect
            && let Some(at) = last.0.checked_sub(self.gathers_from.0)
            && self.writer.replace(at as usize, value)
        {
            return last;
        }
        Mark(self.gathers_from.0 + self.writer.push(effect) as u64)
    }

    /// The request changes something that has no name.
    pub(super) fn record_unnamed(&mut self, effect: Effect<'_>) {
        let _ = self.record(Mark::default(), effect);
    }

    /// A name that was changed is removed, with this last effect.
    pub(in crate::state) fn removed(&mut self, key: &[u8], last: Mark) {
        if last >= self.undurable_from {
            self.removed.insert(key.into(), last);
        }
    }

    /// Records an event of a session, which no reply shows, together with the changes of the current request.
    pub(crate) fn record_session(&mut self, effect: Effect<'_>) {
        self.writer.push(effect);
    }

    /// Batches that begin from now on have this version of the format.
    pub(crate) const fn set_format(&mut self, format: u8) {
        self.writer.set_format(format);
    }

    /// The number of changes so far, without those of sessions.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// The position on which the last request depends, and with it every reply to it.
    pub(crate) const fn dependency(&self) -> u64 {
        self.dependency.get()
    }

    /// The bytes of effects that are in no batch yet.
    pub(crate) const fn gathered_bytes(&self) -> usize {
        self.writer.len()
    }

    /// The newest position on which any reply could depend now.
    pub(crate) const fn newest(&self) -> u64 {
        if self.writer.is_empty() {
            self.gathering - 1
        } else {
            self.gathering
        }
    }

    /// Whether there is a batch, and no other is being appended.
    pub(crate) const fn has_batch(&self) -> bool {
        self.durable + 1 == self.gathering && !self.writer.is_empty()
    }

    /// The next batch and its position, if [there is one](Self::has_batch). Takes memory for the one after it.
    pub(crate) fn take_batch(&mut self, memory: &mut Vec<u8>) -> Option<(u64, Vec<u8>)> {
        if !self.has_batch() {
            return None;
        }
        let position = self.gathering;
        self.gathering += 1;
        self.undurable_from = self.gathers_from;
        self.gathers_from.0 += self.writer.len() as u64;
        let batch = self.writer.finish(position, std::mem::take(memory));
        Some((position, batch))
    }

    /// The batch that was taken last is durable.
    pub(crate) fn appended(&mut self) {
        self.durable = self.gathering - 1;
        self.undurable_from = self.gathers_from;
        self.removed.retain(|_, last| *last >= self.undurable_from);
        self.removed.shrink_to(KEPT_NAMES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::batch::effects;

    const WRITER: ConnId = ConnId(1);
    const READER: ConnId = ConnId(2);

    /// Names with their last effects.
    #[derive(Default)]
    struct Names(HashMap<&'static [u8], Mark>);

    impl Names {
        fn put(&mut self, recorder: &mut Recorder, key: &'static [u8], value: &[u8]) {
            recorder.begin(WRITER);
            let last = self.0.entry(key).or_default();
            *last = recorder.record(*last, Effect::Put { key, value });
        }

        fn look(&self, recorder: &mut Recorder, key: &[u8]) -> u64 {
            recorder.begin(READER);
            self.look_too(recorder, key)
        }

        fn look_too(&self, recorder: &Recorder, key: &[u8]) -> u64 {
            recorder.look(key, self.0.get(key).copied().unwrap_or_default());
            recorder.dependency()
        }
    }

    #[test]
    fn a_look_depends_on_the_newest_change_that_is_not_durable() {
        let (recorder, names) = (&mut Recorder::new(6), &mut Names::default());
        let memory = &mut Vec::new();
        assert_eq!(recorder.take_batch(memory), None);
        names.put(recorder, b"a", b"");
        assert_eq!(names.look(recorder, b"a"), 7);
        assert_eq!(names.look(recorder, b"b"), 0);
        let (position, _) = recorder.take_batch(memory).expect("a batch");
        assert_eq!((position, recorder.newest()), (7, 7));
        names.put(recorder, b"b", b"");
        assert_eq!(recorder.take_batch(memory), None, "one at a time");
        assert_eq!(names.look(recorder, b"a"), 7);
        assert_eq!(names.look(recorder, b"b"), 8);
        assert_eq!(names.look_too(recorder, b"a"), 8, "the newest of two");
        recorder.begin_event();
        assert_eq!((recorder.dependency(), recorder.newest()), (8, 8));
        names.put(recorder, b"a", b"");
        assert_eq!(names.look(recorder, b"a"), 8, "changed again");
        assert_eq!(names.look(recorder, b"c"), 0);
        recorder.begin(WRITER);
        assert_eq!(recorder.dependency(), 8, "a reply acknowledges the write");

        recorder.appended();
        assert_eq!(names.look(recorder, b"a"), 8);
        assert_eq!(names.look(recorder, b"b"), 8);
        let (position, _) = recorder.take_batch(memory).expect("a batch");
        assert_eq!(position, 8);
        recorder.begin_event();
        assert_eq!(recorder.dependency(), 8);
        recorder.appended();
        assert_eq!(names.look(recorder, b"a"), 0);
        assert_eq!(names.look(recorder, b"b"), 0);
        recorder.begin_event();
        assert_eq!(recorder.dependency(), 0);
        recorder.begin(WRITER);
        assert_eq!(recorder.dependency(), 0);
    }

    #[test]
    fn a_removed_name_is_known_until_its_removal_is_durable() {
        let (recorder, names) = (&mut Recorder::new(0), &mut Names::default());
        let memory = &mut Vec::new();
        names.put(recorder, b"a", b"");
        let _ = recorder.take_batch(memory).expect("a batch");
        recorder.begin(WRITER);
        let last = recorder.record(names.0[&b"a"[..]], Effect::Delete { key: b"a" });
        names.0.clear();
        recorder.removed(b"a", last);
        recorder.appended();
        assert_eq!(names.look(recorder, b"a"), 2);
        let _ = recorder.take_batch(memory).expect("a batch");
        names.put(recorder, b"a", b"");
        assert_eq!(names.look(recorder, b"a"), 3, "written again");
        recorder.appended();
        names.0.clear();
        assert_eq!(names.look(recorder, b"a"), 0, "as no slot says more");
        assert!(recorder.removed.is_empty());
    }

    #[test]
    fn a_batch_has_the_last_of_values_of_one_length() {
        let (recorder, names) = (&mut Recorder::new(0), &mut Names::default());
        names.put(recorder, b"old", b"1");
        let _ = recorder.take_batch(&mut Vec::new()).expect("a batch");
        recorder.appended();
        for value in [&b"1"[..], b"2", b"10", b"11"] {
            names.put(recorder, b"a", value);
            names.put(recorder, b"b", b"3");
            names.put(recorder, b"old", value);
        }
        assert_eq!(recorder.changes(), 13);
        let (position, batch) = recorder.take_batch(&mut Vec::new()).expect("a batch");
        let put = |key, value| Effect::Put { key, value };
        let read: Result<Vec<_>, _> = effects(position, &batch).expect("intact").collect();
        let expected = [
            put(b"a", &b"2"[..]),
            put(b"b", b"3"),
            put(b"old", b"2"),
            put(b"a", b"11"),
            put(b"old", b"11"),
        ];
        assert_eq!(read.expect("intact"), expected);
    }
}
