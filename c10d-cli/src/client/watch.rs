//! `c10d store watch`: each change of a key, or of the keys with a prefix, as a line.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use std::time::Duration;

use c10d_inspect::http::{StatusError, StatusPages};
use c10d_socket::printable;
use c10d_store::{Known, Store, StoreError, StoreExt};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::target::{Client, TargetArgs};
use crate::failure::Failure;
use crate::output::printable_value;
use crate::output::{print_json, print_line};
use crate::status::ask_following;

/// How often the keys of a prefix are compared with those before.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The shown bytes of a value; --json has all of them.
const VALUE_SHOWN_MAX: usize = 80;

/// The keys of one MULTI_GET, whose values are in memory at the same time.
const KEYS_AT_ONCE: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Watch this key. Without it, all keys that begin with --prefix are watched, and their values are not shown.
    #[arg(required_unless_present = "prefix")]
    key: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// Prints changes until the command is interrupted or the connection is lost.
pub(super) fn run(args: &WatchArgs) -> Result<(), Failure> {
    let client = args.target.connect()?;
    match (&args.key, args.target.prefix.as_deref()) {
        (Some(key), _) => watch_key(&args.target, &client, key),
        (None, prefix) => watch_prefix(&args.target, &client, prefix.unwrap_or_default()),
    }
}

fn watch_key(target: &TargetArgs, client: &Client, key: &str) -> Result<(), Failure> {
    let mut value = client.store().wait_change(key, Known::nothing(), None)?;
    loop {
        let now = Timestamp::now();
        if target.json {
            let mut change = super::values::pair(key, &value);
            change["length"] = value.len().into();
            print_change(now, change)?;
        } else {
            let shown = printable_value(&value, VALUE_SHOWN_MAX);
            print_text(now, key, &format!("{} B  {shown}", value.len()))?;
        }
        value = client
            .store()
            .wait_change(key, Known::whole(&value), None)?;
    }
}

fn watch_prefix(target: &TargetArgs, client: &Client, prefix: &str) -> Result<(), Failure> {
    let pages = pages_with_versions(target, client)?;
    let mut known = BTreeMap::new();
    let mut server = None;
    loop {
        let now = match &pages {
            Some(pages) => ask_following(pages, |pages| keys_of(pages, prefix))?,
            None => keys_and_hashes(client.tcp(), prefix)?,
        };
        let answered = pages.as_ref().map(StatusPages::server);
        if std::mem::replace(&mut server, answered.clone()) != answered {
            renumber(&mut known, &now);
        }
        let time = Timestamp::now();
        for change in changes(&known, &now) {
            if target.json {
                let json = match change.length {
                    Some(length) => json!({ "key": change.key, "length": length }),
                    None => json!({ "key": change.key, "deleted": true }),
                };
                print_change(time, json)?;
            } else {
                let what = change.length.map(|length| format!("{length} B"));
                print_text(time, change.key, what.as_deref().unwrap_or("deleted"))?;
            }
        }
        known = now;
        thread::sleep(POLL_INTERVAL);
    }
}

fn print_text(time: Timestamp, key: &str, what: &str) -> Result<(), Failure> {
    print_line(format_args!(
        "{time:.3}  {}  {what}",
        printable(key, usize::MAX)
    ))
}

fn print_change(time: Timestamp, mut change: Value) -> Result<(), Failure> {
    change["time"] = format!("{time:.3}").into();
    print_json(change)
}

/// A mark that identifies a value: its length, and a number that differs for different values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    length: usize,
    version: u64,
}

/// A key that changed.
#[derive(Debug, PartialEq, Eq)]
struct Change<'k> {
    key: &'k str,
    /// The length of the new value; `None` for a deleted key.
    length: Option<usize>,
}

/// The changes, in the order of the keys.
fn changes<'k>(
    before: &'k BTreeMap<String, Mark>,
    now: &'k BTreeMap<String, Mark>,
) -> Vec<Change<'k>> {
    let written = now
        .iter()
        .filter(|(key, mark)| before.get(*key) != Some(mark));
    let written = written.map(|(key, mark)| Change {
        key,
        length: Some(mark.length),
    });
    let deleted = before.keys().filter(|key| !now.contains_key(*key));
    let deleted = deleted.map(|key| Change { key, length: None });
    let mut changes: Vec<Change<'k>> = written.chain(deleted).collect();
    changes.sort_by_key(|change| change.key);
    changes
}

