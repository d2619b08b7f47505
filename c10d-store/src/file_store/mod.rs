//! A store in a file that the workers share, compatible with PyTorch's `FileStore`.
//!
//! The format, the locking and the differences from PyTorch are in docs/file-store.md.

mod close_flag;
mod locked_file;
mod record;
mod replica;
mod store_file;

use std::fmt;
use std::path::{self, Path};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::record::{CLEANUP, DELETED_USER, Entries, REFCOUNT, TooLong, USER};
use self::store_file::{Call, StoreFile, Writer};
use crate::compare_set::CompareSet;
use crate::decimal::write_decimal;
use crate::error::{Operation, StoreError};
use crate::known::Known;
use crate::store::{DEFAULT_TIMEOUT, Store, generic_barrier, takes_any_bytes};
use crate::value_rules;

/// How often a waiting call looks at the file: soon at first, as what is waited for is often about
/// to come; later as rarely as PyTorch, whose 10 ms cost next to nothing.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(10);

/// How long dropping a store waits for the file's lock.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A store in a file that all workers can open: on one machine, or on a shared file system that
/// supports `flock`.
///
/// The file is a log to which every write appends a record; it never shrinks while it is in use.
/// Workers on PyTorch's `FileStore` and on this one may use the same file at the same time. There
/// are no queues.
///
/// Every operation is atomic, [`multi_get`](Store::multi_get), [`multi_set`](Store::multi_set) and
/// [`append`](Store::append_bytes) included. Waiting is polling: a value is noticed up to 10 ms after it
/// was written. Every operation waits for the file's lock, for at most the [timeout](Store::timeout)
/// or 1 s, whichever is longer.
///
/// A missing file is an empty store, and the first write creates it.
///
/// **Dropping** a store counts it as closed in the file, and removes the file when it was the last
/// one open and at least `world_size` have been closed. Without a world size it is never removed. A
/// file that is left over from an earlier run is read as if it were of this one. Dropping waits for
/// the file's lock for at most 5 s; what goes wrong is logged. [Closing](Store::close) a store ends its
/// calls, but counts for the file only once the store is dropped.
///
/// ```
/// use c10d_store::{FileStore, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("rendezvous");
/// let first = FileStore::open(&path, Some(2))?;
/// let second = FileStore::open(&path, Some(2))?; // usually in another process
/// first.set("address", "10.0.0.1")?;
/// assert_eq!(second.get("address")?, b"10.0.0.1");
/// drop((first, second));
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub struct FileStore {
    file: StoreFile,
    world_size: Option<usize>,
    timeout: Mutex<Option<Duration>>,
    /// [`CLOSE_TIMEOUT`], but for tests.
    close_timeout: Duration,
}

/// How a [`FileStore`] is opened.
#[derive(Debug, Clone)]
pub struct FileStoreOptions {
    world_size: Option<usize>,
    timeout: Option<Duration>,
}

impl FileStoreOptions {
    /// After how many closed stores the last one removes the file. By default never, as in PyTorch:
    /// who does not know how many workers there are cannot know that none will come any more.
    #[must_use]
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// The [default timeout](Store::timeout) of the store, and the limit for the file's lock while
    /// opening; `None` waits indefinitely. Default 300 s ([`DEFAULT_TIMEOUT`]).
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }
}

impl Default for FileStoreOptions {
    fn default() -> Self {
        Self {
            world_size: None,
            timeout: Some(DEFAULT_TIMEOUT),
        }
    }
}

impl FileStore {
    /// Opens or creates the store file at `path`. The last of the stores removes it when at least
    /// `world_size` have been closed; `None` keeps it (PyTorch's -1).
    ///
    /// # Errors
    /// [`StoreError::File`] when the file cannot be created or opened, at once;
    /// [`StoreError::CorruptFile`] when it holds something else than a store, which is left as it
    /// is; [`StoreError::Timeout`] when its lock was held by others for 300 s.
    pub fn open(path: impl AsRef<Path>, world_size: Option<usize>) -> Result<Self, StoreError> {
        let options = FileStoreOptions {
            world_size,
            ..FileStoreOptions::default()
        };
        Self::open_with(path, &options)
    }

