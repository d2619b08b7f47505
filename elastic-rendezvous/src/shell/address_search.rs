//! Finds out at which of several addresses this machine reaches a store, before anything depends on it.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, ConnectOptions, DialStage, HostPort, printable, sleep};
use c10d_store::{Credentials, Store, StoreError, StoreHandle, TcpStore, TcpStoreOptions};

use crate::engine::reach::{Reach, ReachStep};
use crate::shell::board::OWNER_KEY;
use crate::values::diagnosis::Unreachable;

const THREAD: &str = "reach";

/// The least time for a request that the store answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);

/// The time before a search is logged.
const SILENT: Duration = Duration::from_secs(3);

/// The most characters of a store's error in a message.
const CAUSE_CHARS_MAX: usize = 200;

/// The most characters of the name of another job.
const RUN_ID_CHARS_MAX: usize = 100;

/// The limits and the credentials of [`find_reachable`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ReachOptions {
    limit: Duration,
    owner: Option<String>,
    credentials: Option<Credentials>,
    log_name: Option<String>,
    cancel: Cancel,
}

/// The address that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// The index of the address.
    pub index: usize,
    /// The time from the start of its attempt to the answer of the store.
    pub took: Duration,
}

impl ReachOptions {
    /// Tries for at most `limit`, without credentials.
    pub const fn new(limit: Duration) -> Self {
        Self {
            limit,
            owner: None,
            credentials: None,
            log_name: None,
            cancel: Cancel::NEVER,
        }
    }

    /// Refuses a store that the launcher of another run than this one has marked as its own. Default: every store.
    pub fn with_owner(mut self, run_id: impl Into<String>) -> Self {
        self.owner = Some(run_id.into());
        self
    }

    /// Presents these credentials to the store, and accepts only a store that has them as well.
    pub fn with_credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// Logs a search that takes longer than 3 s, with this name of the store. Default: no log line.
    pub fn with_log_name(mut self, name: impl Into<String>) -> Self {
        self.log_name = Some(name.into());
        self
    }

    /// Ends the search early.
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }
}

/// Returns the first of these addresses at which a store answers a request.
///
/// Tries the first address alone for up to 250 ms, and then all addresses side by side, again and again. A
/// refused connection is tried again as well, because the store may start later. Of addresses that work at the same
/// time, it returns the one with the lowest index. One attempt takes at most 2 s. Each attempt runs on a thread
/// `reach`, which has ended when this function returns; a name lookup that hangs is left behind on a thread
/// `c10d-resolve`.
///
/// Blocks for at most the limit of the options.
///
/// # Errors
/// [`Unreachable`] if no address works within the limit, or the search is cancelled.
pub fn find_reachable(
    addresses: &[HostPort],
    options: &ReachOptions,
) -> Result<Reached, Unreachable> {
    let began_at = Instant::now();
    let mut reach = Reach::new(addresses.len(), options.limit, fastrand::u64(..));
    let ended = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ended);
    let mut attempts = Attempts {
        addresses,
        options,
        news: Cancel::with_check(move || !lock(&seen).is_empty()),
        ended,
        cancel: Cancel::new(),
        threads: Vec::new(),
    };
    let mut causes: Vec<Option<String>> = vec![None; addresses.len()];
    let mut took = vec![Duration::ZERO; addresses.len()];
    let mut log_name = options.log_name.as_deref();
    let unreachable = |causes: &[Option<String>], is_cancelled| {
        let causes = causes.iter().cloned();
        Unreachable {
            tried: addresses.iter().cloned().zip(causes).collect(),
            waited: began_at.elapsed(),
            is_cancelled,
        }
    };
    let is_cancelled = loop {
        match reach.next(began_at.elapsed()) {
            ReachStep::Use { candidate: index } => {
                let took = took[index];
                return Ok(Reached { index, took });
            }
            ReachStep::GiveUp => break false,
            ReachStep::Try { candidate, timeout } => attempts.begin(candidate, timeout),
            ReachStep::Wait { until } => {
                let pause = until.saturating_sub(began_at.elapsed());
                // Ends early if an attempt has ended.
                let _ = sleep(pause, [&options.cancel, &attempts.news]);
            }
        }
        for end in attempts.take_ended() {
            let is_reached = end.result.is_ok();
            match end.result {
                Ok(time) => took[end.index] = time,
                Err(cause) => causes[end.index] = Some(cause),
            }
            reach.ended(end.index, is_reached, began_at.elapsed());
        }
        if options.cancel.is_cancelled() {
            break true;
        }
        if began_at.elapsed() >= SILENT
            && let Some(name) = log_name.take()
        {
            let left = options.limit.saturating_sub(began_at.elapsed());
            log::warn!(
                "cannot reach {name} yet, retrying for {:.0} s: tried {}",
                left.as_secs_f64(),
                unreachable(&causes, false).in_brief(),
            );
            log::debug!("tried {}", unreachable(&causes, false));
        }
    };
    Err(unreachable(&causes, is_cancelled))
}

/// The attempts that run. Drop ends and joins them.
struct Attempts<'a> {
    addresses: &'a [HostPort],
    options: &'a ReachOptions,
    /// Ends a wait when an attempt has ended.
    news: Cancel,
    ended: Arc<Mutex<Vec<Ended>>>,
    cancel: Cancel,
    threads: Vec<JoinHandle<()>>,
}

/// The end of an attempt: with the time that it took, or the cause of its failure.
struct Ended {
    index: usize,
    result: Result<Duration, String>,
}

