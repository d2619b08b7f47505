//! Opens, wraps and closes stores.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{
    FileStore, HashStore, PrefixStore, Store, StoreHandle as _, TcpStore, key_from_bytes,
};

use crate::border::{self, Buffer, Bytes, CText, Counted, KeyPointer};
use crate::cancel::{self, Wait};
use crate::failure::Failure;
use crate::interface::{Argument, frees, operations};
use crate::options::{Options, explicit_timeout, to_ms};
use crate::status::Status;

/// A store of the process that opened it. Any number of threads may use one at a time; a call that waits delays no
/// other.
#[derive(Debug)]
pub struct StoreHandle(OpenStore);

#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The store itself or the wrapped store, if that is a TCP store.
    pub(crate) tcp: Option<Arc<TcpStore>>,
    /// The longest key, which is checked before the key is read.
    pub(crate) key_bytes_max: usize,
}

impl OpenStore {
    /// The key of a call, which is not read if it is too long.
    pub(crate) fn key<'k>(&self, key: &'k Counted<KeyPointer>) -> Result<Cow<'k, str>, Failure> {
        self.check_key(key.len())?;
        Ok(key_from_bytes(key.read()?))
    }

    /// Checks and converts the keys of an array.
    pub(crate) fn keys<'k>(&self, keys: &'k [Bytes]) -> Result<Vec<Cow<'k, str>>, Failure> {
        let key = |key: &'k Bytes| {
            self.check_key(key.len)?;
            Ok(key_from_bytes(key.read("a key")?))
        };
        keys.iter().map(key).collect()
    }

    /// The store for a call that waits, and its time limit.
    pub(crate) fn waiting(
        &self,
        (timeout_ms, cancel): Wait<'_>,
    ) -> Result<(Arc<dyn Store>, Option<Duration>), Failure> {
        let timeout = explicit_timeout(timeout_ms)?.unwrap_or_else(|| self.store.timeout());
        let cancel = cancel::of_call(cancel)?;
        let store = match cancel.is_never() {
            true => Arc::clone(&self.store),
            false => self.store.with_cancel(&cancel),
        };
        Ok((store, timeout))
    }

    fn check_key(&self, len: usize) -> Result<(), Failure> {
        let max = self.key_bytes_max;
        if len <= max {
            return Ok(());
        }
        let label = self.store.label();
        let text = format!("{label}: a key has {len} bytes: at most {max}");
        Err(Failure::new(Status::C10D_ERROR_LIMIT, text))
    }
}

impl StoreHandle {
    fn with(open: OpenStore) -> Box<Self> {
        Box::new(Self(open))
    }

    /// A store that is not known as a TCP store.
    pub(crate) fn new(store: Arc<dyn Store>, key_bytes_max: usize) -> Box<Self> {
        Self::with(OpenStore {
            store,
            tcp: None,
            key_bytes_max,
        })
    }
}

impl<'a> Argument for Option<&'a StoreHandle> {
    type Checked = &'a OpenStore;