    /// As [`open`](Self::open), with more to choose.
    ///
    /// # Errors
    /// As [`open`](Self::open), but with the timeout of `options`.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &FileStoreOptions,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        // The file is opened anew by each operation, and a process may change its folder meanwhile.
        // Where that cannot be helped, because the path is empty or the folder is gone, opening fails.
        let file = StoreFile::new(path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        let call = Call::begin(Operation::Open, &[], options.timeout);
        file.write(&call, |writer| {
            let mut records = Vec::new();
            count(&file, &call, writer, REFCOUNT, 1, &mut records)?;
            writer.append(&records)
        })?;
        Ok(Self {
            file,
            world_size: options.world_size,
            timeout: Mutex::new(options.timeout),
            close_timeout: CLOSE_TIMEOUT,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// docs/file-store.md, Bookkeeping.
    fn count_as_closed(&self) -> Result<(), StoreError> {
        let call = Call::begin(Operation::Close, &[], Some(self.close_timeout));
        self.file.write_if_present(&call, |writer| {
            let mut records = Vec::new();
            let closed = count(&self.file, &call, writer, CLEANUP, 1, &mut records)?;
            let open = count(&self.file, &call, writer, REFCOUNT, -1, &mut records)?;
            writer.append(&records)?;
            let is_last = self.world_size.is_some_and(|world_size| {
                open == 0 && i64::try_from(world_size).is_ok_and(|world_size| closed >= world_size)
            });
            if is_last {
                writer.remove_file()?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn call<'a>(&self, operation: Operation, keys: &'a [&'a str]) -> Call<'a> {
        Call::begin(operation, keys, self.timeout())
    }

    /// Shows `look` what the file holds now.
    fn read<T>(
        &self,
        operation: Operation,
        look: impl FnOnce(&Entries) -> T,
    ) -> Result<T, StoreError> {
        self.file.read(&self.call(operation, &[]), look)
    }

    /// Waits until all keys of the call are there, and shows `take` what the file holds then.
    fn read_when_there<T>(
        &self,
        call: &Call<'_>,
        take: impl Fn(&Entries) -> T,
    ) -> Result<T, StoreError> {
        self.read_when(call, |entries| {
            let is_missing = |key: &&str| entries.user(key).is_none();
            let missing: Vec<&str> = call.keys().iter().copied().filter(is_missing).collect();
            if missing.is_empty() {
                Ok(take(entries))
            } else {
                Err(missing)
            }
        })
    }

    /// Looks at the file again and again until `look` takes something from it. What `look` says
    /// instead is which keys keep the call waiting.
    fn read_when<'k, T>(
        &self,
        call: &Call<'k>,
        look: impl Fn(&Entries) -> Result<T, Vec<&'k str>>,
    ) -> Result<T, StoreError> {
        let deadline = call.deadline();
        let mut pause = POLL_PAUSE_MIN;
        loop {
            let is_last_look = deadline.has_passed(Instant::now());
            let missing = match self.file.read(call, &look)? {
                Ok(taken) => return Ok(taken),
                Err(missing) => missing,
            };
            if is_last_look {
                let context = self.file.context(call, missing);
                return Err(StoreError::timeout(context, call.timeout()));
            }
            let time_left = deadline.remaining(Instant::now());
            self.file
                .pause(time_left.map_or(pause, |time_left| pause.min(time_left)));
            pause = (pause * 2).min(POLL_PAUSE_MAX);
        }
    }

    /// Writes pairs under one lock and in one write.
    fn write_all(
        &self,
        operation: Operation,
        keys: &[&str],
        pairs: &[(&str, &[u8])],
    ) -> Result<(), StoreError> {
        let call = self.call(operation, keys);
        let mut records = Vec::new();
        for (key, value) in pairs {
            record::encode(USER, key.as_bytes(), value, &mut records)
                .map_err(|too_long| self.file.too_long(&call, &too_long))?;
        }
        self.file.write(&call, |writer| writer.append(&records))
    }

    /// Under one lock, reads the value of `key` and writes the one that `decide` makes of it, if
    /// any.
    fn update<T>(
        &self,
        operation: Operation,
        key: &str,
        decide: impl FnOnce(&Call<'_>, Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), StoreError>,
    ) -> Result<T, StoreError> {
        let keys = [key];
        let call = self.call(operation, &keys);
        self.file.write(&call, |writer| {
            let (value, answer) = decide(&call, writer.entries().user(key))?;
            if let Some(value) = value {
                let mut record = Vec::new();
                record::encode(USER, key.as_bytes(), &value, &mut record)
                    .map_err(|too_long| self.file.too_long(&call, &too_long))?;
                writer.append(&record)?;
            }
            Ok(answer)
        })
    }
}

/// Puts the record into `records` that adds `delta` to a number of the bookkeeping; returns the sum.
fn count(
    file: &StoreFile,
    call: &Call<'_>,
    writer: &Writer<'_>,
    name: &[u8],
    delta: i64,
    records: &mut Vec<u8>,
) -> Result<i64, StoreError> {
    let present = writer.entries().bookkeeping(name);
    let sum = value_rules::sum(present, delta).ok_or_else(|| StoreError::NotANumber {
        context: file.context(call, [String::from_utf8_lossy(name).as_ref()]),
        value: value_rules::shorten(present.unwrap_or_default()),
    })?;
    let mut text = Vec::new();
    write_decimal(sum, &mut text);
    record::encode(b"", name, &text, records)
        .map_err(|too_long: TooLong| file.too_long(call, &too_long))?;
    Ok(sum)
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Err(error) = self.count_as_closed() {
            log::warn!("a file store was not counted as closed: {error}");
        }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("path", &self.path())
            .field("world_size", &self.world_size)
            .field("timeout", &self.timeout())
            .finish_non_exhaustive()
    }
}

takes_any_bytes!(impl[] FileStore);

impl Store for FileStore {
    fn set_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.write_all(Operation::Set, &[key], &[(key, value)])
    }

    fn get_timeout(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = Call::begin(Operation::Get, &keys, timeout);
        self.read_when_there(&call, |entries| {
            entries.user(key).unwrap_or_default().to_vec()
        })
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::Get, &keys);
        self.file
            .read(&call, |entries| entries.user(key).map(<[u8]>::to_vec))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.update(Operation::Add, key, |call, present| {
            let sum = value_rules::sum(present, delta).ok_or_else(|| StoreError::NotANumber {
                context: self.file.context(call, [key]),
                value: value_rules::shorten(present.unwrap_or_default()),
            })?;
            let mut text = Vec::new();
            write_decimal(sum, &mut text);
            Ok((Some(text), sum))
        })
    }

    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        self.update(Operation::CompareSet, key, |_, present| {
            Ok(if value_rules::is_expected(present, expected) {
                let swap = CompareSet::new(desired.to_vec(), true);
                (Some(desired.to_vec()), swap)
            } else {
                let answer = value_rules::refusal(present, expected).to_vec();
                (None, CompareSet::new(answer, false))
            })
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let call = self.call(Operation::Check, keys);
        self.file.read(&call, |entries| {
            keys.iter().all(|key| entries.user(key).is_some())
        })
    }

    fn wait_timeout(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let call = Call::begin(Operation::Wait, keys, timeout);
        self.read_when_there(&call, |_| ())
    }

    fn wait_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = Call::begin(Operation::WaitChange, &keys, timeout);
        self.read_when(&call, |entries| match entries.user(key) {
            Some(value) if known.differs_from(value) => Ok(value.to_vec()),
            Some(_) | None => Err(vec![key]),
        })
    }

    /// True: a change is noticed up to 10 ms after it was written.
    fn wakes_on_change(&self) -> bool {
        true
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let keys = [key];
        let call = self.call(Operation::DeleteKey, &keys);
        let mut record = Vec::new();
        record::encode(DELETED_USER, key.as_bytes(), b"", &mut record)
            .map_err(|too_long| self.file.too_long(&call, &too_long))?;
        let deleted = self.file.write_if_present(&call, |writer| {
            let is_there = writer.entries().user(key).is_some();
            if is_there {
                writer.append(&record)?;
            }
            Ok(is_there)
        })?;
        Ok(deleted.unwrap_or(false))
    }

    /// Counts `refcount/` and, once a store has been closed, `cleanup/` as well, as in PyTorch.
    fn num_keys(&self) -> Result<u64, StoreError> {
        self.read(Operation::NumKeys, |entries| entries.len() as u64)
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.update(Operation::Append, key, |_, present| {
            let joined = [present.unwrap_or_default(), value].concat();
            Ok((Some(joined), ()))
        })
    }

    /// The values were all present at one moment.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        let call = self.call(Operation::MultiGet, keys);
        self.read_when_there(&call, |entries| {
            let value = |key: &&str| entries.user(key).unwrap_or_default().to_vec();
            keys.iter().map(value).collect()
        })
    }

    /// The pairs become visible together.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.write_all(Operation::MultiSet, &keys, pairs)
    }

    /// The users' keys, without the bookkeeping.
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.read(Operation::ListKeys, |entries| {
            let keys = entries.user_keys();
            keys.map(|key| String::from_utf8_lossy(key).into_owned())
                .collect()
        })
    }

    fn barrier_timeout(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        generic_barrier(self, key, world_size, timeout)
    }

    fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Opens the file a second time: the clone counts as one more open store.
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.file
            .check_not_closed(&self.call(Operation::Open, &[]))?;
        let options = FileStoreOptions {
            world_size: self.world_size,
            timeout: self.timeout(),
        };
        Ok(Arc::new(Self::open_with(self.path(), &options)?))
    }

    fn close(&self) {
        self.file.close();
    }

    /// True, as these operations are atomic here; PyTorch's says false.
    fn has_extended_api(&self) -> bool {
        true
    }

    fn label(&self) -> String {
        self.file.label()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// A store can be dropped while the lock is held: it gives up, and says so in the log only.
    #[test]
    fn dropping_waits_for_the_lock_but_not_forever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let mut store = FileStore::open(&path, Some(1)).unwrap();
        assert_eq!(store.close_timeout, CLOSE_TIMEOUT);
        // An operation waits for 1 s at least.
        store.close_timeout = Duration::from_millis(1100);
        let before = fs::read(&path).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let started = Instant::now();
        drop(store);
        assert!(started.elapsed() >= Duration::from_millis(1100));
        assert_eq!(fs::read(&path).unwrap(), before, "nothing was counted");
    }
}
