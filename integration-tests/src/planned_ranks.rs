//! Ranks that follow a plan, so that a test can break a job at any step.
//!
//! They run `python/planned_rank.py` with unmodified PyTorch. [`fork`] starts ranks without a launcher: one process
//! loads PyTorch and forks them. [`Job::start_planned`](crate::launcher::Job::start_planned) has a launcher start them.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Map, Value, json};

use crate::process::ChildProcess;
use crate::torch::{python, script};

/// What the ranks of a job do: see `python/planned_rank.py` for the steps.
#[derive(Debug, Clone)]
pub struct Plan {
    steps: Map<String, Value>,
}

/// A rank that [`fork`] has started. Drop kills it.
#[derive(Debug)]
pub struct Rank {
    pid: Pid,
    /// `None` if it ended before the call returned.
    process: Option<OwnedFd>,
}

impl Plan {
    /// All ranks do `steps`; each group has `timeout`.
    #[must_use]
    pub fn all(timeout: Duration, steps: &[&str]) -> Self {
        let mut all = Map::new();
        all.insert("timeout".to_owned(), json!(timeout.as_secs_f64()));
        all.insert("*".to_owned(), json!(steps));
        Self { steps: all }
    }

    /// One rank does other `steps`.
    #[must_use]
    pub fn but(mut self, rank: usize, steps: &[&str]) -> Self {
        self.steps.insert(rank.to_string(), json!(steps));
        self
    }

    /// The plan as `planned_rank.py` reads it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        Value::Object(self.steps.clone())
    }
}

impl Rank {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Sends a signal, unless the rank has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            // Fails only for a process that has ended.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Starts a rank with the variables of `env://` and the store at `store`. It writes its files to `folder`.
///
/// # Panics
/// When PyTorch cannot be loaded, or the rank cannot be started.
#[must_use]
pub fn fork(folder: &Path, plan: &Plan, rank: usize, world_size: usize, store: SocketAddr) -> Rank {
    /// All tests of a test program share it, because loading PyTorch takes seconds.
    static FORKER: LazyLock<Mutex<Forker>> = LazyLock::new(|| Mutex::new(Forker::start()));
    let order = json!({
        "folder": folder,
        "plan": plan.to_json(),
        "environment": {
            "RANK": rank.to_string(),
            "WORLD_SIZE": world_size.to_string(),
            "MASTER_ADDR": store.ip().to_string(),
            "MASTER_PORT": store.port().to_string(),
            // A server runs already, so rank 0 starts none. PyTorch 2.4 requires the second one with the first.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            // The interface that gloo connects on.
            "GLOO_SOCKET_IFNAME": "lo",
        },
    });
    let mut forker = FORKER.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = forker.order(&order);
    let pid = answer["pid"]
        .as_i64()
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.unwrap_or_else(|| panic!("no pid: {answer}"));
    // Under the lock: the forker starts no other process, which could get the pid of this one if it has ended.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok();
    Rank { pid, process }
}

/// The process that forks ranks, which end with it.
struct Forker {
    process: ChildProcess,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Forker {
    fn start() -> Self {
        let mut command = python();
        command.arg(script("planned_rank.py")).arg("--serve");
        let mut process = ChildProcess::start("the forker of ranks", &mut command);
        let (stdin, stdout) = (process.take_stdin(), process.take_stdout());
        let mut forker = Self {
            process,
            stdin,
            stdout,
        };
        forker.answer();
        forker
    }

    fn order(&mut self, order: &Value) -> Value {
        if let Err(error) = writeln!(self.stdin, "{order}") {
            panic!("the forker has ended ({error}):\n{}", self.process.stderr());
        }
        self.answer()
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        serde_json::from_str(&line).unwrap_or_else(|error| {
            let stderr = self.process.stderr();
            panic!("the forker's answer is {line:?} ({read:?}, {error}):\n{stderr}")
        })
    }
}