/// The versions of another server cannot be compared. A value that has the same length is taken as unchanged.
fn renumber(known: &mut BTreeMap<String, Mark>, now: &BTreeMap<String, Mark>) {
    for (key, mark) in known {
        if let Some(new) = now.get(key)
            && new.length == mark.length
        {
            *mark = *new;
        }
    }
}

/// The pages of a c10d server, which counts the writes of each value; `None` for any other, whose values are read, and
/// known by a hash.
fn pages_with_versions(
    target: &TargetArgs,
    client: &Client,
) -> Result<Option<StatusPages>, Failure> {
    if !client.tcp().has_prompt_watch() {
        return Ok(None);
    }
    let pages = target.pages()?;
    // Without status pages it is asked as PyTorch's servers are.
    let is_served = pages.get::<Value>("/keys.json?count=0").is_ok();
    Ok(is_served.then_some(pages))
}

fn keys_of(pages: &StatusPages, prefix: &str) -> Result<BTreeMap<String, Mark>, StatusError> {
    // On the wire users' keys start with a slash: docs/spec/wire.md, 4.1.
    let rows = pages.keys(&format!("/{prefix}"))?.into_iter();
    let marked = rows.map(|row| {
        let mark = Mark {
            length: row.value_bytes,
            version: row.version,
        };
        let key = row.key.strip_prefix('/').unwrap_or(&row.key);
        (key.to_owned(), mark)
    });
    Ok(marked.collect())
}

fn keys_and_hashes(store: &dyn Store, prefix: &str) -> Result<BTreeMap<String, Mark>, StoreError> {
    let mut names = store.list_keys()?;
    names.retain(|name| name.starts_with(prefix));
    let mut keys = BTreeMap::new();
    for names in names.chunks(KEYS_AT_ONCE) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = match store.multi_get_timeout(&names, Duration::from_secs(1)) {
            Ok(values) => values.into_iter().map(Some).collect(),
            // One of them was deleted in between.
            Err(error) if error.is_timeout() => {
                let values = names.iter().map(|name| store.try_get(name));
                values.collect::<Result<Vec<_>, _>>()?
            }
            Err(error) => return Err(error),
        };
        for (name, value) in names.iter().zip(values) {
            if let Some(value) = value {
                keys.insert((*name).to_owned(), Mark::of(&value));
            }
        }
    }
    Ok(keys)
}

impl Mark {
    fn of(value: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self {
            length: value.len(),
            version: hasher.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(keys: &[(&str, usize, u64)]) -> BTreeMap<String, Mark> {
        let marks = keys.iter().map(|(key, length, version)| {
            let mark = Mark {
                length: *length,
                version: *version,
            };
            ((*key).to_owned(), mark)
        });
        marks.collect()
    }

    #[test]
    fn new_changed_and_deleted_keys_are_changes() {
        let before = marks(&[("a", 1, 1), ("b", 1, 2), ("c", 1, 3), ("d", 5, 4)]);
        let now = marks(&[("0", 7, 9), ("a", 1, 1), ("b", 1, 8), ("d", 6, 7)]);
        let change = |key, length| Change { key, length };
        let expected = [
            change("0", Some(7)),
            change("b", Some(1)),
            change("c", None),
            change("d", Some(6)),
        ];
        assert_eq!(changes(&before, &now), expected);
        assert_eq!(changes(&now, &now), []);
    }

    #[test]
    fn the_numbers_of_another_server_are_no_changes() {
        let mut before = marks(&[("a", 1, 1), ("b", 1, 2), ("c", 1, 3)]);
        let now = marks(&[("a", 1, 7), ("b", 2, 8), ("d", 1, 3)]);
        renumber(&mut before, &now);
        let change = |key, length| Change { key, length };
        let expected = [
            change("b", Some(2)),
            change("c", None),
            change("d", Some(1)),
        ];
        assert_eq!(changes(&before, &now), expected);
    }

    #[test]
    fn values_are_told_apart_by_their_hash() {
        assert_eq!(Mark::of(b"one"), Mark::of(b"one"));
        assert_ne!(Mark::of(b"one"), Mark::of(b"two"));
    }
}
