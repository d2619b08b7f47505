//! The members of a group and their addresses, exchanged through a store.
//!
//! Has no sockets, and does not detect whether a worker is alive. The keys, below the caller's prefix, are PyTorch's
//! (`torch/csrc/distributed/rpc/tensorpipe_agent.cpp`):
//!
//! | key | value |
//! | --- | --- |
//! | `rpcIsStaticGroup` | `true` or `false`, written by the first worker |
//! | `names/<rank>` | static group: a worker's name and [`Address`], claimed by compare-and-set |
//! | `names/_REFUSED` | static group: a worker whose rank was taken |
//! | `names/_NAME/<name>` | static group: the worker with this name, claimed by compare-and-set |
//! | `names/_FAILED` | static group: the first worker that could not start, and why |
//! | `names/_ALL_WORKER_INFOS` | dynamic group: all [`Members`], changed by compare-and-set |
//!
//! PyTorch keeps the address under a separate key, `addrs/<name>`. Here it is part of the value, so that one read
//! returns a consistent pair, and two workers of the same name cannot overwrite each other's address before the
//! conflict is detected. PyTorch's lock `RpcGroupManagementToken` is not used: a worker that crashes while it holds a
//! lock blocks the other workers.

mod bounded_store;
mod dynamic_group;
mod error;
mod failure;
mod members;
mod record;
mod static_group;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use c10d_socket::{Cancel, Deadline, printable};
use c10d_store::{Store, StoreError};

pub(crate) use bounded_store::BoundedStore;
pub use error::DirectoryError;
pub(crate) use failure::{publish_failure, read_failure};
pub(crate) use members::Looks;
use members::Members;
pub(crate) use record::Address;
use record::Member;

use crate::worker::{Destination, WorkerInfo};

const KIND_KEY: &str = "rpcIsStaticGroup";

/// How many characters of an invalid value an error shows.
const VALUE_CHARS_SHOWN_MAX: usize = 40;

/// One worker's membership in its group, and the names of the other members.
///
/// Names are looked up in memory: in a dynamic group, in the list that was read last. Addresses are read from the
/// store each time, because a worker may have restarted elsewhere.
#[derive(Debug)]
pub(crate) struct Directory {
    store: BoundedStore,
    me: Member,
    /// Ranks from 0 on that start together; `None` if workers join and leave at any time.
    world_size: Option<u32>,
    /// Constant in a static group. The lock is held only to read or to replace the list.
    members: RwLock<Members>,
    /// How often the local list has changed.
    changes: AtomicU64,
    /// Another process of this worker was a member when this one joined.
    has_replaced: bool,
}

impl Directory {
    /// Joins the group as `me`, and publishes `address` (`host:port` of a bound listener) and the random
    /// `incarnation`. Blocks until the deadline at most: in a static group until all workers have joined, in a
    /// dynamic one until this worker has changed the list. `cancel` interrupts it.
    ///
    /// `store` is below the group's prefix. It must be a separate handle
    /// ([`clone_store`](c10d_store::StoreHandle::clone_store)), because its timeout is changed.
    ///
    /// In a dynamic group a worker with the name *and* the id of a member replaces it, so that a crashed
    /// worker can rejoin. A static group refuses it until the previous one has left: there, a second
    /// worker of the same rank is a configuration mistake.
    ///
    /// # Errors
    /// [`DirectoryError`]. The keys of a static group remain after an error: use another prefix for the
    /// next attempt.
    pub(crate) fn join(
        store: Arc<dyn Store>,
        me: WorkerInfo,
        address: &str,
        incarnation: u64,
        world_size: Option<u32>,
        by: Deadline,
        cancel: &Cancel,
    ) -> Result<Self, DirectoryError> {
        let started = Instant::now();
        let address =
            Address::new(address, incarnation).map_err(|error| DirectoryError::OwnAddress {
                address: address.to_owned(),
                what: error.to_string(),
            })?;
        let me = Member { info: me, address };
        let store = BoundedStore::new(store);
        let joining = store.with_cancel(cancel);
        agree_on_kind(&joining, world_size.is_some(), by)?;
        let (members, has_replaced) = match world_size {
            Some(world_size) => {
                let members = static_group::join(&joining, &me, world_size, started, by)?;
                (members, false)
            }
            None => dynamic_group::join(&joining, &me, by)?,
        };
        Ok(Self {
            store,
            me,
            world_size,
            members: RwLock::new(members),
            changes: AtomicU64::new(0),
            has_replaced,
        })
    }

    /// A member that is known locally. Does not block.
    pub(crate) fn find(&self, destination: &Destination<'_>) -> Option<WorkerInfo> {
        self.view(|members| members.find(destination).map(|member| member.info.clone()))
    }

