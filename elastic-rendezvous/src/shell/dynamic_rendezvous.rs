//! The handler of a dynamic rendezvous, which nodes can join and leave at any time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Credentials, Store, StoreAddress, StoreError, TcpStore, in_brief};

use crate::engine::Engine;
use crate::engine::group::GroupEngine;
use crate::engine::solo::Solo;
use crate::shell::access::Access;
use crate::shell::backend::RendezvousBackend;
use crate::shell::board::RoundBoard;
use crate::shell::bootstrap::{Bootstrap, NotFound, Protection, Round};
use crate::shell::candidate::Candidate;
use crate::shell::handler::{Listener, RendezvousHandler, RendezvousInfo};
use crate::shell::handler_loop::{Clock, HandlerLoop, Parts};
use crate::shell::handler_state::Shared;
use crate::shell::keep_claim::Applicant;
use crate::shell::mailbox::{Job, Mailbox, Message, open_mailbox};
use crate::shell::notices::{Notice, Notices};
use crate::shell::own_host::OwnHost;
use crate::shell::workers_reach::{Known, Search, verify};
use crate::shell::write_lease::WriteLease;
use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Goal, Joined};
use crate::values::node::NodeId;
use crate::values::port_range::PortRange;
use crate::values::report::{Membership, NotJoining, WaitReport};
use crate::values::settings::RendezvousSettings;
use crate::values::store_access::ServerHook;

const THREAD: &str = "rendezvous";

/// How long [`shutdown`](RendezvousHandler::shutdown) waits until other nodes disconnect from a store that
/// this process hosts, and how often it checks.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const DISCONNECT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Numbers the handlers of this process. PyTorch and earlier releases begin with 0, so that none of their processes takes
/// the entry of a node of this release for its own (docs/spec/rendezvous.md, IDENTITY 4).
static NEXT_LOCAL_ID: AtomicI64 = AtomicI64::new(1);

/// A node of a dynamic rendezvous (`docs/spec/rendezvous.md`).
///
/// Its thread `rendezvous` joins, leaves, writes heartbeats and waits for changes. It ends with
/// [`shutdown`](RendezvousHandler::shutdown) or when the handler is dropped. A drop does not change the state, so this node
/// counts as lost if it has not left or closed the rendezvous: other nodes drop it when its connection has been closed for
/// 2 s, or after the keep-alive time if the store cannot notice that.
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
/// assert_eq!((node.settings().min_nodes(), node.settings().max_nodes()), (1, 1));
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
    own_host: OwnHost,
    shared: Arc<Shared>,
    to_loop: Mailbox,
    /// The loop's, which may wait for it.
    lease: Option<WriteLease>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Taken out while a join uses it.
    bootstrap: Mutex<Bootstrap>,
    /// The address at which this node has reached the workers' store.
    reached: Mutex<Option<Known>>,
    /// A client of the same store, if this process hosts it.
    hosted: Option<Arc<TcpStore>>,
    /// The server that this process has ready for a store that moves.
    candidate: Mutex<Option<Candidate>>,
}

/// The options of a node in a dynamic rendezvous.
#[derive(Debug, Clone)]
#[must_use]
pub struct DynamicRendezvousOptions {
    local_addr: Option<String>,
    workers_host: Option<String>,
    own_host: Option<OwnHost>,
    loop_store: Option<Arc<dyn Store>>,
    shares_store: bool,
    server_hook: Option<ServerHook>,
    protection: Protection,
    workers_at: Option<StoreAddress>,
    workers_port: Option<PortRange>,
}

impl Default for DynamicRendezvousOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl DynamicRendezvousOptions {
    /// Creates the default options: the node's address is the machine's full name, and an agent serves the workers'
    /// store.
    pub const fn new() -> Self {
        Self {
            local_addr: None,
            workers_host: None,
            own_host: None,
            loop_store: None,
            shares_store: true,
            server_hook: None,
            protection: Protection::Open,
            workers_at: None,
            workers_port: None,
        }
    }

    /// Sets the address that identifies the node. Other nodes reach the workers' store at this address if this node
    /// serves it. Default: the machine's full name.
    pub fn with_local_addr(mut self, addr: impl Into<String>) -> Self {
        self.local_addr = Some(addr.into());
        self
    }

