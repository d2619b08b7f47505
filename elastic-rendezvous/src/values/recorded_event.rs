//! The events that PyTorch's nodes record, derived from decisions and results.
//!
//! Names and messages equal PyTorch's exactly, because tools match them
//! (`torch/distributed/elastic/events/api.py`, `rendezvous/dynamic_rendezvous.py`).

use std::error::Error;
use std::fmt;

use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Failure, Goal, Method, Step};
use crate::values::node::NodeId;

/// The state of a node when it records an event. In PyTorch: `NodeState`
/// (`torch/distributed/elastic/events/api.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeState {
    /// The node prepares its first join.
    Init,
    /// The node has joined a round.
    Running,
    /// A round is complete, or the rendezvous is closed.
    Succeeded,
    /// A call or a heartbeat failed.
    Failed,
}

impl NodeState {
    /// PyTorch's name: `INIT`, `RUNNING`, `SUCCEEDED`, `FAILED`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A recorded step of a node in a dynamic rendezvous, with the fields of PyTorch's `RdzvEvent`
/// (`torch/distributed/elastic/events/api.py`). Differences: `docs/spec/rendezvous.md`, section 8.1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// PyTorch's file, class and method, such as `dynamic_rendezvous.py:DynamicRendezvousHandler._close`.
    pub name: &'static str,
    /// The run id of the rendezvous.
    pub run_id: String,
    /// PyTorch's text for the step.
    pub message: String,
    /// The address of the node.
    pub hostname: String,
    /// The process id of the node.
    pub pid: i64,
    /// The state that torch's viewers show; see [`NodeState`].
    pub node_state: NodeState,
    /// Always empty, like in PyTorch.
    pub master_endpoint: String,
    /// The rank of the node, only when it has joined a round.
    pub rank: Option<usize>,
    /// The number of the handler within its process; `None` for events that PyTorch assigns to no handler.
    pub local_id: Option<i64>,
    /// The error and its causes, one per line, if `node_state` is [`NodeState::Failed`]; otherwise empty.
    pub error_trace: String,
}

/// Returns the last step of a call.
pub(crate) fn step_of_result(goal: Goal, result: &Result<Answer, RendezvousError>) -> Option<Step> {
    Some(match (goal, result) {
        (Goal::Join | Goal::Enter, Ok(answer)) => {
            let joined = answer.joined.as_ref()?;
            Step::Joined {
                round: answer.round,
                rank: joined.rank,
                world_size: joined.world_size,
            }
        }
        (Goal::Close | Goal::Shutdown, Ok(_)) => Step::Closed,
        (Goal::Join | Goal::Enter, Err(error)) => Step::failed(Method::NextRendezvous, error),
        (Goal::Close, Err(error)) => Step::failed(Method::SetClosed, error),
        (Goal::Shutdown, Err(error)) => Step::failed(Method::Shutdown, error),
        (Goal::Read, Err(error)) => Step::failed(Method::IsClosed, error),
        // PyTorch's nodes have no such calls or do not record them.
        (Goal::Leave | Goal::Exit, _) | (Goal::Read, Ok(_)) => return None,
    })
}

impl Step {
    pub(crate) fn failed(method: Method, error: &RendezvousError) -> Self {
        let message = error.to_string();
        let mut trace = message.clone();
        let mut cause = error.source();
        while let Some(error) = cause {
            trace.push_str(&format!("\ncaused by: {error}"));
            cause = error.source();
        }
        let class = class_of(error);
        Self::Failed(
            method,
            Failure {
                class,
                message,
                trace,
            },
        )
    }

    /// The event of `me` for this step.
    pub(crate) fn event(self, run_id: &str, me: &NodeId) -> RecordedEvent {
        let message = self.message(run_id, me);
        RecordedEvent {
            name: self.name(),
            run_id: run_id.to_owned(),
            message,
            hostname: me.addr.to_string(),
            pid: me.pid,
            node_state: self.node_state(),
            master_endpoint: String::new(),
            rank: match self {
                Self::Joined { rank, .. } => Some(rank),
                _ => None,
            },
            local_id: match self {
                Self::HostsStore | Self::Failed(Method::CreateBackend, _) => None,
                _ => Some(me.local_id),
            },
            error_trace: match self {
                Self::Failed(_, failure) => failure.trace,
                _ => String::new(),
            },
        }
    }

