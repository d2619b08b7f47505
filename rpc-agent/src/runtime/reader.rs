//! Reads the connections: for the poller, or for a caller that waits for its own answer.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use c10d_socket::{Deadline, recv_into_spare, wait_for_either, wait_for_input};

use super::driver::{Driver, Served};
use super::entry::PeerEntry;
use super::socket::Socket;
use crate::peer::{ConnectionId, Incoming, Message, ReadNext, Reads, Recipient};

/// Bytes read from one connection before others get their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadEnd {
    /// There is no more for now; the poller will report it.
    Drained,
    /// There is more, and others have their turn.
    More,
    /// Another thread reads, or the connection has ended.
    NotMine,
}

/// Reads what has arrived from a peer; the requests in it that may run go to `admitted`.
pub(super) fn read(
    driver: &Driver,
    peer: &Arc<PeerEntry>,
    connection: ConnectionId,
    reads: Reads,
    admitted: &mut impl Extend<Served>,
) -> ReadEnd {
    let (socket, mut decoder, mut to_end) = {
        let mut state = peer.lock();
        let Some((decoder, to_end)) = state.core.take_reader(connection, reads) else {
            return ReadEnd::NotMine;
        };
        let Some((_, socket)) = state.core.connection() else {
            return ReadEnd::NotMine;
        };
        (Arc::clone(socket), decoder, to_end)
    };
    let mut read_bytes = 0;
    loop {
        let got = receive(driver, peer, &socket, &mut decoder);
        let (count, bytes_max, messages, failure) = match got {
            Ok(Got::Nothing) => (0, 0, Vec::new(), None),
            Ok(Got::Bytes {
                count,
                bytes_max,
                messages,
                failure,
            }) => (count, bytes_max, messages, failure),
            Err(error) => (0, 0, Vec::new(), Some(error)),
        };
        read_bytes += count;
        // A stream that gave less than it could has no more; an edge reports what comes. But no other edge reports an
        // end that was reported along with these bytes.
        let is_drained = count == 0 || count < bytes_max && !to_end;
        let is_more = !is_drained && read_bytes >= READ_BYTES_MAX;
        let ends = is_drained || is_more;
        if messages.is_empty() && failure.is_none() && !ends {
            continue;
        }
        let is_connected = driver.step_into(peer, admitted, |core, effects| {
            let (now, is_pool_thread) = (Instant::now(), driver.pool.is_own_thread());
            let is_connected = core.received(connection, messages, is_pool_thread, now, effects);
            if let Some(error) = failure {
                core.connection_lost(connection, error, effects);
                return false;
            }
            is_connected
        });
        if !is_connected {
            return ReadEnd::NotMine;
        }
        if !ends {
            continue;
        }
        // Only now that the calls are completed: a caller that borrows the connection checks its call first, and
        // would wait for an answer that was read already.
        let next = driver.step(peer, |core, _| {
            core.give_back_reader(connection, decoder, is_drained)
        });
        match next {
            ReadNext::Stop if is_more => return ReadEnd::More,
            ReadNext::Stop => return ReadEnd::Drained,
            ReadNext::Again {
                decoder: same,
                to_end: until_end,
            } => {
                (decoder, to_end) = (same, until_end);
                read_bytes = 0;
            }
        }
    }
}

/// A caller reads its own answer: while it waits the poller leaves the connection to it, which saves waking a second
/// thread for the answer. It reads what comes for others as well, and leaves requests and callbacks to the pool.
pub(crate) fn read_while_waiting(
    driver: &Driver,
    peer: &Arc<PeerEntry>,
    is_complete: &dyn Fn() -> bool,
    deadline: Deadline,
) {
    let Some((connection, socket)) = driver.step(peer, |core, _| core.lend()) else {
        return;
    };
    let mut admitted = Vec::new();
    while !is_complete() {
        // Nobody wakes this thread when a call expires, its own perhaps: it expires them itself.
        let Some((for_output, next_ms)) = driver.begin_lent_wait(peer, connection) else {
            break;
        };
        if is_complete() {
            // It expired before its deadline was looked up, which is another call's.
            break;
        }
        let next = next_ms.map_or(Deadline::NEVER, |ms| driver.clock.at_ms(ms));
        let left = deadline.min(next).remaining(Instant::now());
        let ready = if for_output {
            wait_for_either(&socket.stream, left)
        } else {
            wait_for_input(&socket.stream, left)
        };
        match ready {
            Ok(true) if for_output => {
                driver.step(peer, |core, effects| core.writable(connection, effects));
            }
            Ok(true) => {}
            Ok(false) => {
                let now = Instant::now();
                driver.expire(peer, driver.clock.ms_of(now));
                if deadline.has_passed(now) {
                    break;
                }
                continue;
            }
            Err(error) => {
                log::error!("{}: cannot wait for an answer: {error}", driver.me());
                break;
            }
        }
        let end = read(driver, peer, connection, Reads::ForCaller, &mut admitted);
        if !admitted.is_empty() {
            driver.pool.submit(admitted.drain(..));
        }
        driver.flush();
        // A peer that sends without a pause would keep it reading.
        if end == ReadEnd::NotMine || deadline.has_passed(Instant::now()) {
            break;
        }
    }
    driver.step(peer, |core, _| core.end_lending(connection));
}

enum Got {
    Nothing,
    Bytes {
        count: usize,
        /// The most that could have been read.
        bytes_max: usize,
        messages: Vec<Message>,
        /// The bytes break the protocol after these messages.
        failure: Option<io::Error>,
    },
}

/// Reads once.
fn receive(
    driver: &Driver,
    peer: &PeerEntry,
    socket: &Socket,
    decoder: &mut Incoming,
) -> io::Result<Got> {
    let (buffer, bytes_max) = decoder.spare();
    let count = match recv_into_spare(&socket.stream, buffer, bytes_max) {
        Ok(0) => {
            let text = "closed by the peer";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Got::Nothing),
        Err(error) => return Err(error),
    };
    driver.metrics.received(&peer.metrics, count);
    let mut inbox = Inbox {
        driver,
        peer,
        messages: Vec::new(),
    };
    let failure = decoder.received(&mut inbox).err();
    Ok(Got::Bytes {
        count,
        bytes_max,
        messages: inbox.messages,
        failure: failure.map(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
    })
}

/// Collects messages, and says which large answers are awaited.
struct Inbox<'a> {
    driver: &'a Driver,
    peer: &'a PeerEntry,
    messages: Vec<Message>,
}

impl Recipient for Inbox<'_> {
    fn wants_response(&mut self, id: u64) -> bool {
        let is_wanted = self.peer.lock().core.is_awaited(id);
        if !is_wanted {
            // Asked once for each, as the rest of it is skipped.
            self.driver.metrics.late_response();
        }
        is_wanted
    }

    fn take(&mut self, message: Message) {
        if matches!(message, Message::Request { .. }) {
            self.driver.metrics.requests_received(1);
        }
        self.messages.push(message);
    }
}