    fn check(self, name: &'static str) -> Result<&'a OpenStore, Failure> {
        let open = &border::not_null(self, name)?.0;
        open.store.check_process()?;
        Ok(open)
    }
}

/// Keys as the methods of stores take them.
pub(crate) fn as_strs<'k>(keys: &'k [Cow<'k, str>]) -> Vec<&'k str> {
    keys.iter().map(|key| &**key).collect()
}

fn open_tcp(
    host: CText,
    port: u16,
    options: &Options,
    is_master: bool,
) -> Result<Box<StoreHandle>, Failure> {
    let tcp = TcpStore::open(host.required("host")?, port, options.tcp(is_master)?)?;
    // The handle that cancels the opening does not cancel later calls.
    let tcp = Arc::new(tcp.with_cancel(&Cancel::NEVER));
    Ok(StoreHandle::with(OpenStore {
        store: tcp.clone(),
        tcp: Some(tcp),
        key_bytes_max: options.key_bytes_max(),
    }))
}

fn tcp(store: &OpenStore) -> Result<&TcpStore, Failure> {
    store.tcp.as_deref().ok_or_else(|| {
        let label = store.store.label();
        let text = format!("{label}: not a TCP store, or a clone of one");
        Failure::new(Status::C10D_ERROR_UNSUPPORTED, text)
    })
}

operations! {
    /// Connects to the TCPStore server at `host`, a name or an address: of this library, of `c10d`, or of PyTorch. Tries
    /// again until the timeout of the options. `options` may be null.
    fn c10d_store_connect(host: CText, port: u16, options: Option<&Options>) -> store: Option<Box<StoreHandle>> =
        open_tcp(host, port, &options, false)?;

    /// Starts a TCPStore server in this process, and connects to it. For port 0 the system chooses one:
    /// `c10d_store_port`. The server runs until this handle and all prefix stores over it are freed. With a world size in
    /// the options, waits until as many workers have joined. `options` may be null.
    fn c10d_store_open_master(host: CText, port: u16, options: Option<&Options>) -> store: Option<Box<StoreHandle>> =
        open_tcp(host, port, &options, true)?;

    /// Opens or creates a store in a file that processes share, in the format of PyTorch's FileStore. It has no queues.
    /// `options` may be null.
    fn c10d_store_open_file(path: CText, options: Option<&Options>) -> store: Option<Box<StoreHandle>> = {
        let file = FileStore::open_with(path.required("path")?, &options.file()?)?;
        StoreHandle::new(file.with_cancel(&Cancel::NEVER), options.key_bytes_max())
    };

    /// A new, empty store within this process, for tests and for jobs of one process. `options` may be null.
    fn c10d_store_open_hash(options: Option<&Options>) -> store: Option<Box<StoreHandle>> = {
        let hash = HashStore::new();
        if let Some(timeout) = options.timeout {
            hash.set_timeout(timeout);
        }
        StoreHandle::new(Arc::new(hash), options.key_bytes_max())
    };

    /// A namespace within another store: the key `k` becomes `prefix/k` there. Shares the other store's connection, default
    /// timeout and end, and keeps it open: both handles may be freed in any order. At most 100 are around each other.
    fn c10d_store_open_prefix(
        underlying: Option<&StoreHandle>, prefix: KeyPointer[prefix_len],
    ) -> store: Option<Box<StoreHandle>> = {
        let prefixed = PrefixStore::nest(underlying.key(&prefix)?, Arc::clone(&underlying.store))?;
        StoreHandle::with(OpenStore {
            store: Arc::new(prefixed),
            tcp: underlying.tcp.clone(),
            key_bytes_max: underlying.key_bytes_max,
        })
    };

    /// Opens a second, independent handle to the same store, with a separate connection, which is closed separately. It
    /// does not keep a master's server running.
    fn c10d_store_clone(original: Option<&StoreHandle>) -> store: Option<Box<StoreHandle>> =
        StoreHandle::new(original.store.clone_store()?, original.key_bytes_max);

    /// Closes a store: its calls in other threads, and all later calls, fail at once with `C10D_ERROR_CLOSED`. A prefix
    /// store closes the store that it wraps. Does not block, and does not free memory.
    fn c10d_store_close(store: Option<&StoreHandle>) = store.store.close();
}

frees! {
    /// Frees a store. Calls on the store must have returned, and further calls are not allowed: to stop calls in other
    /// threads, close the store, then join the threads. Blocks while a master's server stops, which takes microseconds,
    /// and for a file store until it has the file's lock, at most 5 s. Null is ignored. In a forked child, only the
    /// memory of the handle is freed.
    fn c10d_store_free(store: StoreHandle);
}

operations! {
    /// Gets the port of a TCP store's server. For a master that was opened with port 0, this is the port that the
    /// system chose. `C10D_ERROR_UNSUPPORTED` for other stores, including clones.
    fn c10d_store_port(store: Option<&StoreHandle>) -> port: u16 = tcp(store)?.port();

    /// Measures a round trip to the server of a TCP store. Waits at most the store's timeout.
    /// `C10D_ERROR_UNSUPPORTED` for other stores, clones included.
    fn c10d_store_ping(store: Option<&StoreHandle>) -> nanoseconds: u64 =
        u64::try_from(tcp(store)?.ping()?.as_nanos()).unwrap_or(u64::MAX);

    /// The store's name in error messages, such as `TCP store 10.0.0.1:29500`. Free it with `c10d_buffer_free`.
    fn c10d_store_label(store: Option<&StoreHandle>) -> label: Buffer = store.store.label().into_bytes();

    /// The default timeout, in milliseconds or `C10D_FOREVER`.
    fn c10d_store_timeout(store: Option<&StoreHandle>) -> timeout_ms: i64 = to_ms(store.store.timeout());

    /// Sets the default timeout of later calls: milliseconds, `C10D_CHECK_ONCE` or `C10D_FOREVER`. For a prefix store,
    /// sets the timeout of the store that it wraps.
    fn c10d_store_set_timeout(store: Option<&StoreHandle>, timeout_ms: i64) = {
        let Some(timeout) = explicit_timeout(timeout_ms)? else {
            let text = "the default timeout cannot be C10D_DEFAULT";
            return Err(Failure::invalid_argument(text));
        };
        store.store.set_timeout(timeout);
    };
}
