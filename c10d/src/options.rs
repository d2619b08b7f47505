//! Options of joining a group.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::{
    Credentials, DEFAULT_TIMEOUT, ServerOptions, Store, TcpStore, TcpStoreOptions, WireLimits,
};

use crate::environment::{Environment, WORLD_SIZE_MAX};
use crate::error::GroupError;
use crate::group::{Group, Membership};
use crate::keys;

/// The name of the group of all workers.
const DEFAULT_NAME: &str = "world";

/// The shortest limit on the values that a store of the group's own accepts: room for the ranks that have arrived.
const REPLY_BYTES_MIN: usize = 64 << 20;

/// Options of joining a group: its name, the time limits, the longest value.
///
/// ```
/// use std::time::Duration;
///
/// use c10d::GroupOptions;
///
/// let options = GroupOptions::default().with_timeout(Duration::from_secs(60));
/// # let variable = |name: &str| match name {
/// #     "RANK" | "MASTER_PORT" => Some("0".to_owned()),
/// #     "WORLD_SIZE" => Some("1".to_owned()),
/// #     "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
/// #     _ => None,
/// # };
/// # let group = options.init_from(&variable)?;
/// # /* as init_from_env() does:
/// let group = options.init_from_env()?;
/// # */
/// assert!(group.rank() < group.world_size());
/// # Ok::<(), c10d::GroupError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct GroupOptions {
    name: String,
    timeout: Option<Duration>,
    value_bytes_max: usize,
    credentials: Option<Credentials>,
    cancel: Cancel,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            timeout: Some(DEFAULT_TIMEOUT),
            value_bytes_max: WireLimits::default().value_bytes_max,
            credentials: None,
            cancel: Cancel::NEVER,
        }
    }
}

impl GroupOptions {
    /// Sets the name of the group, the same on all ranks: 1 to 64 letters, digits, `-`, `_` and `.`. A process can
    /// join a group of a name once. Default `world`.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the time limit for joining, and for each later call without an explicit limit; `None` waits indefinitely.
    /// It is also the timeout of a store that this group opens. Default 300 s, the default of stores.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the longest value of a broadcast or an all-gather, in bytes, sent or received. Default 8 MiB, which is
    /// the limit of PyTorch's servers for one request.
    pub const fn with_value_bytes_max(mut self, bytes: usize) -> Self {
        self.value_bytes_max = bytes;
        self
    }

    /// Sets the credentials of a store that rank 0 hosts. Default: the secret in the file that `C10D_SECRET_FILE`
    /// names (with the feature `tls`), and none without that variable. The store of a launcher admits the ranks
    /// without them.
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the [`Cancel`] that interrupts the call that joins, and the later calls of the group. Default
    /// [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    #[cfg(feature = "rpc")]
    pub(crate) fn name(&self) -> Result<&str, GroupError> {
        self.check()?;
        Ok(&self.name)
    }

    #[cfg(feature = "rpc")]
    pub(crate) const fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Joins the group of all workers of this job, and returns when all have joined. Blocks for at most the timeout.
    ///
    /// Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which torchrun and `c10d run` set. Uses the launcher's
    /// store if `TORCHELASTIC_USE_AGENT_STORE` is `True`. Otherwise rank 0 hosts a store at that address, and on no other
    /// address of its machine. Follows `torch/distributed/rendezvous.py` of PyTorch 2.15.
    ///
    /// # Errors
    /// [`GroupError::Environment`] if a variable is missing or malformed, [`GroupError::Missing`] with the ranks that did
    /// not join in time, [`GroupError::Taken`], [`GroupError::Mismatch`] for different world sizes, and
    /// [`GroupError::Store`] if the store cannot be hosted or reached.
    pub fn init_from_env(self) -> Result<Group, GroupError> {
        self.init_from(&|name| env::var(name).ok())
    }

