//! A server in a child process: the parent starts and kills it, the child announces its address.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

#[cfg(target_os = "linux")]
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::affinity::{Cores, on_server_core};
use crate::failure::{Context as _, Failure};
use crate::output::print_line;
use crate::process::Process;

/// The start of the line with a server's address; `c10d store serve` prints it too.
pub(super) const ANNOUNCEMENT: &str = "listening on ";

/// A server started from this program's own executable. Killed on drop.
#[derive(Debug)]
pub(super) struct ServerChild {
    child: Child,
    address: SocketAddr,
}

impl ServerChild {
    /// Starts `c10d` with these arguments on the servers' core, and waits for its address.
    pub(super) fn start(arguments: &[String], cores: Option<Cores>) -> Result<Self, Failure> {
        // Hides its startup messages.
        Self::start_with_log(arguments, cores, "warn")
    }

    /// One whose failures are wanted, so that it logs nothing unless the user asks.
    pub(super) fn start_silent(
        arguments: &[String],
        cores: Option<Cores>,
    ) -> Result<Self, Failure> {
        Self::start_with_log(arguments, cores, "off")
    }

    fn start_with_log(
        arguments: &[String],
        cores: Option<Cores>,
        log_level: &str,
    ) -> Result<Self, Failure> {
        let child = on_server_core(cores, || {
            let executable =
                env::current_exe().context("cannot find the executable of this process")?;
            let log_level = env::var_os("RUST_LOG").unwrap_or_else(|| log_level.into());
            Command::new(executable)
                .args(arguments)
                .env("RUST_LOG", log_level)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start the server")
        })?;
        let mut server = Self {
            child,
            // Replaced below; until then `server` only kills the child on drop.
            address: SocketAddr::from(([0; 4], 0)),
        };
        server.address = server
            .read_address()
            .context("the server did not report its address")?;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// How the child has ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Reads one line: the child prints nothing else. Also returns when the child ends.
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
        // Both fail only if the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child, before anything else: has it killed when its parent, the measurement, ends.
pub(super) fn end_with_measurement() {
    #[cfg(target_os = "linux")]
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        log::debug!("this process outlives its parent if that is killed: {error}");
    }
}

/// In the child: reports its address to the parent.
pub(super) fn announce(address: SocketAddr) -> Result<(), Failure> {
    print_line(format_args!("{ANNOUNCEMENT}{address}"))
}

/// In the child: its threads serve until it is killed.
pub(super) fn park() -> ! {
    loop {
        thread::park();
    }
}
