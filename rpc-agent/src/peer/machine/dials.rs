//! How a connection is made, by either side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions};

use super::state::{Absence, Dial, Peer, Phase};
use crate::error::NotSent;
use crate::peer::connection::{Connection, ConnectionId};
use crate::peer::effect::{Effect, End, Notice};
use crate::peer::incoming::{Incoming, Message};
use crate::peer::pair::PairState;
use crate::wire::{Frame, Hello, Refuse, RefuseReason, Welcome};

/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How an attempt to connect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptFailure {
    /// A later one may succeed.
    Again(Arc<str>),
    /// A later one would not succeed.
    Hopeless(Arc<str>),
    /// The process has ended.
    Dead(Arc<str>),
    /// This process is not a member of the group: a later attempt would not succeed.
    Excluded(Arc<str>),
    /// The peer does not have this process on its list. A later one may succeed, because the peer reads the list.
    Unlisted(Arc<str>),
}

/// The fate of a connection that was dialed and welcomed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Welcomed {
    Established,
    /// Another process than the dialed one answered: close it. A further attempt is scheduled.
    OtherProcess,
    /// The dial is over: close it.
    Stale,
}

impl<P, S: Clone> Peer<P, S> {
    /// An attempt of this dial is due. False when it is not needed any more.
    pub(crate) fn begin_attempt(&mut self, number: u64, now: Instant) -> bool {
        let has_calls = self.in_flight.len() > 0;
        let Phase::Dialing { dial, before } = &mut self.phase else {
            return false;
        };
        if dial.number != number {
            return false;
        }
        // After a loss the attempt shows whether the process still lives.
        let is_needed = has_calls || dial.is_contact;
        if !is_needed && matches!(before, Absence::NeverConnected | Absence::Left) {
            self.phase = Phase::Absent(*before);
            return false;
        }
        dial.began.get_or_insert(now);
        true
    }

    /// The first frame of a connection that was dialed to the process with this incarnation (0 for any). `None` when
    /// the dial is over.
    pub(crate) fn hello(&mut self, number: u64, incarnation: u64) -> Option<Hello> {
        let links = self.pair.as_ref()?.hello_links(incarnation);
        let is_closing = self.is_closing;
        let dial = self.dial(number)?;
        if is_closing || dial.hello_to.is_some() {
            return None;
        }
        dial.hello_to = Some(incarnation);
        Some(Hello {
            from: self.config.me.clone(),
            to: self.info.id,
            incarnation: self.config.incarnation,
            incarnation_wanted: incarnation,
            links,
            message_bytes_max: self.config.message_bytes_max,
        })
    }

    /// The peer has accepted the connection, on which `messages` have arrived right behind the Welcome.
    pub(crate) fn welcomed(
        &mut self,
        number: u64,
        welcome: &Welcome,
        (socket, address): (S, SocketAddr),
        decoder: Incoming,
        messages: impl IntoIterator<Item = Message>,
        now: Instant,
    ) -> Welcomed {
        let Some(incarnation) = self.answered_hello(number) else {
            self.discard(messages);
            return Welcomed::Stale;
        };
        let pair = self.pair.as_mut();
        let is_dialed = pair.is_some_and(|pair| pair.on_welcome(welcome, incarnation));
        if !is_dialed {
            self.discard(messages);
            let cause = "another process answered".into();
            self.attempt_failed(number, AttemptFailure::Again(cause), now);
            return Welcomed::OtherProcess;
        }
        self.message_bytes_max = welcome.message_bytes_max;
        let connection = self.establish(socket, address, decoder);
        if self.received(connection, messages, now) {
            self.send_now();
        }
        Welcomed::Established
    }

    /// The peer has refused the connection.
    pub(crate) fn refused(&mut self, number: u64, refuse: &Refuse, now: Instant) {
        if self.answered_hello(number).is_none() {
            return;
        }
        let may_retry = self
            .pair
            .as_mut()
            .is_some_and(|pair| pair.on_refuse(refuse));
        let cause = format!("refused: {}", refuse.text).into();
        let failure = match refuse.reason {
            RefuseReason::NotMember => AttemptFailure::Unlisted(cause),
            _ if may_retry => AttemptFailure::Again(cause),
            _ => AttemptFailure::Hopeless(cause),
        };
        self.attempt_failed(number, failure, now);
    }

    /// An attempt of this dial has failed: schedules the next one, or fails the calls that wait for the connection.
    pub(crate) fn attempt_failed(&mut self, number: u64, failure: AttemptFailure, now: Instant) {
        let Phase::Dialing { dial, before } = &mut self.phase else {
            return;
        };
        if dial.number != number {
            return;
        }
        dial.hello_to = None;
        let has_calls = self.in_flight.len() > 0;
        let may_succeed = match failure {
            AttemptFailure::Again(_) => has_calls || !dial.is_contact,
            AttemptFailure::Unlisted(_) => true,
            _ => false,
        };
        let limit = self.config.connect_timeout;
        let is_late = dial.began.is_some_and(|began| now - began >= limit);
        let (AttemptFailure::Again(cause)
        | AttemptFailure::Hopeless(cause)
        | AttemptFailure::Dead(cause)
        | AttemptFailure::Excluded(cause)
        | AttemptFailure::Unlisted(cause)) = &failure;
        let cause = Arc::clone(cause);
        if may_succeed && !is_late && !self.is_closing {
            let at = now + dial.backoff.next_delay();
            self.last_failure = Some(cause);
            self.effects.push(Effect::Dial { dial: number, at });
            return;
        }
        let absence = match *before {
            _ if matches!(failure, AttemptFailure::Dead(_)) => Absence::Dead,
            // It did not refuse this time.
            Absence::Dead => Absence::Lost,
            before => before,
        };
        self.phase = Phase::Absent(absence);
        self.last_failure = Some(Arc::clone(&cause));
        self.effects.push(Effect::Notify(Notice::Unreachable {
            cause: Arc::clone(&cause),
            calls_failed: self.in_flight.len(),
        }));
        let cause = match failure {
            AttemptFailure::Excluded(_) | AttemptFailure::Unlisted(_) => NotSent::Excluded(cause),
            _ => NotSent::Connect(cause),
        };
        self.fail_calls(false, &cause);
    }

