//! A simulated node: its engine, its clocks, and the commands of its launcher.

use std::collections::VecDeque;
use std::time::Duration;

use super::torch::TorchNode;
use crate::engine::group::GroupEngine;
use crate::engine::solo::Solo;
use crate::engine::{Engine, Reply};
use crate::values::goal::{Answer, Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::{Now, Timestamp};

/// The correct wall clock at the start of the simulation.
pub(super) const WALL: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Which code decides for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ours, which writes the state itself.
    Solo,
    /// Ours, in a group where one node writes for all.
    Group,
    Torch,
}

#[derive(Debug)]
pub(super) enum Implementation {
    Solo(Box<Solo>),
    Group(Box<GroupEngine>),
    Torch(Box<TorchNode>),
}

impl Implementation {
    fn new(kind: Kind, me: NodeId, index: u32, settings: RendezvousSettings, now: Now) -> Self {
        let seed = u64::from(index);
        match kind {
            Kind::Solo => Self::Solo(Box::new(Solo::new(me, settings, seed, now))),
            Kind::Group => Self::Group(Box::new(GroupEngine::new(me, index, settings, seed, now))),
            Kind::Torch => Self::Torch(Box::new(TorchNode::new(me, settings))),
        }
    }
}

/// The way in which one of our nodes notices changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watching {
    /// The node polls once a second.
    Polls,
    /// The node is woken when nodes join or leave.
    Members,
    /// In an open round, the node is woken only by changes of the round itself, as one of many.
    Round,
}

/// A command to a node, or a fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// The process starts and joins.
    Start,
    /// The node leaves its round and joins the next one.
    Rejoin,
    /// The node has stopped its workers and joins again, unless it has joined in the meantime. `joins` is the number of
    /// its joins when it began to stop them.
    Restart {
        joins: usize,
    },
    /// The node leaves its round, and joins no other round before [`Self::Rejoin`], like for a health check.
    Exit,
    /// The node leaves its round and enters the next round that admits it.
    GiveUp,
    Leave,
    Close,
    /// The process dies.
    Crash,
    /// The process is stopped for this time: nothing reaches it, but its clocks advance.
    Pause(Duration),
    /// The connection to the store is lost, and no other can be made for this time. In a silent network the node has to
    /// wait for each answer to notice it.
    Cut {
        time: Duration,
        is_silent: bool,
    },
    /// The wall clock jumps by this number of seconds.
    Jump(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    NotStarted,
    Busy(Operation),
    Member,
    /// The node is in no round, before the next join.
    Away,
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Crashed,
    Left,
    Closed,
    Failed(OperationError),
}

/// The event that a node waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The response to a request.
    Response,
    /// The node waits for the answer to a request that waits in the store. The request ends when the node has something
    /// else to do.
    Change,
    /// A time, or something to do.
    Pause,
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) me: NodeId,
    pub(super) kind: Kind,
    pub(super) implementation: Implementation,
    /// The node's number in the group.
    pub(super) index: u32,
    pub(super) watching: Watching,
    /// Whether the node joins again when nodes wait or members are lost.
    pub(super) restarts: bool,
    /// Whether its launcher keeps workers: it restarts only for nodes that wait, and its first join, and that after
    /// [`Command::GiveUp`], may enter a round.
    pub(super) keeps: bool,
    pub(super) stage: Stage,
    /// The error of its wall clock, in seconds.
    pub(super) skew: i64,
    /// The node's monotonic clock at the start of the simulation.
    pub(super) boot: Duration,
    /// The request that the node waits for; events of other requests are ignored.
    pub(super) request_id: u64,
    pub(super) waiting: Waiting,
    /// The wait on its way to the store is to end there at once.
    pub(super) is_interrupted: bool,
    /// Whether the next request fails because it is sent over a lost connection.
    pub(super) is_disconnected: bool,
    pub(super) paused_until: Duration,
    pub(super) was_paused: bool,
    pub(super) was_cut: bool,
    /// When the last time without a connection began.
    pub(super) cut_since: Duration,
    /// Whether it was once without a connection for longer than 2 s, so that it may count as lost.
    pub(super) was_long_gone: bool,
    /// The number of its connection.
    pub(super) connection: u32,
    pub(super) commands: VecDeque<Command>,
    pub(super) is_rejoin_planned: bool,
    /// The deadline of the operation.
    pub(super) deadline: Duration,
    /// The rounds that it has joined.
    pub(super) joins: Vec<Answer>,
    /// The time since which other nodes are in the same round with a different world size.
    pub(super) disagrees_since: Option<Duration>,
    /// The number of very short waits in a row.
    pub(super) short_waits: u32,
    pub(super) round: i64,
    /// The nodes that this node has reported as lost.
    pub(super) lost: Vec<NodeId>,
}

