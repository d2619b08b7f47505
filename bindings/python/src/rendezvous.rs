//! `Rendezvous`: a node of `elastic-rendezvous`, for the handler that torchrun asks for.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::task::Wake;
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::StatusOptions;
use c10d_socket::{HostPort, ProcessBound};
use elastic_agent::{
    AgentOptions, CommandLine, Companion, LauncherOptions, NodeRelayError, Screen,
};
use elastic_rendezvous::{
    DEFAULT_PORT, Endpoint, RendezvousError, RendezvousHandler, RendezvousParameters,
    STATIC_BACKEND, clear_workers_store, create_handler,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arguments::read_secret_file;
use crate::call::{cancel, is_main_thread, run};
use crate::cells::Owned;
use crate::errors::raise;
use crate::rendezvous_options::{RendezvousOptions, take_options};

/// With this variable, PyTorch's agents do not exchange ranks, because all nodes have equally many workers.
const IDENTICAL: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";

/// How long an interrupted join may take to leave the rendezvous. Without that, the other nodes wait for this one's
/// heartbeats.
const LEAVE_GRACE: Duration = Duration::from_secs(2);

/// One node of a rendezvous over a c10d store.
#[pyclass(frozen, module = "c10d_rs._native")]
#[derive(Debug)]
pub(crate) struct Rendezvous {
    running: Owned<ProcessBound<Running>>,
    /// The host and port of the rendezvous' store; `None` if the agent uses the workers' store.
    store: Option<Address>,
}

/// A host and a port.
type Address = (String, u16);

/// A round for torchrun: its number, this node's rank, the number of nodes, and where the agent's store, the workers' store
/// for them, and the workers' store itself are.
type Round = (i64, usize, usize, Address, Address, Address);

/// A node, and the companion of its workers.
#[derive(Debug, Clone)]
struct Running {
    node: Arc<dyn RendezvousHandler>,
    companion: Arc<Companion>,
}

#[pymethods]
impl Rendezvous {
    /// Creates a node of the backend `c10d` or `static`. With `c10d` it opens the store of the rendezvous, and serves it if
    /// the endpoint names this machine.
    #[new]
    #[pyo3(signature = (backend, endpoint, run_id, min_nodes, max_nodes, local_addr, settings))]
    #[expect(
        clippy::too_many_arguments,
        reason = "PyTorch's RendezvousParameters have them"
    )]
    fn new(
        py: Python<'_>,
        backend: String,
        endpoint: String,
        run_id: String,
        min_nodes: usize,
        max_nodes: usize,
        local_addr: Option<String>,
        settings: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        let refused = PyValueError::new_err::<String>;
        let parameters = RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes)
            .map_err(|error| refused(error.to_string()))?
            .with_config(settings)
            .with_local_addr(local_addr.unwrap_or_default())
            .with_cancel(cancel());
        let (mut parameters, options) =
            take_options(parameters).map_err(|error| refused(error.0))?;
        if let Some(path) = &options.secret_file {
            parameters = parameters.with_credentials(read_secret_file(py, path)?);
        }
        let companion = companion(parameters, &options)?;
        let opened = run(py, || open(companion))?;
        let (running, store) = opened.map_err(|error| rendezvous_error(py, &error))?;
        Ok(Self {
            running: Owned::new("rendezvous", ProcessBound::new(running)),
            store,
        })
    }

    /// Joins the next round, and starts its relay. The workers of the last round have ended.
    fn next_rendezvous(&self, py: Python<'_>) -> PyResult<Round> {
        let companion = self.running.get_here(py)?.companion;
        let of_workers = Arc::clone(&companion);
        let (round, relay) = self.call(py, move |node| {
            of_workers.end_relay();
            let round = node.next_rendezvous()?;
            let relay = of_workers.start_relay(&round, &cancel())?;
            // PyTorch's ranks would read the addresses of the ranks of the last round. Without the agents' exchange of ranks, new
            // workers of other nodes may already have written theirs.
            let has_exchange = std::env::var_os(IDENTICAL).is_none_or(|it| it != "1");
            if has_exchange && let Err(error) = clear_workers_store(&round) {
                TorchrunLog.message(&format!("cannot clear the workers' store: {error}\n"));
            }
            Ok((round, relay))
        })?;
        companion.expect_workers(round.round);
        let master = &round.bootstrap.master;
        let for_workers = address(relay.as_ref().unwrap_or(master));
        let for_agent = self.store.clone().unwrap_or_else(|| for_workers.clone());
        let (number, rank, world_size) = (round.round, round.rank, round.world_size);
        let store = address(master);
        Ok((number, rank, world_size, for_agent, for_workers, store))
    }

    /// Whether this process serves status pages on a port, which is one of its stores.
    fn has_pages(&self, py: Python<'_>, port: u16) -> PyResult<bool> {
        Ok(self.running.get_here(py)?.companion.has_page(port))
    }

    /// Whether an agent serves the workers' store.
    fn uses_agent_store(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.running.get_here(py)?.node.has_agent_store())
    }

    /// Whether there are no more rounds.
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |node| Ok(node.is_closed()?))
    }

    /// Ends the rendezvous for all nodes.
    fn set_closed(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |node| Ok(node.set_closed()?))
    }

    /// The number of nodes that wait for the next round. Does not block.
    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        let Running { node, companion } = self.running.get_here(py)?;
        if let Some(failure) = companion.journal_failure() {
            return Err(raise(py, "RendezvousStateError", failure));
        }
        let waiting = match companion.has_relay() {
            true => waiting_with_relay(&*node),
            false => node.num_nodes_waiting(),
        };
        if waiting.as_ref().is_ok_and(|waiting| *waiting > 0) {
            // torchrun stops its workers when it reads this number.
            companion.workers_stop();
        }
        waiting.map_err(|error| rendezvous_error(py, &error))
    }

    /// Ends the rendezvous for all nodes, and this node. Returns whether the first succeeded.
    fn shutdown(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(Running { node, companion }) = self.running.take_here()? else {
            return Ok(true);
        };
        let end = move || {
            companion.workers_ended();
            let has_closed = node.shutdown();
            companion.job_ended();
            has_closed
        };
        run_aside(py, || (), end)
    }
}

