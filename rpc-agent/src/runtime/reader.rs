//! Reads the connections: for the poller, or for a caller that waits for its own answer.

use std::sync::{Arc, Weak};
use std::time::Instant;

use c10d_socket::{Cancel, Deadline, wait_for_either, wait_for_input};

use super::driver::{Driver, Served};
use super::peers::{Core, CoreEffects, PeerEntry};
use super::tls::Received;
use super::tls::SealedReads;
use crate::future::{Executor, Hint, Job};
use crate::peer::{Connection, ConnectionId, FunctionId, Message, ReadNext, Reads, Recipient};
use crate::segmented_queue::SegmentedQueue;

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

/// Memory that a thread uses for one read after another.
#[derive(Default)]
pub(super) struct ReadBuffers {
    messages: SegmentedQueue<Message>,
    effects: CoreEffects,
    sealed: SealedReads,
}

/// Reads the bytes that have arrived from a peer; the requests in it that may run go to `admitted`.
pub(super) fn read(
    driver: &Driver,
    peer: &Arc<PeerEntry>,
    connection: ConnectionId,
    reads: Reads,
    buffers: &mut ReadBuffers,
    admitted: &mut impl Extend<Served>,
) -> ReadEnd {
    let (socket, mut decoder, mut to_end) = {
        let mut state = peer.lock();
        let Some(current) = state.core.connected_by(connection) else {
            return ReadEnd::NotMine;
        };
        let Some((decoder, to_end)) = current.take_reader(reads) else {
            return ReadEnd::NotMine;
        };
        (Arc::clone(&current.socket), decoder, to_end)
    };
    let mut read_bytes = 0;
    loop {
        let mut inbox = Inbox {
            driver,
            peer,
            messages: &mut buffers.messages,
        };
        let Received {
            count,
            bytes_max,
            plain_bytes,
            failure,
        } = socket.receive(&mut decoder, &mut buffers.sealed, &mut inbox);
        if count > 0 {
            driver.metrics.received(plain_bytes);
        }
        read_bytes += count;
        // A stream that gave less than it could has no more; an edge reports later bytes. But no other edge reports
        // an end that was reported along with these bytes.
        let is_drained = count == 0 || count < bytes_max && !to_end;
        let is_more = !is_drained && read_bytes >= READ_BYTES_MAX;
        let ends = is_drained || is_more;
        if buffers.messages.is_empty() && failure.is_none() && !ends {
            continue;
        }
        let messages = buffers.messages.drain();
        let is_connected = driver.step_with(peer, &mut buffers.effects, admitted, |core| {
            let is_connected = core.received(connection, messages, Instant::now());
            if let Some(error) = failure {
                core.connection_lost(connection, error);
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
        let next = driver.change(peer, |core| {
            let current = core.connected_by(connection)?;
            Some(current.give_back_reader(decoder, is_drained))
        });
        match next {
            None | Some(ReadNext::Stop) if is_more => return ReadEnd::More,
            None | Some(ReadNext::Stop) => return ReadEnd::Drained,
            Some(ReadNext::Again {
                decoder: same,
                to_end: until_end,
            }) => {
                (decoder, to_end) = (same, until_end);
                read_bytes = 0;
            }
        }
    }
}

/// A caller reads its own answer: while it waits, the poller leaves the connection to it, which saves waking a second
/// thread for the answer. It also reads messages for other calls, and leaves requests and callbacks to the pool.
fn read_while_waiting(
    driver: &Driver,
    peer: &Arc<PeerEntry>,
    is_complete: &dyn Fn() -> bool,
    deadline: Deadline,
) {
    let Some((connection, socket)) = driver.change(peer, Core::lend) else {
        return;
    };
    let (mut buffers, mut admitted) = (ReadBuffers::default(), Vec::new());
    while !is_complete() {
        // This thread gets no wake-up when a call expires, which may be its own: it expires the calls itself.
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
            wait_for_either(&socket.stream, left, &Cancel::NEVER)
        } else {
            wait_for_input(&socket.stream, left, &Cancel::NEVER)
        };
        match ready {
            Ok(true) if for_output => {
                driver.step(peer, |core| core.writable(connection));
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
        let reads = Reads::ForCaller;
        let end = read(driver, peer, connection, reads, &mut buffers, &mut admitted);
        if !admitted.is_empty() {
            driver.pool.submit(admitted.drain(..));
        }
        driver.flush();
        // A peer that sends without a pause would keep it reading.
        if end == ReadEnd::NotMine || deadline.has_passed(Instant::now()) {
            break;
        }
    }
    driver.change(peer, |core| {
        core.connected_by(connection).map(Connection::end_lending)
    });
}

/// The agent as its futures see it: it runs their callbacks, and helps a thread that waits for one. Does not keep the agent
/// alive: a future may outlive it.
impl Executor for Weak<Driver> {
    fn execute(&self, job: Job) {
        match self.upgrade() {
            Some(driver) => driver.call_back(job),
            None => job(),
        }
    }

    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    ) {
        let Some(driver) = self.upgrade() else {
            return block();
        };
        driver.flush();
        let _waiting = driver.pool.enter_wait();
        // The low half is the id.
        let id = (hint.0 & u64::from(u32::MAX)) as u32;
        let peer = driver.peers.get(id);
        if let Some(peer) = peer.filter(|peer| peer.hint() == hint && !peer.is_self) {
            read_while_waiting(&driver, &peer, is_complete, deadline);
        }
        if !is_complete() {
            block();
        }
    }
}

/// Collects messages, and reports which large answers are awaited.
pub(super) struct Inbox<'a> {
    pub(super) driver: &'a Driver,
    pub(super) peer: &'a PeerEntry,
    pub(super) messages: &'a mut SegmentedQueue<Message>,
}

impl Recipient for Inbox<'_> {
    fn find_function(&mut self, name: &str) -> Option<FunctionId> {
        self.driver.config.functions.find(name)
    }

    fn wants_response(&mut self, id: u64) -> bool {
        let is_wanted = self.peer.lock().core.is_awaited(id);
        if !is_wanted {
            // Asked once for each, as the rest of it is skipped.
            self.driver.metrics.calls.late_responses.add(1);
        }
        is_wanted
    }

    fn take(&mut self, message: Message) {
        if matches!(message, Message::Request { .. }) {
            self.driver.metrics.requests.received.add(1);
        }
        self.messages.push_back(message);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread;

    use c10d_store::{HashStore, Store};

    use super::*;
    use crate::{Agent, AgentOptions, Registry};

    /// Tries to borrow the connection while its call is being completed.
    struct Borrower {
        driver: Arc<Driver>,
        peer: Arc<PeerEntry>,
        outcome: mpsc::Sender<bool>,
    }

    impl Wake for Borrower {
        fn wake(self: Arc<Self>) {
            let lent = self.driver.change(&self.peer, |core| {
                let (connection, _) = core.lend()?;
                core.connected_by(connection)?.end_lending();
                Some(connection)
            });
            self.outcome.send(lent.is_some()).unwrap();
        }
    }

    /// A caller looks at its call, borrows the connection, and waits for the socket. Could it borrow between the read
    /// of its answer and its completion, it would wait for bytes that were read already.
    #[test]
    fn a_connection_is_not_lent_between_the_read_of_an_answer_and_its_completion() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let start = |rank: u32, registry: Registry| {
            let options = AgentOptions::new(format!("w{rank}"), rank).with_world_size(2);
            let options = options.with_host("127.0.0.1");
            let store = Arc::clone(&store);
            thread::spawn(move || Agent::start(options, registry, store).unwrap())
        };
        let (answer, awaited) = mpsc::channel();
        let mut registry = Registry::new();
        registry
            .register_deferred("f", move |_, _, reply| answer.send(reply).unwrap())
            .unwrap();
        let (server, client) = (start(0, registry), start(1, Registry::new()));
        let (server, client) = (server.join().unwrap(), client.join().unwrap());

        let mut call = pin!(client.handle().call("w0", "f").send_bytes(""));
        let driver = Arc::clone(&client.handle().runtime().driver);
        let (outcome, was_lent) = mpsc::channel();
        let waker = Waker::from(Arc::new(Borrower {
            peer: driver.peers.get(0).unwrap(),
            driver,
            outcome,
        }));
        let mut context = Context::from_waker(&waker);
        assert!(call.as_mut().poll(&mut context).is_pending());
        awaited.recv().unwrap().send(Ok(""));
        assert!(!was_lent.recv().unwrap());
        assert!(matches!(call.poll(&mut context), Poll::Ready(Ok(_))));
        drop((client, server));
    }
}
