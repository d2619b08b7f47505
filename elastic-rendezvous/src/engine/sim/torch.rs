//! A model of a PyTorch node: the same tables, with liveness by the wall clock.
//!
//! In PyTorch: `_RendezvousStateHolder`, `_DistributedRendezvousOpExecutor`
//! (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).

use std::time::Duration;

use crate::engine::apply::{apply, remove_dead};
use crate::engine::decide::{self, Action, Context};
use crate::engine::last_round::Ranks;
use crate::engine::{Ask, Engine, Reply};
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Joined, Operation, OperationError, Step};
use crate::values::node::NodeId;
use crate::values::report::{LostNode, Membership, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::Now;

/// How long a node uses a state that it has read, and how long it sleeps between reads. A member's agent checks at the
/// same interval whether nodes wait.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct TorchNode {
    me: NodeId,
    settings: RendezvousSettings,
    state: RendezvousState,
    token: Option<Token>,
    is_dirty: bool,
    is_synced: bool,
    synced_at: Option<Duration>,
    /// The operation in progress; `None` for a member between two heartbeats.
    operation: Option<Operation>,
    deadline: Duration,
    /// Whether a join follows the operation.
    joins_next: bool,
    is_member: bool,
    /// When the member writes its next heartbeat, and reads the state next.
    heartbeat_at: Duration,
    poll_at: Duration,
    paused_until: Option<Duration>,
}

impl TorchNode {
    pub(super) fn new(me: NodeId, settings: RendezvousSettings) -> Self {
        Self {
            me,
            settings,
            state: RendezvousState::default(),
            token: None,
            is_dirty: false,
            is_synced: false,
            synced_at: None,
            operation: None,
            deadline: Duration::ZERO,
            joins_next: false,
            is_member: false,
            heartbeat_at: Duration::ZERO,
            poll_at: Duration::ZERO,
            paused_until: None,
        }
    }

    fn start(&mut self, operation: Operation, deadline: Duration) {
        self.operation = Some(operation);
        self.deadline = deadline;
        self.is_dirty = false;
        self.is_synced = false;
    }

