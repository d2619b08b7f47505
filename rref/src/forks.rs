//! The references that one message carries: forked for its receiver, and received from its sender.

use std::sync::Arc;

use rpc_agent::{Outcome, WorkerId};

use crate::cell::Cell;
use crate::context::{Carrier, Handle};
use crate::error::RRefError;
use crate::id::ForkId;
use crate::protocol::ForkData;
use crate::runtime::{RunOn, Runtime};

/// The forks of a message that is not sent yet. Dropping them undoes them.
pub(crate) struct Forks {
    runtime: Arc<Runtime>,
    to: WorkerId,
    forks: Vec<ForkData>,
}

impl Forks {
    /// Creates an empty set, for a message from `runtime` to worker `to`.
    pub(crate) fn new(runtime: &Arc<Runtime>, to: WorkerId) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            to,
            forks: Vec::new(),
        }
    }

    pub(crate) const fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub(crate) const fn to(&self) -> WorkerId {
        self.to
    }

    pub(crate) fn data(&self) -> &[ForkData] {
        &self.forks
    }

    pub(crate) fn push(&mut self, fork: ForkData) {
        self.forks.push(fork);
    }

    /// Keeps the forks, which the context has committed.
    pub(crate) fn disarm(mut self) {
        self.forks.clear();
    }

    /// Commits the forks: the message is sent now, and its sender settles them when the outcome is known.
    pub(crate) fn commit(mut self, carrier: Carrier) -> Vec<ForkData> {
        let forks = std::mem::take(&mut self.forks);
        self.runtime.commit_forks(&forks, carrier);
        forks
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        if !self.forks.is_empty() {
            self.runtime.undo_forks(&self.forks);
        }
    }
}

/// The references received with a message.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) cells: Vec<Arc<Cell>>,
    /// The users that their owners have not confirmed yet.
    pub(crate) pending: Vec<ForkId>,
}

impl Runtime {
    /// Forks a reference for a message to a worker.
    pub(crate) fn fork(self: &Arc<Self>, cell: &Cell, to: WorkerId) -> Result<ForkData, RRefError> {
        if !Arc::ptr_eq(self, cell.runtime()) {
            return Err(RRefError::Foreign { rref: cell.rref() });
        }
        let forked = self.step(RunOn::AgentThread, |inner, now| {
            inner.context.fork(now, cell.handle(), to)
        });
        forked.map_err(|error| RRefError::of_fork(error, cell.rref(), &self.worker(cell.owner())))
    }

    pub(crate) fn commit_forks(self: &Arc<Self>, forks: &[ForkData], carrier: Carrier) {
        if forks.is_empty() {
            return;
        }
        self.step(RunOn::AgentThread, |inner, now| {
            for fork in forks {
                inner.context.commit_fork(now, fork, carrier);
            }
        });
    }

    pub(crate) fn undo_forks(self: &Arc<Self>, forks: &[ForkData]) {
        self.step(RunOn::AgentThread, |inner, now| {
            for fork in forks {
                inner.context.undo_fork(now, fork);
            }
        });
    }

    /// Reports the outcome of the message that carried these forks.
    pub(crate) fn settle_forks(self: &Arc<Self>, forks: &[ForkData], outcome: Outcome) {
        if forks.is_empty() {
            return;
        }
        match outcome {
            Outcome::Executed => self.step(RunOn::AgentThread, |inner, now| {
                for fork in forks {
                    inner.context.fork_arrived(now, fork);
                }
            }),
            Outcome::NotExecuted => self.undo_forks(forks),
            Outcome::Unknown => self.step(RunOn::AgentThread, |inner, now| {
                for fork in forks {
                    inner.context.fork_outcome_unknown(now, fork);
                }
            }),
        }
    }

    /// Receives the references of a message: all of them, or an error.
    pub(crate) fn receive_forks(
        self: &Arc<Self>,
        forks: &[ForkData],
    ) -> Result<Received, RRefError> {
        let mut received = Received::default();
        if forks.is_empty() {
            return Ok(received);
        }
        let (handles, error) = self.step(RunOn::AgentThread, |inner, now| {
            let mut handles = Vec::with_capacity(forks.len());
            for fork in forks {
                match inner.context.receive_fork(now, fork) {
                    Ok(one) => handles.push(one),
                    Err(error) => return (handles, Some(error)),
                }
            }
            (handles, None)
        });
        // The cells of an incomplete message are dropped with it, which returns their handles.
        for (one, fork) in handles.into_iter().zip(forks) {
            if let (Handle::User(user), false) = (one.handle, one.is_confirmed) {
                received.pending.push(user);
            }
            received.cells.push(Cell::new(
                Arc::clone(self),
                one.handle,
                fork.rref,
                fork.owner,
                Arc::clone(&fork.type_name),
            ));
        }
        match error {
            Some(error) => Err(RRefError::of_receive(&error)),
            None => Ok(received),
        }
    }
}
