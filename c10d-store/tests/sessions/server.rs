//! A server in a child process: this binary again, with [`CHILD`] set.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use c10d_store::{ServerOptions, TcpStoreServer};

/// Set in a process that only serves a store, to the limit for the unsent replies of a connection and the memory limit; 0 for
/// no limit.
const CHILD: &str = "C10D_TEST_SESSION_SERVER";

pub(crate) const MIB: u64 = 1 << 20;

/// The server of a test, in a child process.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    /// The process exits when it is closed.
    stdin: Option<ChildStdin>,
    /// Read up to the address.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(unsent_bytes_max: u64) -> Self {
        Self::start_with(unsent_bytes_max, 0)
    }

    /// Starts a server with a memory limit.
    pub(crate) fn start_with(unsent_bytes_max: u64, memory_max: u64) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "server::child", "--nocapture"])
            .env(CHILD, format!("{unsent_bytes_max} {memory_max}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let stdin = process.stdin.take();
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let address = stdout
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split_once("serving on ")?.1.parse().ok())
            .expect("it serves");
        Self {
            process,
            address,
            stdin,
            _stdout: stdout,
        }
    }

    /// The most memory that the process has had, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_bytes(&self) -> u64 {
        let bytes = self.status_bytes("VmHWM:");
        let _ = writeln!(io::stderr(), "{} MiB", bytes / MIB);
        bytes
    }

    /// The memory that the process has now, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    #[cfg(target_os = "linux")]
    fn status_bytes(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.expect("a field").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("a number") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}

/// The child processes of the other tests run this. Without the variable it does nothing.
#[test]
fn child() {
    let Ok(limits) = std::env::var(CHILD) else {
        return;
    };
    let limits: Vec<usize> = limits.split(' ').map_while(|it| it.parse().ok()).collect();
    let mut options = ServerOptions::default().with_unsent_bytes_max(limits[0]);
    if limits[1] > 0 {
        options = options.with_memory_max(limits[1]);
    }
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    writeln!(io::stdout(), "serving on {}", server.local_addr()).expect("a pipe");
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
