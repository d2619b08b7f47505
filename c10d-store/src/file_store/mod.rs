//! A store in a shared file, compatible with PyTorch's `FileStore`: see docs/spec/file-store.md.

mod locked_file;
mod record;
mod replica;
mod store_file;

use std::fmt;
use std::path::{self, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::Cancel;

use self::record::{CLEANUP, DELETED_USER, Entries, REFCOUNT, TooLong, USER};
use self::store_file::{Call, StoreFile, Writer};
use crate::barrier::meet_by_keys;
use crate::compare_set::CompareSet;
use crate::decimal::write_decimal;
use crate::default_timeout::DefaultTimeout;
use crate::error::{Operation, StoreError};
use crate::key::{key_from_bytes, key_to_bytes};
use crate::known::Known;
use crate::store::{DEFAULT_TIMEOUT, Store, StoreHandle};
use crate::value_rules;

/// The polling interval of a waiting call: short at first, since the write often follows soon; later
/// PyTorch's 10 ms, which cost next to nothing.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(10);

/// The longest time that dropping a store waits for the file's lock.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A store in a file that all workers can open: on one machine, or on a shared file system with
/// `flock`.
///
/// The file is a log: every write appends a record, and the file does not shrink while in use. PyTorch's
/// `FileStore` and this one can share a file. There are no queues.
///
/// Every operation is atomic, including [`multi_get`](crate::StoreExt::multi_get),
/// [`multi_set`](Store::multi_set) and [`append`](crate::StoreExt::append). Waiting calls poll: they notice a
/// write within 10 ms. Every operation waits for the file's lock for at most its timeout, or 1 s if that
/// is longer.
///
/// A missing file is an empty store, which the first write creates. A file left by an earlier run is
/// read as if it belonged to this one.
///
/// **Dropping** a store counts it as closed in the file, and removes the file if no store is open and at least
/// `world_size` have been closed. Without a world size the file is never removed. Dropping waits for the file's lock
/// for at most 5 s and logs errors. [Closing](StoreHandle::close) a store fails its calls, but the file counts it as
/// closed only when it is dropped.
///
/// A store belongs to the process that opened it: in a forked child every operation fails with
/// [`StoreError::OtherProcess`], and dropping its copy changes nothing.
///
/// ```
/// use c10d_store::{FileStore, StoreExt};
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
    handle: Arc<Handle>,
    cancel: Cancel,
}

/// Counted as closed when it is dropped.
struct Handle {
    file: StoreFile,
    world_size: Option<usize>,
    timeout: DefaultTimeout,
    /// [`CLOSE_TIMEOUT`], except in tests.
    close_timeout: Duration,
}

/// Options of [`FileStore::open_with`].
///
/// ```
/// use std::time::Duration;
///
/// use c10d_store::{FileStore, FileStoreOptions, StoreExt};
///
/// let folder = tempfile::tempdir()?;
/// let options = FileStoreOptions::default().with_timeout(Duration::from_secs(10));
/// let store = FileStore::open_with(folder.path().join("store"), &options)?;
/// store.set("key", "value")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct FileStoreOptions {
    world_size: Option<usize>,
    timeout: Option<Duration>,
    cancel: Cancel,
}

impl FileStoreOptions {
    /// Sets the number of closed stores after which the last store removes the file. Default: none, and the file is
    /// not removed, like in PyTorch: without the number of workers, more of them may still open it.
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Sets the [default timeout](StoreHandle::timeout) of the store, and the limit for the file's lock while
    /// opening; `None` waits indefinitely. Default 300 s ([`DEFAULT_TIMEOUT`]).
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the [`Cancel`] that interrupts the opening and the later calls of the store. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }
}

impl Default for FileStoreOptions {
    fn default() -> Self {
        Self {
            world_size: None,
            timeout: Some(DEFAULT_TIMEOUT),
            cancel: Cancel::NEVER,
        }
    }
}

impl FileStore {
    /// Opens or creates the store file at `path`. The last store removes it if at least `world_size` have
    /// been closed; `None` keeps it (PyTorch's -1). Waits for the file's lock for at most 300 s.
    ///
    /// # Errors
    /// [`StoreError::File`] if the file cannot be created or opened, [`StoreError::CorruptFile`] if it contains other
    /// data than a store (it stays unchanged), [`StoreError::Timeout`] if other workers held its lock for 300 s.
    pub fn open(path: impl AsRef<Path>, world_size: Option<usize>) -> Result<Self, StoreError> {
        let options = FileStoreOptions {
            world_size,
            ..FileStoreOptions::default()
        };
        Self::open_with(path, &options)
    }

