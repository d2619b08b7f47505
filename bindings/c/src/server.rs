//! A server without a client.

use std::sync::{Mutex, MutexGuard, PoisonError};

use c10d_socket::{ListenOptions, ProcessBound, listen};
use c10d_store::{StoreError, TcpStoreServer};

use crate::border::{self, CText};
use crate::failure::Failure;
use crate::interface::{Argument, frees, operations};
use crate::options::Options;
use crate::status::Status;

/// A TCPStore server for clients of this library, of `c10d` and of PyTorch, which runs in a separate thread. Any number
/// of threads of the process that started a server may use it.
#[derive(Debug)]
pub struct ServerHandle(ProcessBound<Server>);

#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    /// `None` once it is stopped.
    running: Mutex<Option<TcpStoreServer>>,
}

impl<'a> Argument for Option<&'a ServerHandle> {
    type Checked = &'a Server;

    fn check(self, name: &'static str) -> Result<&'a Server, Failure> {
        Ok(border::not_null(self, name)?.0.get()?)
    }
}

impl Server {
    fn running(&self) -> MutexGuard<'_, Option<TcpStoreServer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> Failure {
        let text = format!("the server of port {} was stopped", self.port);
        Failure::new(Status::C10D_ERROR_CLOSED, text)
    }
}

operations! {
    /// Starts a server. It listens on `host`: an address, a name, which means all of its addresses that this machine has,
    /// or `*` for all interfaces. For port 0 the system chooses one: `c10d_server_port`. TCPStore's protocol has no
    /// authentication: listen on an address of the cluster's own network, or use a secret. `options` may be null.
    fn c10d_server_start(host: CText, port: u16, options: Option<&Options>) -> server: Option<Box<ServerHandle>> = {
        let mut listen_options = ListenOptions::default().with_port(port);
        match host.required("host")? {
            "*" => {}
            host => listen_options = listen_options.with_host(host),
        }
        let listeners = listen(&listen_options).map_err(StoreError::from)?;
        let server = TcpStoreServer::serve(listeners, options.server())?;
        let server = Server {
            port: server.local_addr().port(),
            running: Mutex::new(Some(server)),
        };
        Box::new(ServerHandle(ProcessBound::new(server)))
    };

    /// The port that the server listens on, or listened on until it was stopped.
    fn c10d_server_port(server: Option<&ServerHandle>) -> port: u16 = server.port;

    /// The number of connections. A host can wait until its clients have left before it stops the server.
    fn c10d_server_connection_count(server: Option<&ServerHandle>) -> count: usize = {
        let running = server.running();
        running.as_ref().ok_or_else(|| server.stopped())?.connection_count()
    };

    /// Checks that the server still serves. `C10D_ERROR_JOURNAL` if its directory could not be written: the server has
    /// then stopped and closed all connections, and the directory has all confirmed writes. `C10D_ERROR_CLOSED` after a
    /// stop.
    fn c10d_server_check(server: Option<&ServerHandle>) = {
        let running = server.running();
        let running = running.as_ref().ok_or_else(|| server.stopped())?;
        if let Some(error) = running.journal_failure() {
            return Err(Failure::new(Status::C10D_ERROR_JOURNAL, error.to_string()));
        }
        if !running.is_running() {
            let text = format!("the server of port {} has stopped on its own", server.port);
            return Err(Failure::new(Status::C10D_ERROR_SERVER, text));
        }
    };

    /// Closes all connections and joins the server's thread, which takes microseconds. Without a directory the data is lost.
    /// Stopping it again changes nothing.
    fn c10d_server_stop(server: Option<&ServerHandle>) = {
        let running = server.running().take();
        if let Some(running) = running {
            running.shutdown();
        }
    };
}

frees! {
    /// Stops the server if it runs, and frees it. Calls on the server must have returned. Null is ignored. In a forked
    /// child, only the memory of the handle is freed.
    fn c10d_server_free(server: ServerHandle);
}
