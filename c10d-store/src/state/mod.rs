//! The store's state machine. Pure: no socket, clock or thread.
//!
//! Report every accepted connection with [`StoreState::connect`], pass requests one at a time to
//! [`StoreState::handle`], and report every closed connection with [`StoreState::disconnect`]. Replies go to the
//! caller's [`Replies`] in sending order. The behaviour is specified in docs/spec/wire.md, section 5.
//!
//! A snapshot starts with [`StoreState::start_snapshot`] and is copied in slices, between which requests go on.

mod activity;
mod announcements;
mod closed;
mod conn_hash;
#[cfg(test)]
mod crash_tests;
mod delete_prefix;
mod directory;
mod ephemeral;
#[cfg(test)]
mod ephemeral_tests;
mod groups;
mod image;
#[cfg(any(test, debug_assertions))]
mod invariants;
mod key_hash;
mod known_value;
mod lent;
mod memory;
mod missed_ends;
#[cfg(test)]
mod missed_ends_tests;
#[cfg(test)]
mod model_tests;
mod name_map;
mod owners;
mod peak;
mod recorder;
mod recovery;
mod slots;
#[cfg(test)]
mod snapshot_tests;
mod stored;
#[cfg(test)]
mod sweep_tests;
mod sweeps;
#[cfg(test)]
mod tests;
mod waiters;
mod wanted;
#[cfg(test)]
mod work_tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::groups::{GroupRequest, Groups};
use crate::known::Known;
use crate::message::{ConnId, Keys, Payload, Replies, Reply, Request};
use crate::moment::Moment;
use crate::snapshot::{CloseReason, Closed, ConnectionId, Counters};
use crate::stored_value::Value;
use crate::wire::{Opcode, reply_to_ping};
use announcements::Announcements;
use conn_hash::ConnHash;
use directory::Directory;
use groups::ServedGroups;
pub(crate) use image::Image;
use image::{ConnectionsImage, KeysImage};
use known_value::KnownValue;
pub(crate) use memory::peer_reserve;
use missed_ends::MissedEnds;
pub(crate) use owners::KeptClient;
use owners::{Owners, silence_max};
use slots::{NotANumber, Slot, Slots};
use stored::Writer;
use sweeps::Sweeps;
use waiters::{Answer, ListId, Origin, Waiters, Wants, Woken};
use wanted::WantedKeys;

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
        /// What the data takes.
        used: usize,
        /// What it may take.
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

/// How much of a value a refused TRY_ADD returns: enough to recognize it.
const NOT_A_NUMBER_HEAD_BYTES: usize = 64;

/// The most bytes of the elements of one QUEUE_TAKE, with 8 bytes more for each: one reply must not fill the
/// memory for the unsent replies of a peer.
const TAKEN_BYTES_MAX: usize = 4 << 20;

/// Copying or comparing this many bytes counts as much work as visiting a key.
const BYTES_PER_WORK: usize = 1024;

/// The completed waits for which memory is kept.
const WOKEN_KEPT: usize = 1024;

/// The most keys of a snapshot, and the most queues. A job of 100,000 ranks has fewer.
const SNAPSHOT_KEYS_MAX: usize = 262_144;

/// A budget of [`StoreState::continue_snapshot`] that takes less than a millisecond.
pub(crate) const SNAPSHOT_SLICE: usize = 4096;

/// All names of the store with their values, queues and waiters, and what is known of the connections.
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
    /// The memory of what the journal keeps of sessions.
    carried_bytes: usize,
    peak: peak::Peak,
    /// Requests carried out, keys visited for them, and bytes copied, in [`BYTES_PER_WORK`].
    work: u64,
    /// Connections that were woken by a push and have not sent their next request, each with the queue's
    /// name. If that request is not a pop or take, the wakeup passes to the next waiter, so that no wait continues
    /// while the queue has an element.
    pledges: HashMap<ConnId, Box<[u8]>>,
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

