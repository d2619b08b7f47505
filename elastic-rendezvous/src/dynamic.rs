//! The handler of a rendezvous that nodes join and leave while it goes on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, TcpStore};

use crate::backend::RendezvousBackend;
use crate::bootstrap::{Bootstrap, NotFound, Round};
use crate::error::RendezvousError;
use crate::executor::Executor;
use crate::goal::{Answer, Goal};
use crate::handler::{Listener, Membership, RendezvousHandler, RendezvousInfo};
use crate::node::NodeId;
use crate::node_loop::{Clock, Job, Message, NodeLoop, Shared};
use crate::report::WaitReport;
use crate::settings::RendezvousSettings;

const THREAD: &str = "rendezvous";

/// How long other nodes have to let go of a store that this process serves, once the rendezvous is
/// closed, and how often it is looked whether they have.
const OTHERS_FINISH_TIMEOUT: Duration = Duration::from_secs(3);
const OTHERS_FINISH_INTERVAL: Duration = Duration::from_millis(2);

/// Counts the handlers of this process.
static NEXT_LOCAL_ID: AtomicI64 = AtomicI64::new(0);

/// A node's part in a dynamic rendezvous (`docs/rendezvous.md`).
///
/// It has two threads: `rendezvous` joins, leaves and gives signs of life; `rendezvous-watch` waits for
/// changes, where the store can wake it. Both end with [`shutdown`](RendezvousHandler::shutdown) or when
/// the handler is dropped, which leaves the rendezvous as it is: the other nodes take this one
/// for dead after a while.
///
/// In PyTorch: `DynamicRendezvousHandler`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
///
/// ```
/// use std::sync::Arc;
///
/// use c10d_store::{HashStore, Store};
/// use elastic_rendezvous::{
///     C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousHandler, RendezvousSettings,
/// };
///
/// # fn main() -> Result<(), elastic_rendezvous::RendezvousError> {
/// let store: Arc<dyn Store> = Arc::new(HashStore::new());
/// let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job")?);
/// let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
/// let settings = RendezvousSettings::new("job", 1, 1)?;
/// let node = DynamicRendezvous::new(backend, store, settings, options)?;
/// let round = node.next_rendezvous()?;
/// assert_eq!((round.rank, round.world_size), (0, 1));
/// node.shutdown();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DynamicRendezvous {
    backend: Arc<dyn RendezvousBackend>,
    store: Arc<dyn Store>,
    settings: RendezvousSettings,
    options: DynamicRendezvousOptions,
    node: NodeId,
    shared: Arc<Shared>,
    to_loop: Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Taken out while a join is under way.
    bootstrap: Mutex<Bootstrap>,
    /// The same store as `store`, if its server runs here.
    hosted: Option<Arc<TcpStore>>,
}

/// How a node takes part in a dynamic rendezvous.
#[derive(Debug, Clone)]
pub struct DynamicRendezvousOptions {
    local_addr: Option<String>,
    workers_host: Option<String>,
    shares_store: bool,
}

impl Default for DynamicRendezvousOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl DynamicRendezvousOptions {
    /// The machine's full name as the address, and a workers' store that an agent serves.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            local_addr: None,
            workers_host: None,
            shares_store: true,
        }
    }

    /// The address that the node gives itself, and under which the others find the workers' store if
    /// this node serves it. The default is the machine's full name.
    #[must_use]
    pub fn with_local_addr(mut self, addr: impl Into<String>) -> Self {
        self.local_addr = Some(addr.into());
        self
    }

    /// The host under which the others find the workers' store, when it is not the node's own
    /// address.
    #[must_use]
    pub fn with_workers_host(mut self, host: impl Into<String>) -> Self {
        self.workers_host = Some(host.into());
        self
    }

    /// Whether an agent serves the workers' store (the default), or the worker with rank 0, at a
    /// fresh address in each round: `TORCH_DISABLE_SHARE_RDZV_TCP_STORE` in PyTorch. All nodes must
    /// agree.
    #[must_use]
    pub fn with_shared_store(mut self, shares_store: bool) -> Self {
        self.shares_store = shares_store;
        self
    }
}

