//! Connects a session to its server, the first time and after each loss.

use std::error::Error;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Credentials, CredentialsError, Deadline, Dialer,
    HostPort, Protocol, TlsClient,
};

use super::closer::Closer;
use super::link::SessionLink;
use super::stream::{Stream, is_closed_by_peer};
use crate::address::{DataLost, Leader, Lookup, StoreAddress};
use crate::at_leader::{NotReached, at_leader, with_any};
use crate::leader_search::LeaderSearch;
use crate::session::{Hello, Restart, SessionId, StoreId, Welcome};
use crate::wire::{CAPABILITY_MASK, CAPABILITY_NONCE, Opcode, RequestBuf, capability, read_u32};

/// The longest silence of a link: without a heartbeat for this time, the link is lost (docs/spec/wire-extensions.md,
/// SESSION 18), because the server does not run, or another server has taken over.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The longest attempt to come back to a server at a fixed address. Thousands of clients can come back at once, and each
/// handshake costs the server time.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(10);

/// Connects one session, the first time and after each loss of its connection.
///
/// At a fixed address, each [`connect`](Self::connect) makes one attempt; the caller decides when to make the next
/// attempt and when to stop. With a directory, it follows the leader until the deadline.
#[derive(Debug)]
pub struct SessionDialer {
    /// The server of the last attempt.
    target: HostPort,
    lookup: Option<Arc<dyn Lookup>>,
    search: LeaderSearch,
    /// The epoch of the server that was looked up last.
    epoch: u64,
    connect_options: ConnectOptions,
    credentials: Option<Credentials>,
    tls: Option<TlsClient>,
    session: SessionId,
    store: StoreId,
    /// The position of the store's journal that this side has seen.
    position: u64,
    attempt: u64,
    keep: Duration,
    expects_sessions: bool,
    carries_over: bool,
    takes_pieces: bool,
    closer: Closer,
    cancel: Cancel,
}

/// The error of a session without a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection was lost, or the server did not answer in time.
    #[error("{server}: the connection was lost before the session could begin: {source}")]
    Lost {
        /// The server's address in the caller's form.
        server: HostPort,
        /// The cause of the loss.
        source: io::Error,
    },
    /// The peer does not have the secret, or is not a store.
    #[error("{server}: {reason}")]
    Refused {
        /// The server's address in the caller's form.
        server: HostPort,
        /// The behaviour of the peer.
        reason: String,
    },
    /// The store has no sessions, for example PyTorch's store.
    #[error("{server} has no sessions: it is not a store of c10d, or is an older version")]
    Unsupported {
        /// The server's address in the caller's form.
        server: HostPort,
    },
    /// The server does not have the session, because it was restarted and is another store now, or because the
    /// session was without a connection for too long.
    #[error(
        "{server} does not know the session: {}",
        if *is_same_store { "it was without a connection for too long, or the store was restored from a copy" } else { "it was restarted and is another store" }
    )]
    Unknown {
        /// The server's address in the caller's form.
        server: HostPort,
        /// Whether it is still the store that had the session.
        is_same_store: bool,
    },
    /// The directory cannot be asked for the leading server.
    #[error("cannot look up {directory}: {source}")]
    Lookup {
        /// The name of the directory: [`Lookup::name`].
        directory: String,
        /// The error of the directory.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The directory reports that the store has lost data.
    #[error(transparent)]
    DataLost(#[from] DataLost),
    /// No server leads at the moment, according to the directory.
    #[error("no process serves the store {directory} at the moment")]
    NoLeader {
        /// The name of the directory: [`Lookup::name`].
        directory: String,
    },
    /// The server led once, but another server has taken over since.
    #[error("{server} does not know yet that another server has taken over")]
    Deposed {
        /// The address of the deposed server.
        server: HostPort,
    },
    /// The data of the store has gone back: the directory names a lower epoch than the last server of the session
    /// had, or the server lacks batches that the session has seen.
    #[error(
        "the store of {server} has gone back from {known} to {found}: its data was restored from a copy, or deleted"
    )]
    WentBack {
        /// The address of the present server.
        server: HostPort,
        /// The newest data that this session has seen: `epoch 3`, `batch 15`.
        known: String,
        /// The newest data in the store.
        found: String,
    },
    /// The server's machine has refused connections for a time after which the server must have exited.
    #[error(
        "the store at {server} has ended: its machine has refused connections for {:.0} s", refused_for.as_secs_f64()
    )]
    Ended {
        /// The server's address in the caller's form.
        server: HostPort,
        /// How long the machine has refused connections.
        refused_for: Duration,
    },
    /// The server already has the most sessions that it may have.
    #[error(
        "{server} has no room for another session (of a relay, or of a client that resumes): many sessions were probably lost \
         without a close, and the server keeps lost sessions for some minutes"
    )]
    Full {
        /// The server's address in the caller's form.
        server: HostPort,
    },
    /// The attempt was [cancelled](Closer::close).
    #[error("cancelled")]
    Cancelled,
}

