//! The event loop's part for memory that peers take: long requests arrive one at a time when it is scarce, and the peers that
//! hold most are refused when it is too much.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use mio::Token;

use super::EventLoop;
use crate::message::CloseReason;
use crate::server::budget::Relief;
use crate::server::connection::{Carrier, Connection, InputTurn, Peer};

/// How often to find out which values peers have read, because that costs a check of each value.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl EventLoop {
    /// Whether the rest of the peer's request waits until others are complete. The peer continues later.
    ///
    /// The request that has the turn may be longer than the free memory. Its memory counts with each read, which is
    /// short, so the sum has the same limit: when there is too much, the peer of the longest request is closed.
    pub(super) fn must_pause_input(&mut self, token: Token) -> bool {
        let is_scarce = self.connections.budget.is_scarce();
        let is_free = self.inputs.turn() == Some(token) || self.has_input_arrived();
        let Some(connection) = self.connections.get_mut(token) else {
            return false;
        };
        let bytes = connection.input_bytes();
        match connection.input_turn {
            _ if !connection.has_long_input() => connection.input_turn = InputTurn::Any,
            InputTurn::Any if is_scarce && is_free => {
                connection.input_turn = InputTurn::Has;
                self.inputs.begin(token, bytes, Instant::now());
            }
            InputTurn::Any if is_scarce => {
                connection.input_turn = InputTurn::Waits;
                connection.parser.shrink();
                self.inputs.wait(token);
            }
            InputTurn::Has => self.inputs.progress(token, bytes, Instant::now()),
            InputTurn::Any | InputTurn::Waits => {}
        }
        connection.input_turn == InputTurn::Waits
    }

    /// Whether no request with a turn is still arriving.
    fn has_input_arrived(&self) -> bool {
        let turn = self.inputs.turn();
        let turn = turn.and_then(|token| self.connections.get(token));
        !turn.is_some_and(Connection::has_long_input)
    }

    /// Whether a request that waits in part can continue: there is room, or it is its turn.
    pub(super) fn can_continue_inputs(&self) -> bool {
        let has_room = !self.connections.budget.is_scarce();
        self.inputs.can_continue(has_room, self.has_input_arrived())
    }

    /// Lets requests that wait in part continue if there is room, or if it is their turn. Flushes no connection.
    pub(super) fn continue_inputs(&mut self, now: Instant) {
        loop {
            let has_room = !self.connections.budget.is_scarce();
            let has_arrived = self.has_input_arrived();
            let Some(token) = self.inputs.take(has_room, has_arrived, now) else {
                return;
            };
            let Some(connection) = self.connections.get_mut(token) else {
                continue;
            };
            if connection.input_turn != InputTurn::Waits {
                continue;
            }
            connection.input_turn = InputTurn::Any;
            if !has_room {
                connection.input_turn = InputTurn::Has;
                self.inputs.begin(token, connection.input_bytes(), now);
            }
            match connection.carrier {
                Carrier::Socket(_) => {
                    self.resume(token);
                    self.update_interest(token);
                }
                Carrier::Session(_) => self.return_credit(token),
            }
        }
    }

    /// Closes the peers that have the server keep most, if peers have it keep more than they may. A session is one peer.
    pub(super) fn relieve(&mut self) {
        self.set_budget();
        if !self.connections.budget.must_look() {
            return;
        }
        self.forget_read();
        if !self.connections.budget.is_exceeded() {
            return;
        }
        let lent = match self.connections.budget.is_mostly_lent() {
            true => self.state.lent_values(),
            false => HashSet::new(),
        };
        let mut peers: BTreeMap<Peer, usize> = self.connections.kept_by_peer(&lent);
        self.add_sessions(&mut peers);
        let mut relief = Relief::new(peers);
        loop {
            let batch = relief.next_batch(self.connections.budget.excess());
            if batch.is_empty() {
                return;
            }
            for (peer, bytes) in batch {
                self.end_peer(peer, bytes);
            }
            self.forget_read();
        }
    }

    /// Forgets the values that peers have read, once a second while there are some.
    pub(super) fn look_at_lent(&mut self, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.forget_read();
            self.look_at = None;
        }
        if self.state.lent_bytes() > 0 && self.look_at.is_none() {
            self.look_at = Some(now + LOOK_INTERVAL);
        }
    }

    /// Looks which values peers have read, at each.
    fn forget_read(&mut self) {
        self.state.forget_read();
        self.set_budget();
        self.connections.budget.looked();
    }

    fn end_peer(&mut self, peer: Peer, bytes: usize) {
        let address = match peer {
            Peer::Connection(_, address) => Some(address.ip()),
            Peer::Session(slot) => self.session_peer(slot),
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

    /// Passes the memory of the data to the budget.
    fn set_budget(&mut self) {
        let state = &self.state;
        let (limit, data) = (state.memory_max(), state.memory());
        self.connections.budget.set(limit, data, state.lent_bytes());
        self.state.set_peer_bytes(self.connections.budget.taken());
    }
}
