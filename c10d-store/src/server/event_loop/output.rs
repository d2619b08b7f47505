//! The event loop's part for sending: replies, and the events that the sockets are watched for.

use std::io;
use std::net::Shutdown;
use std::time::Instant;

use mio::Token;

use super::EventLoop;
use crate::server::connection::{Carrier, Phase};
use crate::server::journal_queue::JournalQueue;
use crate::snapshot::CloseReason;

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
        let flushed = match &mut self.keeping {
            Some(JournalQueue {
                authority: Some(authority),
                withheld,
                ..
            }) => accepted.flush_with(authority).map(|(drained, is_shut)| {
                if is_shut {
                    withheld.insert(token);
                }
                drained
            }),
            _ => accepted.flush(),
        };
        let drained = match flushed {
            Ok(drained) => drained,
            Err(error) => return self.close(token, CloseReason::Failed, &error),
        };
        let sent_bytes = unsent_bytes - accepted.out.unsent_bytes();
        self.traffic.sent_bytes += sent_bytes as u64;
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
