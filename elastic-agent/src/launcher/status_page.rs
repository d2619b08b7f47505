//! The status pages of the stores that this process hosts: rounds, failures, restarts and lost nodes, for the status page and the metrics.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use c10d_inspect::http::{EventKind, RoundSize, StatusOptions, StatusServer, StatusSource};
use c10d_inspect::{Report, explain};
use c10d_store::journal::{JournalError, JournalSource};
use c10d_store::{Counters, Snapshot, SnapshotError, StoreObserver, TcpStoreServer};
use elastic_rendezvous::{Listener, RendezvousEvent, ServerHook};
use signal_hook::consts::SIGTERM;

use super::announce::Flusher;
use super::feature::{Feature, JobEnd};
use crate::agent::{AgentEvent, AgentHandle, AgentListener, StartedWorkers};
use crate::threads::lock;

/// Notes on the pages what happens.
#[derive(Debug)]
pub(super) struct StatusPage(pub(super) Arc<Hosted>);

impl Feature for StatusPage {
    /// Adds lost nodes.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let hosted = Arc::clone(&self.0);
        Some(Arc::new(move |event| {
            if let RendezvousEvent::NodeLost(lost) = event {
                let text = format!("lost {lost}");
                hosted.note(EventKind::NodeLost, &text);
            }
        }))
    }

    /// Adds rounds, failures and restarts.
    fn agent_listener(&self) -> Option<AgentListener> {
        let hosted = Arc::clone(&self.0);
        Some(Arc::new(move |event| {
            let fails = |text: &str| hosted.note(EventKind::Failure, text);
            let restarts = |text: &str| hosted.note(EventKind::Restart, text);
            match event {
                AgentEvent::WorkersStarted(started) => note_round(&hosted, started),
                AgentEvent::WorkerFailed(exit) | AgentEvent::WorkerLost(exit) => {
                    let (rank, exit) = (exit.rank, exit.exit);
                    fails(&format!("worker with rank {rank} failed: {exit}"));
                }
                AgentEvent::WorkersStuck(stuck) => fails(&stuck.to_string()),
                AgentEvent::WorkerReplaced(_, worker) => {
                    let (rank, pid) = (worker.rank, worker.pid);
                    restarts(&format!("rank {rank} starts again alone (pid {pid})"));
                }
                AgentEvent::Restarting { why } => restarts(&format!("the workers restart: {why}")),
                _ => {}
            }
        }))
    }

    fn job_ended(&mut self, _: &JobEnd) {
        self.0.end();
    }
}

/// A round is complete, and its workers have started.
fn note_round(hosted: &Hosted, started: &StartedWorkers) {
    let (nodes, workers) = (started.nodes, started.world_size);
    let s = |count| if count == 1 { "" } else { "s" };
    let text = format!(
        "round {}: {nodes} node{}, {workers} worker{}",
        started.round,
        s(nodes),
        s(workers)
    );
    hosted.note_round(RoundSize { nodes, workers });
    hosted.note(EventKind::Round, &text);
}

/// How long an answer waits for a look at this node's own workers.
const OWN_WORKERS_TIMEOUT: Duration = Duration::from_millis(200);

/// The servers of one run.
#[derive(Debug)]
pub(in crate::launcher) struct Hosted {
    /// The options of their status pages; `None` for no pages.
    status: Option<StatusOptions>,
    /// The password of the pages of this job's servers.
    token: Option<String>,
    /// The most memory for the data of each server.
    memory_max: Option<usize>,
    servers: Mutex<Vec<HostedServer>>,
    /// Announces this node's workers, once it runs.
    announcements: Arc<OnceLock<Flusher>>,
    journal: Journal,
}

/// The action after a failure of a server's journal.
#[derive(Debug)]
struct Journal {
    /// The reason of the failure.
    failure: OnceLock<String>,
    /// The agent that it stops, once there is one.
    agent: OnceLock<AgentHandle>,
    stop: Once,
}

/// A server that this process hosts.
#[derive(Debug, Clone)]
pub(in crate::launcher) struct HostedServer {
    addresses: Vec<SocketAddr>,
    observer: StoreObserver,
    status: Option<Arc<StatusServer>>,
}

