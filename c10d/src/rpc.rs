//! Starts the calls and references of a worker in one step, like PyTorch's `init_rpc`.
//!
//! This module has the types that a worker of [`init_rpc`] needs, so that a program depends on this crate only. For
//! more, see the crates `rpc-agent` and `rref`.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Credentials, PrefixStore, RendezvousOptions, ServerOptions, Store, UrlError};
use rpc_agent::Registry;
// The types of other crates that this one's API takes and gives.
pub use rpc_agent::{Agent, AgentOptions, HandlerError, StartError, TerminationError};
pub use rref::{
    CallContext, FunctionError, Functions, LeakReport, RRef, RRefCall, RRefError, RRefFuture,
    RRefOptions, RRefs, RegisterError, ShutdownError,
};

use crate::error::GroupError;
use crate::group::{Group, Membership};
use crate::keys::random;
use crate::options::GroupOptions;

/// Joins all workers of this job, and starts the calls and references of this one: [`RpcOptions::init`] with the
/// default options. `name` is the name of this worker; other workers may call its `functions`.
///
/// # Errors
/// The errors of [`RpcOptions::init`].
pub fn init_rpc(name: &str, functions: Functions) -> Result<Rpc, RpcError> {
    RpcOptions::default().init(name, functions)
}

/// Options of [`init_rpc`]: the way in which workers find each other, and their limits.
///
/// ```no_run
/// use std::time::Duration;
///
/// use c10d::RpcOptions;
/// use c10d::rpc::Functions;
///
/// let options = RpcOptions::default()
///     .with_init_method("tcp://10.0.0.1:29500", 0, 2)
///     .with_timeout(Duration::from_secs(60));
/// let rpc = options.init("worker0", Functions::new())?;
/// # rpc.shutdown()?;
/// # Ok::<(), c10d::RpcError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RpcOptions {
    group: GroupOptions,
    init_method: Option<RendezvousUrl>,
    timeout: Option<Duration>,
    agent: AgentOptions,
    rrefs: RRefOptions,
}

#[derive(Debug, Clone)]
struct RendezvousUrl {
    url: String,
    rank: usize,
    world_size: usize,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            group: GroupOptions::default().with_name("rpc"),
            init_method: None,
            timeout: Some(Duration::from_secs(300)),
            agent: AgentOptions::new("", 0),
            rrefs: RRefOptions::default(),
        }
    }
}

impl RpcOptions {
    /// Sets the URL of the store where the workers find each other, such as `tcp://10.0.0.1:29500` or
    /// `file:///shared/job` ([`c10d_store::rendezvous`]), with this worker's rank and the number of workers. Default:
    /// the environment that `c10d run` and torchrun set, like [`init_from_env`](crate::init_from_env).
    pub fn with_init_method(
        mut self,
        url: impl Into<String>,
        rank: usize,
        world_size: usize,
    ) -> Self {
        self.init_method = Some(RendezvousUrl {
            url: url.into(),
            rank,
            world_size,
        });
        self
    }

    /// Sets the options of joining the group. Calls use the credentials of the group as well, or the secret in the
    /// file that `C10D_SECRET_FILE` names (with the feature `tls`): all workers need them. Default: the group `rpc`.
    pub fn with_group(mut self, group: GroupOptions) -> Self {
        self.group = group;
        self
    }

    /// Sets the options of the agent. Their name, rank and world size are replaced, and credentials are added if they
    /// have none. Default: the options of [`AgentOptions::new`].
    pub fn with_agent(mut self, agent: AgentOptions) -> Self {
        self.agent = agent;
        self
    }

    /// Sets the options of remote references.
    pub fn with_references(mut self, rrefs: RRefOptions) -> Self {
        self.rrefs = rrefs;
        self
    }

