//! The event loop's part for new connections: accepts them, and finds out whether they may be served.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use c10d_socket::{
    Refusal, SocketOptions, Stage, Step, configure_accepted, is_tls, loopback_user, own_user,
};
use mio::net::TcpStream;
use mio::{Events, Token};

use super::{EventLoop, Input};
use crate::message::CloseReason;
use crate::server::connection::{Connection, Connections, Phase, conn_id_of};

/// How long a peer of a server with credentials may take to send its first byte. Clients send it when they are
/// connected, so only strangers need more, and each holds a descriptor.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);

impl EventLoop {
    pub(super) fn accept_where_possible(&mut self, events: &Events, now: Instant) {
        for event in events {
            self.acceptor.on_event(event.token().0);
        }
        loop {
            let connections = &self.connections;
            let stage = |token| stage_of(connections, token);
            let open = connections.len();
            match self.listeners.next(&mut self.acceptor, open, stage) {
                Step::Read(token) => self.read(token, true),
                Step::Close(token) => self.refuse_stranger(token, &Refusal::MakesRoom),
                Step::Admit(stream, peer) => self.admit(stream, peer, now),
                Step::Refused(peer, reason) => self.count_refusal(peer, &reason),
                Step::Failed(error) => {
                    let text = format_args!("cannot accept connections, retrying soon: {error}");
                    self.log_about(None, &text);
                }
                Step::Wait => return,
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr, now: Instant) {
        if let Err(error) = configure_accepted(&stream, &SocketOptions::default()) {
            log::debug!("{peer}: cannot set socket options: {error}");
        }
        let deadline = now.checked_add(self.first_byte_timeout());
        let token = self.connections.insert_accepted(stream, peer, deadline);
        let connections = &self.connections;
        self.acceptor
            .admitted(token, |token| stage_of(connections, token));
        self.state.connect(conn_id_of(token), peer);
        self.publish_count();
        if let Some(deadline) = deadline {
            self.timers.add(deadline, token);
        }
        self.update_interest(token);
        log::debug!("accepted {peer} as {:?}", conn_id_of(token));
    }

    /// Detects the protocol of a new connection from its first bytes. Returns `None` if it is closed or handed over.
    pub(super) fn classify(&mut self, token: Token, count: usize) -> Option<Input> {
        let first = self.read_buffer[0];
        if self.is_not_for_the_store(token, first, count) {
            return None;
        }
        let Some(tls) = &self.tls else {
            return Some(Input::Shared(count));
        };
        if !is_tls(first) {
            if self.options.plain_from_same_user && self.is_of_same_user(token) {
                self.set_deadline(token, self.options.handshake_timeout());
                return Some(Input::Shared(count));
            }
            let reason = "it does not use the secret of this server; unmodified PyTorch clients need a relay";
            self.refuse_stranger(token, &reason);
            return None;
        }
        let accepted = self.connections.get_mut(token)?.accepted_mut()?;
        if !self
            .acceptor
            .is_handshake_allowed(accepted.peer.ip(), Instant::now())
        {
            self.refuse_stranger(token, &"too many failed handshakes of its address");
            return None;
        }
        match tls.start() {
            Ok(layer) => accepted.tls = Some(layer),
            Err(error) => {
                self.refuse_stranger(token, &error);
                return None;
            }
        }
        self.set_deadline(token, self.options.handshake_timeout());
        let connections = &self.connections;
        let excess = self
            .acceptor
            .handshake_begun(token, |token| stage_of(connections, token));
        for oldest in excess {
            self.refuse_stranger(oldest, &"handshake limit reached, and it is the oldest");
        }
        self.open(token, count)
    }

    /// Whether a process of the user that runs the server is at the other end, on this machine.
    fn is_of_same_user(&mut self, token: Token) -> bool {
        let connection = self.connections.get(token);
        let Some(accepted) = connection.and_then(Connection::accepted) else {
            return false;
        };
        let (stream, peer) = (&accepted.stream, accepted.peer);
        let user = self.listeners.with_descriptor(|| {
            stream
                .local_addr()
                .and_then(|local| loopback_user(local, peer))
        });
        match user {
            Ok(user) => user == Some(own_user()),
            Err(error) => {
                let text = format_args!("{peer}: cannot find out its user: {error}");
                self.log_about(peer.ip(), &text);
                false
            }
        }
    }

    /// How long a new connection may be silent.
    pub(super) fn first_byte_timeout(&self) -> Duration {
        let handshake_timeout = self.options.handshake_timeout();
        match self.tls {
            None => handshake_timeout,
            Some(_) => handshake_timeout.min(FIRST_BYTE_TIMEOUT),
        }
    }

    /// Closes a connection that may not be served. Bytes that were written to it earlier are still sent, as far as possible.
    pub(super) fn refuse_stranger(&mut self, token: Token, reason: &dyn fmt::Display) {
        let connection = self.connections.get(token);
        let Some(accepted) = connection.and_then(Connection::accepted) else {
            return;
        };
        self.count_refusal(accepted.peer, reason);
        self.close_quietly(token, CloseReason::Refused);
    }

    /// Logs why a peer is refused, unless there are too many such lines.
    pub(super) fn log_refusal(&mut self, peer: SocketAddr, reason: &dyn fmt::Display) {
        self.log_about(peer.ip(), &format_args!("refused {peer}: {reason}"));
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

    /// Logs and counts a peer that is refused.
    pub(super) fn count_refusal(&mut self, peer: SocketAddr, reason: &dyn fmt::Display) {
        if let Some(line) = self.acceptor.on_refused(peer, reason, Instant::now()) {
            log::warn!("{line}");
        }
    }
}

/// How far a connection is on its way to be served.
pub(super) fn stage_of(connections: &Connections, token: Token) -> Stage {
    let Some(connection) = connections.get(token) else {
        return Stage::Closed;
    };
    let tls = connection.accepted().map(|accepted| &accepted.tls);
    match tls {
        Some(Some(tls)) if tls.is_handshaking() => Stage::Handshaking,
        Some(None) if connection.parser.is_new() && connection.phase == Phase::Open => {
            Stage::Silent
        }
        _ => Stage::Served,
    }
}
