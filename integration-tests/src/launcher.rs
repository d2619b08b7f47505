//! Launchers, `c10d run` and torchrun, that start workers for a test, and what their workers find.
//!
//! The workers are `python/elastic_worker.py`. They tell through files in the job's folder, so that a
//! worker that is started again, or somewhere else, is heard as well.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::ChildProcess;
use crate::torch::{PYTHON_VARIABLE, python, script};

/// Names a launcher to everything it starts, so that a test finds what is left of it.
const LAUNCHER_VARIABLE: &str = "C10D_TEST_LAUNCHER";

/// Has the worker killed with its launcher, where the launcher does not see to that itself.
const DIE_VARIABLE: &str = "C10D_TEST_DIE_WITH_LAUNCHER";

/// Which launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `c10d run`.
    C10d,
    /// PyTorch's torchrun.
    Torchrun,
}

/// A job: a folder that its workers write to.
#[derive(Debug, Clone)]
pub struct Job {
    folder: PathBuf,
}

/// A running launcher. Dropping it kills it and everything that it has started.
#[derive(Debug)]
pub struct Launcher {
    process: ChildProcess,
    /// What [`LAUNCHER_VARIABLE`] is for it.
    mark: String,
}

impl Job {
    /// A job whose workers write to `folder`, which exists and is empty.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Starts a launcher; `name` tells it from the others of the job. `options` come before
    /// the worker's script, `words` after it: its mode, and what belongs to that besides the folder.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start<O, W>(
        &self,
        kind: Kind,
        name: &str,
        options: impl IntoIterator<Item = O>,
        words: &[W],
    ) -> Launcher
    where
        O: AsRef<OsStr>,
        W: AsRef<OsStr>,
    {
        let mark = format!("{}/{name}", self.folder.display());
        let mut command = match kind {
            Kind::C10d => {
                let mut command = prepared(Command::new(c10d()));
                command.arg("run");
                // What it runs scripts with.
                command.env(
                    "PYTHON_EXEC",
                    env::var_os(PYTHON_VARIABLE).unwrap_or_default(),
                );
                command
            }
            Kind::Torchrun => {
                let mut command = prepared(python());
                command
                    .args(["-m", "torch.distributed.run"])
                    .env(DIE_VARIABLE, "1");
                command
            }
        };
        let (mode, words) = words.split_first().expect("a worker has a mode");
        command
            .args(options)
            .arg(script("elastic_worker.py"))
            .arg(mode)
            .arg(&self.folder)
            .args(words)
            .env(LAUNCHER_VARIABLE, &mark);
        Launcher {
            process: ChildProcess::start(format!("{kind:?} {name}"), &mut command),
            mark,
        }
    }

    /// Has the workers in a loop end.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn stop(&self) {
        fs::write(self.folder.join("stop"), "").expect("the job's folder can be written to");
    }

    /// What one worker wrote; `None` if it has not.
    ///
    /// # Panics
    /// When that is not JSON.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<Value> {
        let text = fs::read(self.folder.join(name)).ok()?;
        Some(serde_json::from_slice(&text).expect("workers write JSON"))
    }

    /// What the workers in a loop wrote last, as far as they still run.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn now(&self) -> Vec<Value> {
        let mut found = self.read_all("now.");
        found.retain(|found| {
            let pid = found["pid"].as_i64().unwrap_or_default();
            // One that has ended, waited for or not, has no environment any more.
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|bytes| !bytes.is_empty())
        });
        found
    }

    /// What each worker wrote that was started and was to fail, or to see another one fail.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn lives(&self) -> Vec<Value> {
        self.read_all("life.")
    }

    fn read_all(&self, prefix: &str) -> Vec<Value> {
        let entries = fs::read_dir(&self.folder).expect("the job's folder can be read");
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .filter_map(|name| self.read(&name))
            .collect()
    }
}

impl Launcher {
    /// Its process.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// Waits for its end and gives its exit code; `None` when a signal has ended it.
    ///
    /// # Panics
    /// When it does not end in `limit`.
    pub fn end(&mut self, limit: Duration) -> Option<i32> {
        self.process.wait(limit).code()
    }

    /// Sends it a signal, and only it.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The processes that live and that it has started, at first or second hand; itself included.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<i32> {
        let wanted = format!("{LAUNCHER_VARIABLE}={}", self.mark);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                let mut variables = environment.split(|byte| *byte == 0);
                variables.any(|variable| variable == wanted.as_bytes())
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Before the process itself is: its standard error ends with the last worker.
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// An address that was free a moment ago, for a server that cannot say which port it was given.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
}

/// The command of this workspace, built by cargo as the tests were: a test of another package is not
/// told where it is.
///
/// # Panics
/// When it cannot be built.
fn c10d() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["build", "--package=c10d-cli", "--bin=c10d", "--locked"])
            .arg("--message-format=json")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit());
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let output = command.output().expect("cargo can be run");
        assert!(output.status.success(), "{command:?}: {}", output.status);
        let messages = output.stdout.split(|byte| *byte == b'\n');
        messages
            .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == "c10d")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .expect("cargo tells where it has put the command")
    })
}

/// A launcher whose surroundings do not matter.
fn prepared(mut command: Command) -> Command {
    let given = env::vars_os().map(|(name, _)| name);
    for name in given.filter(|name| name.as_encoded_bytes().starts_with(b"PET_")) {
        command.env_remove(name);
    }
    for name in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"] {
        command.env_remove(name);
    }
    command
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TORCH_CPP_LOG_LEVEL", "ERROR")
        // The interface that gloo connects on.
        .env("GLOO_SOCKET_IFNAME", "lo");
    command
}
