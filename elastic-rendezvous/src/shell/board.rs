//! The values that the members of a round write for each other, below a prefix of the rendezvous' store, and the names of the
//! keys beside them.
//!
//! The layout is PyTorch's: the names of a round are below `torch.rendezvous.RUN_ID.ROUND/`. `MASTER_ADDR`, `MASTER_PORT` and
//! the names below `torchelastic/` are PyTorch's, and those below `c10d/` are this project's (docs/spec/rendezvous.md, section 12).
//! Nodes of PyTorch and of other releases take part in the same round, so an agreement keeps its names and its values.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, printable};
use c10d_store::{PrefixStore, Store, StoreError, StoreExt};

/// The names that members write. Other names with the prefix of a round may belong to another job, whose run id is this
/// one's with a dot and a number, or to a program that has put them there.
const OF_MEMBERS: [&str; 3] = ["MASTER_", "torchelastic/", "c10d/"];

/// How often a count with a lost answer is repeated. In between, the store itself waits for a server to return.
const REPEATS_MAX: usize = 3;

/// The longest value that is parsed, and how much of one an error shows.
const VALUE_BYTES_MAX: usize = 64 << 10;
const SHOWN_CHARS_MAX: usize = 120;
const SHOWN_NODES_MAX: usize = 16;

/// The keys of one round, used by its nodes to exchange values: they put values, count themselves, and await the values
/// of other nodes.
///
/// Each call blocks for at most the store's timeout, and an `await` for as long as its [`Wait`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use c10d_store::HashStore;
/// use elastic_rendezvous::{RoundBoard, Wait};
///
/// // A node gets the store of its round in `RendezvousInfo::store`.
/// let board = RoundBoard::new(Arc::new(HashStore::new()));
/// board.put("port/0", "29500")?;
/// let wait = Wait::new(Duration::from_secs(5));
/// assert_eq!(board.await_one("port/0", "port", wait)?, b"29500");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RoundBoard {
    store: Arc<dyn Store>,
}

/// A time limit for waiting for other nodes, in one step or in several.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    started: Instant,
    deadline: Deadline,
}

/// The reason why a node has not received a value from the other nodes of its round.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BoardError {
    /// Nodes did not write a value in time.
    #[error(
        "received no {what} from group rank {} within {:.1} s",
        Nodes(missing),
        waited.as_secs_f64()
    )]
    Missing {
        /// A noun: the expected value.
        what: &'static str,
        /// The group ranks of the nodes that should have written it.
        missing: Vec<usize>,
        /// The time that this node waited.
        waited: Duration,
    },
    /// Another node wrote a value that cannot be parsed.
    #[error("{key:?} in the {store} holds \"{value}\", which is not {expected}")]
    Malformed {
        /// The store's label, such as `TCP store 10.0.0.1:29500`.
        store: String,
        /// The key with all prefixes.
        key: String,
        /// The start of the value.
        value: String,
        /// The form that the value should have, as a noun phrase.
        expected: &'static str,
    },
    /// A request to the store has failed.
    #[error("cannot exchange values with the other nodes of the round: {0}")]
    Store(#[source] StoreError),
    /// The caller interrupted a wait.
    #[error("the wait for the other nodes of the round was interrupted")]
    Interrupted,
}

c10d_socket::debug_as_display!(BoardError);

impl From<StoreError> for BoardError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Interrupted { .. } => Self::Interrupted,
            error => Self::Store(error),
        }
    }
}

impl Wait {
    /// Creates a wait that begins now, and is not limited if `timeout` is `None`.
    #[must_use]
    pub fn new(timeout: impl Into<Option<Duration>>) -> Self {
        let started = Instant::now();
        let deadline = Deadline::after(started, timeout);
        Self { started, deadline }
    }
}

impl RoundBoard {
    /// Creates the board of a round. `store` adds the round's prefix to all keys.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// The board of the round `round`, in the rendezvous' store.
    pub(crate) fn of(store: &Arc<dyn Store>, run_id: &str, round: i64) -> Self {
        let prefix = format!("{}.{round}", state_key(run_id));
        Self::new(Arc::new(PrefixStore::new(prefix, Arc::clone(store))))
    }

