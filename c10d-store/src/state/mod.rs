//! The store's state machine. Pure: no socket, clock or thread.
//!
//! Report every accepted connection with [`StoreState::connect`], and every closed connection with
//! [`StoreState::disconnect`]. Pass each request to [`StoreState::note_request`], to [`StoreState::check_request`] if
//! [`StoreState::must_check`], and, unless that has completed or refused it, to [`StoreState::carry_out`]. Replies go to the
//! caller's [`Replies`] in sending order. The behaviour is specified in docs/spec/wire.md, section 5.
//!
//! A snapshot starts with `StoreState::start_snapshot` and is copied in slices, between which requests continue.

#[cfg(feature = "extensions")]
mod extensions;
mod hashing;
#[cfg(any(test, debug_assertions))]
mod invariants;
mod lent;
mod memory;
#[cfg(all(test, feature = "extensions"))]
mod model_tests;
mod name_map;
mod peak;
#[cfg(not(feature = "extensions"))]
mod plain;
mod pytorch;
mod slot;
mod slots;
#[cfg(all(test, feature = "extensions"))]
mod tests;
mod waiters;
#[cfg(all(test, feature = "extensions"))]
mod work_tests;

use std::collections::HashMap;
use std::sync::Arc;

use crate::message::{CloseReason, ConnId, ConnectionId, Replies, Reply};
use crate::moment::Moment;
use crate::wire::Opcode;
use extensions::Extensions;
pub(crate) use extensions::Recorder;
#[cfg(feature = "extensions")]
pub(crate) use extensions::{Image, KeptClient, SNAPSHOT_SLICE};
pub(crate) use memory::peer_reserve;
#[cfg(not(feature = "extensions"))]
use plain as extensions;
use slot::Writer;
use slots::{NotANumber, Slots};
use waiters::{Origin, Waiters, Woken};

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
        /// The memory of the data, in bytes.
        used: usize,
        /// The limit of that memory, in bytes.
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

/// Copying or comparing this many bytes counts as much work as visiting a key.
const BYTES_PER_WORK: usize = 1024;

/// The completed waits for which memory is kept.
const WOKEN_KEPT: usize = 1024;

/// All names of the store with their values, queues and waiters, and the state of the connections.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    slots: Slots,
    waiters: Waiters,
    extensions: Extensions,
    /// The current time, as last set by the server.
    now: Moment,
    /// The connection whose request is being handled.
    requester: ConnectionId,
    waits_cancelled: u64,
    /// The most memory of the data in bytes; `None` for no limit.
    memory_max: Option<usize>,
    /// The memory besides the data that peers take.
    peer_bytes: usize,
    peak: peak::Peak,
    /// Requests carried out, keys visited for them, and bytes copied, in [`BYTES_PER_WORK`].
    work: u64,
    /// Connections that were woken by a push and have not sent their next request, each with the queue's
    /// name. If that request is not a pop or take, the wakeup passes to the next waiter, so that no wait continues
    /// while the queue has an element.
    reserved_wakeups: HashMap<ConnId, Box<[u8]>>,
    /// Scratch space, empty between calls.
    woken: Vec<Woken>,
    emptied: Vec<Arc<[u8]>>,
    /// Comparisons with known values, for the test that waits with the same known value share one.
    #[cfg(test)]
    comparisons: u64,
}

impl StoreState {
    /// Removes a closed connection: its pending wait, a wakeup that it has not used, and its keys. Its record is kept,
    /// until 16,384 others have closed. A second call has no effect.
    pub(crate) fn disconnect(
        &mut self,
        conn: ConnId,
        reason: CloseReason,
        replies: &mut impl Replies,
    ) {
        self.note_close(conn, reason);
        self.cancel(conn);
        if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, None, replies);
        }
        self.end_extensions_of(conn, replies);
    }

    /// Sets the current time.
    pub(crate) const fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// The current time.
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    /// A measure of the work that all requests so far have caused, in units of about 100 ns: a request counts, as
    /// does each key, wait and kilobyte that it visits. It bounds the time between two readings of the clock.
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

    /// The number of waiting connections.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.waiting()
    }

    /// Sends a piece of a reply, which waits for the position on which the request depends.
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