impl SimNode {
    pub(super) fn new(me: NodeId, kind: Kind, settings: &RendezvousSettings) -> Self {
        let never = Now {
            monotonic: Duration::ZERO,
            wall: Timestamp::MIN,
        };
        let implementation = Implementation::new(kind, me.clone(), 0, settings.clone(), never);
        Self {
            me,
            kind,
            implementation,
            index: 0,
            watching: Watching::Members,
            restarts: true,
            keeps: false,
            stage: Stage::NotStarted,
            skew: 0,
            boot: Duration::from_secs(1000),
            request_id: 0,
            waiting: Waiting::Response,
            is_interrupted: false,
            is_disconnected: false,
            paused_until: Duration::ZERO,
            was_paused: false,
            was_cut: false,
            cut_since: Duration::ZERO,
            was_long_gone: false,
            connection: 0,
            commands: VecDeque::new(),
            is_rejoin_planned: false,
            deadline: Duration::ZERO,
            joins: Vec::new(),
            disagrees_since: None,
            short_waits: 0,
            round: 0,
            lost: Vec::new(),
        }
    }

    pub(super) fn is_torch(&self) -> bool {
        self.kind == Kind::Torch
    }

    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Busy(_) | Stage::Member | Stage::Away)
    }

    /// Whether its heartbeats may have been late.
    pub(super) const fn was_late(&self) -> bool {
        self.was_paused || self.was_cut
    }

    pub(super) fn is_holder(&self) -> bool {
        matches!(&self.implementation, Implementation::Group(group) if group.station().is_holder())
    }

    pub(super) fn clock(&self, now: Duration) -> Now {
        let skew = Duration::from_secs(self.skew.unsigned_abs());
        let correct = WALL.after(now);
        Now {
            monotonic: self.boot + now,
            wall: if self.skew < 0 {
                correct.before(skew)
            } else {
                correct.after(skew)
            },
        }
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        match &self.implementation {
            Implementation::Solo(engine) => &**engine,
            Implementation::Group(engine) => &**engine,
            Implementation::Torch(engine) => &**engine,
        }
    }

    pub(super) fn engine_mut(&mut self) -> &mut dyn Engine {
        match &mut self.implementation {
            Implementation::Solo(engine) => &mut **engine,
            Implementation::Group(engine) => &mut **engine,
            Implementation::Torch(engine) => &mut **engine,
        }
    }

    /// The engine may then have another id.
    pub(super) fn reply(&mut self, reply: Reply, now: Now) {
        self.engine_mut().on_reply(reply, now);
        self.me = self.engine().me().clone();
    }

    /// The view of the state of a node that writes the state itself.
    pub(super) fn state(&self) -> &RendezvousState {
        let known = self.engine().to_write();
        known.expect("a node that writes the state").0
    }

    /// A new engine, in no round.
    pub(super) fn start(&mut self, index: u32, settings: &RendezvousSettings, now: Duration) {
        let now = self.clock(now);
        self.index = index;
        self.implementation =
            Implementation::new(self.kind, self.me.clone(), index, settings.clone(), now);
    }

    /// The time in the simulation of the node's time `until`; `None` for never.
    pub(super) fn in_simulation(&self, until: Duration) -> Option<Duration> {
        (until != Duration::MAX).then(|| until.saturating_sub(self.boot))
    }

    /// Whether the next command begins now.
    pub(super) fn takes_command(&self) -> bool {
        let Some(command) = self.commands.front() else {
            return false;
        };
        match self.stage {
            Stage::NotStarted | Stage::Away => true,
            Stage::Member => !self.engine().is_busy(),
            Stage::Busy(Operation::Join | Operation::Enter | Operation::Exit) => {
                matches!(command, Command::Leave)
            }
            Stage::Busy(_) | Stage::Ended(_) => false,
        }
    }

    /// Whether a launcher would stop its workers and join again.
    pub(super) fn must_restart(&self) -> bool {
        let Some(membership) = self.engine().membership() else {
            return false;
        };
        let is_changed = membership.is_evicted || (membership.departed() > 0 && !self.keeps);
        !membership.is_closed && (is_changed || !membership.waiting.is_empty())
    }
}
