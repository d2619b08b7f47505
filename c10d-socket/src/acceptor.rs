//! How a server handles any number of incoming connections, even if it runs out of descriptors.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::open_files::file_limit;
use crate::refusal_log::RefusalLog;
use crate::strangers::Strangers;

mod unproven;

#[cfg(test)]
mod tests;

pub use unproven::Stage;
use unproven::{Oldest, Unproven};

/// The delay before accepting again after the system had no memory or descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Listener `i` has the token `LISTENER_LAST - i`. A loop has the two tokens above for itself.
const LISTENER_LAST: usize = usize::MAX - 2;

/// The most connections accepted from a listener in a turn. As large as the usual backlog: a connect that finds the
/// backlog full is retried by its system only after a second.
const ACCEPTS_PER_TURN: usize = 4096;

/// The limits of an [`Acceptor`].
#[derive(Debug, Clone, Copy)]
pub struct AcceptLimits {
    /// The most open connections.
    pub connections_max: usize,
    /// The most connections that have begun their handshake and not completed it.
    pub handshakes_max: usize,
}

/// The next step with new connections, see [`Acceptor::next`].
#[derive(Debug)]
pub(crate) enum Decision<K> {
    /// Accept a connection, and pass the result to [`Acceptor::on_accept`].
    Accept {
        /// The index of the listener.
        listener: usize,
        /// Close the spare descriptor before: the process has no other left.
        with_spare: bool,
    },
    /// Handle what has arrived from this connection: it may be what completes its handshake.
    Read(K),
    /// Close this connection: [`Refusal::MakesRoom`].
    Close(K),
    /// Serve the connection that was accepted last, and pass its key to [`Acceptor::admitted`].
    Admit,
    /// Close the connection that was accepted last. `None`: it is counted, and needs no log line.
    Refuse(Option<Refusal>),
    /// Open the spare descriptor again, and pass to [`Acceptor::on_spare`] whether it is open.
    OpenSpare,
    /// A listener fails, and is tried again at [`Acceptor::next_deadline`]: log it.
    Fail(io::Error),
    /// There is nothing to do until the next turn.
    Wait,
}

/// The reason why a connection is closed without being served.
#[derive(Debug)]
pub enum Refusal {
    /// The limit of open connections has been reached.
    Limit(usize),
    /// The process has no file descriptor left.
    NoDescriptor(io::Error),
    /// Another connection needs the place of this one.
    MakesRoom,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(f, "the limit of {limit} connections is reached"),
            Self::NoDescriptor(error) => {
                write!(f, "this process has no file descriptor left: {error}")?;
                if let Some(limit) = file_limit() {
                    write!(
                        f,
                        " (its limit is {limit}: raise ulimit -n where it starts)"
                    )?;
                }
                f.write_str("; later refusals for this reason are not logged")
            }
            Self::MakesRoom => f.write_str(
                "its place is needed, and it is the oldest that has not completed the handshake",
            ),
        }
    }
}

/// Decides what an event loop does about new connections: the listener to accept from and the time, the connections
/// to serve, and the connections that make room for others. Limits the cost of peers that do not prove that they may
/// be served, counts refused peers, and limits the log lines about them.
///
/// Pure: it has no socket and no clock. `K` names a connection. In each turn of its loop the caller calls
/// [`next_turn`](Self::next_turn), reports events with [`on_event`](Self::on_event), then carries out the steps of
/// [`Listeners::next`](crate::Listeners::next) until it returns [`Step::Wait`](crate::Step::Wait).
///
/// When the process has no descriptor left, the spare one is used to accept a connection, which takes the place of
/// the oldest connection that is silent or in its handshake. A connection has two turns to prove itself before it
/// makes room. If there is no such connection, the new connection is closed, which its peer notices at once.
#[derive(Debug)]
pub struct Acceptor<K> {
    limits: AcceptLimits,
    listener_count: usize,
    /// Listeners that may have connections, for which no event will arrive.
    ready: Vec<usize>,
    /// Listeners that are ready from the next turn on.
    ready_later: Vec<usize>,
    current: Option<Current>,
    state: State<K>,
    has_spare: bool,
    /// The spare descriptor was used and has to be opened again.
    owes_spare: bool,
    now: Instant,
    retry_at: Option<Instant>,
    unproven: Unproven<K>,
    strangers: Strangers,
    refusals: RefusalLog,
    refused: u64,
    /// Whether a refusal was reported because no descriptor was left: once is enough, because the limit of a running
    /// process hardly ever changes.
    has_reported_limit: bool,
}

#[derive(Debug)]
struct Current {
    listener: usize,
    /// The accepts that it has left in this turn.
    left: usize,
}

