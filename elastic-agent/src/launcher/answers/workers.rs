//! Questions about the workers of this node: their stacks, and the records of their debug servers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent::{AgentEvent, AgentListener, AgentOptions, StartedWorkers};
use crate::threads::lock;
use c10d_inspect::http::{HttpResponse, Target};
use c10d_inspect::stacks::Stacks;
use c10d_inspect::workers::{self, Question, Worker};

use super::AnswersPort;
use crate::launcher::feature::Feature;
use crate::launcher::stacks::{StackThread, python_process};

/// How long the stacks of one worker may take, including earlier requests that must be answered first.
const STACKS_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers `/stacks` and `/flight`.
#[derive(Debug)]
pub(in crate::launcher) struct WorkerQuestions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    workers: Mutex<BTreeMap<usize, LocalWorker>>,
    /// Reads stacks; `None` if that is turned off.
    stacks: Option<Arc<StackThread>>,
    /// The directory of the workers' debug servers, if they run one.
    sockets: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct LocalWorker {
    pid: u32,
    socket: Option<PathBuf>,
}

impl WorkerQuestions {
    /// `sockets` is the directory of [`AgentOptions::debug_socket`], if workers run a debug server.
    pub(in crate::launcher) fn new(
        port: &AnswersPort,
        stacks: Option<Arc<StackThread>>,
        sockets: Option<PathBuf>,
    ) -> Self {
        let shared = Arc::new(Shared {
            workers: Mutex::default(),
            stacks,
            sockets,
        });
        for path in ["/stacks", "/flight"] {
            let shared = Arc::clone(&shared);
            port.answer(path, Arc::new(move |path| shared.answer(path)));
        }
        Self { shared }
    }
}

impl Feature for WorkerQuestions {
    /// Keeps up with the agent's workers.
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

impl Shared {
    fn note_started(&self, started: &StartedWorkers) {
        let workers = started.workers.iter().map(|worker| {
            let socket = |directory: &PathBuf| {
                AgentOptions::debug_socket(directory, started.restarts, worker.local_rank)
            };
            let socket = self.sockets.as_ref().map(socket);
            let pid = worker.pid;
            (worker.rank, LocalWorker { pid, socket })
        });
        *lock(&self.workers) = workers.collect();
    }

    /// Blocks for up to 3 s while stacks are read, and for 4 s more if that fails and a debug server does not answer.
    fn answer(&self, path: &str) -> HttpResponse {
        workers::answer(path, |question| {
            let rank = question.rank();
            let worker = lock(&self.workers).get(&rank).cloned()?;
            let targets = worker.socket.map(Target::Unix).into_iter().collect();
            let pid = python_process(worker.pid);
            let asked = Worker::new(rank, targets, Some(pid));
            Some(match (question, &self.stacks) {
                (Question::Stacks { .. }, Some(thread)) => asked.with_stacks(read(thread, pid)),
                _ => asked,
            })
        })
    }
}

fn read(thread: &StackThread, pid: u32) -> Result<Stacks, String> {
    let mut results = thread.read(&[pid], STACKS_TIMEOUT);
    // One result for each process.
    results.pop().unwrap_or_else(|| Err(String::new()))
}
