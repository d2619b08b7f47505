//! A server in a child process: the parent starts and kills it, the child announces its address.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use c10d_socket::{Cancel, Deadline, wait_for_input};
#[cfg(target_os = "linux")]
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::affinity::{Cores, on_server_core};
use crate::failure::{Context as _, Failure};
use crate::process::Process;
use crate::report::print_line;

/// The start of the line with a server's address; `c10d store serve` also prints it.
const ANNOUNCEMENT: &str = "listening on ";

/// How long one may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The most bytes of the line with an address, which has about a hundred.
const LINE_BYTES_MAX: usize = 1024;

/// A server started from this program's own executable. Killed on drop.
#[derive(Debug)]
pub(super) struct ServerChild {
    child: Child,
    address: SocketAddr,
}

impl ServerChild {
    /// Starts this program with these arguments on the servers' core, and waits for its address.
    pub(super) fn start(arguments: &[String], cores: Option<Cores>) -> Result<Self, Failure> {
        Self::start_with_log(arguments, cores, "warn")
    }

    /// Starts a server whose failures are intended, so that it logs nothing unless the user asks for logs.
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
        let mut command = this_program(log_level)?;
        command.args(arguments).stdout(Stdio::piped());
        let child = on_server_core(cores, || command.spawn().context("cannot start the server"))?;
        let mut server = Self {
            child,
            // Replaced below; until then `server` only kills the child on drop.
            address: SocketAddr::from(([0; 4], 0)),
        };
        let address = announced(&mut server.child)
            .and_then(|address| address.parse().map_err(io::Error::other));
        server.address = address.context("the server did not report its address")?;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Returns the exit status of the child; `None` while it runs.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // Both fail only if the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command of this program's own executable. It logs at this level unless the user sets `RUST_LOG`.
pub(super) fn this_program(log_level: &str) -> Result<Command, Failure> {
    let executable = env::current_exe().context("cannot find the executable of this process")?;
    let mut command = Command::new(executable);
    let log_level = env::var_os("RUST_LOG").unwrap_or_else(|| log_level.into());
    command.env("RUST_LOG", log_level).stdin(Stdio::null());
    Ok(command)
}

/// The address that a child announces, in the first line of its standard output.
fn announced(child: &mut Child) -> io::Result<String> {
    let line = read_line(child, START_TIMEOUT, LINE_BYTES_MAX)?;
    match line.trim_end().strip_prefix(ANNOUNCEMENT) {
        Some(address) => Ok(address.to_owned()),
        None => Err(io::Error::other(format!("it wrote {line:?}"))),
    }
}

/// The next line of a child's standard output, after which it writes nothing until it is told to. Empty at its end.
///
/// # Errors
/// [`Failure`] if the child writes no line in this time, or a longer line.
pub(super) fn read_line(
    child: &mut Child,
    timeout: Duration,
    bytes_max: usize,
) -> io::Result<String> {
    let deadline = Deadline::after(Instant::now(), timeout);
    let mut line = Vec::new();
    let Some(stdout) = &mut child.stdout else {
        return Ok(String::new());
    };
    while line.last() != Some(&b'\n') {
        let left = deadline.remaining(Instant::now());
        if !wait_for_input(stdout, left, &Cancel::NEVER)? {
            return Err(io::Error::other(format!("no line in {timeout:?}")));
        }
        let mut bytes = [0; 4096];
        let count = stdout.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        line.extend_from_slice(&bytes[..count]);
        if line.len() > bytes_max {
            return Err(io::Error::other("its line is too long"));
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Makes the system kill this child when its parent, the measurement, exits. Called in the child before anything
/// else.
pub(super) fn end_with_measurement() {
    #[cfg(target_os = "linux")]
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        log::debug!("this process outlives its parent if that is killed: {error}");
    }
}

/// Reports the address of this child to the parent.
pub(super) fn announce(address: SocketAddr) -> Result<(), Failure> {
    print_line(format_args!("{ANNOUNCEMENT}{address}"))
}

/// Lets the threads of this child serve until it is killed.
pub(super) fn park() -> ! {
    loop {
        thread::park();
    }
}
