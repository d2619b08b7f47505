//! A simulated node: an executor or a PyTorch node, its clocks, and its current operation.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::store::{Answer, Version};
use super::torch::TorchNode;
use crate::engine::executor::{Executor, Need};
use crate::values::clock::Now;
use crate::values::goal::{Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::stored::Token;
use crate::values::stored::Written;
use crate::values::timestamp::Timestamp;

/// The correct wall clock at the start of the simulation.
const WALL: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// The code that decides for a node.
#[derive(Debug)]
pub(super) enum Implementation {
    Ours(Box<Executor>),
    Torch(Box<TorchNode>),
}

/// How a node of ours notices changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watching {
    /// The node polls once a second.
    Polls,
    /// The node is woken when nodes join or leave.
    Members,
    /// In an open round, the node is woken only by changes of the round itself.
    Round,
}

/// A command to a node, or a fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// The process starts and joins.
    Start,
    /// The node leaves its round and joins the next one.
    Rejoin,
    /// The node has stopped its workers and joins again, unless it has joined meanwhile. `joins` is the number of
    /// its joins when it began to stop them.
    Restart {
        joins: usize,
    },
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
    /// A member of a complete round, between two heartbeats.
    Member,
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Crashed,
    Left,
    Closed,
    Failed(OperationError),
}

/// A complete round, as the node saw it when it joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) at: Duration,
    pub(super) round: i64,
    pub(super) rank: i64,
    pub(super) nodes: BTreeSet<NodeId>,
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) implementation: Implementation,
    pub(super) watching: Watching,
    /// Whether the node joins again when nodes wait or members are lost.
    pub(super) restarts: bool,
    pub(super) stage: Stage,
    /// The error of its wall clock, in seconds.
    pub(super) skew: i64,
    /// Its monotonic clock at the start of the simulation.
    pub(super) boot: Duration,
    /// The request that the node waits for; events of other requests are ignored.
    pub(super) request_id: u64,
    pub(super) paused_until: Duration,
    pub(super) was_paused: bool,
    pub(super) cut_until: Duration,
    pub(super) is_silent: bool,
    pub(super) was_cut: bool,
    pub(super) commands: VecDeque<Command>,
    pub(super) is_rejoin_planned: bool,
    /// Whether the node does not join after it has left its round, as during a health check.
    pub(super) rests: bool,
    /// When a member next checks whether a heartbeat is due.
    pub(super) idle_until: Duration,
    pub(super) deadline: Duration,
    /// The version that the node has read last.
    pub(super) known: Option<Rc<Version>>,
    pub(super) joins: Vec<Joined>,
    /// The number of very short waits in a row.
    pub(super) short_waits: u32,
    pub(super) round: i64,
    /// The nodes that this node has reported as lost.
    pub(super) lost: Vec<NodeId>,
}

impl SimNode {
    pub(super) fn new(implementation: Implementation) -> Self {
        Self {
            implementation,
            watching: Watching::Members,
            restarts: true,
            stage: Stage::NotStarted,
            skew: 0,
            boot: Duration::from_secs(1000),
            request_id: 0,
            paused_until: Duration::ZERO,
            was_paused: false,
            cut_until: Duration::ZERO,
            is_silent: false,
            was_cut: false,
            commands: VecDeque::new(),
            is_rejoin_planned: false,
            rests: false,
            idle_until: Duration::ZERO,
            deadline: Duration::ZERO,
            known: None,
            joins: Vec::new(),
            short_waits: 0,
            round: 0,
            lost: Vec::new(),
        }
    }