    /// A member. Reads the list of a dynamic group if it is not known locally, which blocks until the store answers.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`].
    pub(crate) fn look_up(
        &self,
        destination: &Destination<'_>,
        by: Deadline,
    ) -> Result<Option<WorkerInfo>, DirectoryError> {
        let found = self.find(destination);
        if found.is_some() || !self.is_dynamic() {
            return Ok(found);
        }
        self.learn(dynamic_group::read(&self.store, by)?);
        Ok(self.find(destination))
    }

    /// Reads the list of a dynamic group. Blocks like [`Directory::address_of`].
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`].
    pub(crate) fn refresh(&self, by: Deadline, cancel: &Cancel) -> Result<(), DirectoryError> {
        self.learn(dynamic_group::read(&self.store.with_cancel(cancel), by)?);
        Ok(())
    }

    /// Whether the local list has this process of the worker.
    pub(crate) fn is_published(&self, worker: &WorkerInfo, incarnation: u64) -> bool {
        let is_it = |member: &Member| member.address.incarnation == incarnation;
        self.view(|members| members.of(worker).is_some_and(is_it))
    }

    /// Whether the local list has another process under the worker's id.
    pub(crate) fn is_superseded(&self, worker: &WorkerInfo, incarnation: u64) -> bool {
        let id = Destination::Id(worker.id.get());
        self.view(|members| members.find(&id).is_some()) && !self.is_published(worker, incarnation)
    }

    /// How often the local list has changed. Does not lock.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether this process has replaced a process of the same worker, which may still live.
    pub(crate) const fn has_replaced(&self) -> bool {
        self.has_replaced
    }

    /// Whether workers may join and leave at any time.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.world_size.is_none()
    }

    /// The random number of this start of the worker.
    pub(crate) const fn incarnation(&self) -> u64 {
        self.me.address.incarnation
    }

    /// The members that are known locally, by id. Does not block.
    pub(crate) fn workers(&self) -> Vec<WorkerInfo> {
        self.view(|members| members.iter().map(|member| member.info.clone()).collect())
    }

    /// Whether this process takes part in the group. In a static group only those that started together do, because a
    /// rank that is taken is not given to another process; a dynamic group lets others in later.
    pub(crate) fn may_have(&self, worker: &WorkerInfo, incarnation: u64) -> bool {
        self.is_dynamic() || self.is_published(worker, incarnation)
    }

    /// Reads a worker's current address from the store; `None` if it has left. In a dynamic group this also updates
    /// the local list. Blocks until the deadline, and for at least a second if the store does not answer; `cancel`
    /// interrupts it.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`].
    pub(crate) fn address_of(
        &self,
        worker: &WorkerInfo,
        by: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Address>, DirectoryError> {
        let store = self.store.with_cancel(cancel);
        let member = if self.is_dynamic() {
            let members = dynamic_group::read(&store, by)?;
            let member = members.of(worker).cloned();
            self.learn(members);
            member
        } else {
            static_group::read(&store, worker.id, by)?
        };
        // Another worker may have taken the id.
        Ok(member
            .filter(|member| member.info == *worker)
            .map(|member| member.address))
    }

    /// Opens a second handle to the store. Blocks until the deadline at most.
    pub(crate) fn clone_store(&self, by: Deadline) -> Result<Arc<dyn Store>, StoreError> {
        self.store.by(by).clone_store()
    }

    /// Leaves the group. Other workers notice when they read this worker's address.
    ///
    /// Not needed after the coordinated shutdown of a static group: no worker rejoins it, and the store may have
    /// stopped.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`], [`DirectoryError::Contended`].
    pub(crate) fn leave(&self, by: Deadline, cancel: &Cancel) -> Result<(), DirectoryError> {
        let store = self.store.with_cancel(cancel);
        if self.is_dynamic() {
            dynamic_group::leave(&store, &self.me, by)
        } else {
            static_group::leave(&store, &self.me, by)
        }
    }

    fn view<T>(&self, read: impl FnOnce(&Members) -> T) -> T {
        read(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the local list, unless another thread has read a newer list.
    fn learn(&self, read: Members) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if read.version() > members.version() {
            *members = read;
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// The first worker decides whether the group is static; the other workers must agree.
fn agree_on_kind(
    store: &BoundedStore,
    is_static: bool,
    by: Deadline,
) -> Result<(), DirectoryError> {
    let ours: &[u8] = if is_static { b"true" } else { b"false" };
    let agreed = store
        .replace(KIND_KEY, b"", ours, by)
        .map_err(DirectoryError::store("agreeing on the kind of the group"))?;
    agreed.map_err(|theirs| DirectoryError::Mixed {
        key: store.full_key(KIND_KEY),
        store: store.label(),
        is_static,
        theirs: printable(&theirs, VALUE_CHARS_SHOWN_MAX).to_string(),
    })
}
