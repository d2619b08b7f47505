//! Runs `c10d run` and torchrun for tests, and reads the results of their workers.
//!
//! The workers run `python/elastic_worker.py` or `python/planned_rank.py`. They report through files in the job's
//! folder, so results of restarted workers and of workers on any node arrive in the same place.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::planned_ranks::Plan;
use crate::process::ChildProcess;
use crate::torch::{PYTHON_VARIABLE, python, script};

/// Identifies the launcher in the environment of all its processes, so that tests find processes that remain.
const LAUNCHER_VARIABLE: &str = "C10D_TEST_LAUNCHER";

/// Makes a worker die with its launcher, for launchers that do not ensure this themselves.
const DIE_VARIABLE: &str = "C10D_TEST_DIE_WITH_LAUNCHER";

/// The launcher program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `c10d run`.
    C10d,
    /// PyTorch's torchrun.
    Torchrun,
}

/// A job, with the folder that its workers write to.
#[derive(Debug, Clone)]
pub struct Job {
    folder: PathBuf,
    /// What the launchers get in addition to this process's environment.
    variables: Vec<(&'static str, OsString)>,
}

/// A running launcher. Drop kills it and all processes that it has started.
#[derive(Debug)]
pub struct Launcher {
    process: ChildProcess,
    /// The value of [`LAUNCHER_VARIABLE`].
    mark: String,
}

impl Job {
    /// Creates a job whose workers write to `folder`, an existing empty directory.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            variables: Vec::new(),
        }
    }

    /// Sets a variable of all launchers.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Starts a launcher. `name` is unique in the job; `options` are the launcher's. `words` are the worker's
    /// mode and the further arguments of the mode.
    ///
    /// # Panics
    /// When the launcher cannot be started.
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
        let (mode, words) = words.split_first().expect("a worker has a mode");
        let mut arguments = vec![script("elastic_worker.py").into_os_string()];
        arguments.push(mode.as_ref().to_owned());
        arguments.push(self.folder.clone().into_os_string());
        arguments.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self.start_script(kind, name, options, arguments, &[])
    }

    /// As [`start`](Self::start), with workers that follow `plan`.
    ///
    /// # Panics
    /// When the launcher cannot be started.
    #[must_use]
    pub fn start_planned<O: AsRef<OsStr>>(
        &self,
        kind: Kind,
        name: &str,
        options: impl IntoIterator<Item = O>,
        plan: &Plan,
    ) -> Launcher {
        let arguments = vec![
            script("planned_rank.py").into_os_string(),
            self.folder.clone().into_os_string(),
            plan.to_json().to_string().into(),
        ];
        self.start_script(kind, name, options, arguments, &[])
    }

    /// Starts `c10d run` with workers that train as `python/train.py` does in this mode, with these variables.
    ///
    /// # Panics
    /// When the launcher cannot be started.
    #[must_use]
    pub fn start_training<O: AsRef<OsStr>>(
        &self,
        mode: &str,
        options: impl IntoIterator<Item = O>,
        variables: &[(&str, &str)],
    ) -> Launcher {
        let arguments = vec![
            script("train.py").into_os_string(),
            self.folder.clone().into_os_string(),
            mode.into(),
        ];
        self.start_script(Kind::C10d, mode, options, arguments, variables)
    }

    /// Starts `c10d run` with workers that run this script of `python/`.
    ///
    /// # Panics
    /// When the launcher cannot be started.
    #[must_use]
    pub fn start_ranks<O: AsRef<OsStr>>(
        &self,
        name: &str,
        script_name: &str,
        options: impl IntoIterator<Item = O>,
    ) -> Launcher {
        let arguments = vec![script(script_name).into_os_string()];
        self.start_script(Kind::C10d, name, options, arguments, &[])
    }

    /// Starts a launcher with these variables. `arguments` are the script or program of the workers and its arguments.
    ///
    /// # Panics
    /// When the launcher cannot be started.
    #[must_use]
    pub fn start_script<O: AsRef<OsStr>>(
        &self,
        kind: Kind,
        name: &str,
        options: impl IntoIterator<Item = O>,
        arguments: Vec<OsString>,
        variables: &[(&str, &str)],
    ) -> Launcher {
        let mark = format!("{}/{name}", self.folder.display());
        let mut command = match kind {
            Kind::C10d => {
                let mut command = prepared(Command::new(c10d()));
                command.arg("run");
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
        command
            .args(options)
            .args(arguments)
            .env(LAUNCHER_VARIABLE, &mark)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied());
        Launcher {
            process: ChildProcess::start(format!("{kind:?} {name}"), &mut command),
            mark,
        }
    }

    /// Tells workers in mode `loop` to exit.
    ///
    /// # Panics
    /// When the stop file cannot be written.
    pub fn stop(&self) {
        fs::write(self.folder.join("stop"), "").expect("the job's folder can be written to");
    }

    /// Reads a file of a worker; `None` if the file does not exist.
    ///
    /// # Panics
    /// When the file is not JSON.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<Value> {
        let text = fs::read(self.folder.join(name)).ok()?;
        Some(serde_json::from_slice(&text).expect("workers write JSON"))
    }

    /// The latest results of the workers in mode `loop` that still run.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn now(&self) -> Vec<Value> {
        let mut found = self.read_all("now.");
        found.retain(|found| {
            let pid = found["pid"].as_i64().unwrap_or_default();
            // An exited process, even a zombie, has no environment.
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|bytes| !bytes.is_empty())
        });
        found
    }

    /// The results that workers in mode `fail` wrote, one for each start of a worker.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn attempts(&self) -> Vec<Value> {
        self.read_all("attempt.")
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
    /// The launcher's process.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the launcher and returns its exit code; `None` if a signal killed it.
    ///
    /// # Panics
    /// When the launcher still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        self.process.wait(limit).code()
    }

    /// Sends a signal to the launcher, but not to its workers.
    ///
    /// # Panics
    /// When the launcher has exited.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The pids of the launcher and of its descendants that still run.
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
        // Before `ChildProcess` is dropped: its drop waits until the last worker has closed standard error.
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A free address on loopback, for a server that cannot report its own. Nothing else gets it meanwhile: the system
/// assigns other ports (above 32767 on Linux), and no port is returned twice.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let first = process::id().wrapping_mul(64);
    let mut addresses = (0..10_000).filter_map(|_| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(10_000 + first.wrapping_add(call) % 10_000).ok()?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    });
    addresses
        .find(|address| TcpListener::bind(address).is_ok())
        .expect("a free port")
}