/// A store whose snapshots have an observation of this node's workers from the time of the snapshot, not an earlier
/// observation.
#[derive(Debug)]
struct FreshSource {
    observer: StoreObserver,
    announcements: Arc<OnceLock<Flusher>>,
}

impl StatusSource for FreshSource {
    fn snapshot(&self, timeout: Duration) -> Result<Snapshot, SnapshotError> {
        if let Some(announcements) = self.announcements.get() {
            announcements.flush(OWN_WORKERS_TIMEOUT);
        }
        self.observer.snapshot(timeout)
    }

    fn counters(&self, timeout: Duration) -> Result<Counters, SnapshotError> {
        self.observer.counters(timeout)
    }
}

impl Hosted {
    /// `status` are the options of the servers' status pages; `None` for no pages. `token` is their password. `memory_max`
    /// limits the data of each server.
    pub(in crate::launcher) fn new(
        status: Option<StatusOptions>,
        token: Option<String>,
        memory_max: Option<usize>,
    ) -> Arc<Self> {
        let status = status.map(|status| match &token {
            Some(token) => status.with_token(token),
            None => status,
        });
        Arc::new(Self {
            status,
            token,
            memory_max,
            servers: Mutex::default(),
            announcements: Arc::default(),
            journal: Journal {
                failure: OnceLock::new(),
                agent: OnceLock::new(),
                stop: Once::new(),
            },
        })
    }

    /// Looks at this node's workers before each answer from now on.
    pub(in crate::launcher) fn look_at_workers(&self, announcements: Flusher) {
        // There is one announcer.
        let _ = self.announcements.set(announcements);
    }

    /// The hook that observes each server from its start, and limits the memory of its data.
    pub(in crate::launcher) fn hook(self: &Arc<Self>) -> ServerHook {
        let hosted = Arc::downgrade(self);
        ServerHook::new(move |server| {
            if let Some(hosted) = hosted.upgrade() {
                hosted.observe(server);
            }
        })
    }

    /// A journal whose failure stops the agent.
    pub(in crate::launcher) fn watched(self: &Arc<Self>, journal: &JournalSource) -> JournalSource {
        self.watched_if(journal, |_| true)
    }

    /// A candidate's journal. Its loss of data stops this agent, because no process can serve the store without the lost data.
    /// Other failures only end this candidate.
    pub(in crate::launcher) fn watched_for_damage(
        self: &Arc<Self>,
        journal: &JournalSource,
    ) -> JournalSource {
        self.watched_if(journal, |error| {
            matches!(error, JournalError::Damaged { .. })
        })
    }

    fn watched_if(
        self: &Arc<Self>,
        journal: &JournalSource,
        is_watched: fn(&JournalError) -> bool,
    ) -> JournalSource {
        let hosted = Arc::downgrade(self);
        let on_failure = move |error: &JournalError| {
            if let Some(hosted) = hosted.upgrade().filter(|_| is_watched(error)) {
                let text = format!("the store that this launcher serves has ended: {error}");
                // It fails once.
                let _ = hosted.journal.failure.set(text);
                hosted.stop_if_failed();
            }
        };
        JournalSource {
            open: Arc::clone(&journal.open),
            on_failure: Some(Arc::new(on_failure)),
        }
    }

    /// Makes a failure of a server's journal stop this agent, even a failure that has happened already.
    pub(in crate::launcher) fn end_with_journal(&self, agent: AgentHandle) {
        // There is one agent.
        let _ = self.journal.agent.set(agent);
        self.stop_if_failed();
    }

    /// Returns why a server that this process hosts can no longer persist writes; `None` if all servers can.
    pub(in crate::launcher) fn journal_failure(&self) -> Option<String> {
        self.journal.failure.get().cloned()
    }

    fn stop_if_failed(&self) {
        if let (Some(_), Some(agent)) = (self.journal.failure.get(), self.journal.agent.get()) {
            // A second signal would kill the workers at once.
            self.journal.stop.call_once(|| agent.stop(SIGTERM));
        }
    }