    /// Returns a board of the same round. `cancel` interrupts its calls.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self::new(self.store.with_cancel(cancel))
    }

    /// Returns the round's store, which adds the round's prefix to all keys.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Writes a value, and replaces an earlier value.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn put(&self, name: &str, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.store.set(name, value)
    }

    /// Writes many values, in few requests.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn put_all(&self, values: &[(String, String)]) -> Result<(), StoreError> {
        write_all(&*self.store, values)
    }

    /// Writes a value unless there is one.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn put_if_missing(&self, name: &str, value: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.store.compare_set(name, b"", value).map(drop)
    }

    /// Writes `proposal` if the value is still `expected` (empty: there is none), and returns the value after that. A
    /// `proposal` that no other node makes shows which node has written it, even if an answer was lost.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn agree(
        &self,
        name: &str,
        expected: &[u8],
        proposal: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let agreed = until_answered(|| self.store.compare_set(name, expected, proposal))?;
        Ok(agreed.into_value())
    }

    /// Adds to a counter, and returns the sum. Is not repeated if the answer is lost: then the sum could count this node
    /// twice.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn count(&self, name: &str, step: i64) -> Result<i64, StoreError> {
        self.store.add(name, step)
    }

    /// Whether this node is the first to count itself.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn is_first(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.count(name, 1)? == 1)
    }

    /// Takes `count` numbers that no other node has, and returns the last one; the first of all is 1. If an answer is lost,
    /// for example because the store is restarted, asks again and leaves numbers out.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn take_numbers(&self, name: &str, count: usize) -> Result<u64, StoreError> {
        let step = i64::try_from(count).unwrap_or(i64::MAX);
        let last = until_answered(|| self.store.add(name, step))?;
        Ok(u64::try_from(last).unwrap_or_default())
    }

    /// Returns the value of a name, if it has one.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.try_get(name)
    }

    /// Returns the values of names, in their order; `None` for a name without a value. A single request reads all of
    /// them if all names have values.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn read_all(&self, names: &[impl AsRef<str>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        read_present(&*self.store, &names)
    }

    /// Whether a name has a value.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn has(&self, name: &str) -> Result<bool, StoreError> {
        self.store.check(&[name])
    }

    /// Returns the sum of a counter, or 0 for a value that is not a number.
    ///
    /// # Errors
    /// [`StoreError`] when the store fails.
    pub fn counted(&self, name: &str) -> Result<usize, StoreError> {
        let count = self.read(name)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&count).parse().unwrap_or(0))
    }

    /// Waits for the value that the node with group rank 0 writes.
    ///
    /// # Errors
    /// [`BoardError::Missing`] with this noun after the wait, or an error of the store.
    pub fn await_one(
        &self,
        name: &str,
        what: &'static str,
        wait: Wait,
    ) -> Result<Vec<u8>, BoardError> {
        let value = self.await_all(&[name], what, wait)?.pop();
        Ok(value.unwrap_or_default())
    }

    /// Waits for the values that all nodes write, and returns them in the order of their group ranks.
    ///
    /// # Errors
    /// [`BoardError::Missing`] with this noun after the wait, or an error of the store.
    pub fn await_all(
        &self,
        names: &[impl AsRef<str>],
        what: &'static str,
        wait: Wait,
    ) -> Result<Vec<Vec<u8>>, BoardError> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let mut values = Vec::with_capacity(names.len());
        for chunk in names.chunks(KEYS_MAX) {
            let left = wait.deadline.remaining(Instant::now());
            match self.store.multi_get_timeout(chunk, left) {
                Ok(found) => values.extend(found),
                Err(StoreError::Timeout { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if values.len() == names.len() {
            return Ok(values);
        }
        let waited = wait.started.elapsed();
        let first = values.len();
        let rest = read_present(&*self.store, &names[first..])?;
        let places = (first..).zip(&rest);
        let missing: Vec<usize> = places
            .filter_map(|(place, value)| value.is_none().then_some(place))
            .collect();
        // Otherwise the last ones were written at that moment.
        if !missing.is_empty() {
            return Err(BoardError::Missing {
                what,
                missing,
                waited,
            });
        }
        values.extend(rest.into_iter().flatten());
        Ok(values)
    }

    /// Parses a value of another node.
    ///
    /// # Errors
    /// [`BoardError::Malformed`] if `parse` returns `None`, or the value is longer than 64 KiB.
    pub fn parsed<T>(
        &self,
        name: &str,
        value: &[u8],
        expected: &'static str,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, BoardError> {
        let short = Some(value).filter(|value| value.len() <= VALUE_BYTES_MAX);
        short.and_then(parse).ok_or_else(|| BoardError::Malformed {
            store: self.store.label(),
            key: self.store.full_key(name),
            value: printable(value, SHOWN_CHARS_MAX).to_string(),
            expected,
        })
    }

    /// Removes all names that members of the round have written. Call it when all nodes have left the round.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] on other stores than TCP stores with a server of this project, which keep the names, or
    /// an error of the store.
    pub fn forget(&self) -> Result<(), StoreError> {
        OF_MEMBERS.iter().try_for_each(|names| {
            let deleted = self.store.delete_prefix(names, Duration::ZERO);
            deleted.map(drop)
        })
    }
}

/// Makes a request again if it may have taken effect.
fn until_answered<T>(mut request: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut result = request();
    for _ in 0..REPEATS_MAX {
        match &result {
            Err(error) if error.has_unknown_outcome() => result = request(),
            _ => break,
        }
    }
    result
}

/// Shows as many group ranks as fit into a line of the log.
struct Nodes<'m>(&'m [usize]);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.0.iter().take(SHOWN_NODES_MAX).enumerate() {
            write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN_NODES_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The most keys of one request: far below the limits of stores (`WireLimits` in `c10d-store`), so that the store serves
/// other nodes in between.
pub(crate) const KEYS_MAX: usize = 1024;

/// Writes these values.
pub(crate) fn write_all(
    store: &dyn Store,
    values: &[(String, impl AsRef<[u8]>)],
) -> Result<(), StoreError> {
    for values in values.chunks(KEYS_MAX) {
        let pairs = values.iter().map(|(key, value)| (&**key, value.as_ref()));
        store.multi_set(&pairs.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// How long a read waits for the values of keys that were there a moment before.
const PRESENT_MAX: Duration = Duration::from_secs(1);

/// Reads the values of those keys that have one, in the order of the keys. Halves the keys until all of them have a value or
/// one is left, because a request only returns whether all have one. Waits for 1 s at most for a key that was deleted in between.
pub(crate) fn read_present(
    store: &dyn Store,
    keys: &[&str],
) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    match *keys {
        [] => return Ok(Vec::new()),
        [key] => return Ok(vec![store.try_get(key)?]),
        _ => {}
    }
    if keys.len() <= KEYS_MAX && store.check(keys)? {
        match store.multi_get_timeout(keys, PRESENT_MAX) {
            // A node has deleted its key since the check, or the server is slow.
            Err(error) if error.is_timeout() => {}
            values => return Ok(values?.into_iter().map(Some).collect()),
        }
    }
    let (left, right) = keys.split_at(keys.len() / 2);
    let mut values = read_present(store, left)?;
    values.append(&mut read_present(store, right)?);
    Ok(values)
}

/// Ours: the run id of the job whose workers use the store.
pub(crate) const OWNER_KEY: &str = "c10d/workers_of";

const RENDEZVOUS_PREFIX: &str = "torch.rendezvous.";

/// The key of the state of a rendezvous.
pub(crate) fn state_key(run_id: &str) -> String {
    format!("{RENDEZVOUS_PREFIX}{run_id}")
}

/// The part after the run id in the names of a static rendezvous.
pub(crate) const STATIC_NAMES: &str = "/c10d/static/";

/// The run id in the key of a state, or of a node's name in a static rendezvous.
pub(crate) fn run_of(key: &str) -> Option<&str> {
    match key.strip_prefix(RENDEZVOUS_PREFIX) {
        Some(rest) => (!rest.contains('/')).then_some(rest),
        None => key.rsplit_once(STATIC_NAMES).map(|(run_id, _)| run_id),
    }
}

/// Whether a key stays when the workers' keys are removed.
pub(crate) fn is_kept(key: &str) -> bool {
    key.starts_with(RENDEZVOUS_PREFIX) || key == OWNER_KEY
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use c10d_store::{ErrorContext, HashStore, Operation, TcpStore, TcpStoreOptions};

    use super::*;

    /// docs/spec/rendezvous.md, BOOT 8.
    #[test]
    fn only_names_of_members_of_the_round_are_forgotten() {
        let options = TcpStoreOptions::default().with_master(true);
        let store = TcpStore::open("127.0.0.1", 0, options).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let table = [
            ("torch.rendezvous.job.4/MASTER_ADDR", true),
            ("torch.rendezvous.job.4/MASTER_PORT", true),
            ("torch.rendezvous.job.4/torchelastic/role_info/17", true),
            ("torch.rendezvous.job.4/c10d/relay/0/port", true),
            ("torch.rendezvous.job.5/MASTER_ADDR", false),
            ("torch.rendezvous.job.40/torchelastic/role_info/1", false),
            ("torch.rendezvous.job", false),
            ("torch.rendezvous.job.4", false),
            ("torch.rendezvous.job/notice/4", false),
            ("torch.rendezvous.other.4/MASTER_ADDR", false),
            ("torch.rendezvous.job.4.4/MASTER_ADDR", false),
            // This key belongs to the job `job.4`.
            ("torch.rendezvous.job.4/notice/1", false),
            ("torch.rendezvous.job.4/a/1", false),
            ("torch.rendezvous.job.4/of an embedder", false),
            ("MASTER_ADDR", false),
        ];
        for (key, _) in table {
            store.set(key, b"1").unwrap();
        }
        RoundBoard::of(&store, "job", 4).forget().unwrap();
        for (key, is_forgotten) in table {
            assert_eq!(store.check(&[key]).unwrap(), !is_forgotten, "{key}");
        }
    }

    /// In a job of two nodes, the first launcher to end removed its mark, and the second waited for it.
    #[test]
    fn a_key_that_is_deleted_during_the_read_is_not_waited_for() {
        let options = TcpStoreOptions::default().with_timeout(Duration::from_secs(5));
        let store = TcpStore::open("127.0.0.1", 0, options.clone().with_master(true)).unwrap();
        let other = TcpStore::open("127.0.0.1", store.port(), options).unwrap();
        store.set("stays", b"1").unwrap();
        let (turn, turns) = sync_channel(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for () in turns {
                    other.delete_key("ends").unwrap();
                }
            });
            // Moved, so that the other thread ends with a panic of this one.
            let turn = turn;
            for _ in 0..8 {
                store.set("ends", b"2").unwrap();
                turn.send(()).unwrap();
                let values = read_present(&store, &["stays", "ends"]).unwrap();
                assert_eq!(values[0].as_deref(), Some(&b"1"[..]));
            }
        });
    }

    #[test]
    fn the_nodes_that_have_written_nothing_are_named() {
        let board = RoundBoard::new(Arc::new(HashStore::new()));
        let names: Vec<String> = (0..40).map(|rank| format!("n/{rank}")).collect();
        for name in names.iter().step_by(2) {
            board.put(name, b"").unwrap();
        }
        let soon = || Wait::new(Duration::from_millis(10));
        let error = board.await_all(&names, "name", soon()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("received no name from group rank 1, 3, 5, 7,"),
            "{text}"
        );
        assert!(text.contains("29, 31 and 4 more within 0.0 s"), "{text}");
        let error = board.await_one("n/1", "name", soon()).unwrap_err();
        assert!(
            matches!(&error, BoardError::Missing { missing, .. } if missing == &[0]),
            "{error}"
        );
    }

    #[test]
    fn a_wait_can_be_cancelled() {
        let cancel = Cancel::new();
        cancel.cancel();
        let board = RoundBoard::new(Arc::new(HashStore::new())).with_cancel(&cancel);
        let error = board.await_one("n", "name", Wait::new(None)).unwrap_err();
        assert!(matches!(error, BoardError::Interrupted), "{error}");
    }

    fn no_reply() -> StoreError {
        StoreError::NoReply {
            context: ErrorContext::new(Operation::Add, ["k"], "a store", Duration::ZERO),
            timeout: Duration::ZERO,
        }
    }

    /// A restarted store loses the answers of the connections that it closes.
    #[test]
    fn a_count_without_an_answer_is_repeated() {
        let mut answers = vec![Ok(3), Err(no_reply()), Err(no_reply())];
        let count = until_answered(|| answers.pop().unwrap());
        assert_eq!(count.unwrap(), 3);
    }

    #[test]
    fn a_store_that_never_answers_is_an_error() {
        let mut asked = 0;
        let count = until_answered(|| {
            asked += 1;
            Err::<i64, _>(no_reply())
        });
        assert!(count.is_err());
        assert_eq!(asked, REPEATS_MAX + 1);
    }

    #[test]
    fn some_keys_name_a_run() {
        for (key, run) in [
            ("torch.rendezvous.job", Some("job")),
            ("torch.rendezvous.job.3/MASTER_ADDR", None),
            ("job.5/c10d/static/17", Some("job.5")),
            ("job/torchelastic/agent/0", None),
            ("default_pg/0//cpu//0/1", None),
            ("", None),
        ] {
            assert_eq!(run_of(key), run, "{key}");
        }
    }

    #[test]
    fn keys_of_every_rendezvous_are_kept() {
        for (key, kept) in [
            ("torch.rendezvous.job", true),
            ("torch.rendezvous.other.3/MASTER_ADDR", true),
            ("c10d/workers_of", true),
            ("default_pg/0//cpu//0/1", false),
            ("", false),
        ] {
            assert_eq!(is_kept(key), kept, "{key}");
        }
    }
}