#[derive(Debug)]
enum State<K> {
    /// The spare descriptor is not in use.
    Free,
    /// Accepts with the spare descriptor, after this error.
    UseSpare(io::Error),
    /// The result of an accept is due; with the spare descriptor, the error before it.
    Accepting(Option<io::Error>),
    /// A connection is accepted.
    Held,
    /// Room is needed. This connection, which was in this stage, has been read before it makes room.
    Search(Need, Option<(K, Stage)>),
    /// A connection was closed.
    RoomMade(Need),
    /// The current listener fails.
    Failed(io::Error),
}

/// The reason why room is needed.
#[derive(Debug)]
enum Need {
    /// A descriptor to accept with.
    Descriptor(io::Error),
    /// The accepted connection, which has the spare descriptor's place.
    Spare(io::Error),
    /// The accepted connection, which is beyond the limit.
    Limit,
}

impl<K: Copy> Acceptor<K> {
    /// Creates an acceptor for this number of listeners. `has_spare` is whether the spare descriptor is open.
    pub(crate) fn new(
        listeners: usize,
        limits: AcceptLimits,
        has_spare: bool,
        now: Instant,
    ) -> Self {
        Self {
            limits,
            listener_count: listeners,
            ready: Vec::new(),
            ready_later: Vec::new(),
            current: None,
            state: State::Free,
            has_spare,
            owes_spare: false,
            now,
            retry_at: None,
            unproven: Unproven::new(limits.handshakes_max),
            strangers: Strangers::default(),
            refusals: RefusalLog::new(now),
            refused: 0,
            has_reported_limit: false,
        }
    }

    /// The token of the listener with this index in the poller. Tokens of other things are below those of listeners;
    /// `usize::MAX` and `usize::MAX - 1` are free.
    pub(crate) const fn listener_token(index: usize) -> usize {
        LISTENER_LAST - index
    }

