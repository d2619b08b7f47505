//! The ranks of a job, and their collective operations.

use std::sync::Arc;
use std::time::Duration;

use c10d::{Group, GroupOptions};
use c10d_socket::Cancel;

use crate::border::{self, Buffer, BufferList, CText, DataPointer, NumberArray, ValuePointer};
use crate::cancel::{self, CancelHandle, Wait};
use crate::failure::Failure;
use crate::interface::{Argument, frees, operations};
use crate::options::{Options, explicit_timeout};
use crate::store::StoreHandle;

/// All ranks of a job, or some of them. All do the same operations in the same order, one at a time, and each operation
/// returns when all ranks have taken part. After `C10D_ERROR_MISSING_RANKS` and `C10D_ERROR_INTERRUPTED` the same call
/// can be repeated: it continues where it was interrupted.
#[derive(Debug)]
pub struct GroupHandle(JoinedGroup);

#[derive(Debug)]
pub(crate) struct JoinedGroup {
    group: Group,
    /// The longest key of its store.
    key_bytes_max: usize,
}

impl GroupHandle {
    fn new(group: Group, key_bytes_max: usize) -> Box<Self> {
        let joined = JoinedGroup {
            // The handle that cancels the joining does not cancel later calls.
            group: group.with_cancel(&Cancel::NEVER),
            key_bytes_max,
        };
        Box::new(Self(joined))
    }
}

impl<'a> Argument for Option<&'a GroupHandle> {
    type Checked = &'a JoinedGroup;

    fn check(self, name: &'static str) -> Result<&'a JoinedGroup, Failure> {
        let joined = &border::not_null(self, name)?.0;
        joined.group.store().check_process()?;
        Ok(joined)
    }
}

impl JoinedGroup {
    /// The group for a call that waits, and its time limit.
    fn waiting(
        &self,
        (timeout_ms, cancel): Wait<'_>,
    ) -> Result<(Group, Option<Duration>), Failure> {
        let timeout = explicit_timeout(timeout_ms)?.unwrap_or(self.group.timeout());
        let group = self.group.with_cancel(&cancel::of_call(cancel)?);
        Ok((group, timeout))
    }
}

fn named(name: &CText, options: &Options) -> Result<GroupOptions, Failure> {
    let group_options = options.group()?;
    Ok(match name.optional("name")? {
        Some(name) => group_options.with_name(name),
        None => group_options,
    })
}

operations! {
    /// Joins the group of all workers of this job, and returns when all have joined. Reads the variables that `c10d
    /// run` and torchrun set: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. Rank 0 hosts the store, unless the
    /// launcher does.
    ///
    /// All ranks give the same `name`; null means `world`. A process can join a group of a name once. Of the options,
    /// which may be null, it uses the timeout, the longest value, the secret and the cancel handle.
    fn c10d_group_init_from_env(name: CText, options: Option<&Options>) -> group: Option<Box<GroupHandle>> = {
        let group = named(&name, &options)?.init_from_env()?;
        GroupHandle::new(group, Options::default().key_bytes_max())
    };

    /// Joins a group over a store, as `rank` of `world_size`, and returns when all have joined. The group shares the
    /// store, which must stay reachable for it: close it after the group is finished. Otherwise as
    /// `c10d_group_init_from_env`.
    fn c10d_group_join(
        name: CText, store: Option<&StoreHandle>, rank: usize, world_size: usize, options: Option<&Options>,
    ) -> group: Option<Box<GroupHandle>> = {
        let group = named(&name, &options)?.join(Arc::clone(&store.store), rank, world_size)?;
        GroupHandle::new(group, store.key_bytes_max)
    };

    /// A group of some ranks of this one, in the order of `ranks`: the first becomes rank 0. Called by these ranks
    /// only, with the same name and list; returns when all have called it. A name serves once.
    fn c10d_group_split(
        parent: Option<&GroupHandle>, name: CText, ranks: NumberArray[rank_count]; wait
    ) -> group: Option<Box<GroupHandle>> = {
        let (group, timeout) = parent.waiting(wait)?;
        let group = group.split_timeout(name.required("name")?, ranks.read()?, timeout)?;
        GroupHandle::new(group, parent.key_bytes_max)
    };

    /// The rank of this process in the group, from 0 on.
    fn c10d_group_rank(group: Option<&GroupHandle>) -> rank: usize = group.group.rank();

    /// The number of ranks in the group.
    fn c10d_group_world_size(group: Option<&GroupHandle>) -> world_size: usize = group.group.world_size();

    /// Opens a handle to the store of the group, for the program's own values; the group's keys begin with `c10d/`.
    /// Closing it closes the group's store. Free it with `c10d_store_free`; a store that this process hosts stops with
    /// the last handle.
    fn c10d_group_store(group: Option<&GroupHandle>) -> store: Option<Box<StoreHandle>> =
        StoreHandle::new(Arc::clone(group.group.store()), group.key_bytes_max);

    /// Copies `len` bytes from rank `root` to all ranks, for example the id of an NCCL communicator: `value` is read on
    /// the root and written on all other ranks. Returns when all ranks have the value. `C10D_ERROR_MISMATCH` if the
    /// root's value has a different length; this rank has still taken part, and `value` is unchanged.
    fn c10d_group_broadcast(group: Option<&GroupHandle>, root: usize, value: ValuePointer[len]; wait) = {
        value.check()?;
        let (group, timeout) = group.waiting(wait)?;
        if group.rank() == root {
            group.broadcast_timeout(root, Some(value.read()?), timeout)?;
        } else {
            let received = group.broadcast_timeout(root, None, timeout)?;
            value.fill(&received)?;
        }
    };

    /// Like `c10d_group_broadcast`, for a value whose length only the root has: the root passes `value` and `len`,
    /// which the other ranks ignore. All ranks receive a copy in `received`. Free it with `c10d_buffer_free`.
    fn c10d_group_broadcast_any(
        group: Option<&GroupHandle>, root: usize, value: DataPointer[len]; wait
    ) -> received: Buffer = {
        let (group, timeout) = group.waiting(wait)?;
        let value = if group.rank() == root { Some(value.read()?) } else { None };
        group.broadcast_timeout(root, value, timeout)?
    };

    /// Waits until all ranks have called it.
    fn c10d_group_barrier(group: Option<&GroupHandle>; wait) = {
        let (group, timeout) = group.waiting(wait)?;
        group.barrier_timeout(timeout)?
    };

    /// The values of all ranks, by rank; they may have different lengths. Free the list with `c10d_buffer_list_free`.
    fn c10d_group_all_gather(group: Option<&GroupHandle>, value: DataPointer[len]; wait) -> values: BufferList = {
        let (group, timeout) = group.waiting(wait)?;
        group.all_gather_bytes_timeout(value.read()?, timeout)?
    };

    /// Waits until all ranks have called it, at most the timeout of the group: the last operation before the group is
    /// freed. A rank that hosts the store returns when the other ranks have left, or after 10 s.
    fn c10d_group_finish(group: Option<&GroupHandle>, cancel: Option<&CancelHandle>) =
        group.group.with_cancel(&cancel::of_call(cancel)?).finish()?;
}

frees! {
    /// Frees a group. A store that this process hosts for it stops, unless a handle of `c10d_group_store` remains.
    /// Calls on the group must have returned. Null is ignored. In a forked child, only the memory of the handle is
    /// freed.
    fn c10d_group_free(group: GroupHandle);
}
