//! Our extensions of PyTorch's store (docs/spec/wire-extensions.md): the checks before a request, and the dispatch of each
//! extension to the file that carries it out.

use std::net::SocketAddr;

use super::owners::{Ownership, silence_max};
use super::served_groups::ServedGroups;
use super::sweeps::SCHEDULED_BYTES;
use crate::groups::{GroupRequest, Groups};
use crate::message::{CloseReason, ConnId, ConnectionId, Extension, Keys, Replies, Request};
use crate::snapshot::Closed;
use crate::state::memory::{check_room, most_growth_of_name};
use crate::state::slots::OWNERSHIP_BYTES;
use crate::state::waiters::ListId;
use crate::state::{Refusal, StoreState};
use crate::wire::reply_to_ping;

impl StoreState {
    /// An empty store.
    pub(crate) fn new(groups: Option<Box<dyn Groups>>) -> Self {
        let mut state = Self::default();
        state.extensions.groups = ServedGroups::new(groups);
        state
    }

    /// Adds an accepted connection.
    pub(crate) fn connect(&mut self, conn: ConnId, peer: SocketAddr) {
        self.extensions.directory.connect(conn, peer, self.now);
    }

    /// A connection closes: its record is kept, and it is the writer of its wills.
    pub(in crate::state) fn note_close(&mut self, conn: ConnId, reason: CloseReason) {
        self.look_at_all();
        let closed = Closed {
            at: self.now.since_start(),
            reason,
        };
        let announcements = &mut self.extensions.announcements;
        let dropped = |dropped| announcements.forget(dropped);
        let closed = self
            .extensions
            .directory
            .close(conn, closed, &self.waiters, dropped);
        if let Some(closed) = closed {
            self.extensions.announcements.close(closed);
        }
        self.requester = closed.unwrap_or_default();
    }

    /// Ends what a closed connection leaves to the extensions, its keys among them.
    pub(in crate::state) fn end_extensions_of(&mut self, conn: ConnId, replies: &mut impl Replies) {
        self.waiters.set_away(conn, None);
        self.extensions.ended_waits.remove(&conn);
        self.extensions.sweeps.forget(conn);
        self.end_owner(conn, replies);
        self.end_speaker(conn, replies);
    }

