//! A store that outlives its connections.
//!
//! A request without an answer closes the connection, and the next one makes another. It does not know what the store
//! holds: a server that was restarted may be empty, which the backend recognises.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Cancel, Deadline, HostPort, sleep};
use c10d_store::unstable::forward_store;
use c10d_store::{
    CompareSet, ConnectOptions, Credentials, ErrorContext, Known, Operation, Store, StoreAddress,
    StoreError, StoreExt, StoreHandle, TcpStore, TcpStoreOptions,
};

use self::Repeat::{Harmless, Never};
use crate::values::error::is_outage;

/// After a wait of this length without a result, or this time after the last answer, a request checks whether the store is still
/// there.
const CHECKED_AFTER: Duration = Duration::from_millis(500);

/// Makes attempts, with pauses between them, while they fail with an error that `may_repeat` accepts. Returns the last error
/// if `cancel` ends a pause.
pub(crate) fn repeated<T, E: fmt::Display>(
    cancel: &Cancel,
    attempt: impl Fn() -> Result<T, E>,
    may_repeat: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let pauses = BackoffOptions::default()
        .with_first(Duration::from_millis(50))
        .with_max(Duration::from_secs(1));
    let mut backoff = Backoff::new(pauses, fastrand::u64(..));
    loop {
        let error = match attempt() {
            Err(error) if may_repeat(&error) => error,
            result => return result,
        };
        log::debug!("sending a request again: {error}");
        if sleep(backoff.next_delay(), [cancel]).is_err() {
            return Err(error);
        }
    }
}

/// Makes another connection within this time, or until the call is cancelled.
pub(crate) type Connect =
    dyn Fn(Duration, &Cancel) -> Result<Arc<dyn Store>, StoreError> + Send + Sync;

/// Makes connections to the TCP store at `target`, or to the server that `hosted` has, without a lookup of its name.
pub(crate) fn connect_to(
    target: StoreAddress,
    hosted: Option<&TcpStore>,
    credentials: Option<Credentials>,
) -> impl Fn(Duration, &Cancel) -> Result<TcpStore, StoreError> + Send + Sync + 'static {
    let server = hosted.and_then(TcpStore::server);
    let target = server.map_or(target, |server| reachable_here(server.local_addr()).into());
    move |timeout: Duration, cancel: &Cancel| {
        let mut options = TcpStoreOptions::default()
            // The caller pauses between two attempts.
            .with_connect_options(ConnectOptions::default().with_rounds_max(1))
            .with_timeout(timeout)
            .with_cancel(cancel.clone());
        if let Some(credentials) = &credentials {
            options = options.with_credentials(credentials.clone());
        }
        let store = TcpStore::open_at(&target, options)?;
        Ok(store.with_cancel(&Cancel::NEVER))
    }
}

/// The address at which this process reaches its own listener.
fn reachable_here(listener: SocketAddr) -> HostPort {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    HostPort::new(ip.to_string(), listener.port())
}

/// A store whose calls continue over another connection if theirs is lost.
///
/// A call that waits asks each [`attempt`](Self::new) whether the server is still there. A request that may have taken
/// effect is sent again only if that does no harm; otherwise its call fails, and says that the outcome is unknown.
pub(crate) struct ReconnectingStore {
    link: Arc<Link>,
    cancel: Cancel,
    /// How long a call repeats its request after the first failure of any call; zero if the caller repeats requests.
    patience: Duration,
}

struct Link {
    connect: Arc<Connect>,
    /// The longest time for an answer, and for a connection.
    attempt: Duration,
    /// The default timeout of a call.
    timeout: Mutex<Option<Duration>>,
    label: String,
    current: Mutex<Current>,
}

struct Current {
    /// `None` between the loss of a connection and the next one.
    store: Option<Arc<dyn Store>>,
    /// The time since which no request was answered.
    lost_since: Option<Instant>,
    answered_at: Instant,
    has_prompt_watch: bool,
    is_closed: bool,
}

/// Whether a request may be sent again although it may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Harmless,
    Never,
}

impl ReconnectingStore {
    /// Goes on from `store` with connections of [`connect_to`].
    pub(crate) fn of_connections(
        store: Arc<dyn Store>,
        connect: Arc<
            impl Fn(Duration, &Cancel) -> Result<TcpStore, StoreError> + Send + Sync + 'static,
        >,
        patience: Duration,
    ) -> Self {
        // Three in the time after which other nodes drop this one: one finds the connection lost, one is for another.
        let attempt = patience / 3;
        let attempt = store.timeout().map_or(attempt, |it| it.min(attempt));
        let connect: Arc<Connect> =
            Arc::new(move |timeout, cancel| Ok(Arc::new(connect(timeout, cancel)?)));
        Self::new(store, connect, attempt, patience)
    }