impl SessionError {
    /// Returns whether another attempt may succeed.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::Lost { .. }
                | Self::Lookup { .. }
                | Self::NoLeader { .. }
                | Self::Deposed { .. }
        )
    }
}

impl SessionDialer {
    /// Creates a new session with the store at this address, which remembers it for `keep` without a connection. Does
    /// not block.
    ///
    /// # Errors
    /// [`CredentialsError`](crate::CredentialsError) if the credentials cannot be used.
    pub fn new(
        address: impl Into<StoreAddress>,
        connect_options: ConnectOptions,
        credentials: Option<&Credentials>,
        keep: Duration,
    ) -> Result<Self, CredentialsError> {
        let (target, lookup) = match address.into() {
            StoreAddress::At(target) => (target, None),
            // Until the first lookup.
            StoreAddress::LookedUp(lookup) => (HostPort::new(lookup.name(), 0), Some(lookup)),
        };
        let tls = credentials.map(|it| it.client(Protocol::Store, target.host()));
        Ok(Self {
            tls: tls.transpose()?,
            credentials: credentials.cloned(),
            target,
            lookup,
            search: LeaderSearch::new(seed()),
            epoch: 0,
            connect_options: connect_options.with_rounds_max(1),
            session: SessionId::random(),
            store: StoreId::ANY,
            position: 0,
            attempt: 0,
            keep,
            expects_sessions: false,
            carries_over: false,
            takes_pieces: false,
            closer: Closer::default(),
            cancel: Cancel::NEVER,
        })
    }

    /// Requests the session together with the handshake, which saves a round trip. Use it for a server that should
    /// have sessions. Any other server reports an unknown request, and then [`connect`](Self::connect) fails like
    /// without this. By default, only later connections do so.
    #[must_use]
    pub fn expecting_sessions(mut self) -> Self {
        self.expects_sessions = true;
        self
    }

    /// Sets that the caller can send requests again to a server that was restarted with its journal
    /// (docs/spec/wire-extensions.md, SESSION 12): the session then continues, with
    /// [`restart`](SessionLink::restart).
    #[must_use]
    pub fn carrying_over(mut self) -> Self {
        self.carries_over = true;
        self
    }

    /// Sets that the caller reads frames with
    /// [`FrameReader::taking_pieces`](crate::unstable::FrameReader::taking_pieces).
    #[must_use]
    pub fn taking_pieces(mut self) -> Self {
        self.takes_pieces = true;
        self
    }

    /// Sets the [position](crate::unstable::FrameReader::position) that this session has seen: a server with a lower
    /// position is refused.
    pub fn set_position(&mut self, position: u64) {
        self.position = self.position.max(position);
    }

    /// Sets the new address of the server.
    pub fn set_target(&mut self, target: HostPort) {
        self.target = target;
    }

    /// Returns whether the server is looked up in a directory. If so, it may change, and refused connections do not
    /// mean that the store has ended.
    #[must_use]
    pub const fn is_following(&self) -> bool {
        self.lookup.is_some()
    }

    /// Returns the server of the last attempt.
    #[must_use]
    pub const fn target(&self) -> &HostPort {
        &self.target
    }

    /// Returns the closer that another thread can stop attempts with.
    #[must_use]
    pub const fn closer(&self) -> &Closer {
        &self.closer
    }

