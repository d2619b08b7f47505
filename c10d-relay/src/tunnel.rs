//! The connection of an HTTP client, for example `c10d why`, a browser or Prometheus: its bytes go to the store's
//! port and back. HTTP is unencrypted on that port, even if the store has a secret, and each request has its own
//! password. Therefore, the relay passes the bytes on without reading them, and without TLS.
//!
//! Pure, except that it reads and writes: the sockets, the buffer and the time are arguments.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use c10d_socket::SendBuf;
use c10d_store::StoreAddress;

/// The most bytes of one direction that wait for a side that does not take them. Until it does, the other side is not read.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// How long nothing may move. The store's own server closes idle connections after 10 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the store may take to accept the connection: less than the time after which commands stop waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The end of the head of a request.
const HEAD_END: &[u8] = b"\r\n\r\n";

const UNAVAILABLE: &str = "503 Service Unavailable";

/// How long a client may take to close its connection after the last byte for it.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a connection with this first byte speaks HTTP: those of ranks begin with a zero byte.
pub(crate) const fn is_http(first: u8) -> bool {
    first.is_ascii_uppercase()
}

/// A side of a tunnel, which does not block.
pub(crate) trait Side: Read + Write {
    /// Closes the sending direction.
    fn shut(&mut self);
}

/// A tunnel between a client and the store.
#[derive(Debug)]
pub(crate) struct Tunnel<S> {
    client: S,
    /// The store's side, unless it cannot be reached.
    store: Option<S>,
    target: StoreAddress,
    to_store: Flow,
    to_client: Flow,
    /// The store has taken or sent a byte.
    is_connected: bool,
    /// The client has sent the whole head of a request, and nothing of the answer has arrived.
    is_asking: bool,
    /// How many bytes of [`HEAD_END`] have just arrived from the client.
    head_end: usize,
    /// There may be something to move, for which no event will arrive.
    is_ready: bool,
    close_at: Instant,
}

/// One direction.
#[derive(Debug, Default)]
struct Flow {
    unsent: SendBuf,
    /// Nothing more arrives.
    has_ended: bool,
    /// The receiver takes no more. Arriving bytes are read and discarded, so that the system sends no reset.
    is_discarded: bool,
    is_shut: bool,
}

impl<S: Side> Tunnel<S> {
    /// A tunnel of a client that has sent these bytes, to the store `target`. Without a side of the store, the client gets
    /// the reason, which is the rest of a sentence about the relay.
    pub(crate) fn new(
        client: S,
        first: &[u8],
        target: StoreAddress,
        store: Result<S, String>,
        now: Instant,
    ) -> Self {
        let mut tunnel = Self {
            client,
            store: None,
            target,
            to_store: Flow::default(),
            to_client: Flow::default(),
            is_connected: false,
            is_asking: false,
            head_end: 0,
            is_ready: true,
            close_at: now + CONNECT_TIMEOUT,
        };
        tunnel.to_store.unsent.push(first);
        tunnel.look_for_request(first);
        match store {
            Ok(store) => tunnel.store = Some(store),
            Err(reason) => tunnel.answer(UNAVAILABLE, &reason, now),
        }
        tunnel
    }

    /// An event has arrived for one of both sides.
    pub(crate) const fn on_event(&mut self) {
        self.is_ready = true;
    }

    /// Whether to call [`serve`](Self::serve) again without an event.
    pub(crate) const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// When to call [`serve`](Self::serve) even without an event: it closes a tunnel in which nothing has moved.
    pub(crate) const fn close_at(&self) -> Instant {
        self.close_at
    }

