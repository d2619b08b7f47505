//! Stand-ins for the items of `extensions/` that the rest of the state uses, in a store without extensions. Types that only
//! extensions create have no values. Methods have only the effects that a plain store needs.

use std::net::SocketAddr;
use std::sync::Arc;

use super::slot::Stored;
use super::waiters::{ListId, Origin};
use super::{Refusal, StoreState};
use crate::known::Known;
use crate::message::{CloseReason, ConnId, Keys, Replies, Request};

/// A state without extensions has nothing for them.
#[derive(Debug, Default)]
pub(super) struct Extensions;

impl Extensions {
    pub(super) const fn note_read(&mut self, _conn: ConnId, _read: &Stored) {}
}

/// The place of an effect in the journal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark(());

/// A change that a journal keeps.
pub(super) enum Effect<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Append { key: &'a [u8], bytes: &'a [u8] },
    Delete { key: &'a [u8] },
    Push { key: &'a [u8], element: &'a [u8] },
    Pop { key: &'a [u8], count: u32 },
}

/// The recorder of a journal.
#[derive(Debug)]
pub(crate) enum Recorder {}

impl Recorder {
    pub(super) const fn look(&self, _key: &[u8], _last: Mark) {}

    pub(super) const fn record(&mut self, _last: Mark, _effect: Effect<'_>) -> Mark {
        match *self {}
    }

    pub(super) const fn removed(&mut self, _key: &[u8], _last: Mark) {}

    pub(crate) const fn dependency(&self) -> u64 {
        match *self {}
    }
}

/// The ownership of an ephemeral key.
#[derive(Debug)]
pub(super) enum Ownership {}

impl Ownership {
    pub(super) const fn will_bytes(&self) -> usize {
        match *self {}
    }
}

/// A snapshot in progress.
#[derive(Debug)]
pub(super) enum Copying {}

impl Copying {
    pub(super) const fn copy<S>(&mut self, _key: &Arc<[u8]>, _slot: &mut S, _snapshot: u32) {}
}

/// A deletion of a prefix that is under way.
#[derive(Debug)]
pub(super) enum Sweeping {}

impl Sweeping {
    pub(super) const fn slot_moves(&mut self, _name: &Arc<[u8]>, _from: usize, _to: usize) {}
}

/// The keys of a WAIT_GET.
#[derive(Debug)]
pub(super) enum WantedKeys {}

impl WantedKeys {
    pub(super) const fn bytes(&self) -> usize {
        match *self {}
    }
}

/// The known value of a WAIT_CHANGE.
#[derive(Debug)]
pub(super) enum KnownValue {}

impl KnownValue {
    pub(super) const fn as_known(&self) -> Known<'_> {
        match *self {}
    }
}

impl StoreState {
    pub(crate) const fn connect(&mut self, _conn: ConnId, _peer: SocketAddr) {}

    pub(super) const fn note_close(&mut self, _conn: ConnId, _reason: CloseReason) {}

    pub(super) fn end_extensions_of(&mut self, _conn: ConnId, _replies: &mut impl Replies) {}

    /// Counts the work of a request.
    #[inline]
    pub(crate) fn note_request(&mut self, _conn: ConnId, request: &Request<'_>) {
        self.work += 1 + request.outline().key_count as u64;
    }

    /// A plain PING: the server echoes every nonce, which announces no capability.
    pub(super) const fn answer_to_ping(&self, nonce: u32) -> u32 {
        nonce
    }

    #[cfg(debug_assertions)]
    pub(super) const fn connection_count(&self) -> usize {
        0
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) const fn check_extensions(&self, _owned: usize) {}

    #[inline]
    pub(crate) fn must_check(&self, request: &Request<'_>) -> bool {
        self.may_lack_memory(request) || !self.reserved_wakeups.is_empty()
    }

    pub(crate) fn check_request(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<bool, Refusal> {
        let checked = self.check_memory(request);
        // A refused request also counts as a request: a wakeup passes to the next waiter.
        if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, Some(request), replies);
        }
        checked.map(|()| false)
    }

    pub(super) const fn disown(&mut self, _key: &[u8], ownership: &Ownership) {
        match *ownership {}
    }

    pub(super) const fn keep_waiting_connections(&mut self, _list: ListId) {}

    pub(super) const fn poll_ended(&mut self, _conn: ConnId) {}

    pub(super) const fn is_released(
        &mut self,
        _conn: ConnId,
        _keys: Keys<'_>,
        _replies: &mut impl Replies,
    ) -> bool {
        false
    }

    pub(super) const fn check_again(
        &mut self,
        _conn: ConnId,
        wanted: WantedKeys,
        _origin: Origin,
        _replies: &mut impl Replies,
    ) {
        match wanted {}
    }

    pub(super) fn reply_elements(
        &mut self,
        _conn: ConnId,
        _key: &[u8],
        _max: usize,
        _replies: &mut impl Replies,
    ) {
        unreachable!("no request takes several elements")
    }

    pub(super) const fn extension_bytes(&self) -> usize {
        0
    }

    pub(crate) const fn recorder(&self) -> Option<&Recorder> {
        None
    }

    pub(crate) const fn is_sweeping_for(&self, _conn: ConnId) -> bool {
        false
    }
}
