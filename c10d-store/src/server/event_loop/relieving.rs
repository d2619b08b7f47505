//! The event loop's part for memory that peers take: those that hold most are refused when it is too much.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::EventLoop;
use crate::server::connection::Peer;
use crate::snapshot::CloseReason;

/// To find out which values peers have read costs a look at each.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl EventLoop {
    /// Closes the peers that have the server keep most, if peers have it keep more than they may. A session is one peer.
    pub(super) fn relieve(&mut self) {
        self.set_budget();
        if !self.connections.budget.is_exceeded() {
            return;
        }
        self.state.forget_read();
        self.set_budget();
        if !self.connections.budget.is_exceeded() {
            return;
        }
        let mut peers: BTreeMap<Peer, usize> = self.connections.kept_by_peer();
        for (slot, bytes) in self.sessions.kept() {
            *peers.entry(Peer::Session(slot)).or_default() += bytes;
        }
        let mut peers: Vec<_> = peers.into_iter().collect();
        peers.sort_unstable_by_key(|(_, bytes)| *bytes);
        while !self.connections.budget.is_relieved()
            && let Some((peer, bytes)) = peers.pop()
        {
            self.end_peer(peer, bytes);
            if self.connections.budget.is_mostly_lent() {
                self.state.forget_read();
            }
            self.set_budget();
        }
    }

    /// Once a second while there are some: forgets the values that peers have read.
    pub(super) fn look_at_lent(&mut self, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.state.forget_read();
            self.set_budget();
            self.look_at = None;
        }
        if self.state.lent_bytes() > 0 && self.look_at.is_none() {
            self.look_at = Some(now + LOOK_INTERVAL);
        }
    }

    fn end_peer(&mut self, peer: Peer, bytes: usize) {
        let address = match peer {
            Peer::Connection(_, address) => Some(address.ip()),
            Peer::Session(slot) => self.sessions.get_mut(slot).map(|session| session.peer),
        };
        if let Some(address) = address {
            let text = format_args!(
                "refused {address}: the memory limit is reached, and no peer has more replies unread and requests unfinished: \
                 {bytes} bytes"
            );
            self.log_about(address, &text);
        }
        match peer {
            Peer::Connection(token, _) => self.close_quietly(token, CloseReason::Refused),
            Peer::Session(slot) => self.end_session(slot, CloseReason::Refused),
        }
    }

    /// Tells the budget what the data takes.
    fn set_budget(&mut self) {
        let state = &self.state;
        let (limit, data) = (state.memory_max(), state.memory());
        self.connections.budget.set(limit, data, state.lent_bytes());
    }
}
