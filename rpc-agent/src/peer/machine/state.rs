//! The state of one peer, and the parts that all inputs share.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use c10d_socket::Backoff;

use crate::error::{CallSite, RpcError};
use crate::peer::call::{Admission, PendingCall};
use crate::peer::config::Config;
use crate::peer::connection::{Connection, ConnectionId};
use crate::peer::effect::{Effect, Effects};
use crate::peer::in_flight::InFlight;
use crate::peer::outgoing::Outgoing;
use crate::peer::pair::{Pair, PairState};
use crate::worker::WorkerInfo;

/// The state of an agent about one worker. `P` completes a call, `S` is a socket; the machine uses the inside of
/// neither. Inputs that may have effects are given through [`Peer::step`].
pub(crate) struct Peer<P, S> {
    pub(super) config: Arc<Config>,
    pub(super) info: WorkerInfo,
    pub(super) phase: Phase<S>,
    /// Chooses among crossing connections; `None` for the agent's own worker.
    pub(super) pair: Option<Pair>,
    pub(super) in_flight: InFlight<PendingCall<P>>,
    pub(super) outgoing: Outgoing,
    pub(super) admission: Admission,
    /// The largest message that the peer accepts, in bytes, as announced at its last connection.
    pub(super) message_bytes_max: u64,
    pub(super) connections: u64,
    /// The incarnation of the last process that has left.
    pub(super) left: Option<u64>,
    pub(super) dials: u64,
    /// The effects of the present input; empty between two inputs.
    pub(super) effects: Effects<P, S>,
    /// The thread that gives the present input flushes before it sleeps.
    pub(super) thread_flushes: bool,
    /// The reason why there is no connection, if there was a connection or an attempt.
    pub(super) last_failure: Option<Arc<str>>,
    /// An [`Effect::SendSoon`] is under way.
    pub(super) sends_soon: bool,
    /// The agent is shutting down: no new calls, no new connections.
    pub(super) is_closing: bool,
    /// The function called last: the next call is often to the same.
    pub(super) last_function: Arc<str>,
}

pub(super) enum Phase<S> {
    /// The agent's own worker: calls to it use no connection.
    Own,
    /// No connection, and no attempt to make one.
    Absent(Absence),
    /// Attempts to connect.
    Dialing {
        dial: Dial,
        before: Absence,
    },
    Connected(Connection<S>),
    /// Another worker has its id. Its calls have failed, and further calls fail at once.
    Replaced,
}

/// The state of a peer without a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    NeverConnected,
    /// The last connection ended with a farewell.
    Left,
    /// The last connection ended without a farewell.
    Lost,
    /// Nothing listens at its address any more: its process has ended.
    Dead,
}

impl Absence {
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Left | Self::Dead)
    }
}

#[derive(Debug)]
pub(super) struct Dial {
    /// Attempts that belong to an earlier dial are ignored.
    pub(super) number: u64,
    pub(super) backoff: Backoff,
    /// Made without a call, to announce this process: only what the peer answers leads to a further attempt.
    pub(super) is_contact: bool,
    /// The time when the first attempt began.
    pub(super) began: Option<Instant>,
    /// The incarnation in a Hello that was sent and has no answer; 0 for any.
    pub(super) hello_to: Option<u64>,
}

impl Dial {
    pub(super) fn pair_state(&self) -> PairState {
        self.hello_to
            .map_or(PairState::Idle, |incarnation_wanted| PairState::Dialing {
                incarnation_wanted,
            })
    }
}

impl<P, S: Clone> Peer<P, S> {
    /// A worker of the group that there was no contact with yet.
    pub(crate) fn new(config: Arc<Config>, info: WorkerInfo) -> Self {
        let is_own = info.id == config.me.id;
        let pair = (!is_own).then(|| Pair::new(config.me.id, config.incarnation, info.id));
        Self {
            config,
            info,
            phase: if is_own {
                Phase::Own
            } else {
                Phase::Absent(Absence::NeverConnected)
            },
            pair,
            in_flight: InFlight::new(),
            outgoing: Outgoing::held(),
            admission: Admission::default(),
            message_bytes_max: u64::MAX,
            connections: 0,
            left: None,
            dials: 0,
            effects: Effects::new(),
            thread_flushes: false,
            last_failure: None,
            sends_soon: false,
            is_closing: false,
            last_function: Arc::from(""),
        }
    }

    /// Passes an input to the machine. The resulting effects are appended to `effects`, to be carried out in order
    /// before the thread blocks. `thread_flushes`: this thread flushes before it sleeps, so that its messages may
    /// wait for more to leave together with them.
    pub(crate) fn step<R>(
        &mut self,
        effects: &mut Effects<P, S>,
        thread_flushes: bool,
        input: impl FnOnce(&mut Self) -> R,
    ) -> R {
        std::mem::swap(&mut self.effects, effects);
        self.thread_flushes = thread_flushes;
        let result = input(self);
        std::mem::swap(&mut self.effects, effects);
        result
    }

    pub(super) fn complete(&mut self, call: PendingCall<P>, result: Result<Bytes, RpcError>) {
        self.effects.push(Effect::Complete { call, result });
    }

    pub(super) fn site(&self, function: &Arc<str>) -> Box<CallSite> {
        CallSite::of(&self.info, Arc::clone(function))
    }

    /// The largest message between this agent and the peer, in bytes.
    pub(super) fn largest_message(&self) -> u64 {
        self.config.message_bytes_max.min(self.message_bytes_max)
    }

    pub(super) fn is_connected_by(&self, connection: ConnectionId) -> bool {
        matches!(&self.phase, Phase::Connected(current) if current.id == connection)
    }

    /// The connection in use, if it is this one.
    pub(crate) fn connected_by(&mut self, connection: ConnectionId) -> Option<&mut Connection<S>> {
        match &mut self.phase {
            Phase::Connected(current) if current.id == connection => Some(current),
            _ => None,
        }
    }
}
