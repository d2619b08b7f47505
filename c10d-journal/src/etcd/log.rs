//! The writing side of the log: the transactions that keep a batch or a snapshot, and the meaning of their answers.
//!
//! Pure: the caller carries out each request and passes on its answer, in order, one at a time.
//!
//! Every write compares the leader's key with this process's key, so it fails once there is a later leader. A write
//! that changes the head compares the head with this writer's last commit as well: a request that has timed out may
//! be carried out much later, after newer requests of the same leader. A commit whose outcome is not known is
//! repeated until it is; if it was carried out before, the head names it.

use std::collections::VecDeque;
use std::fmt::Write as _;

use super::layout::{Head, Layout, Leader, Snapshot, Takeover};
use super::loss::{Known, Stopped, nothing_of_a_store, record_of};
use super::message::{Answer, Compare, Failure, KeyValue, Op, Range, Request, Txn};

/// How many covered positions one commit deletes: more than it adds.
const DELETED_POSITIONS: u64 = 16;

/// Writes the log of a leader.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    layout: Layout,
    writer: u64,
    /// The value of the leader's key, and when it was made.
    leader: Vec<u8>,
    led_since: u64,
    /// The revision at which the head was last written; 0 if it is missing.
    head_revision: u64,
    head: Head,
    steps: VecDeque<Step>,
    snapshot: Option<InProgress>,
    snapshots: u64,
    /// The bytes of the batch that it has written last.
    batch_bytes: u64,
    /// Identifies the batch that it has written last.
    record: Option<(u64, u64)>,
    /// Positions of the log that a snapshot covers, from the first one to before the second.
    old: (u64, u64),
}

#[derive(Debug, Clone)]
struct InProgress {
    snapshot: Snapshot,
    /// The revision of the head when it was begun.
    head_revision: u64,
    /// The bytes of the batches after the snapshot.
    log_bytes: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// Compares the leader's key only.
    Write(Request),
    /// Changes the head to this one.
    Commit(Request, Head),
    /// A change of the head to a newer format, unless a candidate has arrived.
    Raise(Request, Head),
    /// A commit after a refused raise. If a copy of the raise is carried out late, it has changed the head to the
    /// second one given here.
    Settle(Request, Head, Head),
    /// Is of no consequence if it fails.
    Compact(Request),
}

impl Writer {
    /// The writer of a process that leads since this revision, with the head as it has found it afterwards. Its first
    /// step is to open the log.
    pub(crate) fn open(
        layout: Layout,
        leader: &Leader,
        led_since: u64,
        head: Head,
        head_revision: u64,
        takeover: Option<Takeover>,
    ) -> Self {
        let opened = Head {
            takeover,
            epoch: head.epoch + 1,
            writer: leader.writer,
            commit: 0,
            ..head.clone()
        };
        let mut this = Self {
            layout,
            writer: leader.writer,
            led_since,
            leader: leader.encode(),
            head_revision,
            head,
            steps: VecDeque::new(),
            snapshot: None,
            snapshots: 0,
            batch_bytes: 0,
            record: None,
            old: (0, 0),
        };
        let mut fence = this.fence();
        fence.push(Compare::Created {
            key: this.layout.lost(),
            revision: 0,
        });
        let put = put(this.layout.head(), opened.encode());
        let request = this.txn(fence, vec![put]);
        this.steps.push_back(Step::Commit(request, opened));
        this
    }

    /// The head after the last commit that is confirmed.
    pub(crate) const fn head(&self) -> &Head {
        &self.head
    }

    /// Up to where the log is confirmed.
    pub(crate) fn known(&self) -> Known {
        let record = self.record.filter(|(at, _)| *at == self.head.position);
        Known::of(&self.head, record.map(|(_, record)| record))
    }

