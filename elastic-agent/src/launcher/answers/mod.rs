//! The launcher's port for questions about its workers, which `c10d stacks` and `c10d flight` ask from any host.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fmt, io};

use c10d_inspect::AnnouncedNode;
use c10d_inspect::http::{HttpResponse, RequestServer, Target};
use c10d_inspect::workers::{self, Question, Worker};
use c10d_socket::{Cancel, Deadline, HostPort, own_address_towards, resolve};
use c10d_stacks::StackError;

use super::feature::Feature;
use super::stacks::{NoStacks, StackThread, observed};
use crate::agent::{AgentEvent, AgentListener, StartedWorkers};
use crate::threads::lock;

const THREAD: &str = "answers";

/// Answers a request, by its path and query. May block for as long as the client should wait.
pub(super) type PathHandler = Arc<dyn Fn(&str) -> HttpResponse + Send + Sync>;

/// The port, which is open from the start of the first workers until this is dropped.
#[derive(Debug)]
pub(super) struct Answers {
    shared: Arc<Shared>,
}

/// The state that the announcements, the answering features and the agent's events share.
#[derive(Default)]
struct Shared {
    /// The handlers by path, without the query.
    handlers: Mutex<BTreeMap<&'static str, PathHandler>>,
    server: Mutex<Option<RequestServer>>,
    /// The token that requests must have.
    token: Option<String>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<&str> = lock(&self.handlers).keys().copied().collect();
        f.debug_struct("Shared")
            .field("paths", &paths)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Answers {
    /// Opens no port yet. With a token, only requests that have it are answered.
    pub(super) fn new(token: Option<String>) -> Self {
        let shared = Shared {
            token,
            ..Shared::default()
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(super) fn port(&self) -> AnswersPort {
        AnswersPort(Arc::clone(&self.shared))
    }
}

impl Feature for Answers {
    /// Opens the port with the first workers. It is called before the listeners that announce workers.
    fn agent_listener(&self) -> Option<AgentListener> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move |event| {
            if let AgentEvent::WorkersStarted(started) = event {
                shared.open(started);
            }
        }))
    }

    fn ends_with_workers(&self) -> bool {
        true
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let server = lock(&self.shared.server).take();
        drop(server);
    }
}

/// The address at which the launcher answers, and its handlers.
#[derive(Debug, Clone)]
pub(super) struct AnswersPort(Arc<Shared>);

impl AnswersPort {
    /// Answers requests for this path, for example `/stacks`, with any query.
    pub(super) fn answer(&self, path: &'static str, handler: PathHandler) {
        lock(&self.0.handlers).insert(path, handler);
    }

    /// Returns the address; `None` before the first workers start.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        lock(&self.0.server).as_ref().map(RequestServer::address)
    }
}

impl Shared {
    fn open(self: &Arc<Self>, started: &StartedWorkers) {
        if lock(&self.server).is_some() {
            return;
        }
        match self.start(started) {
            Ok(server) => {
                let address = server.address();
                log::debug!("questions about this node's workers are answered at {address}");
                *lock(&self.server) = Some(server);
            }
            Err(error) => {
                log::warn!("c10d stacks cannot ask this launcher about its workers: {error}");
            }
        }
    }

    fn start(self: &Arc<Self>, started: &StartedWorkers) -> io::Result<RequestServer> {
        let listener = listen(&started.master, started.nodes)?;
        // The handler does not own this table, which owns the server, because the server would then never be dropped.
        let shared = Arc::downgrade(self);
        let handler = move |path: &str| match shared.upgrade() {
            Some(shared) => shared.respond(path),
            None => HttpResponse::new(503, "the job is ending\n"),
        };
        RequestServer::start(listener, THREAD, self.token.clone(), Arc::new(handler))
    }

    fn respond(&self, path: &str) -> HttpResponse {
        let (name, _) = path.split_once('?').unwrap_or((path, ""));
        let handler = lock(&self.handlers).get(name).cloned();
        match handler {
            Some(handler) => handler(path),
            None => HttpResponse::new(404, "this launcher has no answer at this path\n"),
        }
    }
}

/// How long the name of the store's host may take. The workers have started already, and the agent waits.
const NAME_TIMEOUT: Duration = Duration::from_millis(500);