    /// Decides on a connection that the peer has made. If it is accepted, it replaces a connection that the peer
    /// no longer has.
    ///
    /// # Errors
    /// What to answer instead of a Welcome.
    pub(crate) fn accept(
        &mut self,
        hello: &Hello,
        (socket, address): (S, SocketAddr),
        decoder: Incoming,
    ) -> Result<ConnectionId, (RefuseReason, u32)> {
        // Sent before the farewell, and read late: the process no longer has this connection.
        if self.left == Some(hello.incarnation) {
            return Err((RefuseReason::NotMember, 0));
        }
        let state = match &self.phase {
            Phase::Connected(_) => PairState::Established,
            Phase::Dialing { dial, .. } => dial.pair_state(),
            _ => PairState::Idle,
        };
        let state = (!self.is_closing).then_some(state);
        let links = match (&self.phase, &mut self.pair) {
            (Phase::Replaced, _) | (_, None) => return Err((RefuseReason::WrongWorker, 0)),
            (_, Some(pair)) => pair.on_hello(hello, state)?,
        };
        if self.is_connected() {
            let error = io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the worker has made a new one",
            );
            self.end_connection(End::Failed(error));
        }
        self.message_bytes_max = hello.message_bytes_max;
        let connection = self.establish(socket, address, decoder);
        // The first bytes of the connection: the peer takes no others before.
        self.outgoing.put_first(&Frame::Welcome(Welcome {
            incarnation: self.config.incarnation,
            links,
            message_bytes_max: self.config.message_bytes_max,
        }));
        self.send_now();
        Ok(connection)
    }

    /// Whether the peer is known to have ended or left. A peer whose connection was lost is dialed, so that a later
    /// question has an answer: no call may ever find out.
    pub(crate) fn is_known_dead(&mut self, now: Instant) -> bool {
        if self.absence().is_some_and(Absence::is_final) {
            return true;
        }
        if matches!(self.phase, Phase::Absent(Absence::Lost)) && !self.is_closing {
            self.begin_dial(Absence::Lost, now);
        }
        false
    }

    /// Dials the peer without a call, unless there is a connection or an attempt. Returns the number of the dial, whose
    /// first attempt the caller makes.
    pub(crate) fn contact(&mut self) -> Option<u64> {
        match self.phase {
            Phase::Absent(before) if !self.is_closing => Some(self.new_dial(before, true)),
            _ => None,
        }
    }

    /// The process at the other end of the connection.
    pub(crate) fn connected_incarnation(&self) -> Option<u64> {
        self.is_connected().then(|| self.peer_incarnation())?
    }

    /// Whether its connection was lost, and no other was made.
    pub(crate) fn is_lost(&self) -> bool {
        self.absence() == Some(Absence::Lost)
    }

    /// The incarnation of the process that has left, while no later one is connected.
    pub(crate) fn left_incarnation(&self) -> Option<u64> {
        let is_last = !self.is_connected() && self.left == self.peer_incarnation();
        is_last.then_some(self.left)?
    }

    fn absence(&self) -> Option<Absence> {
        match self.phase {
            Phase::Absent(absence)
            | Phase::Dialing {
                before: absence, ..
            } => Some(absence),
            _ => None,
        }
    }

    /// The incarnation of the process at the other end of the last connection.
    pub(crate) fn peer_incarnation(&self) -> Option<u64> {
        self.pair.as_ref()?.peer_incarnation()
    }

    pub(super) fn begin_dial(&mut self, before: Absence, now: Instant) {
        let dial = self.new_dial(before, false);
        self.effects.push(Effect::Dial { dial, at: now });
    }

    fn new_dial(&mut self, before: Absence, is_contact: bool) -> u64 {
        let options = BackoffOptions::default()
            .with_first(FIRST_PAUSE)
            .with_max(LONGEST_PAUSE);
        // Two workers that dial each other do not stay in step.
        let seed = self.config.incarnation ^ u64::from(self.info.id.get());
        self.dials += 1;
        let number = self.dials;
        let dial = Dial {
            number,
            backoff: Backoff::new(options, seed),
            is_contact,
            began: None,
            hello_to: None,
        };
        self.phase = Phase::Dialing { dial, before };
        number
    }

    /// The dial of this number, unless it is over.
    fn dial(&mut self, number: u64) -> Option<&mut Dial> {
        match &mut self.phase {
            Phase::Dialing { dial, .. } if dial.number == number => Some(dial),
            _ => None,
        }
    }

    /// The incarnation in the Hello of this dial, which has been answered now.
    fn answered_hello(&mut self, number: u64) -> Option<u64> {
        self.dial(number)?.hello_to.take()
    }

    fn establish(&mut self, socket: S, address: SocketAddr, decoder: Incoming) -> ConnectionId {
        self.outgoing.start();
        self.connections += 1;
        let id = ConnectionId(self.connections);
        self.phase = Phase::Connected(Connection::new(id, socket, address, decoder));
        self.last_failure = None;
        self.effects.push(Effect::Notify(Notice::Connected {
            address,
            is_reconnect: self.connections > 1,
        }));
        id
    }
}