    /// The request to carry out next. `None` once everything is durable.
    pub(crate) fn next(&self) -> Option<&Request> {
        self.steps.front().map(|step| match step {
            Step::Write(request)
            | Step::Commit(request, _)
            | Step::Raise(request, _)
            | Step::Settle(request, ..)
            | Step::Compact(request) => request,
        })
    }

    /// The answer to [`next`](Self::next).
    pub(crate) fn answered(&mut self, answer: Result<Answer, Failure>) -> Result<(), Stopped> {
        let Some(step) = self.steps.front() else {
            return Err(Stopped::Broken);
        };
        let (revision, succeeded, ranges) = match answer {
            _ if matches!(step, Step::Compact(_)) => {
                self.steps.pop_front();
                return Ok(());
            }
            // The same request again.
            Err(Failure::Unknown(_)) => return Ok(()),
            Err(Failure::Refused { code, message }) => {
                return Err(Stopped::Refused { code, message });
            }
            Ok(Answer::Txn {
                revision,
                succeeded,
                ranges,
            }) => (revision, succeeded, ranges),
            Ok(_) => return Err(Stopped::Broken),
        };
        let mut next = match step {
            Step::Commit(_, next) | Step::Raise(_, next) | Step::Settle(_, next, _) => Some(next),
            Step::Write(_) | Step::Compact(_) => None,
        };
        if !succeeded {
            let [leader, head] = &*ranges else {
                return Err(Stopped::Broken);
            };
            let leader = leader.first();
            if leader.is_none_or(|it| it.created != self.led_since || it.value != self.leader) {
                let leader = leader.and_then(|leader| Leader::parse(&leader.value));
                return Err(Stopped::Deposed(leader));
            }
            if next.is_none() {
                return Err(Stopped::Broken);
            }
            let head = head.first().ok_or(Stopped::Overwritten)?;
            if let Step::Raise(_, raised) = step
                && head.modified == self.head_revision
            {
                self.settle(raised.clone());
                return Ok(());
            }
            // It was carried out the first time.
            let is_found = |head: &KeyValue, next: &Head| head.value == next.encode();
            if let Step::Settle(_, _, raised) = step
                && is_found(head, raised)
            {
                next = Some(raised);
            }
            if !next.is_some_and(|next| is_found(head, next)) {
                return Err(Stopped::Overwritten);
            }
            self.head_revision = head.modified;
        } else if next.is_some() {
            self.head_revision = revision;
        }
        if let Some(head) = next.cloned() {
            self.head = head;
        }
        self.steps.pop_front();
        Ok(())
    }

    /// Changes the head to this format, which all candidates read that were listed at this revision, unless a further
    /// candidate was listed since.
    pub(crate) fn raise_format(&mut self, format: u8, listed_at: u64) {
        assert!(self.steps.is_empty(), "one commit at a time");
        let head = Head {
            format,
            ..self.next_head()
        };
        let (key, end) = self.layout.candidates();
        let revision = listed_at;
        let mut fence = self.fence();
        fence.push(Compare::NoneCreatedAfter { key, end, revision });
        let request = self.txn(fence, vec![put(self.layout.head(), head.encode())]);
        self.steps.push_back(Step::Raise(request, head));
    }

    /// A copy of a raise that was refused could be carried out late: the next commit rules that out.
    fn settle(&mut self, raised: Head) {
        let head = self.next_head();
        let put = put(self.layout.head(), head.encode());
        let request = self.txn(self.fence(), vec![put]);
        self.steps = VecDeque::from([Step::Settle(request, head, raised)]);
    }