impl Rendezvous {
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn RendezvousHandler) -> Result<T, CallError> + Send + 'static,
    ) -> PyResult<T> {
        let node = self.running.get_here(py)?.node;
        let caller = Arc::clone(&node);
        let result = run_aside(py, move || node.interrupt(), move || call(&*caller))?;
        result.map_err(|error| match error {
            CallError::Rendezvous(error) => rendezvous_error(py, &error),
            CallError::Relay(error) => raise(py, "RendezvousError", error.to_string()),
        })
    }
}

/// The number of nodes that wait for the next round, for a node whose workers outlive a store that is served again.
fn waiting_with_relay(node: &dyn RendezvousHandler) -> Result<usize, RendezvousError> {
    let is_evicted = matches!(node.membership(), Ok(it) if it.is_evicted && !it.is_closed);
    match node.num_nodes_waiting() {
        // The other nodes count this node as lost. It stops its workers, and joins the next round.
        Ok(waiting) if is_evicted => Ok(waiting.max(1)),
        // Until this node counts as lost, or the relay closes the connections of the workers.
        Err(RendezvousError::MembershipUnknown { .. }) => Ok(0),
        waiting => waiting,
    }
}

/// The reason why a call of the rendezvous failed.
enum CallError {
    Rendezvous(RendezvousError),
    Relay(NodeRelayError),
}

impl From<RendezvousError> for CallError {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(error)
    }
}

impl From<NodeRelayError> for CallError {
    fn from(error: NodeRelayError) -> Self {
        Self::Relay(error)
    }
}

fn address(place: &HostPort) -> Address {
    (place.host().to_owned(), place.port())
}

/// Runs a call of the rendezvous, whose own threads do the work. If Ctrl-C interrupts it on the main thread,
/// `interrupt` makes this node leave within [`LEAVE_GRACE`]. After this time, the call's thread is abandoned, and exits
/// when its timeouts have passed.
fn run_aside<T: Send + 'static>(
    py: Python<'_>,
    interrupt: impl FnOnce() + Send,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return Ok(py.detach(call));
    }
    let (sender, news) = mpsc::channel();
    let bell = sender.clone();
    thread::Builder::new()
        .name("c10d-call".to_owned())
        .spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(call)).ok();
            // The caller may have left.
            let _ = sender.send(News::Ended(result));
        })?;
    let result = run(py, move || {
        let cancel = cancel();
        let mut watch = cancel.watch();
        while !(watch.is_due() && watch.ask(|| Arc::new(Bell(bell.clone())).into())) {
            if let Ok(News::Ended(result)) = news.recv() {
                return result;
            }
        }
        interrupt();
        let deadline = Instant::now() + LEAVE_GRACE;
        loop {
            match news.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(News::Ended(result)) => return result,
                Ok(News::Woken) => {}
                Err(_) => return None,
            }
        }
    })?;
    result.ok_or_else(|| {
        PyRuntimeError::new_err("the thread of the call has panicked: see standard error")
    })
}

