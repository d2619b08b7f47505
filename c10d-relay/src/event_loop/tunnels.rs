//! The event loop's part for HTTP: opens tunnels to the store, and serves them.

use std::io;
use std::net::Shutdown;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Token};

use super::EventLoop;
use crate::status::Upstream;
use crate::tunnel::{Side, Tunnel};

/// The most tunnels: a few people, commands and a Prometheus of this machine. Beyond that, the tunnel makes room whose client
/// has asked nothing for the longest time; if all of them wait for answers, the new client gets 503.
const TUNNELS_MAX: usize = 32;

/// The most tunnels together with those that only bring a 503.
const TUNNELS_AND_REFUSED_MAX: usize = 2 * TUNNELS_MAX;

/// The store's side of a tunnel has this token plus the number of its client. The client's side has the number as token.
const STORE_SIDES: usize = usize::MAX / 2;

impl EventLoop {
    /// Takes an event. Returns whether it is one of a tunnel.
    pub(super) fn on_tunnel_event(&mut self, token: usize) -> bool {
        let client = token.checked_sub(STORE_SIDES).unwrap_or(token);
        let client = u32::try_from(client).ok();
        let tunnel = client.and_then(|client| self.tunnels.get_mut(&client));
        tunnel.map(Tunnel::on_event).is_some()
    }

    /// Makes a tunnel of a new connection, whose first bytes are in the read buffer.
    pub(super) fn open_tunnel(&mut self, client: u32, count: usize, now: Instant) {
        let Some(connection) = self.connections.remove(&client) else {
            return;
        };
        self.hub.close(client);
        let store = if self.make_room_for_tunnel() {
            self.connect_tunnel(client, now)
        } else {
            let text =
                "an HTTP client gets 503: all connections for HTTP wait for answers of the store";
            self.log_about(connection.peer.ip(), &text);
            if self.tunnels.len() >= TUNNELS_AND_REFUSED_MAX {
                return;
            }
            Err(format!(
                "all of its {TUNNELS_MAX} connections for HTTP wait for answers"
            ))
        };
        let first = &self.read_buffer[..count];
        let tunnel = Tunnel::new(connection.stream, first, self.target.clone(), store, now);
        self.tunnels.insert(client, tunnel);
        self.note_unproven(client);
    }

    /// Returns whether there is room for one more tunnel.
    fn make_room_for_tunnel(&mut self) -> bool {
        if self.tunnels.len() < TUNNELS_MAX {
            return true;
        }
        let idle = self.tunnels.iter().filter(|(_, tunnel)| !tunnel.is_busy());
        let oldest = idle.min_by_key(|(_, tunnel)| tunnel.close_at());
        let oldest = oldest.map(|(client, _)| *client);
        oldest.is_some_and(|client| self.tunnels.remove(&client).is_some())
    }

    /// Begins a connection to the store's port.
    ///
    /// # Errors
    /// The reason, as the rest of a sentence about the relay.
    fn connect_tunnel(&self, client: u32, now: Instant) -> Result<TcpStream, String> {
        let address = self.store_address.filter(|_| self.link.is_some());
        let Some(address) = address else {
            if let Upstream::Failed(error) = self.status.get() {
                return Err(error.to_string());
            }
            let lost_at = self.lost_at.unwrap_or(now);
            let age = now.saturating_duration_since(lost_at).as_secs();
            return Err(format!("it has had no connection to it for {age} s"));
        };
        let connect = || {
            let mut stream = TcpStream::connect(address)?;
            // The parts of a request do not wait for each other.
            stream.set_nodelay(true)?;
            let both = Interest::READABLE | Interest::WRITABLE;
            let token = Token(STORE_SIDES + client as usize);
            self.poll.registry().register(&mut stream, token, both)?;
            Ok(stream)
        };
        connect().map_err(|error: io::Error| format!("it cannot be connected: {error}"))
    }

    pub(super) fn serve_tunnels(&mut self, now: Instant) {
        let buffer = &mut self.read_buffer;
        self.tunnels.retain(|_, tunnel| tunnel.serve(buffer, now));
    }
}

impl Side for TcpStream {
    fn shut(&mut self) {
        // It fails if the peer has left.
        let _ = self.shutdown(Shutdown::Write);
    }
}