    pub(super) const fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Sets the [`Cancel`] that interrupts attempts from now on.
    pub fn set_cancel(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    /// Begins another session instead of this one, without any of its state.
    pub fn start_anew(&mut self) {
        self.session = SessionId::random();
        self.store = StoreId::ANY;
        self.position = 0;
        self.attempt = 0;
    }

    /// Returns the deadline of a [`connect`](Self::connect) that brings a lost session back before `deadline`. At a fixed
    /// address, it leaves time for further attempts.
    #[must_use]
    pub fn attempt_by(&self, deadline: Deadline) -> Deadline {
        match self.is_following() {
            true => deadline,
            false => Deadline::after(Instant::now(), ATTEMPT_TIME_MAX).min(deadline),
        }
    }

    /// Makes one attempt at a fixed address, or as many as needed at the servers that the directory names. `received`
    /// is the number of bytes of the session that have arrived here. Blocks until the deadline at most. The
    /// [closer](Self::closer) interrupts it.
    ///
    /// # Errors
    /// [`SessionError`]; [`SessionError::is_transient`] returns whether another attempt makes sense.
    pub fn connect(
        &mut self,
        received: u64,
        deadline: Deadline,
    ) -> Result<SessionLink, SessionError> {
        let (cancel, closer) = (self.cancel.clone(), self.closer.clone());
        let result = with_any([&cancel, closer.closed()], |ends| {
            self.connect_until(received, deadline, ends)
        });
        match result {
            Err(_) if closer.is_closed() => Err(SessionError::Cancelled),
            result => result,
        }
    }

    fn connect_until(
        &mut self,
        received: u64,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<SessionLink, SessionError> {
        let Some(lookup) = self.lookup.clone() else {
            return self.attempt(received, deadline, cancel);
        };
        let mut search = std::mem::replace(&mut self.search, LeaderSearch::new(0));
        let result = at_leader(
            &lookup,
            &mut search,
            deadline,
            cancel,
            |leader, by, cancel| {
                self.turn_to(leader)?;
                self.attempt(received, by, cancel)
            },
            SessionError::is_transient,
        );
        self.search = search;
        result.map_err(|error| match error {
            NotReached::Lookup(source) => SessionError::Lookup {
                directory: lookup.name(),
                source,
            },
            NotReached::DataLost(lost) => SessionError::DataLost(lost),
            NotReached::NoLeader => SessionError::NoLeader {
                directory: lookup.name(),
            },
            NotReached::Attempt(error) => error,
            NotReached::Cancelled => SessionError::Cancelled,
        })
    }

    /// Makes one attempt at the target.
    fn attempt(
        &mut self,
        received: u64,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<SessionLink, SessionError> {
        let dialer = Dialer::new(&self.target, &self.connect_options, deadline);
        let socket = dialer.with_cancel(cancel.clone()).connect()?;
        let tls = self.tls.as_ref().map(TlsClient::start).transpose();
        let tls = tls.map_err(|error| self.refused(error.to_string()))?;
        let mut stream = Stream::new(socket, tls).map_err(|error| self.lost(error))?;
        stream.set_cancel(cancel.clone());
        if !stream.register_with(&self.closer) {
            return Err(SessionError::Cancelled);
        }
        let result = self.introduce(&mut stream, received, deadline);
        self.closer.forget();
        let (received_by_server, restart, has_heartbeats) = result?;
        let server = stream.peer_addr().map_err(|error| self.lost(error))?;
        let (socket, tls, received) = stream.into_parts().map_err(|error| self.lost(error))?;
        Ok(SessionLink {
            socket,
            tls,
            received,
            server,
            received_by_server,
            restart,
            has_heartbeats,
            is_kept: self.carries_over && self.store.has_journal(),
        })
    }

    /// The handshakes: of TLS, of the store, and of the session.
    fn introduce(
        &mut self,
        stream: &mut Stream,
        received: u64,
        deadline: Deadline,
    ) -> Result<(u64, Option<Restart>, bool), SessionError> {
        let shaken = stream.shake_hands(deadline);
        shaken.map_err(|error| self.lost(error))?;
        self.attempt += 1;
        let hello = Hello {
            session: self.session,
            store: self.store,
            attempt: self.attempt,
            received,
            keep: self.keep,
            carries_over: self.carries_over,
            takes_pieces: self.takes_pieces,
            wants_heartbeats: self.is_following(),
            takes_positions: self.is_following() && self.carries_over,
            knows_refusal: true,
        };
        let mut request = RequestBuf::new();
        request.hello();
        if self.expects_sessions {
            request
                .opcode(Opcode::Session)
                .hello_of_session(&hello.encode());
        }
        self.tell(stream, &request, deadline)?;
        let answer = read_u32(self.hear::<4>(stream, deadline)?);
        if answer & !CAPABILITY_MASK != CAPABILITY_NONCE {
            return Err(self.refused("the peer does not speak the TCPStore protocol".to_owned()));
        }
        if answer & capability::SESSION == 0 {
            return Err(SessionError::Unsupported {
                server: self.target.clone(),
            });
        }
        let has_heartbeats = self.is_following() && answer & capability::HEARTBEAT != 0;
        if !self.expects_sessions {
            let mut request = RequestBuf::new();
            request
                .opcode(Opcode::Session)
                .hello_of_session(&hello.encode());
            self.tell(stream, &request, deadline)?;
        }
        let answer = self.hear::<{ Welcome::BYTES }>(stream, deadline)?;
        let server = || self.target.clone();
        match Welcome::decode(&answer) {
            Some(welcome) if self.is_deposed(&welcome) => {
                Err(SessionError::Deposed { server: server() })
            }
            Some(welcome) if let Some(found) = self.lacks(&welcome) => {
                Err(SessionError::WentBack {
                    server: server(),
                    known: format!("batch {}", self.position),
                    found: format!("batch {found}"),
                })
            }
            Some(Welcome::Accepted { store, received }) => {
                self.store = store;
                self.expects_sessions = true;
                Ok((received, None, has_heartbeats))
            }
            Some(Welcome::Restarted { store, .. }) if self.carries_over => {
                // Below 2^32, as only a store with a journal answers so.
                let number = |store: StoreId| store.epoch() as u32;
                let (from, to) = (number(self.store), number(store));
                self.store = store;
                Ok((0, Some(Restart { from, to }), has_heartbeats))
            }
            Some(Welcome::Unknown { store, .. }) => Err(SessionError::Unknown {
                server: server(),
                is_same_store: store.continues(self.store),
            }),
            Some(Welcome::Full { .. }) => Err(SessionError::Full { server: server() }),
            Some(Welcome::Restarted { .. }) | None => {
                Err(self.refused("the answer to SESSION is none".to_owned()))
            }
        }
    }

    /// The next attempts are at this server.
    fn turn_to(&mut self, leader: &Leader) -> Result<(), SessionError> {
        let is_known = leader.epoch != 0;
        if is_known && self.store.has_journal() && leader.epoch < self.store.epoch() {
            return Err(SessionError::WentBack {
                server: leader.address.clone(),
                known: format!("epoch {}", self.store.epoch()),
                found: format!("epoch {}", leader.epoch),
            });
        }
        if leader.address.host() != self.target.host() {
            let credentials = self.credentials.as_ref();
            let tls = credentials.map(|it| it.client(Protocol::Store, leader.address.host()));
            self.tls = tls
                .transpose()
                .map_err(|error| self.refused(error.to_string()))?;
        }
        self.target.clone_from(&leader.address);
        self.epoch = leader.epoch;
        Ok(())
    }

    /// Whether the answer is of a deposed server: this side has seen that another server has taken over.
    fn is_deposed(&self, welcome: &Welcome) -> bool {
        let store = welcome.store();
        self.is_following()
            && (store.is_before(self.store) || store.has_journal() && store.epoch() < self.epoch)
    }

    /// The position at which a later run of the store began, if this session has seen a higher position of an earlier run.
    fn lacks(&self, welcome: &Welcome) -> Option<u64> {
        let begins = welcome.begins()?;
        let is_later = self.store.is_before(welcome.store());
        (is_later && begins < self.position).then_some(begins)
    }

    fn tell(
        &self,
        stream: &mut Stream,
        request: &RequestBuf<'_>,
        deadline: Deadline,
    ) -> Result<(), SessionError> {
        let mut pieces = [IoSlice::new(request.contiguous().unwrap_or_default())];
        let written = stream.write_all_by(&mut pieces, deadline);
        written.map_err(|error| self.lost(error))
    }

    fn hear<const N: usize>(
        &self,
        stream: &mut Stream,
        deadline: Deadline,
    ) -> Result<[u8; N], SessionError> {
        let mut answer = [0; N];
        let mut have = 0;
        while have < N {
            match stream.read_by(&mut answer[have..], deadline) {
                Ok(0) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => have += count,
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(answer)
    }

    fn lost(&self, source: io::Error) -> SessionError {
        if source.kind() == io::ErrorKind::InvalidData {
            return self.refused(source.to_string());
        }
        let source = if is_closed_by_peer(&source) {
            let hint = match self.tls {
                Some(_) => "the peer closed the connection; it may have no secret",
                None => "the peer closed the connection; it may require a secret",
            };
            io::Error::new(source.kind(), hint)
        } else {
            source
        };
        SessionError::Lost {
            server: self.target.clone(),
            source,
        }
    }

    fn refused(&self, reason: String) -> SessionError {
        SessionError::Refused {
            server: self.target.clone(),
            reason,
        }
    }
}

/// A seed for the jitter; the store depends on no source of random numbers.
pub(super) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}