    /// Keeps a batch: the one after the last.
    pub(crate) fn append(&mut self, position: u64, batch: &[u8]) {
        assert!(self.steps.is_empty(), "one commit at a time");
        assert_eq!(
            position,
            self.head.position + 1,
            "batches follow each other"
        );
        let part_bytes = self.layout.part_bytes;
        let (before, last) =
            batch.split_at(batch.len().saturating_sub(1) / part_bytes * part_bytes);
        let mut parts = 0;
        for part in before.chunks(part_bytes) {
            let key = self.layout.part(position, self.writer, parts);
            self.write(vec![put(key, part.to_vec())]);
            parts += 1;
        }
        let record = LogRecord {
            parts,
            writer: self.writer,
        };
        let value = record.encode(last);
        self.record = Some((position, record_of(&value)));
        let mut ops = vec![put(self.layout.log(position), value)];
        let (from, until) = self.old;
        if from < until {
            let to = (from + DELETED_POSITIONS).min(until);
            self.old.0 = to;
            ops.extend(self.deletions(from, to));
        }
        self.batch_bytes = batch.len() as u64;
        let head = Head {
            position,
            log_bytes: (self.head.log_bytes).map(|bytes| bytes + self.batch_bytes),
            ..self.next_head()
        };
        if let Some(progress) = &mut self.snapshot {
            progress.log_bytes += self.batch_bytes;
        }
        self.commit(head, ops);
    }

    /// Begins a snapshot in the place of one in progress.
    pub(crate) fn begin_snapshot(&mut self, position: u64) {
        assert!(self.steps.is_empty(), "one commit at a time");
        self.snapshots += 1;
        self.snapshot = Some(InProgress {
            snapshot: Snapshot {
                position,
                writer: self.writer,
                serial: self.snapshots,
                parts: 0,
                bytes: Some(0),
            },
            head_revision: self.head_revision,
            log_bytes: if position < self.head.position {
                self.batch_bytes
            } else {
                0
            },
        });
        // Incomplete snapshots, and snapshots of previous leaders.
        let (from, to) = (self.layout.snapshots(), self.layout.snapshots_end());
        let mut ops = Vec::new();
        match &self.head.snapshot {
            None => ops.push(delete(from, to)),
            Some(kept) => {
                ops.push(delete(from, self.layout.snapshot(kept, 0)));
                ops.push(delete(self.layout.snapshot(kept, kept.parts), to));
                ops.extend(self.deletions(0, kept.position + 1));
            }
        }
        // A commit: carried out late by a write that compares the leader only, it would delete newer snapshots.
        self.commit(self.next_head(), ops);
    }

    /// Adds a chunk to the snapshot in progress.
    pub(crate) fn add_to_snapshot(&mut self, chunk: &[u8]) {
        let mut left = chunk;
        if let Some(InProgress { snapshot, .. }) = &mut self.snapshot {
            snapshot.bytes = snapshot.bytes.map(|bytes| bytes + chunk.len() as u64);
        }
        loop {
            let (part, rest) = left.split_at(left.len().min(self.layout.part_bytes));
            left = rest;
            let progress = self.snapshot.as_mut().expect("a snapshot was begun");
            let key = self
                .layout
                .snapshot(&progress.snapshot, progress.snapshot.parts);
            progress.snapshot.parts += 1;
            let mut value = vec![if left.is_empty() { LAST_PART } else { PART }];
            value.extend_from_slice(part);
            self.write(vec![put(key, value)]);
            if left.is_empty() {
                return;
            }
        }
    }

    /// The snapshot in progress takes the place of the one before.
    pub(crate) fn finish_snapshot(&mut self) {
        assert!(self.steps.is_empty(), "one commit at a time");
        let finished = self.snapshot.take().expect("a snapshot was begun");
        let InProgress {
            snapshot,
            head_revision,
            log_bytes,
        } = finished;
        let (from, first) = (self.layout.snapshots(), self.layout.snapshot(&snapshot, 0));
        let deleted_before = self.old.0.max(self.head.snapshot_position());
        self.old = (deleted_before, snapshot.position + 1);
        let head = Head {
            snapshot: Some(snapshot),
            log_bytes: Some(log_bytes),
            ..self.next_head()
        };
        self.commit(head, Vec::new());
        self.write(vec![delete(from, first)]);
        self.steps.push_back(Step::Compact(Request::Compact {
            revision: head_revision,
        }));
    }

