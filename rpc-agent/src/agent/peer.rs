//! What an agent keeps for one worker: its calls there, what waits to be sent, the connection.
//!
//! Changes a peer's state; never reads or writes a socket, which is [`super::link`]'s.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::{Backoff, Deadline};
use mio::net::TcpStream;

use crate::error::{CallSite, NotSent, Outcome, RpcError};
use crate::future::{Hint, Promise};
use crate::handshake;
use crate::in_flight::InFlight;
use crate::incoming::Incoming;
use crate::metrics::PeerMetrics;
use crate::outgoing::Outgoing;
use crate::registry::Function;
use crate::worker::WorkerInfo;

/// A worker of the group, this one included, as this agent sees it.
pub(crate) struct Peer {
    pub(crate) info: WorkerInfo,
    /// Whether it is this agent's own worker: calls to it use no socket.
    pub(crate) is_self: bool,
    /// How many workers had this id before: futures of calls of them are not to be mistaken for this one's.
    pub(crate) predecessors: u32,
    pub(crate) metrics: PeerMetrics,
    /// The greatest message that it takes, as it said when it connected last.
    message_bytes_max: AtomicU64,
    state: Mutex<PeerState>,
    /// No thread writes any more.
    flushed: Condvar,
}

pub(crate) struct PeerState {
    pub(crate) in_flight: InFlight<PendingCall>,
    /// Threads that have taken calls out whose time is up, and have not completed all of them yet.
    pub(crate) expiring: usize,
    pub(crate) outgoing: Outgoing,
    /// A thread is writing, and will send what is put into `outgoing` meanwhile.
    pub(crate) is_flushing: bool,
    /// Somebody waits until no thread writes.
    is_flush_awaited: bool,
    /// Among those that the next flush of the agent looks after.
    pub(crate) is_dirty: bool,
    pub(crate) link: Option<Established>,
    /// Which connection of the pair is the one to use; `None` for this worker itself.
    pub(crate) pair: Option<handshake::Link>,
    pub(crate) dial: Option<Dial>,
    pub(crate) dials_begun: u64,
    /// How often a connection was made.
    pub(crate) connections: u64,
    /// Why there is none now, if there was one or one was tried.
    pub(crate) last_failure: Option<Arc<str>>,
    /// The last connection ended without a word of farewell, and none came since.
    pub(crate) is_lost: bool,
    /// The last connection ended with its farewell, and none came since.
    pub(crate) has_left: bool,
    /// Its process is known to have ended.
    pub(crate) is_dead: bool,
    /// Another worker has its id now. Nobody looks after the deadlines of calls of this one any more, so
    /// there are none.
    pub(crate) is_replaced: bool,
    /// Its requests that no thread has taken yet.
    pub(crate) requests_queued: usize,
    /// Its requests that were refused since too much waits for it to be read.
    pub(crate) refused_unread: usize,
    /// Its requests that wait until it has read some of its answers.
    pub(crate) parked: VecDeque<Request>,
    /// The name of the function called last: the next call is often to the same.
    last_function: Arc<str>,
}

/// A connection in use.
pub(crate) struct Established {
    pub(crate) link: Arc<Link>,
    /// Taken out while somebody reads.
    pub(crate) reader: Option<Box<Incoming>>,
    /// A caller that waits for its answer reads, and the poller does not.
    pub(crate) is_lent: bool,
    /// That caller also waits until the socket takes more bytes.
    pub(crate) is_write_lent: bool,
    /// There was more to read while somebody read.
    pub(crate) reads_again: bool,
    /// The stream has an end, of which the poller has told: no further event will.
    pub(crate) is_read_closed: bool,
    /// The socket takes no more for now.
    pub(crate) is_write_blocked: bool,
    pub(crate) interest: Option<mio::Interest>,
}

/// A socket, and by which token its events are known.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) token: usize,
    pub(crate) socket: TcpStream,
    pub(crate) address: SocketAddr,
}

/// A connection being made.
#[derive(Debug)]
pub(crate) struct Dial {
    /// One of this peer's; an attempt that belongs to an earlier one has been overtaken.
    pub(crate) number: u64,
    pub(crate) backoff: Backoff,
    /// When the first attempt was made.
    pub(crate) began: Option<Instant>,
}

/// A call without an answer yet.
pub(crate) struct PendingCall {
    pub(crate) promise: Promise<Bytes>,
    pub(crate) function: Arc<str>,
    pub(crate) began: Instant,
    /// Zero: none.
    pub(crate) timeout: Duration,
    /// A test's fault sends it more than once: what is known of one of the requests is not known of all.
    pub(crate) is_repeated: bool,
}

/// A call that this agent serves: who is to be answered.
#[derive(Debug, Clone)]
pub(crate) struct ServedCall {
    pub(crate) peer: Arc<Peer>,
    pub(crate) way_back: WayBack,
    pub(crate) function: Arc<Function>,
    pub(crate) deadline: Deadline,
    pub(crate) arrived_at: Instant,
}

/// Where an answer goes: to the connection on which the request came, and to no later one. There another
/// life of the worker may have given the number to another call.
#[derive(Debug, Clone)]
pub(crate) struct WayBack {
    /// Of nothing for a request of this very worker.
    pub(crate) link: Weak<Link>,
    pub(crate) id: u64,
}

/// A request to be run.
pub(crate) struct Request {
    pub(crate) call: ServedCall,
    pub(crate) payload: Bytes,
}

impl fmt::Debug for Request {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("call", &self.call)
            .field("payload_bytes", &self.payload.len())
            .finish()
    }
}