    /// Begins the next turn: the loop has waited until `now`.
    pub fn next_turn(&mut self, now: Instant) {
        self.now = now;
        self.unproven.next_turn();
        self.ready.append(&mut self.ready_later);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.ready.extend(0..self.listener_count);
        }
    }

    /// Takes an event. Returns whether it is the event of a listener.
    pub fn on_event(&mut self, token: usize) -> bool {
        let is_listener =
            token <= LISTENER_LAST && token > LISTENER_LAST.wrapping_sub(self.listener_count);
        if is_listener {
            self.ready.push(LISTENER_LAST - token);
        }
        is_listener
    }

    /// Returns whether connections may be queued for which no further event will arrive.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.ready_later.is_empty()
    }

    /// Returns when the next turn is due without an event: to accept again, or for [`report`](Self::report).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let refusals = self.refusals.due();
        self.retry_at.into_iter().chain(refusals).min()
    }

    /// Returns the next step. `open` is the number of open connections, `stage` returns the stage of a connection.
    pub(crate) fn next(&mut self, open: usize, stage: impl Fn(K) -> Stage) -> Decision<K> {
        loop {
            match std::mem::replace(&mut self.state, State::Free) {
                State::Free => {
                    if std::mem::take(&mut self.owes_spare) {
                        return Decision::OpenSpare;
                    }
                    return match self.next_listener() {
                        Some(listener) => self.accept(listener, None),
                        None => Decision::Wait,
                    };
                }
                State::UseSpare(error) => {
                    if let Some(current) = &self.current {
                        return self.accept(current.listener, Some(error));
                    }
                }
                // The caller has not reported the result: nothing was accepted.
                State::Accepting(_) => {}
                State::Held if open < self.limits.connections_max => return Decision::Admit,
                State::Held => self.state = State::Search(Need::Limit, None),
                State::Search(need, read) => {
                    if let Some(step) = self.search(need, read, &stage) {
                        return step;
                    }
                }
                State::Failed(error) => return self.fail(error),
                State::RoomMade(Need::Descriptor(_)) => {}
                State::RoomMade(Need::Spare(_)) => self.state = State::Held,
                State::RoomMade(Need::Limit) => return Decision::Admit,
            }
        }
    }

    /// The result of [`Decision::Accept`].
    pub(crate) fn on_accept(&mut self, result: Result<(), io::Error>) {
        let State::Accepting(before) = std::mem::replace(&mut self.state, State::Free) else {
            return;
        };
        let error = match (result, before) {
            (Ok(()), None) => return self.state = State::Held,
            (Ok(()), Some(error)) => return self.state = State::Search(Need::Spare(error), None),
            (Err(error), None) if is_exhausted(&error) && self.has_spare => {
                self.has_spare = false;
                self.owes_spare = true;
                return self.state = State::UseSpare(error);
            }
            (Err(error), _) => error,
        };
        self.state = match error.kind() {
            // The system allocates a descriptor before it checks the queue, so that the error before does not mean that
            // a connection is queued.
            io::ErrorKind::WouldBlock => {
                self.current = None;
                State::Free
            }
            // The peer disconnected, or a signal arrived: the listener is fine.
            io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted => State::Free,
            _ if is_exhausted(&error) => {
                self.owes_spare = true;
                State::Search(Need::Descriptor(error), None)
            }
            _ => State::Failed(error),
        };
    }

    /// Whether the spare descriptor is open, after [`Decision::OpenSpare`].
    pub(crate) fn on_spare(&mut self, is_open: bool) {
        self.has_spare = is_open;
    }

    /// Assigns this key to the connection that was accepted last.
    pub fn admitted(&mut self, key: K, stage: impl Fn(K) -> Stage) {
        self.unproven.accepted(key, stage);
    }

    /// A connection begins a handshake. Returns the oldest of the other connections if there are too many: close
    /// them.
    #[must_use]
    pub fn handshake_begun(&mut self, key: K, stage: impl Fn(K) -> Stage) -> Vec<K> {
        self.unproven.handshake_begun(key, stage)
    }

    /// Returns whether a handshake with this address may begin: fewer than 64 handshakes of the address have failed
    /// lately.
    #[must_use]
    pub fn is_handshake_allowed(&self, address: IpAddr, now: Instant) -> bool {
        self.strangers.may_try(address, now)
    }

    /// Counts a failed handshake that cost public-key operations.
    pub fn on_failed_handshake(&mut self, address: IpAddr, now: Instant) {
        self.strangers.on_failure(address, now);
    }

    /// Counts a refused peer. Returns the line to log about it, unless there are too many such lines.
    pub fn on_refused(
        &mut self,
        peer: SocketAddr,
        reason: &dyn fmt::Display,
        now: Instant,
    ) -> Option<String> {
        self.refused += 1;
        self.line(peer.ip(), &format_args!("refused {peer}: {reason}"), now)
    }

    /// Returns the number of refused peers.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the line to log about an event that a peer, or no particular peer, has caused; `None` if there are too
    /// many such lines.
    pub fn line(
        &mut self,
        address: impl Into<Option<IpAddr>>,
        text: &dyn fmt::Display,
        now: Instant,
    ) -> Option<String> {
        self.refusals.line(address, text, now)
    }

    /// Returns the line to log about the events that got no line, once it is due.
    pub fn report(&mut self, now: Instant) -> Option<String> {
        self.refusals.report(now)
    }

    fn next_listener(&mut self) -> Option<usize> {
        loop {
            match &mut self.current {
                Some(current) if current.left > 0 => {
                    current.left -= 1;
                    return Some(current.listener);
                }
                Some(_) => self.accept_later(),
                None => {
                    let listener = self.ready.pop()?;
                    self.ready.retain(|other| *other != listener);
                    self.current = Some(Current {
                        listener,
                        left: ACCEPTS_PER_TURN,
                    });
                }
            }
        }
    }

    /// Continues with the current listener in the next turn.
    fn accept_later(&mut self) {
        let current = self.current.take().map(|current| current.listener);
        self.ready_later.extend(current);
    }

    fn accept(&mut self, listener: usize, before: Option<io::Error>) -> Decision<K> {
        let with_spare = before.is_some();
        self.state = State::Accepting(before);
        Decision::Accept {
            listener,
            with_spare,
        }
    }

    fn fail(&mut self, error: io::Error) -> Decision<K> {
        self.current = None;
        self.retry_at = Some(self.now + ACCEPT_RETRY);
        Decision::Fail(error)
    }

    /// Searches for the connection to close: the oldest that has not proved itself, considering data that has arrived
    /// in the meantime.
    fn search(
        &mut self,
        need: Need,
        read: Option<(K, Stage)>,
        stage: &impl Fn(K) -> Stage,
    ) -> Option<Decision<K>> {
        if let Some((key, before)) = read {
            let now = stage(key);
            if now == Stage::Closed {
                self.state = State::RoomMade(need);
                return None;
            }
            if now == before {
                self.state = State::RoomMade(need);
                return Some(Decision::Close(key));
            }
        }
        let oldest = self.unproven.take_oldest(stage);
        if let Oldest::Found(key, stage) = oldest {
            self.state = State::Search(need, Some((key, stage)));
            return Some(Decision::Read(key));
        }
        Some(match need {
            Need::Descriptor(error) => self.fail(error),
            Need::Limit => Decision::Refuse(Some(Refusal::Limit(self.limits.connections_max))),
            Need::Spare(error) => {
                if matches!(oldest, Oldest::TooNew) {
                    // The next ones are better accepted when some have had their time.
                    self.accept_later();
                }
                let is_known = std::mem::replace(&mut self.has_reported_limit, true);
                self.refused += u64::from(is_known);
                Decision::Refuse((!is_known).then_some(Refusal::NoDescriptor(error)))
            }
        })
    }
}

/// Whether the process or the system has no descriptor left.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
