//! A server in a child process: the parent starts and kills it, the child announces its address.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::affinity::{Cores, on_server_core};
use super::error::BenchError;
use super::process::Process;
use crate::parent::end_with_parent;

/// The first words of the line with which a server announces its address, `c10d store serve` among them.
const ANNOUNCEMENT: &str = "listening on ";

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
            .strip_prefix(ANNOUNCEMENT)
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

/// In the child, before anything else: has it killed when its parent, the measurement, ends.
pub(super) fn end_with_measurement() {
    if let Err(error) = end_with_parent() {
        log::debug!("this process outlives its parent if that is killed: {error}");
    }
}

/// In the child: reports its address to the parent.
pub(super) fn announce(address: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{ANNOUNCEMENT}{address}").and_then(|()| stdout.flush())
}
