//! A dynamic group: a list of members under one key.

use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Deadline};

use super::bounded_store::BoundedStore;
use super::error::DirectoryError;
use super::members::{LIST_BYTES_MAX, Members, Taken};
use super::record::{Member, RecordError};

/// The list of members.
pub(super) const LIST_KEY: &str = "names/_ALL_WORKER_INFOS";

/// The pauses of a worker whose change was overtaken. The first is a few round trips; with the longest, a thousand
/// workers that join at once write 2,000 times a second.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Adds a worker to the list. Returns the list, and whether another process of the worker was on it.
pub(super) fn join(
    store: &BoundedStore,
    me: &Member,
    by: Deadline,
) -> Result<(Members, bool), DirectoryError> {
    let mut has_replaced = false;
    let members = change(store, me, by, |members| {
        has_replaced = members.of(&me.info).is_some();
        members.add(me.clone()).map_err(|taken| match taken {
            Taken::Name(holder) => DirectoryError::name_taken(&holder, me),
            Taken::Id(holder) => DirectoryError::id_taken(&holder, me),
        })
    })?;
    Ok((members, has_replaced))
}

/// Removes a worker from the list, unless a later incarnation has replaced it.
pub(super) fn leave(store: &BoundedStore, me: &Member, by: Deadline) -> Result<(), DirectoryError> {
    change(store, me, by, |members| {
        members.remove(me.info.id, me.address.incarnation);
        Ok(())
    })
    .map(drop)
}

/// Reads the list.
pub(super) fn read(store: &BoundedStore, by: Deadline) -> Result<Members, DirectoryError> {
    read_text(store, by).and_then(|text| parse(store, &text))
}

/// Changes the list by compare-and-set: a worker that lost the race against another worker tries again after a pause.
fn change(
    store: &BoundedStore,
    me: &Member,
    by: Deadline,
    mut change: impl FnMut(&mut Members) -> Result<(), DirectoryError>,
) -> Result<Members, DirectoryError> {
    let started = Instant::now();
    let pauses = BackoffOptions::default()
        .with_first(FIRST_PAUSE)
        .with_max(LONGEST_PAUSE);
    let mut pauses = Backoff::new(pauses, me.address.incarnation);
    loop {
        let text = read_text(store, by)?;
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
        if written.is_ok() {
            return Ok(members);
        }
        let now = Instant::now();
        let pause = pauses.next_delay();
        match by.remaining(now) {
            Some(left) if left.is_zero() => {
                return Err(DirectoryError::Contended {
                    key: store.full_key(LIST_KEY),
                    store: store.label(),
                    elapsed: now.duration_since(started),
                });
            }
            left => store.pause(left.map_or(pause, |left| pause.min(left))),
        }
    }
}

fn read_text(store: &BoundedStore, by: Deadline) -> Result<Vec<u8>, DirectoryError> {
    let text = store
        .by(by)
        .try_get(LIST_KEY)
        .map_err(DirectoryError::store("reading the list of members"))?;
    Ok(text.unwrap_or_default())
}

fn parse(store: &BoundedStore, text: &[u8]) -> Result<Members, DirectoryError> {
    Members::parse(text).map_err(|error| DirectoryError::corrupt(store, LIST_KEY, &error))
}
