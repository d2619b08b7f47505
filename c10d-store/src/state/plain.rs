//! The methods of `extensions/` that the rest of the state calls, for a store without extensions.

use std::net::SocketAddr;

use super::extensions::{Ownership, Recorder, WantedKeys};
use super::waiters::{ListId, Origin};
use super::{Refusal, StoreState};
use crate::message::{CloseReason, ConnId, Keys, Replies, Request};

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
    pub(crate) fn has_checks(&self) -> bool {
        self.memory_max.is_some() || !self.reserved_wakeups.is_empty()
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
