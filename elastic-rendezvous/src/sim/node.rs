//! A simulated node: an executor or a PyTorch node, its clocks, and its current operation.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::store::{Answer, Version};
use super::torch::TorchNode;
use crate::backend::Token;
use crate::clock::Now;
use crate::executor::{Executor, Need, Operation, OperationError, Written};
use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;
use crate::timestamp::Timestamp;

/// The correct wall clock at the start of the simulation.
const WALL: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// The implementation of a node.
#[derive(Debug)]
pub(super) enum Player {
    Ours(Box<Executor>),
    Torch(Box<TorchNode>),
}

/// How a node of ours notices changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watching {
    /// It polls once a second.
    Polls,
    /// It is woken when nodes join or leave.
    Members,
    /// In an open round it is woken only by changes of the round itself.
    Round,
}

/// A command to a node, or a fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// Its process starts and joins.
    Start,
    /// It leaves its round and joins the next one.
    Rejoin,
    /// It has stopped its workers and joins again, unless it has joined meanwhile: `joins` is the number of its
    /// joins when it began to stop them.
    Restart {
        joins: usize,
    },
    Leave,
    Close,
    /// It stops for good.
    Crash,
    /// It stops for a while: nothing reaches it, but its clocks advance.
    Pause(Duration),
    /// Its wall clock is changed by this number of seconds.
    Jump(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Absent,
    Busy(Operation),
    /// A member of a complete round, between two heartbeats.
    Member,
    Over(Outcome),
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
    pub(super) player: Player,
    pub(super) watching: Watching,
    /// Whether it joins again when nodes wait or members are lost.
    pub(super) restarts: bool,
    pub(super) stage: Stage,
    /// The error of its wall clock, in seconds.
    pub(super) skew: i64,
    /// Its monotonic clock at the start of the simulation.
    pub(super) boot: Duration,
    /// The number of the request it waits for; events for other numbers are ignored.
    pub(super) ask: u64,
    pub(super) paused_until: Duration,
    pub(super) was_paused: bool,
    pub(super) commands: VecDeque<Command>,
    pub(super) plans_rejoin: bool,
    /// Until when a member waits before it checks for a due heartbeat.
    pub(super) idle_until: Duration,
    pub(super) deadline: Duration,
    /// The last version that it has read.
    pub(super) known: Option<Rc<Version>>,
    pub(super) joins: Vec<Joined>,
    /// The number of very short waits in a row.
    pub(super) short_waits: u32,
    pub(super) round: i64,
    /// The nodes that it has reported as lost.
    pub(super) lost: Vec<NodeId>,
}

impl SimNode {
    pub(super) fn new(player: Player) -> Self {
        Self {
            player,
            watching: Watching::Members,
            restarts: true,
            stage: Stage::Absent,
            skew: 0,
            boot: Duration::from_secs(1000),
            ask: 0,
            paused_until: Duration::ZERO,
            was_paused: false,
            commands: VecDeque::new(),
            plans_rejoin: false,
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
        matches!(self.player, Player::Torch(_))
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Busy(_) | Stage::Member)
    }

    pub(super) fn clock(&self, now: Duration) -> Now {
        let skew = Duration::from_secs(self.skew.unsigned_abs());
        let right = WALL.after(now);
        Now {
            monotonic: self.boot + now,
            wall: if self.skew < 0 {
                right.before(skew)
            } else {
                right.after(skew)
            },
        }
    }

    pub(super) fn me(&self) -> &NodeId {
        match &self.player {
            Player::Ours(executor) => executor.me(),
            Player::Torch(torch) => &torch.me,
        }
    }

    pub(super) fn state(&self) -> &RendezvousState {
        match &self.player {
            Player::Ours(executor) => executor.state(),
            Player::Torch(torch) => &torch.state,
        }
    }

    pub(super) fn to_write(&self) -> (RendezvousState, Option<Token>) {
        match &self.player {
            Player::Ours(executor) => {
                let (state, token) = executor.to_write();
                (state.clone(), token.cloned())
            }
            Player::Torch(torch) => (torch.state.clone(), torch.token.clone()),
        }
    }

    /// Starts the process, with new observations.
    pub(super) fn start(&mut self, now: Duration) {
        let clock = self.clock(now);
        if let Player::Ours(executor) = &mut self.player {
            let settings = executor.settings().clone();
            **executor = Executor::new(executor.me().clone(), settings, clock);
        }
    }

    pub(super) fn begin(&mut self, operation: Operation, now: Duration) {
        let clock = self.clock(now);
        match &mut self.player {
            Player::Ours(executor) => executor.begin(operation, self.deadline, clock),
            Player::Torch(torch) => torch.begin(operation, self.deadline),
        }
        self.stage = Stage::Busy(operation);
    }

    pub(super) fn step(&mut self, now: Duration) -> Need {
        let clock = self.clock(now);
        match &mut self.player {
            Player::Ours(executor) => executor.step(clock),
            Player::Torch(torch) => torch.step(clock),
        }
    }

    pub(super) fn on_answer(&mut self, answer: &Answer, was_write: bool, now: Duration) {
        let clock = self.clock(now);
        let version = answer.version.as_ref();
        let stored = version.map(|version| (version.state.clone(), version.token.clone()));
        match &mut self.player {
            Player::Torch(torch) => torch.adopt(stored, clock),
            Player::Ours(executor) if was_write => {
                let written = match stored {
                    Some((_, token)) if answer.is_ours => Written::Ours(token),
                    Some((state, token)) => Written::Theirs(Box::new(state), token),
                    None => Written::Nothing,
                };
                executor.on_written(written, clock);
            }
            Player::Ours(executor) => executor.on_read(stored, clock),
        }
        if let Player::Ours(executor) = &mut self.player {
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
        // The stored round is checked. In its own copy, a node may drop the last member of a round, which opens
        // the next one, and then read that the member has written after all.
        let round = version.map_or(0, |version| version.state.round);
        assert!(
            self.round <= round,
            "{} has read round {round} after round {}",
            self.me(),
            self.round
        );
        self.round = round;
    }

    /// The longest pause after a write conflict.
    pub(super) fn conflict_pause_max(&self, now: Duration) -> Option<Duration> {
        match &self.player {
            Player::Ours(executor) => executor.conflict_pause_max(self.clock(now)),
            Player::Torch(_) => None,
        }
    }

    /// When it next checks for a due heartbeat.
    pub(super) fn next_heartbeat(&self, settings: &RendezvousSettings, now: Duration) -> Duration {
        let due = match &self.player {
            Player::Ours(executor) => executor.heartbeat_due_at(),
            Player::Torch(_) => None,
        };
        due.map_or(now + settings.keep_alive_interval, |due| {
            due.saturating_sub(self.boot).max(now)
        })
    }

    /// Whether a launcher would stop its workers and join again.
    pub(super) fn wants_restart(&self) -> bool {
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