    /// Continues the operation until something is needed, or it is over.
    fn step_operation(&mut self, operation: Operation, now: Now) -> Ask {
        loop {
            if !self.is_synced {
                if self.is_dirty {
                    return Ask::WriteState;
                }
                let is_fresh = self
                    .synced_at
                    .is_some_and(|at| now.monotonic.saturating_sub(at) < POLL_INTERVAL);
                if !is_fresh {
                    return Ask::ReadState;
                }
            }
            self.is_synced = false;
            let action = self.decide(operation, now);
            match action {
                Action::Finish => return Ask::Done(Ok(self.answer(operation))),
                Action::ErrorClosed => return Ask::Done(Err(OperationError::Closed)),
                Action::ErrorTimeout => return Ask::Done(Err(OperationError::Timeout)),
                Action::GracefulExit => return Ask::Done(Err(OperationError::GracefulExit)),
                Action::Sync => {
                    return Ask::Pause {
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

    fn answer(&self, operation: Operation) -> Answer {
        let state = &self.state;
        let joined = (operation == Operation::Join).then(|| {
            let nodes = state.participants.iter().map(|(node, &rank)| (rank, node));
            let mut nodes: Vec<_> = nodes.collect();
            nodes.sort();
            let nodes: Vec<NodeId> = nodes.into_iter().map(|(_, node)| node.clone()).collect();
            Joined {
                rank: usize::try_from(state.participants[&self.me]).expect("a rank"),
                world_size: nodes.len(),
                first: nodes[0].clone(),
                is_same_world: false,
                nodes,
                has_entered: false,
                has_lost_members: false,
            }
        });
        Answer {
            round: state.round,
            is_closed: state.closed,
            joined,
        }
    }

    /// Adopts the result of a read or write.
    fn adopt(&mut self, stored: Option<(RendezvousState, Token)>, now: Now) {
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

    fn decide(&self, operation: Operation, now: Now) -> Action {
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
            entering: decide::Entering::No,
        };
        let decision = match operation {
            Operation::Exit => decide::exit(&ctx),
            Operation::Join => decide::join(&ctx),
            Operation::Close => decide::close(&ctx),
            Operation::KeepAlive => decide::keep_alive(&ctx),
            Operation::Leave | Operation::Enter => {
                unreachable!("PyTorch's nodes have no such operation")
            }
        };
        decision.action
    }
}

impl Engine for TorchNode {
    fn me(&self) -> &NodeId {
        &self.me
    }

    fn begin(&mut self, operation: Operation, deadline: Duration, _: Now) {
        self.is_member &= operation == Operation::Close;
        self.joins_next = operation == Operation::Join;
        self.paused_until = None;
        let first = if self.joins_next {
            Operation::Exit
        } else {
            operation
        };
        self.start(first, deadline);
    }

    fn step(&mut self, now: Now) -> Ask {
        if let Some(until) = self.paused_until.take() {
            return Ask::Pause { until };
        }
        let at = now.monotonic;
        loop {
            let operation = match self.operation {
                Some(operation) => operation,
                None if at >= self.heartbeat_at => {
                    self.start(Operation::KeepAlive, at + self.settings.heartbeat_timeout);
                    Operation::KeepAlive
                }
                None if at >= self.poll_at => {
                    self.poll_at = at + POLL_INTERVAL;
                    return Ask::ReadState;
                }
                None => {
                    return Ask::Pause {
                        until: self.poll_at.min(self.heartbeat_at),
                    };
                }
            };
            let ask = self.step_operation(operation, now);
            let Ask::Done(result) = ask else {
                return ask;
            };
            self.operation = None;
            if operation == Operation::KeepAlive {
                self.heartbeat_at = at + self.settings.keep_alive_interval;
                self.poll_at = at + POLL_INTERVAL;
            } else if result.is_ok() && std::mem::take(&mut self.joins_next) {
                self.start(Operation::Join, self.deadline);
            } else {
                self.heartbeat_at = at;
                self.is_member |= matches!(&result, Ok(answer) if answer.joined.is_some());
                return Ask::Done(result);
            }
        }
    }

    fn on_reply(&mut self, reply: Reply, now: Now) {
        match reply {
            Reply::State(stored) => self.adopt(stored, now),
            Reply::Written(Written::Ours(token)) => {
                let state = self.state.clone();
                self.adopt(Some((state, token)), now);
            }
            Reply::Written(Written::Theirs(state, token)) => self.adopt(Some((*state, token)), now),
            Reply::Written(Written::Nothing) => self.adopt(None, now),
            _ => {}
        }
    }

    fn on_failure(&mut self, _: &RendezvousError, now: Now) {
        self.operation = None;
        self.on_outage(now);
    }

    fn on_outage(&mut self, now: Now) {
        self.is_dirty = false;
        self.is_synced = false;
        self.paused_until = Some(now.monotonic + POLL_INTERVAL);
    }

    /// It does not notice that the other nodes drop it.
    fn is_kept_until(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    fn is_busy(&self) -> bool {
        self.operation.is_some()
    }

    fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        Some((&self.state, self.token.as_ref()))
    }

    /// PyTorch's launcher only checks whether nodes wait.
    fn membership(&self) -> Option<Membership> {
        self.is_member.then(|| Membership {
            waiting: self.state.wait_list.iter().cloned().collect(),
            is_closed: self.state.closed,
            ..Membership::default()
        })
    }

    fn report(&self, _: Now) -> WaitReport {
        let RendezvousSettings {
            run_id,
            min_nodes,
            max_nodes,
            ..
        } = &self.settings;
        WaitReport::of(run_id, self.state.round, *min_nodes, *max_nodes)
    }

    fn take_newly_lost(&mut self, _: Now) -> Vec<LostNode> {
        Vec::new()
    }

    fn take_steps(&mut self) -> Vec<(NodeId, Step)> {
        Vec::new()
    }
}