    /// Sets the host at which other nodes reach the workers' store. Default: the node's address.
    pub fn with_workers_host(mut self, host: impl Into<String>) -> Self {
        self.workers_host = Some(host.into());
        self
    }

    /// Sets whether an agent serves the workers' store. Otherwise the worker with rank 0 does, at a new address in each
    /// round: PyTorch's `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`. Must be the same on all nodes. Default: true, like
    /// PyTorch's.
    pub fn with_shared_store(mut self, shares_store: bool) -> Self {
        self.shares_store = shares_store;
        self
    }

    /// Restricts the workers' store of a one-node job to processes of the same user on this machine, and to clients
    /// with these credentials. Default: every client.
    pub fn with_own_user_only(mut self, credentials: Credentials) -> Self {
        self.protection = Protection::OwnUser(credentials);
        self
    }

    /// Restricts the workers' store of a job of several nodes to processes of the same user on its machine, and to
    /// clients with these credentials. The nodes use the credentials to reach the store, and so must every program that
    /// connects the workers, for example a relay. Must be the same on all nodes. Default: every client.
    pub fn with_workers_credentials(mut self, credentials: Credentials) -> Self {
        self.protection = Protection::Job(credentials);
        self
    }

    /// If this node has rank 0, the workers use the rendezvous' store, at this address.
    pub(crate) fn with_workers_at(mut self, address: StoreAddress) -> Self {
        self.workers_at = Some(address);
        self
    }

    /// Sets the ports for the workers' store, if this node serves it: it takes the first free port. Default: a port
    /// that the system chooses.
    pub fn with_workers_port(mut self, ports: impl Into<Option<PortRange>>) -> Self {
        self.workers_port = ports.into();
        self
    }

    /// The known addresses of this node, instead of the addresses in the other options.
    pub(crate) fn with_own_host(mut self, own_host: OwnHost) -> Self {
        self.own_host = Some(own_host);
        self
    }

    /// The store of the handler's thread, whose calls make one attempt, because the thread takes no message while a call
    /// repeats its request.
    pub(crate) fn with_loop_store(mut self, store: Arc<dyn Store>) -> Self {
        self.loop_store = Some(store);
        self
    }

    /// Sets a callback for the server of the workers' store, if this node serves it. Default: none.
    pub fn with_server_hook(mut self, hook: ServerHook) -> Self {
        self.server_hook = Some(hook);
        self
    }
}

