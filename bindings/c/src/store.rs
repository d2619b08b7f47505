//! Opens, wraps and closes stores.

#![expect(
    unsafe_code,
    reason = "C finds exported functions by their plain names"
)]

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::sync::Arc;

use c10d_socket::{Cancel, ProcessBound};
use c10d_store::{FileStore, HashStore, PrefixStore, Store, StoreHandle as _, TcpStore};

use crate::border::{self, Buffer, CText, KeyPointer, Place};
use crate::failure::Failure;
use crate::guard::{self, call};
use crate::options::Options;
use crate::status::Status;
use crate::timeout;

/// A store of the process that opened it. Any number of threads may use one at a time; a call that waits delays no
/// other.
#[derive(Debug)]
pub struct StoreHandle(ProcessBound<OpenStore>);

#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The store itself or the one that it wraps, if that is a TCP store.
    pub(crate) tcp: Option<Arc<TcpStore>>,
    /// The longest key, which is checked before the key is read.
    pub(crate) key_bytes_max: usize,
}

impl OpenStore {
    /// The key of a call, which is not read if it is too long.
    pub(crate) fn key<'k>(
        &self,
        key: &'k KeyPointer,
        len: usize,
        name: &str,
    ) -> Result<Cow<'k, str>, Failure> {
        self.check_key(len)?;
        key.key(len, name)
    }

    pub(crate) fn check_key(&self, len: usize) -> Result<(), Failure> {
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
        Box::new(Self(ProcessBound::new("store", open)))
    }

    /// A store that is not known as a TCP store.
    pub(crate) fn new(store: Arc<dyn Store>, key_bytes_max: usize) -> Box<Self> {
        Self::with(OpenStore {
            store,
            tcp: None,
            key_bytes_max,
        })
    }

    /// The store of a call's argument; refused are null, and a store of the process that forked this one.
    pub(crate) fn used<'a>(store: Option<&'a Self>, name: &str) -> Result<&'a OpenStore, Failure> {
        Ok(border::not_null(store, name)?.0.get()?)
    }
}

fn open_tcp(
    host: CText,
    port: u16,
    options: Option<&Options>,
    store: Place<'_, StoreHandle>,
    is_master: bool,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let host = host.required("host")?;
        let options = options.cloned().unwrap_or_default();
        let tcp = TcpStore::open(host, port, options.tcp(is_master)?)?;
        // What ended the opening ends no later call.
        let tcp = Arc::new(tcp.with_cancel(&Cancel::NEVER));
        *place = Some(StoreHandle::with(OpenStore {
            store: tcp.clone(),
            tcp: Some(tcp),
            key_bytes_max: options.key_bytes_max(),
        }));
        Ok(())
    })
}

/// Connects to the TCPStore server at `host`, a name or an address: of this library, of `c10d`, or of PyTorch. Tries
/// again until the timeout of the options. `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_connect(
    host: CText,
    port: u16,
    options: Option<&Options>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    open_tcp(host, port, options, store, false)
}

/// Starts a TCPStore server in this process, and connects to it. For port 0 the system chooses one:
/// `c10d_store_port`. The server runs until this handle and all prefix stores over it are freed. With a world size in
/// the options, waits until as many workers have joined. `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_open_master(
    host: CText,
    port: u16,
    options: Option<&Options>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    open_tcp(host, port, options, store, true)
}

/// Opens or creates a store in a file that processes share, in the format of PyTorch's FileStore. It has no queues.
/// `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_open_file(
    path: CText,
    options: Option<&Options>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let options = options.cloned().unwrap_or_default();
        let path = path.required("path")?;
        let file = FileStore::open_with(path, &options.file()?)?;
        let key_bytes_max = options.key_bytes_max();
        let file = file.with_cancel(&Cancel::NEVER);
        *place = Some(StoreHandle::new(file, key_bytes_max));
        Ok(())
    })
}

/// A new, empty store within this process, for tests and for jobs of one process. `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_open_hash(
    options: Option<&Options>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let options = options.cloned().unwrap_or_default();
        let hash = HashStore::new();
        if let Some(timeout) = options.timeout() {
            hash.set_timeout(timeout);
        }
        let key_bytes_max = options.key_bytes_max();
        *place = Some(StoreHandle::new(Arc::new(hash), key_bytes_max));
        Ok(())
    })
}

