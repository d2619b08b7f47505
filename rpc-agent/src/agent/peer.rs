//! What an agent keeps for one worker: its calls there, what waits to be sent, the connection.
//!
//! Changes a peer's state; never reads or writes a socket, which is [`super::link`]'s.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_socket::{Backoff, Deadline};
use mio::net::TcpStream;

use crate::error::{CallSite, NotSent, Outcome, RpcError};
use crate::future::Promise;
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
    pub(crate) metrics: PeerMetrics,
    /// The greatest message that it takes, as it said when it connected last.
    message_bytes_max: AtomicU64,
    state: Mutex<PeerState>,
}

pub(crate) struct PeerState {
    pub(crate) in_flight: InFlight<PendingCall>,
    /// Threads that have taken calls out whose time is up, and have not completed all of them yet.
    pub(crate) expiring: usize,
    pub(crate) outgoing: Outgoing,
    /// A thread is writing, and will send what is put into `outgoing` meanwhile.
    pub(crate) is_flushing: bool,
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
    /// Its requests that no thread has taken yet.
    pub(crate) requests_queued: usize,
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
    /// When the address was known first.
    pub(crate) began: Option<Instant>,
}

/// A call without an answer yet.
pub(crate) struct PendingCall {
    pub(crate) promise: Promise<Bytes>,
    pub(crate) function: Arc<str>,
    pub(crate) began: Instant,
    /// Zero: none.
    pub(crate) timeout: Duration,
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
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: ServedCall,
    pub(crate) payload: Bytes,
}

impl Peer {
    pub(crate) fn new(info: WorkerInfo, me: &WorkerInfo, incarnation: u64) -> Self {
        let is_self = info.id == me.id;
        let pair = (!is_self).then(|| handshake::Link::new(me.id, incarnation, info.id));
        Self {
            metrics: PeerMetrics::default(),
            message_bytes_max: AtomicU64::new(u64::MAX),
            is_self,
            state: Mutex::new(PeerState {
                in_flight: InFlight::new(),
                expiring: 0,
                outgoing: Outgoing::new(),
                is_flushing: false,
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
                requests_queued: 0,
                parked: VecDeque::new(),
                last_function: Arc::from(""),
            }),
            info,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PeerState> {
        // A panic under this lock is a defect of this crate; going on is better than taking all
        // callers along.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The greatest message that goes between it and this worker, which takes `own` bytes at most.
    pub(crate) fn message_bytes_max(&self, own: u64) -> u64 {
        own.min(self.message_bytes_max.load(Ordering::Relaxed))
    }

    pub(crate) fn takes_at_most(&self, message_bytes: u64) {
        self.message_bytes_max
            .store(message_bytes, Ordering::Relaxed);
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

    /// Takes the connection out, and all calls with what is known of them: those of which no byte was
    /// sent, and the others.
    pub(crate) fn cut(&mut self) -> (Option<Established>, Vec<(PendingCall, Outcome)>) {
        let link = self.link.take();
        let mut unsent = self.outgoing.unsent_requests();
        unsent.sort_unstable();
        let had_link = link.is_some();
        let calls = self.in_flight.drain().into_iter().map(|(id, call)| {
            let is_unsent = !had_link || unsent.binary_search(&id.get()).is_ok();
            let outcome = if is_unsent {
                Outcome::NotExecuted
            } else {
                Outcome::Unknown
            };
            (call, outcome)
        });
        let calls = calls.collect();
        self.outgoing = Outgoing::new();
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
