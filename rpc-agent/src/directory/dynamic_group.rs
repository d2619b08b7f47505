//! A dynamic group: a list of members under one key, which one worker at a time changes.

use std::time::Instant;

use c10d_socket::Deadline;

use super::bounded_store::BoundedStore;
use super::error::DirectoryError;
use super::lease::{LEASE, Lease};
use super::members::{LIST_BYTES_MAX, Members, Taken};
use super::record::{Member, RecordError};

/// The list of members.
pub(super) const LIST_KEY: &str = "names/_ALL_WORKER_INFOS";

/// The lease to change the list.
const LEASE_KEY: &str = "RpcGroupManagementToken";

/// Adds a worker to the list, and returns the list.
pub(super) fn join(
    store: &BoundedStore,
    me: &Member,
    by: Deadline,
) -> Result<Members, DirectoryError> {
    change(store, me, "join", by, |members| {
        members.add(me.clone()).map_err(|taken| match taken {
            Taken::Name { holder } => DirectoryError::name_taken(&holder, me),
            Taken::Id { holder } => DirectoryError::id_taken(&holder, me),
        })
    })
}

/// Removes a worker from the list, unless a later incarnation has replaced it.
pub(super) fn leave(store: &BoundedStore, me: &Member, by: Deadline) -> Result<(), DirectoryError> {
    change(store, me, "leave", by, |members| {
        members.remove(me.info.id, me.address.incarnation);
        Ok(())
    })
    .map(drop)
}

/// Reads the list.
pub(super) fn read(store: &BoundedStore, by: Deadline) -> Result<Members, DirectoryError> {
    read_text(store, by).and_then(|text| parse(store, &text))
}

/// Blocks until the list differs from `seen`. `None` if the deadline passes first.
pub(super) fn await_change(
    store: &BoundedStore,
    seen: &Members,
    by: Deadline,
) -> Result<Option<Members>, DirectoryError> {
    let changed = store
        .wait_change(LIST_KEY, seen.encode().as_bytes(), by)
        .map_err(DirectoryError::store(
            "waiting for a change of the list of members",
        ))?;
    changed.map(|text| parse(store, &text)).transpose()
}

/// Changes the list while holding the lease. Writes by compare-and-set, so that a worker that was paused
/// for longer than its lease does not undo another one's change.
fn change(
    store: &BoundedStore,
    me: &Member,
    what: &str,
    by: Deadline,
    mut change: impl FnMut(&mut Members) -> Result<(), DirectoryError>,
) -> Result<Members, DirectoryError> {
    let started = Instant::now();
    let holder = format!("{}#{:016x} {what}", me.info.name, me.address.incarnation);
    loop {
        let mut lease = Lease::acquire(store, LEASE_KEY, holder.clone(), LEASE, by)
            .map_err(|error| DirectoryError::lease(store, LEASE_KEY, started.elapsed(), error))?;
        let mut text = read_text(store, by)?;
        loop {
            let mut members = parse(store, &text)?;
            change(&mut members)?;
            let changed = members.encode();
            if changed.len() > LIST_BYTES_MAX {
                let bytes = changed.len();
                let error = RecordError::TooLong { bytes };
                return Err(DirectoryError::corrupt(store, LIST_KEY, &error));
            }
            let written = store
                .replace(LIST_KEY, &text, changed.as_bytes(), by)
                .map_err(DirectoryError::store("changing the list of members"))?;
            match written {
                Ok(()) => return Ok(members),
                Err(present) => text = present,
            }
            let is_ours = lease.renew(Instant::now()).map_err(DirectoryError::store(
                "renewing the lease to change the list of members",
            ))?;
            if !is_ours {
                break;
            }
        }
    }
}

fn read_text(store: &BoundedStore, by: Deadline) -> Result<Vec<u8>, DirectoryError> {
    let text = store
        .try_get(LIST_KEY, by)
        .map_err(DirectoryError::store("reading the list of members"))?;
    Ok(text.unwrap_or_default())
}

fn parse(store: &BoundedStore, text: &[u8]) -> Result<Members, DirectoryError> {
    Members::parse(text).map_err(|error| DirectoryError::corrupt(store, LIST_KEY, &error))
}