    fn node_state(&self) -> NodeState {
        match self {
            Self::HostsStore => NodeState::Init,
            Self::MarksComplete { .. } | Self::MarksClosed | Self::Closed => NodeState::Succeeded,
            Self::Failed(..) => NodeState::Failed,
            Self::Joined { .. } => NodeState::Running,
        }
    }

    fn name(&self) -> &'static str {
        macro_rules! executor {
            ($method:literal) => {
                concat!(
                    "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor.",
                    $method
                )
            };
        }
        macro_rules! handler {
            ($method:literal) => {
                concat!("dynamic_rendezvous.py:DynamicRendezvousHandler.", $method)
            };
        }
        match self {
            Self::HostsStore => "c10d_rendezvous_backend.py:_create_tcp_store",
            Self::MarksComplete { .. } => executor!("_mark_rendezvous_complete"),
            Self::MarksClosed => executor!("_mark_rendezvous_closed"),
            Self::Failed(Method::CreateBackend, _) => "c10d_rendezvous_backend.py:create_backend",
            Self::Joined { .. } | Self::Failed(Method::NextRendezvous, _) => {
                handler!("next_rendezvous")
            }
            Self::Closed => handler!("_close"),
            Self::Failed(Method::KeepAlive, _) => handler!("_keep_alive"),
            Self::Failed(Method::IsClosed, _) => handler!("is_closed"),
            Self::Failed(Method::SetClosed, _) => handler!("set_closed"),
            Self::Failed(Method::Shutdown, _) => handler!("shutdown"),
        }
    }

    fn message(&self, run: &str, me: &NodeId) -> String {
        let node = format!("The node '{me}'");
        match self {
            Self::HostsStore => format!(
                "Process {} hosts the TCP store for the C10d rendezvous backend.",
                me.pid
            ),
            Self::MarksComplete { round } => format!(
                "{node} marked round {round} of the rendezvous '{run}' as complete. Pending sync."
            ),
            Self::MarksClosed => {
                format!("{node} marked the rendezvous '{run}' as closed. Pending sync.")
            }
            Self::Joined {
                round,
                rank,
                world_size,
            } => format!(
                "{node} has joined round {round} of the rendezvous '{run}' as rank {rank} in a \
                 world of size {world_size}."
            ),
            Self::Closed => format!("{node} has closed the rendezvous '{run}'."),
            Self::Failed(Method::KeepAlive, failure) => format!(
                "{node} has failed to send a keep-alive heartbeat to the rendezvous '{run}' due to \
                 an error of type {}.",
                failure.class
            ),
            Self::Failed(Method::Shutdown, failure) => format!(
                "{node} has failed to shutdown the rendezvous '{run}' due to an error of type {}.",
                failure.class
            ),
            Self::Failed(_, failure) => format!("{}: {}", failure.class, failure.message),
        }
    }
}

/// The closest error class of PyTorch (`rendezvous/api.py`).
fn class_of(error: &RendezvousError) -> &'static str {
    match error {
        RendezvousError::Closed { .. } => "RendezvousClosedError",
        RendezvousError::Timeout { .. } | RendezvousError::OperationTimeout { .. } => {
            "RendezvousTimeoutError"
        }
        RendezvousError::GracefulExit { .. } => "RendezvousGracefulExitError",
        RendezvousError::Connection { .. } => "RendezvousConnectionError",
        RendezvousError::CorruptState { .. } | RendezvousError::StateLost { .. } => {
            "RendezvousStateError"
        }
        _ => "RendezvousError",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_traced_to_its_last_cause() {
        let refused = std::io::Error::other("refused");
        let error = RendezvousError::Thread {
            name: "rendezvous",
            source: refused,
        };
        let me = NodeId::new("node1", 42, 3);
        let event = Step::failed(Method::KeepAlive, &error).event("job", &me);
        assert_eq!(event.node_state, NodeState::Failed);
        assert_eq!(
            event.error_trace,
            "cannot start the thread \"rendezvous\": refused\ncaused by: refused"
        );
        assert_eq!(
            (&*event.hostname, event.pid, event.local_id),
            ("node1", 42, Some(3))
        );
    }
}
