//! Runs of the benchmarks, and servers that do not outlive their test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use c10d_store::TcpStore;
use serde_json::Value;

/// Far longer than any step takes: ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The exit code and the output of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts exit code 3, and one line on standard error with the program's name and `text`.
    #[track_caller]
    pub(crate) fn assert_fails(&self, text: &str) {
        assert_eq!(self.code, Some(3), "{self:?}");
        assert!(self.stderr.starts_with("c10d-bench: "), "{self:?}");
        assert_eq!(self.stderr.matches('\n').count(), 1, "{self:?}");
        assert!(self.stderr.contains(text), "{self:?}");
    }

    pub(crate) fn stdout_text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_c10d-bench"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

pub(crate) fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ended {
    run_until(arguments, |_| {})
}

/// A run that `end` may end, given its process id.
pub(crate) fn run_until<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    end: impl FnOnce(u32),
) -> Ended {
    let mut command = command(arguments);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap();
    end(child.id());
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The names of a report's rows.
pub(crate) fn names(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect()
}

/// A running server with a known address; killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start_with<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("the server wrote {line:?}"));
        Self {
            address: address.parse().unwrap(),
            child,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it exits.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client of the store at the address.
    pub(crate) fn store(&self) -> TcpStore {
        TcpStore::connect("127.0.0.1", self.address.port()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
