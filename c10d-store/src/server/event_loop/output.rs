//! The event loop's part for sending: replies, and the events that the sockets are watched for.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::time::Instant;

use c10d_socket::Moment;
use mio::Token;
use mio::net::TcpStream;

use super::EventLoop;
use crate::message::CloseReason;
use crate::server::connection::{Accepted, Carrier, Phase};
use crate::server::extensions::Authority;

impl EventLoop {
    /// Sends new replies, including those caused by connections that fail while sending. Those of sessions' clients only
    /// until the turn is over, and the rest in the next iteration: one short frame has replies made for a thousand.
    pub(super) fn flush_touched(&mut self) {
        loop {
            while !self.turn.is_turn_over()
                && let Some(client) = self.connections.next_touched_client()
            {
                self.flush_client(client);
            }
            if !self.connections.has_touched() {
                return;
            }
            let touched = self.connections.take_touched();
            for token in &touched {
                self.flush(*token);
            }
            self.connections.reuse_touched(touched);
        }
    }

    pub(super) fn flush(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        match &connection.carrier {
            Carrier::Session(_) => self.flush_client(token),
            Carrier::Socket(accepted) if accepted.link().is_some() => self.flush_link(token),
            Carrier::Socket(_) => self.flush_socket(token),
        }
    }

    pub(super) fn flush_socket(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let overflowed = connection.has_overflowed();
        let Some(accepted) = connection.accepted_mut() else {
            return;
        };
        if overflowed {
            let error = io::Error::other(format!(
                "unread replies exceed the limit of {} bytes, or the memory limit",
                self.options.unsent_bytes_max()
            ));
            let peer = accepted.peer;
            self.log_refusal(peer, &error);
            return self.close(token, CloseReason::Refused, &error);
        }
        let unsent_bytes = accepted.out.unsent_bytes();
        let (drained, is_shut) = match send(accepted, self.extensions.authority()) {
            Ok(sent) => sent,
            Err(error) => return self.close(token, CloseReason::Failed, &error),
        };
        let sent_bytes = unsent_bytes - accepted.out.unsent_bytes();
        self.traffic.sent_bytes += sent_bytes as u64;
        if is_shut {
            self.withhold(token);
        }
        self.turn.moved(sent_bytes, Instant::now);
        self.connections.recount(token);
        self.resume_if_read(token);
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if drained && !connection.is_held() {
            match connection.phase {
                Phase::Open => {}
                Phase::Finishing => return self.close_quietly(token, CloseReason::Peer),
                Phase::Refusing => {
                    let shut = connection
                        .accepted()
                        .map_or(Ok(()), |it| it.stream.shutdown(Shutdown::Write));
                    if let Err(error) = shut {
                        return self.close(token, CloseReason::Refused, &error);
                    }
                }
            }
        }
        self.update_interest(token);
    }

    pub(super) fn update_interest(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let wanted = connection.interest();
        let Some(accepted) = connection.accepted_mut() else {
            return;
        };
        if wanted == accepted.registered {
            return;
        }
        let registry = self.poll.registry();
        let stream = &mut accepted.stream;
        let result = match (accepted.registered, wanted) {
            (None, Some(wanted)) => registry.register(stream, token, wanted),
            (Some(_), Some(wanted)) => registry.reregister(stream, token, wanted),
            (_, None) => registry.deregister(stream),
        };
        accepted.registered = wanted;
        if let Err(error) = result {
            let peer = accepted.peer;
            let text = format_args!("{peer}: cannot register the connection: {error}");
            self.log_about(peer.ip(), &text);
            self.close(token, CloseReason::Failed, &error);
        }
    }

    /// Continues with the requests of a connection that has read enough of its replies.
    pub(super) fn resume_if_read(&mut self, token: Token) {
        let connection = self.connections.get(token);
        if connection.is_some_and(|connection| connection.flow.is_paused())
            && self.connections.may_continue(token)
        {
            self.resume(token);
        }
    }
}

/// Sends until everything is sent, the system accepts no more, or the right to answer may have passed. Returns whether
/// everything is sent, and whether the right has passed.
fn send(accepted: &mut Accepted, authority: Option<&Authority>) -> io::Result<(bool, bool)> {
    let mut gate = Gate {
        stream: &mut accepted.stream,
        authority,
        is_shut: false,
    };
    let drained = match &mut accepted.tls {
        None => accepted.out.flush(&mut gate)?,
        Some(tls) => {
            let is_sealed = accepted.out.flush(&mut tls.sealing(&mut gate))?;
            tls.send(&mut gate)? && is_sealed
        }
    };
    Ok((drained, gate.is_shut))
}

/// A socket that takes nothing while the authority, if there is one, is not valid. The clock is read immediately before
/// each write: the process may have been stopped since the request was carried out.
struct Gate<'g> {
    stream: &'g mut TcpStream,
    authority: Option<&'g Authority>,
    /// Whether it has refused a write.
    is_shut: bool,
}

impl Gate<'_> {
    fn check(&mut self) -> io::Result<()> {
        if self.authority.is_none_or(|it| it.is_valid(Moment::now())) {
            return Ok(());
        }
        self.is_shut = true;
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Gate<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        self.stream.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
