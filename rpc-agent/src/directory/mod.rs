//! Who is in the group, and where: names, ids and addresses, exchanged through a store.
//!
//! Says nothing of whether a worker is alive, and connects to nobody. What the store keeps, below the
//! caller's prefix (the keys are PyTorch's, from `torch/csrc/distributed/rpc/tensorpipe_agent.cpp`):
//!
//! | key | value |
//! | --- | --- |
//! | `rpcIsStaticGroup` | `true` or `false`, by who comes first |
//! | `names/<rank>` | of a group of known size: a worker's name and [`Address`], claimed by compare-and-set |
//! | `names/_REFUSED` | of a group of known size: a worker whose rank was another's already |
//! | `names/_ALL_WORKER_INFOS` | of a dynamic group: all [`Members`] |
//! | `RpcGroupManagementToken` | of a dynamic group: who changes the list at present ([`lease`]) |
//!
//! PyTorch has the address under a key of its own, `addrs/<name>`. Here it stands with the name: so
//! one look at a key tells all, a name never goes with another's address, and two workers of the same
//! name do not overwrite each other's before that is found out.

mod bounded_store;
mod dynamic_group;
mod error;
mod lease;
mod members;
mod record;
mod static_group;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError};

pub(crate) use bounded_store::BoundedStore;
pub use error::{DirectoryError, MissingRanks};
use members::Members;
pub(crate) use record::Address;
use record::Member;

use crate::worker::{Destination, WorkerInfo};

const KIND_KEY: &str = "rpcIsStaticGroup";

/// The bytes shown of a value that makes no sense.
const VALUE_BYTES_SHOWN_MAX: usize = 40;

/// Whether the size of the group is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// So many workers, with the ranks below.
    Static { world_size: u32 },
    /// Workers join and leave.
    Dynamic,
}

/// A worker's place in its group, and its view of the others.
///
/// Names are found in memory; in a dynamic group that is the list as it was when last read. Addresses
/// are asked for each time, as a worker may have come back elsewhere.
#[derive(Debug)]
pub(crate) struct Directory {
    store: BoundedStore,
    me: Member,
    group: Group,
    /// In a group of known size never changed again. The lock is held for a look or a swap only.
    members: RwLock<Members>,
}

impl Directory {
    /// Takes the place of `me` in the group: `address` (`host:port`, of a listener that is bound) and
    /// a random `incarnation` are told to all. Blocks until the deadline at most: in a group of known
    /// size for all workers to come, in a dynamic one for the turn to change the list.
    ///
    /// `store` is below the group's prefix, and a handle of its own
    /// ([`clone_store`](Store::clone_store)): its timeout is changed.
    ///
    /// In a dynamic group a worker that has the name *and* the id of a member takes its place, so that
    /// a crashed one can come back. In a group of known size it is refused as long as the former one
    /// has not left: there a second worker of a rank is a mistake in starting them.
    ///
    /// # Errors
    /// [`DirectoryError`]. After an error of a group of known size its keys stay: start the next
    /// attempt below another prefix.
    pub(crate) fn join(
        store: Arc<dyn Store>,
        me: WorkerInfo,
        address: &str,
        incarnation: u64,
        group: Group,
        by: Deadline,
    ) -> Result<Self, DirectoryError> {
        let started = Instant::now();
        let address =
            Address::new(address, incarnation).map_err(|error| DirectoryError::OwnAddress {
                address: address.to_owned(),
                what: error.to_string(),
            })?;
        let me = Member { info: me, address };
        let store = BoundedStore::new(store);
        agree_on_kind(&store, group, by)?;
        let members = match group {
            Group::Static { world_size } => {
                static_group::join(&store, &me, world_size, started, by)?
            }
            Group::Dynamic => dynamic_group::join(&store, &me, by)?,
        };
        Ok(Self {
            store,
            me,
            group,
            members: RwLock::new(members),
        })
    }