    /// The password of the pages of this job's servers, including the servers on other nodes.
    pub(in crate::launcher) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The server that listens on `port`, if this process hosts one.
    pub(in crate::launcher) fn on_port(&self, port: u16) -> Option<HostedServer> {
        let servers = lock(&self.servers);
        let is_on_port = |it: &&HostedServer| it.addresses.iter().any(|at| at.port() == port);
        servers.iter().find(is_on_port).cloned()
    }

    /// The port of each server, in the order of their starts.
    pub(in crate::launcher) fn ports(&self) -> Vec<u16> {
        let servers = lock(&self.servers);
        let first = |it: &HostedServer| Some(it.addresses.first()?.port());
        servers.iter().filter_map(first).collect()
    }

    /// Adds what happened to each status page, which counts it.
    fn note(&self, kind: EventKind, text: &str) {
        self.pages()
            .for_each(|page| page.timeline().push(kind, text));
    }

    /// Sets the round that each status page counts.
    fn note_round(&self, round: RoundSize) {
        self.pages()
            .for_each(|page| page.timeline().set_round(round));
    }

    fn pages(&self) -> impl Iterator<Item = Arc<StatusServer>> {
        let servers = lock(&self.servers).clone();
        servers.into_iter().filter_map(|server| server.status)
    }

    /// Ends the status pages. Blocks for some seconds at most.
    pub(in crate::launcher) fn end(&self) {
        let servers = std::mem::take(&mut *lock(&self.servers));
        for page in servers.iter().filter_map(|server| server.status.as_ref()) {
            page.shutdown();
        }
    }

    fn observe(&self, server: &TcpStoreServer) {
        let addresses = server.local_addrs().to_vec();
        if lock(&self.servers)
            .iter()
            .any(|known| known.addresses == addresses)
        {
            return;
        }
        if let Some(bytes) = self.memory_max {
            server.set_memory_max(bytes);
        }
        let observer = server.observer();
        let options = self.status.clone();
        let source = FreshSource {
            observer: observer.clone(),
            announcements: Arc::clone(&self.announcements),
        };
        let status = options.and_then(|options| start_page(server, source, options));
        lock(&self.servers).push(HostedServer {
            addresses,
            observer,
            status,
        });
    }
}

impl HostedServer {
    /// Whether it has a status page.
    pub(in crate::launcher) const fn has_status(&self) -> bool {
        self.status.is_some()
    }

    /// The store's report about the job, at most about a second old. Blocks for at most `timeout`; `None`
    /// if the server has ended or does not answer in time.
    pub(in crate::launcher) fn report(&self, timeout: Duration) -> Option<Report> {
        if let Some(status) = &self.status {
            return Some(Report::clone(&*status.report(timeout).ok()?));
        }
        let snapshot = self.snapshot(timeout)?;
        Some(explain(&snapshot, None))
    }

    /// The state of the store at this moment. Blocks for at most `timeout`; `None` as above.
    pub(in crate::launcher) fn snapshot(&self, timeout: Duration) -> Option<Snapshot> {
        self.observer.snapshot(timeout).ok()
    }
}

/// A job runs without a page if the system has no thread left for it.
fn start_page(
    server: &TcpStoreServer,
    source: FreshSource,
    options: StatusOptions,
) -> Option<Arc<StatusServer>> {
    let page = StatusServer::start(source, options)
        .inspect_err(|error| log::warn!("cannot serve a status page: {error}"))
        .ok()?;
    // Its metrics are 0 until there is a round.
    page.timeline().set_round(RoundSize::default());
    server.set_http_handler(Arc::clone(&page) as _);
    Some(page)
}

#[cfg(test)]
mod tests {
    use c10d_store::ServerOptions;

    use super::*;

    #[test]
    fn a_hosted_server_gets_the_memory_limit_if_there_is_one() {
        for memory_max in [None, Some(3 << 20)] {
            let options = ServerOptions::default();
            let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
            Hosted::new(None, None, memory_max).observe(&server);
            assert_eq!(server.memory_max(), memory_max);
        }
    }
}