impl Peer {
    pub(crate) fn new(
        info: WorkerInfo,
        me: &WorkerInfo,
        incarnation: u64,
        predecessors: u32,
    ) -> Self {
        let is_self = info.id == me.id;
        let pair = (!is_self).then(|| handshake::Link::new(me.id, incarnation, info.id));
        Self {
            predecessors,
            metrics: PeerMetrics::default(),
            message_bytes_max: AtomicU64::new(u64::MAX),
            is_self,
            state: Mutex::new(PeerState {
                in_flight: InFlight::new(),
                expiring: 0,
                outgoing: Outgoing::new(),
                is_flushing: false,
                is_flush_awaited: false,
                is_dirty: false,
                link: None,
                pair,
                dial: None,
                dials_begun: 0,
                connections: 0,
                last_failure: None,
                is_lost: false,
                has_left: false,
                is_dead: false,
                is_replaced: false,
                requests_queued: 0,
                refused_unread: 0,
                parked: VecDeque::new(),
                last_function: Arc::from(""),
            }),
            flushed: Condvar::new(),
            info,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PeerState> {
        // A panic under this lock is a defect of this crate; going on is better than taking all
        // callers along.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Peer::lock`], once no thread writes to this worker; at the deadline whatever is.
    pub(crate) fn lock_flushed(&self, deadline: Deadline) -> MutexGuard<'_, PeerState> {
        let mut state = self.lock();
        while state.is_flushing
            && let Some(left) = deadline.remaining(Instant::now())
            && !left.is_zero()
        {
            state.is_flush_awaited = true;
            let waited = self.flushed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// To be called by the thread that has written, with the lock.
    pub(crate) fn end_flushing(&self, state: &mut PeerState) {
        state.is_flushing = false;
        if std::mem::take(&mut state.is_flush_awaited) {
            self.flushed.notify_all();
        }
    }

    /// The greatest message that goes between it and this worker, which takes `own` bytes at most.
    pub(crate) fn message_bytes_max(&self, own: u64) -> u64 {
        own.min(self.message_bytes_max.load(Ordering::Relaxed))
    }

    pub(crate) fn takes_at_most(&self, message_bytes: u64) {
        self.message_bytes_max
            .store(message_bytes, Ordering::Relaxed);
    }

    /// By which the future of a call is driven.
    pub(crate) fn hint(&self) -> Hint {
        if self.is_self {
            return Hint::NONE;
        }
        Hint(u64::from(self.predecessors) << 32 | u64::from(self.info.id.get()))
    }

    pub(crate) fn site(&self, function: &Arc<str>) -> Box<CallSite> {
        Box::new(CallSite {
            to: self.info.clone(),
            function: Arc::clone(function),
        })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl PeerState {
    /// The function's name as a value that can be shared.
    pub(crate) fn shared_name(&mut self, function: &str) -> Arc<str> {
        if *self.last_function != *function {
            self.last_function = Arc::from(function);
        }
        Arc::clone(&self.last_function)
    }

    /// Whether `link` is the connection in use.
    pub(crate) fn uses(&self, link: &Arc<Link>) -> bool {
        self.link
            .as_ref()
            .is_some_and(|established| Arc::ptr_eq(&established.link, link))
    }

    /// Whether the connection in use is the one on which a request came.
    pub(crate) fn leads(&self, way_back: &WayBack) -> bool {
        self.link
            .as_ref()
            .is_some_and(|established| Arc::as_ptr(&established.link) == way_back.link.as_ptr())
    }

    /// Whether this is the dial that goes on.
    pub(crate) fn is_dialing(&self, number: u64) -> bool {
        self.dial.as_ref().is_some_and(|dial| dial.number == number)
    }

    /// Whether this is the dial that goes on, and no connection that the worker made, however short, has
    /// come instead of it.
    pub(crate) fn awaits_answer(&self, number: u64) -> bool {
        let pair = self.pair.as_ref().map(handshake::Link::state);
        self.is_dialing(number) && matches!(pair, Some(handshake::LinkState::Dialing { .. }))
    }

    /// Takes the connection out, and all calls with what is known of them: those of which no byte was
    /// sent, and the others.
    pub(crate) fn cut(&mut self) -> (Option<Established>, Vec<(PendingCall, Outcome)>) {
        let link = self.link.take();
        let mut unsent = self.outgoing.unsent_requests();
        unsent.sort_unstable();
        // Requests of this very worker go without one.
        let had_link = link.is_some() || self.pair.is_none();
        let calls = self.in_flight.drain().into_iter().map(|(id, call)| {
            let is_unsent =
                !had_link || !call.is_repeated && unsent.binary_search(&id.get()).is_ok();
            let outcome = if is_unsent {
                Outcome::NotExecuted
            } else {
                Outcome::Unknown
            };
            (call, outcome)
        });
        let calls = calls.collect();
        self.outgoing = Outgoing::new();
        self.refused_unread = 0;
        (link, calls)
    }
}

impl PendingCall {
    /// The error of a call whose connection ended.
    pub(crate) fn lost(&self, peer: &Peer, outcome: Outcome, cause: &Arc<io::Error>) -> RpcError {
        let call = peer.site(&self.function);
        let cause = Arc::clone(cause);
        match outcome {
            Outcome::NotExecuted => RpcError::NotSent {
                call,
                cause: NotSent::ConnectionLost(cause),
            },
            _ => RpcError::ConnectionLost { call, cause },
        }
    }
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall")
            .field("function", &self.function)
            .field("began", &self.began)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
