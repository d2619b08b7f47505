//! A static group: each worker claims its rank and reads the names of all other workers.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::StoreExt;

use super::bounded_store::BoundedStore;
use super::error::DirectoryError;
use super::failure::read_failure;
use super::members::{Members, Taken};
use super::record::{Member, claim_key};
use crate::shortlist::Shortlist;
use crate::worker::{WORKER_ID_MAX, WorkerId};

/// Informs workers that wait for all ranks that a rank was refused, so that they fail at once.
const REFUSED_KEY: &str = "names/_REFUSED";

/// Interval at which waiting workers read [`REFUSED_KEY`].
const SLICE: Duration = Duration::from_millis(500);

/// The key of the worker that has claimed this name: its id, a space, its name and address. Two workers of one name fail at
/// once, and do not wait for the whole group first.
fn name_key(me: &Member) -> String {
    format!("names/_NAME/{}", me.info.name)
}

/// Claims the rank and reads all other ranks. All workers check the same values, so either all of them start or none.
pub(super) fn join(
    store: &BoundedStore,
    me: &Member,
    world_size: u32,
    started: Instant,
    by: Deadline,
) -> Result<Members, DirectoryError> {
    if me.info.id.get() >= world_size || world_size > WORKER_ID_MAX + 1 {
        return Err(DirectoryError::Rank {
            rank: me.info.id.get(),
            world_size,
        });
    }
    claim(store, me, by)?;
    claim_name(store, me, by)?;
    let keys: Vec<String> = (0..world_size)
        .map(|rank| format!("names/{rank}"))
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    await_all(store, &keys, started, by)?;
    let values = store
        .by(by)
        .multi_get(&keys)
        .map_err(DirectoryError::store("reading the names of all workers"))?;
    let mut members = Members::default();
    for (rank, value) in (0..world_size).zip(values) {
        let member = WorkerId::new(rank)
            .map_err(Into::into)
            .and_then(|id| Member::parse(id, &value))
            .map_err(|error| DirectoryError::corrupt(store, keys[rank as usize], &error))?;
        // Ids differ, because the keys do.
        if let Err(Taken::Name(holder) | Taken::Id(holder)) = members.add(member.clone()) {
            return Err(DirectoryError::name_taken(&holder, &member));
        }
    }
    Ok(members)
}

/// Reads the name and address of a worker; `None` if it has left.
pub(super) fn read(
    store: &BoundedStore,
    id: WorkerId,
    by: Deadline,
) -> Result<Option<Member>, DirectoryError> {
    let key = claim_key(id);
    let value = store
        .by(by)
        .try_get(&key)
        .map_err(DirectoryError::store("reading a worker's address"))?;
    value
        .map(|value| Member::parse(id, &value))
        .transpose()
        .map_err(|error| DirectoryError::corrupt(store, &key, &error))
}

/// Releases the rank, so that the worker can join again.
pub(super) fn leave(store: &BoundedStore, me: &Member, by: Deadline) -> Result<(), DirectoryError> {
    for key in [name_key(me), claim_key(me.info.id)] {
        store
            .by(by)
            .delete_key(&key)
            .map_err(DirectoryError::store("leaving the group"))?;
    }
    Ok(())
}

fn claim_name(store: &BoundedStore, me: &Member, by: Deadline) -> Result<(), DirectoryError> {
    let claim = format!("{} {me}", me.info.id);
    let claimed = store
        .replace(&name_key(me), b"", claim.as_bytes(), by)
        .map_err(DirectoryError::store("claiming this worker's name"))?;
    match claimed.err().and_then(|present| with_id(&present)) {
        Some(holder) if holder.info.id != me.info.id => {
            Err(DirectoryError::name_taken(&holder, me))
        }
        _ => Ok(()),
    }
}

fn claim(store: &BoundedStore, me: &Member, by: Deadline) -> Result<(), DirectoryError> {
    let key = claim_key(me.info.id);
    let claimed = store
        .replace(&key, b"", me.to_string().as_bytes(), by)
        .map_err(DirectoryError::store("claiming this worker's rank"))?;
    let Err(present) = claimed else {
        return Ok(());
    };
    let holder = Member::parse(me.info.id, &present)
        .map_err(|error| DirectoryError::corrupt(store, &key, &error))?;
    let refused = format!("{} {me}", me.info.id);
    store
        .by(by)
        .set(REFUSED_KEY, refused.as_bytes())
        .map_err(DirectoryError::store(
            "publishing that a rank was claimed twice",
        ))?;
    Err(DirectoryError::id_taken(&holder, me))
}

fn await_all(
    store: &BoundedStore,
    keys: &[&str],
    started: Instant,
    by: Deadline,
) -> Result<(), DirectoryError> {
    let failed = DirectoryError::store("waiting for the names of all workers");
    loop {
        let slice = Deadline::after(Instant::now(), SLICE).min(by);
        if store.wait(keys, slice).map_err(failed)? {
            return Ok(());
        }
        check_none_refused(store, by)?;
        let read = DirectoryError::store("checking whether a worker could not start");
        if let Some((worker, why)) = read_failure(store, by).map_err(read)? {
            let worker = Box::new(worker);
            return Err(DirectoryError::WorkerFailed { worker, why });
        }
        let now = Instant::now();
        if by.has_passed(now) {
            let (missing, is_complete) = store.missing(keys).map_err(failed)?;
            if missing.is_empty() && is_complete {
                return Ok(());
            }
            return Err(DirectoryError::WorkersMissing {
                present: keys.len() - missing.len(),
                world_size: keys.len(),
                missing: Shortlist::new(missing, is_complete),
                key: store.full_key("names/<rank>"),
                store: store.label(),
                elapsed: now.duration_since(started),
            });
        }
    }
}

fn check_none_refused(store: &BoundedStore, by: Deadline) -> Result<(), DirectoryError> {
    let refused = store
        .by(by)
        .try_get(REFUSED_KEY)
        .map_err(DirectoryError::store(
            "checking whether a worker was refused",
        ))?;
    let Some(refused) = refused else {
        return Ok(());
    };
    // Ignore a value that no worker can have written: it must not fail the group.
    let Some(refused) = with_id(&refused) else {
        return Ok(());
    };
    let holder = read(store, refused.info.id, by)?;
    match holder.filter(|holder| *holder != refused) {
        Some(holder) => Err(DirectoryError::id_taken(&holder, &refused)),
        None => Ok(()),
    }
}

/// A worker from its id, a space, and its name and address.
fn with_id(value: &[u8]) -> Option<Member> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    let (id, rest) = value.split_at(space);
    let id = std::str::from_utf8(id).ok()?.parse().ok()?;
    Member::parse(WorkerId::new(id).ok()?, rest.get(1..)?).ok()
}