/// Listens on the address that this node uses to reach the workers' store, because it is on the network of the job.
fn listen(store: &HostPort, nodes: usize) -> io::Result<TcpListener> {
    let deadline = Deadline::after(Instant::now(), NAME_TIMEOUT);
    let stores = resolve(store, deadline, &Cancel::NEVER).unwrap_or_default();
    let towards = stores
        .first()
        .and_then(|store| own_address_towards(*store).ok());
    // All nodes have this address.
    let is_here = store.host() == "localhost"
        || store
            .host()
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    let nodes = if is_here { 1 } else { nodes };
    TcpListener::bind(SocketAddr::new(choose(towards, nodes), 0))
}

/// Returns the address to listen on. The node that serves the store may reach it by loopback, where other nodes cannot
/// connect, and then listens on all interfaces.
fn choose(towards_store: Option<IpAddr>, nodes: usize) -> IpAddr {
    match towards_store {
        Some(ip) if nodes == 1 || !ip.is_loopback() => ip,
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        None if nodes == 1 => Ipv4Addr::LOCALHOST.into(),
        Some(IpAddr::V4(_)) | None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// How long the stacks of one worker may take, including earlier requests that must be answered first.
const STACKS_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers `/stacks` and `/flight` at this port. `node` returns the workers as they are announced, because clients find
/// the port in the announcement. `stacks` reads their stacks; `None` if that is turned off.
///
/// An answer takes up to 3 s while stacks are read, and 4 s more if that fails and a debug server does not answer.
pub(in crate::launcher) fn answer_questions(
    port: &AnswersPort,
    node: impl Fn() -> AnnouncedNode + Send + Sync + 'static,
    stacks: Option<Arc<StackThread>>,
) {
    let find = move |question| find(&node(), question, stacks.as_deref());
    let find = Arc::new(find);
    for path in ["/stacks", "/flight"] {
        let find = Arc::clone(&find);
        port.answer(path, Arc::new(move |path| workers::answer(path, &*find)));
    }
}

/// Returns the worker of a question, and for a question about stacks also its stacks.
fn find(node: &AnnouncedNode, question: Question, stacks: Option<&StackThread>) -> Option<Worker> {
    let rank = question.rank();
    let worker = node.workers.iter().find(|it| it.rank == rank)?;
    if worker.end.is_some() {
        // Another process may have its id.
        let ended = Worker::new(rank, Vec::new(), None);
        return Some(ended.with_stacks(Err(StackError::Ended.to_string()), None));
    }
    let targets = worker.debug_socket.clone().map(Target::Unix);
    let pid = observed(worker.pid, &worker.processes);
    let asked = Worker::new(rank, targets.into_iter().collect(), Some(pid));
    Some(match (question, stacks) {
        (Question::Stacks { .. }, Some(thread)) => with_stacks(asked, thread, pid),
        _ => asked,
    })
}

fn with_stacks(worker: Worker, thread: &StackThread, pid: u32) -> Worker {
    // One result for each process.
    match thread.read(&[pid], STACKS_TIMEOUT).pop() {
        Some(Ok(stacks)) => worker.with_stacks(Ok(stacks), None),
        Some(Err(error)) => {
            let reason = error.to_string();
            let command_line = match error {
                NoStacks::NotPython { command_line } => command_line,
                NoStacks::Unread(_) => None,
            };
            worker.with_stacks(Err(reason), command_line)
        }
        None => worker,
    }
}

#[cfg(test)]
mod address_tests {
    use super::*;

    fn chosen(towards: Option<&str>, nodes: usize) -> String {
        choose(towards.map(|ip| ip.parse().unwrap()), nodes).to_string()
    }

    #[test]
    fn all_interfaces_are_used_only_if_other_nodes_could_not_ask_otherwise() {
        assert_eq!(chosen(Some("10.0.0.3"), 4), "10.0.0.3");
        assert_eq!(chosen(Some("10.0.0.3"), 1), "10.0.0.3");
        assert_eq!(chosen(Some("127.0.0.1"), 1), "127.0.0.1");
        assert_eq!(chosen(Some("127.0.1.1"), 4), "0.0.0.0");
        assert_eq!(chosen(Some("::1"), 4), "::");
        assert_eq!(chosen(None, 1), "127.0.0.1");
        assert_eq!(chosen(None, 4), "0.0.0.0");
    }

    #[test]
    fn a_job_on_this_host_alone_is_asked_by_loopback() {
        for (host, nodes) in [("127.0.0.1", 1), ("127.0.0.1", 4), ("localhost", 4)] {
            let store = HostPort::new(host, 29500);
            let address = listen(&store, nodes).unwrap().local_addr().unwrap();
            assert!(address.ip().is_loopback(), "{host}");
        }
    }
}

#[cfg(test)]
mod tests;