    /// Opens or creates the store file at `path`, with options. Waits for the file's lock for at most their timeout.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), with the timeout of `options`.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &FileStoreOptions,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        // Each operation opens the file again, and the process may change its directory in the meantime. If the path
        // is empty or the directory was removed, opening fails.
        let file = StoreFile::new(path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        let call = Call::begin(Operation::Open, &[], options.timeout, &options.cancel);
        file.write(&call, |writer| {
            let mut records = Vec::new();
            count(&file, &call, writer, REFCOUNT, 1, &mut records)?;
            writer.append(&records)
        })?;
        Ok(Self {
            handle: Arc::new(Handle {
                file,
                world_size: options.world_size,
                timeout: DefaultTimeout::new(options.timeout),
                close_timeout: CLOSE_TIMEOUT,
            }),
            cancel: options.cancel.clone(),
        })
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> &Path {
        self.handle.file.path()
    }

    fn call<'a>(&'a self, operation: Operation, keys: &'a [&'a str]) -> Call<'a> {
        self.call_for(operation, keys, self.timeout())
    }

    fn call_for<'a>(
        &'a self,
        operation: Operation,
        keys: &'a [&'a str],
        timeout: Option<Duration>,
    ) -> Call<'a> {
        Call::begin(operation, keys, timeout, &self.cancel)
    }

    /// Runs `look` on the current contents of the file.
    fn read<T>(
        &self,
        operation: Operation,
        look: impl FnOnce(&Entries) -> T,
    ) -> Result<T, StoreError> {
        self.handle.file.read(&self.call(operation, &[]), look)
    }

    /// Waits until all keys of the call exist, and runs `take` on the contents.
    fn read_when_present<T>(
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

    /// Polls the file until `look` returns a result instead of the missing keys.
    fn read_when<'k, T>(
        &self,
        call: &Call<'k>,
        look: impl Fn(&Entries) -> Result<T, Vec<&'k str>>,
    ) -> Result<T, StoreError> {
        let deadline = call.deadline();
        let mut pause = POLL_PAUSE_MIN;
        loop {
            let is_last_poll = deadline.has_passed(Instant::now());
            let missing = match self.handle.file.read(call, &look)? {
                Ok(taken) => return Ok(taken),
                Err(missing) => missing,
            };
            if is_last_poll {
                let context = self.handle.file.context(call, missing);
                return Err(StoreError::timeout(context, call.timeout()));
            }
            let time_left = deadline.remaining(Instant::now());
            let sleep = time_left.map_or(pause, |time_left| pause.min(time_left));
            self.handle.file.pause(call, sleep)?;
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
            record::encode(USER, &key_to_bytes(key), value, &mut records)
                .map_err(|too_long| self.handle.file.too_long(&call, &too_long))?;
        }
        self.handle
            .file
            .write(&call, |writer| writer.append(&records))
    }

    /// Under one lock, reads the value of `key` and writes the value that `decide` returns, if any.
    fn update<T>(
        &self,
        operation: Operation,
        key: &str,
        decide: impl FnOnce(&Call<'_>, Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), StoreError>,
    ) -> Result<T, StoreError> {
        let keys = [key];
        let call = self.call(operation, &keys);
        self.handle.file.write(&call, |writer| {
            let (value, answer) = decide(&call, writer.entries().user(key))?;
            if let Some(value) = value {
                let mut record = Vec::new();
                record::encode(USER, &key_to_bytes(key), &value, &mut record)
                    .map_err(|too_long| self.handle.file.too_long(&call, &too_long))?;
                writer.append(&record)?;
            }
            Ok(answer)
        })
    }
}

/// Appends to `records` the record that adds `delta` to an internal counter; returns the sum.
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

impl Handle {
    /// docs/spec/file-store.md, Reference counting.
    fn count_as_closed(&self) -> Result<(), StoreError> {
        let cancel = Cancel::NEVER;
        let call = Call::begin(Operation::Close, &[], Some(self.close_timeout), &cancel);
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
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child's copy was never counted as open.
        if self.file.is_of_other_process() {
            return;
        }
        if let Err(error) = self.count_as_closed() {
            log::warn!("cannot count a file store as closed: {error}");
        }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("path", &self.path())
            .field("world_size", &self.handle.world_size)
            .field("timeout", &self.timeout())
            .finish_non_exhaustive()
    }
}

