//! Runs of the benchmarks, and servers that do not outlive their test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use c10d_store::TcpStore;
use serde_json::Value;

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
    let output = command(arguments).output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The report of a run with `--json`.
#[derive(Debug)]
pub(crate) struct Report(pub(crate) Value);

/// Runs a benchmark, which must succeed without a line on standard error.
#[track_caller]
pub(crate) fn report_of<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Report {
    let ended = run(arguments);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    Report(serde_json::from_slice(&ended.stdout).unwrap())
}

impl Report {
    pub(crate) fn rows(&self) -> &[Value] {
        self.0["rows"].as_array().unwrap()
    }

    /// Asserts the names of the rows, and that the figures of each are in order.
    #[track_caller]
    pub(crate) fn assert_rows<S: AsRef<str>>(&self, names: &[S]) {
        let rows = self.rows().iter();
        let found: Vec<_> = rows.map(|row| row["name"].as_str().unwrap()).collect();
        let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
        assert_eq!(found, names);
        for row in self.rows() {
            let [min, median, max] =
                ["min", "median", "max"].map(|name| row[name].as_f64().unwrap());
            assert!(min <= median && median <= max, "{row}");
        }
    }
}

/// The first note of a report whose run had a limit of 200 open files, for itself and its children.
pub(crate) fn note_with_few_files(arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_c10d-bench");
    let script = format!("ulimit -n 200 && exec {program} {arguments} --json --no-pin --rounds=1");
    let limited = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(limited.status.success(), "{limited:?}");
    let report: Value = serde_json::from_slice(&limited.stdout).unwrap();
    let notes = report["notes"].as_array().unwrap().iter();
    let mut notes = notes.map(|note| note.as_str().unwrap());
    notes
        .find(|note| note.contains("instead of"))
        .unwrap()
        .to_owned()
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