    fn next_head(&self) -> Head {
        Head {
            writer: self.writer,
            commit: self.head.commit + 1,
            ..self.head.clone()
        }
    }

    /// Deletes the batches of these positions.
    fn deletions(&self, from: u64, to: u64) -> [Op; 2] {
        let layout = &self.layout;
        [
            delete(layout.log(from), layout.log(to)),
            delete(layout.parts_from(from), layout.parts_from(to)),
        ]
    }

    fn commit(&mut self, head: Head, mut ops: Vec<Op>) {
        ops.push(put(self.layout.head(), head.encode()));
        let request = self.txn(self.fence(), ops);
        self.steps.push_back(Step::Commit(request, head));
    }

    /// The comparisons of a commit. An etcd that has gone back assigns the same revisions again: to the key of
    /// another leader, and to a late commit of this leader. Values are unique.
    fn fence(&self) -> Vec<Compare> {
        let (key, revision) = (self.layout.head(), self.head_revision);
        let mut fence = self.leads();
        fence.push(Compare::Modified { key, revision });
        if self.head.writer == self.writer {
            let (key, value) = (self.layout.head(), self.head.encode());
            fence.push(Compare::Value { key, value });
        }
        if revision == 0 {
            fence.push(nothing_of_a_store(&self.layout));
        }
        fence
    }

    fn write(&mut self, ops: Vec<Op>) {
        let request = self.txn(self.leads(), ops);
        self.steps.push_back(Step::Write(request));
    }

    fn leads(&self) -> Vec<Compare> {
        let key = self.layout.leader();
        let created = Compare::Created {
            key: key.clone(),
            revision: self.led_since,
        };
        let value = self.leader.clone();
        vec![created, Compare::Value { key, value }]
    }

    fn txn(&self, compare: Vec<Compare>, success: Vec<Op>) -> Request {
        let ranges = [self.layout.leader(), self.layout.head()];
        Request::Txn(Txn {
            compare,
            success,
            failure: ranges.map(|key| Op::Range(Range::key(key))).to_vec(),
        })
    }
}

/// The first byte of a part of a snapshot whose chunk continues in the next part.
const PART: u8 = b'+';
const LAST_PART: u8 = b'.';

/// A part of a chunk, and whether it is the chunk's last part.
pub(crate) fn snapshot_part(value: &[u8]) -> Option<(&[u8], bool)> {
    match value.split_first()? {
        (&PART, bytes) => Some((bytes, false)),
        (&LAST_PART, bytes) => Some((bytes, true)),
        _ => None,
    }
}

/// The head of a value in the log, which precedes the bytes, in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogRecord {
    /// How many parts of the batch are in separate keys, before the bytes here.
    pub(crate) parts: u64,
    pub(crate) writer: u64,
}

impl LogRecord {
    fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let Self { parts, writer } = self;
        let mut line = String::new();
        // A string takes all.
        let _ = writeln!(line, "batch {parts} {writer:016x}");
        let mut value = line.into_bytes();
        value.extend_from_slice(bytes);
        value
    }

    /// The record and the bytes after it.
    pub(crate) fn parse(value: &[u8]) -> Option<(Self, &[u8])> {
        let end = value.iter().take(64).position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&value[..end]).ok()?.split(' ');
        if words.next() != Some("batch") {
            return None;
        }
        let parts = words.next()?.parse().ok()?;
        let writer = u64::from_str_radix(words.next()?, 16).ok()?;
        let record = Self { parts, writer };
        words
            .next()
            .is_none()
            .then_some((record, &value[end + 1..]))
    }
}

const fn put(key: String, value: Vec<u8>) -> Op {
    Op::Put {
        key,
        value,
        lease: 0,
    }
}

const fn delete(key: String, end: String) -> Op {
    Op::Delete { key, end }
}
