//! The state that the clones of an [`RRef`](crate::RRef) share: one handle that the context counts.
//!
//! Dropping the last clone queues the handle. It sends no message and does not take the context's lock.

use std::fmt;
use std::sync::Arc;

use c10d_socket::ProcessBound;
use rpc_agent::{RpcError, WorkerId};

use crate::context::{Handle, UserStatus};
use crate::error::RRefError;
use crate::id::shared_name;
use crate::id::{ForkId, RRefId};
use crate::runtime::Runtime;

pub(crate) struct Cell {
    runtime: ProcessBound<Arc<Runtime>>,
    rref: RRefId,
    kind: Kind,
    type_name: Arc<str>,
}

/// The part of a handle that differs. Without the parts that are equal, which a program with many references has as
/// often.
enum Kind {
    /// A handle of a value of this worker.
    Owner,
    User {
        owner: WorkerId,
        fork: ForkId,
    },
}

impl Cell {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        handle: Handle,
        rref: RRefId,
        owner: WorkerId,
        type_name: Arc<str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            runtime: ProcessBound::new(runtime),
            rref,
            kind: match handle {
                Handle::Owner(_) => Kind::Owner,
                Handle::User(fork) => Kind::User { owner, fork },
            },
            type_name,
        })
    }

    /// A handle of a value of this worker.
    pub(crate) fn of_owner(runtime: &Arc<Runtime>, rref: RRefId, type_name: &str) -> Arc<Self> {
        let me = runtime.agent.me().id;
        let handle = Handle::Owner(rref);
        let type_name = shared_name(type_name);
        Self::new(Arc::clone(runtime), handle, rref, me, type_name)
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        self.runtime.get_anywhere()
    }

    /// The runtime for an operation of the program. An error in a forked child.
    pub(crate) fn here(&self) -> Result<&Arc<Runtime>, RRefError> {
        Ok(self.runtime.get().map_err(RpcError::from)?)
    }

    pub(crate) const fn handle(&self) -> Handle {
        match self.kind {
            Kind::Owner => Handle::Owner(self.rref),
            Kind::User { fork, .. } => Handle::User(fork),
        }
    }

    pub(crate) const fn rref(&self) -> RRefId {
        self.rref
    }

    pub(crate) fn owner(&self) -> WorkerId {
        match self.kind {
            Kind::Owner => self.runtime().agent.me().id,
            Kind::User { owner, .. } => owner,
        }
    }

    pub(crate) fn type_name(&self) -> &str {
        &self.type_name
    }

    /// The user's id; `None` on the owner.
    pub(crate) const fn user(&self) -> Option<ForkId> {
        match self.kind {
            Kind::User { fork, .. } => Some(fork),
            Kind::Owner => None,
        }
    }

    pub(crate) fn status(&self, user: ForkId) -> Option<UserStatus> {
        self.here().ok()?.lock().context.status(user)
    }

    /// Fails if the reference can no longer be used.
    pub(crate) fn check_usable(&self) -> Result<(), RRefError> {
        let Some(user) = self.user() else {
            return self.check_owned();
        };
        match self.status(user) {
            Some(UserStatus::Failed(error)) => Err(RRefError::of_user(
                error,
                self.rref,
                &self.runtime().worker(self.owner()),
            )),
            Some(_) => Ok(()),
            None => Err(RRefError::Shutdown),
        }
    }

    /// Fails if this worker no longer has the value's entry, which it keeps until the shutdown.
    pub(crate) fn check_owned(&self) -> Result<(), RRefError> {
        let owner = self.runtime().lock().context.owner_of(self.handle());
        owner.map(drop).ok_or(RRefError::Shutdown)
    }

    /// The reference as PyTorch prints it.
    pub(crate) fn print(&self) -> String {
        let rref = self.rref;
        match self.kind {
            Kind::Owner => format!("OwnerRRef({rref})"),
            Kind::User { fork, .. } => format!("UserRRef(RRefId = {rref}, ForkId = {fork})"),
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // A forked child's copy is not a reference: its parent still has the handle.
        if let Ok(runtime) = self.runtime.get() {
            runtime.queue_drop(self.handle());
        }
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}
