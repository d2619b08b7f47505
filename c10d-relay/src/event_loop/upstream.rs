//! The event loop's part for the store: the link, its loss, and the end of the session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::HostPort;
use c10d_store::unstable::SILENCE_MAX;
use c10d_store::{SessionError, StoreAddress, in_brief};

use super::{EventLoop, LINK};
use crate::connector::Order;
use crate::link::{Link, LinkState};
use crate::status::Upstream;

/// How long after the last bytes of the store the relay acknowledges them, if there is nothing else to send: until
/// then, the store keeps them.
const REPORT_DELAY: Duration = Duration::from_millis(200);

impl EventLoop {
    /// Orders a link. The time limit of the relay runs from here, or from the loss of the last link.
    pub(super) fn connect(&mut self, now: Instant) {
        let from = *self.lost_at.get_or_insert(now);
        let far = now + Duration::from_secs(365 * 86_400);
        let received = self.has_session.then(|| self.hub.stream().received());
        self.is_connecting = true;
        self.status.set(if self.has_session {
            Upstream::Lost
        } else {
            Upstream::Connecting
        });
        self.connector.order(Order {
            received,
            position: self.hub.position(),
            give_up_at: from
                .checked_add(self.options.resume_timeout())
                .unwrap_or(far),
            refused_timeout: self.options.refused_timeout(),
        });
    }

    pub(super) fn take_outcomes(&mut self, now: Instant) {
        while let Some(outcome) = self.connector.outcome() {
            self.is_connecting = false;
            let link = match outcome {
                Ok(link) => link,
                Err(error) => {
                    self.fail(error);
                    continue;
                }
            };
            let server = link.server;
            self.store_address = Some(server);
            let closed = if let Some(restart) = link.restart {
                Some(self.hub.restart(restart, now))
            } else {
                self.hub.go_on(link.is_kept, now);
                None
            };
            if self.hub.stream().attach(link.received_by_server).is_err() {
                self.fail(SessionError::Unknown {
                    server: self.server(),
                    is_same_store: true,
                });
                continue;
            }
            self.silent_at = link.has_heartbeats.then(|| Instant::now() + SILENCE_MAX);
            let (link, received) = match Link::new(link, self.poll.registry(), LINK) {
                Ok(link) => link,
                Err(error) => {
                    log::warn!("{server}: cannot register the connection: {error}");
                    self.connect(now);
                    continue;
                }
            };
            let lost_for = self
                .lost_at
                .take()
                .map_or(0.0, |at| at.elapsed().as_secs_f64());
            match closed {
                Some(0) => log::info!(
                    "connected to the restarted store at {server} after {lost_for:.1} s; nothing is lost"
                ),
                Some(closed) => log::warn!(
                    "connected to the restarted store at {server} after {lost_for:.1} s; {closed} ranks lost connections"
                ),
                None if self.has_session => log::info!(
                    "connected to the store at {server} again after {lost_for:.1} s; nothing is lost"
                ),
                None => log::debug!("connected to the store at {server}"),
            }
            self.has_session = true;
            self.link = Some(link);
            self.is_link_ready = true;
            self.has_link_ended = false;
            self.status.set(Upstream::Connected);
            if let Err(violation) = self.hub.receive_link(&received) {
                self.break_session(violation.to_string());
            }
        }
    }

    /// Whether there may be bytes to read from the link, or bytes that were read before, and room for them. A closed
    /// link has only a few bytes left.
    pub(super) fn may_read_link(&self) -> bool {
        self.may_read() || self.hub.can_continue()
    }

    fn may_read(&self) -> bool {
        self.is_link_ready && (self.has_link_ended || !self.hub.is_full())
    }

    pub(super) fn read_link(&mut self) {
        if let Err(violation) = self.hub.receive_link(&[]) {
            return self.break_session(violation.to_string());
        }
        if !self.may_read() {
            return;
        }
        self.is_link_ready = false;
        let Some(link) = &mut self.link else {
            return;
        };
        let hub = &mut self.hub;
        let mut has_heard = false;
        let result = link.read(&mut self.read_buffer, self.has_link_ended, |bytes| {
            has_heard = true;
            hub.receive_link(bytes)
        });
        if has_heard && let Some(at) = &mut self.silent_at {
            *at = Instant::now() + SILENCE_MAX;
        }
        match result {
            Ok(Ok(LinkState::Idle)) => {}
            Ok(Ok(LinkState::Busy)) => self.is_link_ready = true,
            Ok(Ok(LinkState::Closed)) => self.lose_link("the store has closed it"),
            Ok(Err(violation)) => self.break_session(violation.to_string()),
            Err(error) => self.lose_link(&error.to_string()),
        }
    }

    /// The link is lost if no heartbeat arrives (docs/spec/wire-extensions.md, SESSION 18).
    pub(super) fn watch_silence(&mut self, now: Instant) {
        let Some(at) = self.silent_at else {
            return;
        };
        if self.hub.is_full() {
            // The data that has arrived is not read.
            self.silent_at = Some(now + SILENCE_MAX);
        } else if at <= now && !self.is_link_ready {
            self.lose_link(&format!("it has sent no heartbeat for {SILENCE_MAX:?}"));
        }
    }

    /// The server, for messages.
    fn server(&self) -> HostPort {
        match (&self.target, self.store_address) {
            (StoreAddress::At(target), _) => target.clone(),
            (_, Some(address)) => HostPort::new(address.ip().to_string(), address.port()),
            (looked_up, None) => HostPort::new(looked_up.to_string(), 0),
        }
    }

