//! Admits new connections to the event loop: accepts connections of this relay's user, and closes connections that do not
//! complete the handshake.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use c10d_socket::{
    Refusal, SocketOptions, Stage, Step, configure_accepted, loopback_user, own_user,
};
use mio::net::TcpStream;
use mio::{Interest, Token};

use super::{Connection, Connections, EventLoop, Tunnels};

impl EventLoop {
    pub(super) fn accept(&mut self, now: Instant) {
        loop {
            let (connections, tunnels) = (&self.connections, &self.tunnels);
            let stage = |client| stage_of(connections, tunnels, client);
            let open = connections.len();
            match self.listeners.next(&mut self.acceptor, open, stage) {
                Step::Read(client) => self.read_rank(client, true, now),
                Step::Close(client) => self.close_stranger(client, &Refusal::MakesRoom),
                Step::Admit(stream, peer) => self.admit(stream, peer, now),
                Step::Refused(peer, reason) => self.refuse(peer, &reason),
                Step::Failed(error) => {
                    let text =
                        format_args!("the relay cannot accept connections, retrying soon: {error}");
                    self.log_about(None, &text);
                }
                Step::Wait => return,
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) {
        let user = self.listeners.with_descriptor(|| {
            stream
                .local_addr()
                .and_then(|local| loopback_user(local, peer))
        });
        match user {
            Ok(user) if user == Some(own_user()) => {}
            Ok(_) => return self.refuse(peer, &"it is not of the user that runs this relay"),
            Err(error) => {
                let reason = format!("its user cannot be found out: {error}");
                return self.refuse(peer, &reason);
            }
        }
        if let Err(error) = configure_accepted(&stream, &SocketOptions::default()) {
            log::debug!("{peer}: cannot set socket options: {error}");
        }
        let Some(client) = self.hub.open(peer.port()) else {
            return self.refuse(peer, &"this relay has served 4 billion connections");
        };
        let both = Interest::READABLE | Interest::WRITABLE;
        let token = Token(client as usize);
        if let Err(error) = self.poll.registry().register(&mut stream, token, both) {
            let text = format_args!("{peer}: cannot register the connection: {error}");
            self.log_about(peer.ip(), &text);
            return self.hub.close(client);
        }
        let connection = Connection {
            stream,
            peer,
            close_at: now.checked_add(self.options.handshake_timeout()),
            is_shut: false,
            stage: Stage::Silent,
        };
        self.connections.insert(client, connection);
        let (connections, tunnels) = (&self.connections, &self.tunnels);
        self.acceptor
            .admitted(client, |client| stage_of(connections, tunnels, client));
    }

    /// Notes the stage of a connection that has received something.
    pub(super) fn advance_handshake(&mut self, client: u32) {
        let Some(connection) = self.connections.get_mut(&client) else {
            return;
        };
        if connection.stage == Stage::Served {
            return;
        }
        if self.hub.is_greeted(client) {
            connection.stage = Stage::Served;
            connection.close_at = None;
        } else if connection.stage == Stage::Silent {
            connection.stage = Stage::Handshaking;
            self.note_unproven(client);
        }
    }

    /// Notes a connection that makes room for ranks: one in its handshake, or a tunnel.
    pub(super) fn note_unproven(&mut self, client: u32) {
        let (connections, tunnels) = (&self.connections, &self.tunnels);
        let stage = |client| stage_of(connections, tunnels, client);
        for oldest in self.acceptor.handshake_begun(client, stage) {
            self.close_stranger(oldest, &"handshake limit reached, and it is the oldest");
        }
    }

    /// Closes a connection that has not completed the handshake.
    pub(super) fn close_stranger(&mut self, client: u32, reason: &dyn fmt::Display) {
        self.tunnels.remove(&client);
        if let Some(connection) = self.connections.get(&client) {
            self.refuse(connection.peer, reason);
            self.close_rank(client);
        }
    }

    /// Logs why a peer is refused, unless there are too many such lines.
    pub(super) fn refuse(&mut self, peer: SocketAddr, reason: &dyn fmt::Display) {
        if let Some(line) = self.acceptor.on_refused(peer, reason, Instant::now()) {
            log::warn!("{line}");
        }
    }

    /// Logs what a peer has caused, unless there are too many such lines.
    pub(super) fn log_about(
        &mut self,
        address: impl Into<Option<IpAddr>>,
        text: &dyn fmt::Display,
    ) {
        if let Some(line) = self.acceptor.line(address, text, Instant::now()) {
            log::warn!("{line}");
        }
    }
}

/// Returns the stage of a connection on its way to be served. Ranks need descriptors more than pages do, so that a
/// tunnel always makes room.
fn stage_of(connections: &Connections, tunnels: &Tunnels, client: u32) -> Stage {
    match connections.get(&client) {
        Some(connection) => connection.stage,
        None if tunnels.contains_key(&client) => Stage::Handshaking,
        None => Stage::Closed,
    }
}
