//! The launcher's port for questions about its workers, which `c10d stacks` and `c10d flight` ask from any host.

mod address;
mod workers;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::agent::{AgentEvent, AgentListener, StartedWorkers};
use crate::threads::lock;
use c10d_inspect::http::{HttpResponse, RequestServer};

use super::feature::Feature;
pub(super) use workers::answer_questions;

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
        let listener = address::listen(&started.master, started.nodes)?;
        // Not this table itself: it owns the server, which would then never be dropped.
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

#[cfg(test)]
mod tests;