    /// The session of a connection has lost its link, or has a new link (docs/spec/wire-extensions.md, SESSION 11). A
    /// connection that is away receives no element of a queue, and passes on a wakeup. A connection that returns
    /// receives the available elements.
    pub(crate) fn set_away(&mut self, conn: ConnId, is_away: bool, replies: &mut impl Replies) {
        self.extensions.directory.keep(conn, &self.waiters);
        if !self.waiters.set_away(conn, is_away.then_some(self.now)) {
            return;
        }
        self.look_at_all();
        if !is_away {
            self.give_elements(conn, replies);
        } else if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, None, replies);
        }
    }

    /// Removes a connection that has sent no request and belongs to another protocol, as if it had not been
    /// accepted.
    pub(crate) fn hand_over(&mut self, conn: ConnId) {
        self.extensions.directory.hand_over(conn, &self.waiters);
    }

    /// The number of names that a connection waits for.
    pub(crate) fn missing_names(&self, conn: ConnId) -> usize {
        let waiting = self.waiters.waiting_of(conn);
        waiting.map_or(0, |waiting| waiting.missing as usize)
    }

    /// The address of an open connection's peer.
    pub(crate) fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        self.extensions.directory.peer(conn)
    }

    /// Records a request, and who makes it.
    #[inline]
    pub(crate) fn note_request(&mut self, conn: ConnId, request: &Request<'_>) {
        let outline = request.outline();
        self.work += 1 + outline.key_count as u64;
        let (now, waiters) = (self.now, &self.waiters);
        let requester = self
            .extensions
            .directory
            .note_request(conn, &outline, now, waiters);
        self.requester = requester.unwrap_or_default();
    }

    /// The reply to a PING, which can ask for the capabilities.
    pub(in crate::state) const fn answer_to_ping(&self, nonce: u32) -> u32 {
        reply_to_ping(nonce, self.has_groups())
    }

    /// A deleted key has no owner any more.
    pub(in crate::state) fn disown(&mut self, key: &[u8], ownership: &Ownership) {
        self.extensions.owners.remove_key(ownership.owner, key);
    }

    /// Copies the records of the connections whose waits are about to change, if a snapshot needs them.
    pub(in crate::state) fn keep_waiting_connections(&mut self, list: ListId) {
        if self.extensions.directory.is_copying() {
            for conn in self.waiters.connections_of(list) {
                self.extensions.directory.keep(conn, &self.waiters);
            }
        }
    }

    /// The wait of a connection for news of a group has ended.
    pub(in crate::state) fn poll_ended(&mut self, conn: ConnId) {
        self.extensions.groups.wait_ended(conn);
    }

    /// Sets what the server keeps of sessions in its journal.
    pub(crate) const fn set_carried_bytes(&mut self, bytes: usize) {
        self.extensions.carried_bytes = bytes;
    }

    /// The most memory for announcements: they are no reason to refuse writes.
    pub(super) fn announced_bytes_max(&self) -> usize {
        self.memory_max.map_or(usize::MAX, |limit| limit / 8)
    }

    /// The memory of what only extensions need: owned keys, deletions, groups, announcements and sessions in the journal.
    #[inline]
    pub(in crate::state) fn extension_bytes(&self) -> usize {
        self.extensions.carried_bytes
            + self.extensions.groups.memory_bytes()
            + self.slots.owned_bytes()
            + self.extensions.sweeps.scheduled_bytes
            + self.extensions.missed_ends.memory_bytes()
            + self.extensions.announcements.total_bytes()
    }

    /// [`check_memory`](Self::check_memory) for a request that PyTorch's servers do not have.
    fn check_memory_of(&self, conn: ConnId, extension: &Extension<'_>) -> Result<(), Refusal> {
        match self.memory_max {
            None => Ok(()),
            Some(limit) if self.memory() + most_growth(extension) <= limit => Ok(()),
            Some(limit) => {
                let (growth, room) = self.growth_of_extension(conn, extension, limit);
                check_room(self.memory(), growth, room, limit)
            }
        }
    }

    /// The growth of the data by a request, and how much the data may take with it.
    fn growth_of_extension(
        &self,
        conn: ConnId,
        extension: &Extension<'_>,
        limit: usize,
    ) -> (usize, usize) {
        match extension {
            Extension::WaitGet { keys } => (self.growth_of_wait(*keys), limit + limit / 8),
            Extension::WaitChange { key, known, .. } => {
                let keys: &[&[u8]] = &[*key];
                let of_wait = self.growth_of_wait(Keys::from(keys));
                (of_wait + known.as_bytes().len(), limit + limit / 8)
            }
            Extension::SetEphemeral {
                key,
                value,
                will_key,
                will_value,
            } => {
                let growth = self.growth_of_claim(conn, key, value);
                let will = will_key.len() + will_value.len();
                (growth.map_or(0, |growth| growth + will), limit)
            }
            Extension::DeletePrefix {
                prefix,
                delay_millis: 1..,
            } => (SCHEDULED_BYTES + prefix.len(), limit),
            Extension::Membership { bytes, .. } => (self.extensions.groups.growth_of(bytes), limit),
            Extension::CompareExchange {
                key,
                expected,
                desired,
            } if self.compares_equal(key, expected) => {
                (self.growth_of_set(key, desired.as_bytes()), limit)
            }
            Extension::TryAdd { key, .. } => (self.growth_of_name(key), limit),
            _ => (0, limit),
        }
    }

    /// The growth of the data by a claim, without the will; `None` if nothing changes.
    fn growth_of_claim(&self, conn: ConnId, key: &[u8], value: &[u8]) -> Option<usize> {
        let of_value = self.growth_of_set(key, value);
        let slot = self.slots.get(key).filter(|slot| slot.stored.is_some());
        let Some(slot) = slot else {
            return Some(of_value + OWNERSHIP_BYTES);
        };
        let owner = slot.ownership.as_ref().map(|it| it.owner);
        (owner.is_some() && owner == self.extensions.owners.of(conn)).then_some(of_value)
    }

    /// The number of connections.
    #[cfg(debug_assertions)]
    pub(in crate::state) fn connection_count(&self) -> usize {
        self.extensions.directory.len()
    }

    /// Panics if an invariant of an extension is violated. `owned` is the number of keys with an owner.
    #[cfg(any(test, debug_assertions))]
    pub(in crate::state) fn check_extensions(&self, owned: usize) {
        let owner_of = |key: &[u8]| Some(self.slots.get(key)?.ownership.as_ref()?.owner);
        let listed = self.extensions.owners.check_invariants(owner_of);
        assert_eq!(owned, listed, "an owner knows its keys");
        self.extensions.directory.check_invariants();
        self.extensions.groups.check_invariants();
    }

    /// Whether [`check_request`](Self::check_request) has something to do.
    #[inline]
    pub(crate) fn must_check(&self, request: &Request<'_>) -> bool {
        matches!(request, Request::Extension(_))
            || self.slots.recorder.is_some()
            || self.may_lack_memory(request)
            || !self.reserved_wakeups.is_empty()
            || !self.extensions.ended_waits.is_empty()
    }

    /// Checks a request before it is carried out. Returns whether it is done already.
    ///
    /// # Errors
    /// [`Refusal::MemoryFull`].
    pub(crate) fn check_request(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<bool, Refusal> {
        if let Some(recorder) = &mut self.slots.recorder {
            recorder.begin(conn);
            if matches!(request, Request::GetNumKeys | Request::ListKeys) {
                recorder.look_at_all();
            }
        }
        let (checked, can_report) = match request {
            Request::Extension(extension) => {
                let checked = self.check_memory_of(conn, extension);
                (checked, extension.can_report())
            }
            _ => (self.check_memory(request), false),
        };
        // A refused request also counts as a request: a wakeup passes to the next waiter.
        if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, Some(request), replies);
        }
        let was_ended = self.extensions.ended_waits.remove(&conn);
        match checked {
            Err(Refusal::MemoryFull { used, limit }) if can_report => {
                self.report_full(conn, request, (used, limit), replies);
                Ok(true)
            }
            Err(refusal) => Err(refusal),
            // docs/spec/wire-extensions.md, END_WAITS 2.
            Ok(()) => Ok(was_ended && matches!(request, Request::CancelWait)),
        }
    }

    /// Carries out a request that PyTorch's servers do not have.
    pub(in crate::state) fn extend(
        &mut self,
        conn: ConnId,
        extension: Extension<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        match extension {
            Extension::CompareExchange {
                key,
                expected,
                desired,
            } => self.compare_exchange(conn, key, expected, desired, replies),
            Extension::TryAdd { key, delta } => self.try_add(conn, key, delta, replies),
            Extension::WaitGet { keys } => self.wait_get(conn, keys, replies),
            Extension::WaitChange {
                key,
                offset,
                length,
                known,
            } => {
                self.cancel(conn);
                self.wait_change(conn, key, offset, length, known, replies);
            }
            Extension::QueueTake { key, max } => self.queue_take(conn, key, max, replies),
            Extension::SetEphemeral {
                key,
                value,
                will_key,
                will_value,
            } => self.set_ephemeral(conn, key, value, (will_key, will_value), replies),
            Extension::KeepAlive { millis } => self.keep_alive(conn, silence_max(millis), replies),
            Extension::DeletePrefix {
                prefix,
                delay_millis,
            } => self.delete_prefix(conn, prefix, delay_millis, replies),
            Extension::EndWaits { prefix } => self.end_waits(conn, prefix, replies),
            Extension::Membership { name, bytes, waits } => {
                let request = GroupRequest {
                    conn,
                    name,
                    bytes,
                    waits,
                };
                self.ask_group(request, replies)?;
            }
            // The event loop does it: nothing in the store changes.
            Extension::Session(_) => {}
            Extension::Announce { bytes } => {
                let connection = self.requester;
                if connection != ConnectionId::default() {
                    let most = self.announced_bytes_max();
                    self.extensions
                        .announcements
                        .put(connection, self.now, bytes.as_bytes(), most);
                }
            }
        }
        Ok(())
    }
}

/// An upper bound of the growth that a request can cause, without reading the data.
fn most_growth(extension: &Extension<'_>) -> usize {
    match extension {
        Extension::CompareExchange { key, desired, .. } => {
            most_growth_of_name(key, desired.as_bytes().len())
        }
        Extension::TryAdd { key, .. } => most_growth_of_name(key, 0),
        Extension::WaitGet { .. }
        | Extension::WaitChange { .. }
        | Extension::SetEphemeral { .. }
        | Extension::DeletePrefix { .. }
        | Extension::Membership { .. } => usize::MAX / 2,
        _ => 0,
    }
}
