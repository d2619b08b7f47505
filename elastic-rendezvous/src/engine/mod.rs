//! The engines, which decide for a node, and their interface to the shell, which carries out the decisions.
//!
//! An engine is pure: it returns the next request ([`Ask`]) and receives the result ([`Reply`]). Time is an argument.
//! The shell's `handler_loop` drives any engine, and its `dynamic_rendezvous` creates the engine that `access` allows:
//! `solo`, for a node that writes the state itself, or `group`, where one node writes for all.

mod apply;
mod decide;
mod decider;
mod departures;
pub(crate) mod duty;
mod executor;
pub(crate) mod group;
mod identity;
mod last_round;
pub(crate) mod links;
mod observations;
pub(crate) mod own_address;
pub(crate) mod reach;
#[cfg(test)]
mod sim;
pub(crate) mod solo;

use std::fmt::Debug;
use std::time::Duration;

use self::group::Ask as GroupAsk;
pub(crate) use self::group::Reply;
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::report::{LostNode, Membership, WaitReport};
use crate::values::state::{Part, RendezvousState, Token};
use crate::values::timestamp::Now;

/// Decides on the requests of one node to the store, operation by operation, and on the actions of a member
/// between operations.
pub(crate) trait Engine: Debug + Send {
    /// The identity of the node. It changes while the node joins, if another process has the same one.
    fn me(&self) -> &NodeId;

    /// Begins an operation that should be over by `deadline`, instead of the previous operation. An operation that
    /// leaves the round stops the membership at once.
    fn begin(&mut self, operation: Operation, deadline: Duration, now: Now);

    /// The next request, during an operation or as a member.
    fn step(&mut self, now: Now) -> Ask;

    /// Takes the result of the last request.
    fn on_reply(&mut self, reply: Reply, now: Now);

    /// Handles a failed request. Its operation has failed as well; a member stays a member.
    fn on_failure(&mut self, error: &RendezvousError, now: Now);

    /// Handles a failed request that may have taken effect. The operation continues after a pause.
    fn on_outage(&mut self, now: Now);

    /// Returns the time until which the other nodes keep this node in its round without a sign of life from it; `None`
    /// in no round.
    fn is_kept_until(&self) -> Option<Duration>;

    /// Whether a member is in the midst of something that ends before the next operation begins.
    fn is_busy(&self) -> bool {
        false
    }

    /// Returns the node's view of the state, with its changes, and the token of the stored state; `None` if it has
    /// no state.
    fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)>;

    /// Returns the changes of the round that this node is a member of; `None` in no round.
    fn membership(&self) -> Option<Membership>;

    /// When the last request began that has shown that all other members of the round are connected to the store.
    fn members_connected_at(&self) -> Option<Duration> {
        None
    }

    /// The progress of the join, or how it stood when it timed out.
    fn report(&self, now: Now) -> WaitReport;

    /// Returns why the node waits, for the log.
    fn reason(&self) -> Option<&'static str> {
        None
    }

    /// Takes the nodes lost after the last call.
    fn take_newly_lost(&mut self, now: Now) -> Vec<LostNode>;

    /// Takes the steps since the last call, each with the node that it is about.
    fn take_steps(&mut self) -> Vec<(NodeId, Step)>;

    /// Returns the request that gives back the lease of a node which is in no round, or is about to leave its round.
    /// The result does not matter.
    fn release(&mut self) -> Option<GroupAsk> {
        None
    }
}

/// A request of an engine, needed for its next step.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    /// The stored state: [`Reply::State`].
    ReadState,
    /// Whether the stored state is still the one of [`Engine::to_write`], apart from heartbeats: [`Reply::IsSame`].
    CheckState,
    /// A write of [`Engine::to_write`]: [`Reply::Written`].
    WriteState,
    /// A wait until `part` of the stored state differs from [`Engine::to_write`], or this time: [`Reply::State`], or
    /// [`Reply::Nothing`].
    AwaitState { part: Part, until: Duration },
    /// The notices of nodes that have gone: [`Reply::Gone`].
    ReadNotices,
    /// The answers of this round's members to nodes that want to enter it: [`Reply::Entry`].
    ReadEntry { round: i64 },
    /// The marks of these nodes (docs/spec/rendezvous.md, section 10.3): [`Reply::Marks`].
    ReadMarks(Vec<NodeId>),
    /// Marks this node as connected: [`Reply::Done`].
    SetMark,
    /// A report of the waiting join to listeners and log: [`Reply::Nothing`].
    Report,
    /// A request to the keys of the group; the station says to itself what its result is.
    Group(GroupAsk),
    /// Nothing until this time or a message: [`Reply::Nothing`].
    Pause { until: Duration },
    /// Another engine, in no round: the store has lost what this one knows.
    StartAnew,
    /// Nothing: the operation is over.
    Done(Result<Answer, OperationError>),
}