    pub(super) fn is_torch(&self) -> bool {
        matches!(self.implementation, Implementation::Torch(_))
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Busy(_) | Stage::Member)
    }

    /// Whether its heartbeats may have been late.
    pub(super) const fn was_late(&self) -> bool {
        self.was_paused || self.was_cut
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

    pub(super) fn me(&self) -> &NodeId {
        match &self.implementation {
            Implementation::Ours(executor) => executor.me(),
            Implementation::Torch(torch) => &torch.me,
        }
    }

    pub(super) fn state(&self) -> &RendezvousState {
        match &self.implementation {
            Implementation::Ours(executor) => executor.state(),
            Implementation::Torch(torch) => &torch.state,
        }
    }

    pub(super) fn to_write(&self) -> (RendezvousState, Option<Token>) {
        match &self.implementation {
            Implementation::Ours(executor) => {
                let (state, token) = executor.to_write();
                (state.clone(), token.cloned())
            }
            Implementation::Torch(torch) => (torch.state.clone(), torch.token.clone()),
        }
    }

    /// Starts the process, with new observations.
    pub(super) fn start(&mut self, now: Duration) {
        let clock = self.clock(now);
        if let Implementation::Ours(executor) = &mut self.implementation {
            let settings = executor.settings().clone();
            **executor = Executor::new(executor.me().clone(), settings, clock);
        }
    }

    pub(super) fn begin(&mut self, operation: Operation, now: Duration) {
        let clock = self.clock(now);
        match &mut self.implementation {
            Implementation::Ours(executor) => executor.begin(operation, self.deadline, clock),
            Implementation::Torch(torch) => torch.begin(operation, self.deadline),
        }
        self.stage = Stage::Busy(operation);
    }

    pub(super) fn step(&mut self, now: Duration) -> Need {
        let clock = self.clock(now);
        match &mut self.implementation {
            Implementation::Ours(executor) => executor.step(clock),
            Implementation::Torch(torch) => torch.step(clock),
        }
    }

    pub(super) fn on_answer(&mut self, answer: &Answer, was_write: bool, now: Duration) {
        let clock = self.clock(now);
        let version = answer.version.as_ref();
        let stored = version.map(|version| (version.state.clone(), version.token.clone()));
        match &mut self.implementation {
            Implementation::Torch(torch) => torch.adopt(stored, clock),
            Implementation::Ours(executor) if was_write => {
                let written = match stored {
                    Some((_, token)) if answer.is_ours => Written::Ours(token),
                    Some((state, token)) => Written::Theirs(Box::new(state), token),
                    None => Written::Nothing,
                };
                executor.on_written(written, clock);
            }
            Implementation::Ours(executor) => executor.on_read(stored, clock),
        }
        if let Implementation::Ours(executor) = &mut self.implementation {
            let lost = executor.take_newly_lost().into_iter();
            self.lost.extend(lost.map(|lost| lost.node));
        }
        let is_new = match (&self.known, version) {
            (Some(known), Some(version)) => !Rc::ptr_eq(known, version),
            (known, version) => known.is_some() != version.is_some(),
        };
        if is_new {
            self.short_waits = 0;
        }
        self.known = version.cloned();
        // Only the stored round never decreases. In its own copy a node may drop the last member of a round, which
        // opens the next round, and then read that the member has written.
        let round = version.map_or(0, |version| version.state.round);
        assert!(
            self.round <= round,
            "{} has read round {round} after round {}",
            self.me(),
            self.round
        );
        self.round = round;
    }

    /// Whether the node has read that others have left for good, and decides again.
    pub(super) fn has_learned(&mut self, gone: &BTreeSet<NodeId>, now: Duration) -> bool {
        let clock = self.clock(now);
        match &mut self.implementation {
            Implementation::Ours(executor) => {
                executor.awaits_notices(clock) && executor.on_gone(gone.clone())
            }
            Implementation::Torch(_) => false,
        }
    }

    /// The longest pause after a write conflict.
    pub(super) fn conflict_pause_max(&self, now: Duration) -> Option<Duration> {
        match &self.implementation {
            Implementation::Ours(executor) => executor.conflict_pause_max(self.clock(now)),
            Implementation::Torch(_) => None,
        }
    }

    /// When the node next checks whether a heartbeat is due.
    pub(super) fn next_heartbeat(&self, settings: &RendezvousSettings, now: Duration) -> Duration {
        let due = match &self.implementation {
            Implementation::Ours(executor) => executor.heartbeat_due_at(),
            Implementation::Torch(_) => None,
        };
        due.map_or(now + settings.keep_alive_interval, |due| {
            due.saturating_sub(self.boot).max(now)
        })
    }

    /// Whether a launcher would stop its workers and join again.
    pub(super) fn must_restart(&self) -> bool {
        let state = self.state();
        if state.closed {
            return false;
        }
        if !state.wait_list.is_empty() {
            return true;
        }
        let Some(joined) = self.joins.last().filter(|_| !self.is_torch()) else {
            return false;
        };
        !state.complete
            || state.round != joined.round
            || joined
                .nodes
                .iter()
                .any(|node| !state.participants.contains_key(node))
    }
}