impl Attempts<'_> {
    fn begin(&mut self, index: usize, timeout: Duration) {
        let address = self.addresses[index].clone();
        let ReachOptions {
            owner, credentials, ..
        } = self.options.clone();
        let (cancel, news) = (self.cancel.clone(), self.news.clone());
        let ended = Arc::clone(&self.ended);
        let attempt = move || {
            let result = try_once(&address, owner.as_deref(), credentials, timeout, cancel);
            lock(&ended).push(Ended { index, result });
            news.wake();
        };
        self.threads.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        match thread.spawn(attempt) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => lock(&self.ended).push(Ended {
                index,
                result: Err(format!("cannot start a thread: {error}")),
            }),
        }
    }

    fn take_ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *lock(&self.ended))
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        self.cancel.cancel();
        for thread in self.threads.drain(..) {
            // The thread does not report its panic elsewhere.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The code that holds the lock does not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to a store and sends one request.
fn try_once(
    address: &HostPort,
    owner: Option<&str>,
    credentials: Option<Credentials>,
    timeout: Duration,
    cancel: Cancel,
) -> Result<Duration, String> {
    let began_at = Instant::now();
    let connect = timeout.saturating_sub(REQUEST_TIMEOUT).max(timeout / 2);
    let mut options = TcpStoreOptions::default()
        .with_timeout(connect)
        .with_cancel(cancel)
        .with_connect_options(ConnectOptions::default().with_rounds_max(1));
    if let Some(credentials) = credentials {
        options = options.with_credentials(credentials);
    }
    let answered = TcpStore::open(address.host(), address.port(), options).and_then(|store| {
        store.set_timeout(Some(timeout.saturating_sub(began_at.elapsed())));
        store.try_get(OWNER_KEY)
    });
    match answered {
        Ok(Some(other)) if owner.is_some_and(|owner| other != owner.as_bytes()) => Err(format!(
            "the store of another job, \"{}\"",
            printable(&other, RUN_ID_CHARS_MAX)
        )),
        Ok(_) => Ok(began_at.elapsed()),
        Err(error) => Err(cause(&error)),
    }
}

/// Returns why a store did not answer, in a few words if they suffice.
fn cause(error: &StoreError) -> String {
    let failure = match error {
        StoreError::Connect { source, .. } => source.failures().last(),
        StoreError::NoReply { .. } | StoreError::Timeout { .. } => return "no answer".to_owned(),
        _ => None,
    };
    let Some(failure) = failure else {
        return printable(&error.to_string(), CAUSE_CHARS_MAX).to_string();
    };
    match (failure.stage(), failure.error().kind()) {
        (DialStage::Lookup, ErrorKind::TimedOut) => "the name lookup had no answer".to_owned(),
        (DialStage::Lookup, _) => "the name has no address".to_owned(),
        (_, ErrorKind::ConnectionRefused) => "refused".to_owned(),
        (DialStage::Connect(_), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            "no answer".to_owned()
        }
        (_, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => "no route".to_owned(),
        (stage, _) => {
            let text = printable(&failure.error().to_string(), CAUSE_CHARS_MAX).to_string();
            match stage {
                DialStage::Handshake(_) => format!("not usable as this job's store: {text}"),
                _ => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use c10d_store::TcpStoreServer;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn local(port: u16) -> HostPort {
        HostPort::new("127.0.0.1", port)
    }

    fn server() -> (TcpStoreServer, HostPort) {
        let options = c10d_store::ServerOptions::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = TcpStoreServer::serve(vec![listener], options).unwrap();
        (server, local(port))
    }

    /// Returns a port that does not answer, for as long as the listener is kept and its connections are not accepted.
    fn refused() -> HostPort {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        local(listener.local_addr().unwrap().port())
    }

    #[test]
    fn the_first_address_that_works_is_chosen() {
        let (_server, works) = server();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = local(silent.local_addr().unwrap().port());
        let options = ReachOptions::new(LONG);
        let unknown = HostPort::new("name.invalid", 1);
        for (addresses, index) in [
            (vec![works.clone()], 0),
            (vec![works.clone(), works.clone()], 0),
            (vec![refused(), works.clone()], 1),
            (vec![silent, unknown, works.clone()], 2),
        ] {
            let reached = find_reachable(&addresses, &options).unwrap();
            assert_eq!(reached.index, index, "{addresses:?}");
        }
    }

    #[test]
    fn the_error_has_each_address_and_its_cause() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = local(silent.local_addr().unwrap().port());
        let (refused, unknown) = (refused(), HostPort::new("name.invalid", 1));
        let addresses = [refused.clone(), silent.clone(), unknown];
        let options = ReachOptions::new(Duration::from_millis(600));
        let error = find_reachable(&addresses, &options).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{refused} (refused), {silent} (")),
            "{text}"
        );
        assert!(text.contains("name.invalid:1 ("), "{text}");
        assert!(!error.is_cancelled);
    }

    #[test]
    fn a_cancelled_search_ends_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = local(silent.local_addr().unwrap().port());
        let cancel = Cancel::new();
        let options = ReachOptions::new(LONG).with_cancel(cancel.clone());
        let search = std::thread::spawn(move || find_reachable(&[silent], &options));
        cancel.cancel();
        let error = search.join().unwrap().unwrap_err();
        assert!(error.is_cancelled && error.waited < LONG / 2, "{error:?}");
    }
}
