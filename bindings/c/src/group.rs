//! The ranks of a job, and what they do together.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use c10d::{Group, GroupError, GroupOptions};
use c10d_socket::{Cancel, ProcessBound};

use crate::border::{self, Buffer, BufferList, CText, DataPointer, NumberArray, ValuePointer};
use crate::cancel::{self, CancelHandle};
use crate::failure::Failure;
use crate::guard::{self, call};
use crate::options::Options;
use crate::status::Status;
use crate::store::StoreHandle;
use crate::timeout;

/// All ranks of a job, or some of them. All do the same operations in the same order, one at a time, and each
/// operation returns when all ranks have taken part. After `C10D_ERROR_MISSING_RANKS` and `C10D_ERROR_INTERRUPTED`
/// the same call can be made again: it goes on where it was.
#[derive(Debug)]
pub struct GroupHandle(ProcessBound<JoinedGroup>);

#[derive(Debug)]
struct JoinedGroup {
    group: Group,
    /// The longest key of its store.
    key_bytes_max: usize,
}

impl GroupHandle {
    fn new(group: Group, key_bytes_max: usize) -> Box<Self> {
        let joined = JoinedGroup {
            // What ended the joining ends no later call.
            group: group.with_cancel(&Cancel::NEVER),
            key_bytes_max,
        };
        Box::new(Self(ProcessBound::new("group", joined)))
    }

    /// The group of a call's argument; refused are null, and a group of the process that forked this one.
    fn used<'a>(group: Option<&'a Self>, name: &str) -> Result<&'a JoinedGroup, Failure> {
        Ok(border::not_null(group, name)?.0.get()?)
    }
}

impl JoinedGroup {
    /// Runs one of the two forms of an operation: with the timeout of the group, or with another one.
    fn run<T>(
        &self,
        timeout_ms: i64,
        cancel: Option<&CancelHandle>,
        with_default: impl FnOnce(&Group) -> Result<T, GroupError>,
        with_timeout: impl FnOnce(&Group, Option<Duration>) -> Result<T, GroupError>,
    ) -> Result<T, Failure> {
        let timeout = timeout::explicit(timeout_ms)?;
        let group = self.group.with_cancel(&cancel::of_call(cancel)?);
        Ok(match timeout {
            None => with_default(&group)?,
            Some(timeout) => with_timeout(&group, timeout)?,
        })
    }

    fn broadcast(
        &self,
        root: usize,
        value: Option<&[u8]>,
        timeout_ms: i64,
        cancel: Option<&CancelHandle>,
    ) -> Result<Vec<u8>, Failure> {
        self.run(
            timeout_ms,
            cancel,
            |group| group.broadcast(root, value),
            |group, timeout| group.broadcast_timeout(root, value, timeout),
        )
    }
}

fn named(name: &CText, options: Option<&Options>) -> Result<GroupOptions, Failure> {
    let group_options = options.map_or_else(|| Ok(GroupOptions::default()), Options::group)?;
    Ok(match name.optional("name")? {
        Some(name) => group_options.with_name(name),
        None => group_options,
    })
}

/// Joins the group of all workers of this job, and returns when all have joined. Reads the variables that `c10d
/// run` and torchrun set: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. Rank 0 hosts the store, unless the
/// launcher does.
///
/// All ranks give the same `name`; null means `world`. A process can join a group of a name once. Of the options,
/// which may be null, it uses the timeout, the longest value, the secret and the cancel handle.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_init_from_env(
    name: CText,
    options: Option<&Options>,
    group: Option<&mut MaybeUninit<Option<Box<GroupHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(group, None, "group")?;
        let group = named(&name, options)?.init_from_env()?;
        let key_bytes_max = Options::default().key_bytes_max();
        *place = Some(GroupHandle::new(group, key_bytes_max));
        Ok(())
    })
}

/// Joins a group over a store, as `rank` of `world_size`, and returns when all have joined. The group shares the
/// store, which must stay reachable for it: close it after the group is finished. Otherwise as
/// `c10d_group_init_from_env`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_join(
    name: CText,
    store: Option<&StoreHandle>,
    rank: usize,
    world_size: usize,
    options: Option<&Options>,
    group: Option<&mut MaybeUninit<Option<Box<GroupHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(group, None, "group")?;
        let handle = StoreHandle::used(store, "store")?;
        let options = named(&name, options)?;
        let group = options.join(Arc::clone(&handle.store), rank, world_size)?;
        *place = Some(GroupHandle::new(group, handle.key_bytes_max));
        Ok(())
    })
}