    /// Sets the time limit of joining the group, and of the shutdown; `None` waits indefinitely. Default 300 s, the
    /// default of stores. The start of the agent has a separate limit, [`AgentOptions::with_start_timeout`].
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Joins all workers, and returns when each can be called by its name. Blocks for at most
    /// [`with_timeout`](Self::with_timeout), then for at most [`AgentOptions::with_start_timeout`].
    ///
    /// # Errors
    /// [`RpcError`] with the step that failed.
    pub fn init(mut self, name: &str, functions: Functions) -> Result<Rpc, RpcError> {
        self.prepare_agent()?;
        let options = self.group.clone().with_timeout(self.timeout);
        let group = match &self.init_method {
            None => options.init_from_env()?,
            Some(method) => {
                let opened = RendezvousOptions::default()
                    .with_rank(method.rank)
                    .with_world_size(method.world_size)
                    .with_timeout(self.timeout)
                    .with_server_options(
                        ServerOptions::default().with_groups(c10d_membership::groups),
                    )
                    .open(&method.url)
                    .map_err(Box::new)?;
                let membership = Membership {
                    rank: method.rank,
                    world_size: method.world_size,
                    hosts_store: opened.hosts_store,
                };
                options.join_as(membership, opened.store)?
            }
        };
        self.start(name, functions, group)
    }

    /// Joins a group whose workers come and go, like PyTorch's `init_rpc` without a world size. Returns at once: the
    /// workers of the group are those that have joined by the time of a call, and a worker leaves with
    /// [`RpcMember::leave`].
    ///
    /// The workers find each other in `store`, which must outlive them, for example the store of a server that none
    /// of them hosts. Name and rank are unique among the workers. A process that joins with the name and the rank of
    /// another process replaces that process. The group's name separates several groups of one store.
    /// [`RpcOptions::with_init_method`] has no effect.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use c10d::RpcOptions;
    /// use c10d::rpc::{AgentOptions, Functions};
    /// use c10d_store::HashStore;
    ///
    /// let store = Arc::new(HashStore::new());
    /// let local = AgentOptions::new("", 0).with_host("127.0.0.1");
    /// let join = |name: &str, rank| {
    ///     let mut functions = Functions::new();
    ///     functions.register("double", |_, number: i64| Ok(2 * number))?;
    ///     let options = RpcOptions::default().with_agent(local.clone());
    ///     options.join(store.clone(), name, rank, functions)
    /// };
    /// let first = join("first", 0)?;
    /// let late = join("late", 1)?;
    /// let four: i64 = first.rrefs().call("late", "double").run(2_i64)?;
    /// assert_eq!(four, 4);
    /// late.leave()?;
    /// first.leave()?;
    /// # Ok::<(), c10d::RpcError>(())
    /// ```
    ///
    /// # Errors
    /// [`RpcError`] with the step that failed.
    pub fn join(
        mut self,
        store: Arc<dyn Store>,
        name: &str,
        rank: u32,
        functions: Functions,
    ) -> Result<RpcMember, RpcError> {
        self.prepare_agent()?;
        let cancel = self.group.cancel();
        let store = match cancel.is_never() {
            true => store,
            false => store.with_cancel(cancel),
        };
        let store = PrefixStore::new(format!("rpc/{}/members", self.group.name()?), store);
        let timeout = self.timeout;
        self.agent = self.agent.with_worker(name, rank).without_world_size();
        let (rrefs, agent) = self.start_agent(functions, store)?;
        Ok(RpcMember {
            rrefs,
            agent,
            timeout,
        })
    }

    fn prepare_agent(&mut self) -> Result<(), RpcError> {
        let mut agent = self.agent.clone();
        if !agent.has_credentials() {
            agent = with_credentials(agent, self.group.credentials_of_calls()?);
        }
        let cancel = self.group.cancel();
        if !cancel.is_never() {
            agent = agent.with_cancel(cancel.clone());
        }
        self.agent = agent;
        Ok(())
    }

    fn start(mut self, name: &str, functions: Functions, group: Group) -> Result<Rpc, RpcError> {
        // A launcher's store may hold what workers of an earlier round have left.
        let round = (group.rank() == 0).then(|| format!("{:016x}", random()));
        let round = group.broadcast(0, round.as_ref().map(String::as_bytes))?;
        let round = String::from_utf8_lossy(&round);
        let prefix = format!("rpc/{}/{round}", group.name());
        let store = PrefixStore::new(prefix, Arc::clone(group.store()));

        let too_many = |_| GroupError::InvalidArgument {
            detail: format!("{} workers are too many", group.world_size()),
        };
        let rank = u32::try_from(group.rank()).map_err(too_many)?;
        let world_size = u32::try_from(group.world_size()).map_err(too_many)?;
        let timeout = self.timeout;
        self.agent = self.agent.with_worker(name, rank);
        self.agent = self.agent.with_world_size(world_size);
        let (rrefs, agent) = self.start_agent(functions, store)?;
        Ok(Rpc {
            rrefs,
            agent,
            group,
            timeout,
        })
    }