    /// A worker that is known of. Does not block.
    pub(crate) fn find(&self, destination: &Destination<'_>) -> Option<WorkerInfo> {
        self.view(|members| members.find(destination).map(|member| member.info.clone()))
    }

    /// A worker that is known of, or becomes known by the deadline; with one that has passed, the
    /// store is asked once. In a group of known size all are known, so this does not block.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`].
    pub(crate) fn find_or_wait(
        &self,
        destination: &Destination<'_>,
        by: Deadline,
    ) -> Result<Option<WorkerInfo>, DirectoryError> {
        let found = self.find(destination);
        if found.is_some() || self.group != Group::Dynamic {
            return Ok(found);
        }
        let mut members = dynamic_group::read(&self.store, by)?;
        loop {
            let found = members.find(destination).map(|member| member.info.clone());
            self.learn(members.clone());
            if found.is_some() || by.has_passed(Instant::now()) {
                return Ok(found);
            }
            match dynamic_group::await_change(&self.store, &members, by)? {
                Some(changed) => members = changed,
                None => return Ok(None),
            }
        }
    }

    /// The workers that are known of, by id. Does not block.
    pub(crate) fn workers(&self) -> Vec<WorkerInfo> {
        self.view(|members| members.iter().map(|member| member.info.clone()).collect())
    }

    /// Where a worker is now, by what the store says; `None` when it has left. In a dynamic group this
    /// is also how one learns of the changes since. Blocks until the deadline at most, if that is a
    /// second away or more.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`].
    pub(crate) fn address_of(
        &self,
        worker: &WorkerInfo,
        by: Deadline,
    ) -> Result<Option<Address>, DirectoryError> {
        let member = match self.group {
            Group::Static { .. } => static_group::read(&self.store, worker.id, by)?,
            Group::Dynamic => {
                let members = dynamic_group::read(&self.store, by)?;
                let member = members.of(worker).cloned();
                self.learn(members);
                member
            }
        };
        // Another worker may have the id since.
        Ok(member
            .filter(|member| member.info == *worker)
            .map(|member| member.address))
    }

    /// A second handle to the store, opened by then.
    pub(crate) fn clone_store(&self, by: Deadline) -> Result<Arc<dyn Store>, StoreError> {
        self.store.clone_store(by)
    }

    /// Gives the place up. Others find that out when they ask for the address.
    ///
    /// After a group of known size has ended together there is no need for it: nobody comes back to
    /// it, and the store may be gone.
    ///
    /// # Errors
    /// [`DirectoryError::Store`], [`DirectoryError::Corrupt`], [`DirectoryError::NoTurn`].
    pub(crate) fn leave(&self, by: Deadline) -> Result<(), DirectoryError> {
        match self.group {
            Group::Static { .. } => static_group::leave(&self.store, &self.me, by),
            Group::Dynamic => dynamic_group::leave(&self.store, &self.me, by),
        }
    }

    fn view<T>(&self, look: impl FnOnce(&Members) -> T) -> T {
        look(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what is known, unless another thread has read a later list.
    fn learn(&self, read: Members) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if read.version() > members.version() {
            *members = read;
        }
    }
}

/// The first worker decides whether the size of the group is known, the others must agree.
fn agree_on_kind(store: &BoundedStore, group: Group, by: Deadline) -> Result<(), DirectoryError> {
    let is_static = group != Group::Dynamic;
    let ours: &[u8] = if is_static { b"true" } else { b"false" };
    let agreed = store
        .replace(KIND_KEY, b"", ours, by)
        .map_err(DirectoryError::store("agreeing on the kind of the group"))?;
    agreed.map_err(|theirs| {
        let shown = &theirs[..theirs.len().min(VALUE_BYTES_SHOWN_MAX)];
        DirectoryError::Mixed {
            key: store.full_key(KIND_KEY),
            store: store.label(),
            is_static,
            theirs: String::from_utf8_lossy(shown).into_owned(),
        }
    })
}