/// The events that the main thread waits for.
enum News<T> {
    /// `None` if it has panicked.
    Ended(Option<T>),
    Woken,
}

struct Bell<T>(Sender<News<T>>);

impl<T: Send + 'static> Wake for Bell<T> {
    fn wake(self: Arc<Self>) {
        // The caller may have left.
        let _ = self.0.send(News::Woken);
    }
}

/// Creates the companion of torchrun's workers.
fn companion(
    parameters: RendezvousParameters,
    options: &RendezvousOptions,
) -> PyResult<Arc<Companion>> {
    let mut workers = AgentOptions::new(CommandLine::new("torchrun", [""; 0]), 1);
    parameters.run_id().clone_into(&mut workers.name);
    workers.has_relay = parameters.has_relays();
    let mut launcher = LauncherOptions::new(workers, parameters);
    launcher.explain_after = options.explain_after;
    launcher.has_stacks = options.has_status;
    launcher.status_page = options.has_status.then(StatusOptions::default);
    // As without this package.
    launcher.store_memory_max = None;
    launcher.screen = Arc::new(TorchrunLog);
    match Companion::new(&launcher) {
        Ok(companion) => Ok(Arc::new(companion)),
        Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
    }
}

/// Returns the node, and the host and port of the store of the rendezvous. With `static`, they are known only in a round. A
/// relay connects again to a store that is served again, so that the agent uses the relay.
fn open(companion: Arc<Companion>) -> Result<(Running, Option<Address>), RendezvousError> {
    let parameters = companion.rendezvous();
    let node = create_handler(&parameters)?;
    if let Err(error) = companion.attend(&*node) {
        // The job runs without explanations.
        TorchrunLog.message(&format!("cannot look at the workers: {error}\n"));
    }
    let is_shared = parameters.backend() == STATIC_BACKEND
        || parameters.has_relays() && parameters.shares_store()?;
    if is_shared {
        return Ok((Running { node, companion }, None));
    }
    let endpoint: Endpoint = parameters
        .endpoint()
        .parse()
        .map_err(elastic_rendezvous::ParametersError::from)?;
    let target = endpoint.with_default_port(DEFAULT_PORT);
    // The first server of this node is the rendezvous' own. The system may have chosen its port.
    let served = companion.served_ports().first().copied();
    let port = served.unwrap_or_else(|| target.port());
    Ok((
        Running { node, companion },
        Some((target.host().to_owned(), port)),
    ))
}

fn rendezvous_error(py: Python<'_>, error: &RendezvousError) -> PyErr {
    let class = match error {
        RendezvousError::Closed { .. } | RendezvousError::ShutDown { .. } => {
            "RendezvousClosedError"
        }
        RendezvousError::Timeout { .. }
        | RendezvousError::OperationTimeout { .. }
        | RendezvousError::RanksMissing { .. }
        | RendezvousError::NoBootstrap { .. } => "RendezvousTimeoutError",
        RendezvousError::Connection { .. } | RendezvousError::MembershipUnknown { .. } => {
            "RendezvousConnectionError"
        }
        RendezvousError::StateLost { .. }
        | RendezvousError::CorruptState { .. }
        | RendezvousError::BadBootstrap { .. } => "RendezvousStateError",
        RendezvousError::GracefulExit { .. } => "RendezvousGracefulExitError",
        _ => "RendezvousError",
    };
    raise(py, class, error.to_string())
}

/// Standard error, which torchrun's log goes to. Needs no lock of Python: the agent may hold it for long.
#[derive(Debug)]
pub(crate) struct TorchrunLog;

impl Screen for TorchrunLog {
    fn message(&self, text: &str) {
        self.text(&format!("c10d-rs: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