    /// Whether the client waits for an answer or has not received all of it. A tunnel without a request makes room for others.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_asking || !self.to_client.unsent.is_empty()
    }

    /// Moves some bytes in each direction, as far as they are there and are taken. Returns whether the tunnel stays open.
    pub(crate) fn serve(&mut self, buffer: &mut [u8], now: Instant) -> bool {
        if self.close_at <= now {
            let has_ended = self.to_client.has_ended;
            match (self.is_connected, self.is_asking) {
                (false, _) if !has_ended => {
                    let text =
                        format!("it has not accepted a connection within {CONNECT_TIMEOUT:?}");
                    self.answer(UNAVAILABLE, &text, now);
                }
                (true, true) if !has_ended => {
                    let text = format!("it has not answered this request within {IDLE_TIMEOUT:?}");
                    self.answer("504 Gateway Timeout", &text, now);
                }
                _ => return false,
            }
        }
        // An error of the client's side closes the tunnel.
        !self.is_ready || self.move_bytes(buffer, now).unwrap_or(false)
    }

    fn move_bytes(&mut self, buffer: &mut [u8], now: Instant) -> io::Result<bool> {
        let was_discarded = self.to_store.is_discarded;
        let arrived = self.to_store.read(&mut self.client, buffer)?;
        self.look_for_request(&buffer[..arrived]);
        let mut passed_on = 0;
        if let Some(store) = &mut self.store {
            let received = self.to_client.read(store, buffer);
            // If it fails, an answer may have arrived before.
            let sent = self.to_store.write(store);
            passed_on += received.as_ref().unwrap_or(&0) + sent.as_ref().unwrap_or(&0);
            self.is_connected |= passed_on > 0;
            self.is_asking &= !matches!(received, Ok(1..));
            match received {
                Err(error) if !self.is_connected => {
                    let text = format!("it cannot be connected: {error}");
                    self.answer(UNAVAILABLE, &text, now);
                }
                Err(_) => self.end_store(),
                Ok(_) if self.to_client.has_ended => self.end_store(),
                Ok(_) if sent.is_err() => self.to_store.discard(),
                Ok(_) => {}
            }
        }
        passed_on += self.to_client.write(&mut self.client)?;
        if passed_on > 0 && !self.to_client.is_shut {
            self.close_at = now + IDLE_TIMEOUT;
        }
        if self.to_client.is_shut {
            self.close_at = self.close_at.min(now + CLOSING_TIMEOUT);
        }
        // Discarding makes room for bytes of the client, for which no further event will arrive.
        self.is_ready = arrived + passed_on > 0 || self.to_store.is_discarded != was_discarded;
        Ok(!self.to_client.is_shut || !self.to_store.has_ended)
    }

    /// Notes whether these bytes of the client complete the head of a request.
    fn look_for_request(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.head_end = match HEAD_END.get(self.head_end) {
                Some(next) if next == byte => self.head_end + 1,
                _ => usize::from(*byte == HEAD_END[0]),
            };
            self.is_asking |= self.head_end == HEAD_END.len();
        }
    }

    /// Answers the client that the store cannot be asked.
    fn answer(&mut self, status: &str, reason: &str, now: Instant) {
        let target = &self.target;
        let text = format!("this is a relay of the store at {target}, and {reason}\n");
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{text}",
            text.len()
        );
        self.to_client.unsent.push(answer.as_bytes());
        self.store = None;
        self.end_store();
        self.is_ready = true;
        self.close_at = now + CLOSING_TIMEOUT;
    }

    /// Nothing more arrives from the store, or can be sent to it. The bytes that it has sent before still reach the client.
    fn end_store(&mut self) {
        self.to_client.has_ended = true;
        self.to_store.discard();
    }
}

impl Flow {
    fn discard(&mut self) {
        self.is_discarded = true;
        self.unsent = SendBuf::new();
    }

    /// Reads once, as much as there is room for. Returns the number of bytes.
    fn read(&mut self, from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
        let room = UNSENT_BYTES_MAX.saturating_sub(self.unsent.unsent_bytes());
        let room = room.min(buffer.len());
        if room == 0 || self.has_ended {
            return Ok(0);
        }
        loop {
            match from.read(&mut buffer[..room]) {
                Ok(0) => self.has_ended = true,
                Ok(count) if self.is_discarded => return Ok(count),
                Ok(count) => {
                    self.unsent.push(&buffer[..count]);
                    return Ok(count);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    // Also while the store's side is connecting.
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => {}
                    _ => return Err(error),
                },
            }
            return Ok(0);
        }
    }

    /// Writes what is taken, and closes the direction after the last byte. Returns the number of bytes.
    fn write(&mut self, to: &mut impl Side) -> io::Result<usize> {
        let before = self.unsent.unsent_bytes();
        match self.unsent.flush(to) {
            // The store's side is connecting.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(0),
            result => result?,
        };
        if self.has_ended && self.unsent.is_empty() && !self.is_shut {
            self.is_shut = true;
            to.shut();
        }
        Ok(before - self.unsent.unsent_bytes())
    }
}

#[cfg(test)]
mod tests;
