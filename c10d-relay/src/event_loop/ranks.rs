//! The event loop's part for ranks: reads their requests and sends their replies.

use std::io::{self, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use c10d_socket::Stage;

use super::EventLoop;
use crate::link::SHORT_READ_DRAINS;
use crate::tunnel::is_http;

/// The most bytes of one rank handled in one turn.
const BYTES_PER_TURN: usize = 1 << 20;

/// How long a rank whose connection the store has closed may take to read its last replies and to close.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

impl EventLoop {
    pub(super) fn read_rank(&mut self, client: u32, to_the_end: bool, now: Instant) {
        let mut budget = BYTES_PER_TURN;
        while let Some(connection) = self.connections.get_mut(&client) {
            let is_closing = match self.hub.rank(client) {
                Some(rank) if rank.is_paused => return,
                Some(rank) => rank.is_closing(),
                None => true,
            };
            let count = match connection.stream.read(&mut self.read_buffer) {
                Ok(0) => return self.close_rank(client),
                Ok(count) => count,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        log::debug!("{}: {error}", connection.peer);
                        return self.close_rank(client);
                    }
                },
            };
            let peer = connection.peer;
            let is_new = connection.stage == Stage::Silent;
            if is_new && is_http(self.read_buffer[0]) {
                return self.open_tunnel(client, count, now);
            }
            if is_new && self.link.is_none() && !self.is_connecting {
                self.connect(now);
            }
            if !is_closing {
                let result = self.hub.receive(client, &self.read_buffer[..count], now);
                if let Err(error) = result {
                    self.refuse(peer, &error);
                    return self.close_rank(client);
                }
            }
            self.advance_handshake(client);
            if count < self.read_buffer.len() && !to_the_end && SHORT_READ_DRAINS {
                return;
            }
            budget = budget.saturating_sub(count);
            if budget == 0 {
                self.ready.insert(client);
                return;
            }
        }
    }

    /// Sends replies, continues with paused ranks, and closes ranks that the store has closed.
    pub(super) fn serve_touched(&mut self, now: Instant) {
        for client in self.hub.take_touched() {
            let was_paused = self.hub.rank(client).is_some_and(|rank| rank.is_paused);
            // This includes a rank that has closed its connection, and whose requests are not all sent.
            if let Err(error) = self.hub.resume(client, now) {
                if let Some(connection) = self.connections.get(&client) {
                    self.refuse(connection.peer, &error);
                }
                self.close_rank(client);
                continue;
            }
            if was_paused && self.hub.rank(client).is_some_and(|rank| !rank.is_paused) {
                self.ready.insert(client);
            }
            self.flush_rank(client);
        }
        // The resumed requests belong to this turn.
        self.hub.end_turn();
    }

    pub(super) fn flush_rank(&mut self, client: u32) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        let Some(rank) = self.hub.rank(client) else {
            return;
        };
        let unsent = rank.down.unsent_bytes();
        let result = rank.down.flush(&mut connection.stream);
        let closing = rank.client.end;
        let read = unsent - rank.down.unsent_bytes();
        self.hub.was_read(client, read);
        match result {
            Err(error) => {
                log::debug!("{}: {error}", connection.peer);
                self.close_rank(client);
            }
            Ok(is_drained) => {
                let Some(reason) = closing else {
                    return;
                };
                // Its input is discarded until it closes, so that the system sends no reset.
                connection.close_by(Instant::now() + CLOSING_TIMEOUT);
                if is_drained && !connection.is_shut {
                    connection.is_shut = true;
                    // It fails if the rank has closed its connection.
                    let _ = connection.stream.shutdown(Shutdown::Write);
                    self.ready.insert(client);
                    let peer = connection.peer;
                    let text = format_args!("the connection of {peer} ends: {reason}");
                    self.log_about(peer.ip(), &text);
                }
            }
        }
    }

    pub(super) fn close_rank(&mut self, client: u32) {
        self.hub.close(client);
        self.connections.remove(&client);
    }

    pub(super) fn close_late(&mut self, now: Instant) {
        let connections = self.connections.iter();
        let late = connections.filter(|(_, it)| it.close_at.is_some_and(|at| at <= now));
        let late: Vec<_> = late
            .map(|(client, it)| (*client, it.peer, it.stage))
            .collect();
        for (client, peer, stage) in late {
            if stage != Stage::Served {
                let limit = self.options.handshake_timeout();
                self.refuse(peer, &format_args!("no handshake within {limit:?}"));
            }
            self.close_rank(client);
        }
    }
}