/// A group of some ranks of this one, in the order of `ranks`: the first becomes rank 0. Called by these ranks
/// only, with the same name and list; returns when all have called it. A name serves once.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_split(
    parent: Option<&GroupHandle>,
    name: CText,
    ranks: NumberArray,
    rank_count: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    group: Option<&mut MaybeUninit<Option<Box<GroupHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(group, None, "group")?;
        let parent = GroupHandle::used(parent, "parent")?;
        let name = name.required("name")?;
        let ranks = ranks.elements(rank_count, "ranks")?;
        let group = parent.run(
            timeout_ms,
            cancel,
            |group| group.split(name, ranks),
            |group, timeout| group.split_timeout(name, ranks, timeout),
        )?;
        *place = Some(GroupHandle::new(group, parent.key_bytes_max));
        Ok(())
    })
}

/// The rank of this process in the group, from 0 on.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_rank(
    group: Option<&GroupHandle>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let rank = border::result(rank, 0, "rank")?;
        *rank = GroupHandle::used(group, "group")?.group.rank();
        Ok(())
    })
}

/// The number of ranks in the group.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_world_size(
    group: Option<&GroupHandle>,
    world_size: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let world_size = border::result(world_size, 0, "world_size")?;
        *world_size = GroupHandle::used(group, "group")?.group.world_size();
        Ok(())
    })
}

/// A handle to the store of the group, for values of the program's own; the group's keys begin with `c10d/`.
/// Closing it closes the group's store. Free it with `c10d_store_free`; a store that this process hosts ends with
/// the last handle.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_store(
    group: Option<&GroupHandle>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let group = GroupHandle::used(group, "group")?;
        let store = Arc::clone(group.group.store());
        *place = Some(StoreHandle::new(store, group.key_bytes_max));
        Ok(())
    })
}

/// Copies `len` bytes from rank `root` to all ranks: `value` is read on the root and written on the others, for
/// instance the id of an NCCL communicator. Returns when all have it. `C10D_ERROR_MISMATCH` if the root's value has
/// another length; then this rank has taken part, and `value` is unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_broadcast(
    group: Option<&GroupHandle>,
    root: usize,
    value: ValuePointer,
    len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
) -> Status {
    call(|| {
        let mut value = value;
        let group = GroupHandle::used(group, "group")?;
        value.check(len, "value")?;
        if group.group.rank() == root {
            let bytes = value.bytes(len, "value")?;
            group.broadcast(root, Some(bytes), timeout_ms, cancel)?;
            return Ok(());
        }
        let received = group.broadcast(root, None, timeout_ms, cancel)?;
        value.fill(len, &received, "value")
    })
}

/// As `c10d_group_broadcast`, for a value whose length only the root knows: it gives `value`, whose `len` bytes the
/// other ranks do not read. All ranks receive a copy in `received`. Free it with `c10d_buffer_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_broadcast_any(
    group: Option<&GroupHandle>,
    root: usize,
    value: DataPointer,
    len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    received: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let received = border::result(received, Buffer::NULL, "received")?;
        let group = GroupHandle::used(group, "group")?;
        let value = if group.group.rank() == root {
            Some(value.bytes(len, "value")?)
        } else {
            None
        };
        *received = Buffer::new(group.broadcast(root, value, timeout_ms, cancel)?);
        Ok(())
    })
}

/// Waits until all ranks have called it.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_barrier(
    group: Option<&GroupHandle>,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
) -> Status {
    call(|| {
        let group = GroupHandle::used(group, "group")?;
        group.run(timeout_ms, cancel, Group::barrier, Group::barrier_timeout)
    })
}

/// The values of all ranks, by rank; they may have different lengths. Free the list with `c10d_buffer_list_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_all_gather(
    group: Option<&GroupHandle>,
    value: DataPointer,
    len: usize,
    timeout_ms: i64,
    cancel: Option<&CancelHandle>,
    values: Option<&mut MaybeUninit<BufferList>>,
) -> Status {
    call(|| {
        let values = border::result(values, BufferList::NULL, "values")?;
        let group = GroupHandle::used(group, "group")?;
        let value = value.bytes(len, "value")?;
        let gathered = group.run(
            timeout_ms,
            cancel,
            |group| group.all_gather_bytes(value),
            |group, timeout| group.all_gather_bytes_timeout(value, timeout),
        )?;
        *values = BufferList::new(gathered);
        Ok(())
    })
}

/// Waits until all ranks have called it, at most the timeout of the group: the last operation before the group is
/// freed. A rank that hosts the store returns when the others have left, or after 10 s.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_finish(
    group: Option<&GroupHandle>,
    cancel: Option<&CancelHandle>,
) -> Status {
    call(|| {
        let group = GroupHandle::used(group, "group")?;
        let cancel = cancel::of_call(cancel)?;
        Ok(group.group.with_cancel(&cancel).finish()?)
    })
}

/// Frees a group; a store that this process hosts for it ends, unless a handle of `c10d_group_store` remains. No
/// call on it may be in progress. Null is left alone. In a forked child only the memory of the handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_group_free(group: Option<Box<GroupHandle>>) {
    guard::value((), || drop(group));
}