    pub(super) fn flush_link(&mut self, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        let stream = self.hub.stream();
        let is_report_due = self.report_at.is_some_and(|at| at <= now);
        let result = link.flush(stream).and_then(|()| {
            if is_report_due {
                link.report(stream)
            } else {
                Ok(())
            }
        });
        self.report_at = match self.report_at {
            _ if !stream.has_unreported() => None,
            Some(at) if at > now => Some(at),
            _ => Some(now + REPORT_DELAY),
        };
        if let Err(error) = result {
            self.lose_link(&error.to_string());
        }
    }

    /// The link is lost. The ranks only notice a pause.
    fn lose_link(&mut self, reason: &str) {
        if self.link.take().is_none() || self.hub.is_ended() {
            return;
        }
        // The job may be over, and the store with it.
        let level = match self.finishing {
            Some(_) => log::Level::Debug,
            None => log::Level::Warn,
        };
        let (server, limit) = (self.server(), self.options.resume_timeout());
        log::log!(
            level,
            "lost the connection to the store at {server} ({reason}); reconnecting for up to {limit:?}",
        );
        self.silent_at = None;
        self.report_at = None;
        if let Err(violation) = self.hub.take_backlog() {
            return self.break_session(violation.to_string());
        }
        self.connect(Instant::now());
    }

    /// The store has broken the rules: no link can help.
    fn break_session(&mut self, reason: String) {
        self.link = None;
        self.fail(SessionError::Refused {
            server: self.server(),
            reason,
        });
    }

    /// The session is over, and with it all ranks' connections. The next rank begins another session.
    fn fail(&mut self, error: SessionError) {
        let why = in_brief(&error);
        match self.connections.len() {
            0 => log::error!("{why}"),
            count => log::error!("closing the connections of {count} ranks: {why}"),
        }
        self.link = None;
        self.silent_at = None;
        self.has_session = false;
        self.lost_at = None;
        self.report_at = None;
        self.hub.start_anew();
        self.connections.clear();
        self.ready.clear();
        self.status.set(Upstream::Failed(Arc::new(error)));
    }

    /// Once all ranks have closed their connections, closes the session after all their requests.
    pub(super) fn finish(&mut self, now: Instant) {
        self.finishing = match self.finishing {
            None => self.status.finishes_by().map(|by| (by, false)),
            other => other,
        };
        if let Some((by, false)) = self.finishing
            && self.connections.is_empty()
            && !self.acceptor.has_ready()
            && self.hub.end()
        {
            self.finishing = Some((by, true));
            self.flush_link(now);
        }
    }

    /// Whether the relay is to end, and the store has got everything or nothing more can reach it, or there is no time left.
    pub(super) fn is_finished(&self) -> bool {
        self.finishing.is_some_and(|(by, was_told)| {
            let has_ended = self.hub.is_ended() || !self.has_session && !self.is_connecting;
            // A later process at the address does not have the session.
            let is_lost = self.is_connecting && self.connector.is_refused() && !self.hub.is_kept();
            by.has_passed(Instant::now()) || is_lost || was_told && has_ended
        })
    }

    /// Lets the store drop the session at once, if it can be reached.
    pub(super) fn say_goodbye(&mut self) {
        self.connections.clear();
        if let Some(link) = &mut self.link {
            let stream = self.hub.stream();
            stream.push_end();
            if let Err(error) = link.flush(stream) {
                log::debug!("the store was not told of the end of the relay: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use c10d_store::WireLimits;
    use c10d_store::unstable::SessionLink;
    use mio::Poll;
    use mio::net::TcpStream;

    use super::super::Parts;
    use super::*;
    use crate::connector::Connector;
    use crate::hub::Hub;
    use crate::options::RelayOptions;

    /// docs/spec/wire-extensions.md, SESSION 19. The store does not send these frames again.
    #[test]
    fn the_next_link_is_ordered_with_the_position_of_frames_that_wait() {
        let (connector, orders, outcomes) = Connector::scripted();
        let target = StoreAddress::At(HostPort::new("127.0.0.1", 1));
        let parts = Parts {
            poll: Poll::new().expect("a poll"),
            listeners: Vec::new(),
            hub: Hub::new(WireLimits::default()),
            connector,
            target,
            options: RelayOptions::default(),
            status: Arc::default(),
        };
        let mut event_loop = EventLoop::new(parts).expect("no listener");
        assert_eq!(orders.try_recv().expect("an order").position, 0);
        let store = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = store.local_addr().expect("an address");
        let link = SessionLink {
            socket: TcpStream::connect(server).expect("it listens"),
            tls: None,
            received: Vec::new(),
            server,
            received_by_server: 0,
            restart: None,
            has_heartbeats: false,
            is_kept: true,
        };
        outcomes.send(Ok(link)).expect("the relay runs");
        event_loop.take_outcomes(Instant::now());
        assert!(event_loop.link.is_some());

        event_loop.hub.fill();
        // The head of a link frame, and POSITION 5.
        let link = [
            [9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_slice(),
            &[11, 0, 0, 0, 0, 5, 0, 0, 0],
        ];
        let received = event_loop.hub.receive_link(&link.concat());
        received.expect("no violation");
        assert_eq!(event_loop.hub.position(), 0, "it waits");
        event_loop.lose_link("the test cuts it");
        assert_eq!(orders.try_recv().expect("an order").position, 5);
    }
}
