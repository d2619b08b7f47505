//! A callback for the store servers that this process hosts.

use std::fmt;
use std::sync::Arc;

use c10d_store::TcpStoreServer;

/// A callback that gets each store server that a rendezvous starts or shares in this process: that of the
/// rendezvous, and that of the workers. It is called before the address is published, and must not block.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use c10d_store::TcpStoreServer;
/// use elastic_rendezvous::{RendezvousParameters, ServerHook, create_handler};
///
/// let ports: Arc<Mutex<Vec<u16>>> = Arc::default();
/// let seen = Arc::clone(&ports);
/// let hook = ServerHook::new(move |server: &TcpStoreServer| {
///     seen.lock().expect("no panic").push(server.local_addr().port());
/// });
/// let parameters = RendezvousParameters::new("c10d", "localhost:0", "job", 1, 1)?
///     .with_server_hook(hook);
/// let node = create_handler(&parameters)?;
/// let round = node.next_rendezvous()?;
/// assert_eq!(ports.lock().expect("no panic").last(), Some(&round.bootstrap.master.port()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ServerHook(Arc<dyn Fn(&TcpStoreServer) + Send + Sync>);

impl ServerHook {
    /// A hook that calls `hook`.
    #[must_use]
    pub fn new(hook: impl Fn(&TcpStoreServer) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(crate) fn call(&self, server: &TcpStoreServer) {
        (self.0)(server);
    }
}

/// Clones of one hook are equal.
impl PartialEq for ServerHook {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ServerHook {}

impl fmt::Debug for ServerHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerHook")
    }
}
