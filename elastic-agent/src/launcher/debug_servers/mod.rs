//! `--debug-server`: each worker runs PyTorch's debug server on a unix socket that only this user reaches, and this
//! launcher answers for its workers, so that `c10d stacks` and `c10d flight` reach ranks on other hosts.
//!
//! The script needs no change: `import torch` calls an entry point that it finds on PYTHONPATH. With a version of
//! PyTorch without entry points or debug server the workers start without one.

mod address;
mod files;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::agent::{AgentEvent, AgentListener, AgentOptions, StartedWorkers};
use crate::threads::lock;
use c10d_inspect::http::{HttpResponse, RequestServer, Target};
use c10d_inspect::workers::{self, Worker};

use super::feature::Feature;
use files::Files;

const THREAD: &str = "debug-proxy";

/// The function of the workers' module that starts the server, for workers that are forked with the module loaded.
pub(super) const START_HOOK: &str = "c10d_debug_server:start";

/// Where Python looks for modules and entry points first.
const PYTHONPATH: &str = "PYTHONPATH";

/// The debug servers of an agent's workers. Dropping it stops the proxy and removes the files.
#[derive(Debug)]
pub(super) struct DebugServers {
    files: Files,
    shared: Arc<Shared>,
}

/// What the proxy, the announcements and the agent's events share.
#[derive(Debug, Default)]
struct Shared {
    sockets: PathBuf,
    workers: Mutex<BTreeMap<usize, LocalWorker>>,
    proxy: Mutex<Option<RequestServer>>,
    /// What requests must have.
    token: Option<String>,
}

#[derive(Debug, Clone)]
struct LocalWorker {
    pid: u32,
    socket: PathBuf,
}

impl DebugServers {
    /// Writes the files that workers load. With a token, only requests that have it are answered.
    ///
    /// # Errors
    /// The directory cannot be made, or every place for it has too long a path for a unix socket.
    pub(super) fn prepare(token: Option<String>) -> io::Result<Self> {
        let files = Files::create()?;
        let shared = Shared {
            sockets: files.sockets().to_owned(),
            token,
            ..Shared::default()
        };
        Ok(Self {
            files,
            shared: Arc::new(shared),
        })
    }

    /// The directory of [`AgentOptions::debug_socket`].
    pub(super) fn sockets(&self) -> &Path {
        &self.shared.sockets
    }

    /// Lets workers find the files and their sockets.
    pub(super) fn add_to(&self, options: &mut AgentOptions) {
        let environment = &mut options.environment;
        let inherited = environment
            .iter()
            .rposition(|(name, _)| name == PYTHONPATH)
            .map(|index| environment.swap_remove(index).1);
        let path = files::prepend(self.files.python(), inherited.as_deref());
        environment.push((PYTHONPATH.into(), path));
        options.debug_sockets = Some(self.sockets().to_owned());
    }

    pub(super) fn proxy_address(&self) -> ProxyAddress {
        ProxyAddress(Arc::clone(&self.shared))
    }
}

impl Feature for DebugServers {
    /// Keeps up with the agent's workers. Called before those that announce workers.
    fn agent_listener(&self) -> Option<AgentListener> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move |event| match event {
            AgentEvent::WorkersStarted(started) | AgentEvent::WorkerReplaced(started, _) => {
                shared.note_started(started);
            }
            AgentEvent::Stopping => lock(&shared.workers).clear(),
            _ => {}
        }))
    }

    fn ends_with_workers(&self) -> bool {
        true
    }
}

impl Drop for DebugServers {
    fn drop(&mut self) {
        let proxy = lock(&self.shared.proxy).take();
        drop(proxy);
    }
}

/// Where the launcher answers for its workers, from the start of its first workers on.
#[derive(Debug, Clone)]
pub(super) struct ProxyAddress(Arc<Shared>);

impl ProxyAddress {
    pub(super) fn get(&self) -> Option<SocketAddr> {
        lock(&self.0.proxy).as_ref().map(RequestServer::address)
    }
}

impl Shared {
    fn note_started(self: &Arc<Self>, started: &StartedWorkers) {
        let workers = started.workers.iter().map(|worker| {
            let socket =
                AgentOptions::debug_socket(&self.sockets, started.restarts, worker.local_rank);
            let pid = worker.pid;
            (worker.rank, LocalWorker { pid, socket })
        });
        *lock(&self.workers) = workers.collect();
        if lock(&self.proxy).is_some() {
            return;
        }
        match self.start_proxy(started) {
            Ok(proxy) => {
                let address = proxy.address();
                log::debug!("stacks of this node's workers can be read at {address}");
                *lock(&self.proxy) = Some(proxy);
            }
            Err(error) => {
                log::warn!("stacks of this node's workers can be read on this host only: {error}");
            }
        }
    }

    fn start_proxy(self: &Arc<Self>, started: &StartedWorkers) -> io::Result<RequestServer> {
        let listener = address::listen(&started.master, started.nodes)?;
        // Not this table itself: it owns the proxy, which would then never be dropped.
        let shared = Arc::downgrade(self);
        let handler = move |path: &str| match shared.upgrade() {
            Some(shared) => shared.answer(path),
            None => HttpResponse::new(503, "the job is ending\n"),
        };
        RequestServer::start(listener, THREAD, self.token.clone(), Arc::new(handler))
    }

    /// Blocks for up to 9 s, if the worker stands still and py-spy is installed.
    fn answer(&self, path: &str) -> HttpResponse {
        workers::answer(path, |rank| {
            let worker = lock(&self.workers).get(&rank).cloned()?;
            let targets = vec![Target::Unix(worker.socket)];
            Some(Worker::new(rank, targets, Some(worker.pid)))
        })
    }
}

#[cfg(test)]
mod tests;