    fn start_agent(
        self,
        functions: Functions,
        store: PrefixStore,
    ) -> Result<(RRefs, Agent), RpcError> {
        let mut registry = Registry::new();
        let rrefs = RRefs::register_with(&mut registry, functions, self.rrefs)?;
        let agent = Agent::start(self.agent, registry, Arc::new(store)).map_err(Box::new)?;
        rrefs.attach(agent.handle())?;
        Ok((rrefs, agent))
    }
}

#[cfg(feature = "tls")]
fn with_credentials(agent: AgentOptions, credentials: Option<Credentials>) -> AgentOptions {
    match credentials {
        None => agent,
        Some(credentials) => agent.with_credentials(credentials),
    }
}

/// There are no credentials without the feature.
#[cfg(not(feature = "tls"))]
fn with_credentials(agent: AgentOptions, _: Option<Credentials>) -> AgentOptions {
    agent
}

/// The calls and references of one worker, started by [`init_rpc`].
///
/// ```no_run
/// use c10d::rpc::Functions;
///
/// let mut functions = Functions::new();
/// functions.register("double", |_, number: i64| Ok(2 * number))?;
/// let rpc = c10d::init_rpc("worker0", functions)?;
/// let four: i64 = rpc.rrefs().call("worker1", "double").run(2_i64)?;
/// println!("worker1 replied {four}");
/// let held = rpc.shutdown()?;
/// assert!(held.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Rpc {
    rrefs: RRefs,
    agent: Agent,
    group: Group,
    timeout: Option<Duration>,
}

impl Rpc {
    /// Calls with references, and references to values on other workers.
    #[must_use]
    pub const fn rrefs(&self) -> &RRefs {
        &self.rrefs
    }

    /// Calls without references, and information about the other workers.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the group, for the rank, the world size, and broadcasts and barriers of small values.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.group
    }

    /// Shuts down together with all other workers: waits until no call is under way, frees all values, and returns
    /// what was still referenced. Blocks for at most the timeout in each of its three steps, and until running
    /// functions have returned.
    ///
    /// # Errors
    /// [`RpcError`] with the step that failed; later steps are not done, and the agent stops at once.
    pub fn shutdown(self) -> Result<LeakReport, RpcError> {
        let report = self
            .rrefs
            .shutdown(&self.agent, self.timeout)
            .map_err(Box::new)?;
        self.agent.shutdown(self.timeout)?;
        self.group.finish()?;
        Ok(report)
    }
}

/// The calls and references of one worker of a group that workers join and leave, from [`RpcOptions::join`]. Dropping
/// it stops the agent at once: calls that are under way fail, and the other workers lose the values of this one.
#[derive(Debug)]
pub struct RpcMember {
    rrefs: RRefs,
    agent: Agent,
    timeout: Option<Duration>,
}

impl RpcMember {
    /// Calls with references, and references to values on other workers.
    #[must_use]
    pub const fn rrefs(&self) -> &RRefs {
        &self.rrefs
    }

    /// Calls without references, and the list of the other workers.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Leaves the group, and returns what was still referenced: waits until this worker's own calls have ended and no
    /// other worker holds its values. Blocks for at most the timeout in each of its two steps, and until running
    /// functions have returned.
    ///
    /// # Errors
    /// [`RpcError`] with the step that failed. The next step is not done then, and the agent is stopped at once.
    pub fn leave(self) -> Result<LeakReport, RpcError> {
        let report = self.rrefs.leave(self.timeout).map_err(Box::new)?;
        self.agent.shutdown(self.timeout)?;
        Ok(report)
    }
}

/// The error of a worker that could not start or shut down its calls.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The workers did not find each other.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The store of the URL could not be opened.
    #[error(transparent)]
    Url(#[from] Box<UrlError>),
    /// A function could not be added.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The functions could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The agent could not start.
    #[error(transparent)]
    Start(#[from] Box<StartError>),
    /// The references could not be attached to the agent.
    #[error(transparent)]
    References(#[from] RRefError),
    /// The shutdown of the references is incomplete.
    #[error(transparent)]
    Shutdown(#[from] Box<ShutdownError>),
    /// The agent could not shut down together with the other workers.
    #[error(transparent)]
    Termination(#[from] TerminationError),
}

c10d_socket::debug_as_display!(RpcError);
