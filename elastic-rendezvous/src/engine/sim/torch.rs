//! A model of a PyTorch node: the same tables, with liveness by the wall clock.
//!
//! In PyTorch: `_RendezvousStateHolder`, `_DistributedRendezvousOpExecutor`
//! (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).

use std::time::Duration;

use crate::engine::apply::{apply, remove_dead};
use crate::engine::decide::{self, Action, Context};
use crate::engine::executor::Need;
use crate::engine::group_ranks::Ranks;
use crate::values::clock::Now;
use crate::values::goal::{Operation, OperationError};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::stored::Token;

/// How long a node uses a state that it has read, and how long it sleeps between reads.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct TorchNode {
    pub(crate) me: NodeId,
    settings: RendezvousSettings,
    pub(crate) state: RendezvousState,
    pub(crate) token: Option<Token>,
    is_dirty: bool,
    is_synced: bool,
    synced_at: Option<Duration>,
    operation: Operation,
    deadline: Duration,
}

impl TorchNode {
    pub(crate) fn new(me: NodeId, settings: RendezvousSettings) -> Self {
        Self {
            me,
            settings,
            state: RendezvousState::default(),
            token: None,
            is_dirty: false,
            is_synced: false,
            synced_at: None,
            operation: Operation::KeepAlive,
            deadline: Duration::ZERO,
        }
    }

    pub(crate) fn begin(&mut self, operation: Operation, deadline: Duration) {
        self.operation = operation;
        self.deadline = deadline;
        self.is_dirty = false;
        self.is_synced = false;
    }

    pub(crate) fn step(&mut self, now: Now) -> Need {
        loop {
            if !self.is_synced {
                if self.is_dirty {
                    return Need::Write;
                }
                let is_fresh = self
                    .synced_at
                    .is_some_and(|at| now.monotonic.saturating_sub(at) < POLL_INTERVAL);
                if !is_fresh {
                    return Need::Read;
                }
            }
            self.is_synced = false;
            let action = self.decide(now);
            match action {
                Action::Finish => return Need::Done(Ok(())),
                Action::ErrorClosed => return Need::Done(Err(OperationError::Closed)),
                Action::ErrorTimeout => return Need::Done(Err(OperationError::Timeout)),
                Action::GracefulExit => return Need::Done(Err(OperationError::GracefulExit)),
                Action::Sync => {
                    return Need::Wait {
                        until: now.monotonic + POLL_INTERVAL,
                    };
                }
                _ => {
                    if action == Action::RemoveFromRedundancyList {
                        self.deadline = now.monotonic + self.settings.join_timeout;
                    }
                    let (state, settings) = (&mut self.state, &self.settings);
                    apply(state, action, &self.me, settings, now.wall, &Ranks::new());
                    self.is_dirty = true;
                }
            }
        }
    }

    /// Adopts the result of a read or write.
    pub(crate) fn adopt(&mut self, stored: Option<(RendezvousState, Token)>, now: Now) {
        let (state, token) = stored.unzip();
        self.state = state.unwrap_or_default();
        self.token = token;
        self.is_dirty = false;
        self.is_synced = true;
        self.synced_at = Some(now.monotonic);
        let oldest = now.wall.before(self.settings.dead_after());
        let dead: Vec<NodeId> = self
            .state
            .last_heartbeats
            .iter()
            .filter(|(_, heartbeat)| **heartbeat < oldest)
            .map(|(node, _)| node.clone())
            .collect();
        remove_dead(&mut self.state, &dead, &self.settings);
    }

    fn decide(&self, now: Now) -> Action {
        let state = &self.state;
        let due_from = now.wall.before(self.settings.keep_alive_interval);
        let ctx = Context {
            state,
            me: &self.me,
            settings: &self.settings,
            now: now.monotonic,
            deadline: self.deadline,
            heartbeat_due: state
                .last_heartbeats
                .get(&self.me)
                .is_some_and(|heartbeat| *heartbeat <= due_from),
            last_call_over: state.deadline.is_some_and(|deadline| deadline < now.wall),
            has_every_rank: true,
            must_yield: false,
        };
        let decision = match self.operation {
            Operation::Exit => decide::exit(&ctx),
            Operation::Join => decide::join(&ctx),
            Operation::Close => decide::close(&ctx),
            Operation::KeepAlive => decide::keep_alive(&ctx),
            Operation::Leave => unreachable!("PyTorch's nodes have no such operation"),
        };
        decision.action
    }
}