/// A namespace within another store: the key `k` becomes `prefix/k` there. Shares the other store's connection, default
/// timeout and end, and keeps it open: both handles may be freed in any order. At most 100 are around each other.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_open_prefix(
    underlying: Option<&StoreHandle>,
    prefix: KeyPointer,
    prefix_len: usize,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let underlying = StoreHandle::used(underlying, "underlying")?;
        let prefix = underlying.key(&prefix, prefix_len, "prefix")?;
        let prefixed = PrefixStore::nest(prefix, Arc::clone(&underlying.store))?;
        *place = Some(StoreHandle::with(OpenStore {
            store: Arc::new(prefixed),
            tcp: underlying.tcp.clone(),
            key_bytes_max: underlying.key_bytes_max,
        }));
        Ok(())
    })
}

/// A second, independent handle to the same store, with a connection and an end of its own. It does not keep a master's
/// server running.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_clone(
    original: Option<&StoreHandle>,
    store: Option<&mut MaybeUninit<Option<Box<StoreHandle>>>>,
) -> Status {
    call(|| {
        let place = border::result(store, None, "store")?;
        let original = StoreHandle::used(original, "original")?;
        *place = Some(StoreHandle::with(OpenStore {
            store: original.store.clone_store()?,
            tcp: None,
            key_bytes_max: original.key_bytes_max,
        }));
        Ok(())
    })
}

/// Closes a store: its calls in other threads fail at once with `C10D_ERROR_CLOSED`, and so do all later ones. A
/// prefix store closes the store that it wraps. Does not block, and frees nothing.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_close(store: Option<&StoreHandle>) -> Status {
    call(|| {
        StoreHandle::used(store, "store")?.store.close();
        Ok(())
    })
}

/// Frees a store. No call on it may be in progress, and none may follow: to end those of other threads, close it, then
/// join the threads. Blocks while a master's server stops, which takes microseconds, and for a file store until it has
/// the file's lock, at most 5 s. Null is left alone. In a forked child only the memory of the handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_free(store: Option<Box<StoreHandle>>) {
    guard::value((), || drop(store));
}

/// The port of a TCP store's server: of a master that was opened with port 0, the one that the system chose.
/// `C10D_ERROR_UNSUPPORTED` for other stores, clones included.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_port(
    store: Option<&StoreHandle>,
    port: Option<&mut MaybeUninit<u16>>,
) -> Status {
    call(|| {
        let port = border::result(port, 0, "port")?;
        *port = tcp(StoreHandle::used(store, "store")?)?.port();
        Ok(())
    })
}

/// Measures a round trip to the server of a TCP store. Waits at most the store's timeout.
/// `C10D_ERROR_UNSUPPORTED` for other stores, clones included.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_ping(
    store: Option<&StoreHandle>,
    nanoseconds: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let nanoseconds = border::result(nanoseconds, 0, "nanoseconds")?;
        let trip = tcp(StoreHandle::used(store, "store")?)?.ping()?;
        *nanoseconds = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    })
}

fn tcp(store: &OpenStore) -> Result<&TcpStore, Failure> {
    store.tcp.as_deref().ok_or_else(|| {
        let label = store.store.label();
        let text = format!("{label}: not a TCP store, or a clone of one");
        Failure::new(Status::C10D_ERROR_UNSUPPORTED, text)
    })
}

/// The store's name in error messages, such as `TCP store 10.0.0.1:29500`. Free it with `c10d_buffer_free`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_label(
    store: Option<&StoreHandle>,
    label: Option<&mut MaybeUninit<Buffer>>,
) -> Status {
    call(|| {
        let label = border::result(label, Buffer::NULL, "label")?;
        let store = StoreHandle::used(store, "store")?;
        *label = Buffer::new(store.store.label().into_bytes());
        Ok(())
    })
}

/// The default timeout, in milliseconds or `C10D_FOREVER`.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_timeout(
    store: Option<&StoreHandle>,
    timeout_ms: Option<&mut MaybeUninit<i64>>,
) -> Status {
    call(|| {
        let timeout_ms = border::result(timeout_ms, 0, "timeout_ms")?;
        *timeout_ms = timeout::to_ms(StoreHandle::used(store, "store")?.store.timeout());
        Ok(())
    })
}

/// Sets the default timeout of later calls: milliseconds, `C10D_CHECK_ONCE` or `C10D_FOREVER`. Of a prefix store, that
/// of the store that it wraps.
#[unsafe(no_mangle)]
pub extern "C" fn c10d_store_set_timeout(store: Option<&StoreHandle>, timeout_ms: i64) -> Status {
    call(|| {
        let store = StoreHandle::used(store, "store")?;
        let Some(timeout) = timeout::explicit(timeout_ms)? else {
            let text = "the default timeout cannot be C10D_DEFAULT";
            return Err(Failure::invalid_argument(text));
        };
        store.store.set_timeout(timeout);
        Ok(())
    })
}