/// The command that `C10D` names. Without that, builds `c10d` in the profile of the tests and returns its path, which
/// Cargo gives only to tests of its own package.
///
/// # Panics
/// When the build fails.
#[must_use]
pub fn c10d() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| env::var_os("C10D").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        // With the features of `cargo test --workspace`, which has built it then.
        .args(["build", "--workspace", "--bin=c10d", "--locked"])
        .arg("--message-format=json")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit());
    // Cargo describes this package to its tests. The build script of `ring` runs again whenever that description differs,
    // and all crates above `ring` are compiled anew, here and in the next build.
    let given = env::vars_os().map(|(name, _)| name);
    for name in given.filter(|name| name.as_encoded_bytes().starts_with(b"CARGO_PKG_")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR");
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
        .expect("cargo prints the path of the executable")
}

/// Removes the variables that would affect a launcher, and sets those of all tests.
fn prepared(mut command: Command) -> Command {
    let given = env::vars_os().map(|(name, _)| name);
    for name in given.filter(|name| name.as_encoded_bytes().starts_with(b"PET_")) {
        command.env_remove(name);
    }
    for name in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"] {
        command.env_remove(name);
    }
    command
        // These tests may themselves run under one.
        .env("PET_NO_SCHEDULER", "1")
        .env("OMP_NUM_THREADS", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TORCH_CPP_LOG_LEVEL", "ERROR")
        // The interface that gloo connects on.
        .env("GLOO_SOCKET_IFNAME", "lo");
    command
}
