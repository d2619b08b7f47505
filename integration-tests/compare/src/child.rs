//! A rival's server in a separate process: the parent starts it, and the child serves.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{self, Child, Command, Stdio};
use std::thread;

use clap::ValueEnum;

use crate::error::CompareError;
use crate::placement::Placement;
use crate::rival::Rival;
use crate::rivals;

/// Precedes the address on the child's standard output.
const ANNOUNCEMENT: &str = "listening on ";

/// A running server. Dropping it kills the process, which also exits by itself when this process ends for
/// any reason.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts this program as the rival's server, and waits until it listens or exits.
    pub(crate) fn start(rival: Rival, placement: Placement) -> Result<Self, CompareError> {
        let executable =
            env::current_exe().map_err(CompareError::setup(rival, "cannot find this program"))?;
        let name = rival.to_possible_value();
        let child = placement.on_server_core(|| {
            Command::new(executable)
                .arg("--serve")
                .args(name.as_ref().map(|name| name.get_name()))
                // Closed when this process ends: the server then exits.
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(CompareError::setup(rival, "cannot start the server"))
        })?;
        let mut server = Self {
            child,
            // Replaced below; until then `server` only kills the child if an error returns.
            address: SocketAddr::from(([0; 4], 0)),
        };
        server.address = server
            .read_address()
            .map_err(CompareError::setup(rival, "the server did not start"))?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The child writes nothing after this line, so reading on is not needed.
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

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the child has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until standard input is closed. Returns only on an error.
pub(crate) fn serve(rival: Rival) -> Result<(), CompareError> {
    // Not joined: this thread ends the process or ends with it.
    thread::Builder::new()
        .name("parent-watch".to_owned())
        .spawn(|| {
            let ended = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(i32::from(ended.is_err()));
        })
        .map_err(CompareError::system("cannot watch standard input"))?;
    rivals::serve(rival, &mut |address| {
        let mut stdout = io::stdout();
        writeln!(stdout, "{ANNOUNCEMENT}{address}").and_then(|()| stdout.flush())
    })
}