impl Store for FileStore {
    /// The pairs become visible together.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.write_all(Operation::set_of(pairs.len()), &keys, pairs)
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.update(Operation::Append, key, |_, present| {
            let joined = [present.unwrap_or_default(), value].concat();
            Ok((Some(joined), ()))
        })
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.update(Operation::Add, key, |call, present| {
            let sum = value_rules::sum(present, delta).ok_or_else(|| StoreError::NotANumber {
                context: self.handle.file.context(call, [key]),
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

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let keys = [key];
        let call = self.call(Operation::DeleteKey, &keys);
        let mut record = Vec::new();
        record::encode(DELETED_USER, &key_to_bytes(key), b"", &mut record)
            .map_err(|too_long| self.handle.file.too_long(&call, &too_long))?;
        let deleted = self.handle.file.write_if_present(&call, |writer| {
            let exists = writer.entries().user(key).is_some();
            if exists {
                writer.append(&record)?;
            }
            Ok(exists)
        })?;
        Ok(deleted.unwrap_or(false))
    }

    /// The values existed at the same moment.
    fn get_all(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let call = self.call_for(Operation::get_of(keys.len()), keys, timeout);
        self.read_when_present(&call, |entries| {
            let value = |key: &&str| entries.user(key).unwrap_or_default().to_vec();
            keys.iter().map(value).collect()
        })
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let keys = [key];
        let call = self.call(Operation::Get, &keys);
        self.handle
            .file
            .read(&call, |entries| entries.user(key).map(<[u8]>::to_vec))
    }

    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let call = self.call_for(Operation::Wait, keys, timeout);
        self.read_when_present(&call, |_| ())
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let call = self.call(Operation::Check, keys);
        self.handle.file.read(&call, |entries| {
            keys.iter().all(|key| entries.user(key).is_some())
        })
    }

    /// The users' keys, without internal ones.
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.read(Operation::ListKeys, |entries| {
            let keys = entries.user_keys();
            keys.map(|key| key_from_bytes(key).into_owned()).collect()
        })
    }

    /// Includes `refcount/` and, once a store has been closed, `cleanup/`, like in PyTorch.
    fn num_keys(&self) -> Result<u64, StoreError> {
        self.read(Operation::NumKeys, |entries| entries.len() as u64)
    }

    fn meet(
        &self,
        key: &str,
        world_size: usize,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        meet_by_keys(self, key, world_size, timeout)
    }

    fn wait_changed(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let keys = [key];
        let call = self.call_for(Operation::WaitChange, &keys, timeout);
        self.read_when(&call, |entries| match entries.user(key) {
            Some(value) if known.is_outdated_by(value) => Ok(value.to_vec()),
            Some(_) | None => Err(vec![key]),
        })
    }

    /// True: a change is noticed within 10 ms.
    fn has_prompt_watch(&self) -> bool {
        true
    }
}

impl StoreHandle for FileStore {
    fn label(&self) -> String {
        self.handle.file.label()
    }

    fn check_process(&self) -> Result<(), StoreError> {
        let call = self.call(Operation::Open, &[]);
        self.handle.file.check_process(&call)
    }

    fn timeout(&self) -> Option<Duration> {
        self.handle.timeout.get()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.handle.timeout.set(timeout);
    }

    /// Opens the file again: the clone counts as another open store.
    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.handle
            .file
            .check_not_closed(&self.call(Operation::Open, &[]))?;
        let options = FileStoreOptions {
            world_size: self.handle.world_size,
            timeout: self.timeout(),
            cancel: self.cancel.clone(),
        };
        Ok(Arc::new(Self::open_with(self.path(), &options)?))
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        Arc::new(Self {
            handle: Arc::clone(&self.handle),
            cancel: cancel.clone(),
        })
    }

    fn close(&self) {
        self.handle.file.close();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// If another worker holds the lock, dropping the store times out and logs a warning.
    #[test]
    fn dropping_waits_for_the_lock_with_a_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let mut store = FileStore::open(&path, Some(1)).unwrap();
        assert_eq!(store.handle.close_timeout, CLOSE_TIMEOUT);
        // An operation waits for at least 1 s.
        let handle = Arc::get_mut(&mut store.handle).unwrap();
        handle.close_timeout = Duration::from_millis(1100);
        let before = fs::read(&path).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let started = Instant::now();
        drop(store);
        assert!(started.elapsed() >= Duration::from_millis(1100));
        assert_eq!(fs::read(&path).unwrap(), before, "the counts are unchanged");
    }
}