    /// Goes on from `store`. `attempt` is the time for one answer or one connection, `patience` how long calls repeat
    /// their requests while no request of any call is answered.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        connect: Arc<Connect>,
        attempt: Duration,
        patience: Duration,
    ) -> Self {
        let timeout = store.timeout();
        store.set_timeout(Some(attempt));
        Self {
            link: Arc::new(Link {
                connect,
                attempt,
                timeout: Mutex::new(timeout),
                label: store.label(),
                current: Mutex::new(Current {
                    has_prompt_watch: store.has_prompt_watch(),
                    store: Some(store),
                    lost_since: None,
                    answered_at: Instant::now(),
                    is_closed: false,
                }),
            }),
            cancel: Cancel::NEVER,
            patience,
        }
    }

    /// Returns a handle of the same connections for a caller that repeats failed requests itself: each call makes one
    /// attempt.
    pub(crate) fn without_repeats(&self) -> Self {
        Self {
            link: Arc::clone(&self.link),
            cancel: self.cancel.clone(),
            patience: Duration::ZERO,
        }
    }

    /// Makes a request that the server answers at once.
    fn ask<T>(
        &self,
        repeat: Repeat,
        request: impl Fn(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let is_idle = self.link.idle_for() >= CHECKED_AFTER;
        if repeat == Never && is_idle && !self.patience.is_zero() {
            // A lost connection then costs this request nothing.
            self.check(&[])?;
        }
        let may_repeat = |error: &StoreError| {
            is_outage(error)
                && (repeat == Harmless || !error.has_unknown_outcome())
                && self.link.lost_for() < self.patience
        };
        repeated(&self.cancel, || self.attempt(&request), may_repeat)
    }

    fn attempt<T>(
        &self,
        request: impl FnOnce(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let store = self.link.store(&self.cancel)?;
        let result = request(&*store.with_cancel(&self.cancel));
        match &result {
            Err(error) if is_outage(error) => self.link.on_lost(&store),
            _ => self.link.on_answer(),
        }
        result
    }

    /// Makes a request that the server answers later, in pieces of an attempt's length.
    fn wait<T>(
        &self,
        repeat: Repeat,
        timeout: Option<Duration>,
        request: impl Fn(&dyn Store, Option<Duration>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, timeout);
        loop {
            let result = self.ask(repeat, |store| {
                let left = deadline.remaining(Instant::now());
                let piece = left.map_or(self.link.attempt, |left| left.min(self.link.attempt));
                let result = request(store, Some(piece));
                if matches!(&result, Err(error) if error.is_timeout()) && piece >= CHECKED_AFTER {
                    // A server that is no longer there does not answer either.
                    store.check(&[])?;
                }
                result
            });
            match result {
                Err(StoreError::Timeout { .. }) if !deadline.has_passed(Instant::now()) => {}
                Err(StoreError::Timeout { context, .. }) => {
                    return Err(StoreError::Timeout {
                        context: ErrorContext {
                            elapsed: started.elapsed(),
                            ..context
                        },
                        timeout: timeout.unwrap_or(Duration::MAX),
                    });
                }
                result => return result,
            }
        }
    }

    /// Makes a request without an answer, and one with an answer: afterwards the first has taken effect.
    fn tell(
        &self,
        repeat: Repeat,
        request: impl Fn(&dyn Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.ask(repeat, |store| {
            request(store)?;
            store.check(&[]).map(drop)
        })
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_timeout(&self) -> MutexGuard<'_, Option<Duration>> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store with a connection, which this makes if there is none.
    fn store(&self, cancel: &Cancel) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(store) = self.current_store()? {
            return Ok(store);
        }
        let connected = (self.connect)(self.attempt, cancel);
        let store = match connected {
            Ok(store) => store,
            Err(error) => {
                self.lock().lost_since.get_or_insert_with(Instant::now);
                return Err(error);
            }
        };
        store.set_timeout(Some(self.attempt));
        let has_prompt_watch = store.has_prompt_watch();
        let lost_for = self.lost_for();
        let mut current = self.lock();
        if current.is_closed {
            drop(current);
            return self.current_store().map(|_| store);
        }
        // Another call may have been faster.
        let store = Arc::clone(current.store.get_or_insert(store));
        current.has_prompt_watch = has_prompt_watch;
        drop(current);
        log::debug!(
            "connected to the {} again, {:.1} s after a request had no answer",
            self.label,
            lost_for.as_secs_f64()
        );
        Ok(store)
    }

    fn current_store(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        let current = self.lock();
        if current.is_closed {
            let (operation, label) = (Operation::Open, self.label.as_str());
            return Err(StoreError::Closed {
                context: ErrorContext::new(operation, [], label, Duration::ZERO),
            });
        }
        Ok(current.store.clone())
    }

    fn on_lost(&self, lost: &Arc<dyn Store>) {
        let mut current = self.lock();
        current.lost_since.get_or_insert_with(Instant::now);
        let unused = current.store.take_if(|store| Arc::ptr_eq(store, lost));
        drop(current);
        // Closes the connection, without the lock.
        drop(unused);
    }

    fn on_answer(&self) {
        let mut current = self.lock();
        current.lost_since = None;
        current.answered_at = Instant::now();
    }

    fn idle_for(&self) -> Duration {
        self.lock().answered_at.elapsed()
    }

    fn lost_for(&self) -> Duration {
        let lost_since = self.lock().lost_since;
        lost_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Store for ReconnectingStore {
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        self.tell(Harmless, |store| store.multi_set(pairs))
    }

    fn append_bytes(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.tell(Never, |store| store.append_bytes(key, value))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        let repeat = if delta == 0 { Harmless } else { Never };
        self.ask(repeat, |store| store.add(key, delta))
    }

    forward_store! {
        /// A second request finds the value of the first, if that has taken effect, and returns it.
        ask[Harmless]() compare_set_bytes(key: &str, expected: &[u8], desired: &[u8]) -> CompareSet;
        /// Also returns false if an earlier request, whose answer was lost, has removed the key.
        ask[Harmless]() delete_key(key: &str) -> bool;
        wait[Harmless](timeout) get_all(keys: &[&str], timeout: Option<Duration>) -> Vec<Vec<u8>>;
        ask[Harmless]() try_get(key: &str) -> Option<Vec<u8>>;
        wait[Harmless](timeout) wait_all(keys: &[&str], timeout: Option<Duration>) -> ();
        ask[Harmless]() check(keys: &[&str]) -> bool;
        ask[Harmless]() list_keys() -> Vec<String>;
        ask[Harmless]() num_keys() -> u64;
        /// In one piece: an arrival counts once.
        ask[Never]() meet(key: &str, world_size: usize, timeout: Option<Duration>) -> ();
        ask[Never]() queue_push_bytes(key: &str, value: &[u8]) -> ();
        ask[Never]() try_queue_pop(key: &str) -> Option<Vec<u8>>;
        wait[Never](timeout) queue_take_all(key: &str, max: usize, timeout: Option<Duration>) -> Vec<Vec<u8>>;
        ask[Harmless]() queue_len(key: &str) -> u64;
        wait[Harmless](timeout) wait_changed(key: &str, known: Known<'_>, timeout: Option<Duration>) -> Vec<u8>;
        /// The key expires when the connection closes. A second request finds the key of the first one, if its answer was
        /// lost.
        ask[Harmless]() set_ephemeral_bytes(
            key: &str,
            value: &[u8],
            will: Option<(&str, &[u8])>
        ) -> Option<Vec<u8>>;
        ask[Harmless]() delete_prefix(prefix: &str, delay: Duration) -> u64;
        ask[Harmless]() end_waits(prefix: &str) -> u64;
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.wait(Never, self.timeout(), |store, timeout| {
            store.queue_pop_timeout(key, timeout)
        })
    }

    fn has_prompt_watch(&self) -> bool {
        self.link.lock().has_prompt_watch
    }
}

impl StoreHandle for ReconnectingStore {
    fn label(&self) -> String {
        self.link.label.clone()
    }

    fn timeout(&self) -> Option<Duration> {
        *self.link.lock_timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.link.lock_timeout() = timeout;
    }

    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        let link = &self.link;
        // To the same address, so that no name is looked up while there is a connection.
        let beside = link.current_store()?;
        let beside = beside.map(|store| store.with_cancel(&self.cancel).clone_store());
        let store = match beside {
            Some(Ok(store)) => store.with_cancel(&Cancel::NEVER),
            _ => (link.connect)(link.attempt, &self.cancel)?,
        };
        store.set_timeout(self.timeout());
        let connect = Arc::clone(&link.connect);
        let clone = Self::new(store, connect, link.attempt, self.patience);
        Ok(Arc::new(clone))
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        Arc::new(Self {
            link: Arc::clone(&self.link),
            cancel: cancel.clone(),
            patience: self.patience,
        })
    }

    fn close(&self) {
        let mut current = self.link.lock();
        current.is_closed = true;
        let store = current.store.take();
        drop(current);
        if let Some(store) = store {
            store.close();
        }
    }
}

impl fmt::Debug for ReconnectingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectingStore")
            .field("label", &self.link.label)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::{HashStore, StoreExt};

    use super::*;

    /// A connection to a name costs a lookup, which a machine without a resolver cannot make.
    #[test]
    fn a_clone_of_a_connected_store_is_made_beside_its_connection() {
        let connect = |_, _: &Cancel| -> Result<Arc<dyn Store>, StoreError> {
            unreachable!("there is a connection")
        };
        let second = Duration::from_secs(1);
        let known: Arc<dyn Store> = Arc::new(HashStore::new());
        let store = ReconnectingStore::new(known, Arc::new(connect), second, second);
        let clone = store.clone_store().unwrap();
        store.set("k", "v").unwrap();
        assert_eq!(clone.get("k").unwrap(), b"v");
    }
}
