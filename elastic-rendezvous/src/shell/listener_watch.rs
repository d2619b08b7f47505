//! When a node that waits for its store reports that something else listens at the endpoint.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Credentials, Deadline, HostPort, ListeningProcess, resolve_local};
use c10d_store::{
    ListenerKind, Store as _, StoreError, StoreHandle as _, TcpStore, TcpStoreOptions,
};

use crate::shell::board::{OWNER_KEY, run_of};
use crate::values::diagnosis::FoundListener;
use crate::values::error::RendezvousError;

/// The time before the first questions of a node, and between two rounds of questions. A silent listener is noticed 3 s later.
const ASK_AFTER: Duration = Duration::from_secs(2);
const ASK_INTERVAL: Duration = Duration::from_secs(60);

/// How long the questions may take in total.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one request to a store may take, and the most bytes of its keys.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
const KEY_BYTES_MAX: usize = 1 << 20;

/// The most keys of a store whose keys are read.
const KEYS_READ_MAX: u64 = 16_384;

/// How many runs are listed.
const RUNS_MAX: usize = 3;

/// Asks what listens at `target`, where the node of run `run_id` expects a store. Writes nothing into a store. Blocks for at
/// most 8 s, or until `cancel` ends it.
#[must_use]
pub fn find_listener(
    target: &HostPort,
    credentials: Option<&Credentials>,
    run_id: &str,
    cancel: &Cancel,
) -> FoundListener {
    let deadline = Deadline::after(Instant::now(), ASK_TIMEOUT);
    let kind = ListenerKind::ask(target, deadline, cancel);
    let mut runs = Vec::new();
    if kind.is_store_or_tls() {
        runs = runs_at(target, credentials, run_id, cancel);
    }
    // One of another machine may have the same port.
    let own = resolve_local(target, deadline, cancel).unwrap_or_default();
    let mut own = own
        .iter()
        .map(|own| SocketAddr::new(own.ip(), target.port()));
    FoundListener {
        kind,
        runs,
        process: own.find_map(ListeningProcess::at),
        run_id: run_id.to_owned(),
    }
}

/// Whether the store has more keys than the nodes of a job that has not met yet. Its keys are not read, because that would
/// delay the other clients of the store.
pub(crate) fn has_many_keys(store: &TcpStore) -> Result<bool, StoreError> {
    Ok(store.num_keys()? > KEYS_READ_MAX)
}

/// The runs that have met at a store, found in its keys. The run of this node is first.
pub(crate) fn runs_at(
    target: &HostPort,
    credentials: Option<&Credentials>,
    own_run: &str,
    cancel: &Cancel,
) -> Vec<String> {
    let mut options = TcpStoreOptions::default()
        .with_timeout(READ_TIMEOUT)
        .with_reply_bytes_max(KEY_BYTES_MAX)
        .with_cancel(cancel.clone());
    if let Some(credentials) = credentials {
        options = options.with_credentials(credentials.clone());
    }
    let found = TcpStore::open(target.host(), target.port(), options).and_then(|store| {
        store.set_timeout(Some(READ_TIMEOUT));
        let owner = store.try_get(OWNER_KEY)?;
        let keys = match has_many_keys(&store)? {
            true => Vec::new(),
            false => store.list_keys()?,
        };
        Ok((keys, owner))
    });
    let (keys, owner) = found.unwrap_or_else(|error| {
        log::debug!("cannot list the keys of the store at {target}: {error}");
        Default::default()
    });
    let owner = owner.map(|owner| String::from_utf8_lossy(&owner).into_owned());
    let mut runs: Vec<String> = (keys.iter())
        .filter_map(|key| run_of(key))
        .map(str::to_owned)
        .chain(owner)
        .collect();
    runs.sort_unstable_by_key(|run| (run != own_run, run.clone()));
    runs.dedup();
    runs.truncate(RUNS_MAX);
    runs
}

/// Reports, while a node waits for its store, what else listens there.
#[derive(Debug)]
pub(crate) struct ListenerWatch<'a> {
    target: &'a HostPort,
    credentials: Option<&'a Credentials>,
    run_id: &'a str,
    cancel: &'a Cancel,
    started: Instant,
    ask_after: Duration,
    found: Option<FoundListener>,
}

impl<'a> ListenerWatch<'a> {
    pub(crate) fn new(
        target: &'a HostPort,
        credentials: Option<&'a Credentials>,
        run_id: &'a str,
        cancel: &'a Cancel,
    ) -> Self {
        Self {
            target,
            credentials,
            run_id,
            cancel,
            started: Instant::now(),
            ask_after: ASK_AFTER,
            found: None,
        }
    }

    /// An attempt to use the endpoint has failed, and the next ones follow until the deadline. Asks from time to time who listens
    /// there, which blocks for some seconds, and warns.
    pub(crate) fn on_failure(&mut self, deadline: Deadline) {
        if self.started.elapsed() < self.ask_after {
            return;
        }
        self.ask_after = self.started.elapsed() + ASK_INTERVAL;
        self.found = self.ask();
        if let Some(found) = &self.found {
            log::warn!(
                "{} is not this job's store: {found}; retrying for {:.0} s",
                self.target,
                deadline
                    .remaining(Instant::now())
                    .unwrap_or(Duration::MAX)
                    .as_secs_f64(),
            );
        }
    }

    /// Asks what listens at the endpoint, if anything does.
    pub(crate) fn ask(&self) -> Option<FoundListener> {
        let found = find_listener(self.target, self.credentials, self.run_id, self.cancel);
        found.is_there().then_some(found)
    }

    pub(crate) fn other_listener(&self, found: FoundListener) -> RendezvousError {
        RendezvousError::OtherListener {
            run_id: self.run_id.to_owned(),
            endpoint: self.target.clone(),
            found: Box::new(found),
            waited: self.started.elapsed(),
        }
    }

    /// The error after the last attempt: this one, unless something else listens at the endpoint. The client's own
    /// error already names the secret that a server with TLS asks for.
    pub(crate) fn error(mut self, otherwise: RendezvousError) -> RendezvousError {
        let is_interrupted = self.cancel.is_cancelled();
        if self.found.is_none() && !is_interrupted {
            self.found = self.ask();
        }
        match self.found.take() {
            Some(found) if !is_interrupted && found.kind != ListenerKind::Tls => {
                self.other_listener(found)
            }
            _ => otherwise,
        }
    }
}