impl DynamicRendezvous {
    /// Creates a node that keeps the state in `backend` and exchanges the data of its rounds in `store`.
    ///
    /// Starts the handler's thread, but does not join. Blocks for at most the store's timeout, plus 2 s to
    /// look up the machine's name if no address is set.
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
        let own_host = options.own_host.clone().unwrap_or_else(|| {
            let given = options
                .workers_host
                .as_ref()
                .or(options.local_addr.as_ref());
            OwnHost::new(given.cloned(), false)
        });
        let addr = match (&options.local_addr, own_host.given()) {
            (Some(addr), _) => addr.as_str(),
            (None, Some(given)) if options.workers_host.is_none() => given,
            (None, _) => own_host.name(),
        };
        let access = Access::open(&*backend, &settings)?;
        let (index, lease) = match &access {
            Access::Group { index, .. } => (Some(*index), None),
            Access::Own { lease, .. } => (None, lease.clone()),
        };
        let (addr, pid): (Arc<str>, _) = (addr.into(), i64::from(std::process::id()));
        let own_number = NEXT_LOCAL_ID.fetch_add(1, Ordering::Relaxed);
        // A number in the group belongs to one handler, whatever its host and process are called.
        let id_of = move |index: Option<u32>| {
            let local_id = index.map_or(own_number, i64::from);
            NodeId::new(Arc::clone(&addr), pid, local_id)
        };
        let clock = Clock::start();
        let loop_store = options.loop_store.clone();
        let loop_store = loop_store.unwrap_or_else(|| Arc::clone(&store));
        let notices = Notices::new(Arc::clone(&loop_store), &settings.run_id);
        let shared = Shared::new(notices, id_of(index));
        let of_engine = settings.clone();
        let new_engine = move |index: Option<u32>, now| -> Box<dyn Engine> {
            let ((me, settings), seed) = ((id_of(index), of_engine.clone()), fastrand::u64(..));
            match index {
                Some(index) => Box::new(GroupEngine::new(me, index, settings, seed, now)),
                None => Box::new(Solo::new(me, settings, seed, now)),
            }
        };
        let (to_loop, inbox) = open_mailbox();
        let handler_loop = HandlerLoop::new(Parts {
            clock,
            settings: settings.clone(),
            new_engine: Box::new(new_engine),
            access,
            backend: Arc::clone(&backend),
            shared: Arc::clone(&shared),
            store: loop_store,
            inbox,
        });
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(|| handler_loop.run())
            .map_err(|source| RendezvousError::Thread {
                name: THREAD,
                source,
            })?;
        Ok(Self {
            backend,
            store,
            settings,
            bootstrap: Mutex::new(Bootstrap::new(
                options.protection.clone(),
                options.workers_at.clone(),
            )),
            options,
            own_host,
            shared,
            to_loop,
            lease,
            thread: Mutex::new(Some(thread)),
            reached: Mutex::default(),
            hosted: None,
            candidate: Mutex::new(None),
        })
    }

    /// The settings of this node, for callers that share a handler: PyTorch's `DynamicRendezvousHandler.settings`.
    #[must_use]
    pub fn settings(&self) -> &RendezvousSettings {
        &self.settings
    }

    /// The identity of this node. It changes while the node joins, if another process has the same host name and process
    /// id, as two containers can.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.me()
    }

    /// Declares that this process hosts the rendezvous' store, through its client `store`.
    /// [`shutdown`](RendezvousHandler::shutdown) then waits for up to 3 s until other nodes disconnect.
    #[must_use]
    pub fn with_hosted_store(mut self, store: Arc<TcpStore>) -> Self {
        self.hosted = Some(store);
        self.shared.is_new_host.store(true, Ordering::Release);
        self
    }

    /// This process is a candidate to serve the rendezvous' store.
    pub(crate) fn with_candidate(self, candidate: Candidate) -> Self {
        *self.lock_candidate() = Some(candidate);
        self
    }

    fn lock_candidate(&self) -> MutexGuard<'_, Option<Candidate>> {
        self.candidate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other node uses the store that this process hosts. PyTorch's nodes also close the
    /// rendezvous before they exit, and 2.9 fails if the store is already missing.
    fn await_disconnects(&self) {
        let deadline = Deadline::after(Instant::now(), DISCONNECT_TIMEOUT);
        let candidate = self.lock_candidate().take();
        if let Some(mut candidate) = candidate {
            self.store.close();
            candidate.end(deadline);
        }
        let Some(hosted) = &self.hosted else { return };
        // This store may use another connection.
        self.store.close();
        hosted.close();
        let is_in_use = || {
            hosted
                .server()
                .is_some_and(|server| server.is_running() && server.connection_count() > 0)
        };
        while is_in_use() && !deadline.has_passed(Instant::now()) {
            std::thread::sleep(DISCONNECT_POLL_INTERVAL);
        }
    }

    fn ask(&self, goal: Goal) -> Result<Answer, RendezvousError> {
        let (reply, answer) = channel();
        self.to_loop
            .send(Message::Run(Job { goal, reply }))
            .map_err(|_| self.shut_down_error())?;
        // The loop answers every job or drops it when it ends.
        answer.recv().map_err(|_| self.shut_down_error())?
    }

    fn join(&self, goal: Goal) -> Result<RendezvousInfo, RendezvousError> {
        loop {
            let answer = self.ask(goal);
            if let Err(RendezvousError::Timeout { .. }) = &answer
                && let Some(endpoint) = self.own_host.unvisited()
            {
                log::warn!(
                    "no other host has connected to the store at {endpoint}: set is_host on each host that has this address"
                );
            }
            let answer = answer?;
            let joined = answer.joined.ok_or_else(|| self.shut_down_error())?;
            log::debug!(
                "node {} has joined round {} of run {:?} as rank {} in a world of size {}",
                self.node().named(),
                answer.round,
                self.settings.run_id,
                joined.rank,
                joined.world_size,
            );
            if let Some(candidate) = &*self.lock_candidate() {
                candidate.placed(joined.rank);
            }
            let settled = self.settle(answer.round, &joined);
            // The loop may have ended already.
            let _ = self.to_loop.send(Message::Settled);
            match settled {
                Err(RendezvousError::Interrupted { .. }) if !self.is_interrupted() => log::info!(
                    "round {} lost a member before it had a workers' store; joining another round",
                    answer.round,
                ),
                Err(error) if error.is_outage() && self.backend.is_reconnecting() => log::warn!(
                    "round {} has no workers' store, joining another: {}",
                    answer.round,
                    in_brief(&error),
                ),
                settled => return settled,
            }
        }
    }

    fn shut_down_error(&self) -> RendezvousError {
        RendezvousError::ShutDown {
            run_id: self.settings.run_id.clone(),
        }
    }

    /// Agrees with the other nodes of the round `number` on the workers' store.
    fn settle(&self, number: i64, joined: &Joined) -> Result<RendezvousInfo, RendezvousError> {
        let round = Round {
            store: &self.store,
            run_id: &self.settings.run_id,
            number,
            rank: joined.rank,
            first: &joined.first,
            is_same_world: joined.is_same_world,
            has_entered: joined.has_entered,
            nodes: &joined.nodes,
            own_host: &self.own_host,
            server_hook: self.options.server_hook.as_ref(),
            ports: self.options.workers_port,
        };
        let timeout = self.store.timeout().unwrap_or(Duration::MAX);
        let cancel = &self.shared.settling;
        let settled = if self.options.shares_store {
            let mut bootstrap = std::mem::take(&mut *self.lock_bootstrap());
            let settled = bootstrap.settle(&round, timeout, cancel);
            *self.lock_bootstrap() = bootstrap;
            settled
        } else {
            Bootstrap::settle_unshared(&round, timeout, cancel)
        };
        let route = self.own_host.route();
        let settled = settled.and_then(|bootstrap| {
            let search = Search {
                run_id: &self.settings.run_id,
                first: &joined.first,
                route: &route,
                // The other nodes wait for this node for as long as the store's timeout.
                limit: self.settings.join_timeout.min(timeout - timeout / 4),
                cancel,
                warnings: self.own_host.warnings(),
            };
            let mut known = self.lock_reached().take();
            let verified = verify(bootstrap, &mut known, joined.is_same_world, &search);
            *self.lock_reached() = known;
            verified
        });
        let bootstrap = settled.map_err(|not_found| match not_found {
            NotFound::Failed(error) => error,
            NotFound::Interrupted => RendezvousError::Interrupted {
                run_id: self.settings.run_id.clone(),
            },
            NotFound::Missing => RendezvousError::NoBootstrap {
                run_id: self.settings.run_id.clone(),
                round: number,
                timeout,
                report: Box::new(self.report_of(number, joined)),
            },
        })?;
        let mut info = RendezvousInfo::new(
            number,
            Arc::clone(round.board(number).store()),
            joined.rank,
            joined.world_size,
            bootstrap,
        );
        info.route = route;
        info.has_entered = joined.has_entered;
        info.has_lost_members = joined.has_lost_members;
        Ok(info)
    }

    fn is_interrupted(&self) -> bool {
        self.shared.is_interrupted.load(Ordering::Acquire)
    }

    fn report_of(&self, round: i64, joined: &Joined) -> WaitReport {
        WaitReport {
            is_complete: true,
            joined: joined.world_size,
            participants: joined.nodes.clone(),
            ..WaitReport::of(
                &self.settings.run_id,
                round,
                self.settings.min_nodes,
                self.settings.max_nodes,
            )
        }
    }

    fn lock_reached(&self) -> MutexGuard<'_, Option<Known>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_bootstrap(&self) -> MutexGuard<'_, Bootstrap> {
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
        if let Some(lease) = &self.lease {
            lease.close();
        }
        if thread.join().is_err() {
            log::error!("the thread {THREAD} panicked");
        }
    }
}

