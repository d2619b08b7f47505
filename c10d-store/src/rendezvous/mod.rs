//! Opens stores by URL, like PyTorch's `torch.distributed.rendezvous()`.

mod error;
mod plan;
#[cfg(test)]
mod tests;
mod url;

use std::env;
use std::sync::Arc;
use std::time::Duration;

use self::plan::{Plan, Target};
use crate::client::{TcpStore, TcpStoreOptions};
#[cfg(feature = "file")]
use crate::file_store::{FileStore, FileStoreOptions};
use crate::server::ServerOptions;
use crate::store::Store;
pub use error::UrlError;

/// PyTorch's `default_pg_timeout`, 30 min.
const DEFAULT_RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A store, with the rank of this process and the world size.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rendezvous {
    /// The open store, connected if it is remote.
    pub store: Arc<dyn Store>,
    /// The rank of this process. Not checked against the world size, like in PyTorch.
    pub rank: usize,
    /// The number of processes; `None` for a negative number, which in PyTorch means "not fixed".
    pub world_size: Option<usize>,
    /// Whether this process serves the store, which is then lost when the process exits.
    pub hosts_store: bool,
}

/// Opens the store that `url` names, with the default options: see [`RendezvousOptions::open`].
///
/// | URL | store | rank and world size |
/// |---|---|---|
/// | `tcp://HOST:PORT?rank=R&world_size=W` | [`TcpStore`]; rank 0 hosts it | from the query |
/// | `env://` | the same, at `MASTER_ADDR` and `MASTER_PORT` | from the query, otherwise `RANK` and `WORLD_SIZE` |
/// | `file:///PATH?rank=R&world_size=W` | [`FileStore`] | from the query |
///
/// ```
/// use c10d_store::{StoreExt, rendezvous};
///
/// # fn main() -> Result<(), c10d_store::UrlError> {
/// let worker = rendezvous("tcp://127.0.0.1:0?rank=0&world_size=1")?;
/// worker.store.set("address", "10.0.0.2:1234")?;
/// assert_eq!((worker.rank, worker.world_size), (0, Some(1)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`RendezvousOptions::open`].
pub fn rendezvous(url: &str) -> Result<Rendezvous, UrlError> {
    RendezvousOptions::default().open(url)
}

/// The arguments of PyTorch's `rendezvous()` besides the URL.
///
/// ```
/// use c10d_store::{RendezvousOptions, StoreExt};
///
/// let options = RendezvousOptions::default().with_rank(0).with_world_size(1);
/// let opened = options.open("tcp://localhost:0")?;
/// assert_eq!((opened.rank, opened.world_size), (0, Some(1)));
/// opened.store.set("key", "value")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RendezvousOptions {
    rank: Option<usize>,
    world_size: Option<usize>,
    timeout: Option<Duration>,
    server_options: ServerOptions,
}

impl Default for RendezvousOptions {
    fn default() -> Self {
        Self {
            rank: None,
            world_size: None,
            timeout: Some(DEFAULT_RENDEZVOUS_TIMEOUT),
            server_options: ServerOptions::default(),
        }
    }
}

impl RendezvousOptions {
    /// Sets the rank, for a URL without rank and world size.
    pub const fn with_rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Sets the world size, for a URL without rank and world size.
    pub const fn with_world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Sets the timeout of the store, and of opening it; `None` waits indefinitely. Default 30 min, PyTorch's timeout
    /// of process groups.
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the options of the server, for the process that hosts the store. Default [`ServerOptions::default`].
    pub fn with_server_options(mut self, options: ServerOptions) -> Self {
        self.server_options = options;
        self
    }

    /// Opens the store that `url` names, with the environment variables of this process. Blocks for at
    /// most the timeout: rank 0 of a TCP store until all ranks have joined, other ranks until they have
    /// connected.
    ///
    /// Follows `torch/distributed/rendezvous.py` of PyTorch 2.15, including unusual URLs: nothing is
    /// percent-decoded, the last of repeated parameters counts, and the fragment and the host of a `file`
    /// URL are ignored. `use_libuv` is accepted without effect. Masters of one process and port share a
    /// server. If `TORCHELASTIC_USE_AGENT_STORE` is `True` and the launcher serves the store at this
    /// address, no rank hosts it. Unlike in PyTorch, a negative rank is refused. As in PyTorch, a URL
    /// works for one rendezvous only.
    ///
    /// # Errors
    /// [`UrlError::Store`] if the store cannot be opened; other variants at once, if the URL or the
    /// environment is incomplete or malformed.
    pub fn open(&self, url: &str) -> Result<Rendezvous, UrlError> {
        self.open_in(url, &|name| env::var(name).ok())
    }

    /// Opens the store that `url` names, with other environment variables than the process's: `variable` returns the
    /// value of the variable with the given name.
    ///
    /// ```
    /// use c10d_store::RendezvousOptions;
    ///
    /// # fn main() -> Result<(), c10d_store::UrlError> {
    /// let variable = |name: &str| match name {
    ///     "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
    ///     "MASTER_PORT" => Some("0".to_owned()),
    ///     _ => None,
    /// };
    /// let worker = RendezvousOptions::default()
    ///     .with_rank(0)
    ///     .with_world_size(1)
    ///     .open_in("env://", &variable)?;
    /// assert_eq!(worker.rank, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`open`](Self::open). It also blocks for the same time.
    pub fn open_in(
        &self,
        url: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Rendezvous, UrlError> {
        let plan = Plan::new(url, self.rank, self.world_size, variable)?;
        let (store, hosts_store): (Arc<dyn Store>, bool) = match plan.target {
            Target::Tcp {
                host,
                port,
                is_master,
                multi_tenant,
            } => {
                let mut options = TcpStoreOptions::default()
                    .with_master(is_master)
                    .with_multi_tenant(multi_tenant)
                    .with_server_options(self.server_options.clone())
                    .with_timeout(self.timeout);
                if let Some(world_size) = plan.world_size {
                    options = options.with_world_size(world_size);
                }
                let store = TcpStore::open(&host, port, options)?;
                let hosts_store = store.server().is_some();
                (Arc::new(store), hosts_store)
            }
            #[cfg(feature = "file")]
            Target::File { path } => {
                let mut options = FileStoreOptions::default().with_timeout(self.timeout);
                if let Some(world_size) = plan.world_size {
                    options = options.with_world_size(world_size);
                }
                (Arc::new(FileStore::open_with(path, &options)?), false)
            }
            #[cfg(not(feature = "file"))]
            Target::File { .. } => {
                return Err(UrlError::Malformed {
                    url: url.to_owned(),
                    detail: "a file needs the feature `file` of c10d-store".to_owned(),
                });
            }
        };
        Ok(Rendezvous {
            store,
            rank: plan.rank,
            world_size: plan.world_size,
            hosts_store,
        })
    }
}
