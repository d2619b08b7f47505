//! A server as a child process, from its start to its end.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::affinity::{Cores, on_server_core};
use super::error::BenchError;
use super::process::Process;

/// A server that this program started from its own executable. Killed on drop.
#[derive(Debug)]
pub(super) struct ServerChild {
    child: Child,
    address: SocketAddr,
}

impl ServerChild {
    /// Starts `c10d` with the arguments, on the servers' core, and waits for its line.
    pub(super) fn start(arguments: &[String], cores: Option<Cores>) -> Result<Self, BenchError> {
        let child = on_server_core(cores, || {
            let executable = env::current_exe()
                .map_err(BenchError::system("cannot find this program's file"))?;
            let log_level = env::var_os("RUST_LOG").unwrap_or_else(|| "warn".into());
            Command::new(executable)
                .args(arguments)
                // What it says about itself at the start is not asked for here.
                .env("RUST_LOG", log_level)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(BenchError::system("cannot start the server"))
        })?;
        let mut server = Self {
            child,
            // Replaced below; until then `server` only sees to it that the child is killed.
            address: SocketAddr::from(([0; 4], 0)),
        };
        server.address = server
            .read_address()
            .map_err(BenchError::system("the server did not start"))?;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// The child says nothing more after its line, so its output need not be read on. Its end ends
    /// the wait too.
    fn read_address(&mut self) -> io::Result<SocketAddr> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        line.trim_end()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| io::Error::other(format!("it wrote {line:?}")))
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