    /// Like [`init_from_env`](Self::init_from_env), with other environment variables: `variable` returns the value of
    /// the variable with the given name.
    ///
    /// # Errors
    /// The errors of [`init_from_env`](Self::init_from_env).
    pub fn init_from(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Group, GroupError> {
        let began = Instant::now();
        self.check()?;
        let environment = Environment::read(variable)?;
        let mut limits = WireLimits::default();
        let value_bytes_max = self.value_bytes_max.max(limits.value_bytes_max);
        limits.value_bytes_max = value_bytes_max;
        let mut options = TcpStoreOptions::default()
            .with_master(environment.hosts_store)
            .with_multi_tenant(true)
            .with_timeout(self.timeout)
            .with_cancel(self.cancel.clone())
            .with_limits(limits)
            .with_server_options(
                ServerOptions::default()
                    .with_groups(c10d_membership::groups)
                    .with_limits(limits),
            )
            .with_reply_bytes_max(value_bytes_max.max(REPLY_BYTES_MIN));
        if let Some(credentials) = self.credentials_or_file(environment.secret_file.as_deref())? {
            options = options.with_credentials(credentials);
        }
        let store = TcpStore::open(&environment.host, environment.port, options);
        let store = store.map_err(|source| GroupError::Store {
            group: self.name.clone(),
            operation: "join",
            source: Box::new(source),
        })?;
        let membership = Membership {
            rank: environment.rank,
            world_size: environment.world_size,
            hosts_store: environment.hosts_store,
        };
        let deadline = Deadline::after(began, self.timeout);
        let store = Arc::new(store);
        Group::join(
            &self.name,
            store,
            membership,
            self.limits(),
            began,
            deadline,
        )
    }

    /// Joins a group over any store, as `rank` of `world_size`, and returns when all have joined. Blocks for at most the
    /// timeout.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::thread;
    ///
    /// use c10d::GroupOptions;
    /// use c10d_store::HashStore;
    ///
    /// let store = Arc::new(HashStore::new());
    /// thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let store = store.clone();
    ///         scope.spawn(move || {
    ///             let group = GroupOptions::default().join(store, rank, 2)?;
    ///             let id = (rank == 0).then_some(&b"id"[..]);
    ///             assert_eq!(group.broadcast(0, id)?, b"id");
    ///             Ok::<(), c10d::GroupError>(())
    ///         });
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// The errors of [`init_from_env`](Self::init_from_env), and [`GroupError::InvalidArgument`] for a rank that is
    /// not below the world size.
    pub fn join(
        self,
        store: Arc<dyn Store>,
        rank: usize,
        world_size: usize,
    ) -> Result<Group, GroupError> {
        let membership = Membership {
            rank,
            world_size,
            hosts_store: false,
        };
        self.join_as(membership, store)
    }

    pub(crate) fn join_as(
        self,
        membership: Membership,
        store: Arc<dyn Store>,
    ) -> Result<Group, GroupError> {
        let began = Instant::now();
        self.check()?;
        let (rank, world_size) = (membership.rank, membership.world_size);
        if rank >= world_size || world_size > WORLD_SIZE_MAX {
            let detail = format!(
                "rank {rank} of {world_size}: ranks are below the world size, which is at most {WORLD_SIZE_MAX}"
            );
            return Err(GroupError::InvalidArgument { detail });
        }
        let deadline = Deadline::after(began, self.timeout);
        let store = if self.cancel.is_never() {
            store
        } else {
            store.with_cancel(&self.cancel)
        };
        Group::join(
            &self.name,
            store,
            membership,
            self.limits(),
            began,
            deadline,
        )
    }

    const fn limits(&self) -> (Option<Duration>, usize) {
        (self.timeout, self.value_bytes_max)
    }

    fn check(&self) -> Result<(), GroupError> {
        keys::check_name(&self.name).map_err(|detail| GroupError::InvalidArgument { detail })
    }

    /// The credentials of calls between the ranks. Ranks whose store is a launcher's need them as well, because they
    /// are on other machines.
    #[cfg(feature = "rpc")]
    pub(crate) fn credentials_of_calls(&self) -> Result<Option<Credentials>, GroupError> {
        let file = env::var_os(crate::environment::SECRET_FILE).filter(|it| !it.is_empty());
        self.credentials_or_file(file.as_deref().map(Path::new))
    }

    #[cfg(feature = "tls")]
    fn credentials_or_file(&self, file: Option<&Path>) -> Result<Option<Credentials>, GroupError> {
        let from_file = || {
            let secrets = c10d_store::Secret::read_file(file?);
            Some(secrets.and_then(Credentials::from_secrets))
        };
        let credentials = self.credentials.clone().map(Ok).or_else(from_file);
        credentials.transpose().map_err(|error| GroupError::Store {
            group: self.name.clone(),
            operation: "join",
            source: Box::new(error.into()),
        })
    }

    #[cfg(not(feature = "tls"))]
    fn credentials_or_file(&self, file: Option<&Path>) -> Result<Option<Credentials>, GroupError> {
        if self.credentials.is_none() && file.is_some() {
            return Err(GroupError::Environment {
                variable: crate::environment::SECRET_FILE,
                problem: "is set, but this program was built without the feature `tls`".to_owned(),
            });
        }
        Ok(self.credentials.clone())
    }
}