impl DynamicRendezvous {
    /// A node in the rendezvous that `backend` keeps, whose rounds exchange what they have to in
    /// `store`. Starts the handler's threads; joins nothing yet.
    ///
    /// # Errors
    /// [`RendezvousError::Parameters`] for a timeout of zero, [`RendezvousError::Connection`] when the
    /// store fails, [`RendezvousError::Thread`] when the system cannot start a thread.
    pub fn new(
        backend: Arc<dyn RendezvousBackend>,
        store: Arc<dyn Store>,
        settings: RendezvousSettings,
        options: DynamicRendezvousOptions,
    ) -> Result<Self, RendezvousError> {
        settings.check()?;
        let addr = options
            .local_addr
            .clone()
            .unwrap_or_else(crate::this_host::full_name);
        let local_id = NEXT_LOCAL_ID.fetch_add(1, Ordering::Relaxed);
        let node = NodeId::new(addr, i64::from(std::process::id()), local_id);
        let clock = Clock::start();
        let executor = Executor::new(node.clone(), settings.clone(), clock.now());
        let shared = Arc::new(Shared::default());
        let (to_loop, inbox) = channel();
        let node_loop = NodeLoop::new(
            clock,
            executor,
            Arc::clone(&backend),
            Arc::clone(&shared),
            inbox,
            to_loop.clone(),
            fastrand::u64(..),
        )?;
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || node_loop.run())
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        Ok(Self {
            backend,
            store,
            settings,
            options,
            node,
            shared,
            to_loop,
            thread: Mutex::new(Some(thread)),
            bootstrap: Mutex::default(),
            hosted: None,
        })
    }

    /// What this node brings along: how many nodes it wants, and how long it waits for what.
    #[must_use]
    pub fn settings(&self) -> &RendezvousSettings {
        &self.settings
    }

    /// The name of this node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Tells that the rendezvous' store is served by this process, and by which client of it.
    /// [`shutdown`](RendezvousHandler::shutdown) then gives other nodes a moment to finish what they do
    /// with it.
    #[must_use]
    pub fn with_hosted_store(mut self, store: Arc<TcpStore>) -> Self {
        self.hosted = Some(store);
        self.shared.is_new_host.store(true, Ordering::Release);
        self
    }

    /// Waits until nobody else uses the store that this process serves, for a moment at most. PyTorch's
    /// nodes close the rendezvous as well before they go, and 2.9 fails when it is not there any more.
    fn let_others_finish(&self) {
        let Some(hosted) = &self.hosted else { return };
        hosted.close();
        let deadline = Deadline::after(Instant::now(), OTHERS_FINISH_TIMEOUT);
        let others_are_there = || {
            hosted
                .server()
                .is_some_and(|server| server.is_running() && server.connection_count() > 0)
        };
        while others_are_there() && !deadline.has_passed(Instant::now()) {
            std::thread::sleep(OTHERS_FINISH_INTERVAL);
        }
    }

    fn ask(&self, goal: Goal) -> Result<Answer, RendezvousError> {
        let gone = || RendezvousError::ShutDown {
            run_id: self.settings.run_id.clone(),
        };
        let (reply, answer) = channel();
        self.to_loop
            .send(Message::Run(Job { goal, reply }))
            .map_err(|_| gone())?;
        // The loop answers every job, or ends and drops it.
        answer.recv().map_err(|_| gone())?
    }

    fn settle(&self, joined: &Answer) -> Result<RendezvousInfo, RendezvousError> {
        let own_host = self
            .options
            .workers_host
            .as_deref()
            .unwrap_or(&self.node.addr);
        let round = Round {
            store: &self.store,
            run_id: &self.settings.run_id,
            number: joined.round,
            rank: joined.rank,
            nodes: &joined.nodes,
            own_host,
        };
        let timeout = self.store.timeout().unwrap_or(Duration::MAX);
        let is_interrupted = || self.shared.is_interrupted.load(Ordering::Acquire);
        let settled = if self.options.shares_store {
            let mut bootstrap = std::mem::take(&mut *self.lock_bootstrap());
            let settled = bootstrap.settle(&round, timeout, &is_interrupted);
            *self.lock_bootstrap() = bootstrap;
            settled
        } else {
            Bootstrap::settle_unshared(&round, timeout, &is_interrupted)
        };
        let bootstrap = settled.map_err(|not_found| match not_found {
            NotFound::Failed(error) => error,
            NotFound::Interrupted => RendezvousError::Interrupted {
                run_id: self.settings.run_id.clone(),
            },
            NotFound::Missing => RendezvousError::NoBootstrap {
                run_id: self.settings.run_id.clone(),
                round: joined.round,
                timeout,
                report: Box::new(self.report_of(joined)),
            },
        })?;
        Ok(RendezvousInfo::new(
            joined.round,
            Arc::new(round.prefix(joined.round)),
            joined.rank,
            joined.nodes.len(),
            bootstrap,
        ))
    }

    fn report_of(&self, joined: &Answer) -> WaitReport {
        WaitReport {
            run_id: self.settings.run_id.clone(),
            round: joined.round,
            is_complete: true,
            min_nodes: self.settings.min_nodes,
            max_nodes: self.settings.max_nodes,
            waited: Duration::ZERO,
            time_left: Duration::ZERO,
            participants: joined.nodes.clone(),
            waiting: Vec::new(),
            redundant: Vec::new(),
            suspects: Vec::new(),
            silent: Vec::new(),
            absent: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn lock_bootstrap(&self) -> std::sync::MutexGuard<'_, Bootstrap> {
        self.bootstrap
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        // The loop may have ended already.
        let _ = self.to_loop.send(Message::Stop);
        self.backend.close();
        if thread.join().is_err() {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

impl RendezvousHandler for DynamicRendezvous {
    fn backend(&self) -> &str {
        self.backend.name()
    }

    fn uses_agent_store(&self) -> bool {
        self.options.shares_store
    }

    /// For one thread at a time.
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        let joined = self.ask(Goal::Join)?;
        log::info!(
            "the node {} has joined round {} of the rendezvous {:?} as rank {} in a world of size {}",
            self.node.named(),
            joined.round,
            self.settings.run_id,
            joined.rank,
            joined.nodes.len(),
        );
        self.settle(&joined)
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(self.ask(Goal::Read)?.is_closed)
    }

    fn set_closed(&self) -> Result<(), RendezvousError> {
        self.ask(Goal::Close).map(drop)
    }

    fn membership(&self) -> Result<Membership, RendezvousError> {
        match self.shared.membership() {
            None => Ok(Membership::default()),
            Some(Ok(membership)) => Ok(membership),
            Some(Err(detail)) => Err(RendezvousError::Unwatched {
                run_id: self.settings.run_id.clone(),
                detail,
            }),
        }
    }

    fn add_listener(&self, listener: Listener) {
        self.shared.add_listener(listener);
    }

    fn interrupt(&self) {
        self.shared.is_interrupted.store(true, Ordering::Release);
        // The loop may have ended already.
        let _ = self.to_loop.send(Message::Interrupt);
    }

    fn leave(&self) -> Result<(), RendezvousError> {
        self.ask(Goal::Leave).map(drop)
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    fn shutdown(&self) -> bool {
        let closed = self.ask(Goal::Shutdown).map(drop);
        if let Err(error) = &closed
            && !matches!(error, RendezvousError::ShutDown { .. })
        {
            log::warn!("cannot close the rendezvous: {error}");
        }
        self.stop();
        if closed.is_ok() {
            self.let_others_finish();
        }
        closed.is_ok()
    }
}

impl Drop for DynamicRendezvous {
    fn drop(&mut self) {
        self.stop();
    }
}