/// What of a snapshot is complete.
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

    /// Handles one request of `conn`.
    ///
    /// # Errors
    /// [`Refusal`] if the connection must be closed.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        conn: ConnId,
        request: Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let outline = request.outline();
        let (now, waiters) = (self.now, &self.waiters);
        let requester = self.directory.note_request(conn, &outline, now, waiters);
        self.requester = requester.unwrap_or_default();
        self.work += 1 + outline.key_count as u64;
        if let Some(recorder) = &mut self.slots.recorder {
            recorder.begin(conn);
            if matches!(request, Request::GetNumKeys | Request::ListKeys) {
                recorder.look_at_all();
            }
        }
        match self.check_memory(conn, &request) {
            Err(Refusal::MemoryFull { used, limit }) if request.can_report() => {
                self.report_full(conn, &request, (used, limit), replies);
                return Ok(());
            }
            Err(refusal) => {
                self.end_turn(conn, &request, replies);
                return Err(refusal);
            }
            Ok(()) => {}
        }
        if !self.pledges.is_empty() {
            self.settle_pledge(conn, Some(&request), replies);
        }
        let was_ended = !self.ended_waits.is_empty() && self.ended_waits.remove(&conn);
        match request {
            Request::Validate { .. } => return Err(Refusal::UnexpectedValidate),
            Request::Ping { nonce } => {
                let nonce = reply_to_ping(nonce, self.has_groups());
                self.reply(replies, conn, Reply::Nonce(nonce));
            }
            Request::Set { key, value } => self.set(key, value, replies),
            Request::Get { key } => self.reply_value(conn, key, replies),
            Request::Add { key, delta } => {
                let writer = self.writer();
                let (sum, waiters) = self.slots.add(key, delta, writer)?;
                self.wake_for_value(waiters, replies);
                self.reply(replies, conn, Reply::Integer(sum));
            }
            Request::TryAdd { key, delta } => self.try_add(conn, key, delta, replies),
            Request::CompareSet {
                key,
                expected,
                desired,
                reports_outcome,
            } => {
                let writes = self.compares_equal(key, expected);
                if writes {
                    self.set(key, desired, replies);
                }
                if reports_outcome {
                    self.reply(replies, conn, Reply::Exchanged(writes));
                }
                // docs/spec/wire-extensions.md, COMPARE_EXCHANGE 1.
                if !(reports_outcome && writes) {
                    let current = self.slots.get(key).and_then(Slot::value);
                    let reply = match current {
                        Some(_) => Reply::Value(current),
                        // docs/spec/wire.md, COMPARE_SET 4.
                        None => Reply::Bytes(expected),
                    };
                    self.reply(replies, conn, reply);
                }
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.key_exists(key));
                self.reply(replies, conn, Reply::Ready(ready));
            }
            Request::Wait { keys } => self.wait(conn, keys, replies),
            Request::WaitGet { keys } => self.wait_get(conn, keys, replies),
            Request::WaitChange {
                key,
                offset,
                length,
                known,
            } => {
                self.cancel(conn);
                self.wait_change(conn, key, offset, length, known, replies);
            }
            // docs/spec/wire-extensions.md, END_WAITS 2.
            Request::CancelWait if was_ended => {}
            Request::CancelWait => {
                self.waits_cancelled += u64::from(self.cancel(conn));
                self.reply(replies, conn, Reply::WaitCanceled);
            }
            Request::Barrier { key, world_size } => {
                self.barrier(conn, key, world_size, replies)?;
            }
            Request::GetNumKeys => {
                self.reply(
                    replies,
                    conn,
                    Reply::Integer(count(self.slots.value_count())),
                );
            }
            Request::DeleteKey { key } => {
                let deleted = self.delete(key);
                self.reply(replies, conn, Reply::Integer(i64::from(deleted)));
            }
            Request::Append { key, value } => {
                self.work += work_of(value.as_bytes());
                let waiters = self.slots.append(key, value, self.writer());
                self.wake_for_value(waiters, replies);
            }
            Request::MultiGet { keys } => self.reply_values(conn, keys.iter(), replies),
            Request::MultiSet { pairs } => self.multi_set(pairs, replies),
            Request::QueuePush { key, value } => self.queue_push(key, value.into_value(), replies),
            Request::QueuePop { key } => self.queue_pop(conn, key, replies),
            Request::QueueTake { key, max } => self.queue_take(conn, key, max, replies),
            Request::QueueLen { key } => {
                let length = self.queue(key).map_or(0, VecDeque::len);
                self.reply(replies, conn, Reply::Integer(count(length)));
            }
            Request::ListKeys => {
                self.reply(
                    replies,
                    conn,
                    Reply::Integer(count(self.slots.value_count())),
                );
                let (listing, is_new) = self.slots.listing();
                if is_new {
                    self.work += self.slots.value_count() as u64;
                }
                self.reply(replies, conn, Reply::Encoded(&listing));
            }
            Request::SetEphemeral {
                key,
                value,
                will_key,
                will_value,
            } => self.set_ephemeral(conn, key, value, (will_key, will_value), replies),
            Request::DeletePrefix {
                prefix,
                delay_millis,
            } => self.delete_prefix(conn, prefix, delay_millis, replies),
            Request::EndWaits { prefix } => self.end_waits(conn, prefix, replies),
            Request::KeepAlive { millis } => self.keep_alive(conn, silence_max(millis), replies),
            Request::Membership { name, bytes, waits } => {
                let request = GroupRequest {
                    conn,
                    name,
                    bytes,
                    waits,
                };
                self.ask_group(request, replies)?;
            }
            // The event loop does it: nothing in the store changes.
            Request::Session(_) => {}
            Request::Announce { bytes } => {
                if let Some(connection) = requester {
                    let most = self.announced_bytes_max();
                    self.announcements
                        .put(connection, self.now, bytes.as_bytes(), most);
                }
            }
        }
        #[cfg(debug_assertions)]
        self.check_invariants_sometimes();
        Ok(())
    }

    /// docs/spec/wire-extensions.md, REFUSAL 3: the request changes nothing, but is one.
    fn report_full(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        (used, limit): (usize, usize),
        replies: &mut impl Replies,
    ) {
        self.end_turn(conn, request, replies);
        if request.outline().command.is_wait() {
            self.cancel(conn);
        }
        self.reply(replies, conn, Reply::Full { used, limit });
    }

    /// A refused request is one nevertheless: the wakeup before it passes to the next waiter.
    fn end_turn(&mut self, conn: ConnId, request: &Request<'_>, replies: &mut impl Replies) {
        if !self.pledges.is_empty() {
            self.settle_pledge(conn, Some(request), replies);
        }
        self.ended_waits.remove(&conn);
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
        if !self.pledges.is_empty() {
            self.settle_pledge(conn, None, replies);
        }
        self.ended_waits.remove(&conn);
        self.sweeps.forget(conn);
        self.end_owner(conn, replies);
        self.end_speaker(conn, replies);
    }

    /// Whether the last request of a connection was a wait that END_WAITS has ended, as a journal has kept it.
    pub(crate) fn set_wait_ended(&mut self, conn: ConnId, was_ended: bool) {
        if was_ended {
            self.ended_waits.insert(conn);
        } else if !self.ended_waits.is_empty() {
            self.ended_waits.remove(&conn);
        }
    }

    /// The session of a connection has lost its link, or has another one (docs/spec/wire-extensions.md, SESSION 11). A connection
    /// that is away is given no element of a queue, and passes on a wakeup. One that comes back is given what is there.
    pub(crate) fn set_away(&mut self, conn: ConnId, is_away: bool, replies: &mut impl Replies) {
        self.directory.keep(conn, &self.waiters);
        if !self.waiters.set_away(conn, is_away.then_some(self.now)) {
            return;
        }
        self.look_at_all();
        if !is_away {
            self.give_elements(conn, replies);
        } else if !self.pledges.is_empty() {
            self.settle_pledge(conn, None, replies);
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

    /// A measure of the work that all requests so far have caused, in units of about 100 ns: a request counts, as does
    /// each key, wait and kilobyte that it visits. It bounds the time between two looks at the clock.
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

    /// docs/spec/wire.md, CHECK: a value, or a queue that is not empty.
    fn key_exists(&self, key: &[u8]) -> bool {
        self.slots.get(key).is_some_and(Slot::exists)
    }

    fn has_value(&self, key: &[u8]) -> bool {
        let slot = self.slots.get(key);
        slot.is_some_and(|slot| slot.stored.is_some())
    }

    fn queue(&self, key: &[u8]) -> Option<&VecDeque<Value>> {
        self.slots.get(key)?.queue.as_deref()
    }

    /// Sends a piece of a reply, which waits for what the request depends on.
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

    /// Removes a value, and ends its ownership; `false` if there is none.
    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(deleted) = self.slots.delete(key) else {
            return false;
        };
        if let Some(ownership) = deleted.ownership {
            self.owners.remove_key(ownership.owner, key);
        }
        true
    }

    #[inline(always)] // Most requests.
    fn set(&mut self, key: &[u8], new: Payload<'_>, replies: &mut impl Replies) {
        self.work += work_of(new.as_bytes());
        let waiters = self.slots.write(key, new, self.writer());
        self.wake_for_value(waiters, replies);
    }

    /// docs/spec/wire.md, MULTI_SET: all pairs are written before any wait is woken.
    fn multi_set(&mut self, pairs: Keys<'_>, replies: &mut impl Replies) {
        let mut blobs = pairs.iter();
        let mut has_waiters = false;
        let writer = self.writer();
        while let (Some(key), Some(value)) = (blobs.next(), blobs.next()) {
            self.work += work_of(value);
            let waiters = self.slots.write(key, Payload::Borrowed(value), writer);
            has_waiters |= waiters.is_some();
        }
        if has_waiters {
            for key in pairs.iter().step_by(2) {
                let waiters = self.slots.get(key).and_then(|slot| slot.waiters);
                self.wake_for_value(waiters, replies);
            }
        }
    }

    /// docs/spec/wire-extensions.md, TRY_ADD: an ADD that reports a value that is not a number.
    fn try_add(&mut self, conn: ConnId, key: &[u8], delta: i64, replies: &mut impl Replies) {
        if let Ok((sum, waiters)) = self.slots.add(key, delta, self.writer()) {
            self.wake_for_value(waiters, replies);
            self.reply(replies, conn, Reply::Added(sum));
            return;
        }
        let value = self.slots.get(key).and_then(Slot::value);
        let bytes = value.map_or(&[][..], Value::as_bytes);
        let reply = Reply::NotANumber {
            head: &bytes[..bytes.len().min(NOT_A_NUMBER_HEAD_BYTES)],
            length: bytes.len(),
        };
        self.reply(replies, conn, reply);
    }

    /// docs/spec/wire.md, COMPARE_SET: whether it writes. An empty `expected` also matches a missing key.
    fn compares_equal(&self, key: &[u8], expected: &[u8]) -> bool {
        let current = self.slots.get(key).and_then(Slot::value);
        current.map_or(&[][..], Value::as_bytes) == expected
    }

    fn wait(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        self.cancel(conn);
        if keys.iter().all(|key| self.key_exists(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            return;
        }
        if self.is_released(conn, keys, replies) {
            return;
        }
        let origin = self.origin(Opcode::Wait);
        self.waiters.open(conn, Answer::Stop, origin);
        for key in keys.iter() {
            if !self.key_exists(key) {
                self.miss(conn, key, Wants::ValueOrElement);
            }
        }
    }

    /// docs/spec/wire-extensions.md, WAIT_GET: answered as soon as all values exist at the same moment.
    fn wait_get(&mut self, conn: ConnId, keys: Keys<'_>, replies: &mut impl Replies) {
        self.cancel(conn);
        if keys.iter().all(|key| self.has_value(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_values(conn, keys.iter(), replies);
            return;
        }
        if self.is_released(conn, keys, replies) {
            return;
        }
        let origin = self.origin(Opcode::WaitGet);
        let answer = Answer::Values(WantedKeys::new(keys));
        self.waiters.open(conn, answer, origin);
        for key in keys.iter() {
            if !self.has_value(key) {
                self.miss(conn, key, Wants::Value);
            }
        }
    }

    /// The last missing key of a WAIT_GET or WAIT_CHANGE was written. An earlier one may have been deleted again: then
    /// the wait continues.
    fn check_again(
        &mut self,
        conn: ConnId,
        mut wanted: WantedKeys,
        origin: Origin,
        replies: &mut impl Replies,
    ) {
        self.work += wanted.distinct_len() as u64;
        if wanted.distinct().all(|key| self.has_value(key)) {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_values(conn, wanted.all(), replies);
            return;
        }
        wanted.find_distinct();
        let mut missing = Vec::new();
        for key in wanted.distinct() {
            if !self.has_value(key) {
                let waiters = &mut self.waiters;
                missing.push(self.slots.waiters_of(key, |name| waiters.new_list(name)));
            }
        }
        self.waiters.open(conn, Answer::Values(wanted), origin);
        for list in missing {
            self.waiters.miss(conn, list, Wants::Value);
        }
    }

    /// docs/spec/wire-extensions.md, WAIT_CHANGE: answered as soon as a value exists that differs from the known one.
    fn wait_change(
        &mut self,
        conn: ConnId,
        key: &[u8],
        offset: usize,
        length: Option<usize>,
        bytes: Payload<'_>,
        replies: &mut impl Replies,
    ) {
        let known = Known::new(offset, bytes.as_bytes(), length);
        let slot = self.slots.get(key);
        if let Some(value) = slot.and_then(Slot::value)
            && known.is_outdated_by(value.as_bytes())
        {
            self.reply(replies, conn, Reply::StopWaiting);
            self.reply_value(conn, key, replies);
            return;
        }
        // Waits that have seen the current value usually have the same known value.
        let last_known = slot
            .and_then(|slot| slot.waiters)
            .and_then(|list| self.waiters.last_known(list));
        let known = match last_known {
            Some(shared) if shared.as_known() == known => Arc::clone(shared),
            _ => self.waiters.know(KnownValue::new(offset, bytes, length)),
        };
        let origin = self.origin(Opcode::WaitChange);
        self.waiters.open(
            conn,
            Answer::Values(WantedKeys::new(Keys::from(&[key][..]))),
            origin,
        );
        self.miss(conn, key, Wants::Change(known));
    }

    /// docs/spec/wire.md, BARRIER: an ordinary counter, which an unfinished arrival creates without waking
    /// the waits for its key.
    fn barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        let (arrived, waiters) = self.slots.add(key, 1, self.writer())?;
        if arrived >= world_size {
            // An earlier arrival of the same connection is answered too; this request replaces any other
            // wait of it.
            self.wake_for_value(waiters, replies);
            self.cancel(conn);
            self.reply(replies, conn, Reply::StopWaiting);
        } else {
            self.cancel(conn);
            self.wait_for_others(conn, key);
        }
        Ok(())
    }

    /// Waits at a barrier.
    fn wait_for_others(&mut self, conn: ConnId, key: &[u8]) {
        let origin = self.origin(Opcode::Barrier);
        self.waiters.open(conn, Answer::Stop, origin);
        self.miss(conn, key, Wants::Barrier);
    }

    fn queue_push(&mut self, key: &[u8], element: Value, replies: &mut impl Replies) {
        if self.slots.push(key, element).is_some() {
            self.offer_element(key, replies);
        }
    }

    fn queue_pop(&mut self, conn: ConnId, key: &[u8], replies: &mut impl Replies) {
        let length = self.queue(key).map_or(0, VecDeque::len);
        let element = self.slots.pop(key);
        self.reply(replies, conn, Reply::Integer(count(length)));
        if let Some(element) = element {
            self.reply(replies, conn, Reply::Value(Some(&element)));
            self.slots.lent.add(&element);
        }
    }

    /// docs/spec/wire-extensions.md, QUEUE_TAKE: answered as soon as the queue has an element.
    fn queue_take(&mut self, conn: ConnId, key: &[u8], max: usize, replies: &mut impl Replies) {
        self.cancel(conn);
        if self.queue(key).is_some() {
            self.reply_elements(conn, key, max, replies);
            return;
        }
        let origin = self.origin(Opcode::QueueTake);
        self.waiters.open(conn, Answer::Elements(max), origin);
        self.miss(conn, key, Wants::Element);
    }

    /// Takes elements from a queue, which has some, and sends them.
    fn reply_elements(&mut self, conn: ConnId, key: &[u8], max: usize, replies: &mut impl Replies) {
        let elements = self.slots.take(key, max, TAKEN_BYTES_MAX);
        self.reply(replies, conn, Reply::StopWaiting);
        self.reply(replies, conn, Reply::Integer(count(elements.len())));
        self.work += elements.len() as u64;
        for element in &elements {
            self.reply(replies, conn, Reply::Value(Some(element)));
            self.slots.lent.add(element);
        }
    }

    /// Sends a value, and records that the connection has read it.
    #[inline(always)] // Most requests.
    fn reply_value(&mut self, conn: ConnId, key: &[u8], replies: &mut impl Replies) {
        let stored = self.slots.get(key).and_then(|slot| slot.stored.as_ref());
        if let Some(stored) = stored {
            self.directory.note_read(conn, stored.written.version.get());
        }
        self.reply(
            replies,
            conn,
            Reply::Value(stored.map(|stored| &stored.value)),
        );
    }

    fn reply_values<'k>(
        &mut self,
        conn: ConnId,
        keys: impl Iterator<Item = &'k [u8]>,
        replies: &mut impl Replies,
    ) {
        for key in keys {
            self.reply_value(conn, key, replies);
        }
    }

    fn miss(&mut self, conn: ConnId, key: &[u8], wants: Wants) {
        let waiters = &mut self.waiters;
        let list = self.slots.waiters_of(key, |name| waiters.new_list(name));
        self.waiters.miss(conn, list, wants);
    }

    /// Copies the records of the connections whose waits are about to change, if a snapshot needs them.
    fn keep_waiting_connections(&mut self, list: ListId) {
        if self.directory.is_copying() {
            for conn in self.waiters.connections_of(list) {
                self.directory.keep(conn, &self.waiters);
            }
        }
    }

    /// Wakes waits after a write of their key.
    fn wake_for_value(&mut self, waiters: Option<ListId>, replies: &mut impl Replies) {
        let Some(list) = waiters else {
            return;
        };
        self.keep_waiting_connections(list);
        let slot = self.slots.get(self.waiters.name(list));
        let value = slot.and_then(Slot::value);
        // Waits with the same known value are adjacent, so one comparison serves all of them.
        let mut compared = None;
        let differs = |known: &Arc<KnownValue>| match compared {
            // Known values are not made in between, so an equal address means the same value.
            Some((last, differs)) if last == Arc::as_ptr(known) => differs,
            _ => {
                #[cfg(test)]
                {
                    self.comparisons += 1;
                }
                self.work += work_of(known.as_known().bytes());
                let differs =
                    value.is_some_and(|value| known.as_known().is_outdated_by(value.as_bytes()));
                compared = Some((Arc::as_ptr(known), differs));
                differs
            }
        };
        let mut woken = std::mem::take(&mut self.woken);
        let emptied = self.waiters.value_written(list, differs, &mut woken);
        if let Some(name) = emptied {
            self.slots.remove_waiters(&name);
        }
        for woken in woken.drain(..) {
            let conn = woken.conn;
            match woken.answer {
                Answer::Stop => self.reply(replies, conn, Reply::StopWaiting),
                Answer::Values(wanted) => self.check_again(conn, wanted, woken.origin, replies),
                Answer::Elements(_) | Answer::Event => {
                    unreachable!("a value does not end a wait for an element or for news")
                }
            }
        }
        woken.shrink_to(WOKEN_KEPT);
        self.woken = woken;
    }

    /// Wakes the first waiter of a queue that has an element.
    fn offer_element(&mut self, key: &[u8], replies: &mut impl Replies) {
        let Some(Slot {
            queue: Some(_),
            waiters: Some(list),
            ..
        }) = self.slots.get(key)
        else {
            return;
        };
        let list = *list;
        self.keep_waiting_connections(list);
        let mut woken = std::mem::take(&mut self.woken);
        if let Some(name) = self.waiters.element_pushed(list, &mut woken) {
            self.slots.remove_waiters(&name);
        }
        self.woken = woken;
        self.reply_to_woken(key, replies);
    }

    /// Ends the wait of a connection for queues that have elements.
    fn give_elements(&mut self, conn: ConnId, replies: &mut impl Replies) {
        let entries = self.waiters.element_entries(conn);
        let given: Vec<(u32, Arc<[u8]>)> = entries
            .filter(|(_, name)| self.queue(name).is_some())
            .map(|(at, name)| (at, Arc::clone(name)))
            .collect();
        for (at, key) in given {
            let mut woken = std::mem::take(&mut self.woken);
            if let Some(name) = self.waiters.element_given(at, &mut woken) {
                self.slots.remove_waiters(&name);
            }
            self.woken = woken;
            self.reply_to_woken(&key, replies);
        }
    }

    /// Replies to the connections whose waits an element of this queue has ended.
    fn reply_to_woken(&mut self, key: &[u8], replies: &mut impl Replies) {
        let mut woken = std::mem::take(&mut self.woken);
        for Woken { conn, answer, .. } in woken.drain(..) {
            match answer {
                Answer::Stop => {
                    self.pledges.insert(conn, key.into());
                    self.reply(replies, conn, Reply::StopWaiting);
                }
                Answer::Elements(max) => self.reply_elements(conn, key, max, replies),
                Answer::Values(_) | Answer::Event => {
                    unreachable!("an element does not end a wait for values or for news")
                }
            }
        }
        woken.shrink_to(WOKEN_KEPT);
        self.woken = woken;
    }

    /// Handles the next request of a connection that was woken by a push (`None`: it disconnected). A pop
    /// uses the wakeup, a PING keeps it, and anything else passes it to the next waiter.
    fn settle_pledge(
        &mut self,
        conn: ConnId,
        next: Option<&Request<'_>>,
        replies: &mut impl Replies,
    ) {
        if matches!(next, Some(Request::Ping { .. })) {
            return;
        }
        let Some(queue) = self.pledges.remove(&conn) else {
            return;
        };
        // Whether the queue has an element decides who is woken.
        let _ = self.queue(&queue);
        match next {
            Some(Request::QueuePop { key } | Request::QueueTake { key, .. }) if **key == *queue => {
            }
            _ => self.offer_element(&queue, replies),
        }
    }

    /// docs/spec/wire-extensions.md, END_WAITS 1.
    fn end_waits(&mut self, conn: ConnId, prefix: &[u8], replies: &mut impl Replies) {
        if self.missed_ends.has_sessions() {
            // A wait that has ended late counts as ended for this request, too, once its end is durable.
            self.depend_on_batch();
        }
        let ended = self.end_waits_of(prefix, replies);
        self.remember_end(prefix);
        self.reply(replies, conn, Reply::Integer(count(ended)));
    }

    /// Ends the waits for names with a prefix. Returns how many.
    fn end_waits_of(&mut self, prefix: &[u8], replies: &mut impl Replies) -> usize {
        let waiting = self.waiters.waiting_for_prefix(prefix);
        self.work += waiting.len() as u64;
        if !waiting.is_empty() {
            self.depend_on_batch();
        }
        for waiting in &waiting {
            self.end_wait_of(*waiting, replies);
        }
        waiting.len()
    }

    fn end_wait_of(&mut self, waiting: ConnId, replies: &mut impl Replies) {
        self.directory.keep(waiting, &self.waiters);
        self.cancel(waiting);
        self.ended_waits.insert(waiting);
        self.reply(replies, waiting, Reply::WaitCanceled);
        self.waits_cancelled += 1;
    }

    /// Removes the wait of a connection; `false` if it has none.
    fn cancel(&mut self, conn: ConnId) -> bool {
        let mut emptied = std::mem::take(&mut self.emptied);
        let answer = self.waiters.cancel(conn, &mut emptied);
        if let Some(Answer::Event) = &answer {
            self.groups.wait_ended(conn);
        }
        for name in emptied.drain(..) {
            self.slots.remove_waiters(&name);
        }
        self.emptied = emptied;
        answer.is_some()
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