impl RendezvousHandler for DynamicRendezvous {
    fn backend(&self) -> &str {
        self.backend.name()
    }

    fn has_agent_store(&self) -> bool {
        self.options.shares_store
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        self.join(Goal::Join)
    }

    fn enter_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        self.join(Goal::Enter)
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
            Some(Err(detail)) => Err(RendezvousError::MembershipUnknown {
                run_id: self.settings.run_id.clone(),
                detail,
            }),
        }
    }

    fn loss_wait(&self) -> Option<Duration> {
        let settings = &self.settings;
        (settings.min_nodes < settings.max_nodes).then(|| settings.dead_after())
    }

    fn members_connected_at(&self) -> Option<Instant> {
        *self.shared.members_connected_at()
    }

    fn node_id(&self) -> Option<NodeId> {
        Some(self.node())
    }

    fn add_listener(&self, listener: Listener) {
        self.shared.listeners.add(listener);
    }

    fn interrupt(&self) {
        self.shared.interrupt();
        // The loop may have ended already.
        let _ = self.to_loop.send(Message::Interrupt);
    }

    fn leave(&self) -> Result<(), RendezvousError> {
        // Before the state changes: nodes that see that also find the notice. Not to a store that has just failed.
        let left = Notice::Left(self.node());
        let write = || self.shared.notices.write(&left);
        // Again over another connection. If the store cannot be reached, leaving itself tries again.
        let written = || match write() {
            Err(StoreError::ConnectionLost { .. }) => write(),
            result => result,
        };
        if !matches!(self.shared.membership(), Some(Err(_)))
            && let Err(error) = written()
        {
            log::debug!("cannot tell the other nodes that this one leaves: {error}");
        }
        self.ask(Goal::Leave).map(drop)
    }

    fn exit_round(&self) -> Result<(), RendezvousError> {
        self.ask(Goal::Exit).map(drop)
    }

    fn set_not_joining(&self, why: Option<&str>) -> Result<(), RendezvousError> {
        let notices = self.shared.notices.with_store(Arc::clone(&self.store));
        let written = match why {
            None => notices.withdraw(),
            Some(why) => {
                let it = NotJoining::new(self.node(), why);
                notices.write(&Notice::NotJoining(it))
            }
        };
        written.map_err(|error| RendezvousError::connection(&self.settings.run_id, error))
    }

    fn forget_round(&self, round: i64) -> Result<(), RendezvousError> {
        let run_id = &self.settings.run_id;
        let forgotten = RoundBoard::of(&self.store, run_id, round).forget();
        forgotten.map_err(|error| RendezvousError::connection(run_id, error))
    }

    fn agree_on_keeping(&self, keeps: bool) -> Result<(), RendezvousError> {
        if self.settings.max_nodes == 1 {
            return Ok(());
        }
        let applicant = Applicant {
            store: &self.store,
            backend: &self.backend,
            run_id: &self.settings.run_id,
            me: &self.node(),
            dead_after: self.settings.dead_after(),
            cancel: &self.shared.settling,
        };
        match applicant.claim(keeps) {
            // The join waits longer for the store, and the next one asks again.
            Err(error) if error.is_outage() => {
                log::debug!("cannot compare --keep-workers with the other nodes: {error}");
                Ok(())
            }
            claimed => claimed,
        }
    }

    fn last_boards(&self) -> Result<Vec<RoundBoard>, RendezvousError> {
        let last = self.ask(Goal::Read)?.round;
        let rounds = [last, last - 1].into_iter().filter(|round| *round >= 0);
        let board = |round| RoundBoard::of(&self.store, &self.settings.run_id, round);
        Ok(rounds.map(board).collect())
    }

    fn keeps_store_for(&self) -> Option<Duration> {
        let server = self.hosted.as_ref()?.server()?;
        server.is_running().then(|| self.settings.dead_after())
    }

    fn detach(&self) {
        self.stop();
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    fn shutdown(&self) -> bool {
        // If a store stops after the closing, it stops together with the job.
        let is_closed = self.shared.was_closed.load(Ordering::Acquire);
        let closed = self.ask(Goal::Shutdown).map(drop);
        let is_detached = matches!(&closed, Err(RendezvousError::ShutDown { .. }));
        if let Err(error) = &closed
            && !is_detached
            && !is_closed
        {
            log::warn!("cannot close the rendezvous: {}", in_brief(error));
        }
        self.stop();
        if closed.is_ok() || is_detached {
            self.await_disconnects();
        }
        closed.is_ok()
    }
}

impl Drop for DynamicRendezvous {
    fn drop(&mut self) {
        self.stop();
    }
}
