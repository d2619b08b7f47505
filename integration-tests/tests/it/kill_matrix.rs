//! Kills each process of a node in each phase of its life: the exit codes are those of docs/reference/exit-codes.md, and nothing is left.
//!
//! Workers are plain Python scripts, forked from a template, and each has a child process.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, TcpStoreServer};
use integration_tests::launcher::c10d;
use integration_tests::torch::PYTHON_VARIABLE;
use integration_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(500);

/// In the environment of all processes of a node but the guardian.
const MARK: &str = "C10D_TEST_KILL";

/// Imports as long as there is no file `go`.
const LOADED: &str = "\
import os, time
open('importing', 'w').write('x\\n')
while not os.path.exists('go'):
    time.sleep(0.005)
open('imported', 'w').write('x\\n')
";

/// Writes to `NODE.RESTARTS.up` that it runs, to `NODE.RESTARTS.stopping` that it was asked to stop. Ends with the file
/// `end`; with `fail`, node 0 exits with 7 once.
const WORKER: &str = "\
import os, signal, subprocess, sys, time
import loaded
me = '%s.%s' % (sys.argv[1], os.environ['TORCHELASTIC_RESTART_COUNT'])
def write(name):
    with open(me + name + '.tmp', 'w') as f:
        print(os.getpid(), os.environ['WORLD_SIZE'], file=f)
    os.rename(me + name + '.tmp', me + name)
if sys.argv[2] == 'patient':
    signal.signal(signal.SIGTERM, lambda *a: write('.stopping'))
child = subprocess.Popen(['sleep', '1000'])
write('.up')
while not os.path.exists('end'):
    time.sleep(0.005)
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Worker,
    Template,
    Guardian,
    Agent,
    /// All processes at once.
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The template imports.
    Starting,
    /// The other node has not joined.
    Rendezvous,
    Running,
    /// The launcher has got SIGTERM, and its worker takes its time.
    Stopping,
}

/// What follows, for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The workers run to their end: exit code 0.
    Succeeds,
    /// The worker is started again, and runs to its end.
    Restarts,
    /// Exit code 1.
    Fails,
    /// The launcher was killed.
    Killed,
}

/// A job of up to two nodes with one worker each, with a store of the test's.
struct Matrix {
    folder: tempfile::TempDir,
    store: TcpStoreServer,
}

struct Node {
    launcher: Child,
    mark: String,
    guardian: Option<Pid>,
}

impl Matrix {
    fn new() -> Self {
        let this = Self {
            folder: tempfile::tempdir().unwrap(),
            store: TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap(),
        };
        fs::write(this.path("loaded.py"), LOADED).unwrap();
        fs::write(this.path("train.py"), WORKER).unwrap();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    #[track_caller]
    fn until_written(&self, name: &str) {
        until(name, || self.path(name).exists());
    }

    fn start(&self, number: usize, nodes: &str, is_patient: bool) -> Node {
        let mark = format!("{}/{number}", self.folder.path().display());
        let launcher = Command::new(c10d())
            .args([
                "run",
                "--nnodes",
                nodes,
                "--rdzv-backend=c10d",
                "--rdzv-id=job",
            ])
            .arg(format!("--rdzv-endpoint={}", self.store.local_addr()))
            .arg("--rdzv-conf=is_host=0,last_call_timeout=10,keep_alive_interval=1")
            .args([
                "--local-addr=127.0.0.1",
                "--max-restarts=1",
                "--preload=loaded",
            ])
            .args(["train.py", &number.to_string()])
            .arg(if is_patient { "patient" } else { "prompt" })
            .current_dir(self.folder.path())
            .env("PYTHON_EXEC", std::env::var_os(PYTHON_VARIABLE).unwrap())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PET_NO_SCHEDULER", "1")
            .env(MARK, &mark)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Node {
            launcher,
            mark,
            guardian: None,
        }
    }
}

impl Node {
    fn processes(&self) -> BTreeSet<i32> {
        let wanted = format!("{MARK}={}", self.mark);
        let has_mark = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        };
        all_processes().filter(has_mark).collect()
    }

    /// The process whose command line contains `text`.
    fn find(&self, candidates: impl IntoIterator<Item = i32>, text: &str) -> Option<Pid> {
        let own = i32::try_from(self.launcher.id()).unwrap();
        let found = candidates.into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.split(' ').nth(1));
            parent == Some(&own.to_string()) && String::from_utf8_lossy(&line).contains(text)
        });
        found.and_then(Pid::from_raw)
    }

    #[track_caller]
    fn kill(&self, victim: Victim) {
        let mut found = None;
        until("the victim", || {
            found = match victim {
                Victim::Worker => self.find(self.processes(), "train.py\0"),
                Victim::Template => self.find(self.processes(), "c10d-preload\0"),
                Victim::Guardian => self.find(all_processes(), "elastic-guardian"),
                Victim::Agent | Victim::Node => Some(Pid::from_child(&self.launcher)),
            };
            found.is_some()
        });
        if victim == Victim::Node {
            for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        } else {
            kill_process(found.unwrap(), Signal::KILL).unwrap();
        }
    }

    /// Waits for the end, and asserts that nothing is left. Returns the exit code, or the negative signal, and the log.
    #[track_caller]
    fn end(mut self) -> (i32, String) {
        let began = Instant::now();
        let mut stderr = self.launcher.stderr.take().unwrap();
        let reader = thread::spawn(move || {
            let mut log = Vec::new();
            stderr.read_to_end(&mut log).unwrap();
            String::from_utf8_lossy(&log).into_owned()
        });
        let status = loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > Duration::from_secs(100) {
                let _ = self.launcher.kill();
                panic!("the launcher runs on: {}", reader.join().unwrap());
            }
            thread::sleep(Duration::from_millis(5));
        };
        until("nothing is left", || {
            let has_guardian = self.guardian.is_some_and(|pid| {
                let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
                line.is_ok_and(|line| String::from_utf8_lossy(&line).contains("elastic-guardian"))
            });
            self.processes().is_empty() && !has_guardian
        });
        let code = status.code().or(status.signal().map(|signal| -signal));
        (code.unwrap(), reader.join().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.launcher.wait();
    }
}

fn all_processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name();
        str::from_utf8(name.as_bytes()).ok()?.parse().ok()
    })
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(100), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process of node 0. In the phases from the rendezvous on there are others, which must not suffer.
fn check(victim: Victim, phase: Phase, expected: Outcome) {
    let matrix = Matrix::new();
    let is_patient = phase == Phase::Stopping;
    let nodes = if phase == Phase::Starting { "1" } else { "1:2" };
    let nodes = if phase == Phase::Rendezvous {
        "2"
    } else {
        nodes
    };
    let mut node = matrix.start(0, nodes, is_patient);
    let mut others = Vec::new();
    matrix.until_written("importing");
    if phase != Phase::Starting {
        matrix.write("go");
        matrix.until_written("imported");
        if phase != Phase::Rendezvous {
            others.push(matrix.start(1, nodes, false));
            matrix.until_written("0.0.up");
            matrix.until_written("1.0.up");
            node.guardian = node.find(all_processes(), "elastic-guardian");
            assert!(node.guardian.is_some());
        }
    }
    if phase == Phase::Stopping {
        kill_process(Pid::from_child(&node.launcher), Signal::TERM).unwrap();
        matrix.until_written("0.0.stopping");
    }
    node.kill(victim);
    matrix.write("go");
    if phase == Phase::Rendezvous {
        others.push(matrix.start(1, nodes, false));
        if expected == Outcome::Killed {
            // In its place, when its heartbeats are missed.
            others.push(matrix.start(2, nodes, false));
            matrix.until_written("2.0.up");
        }
        matrix.until_written("1.0.up");
    }
    match expected {
        Outcome::Succeeds => matrix.until_written("0.0.up"),
        Outcome::Restarts => matrix.until_written("0.1.up"),
        Outcome::Fails | Outcome::Killed => {}
    }
    if phase == Phase::Running && expected == Outcome::Killed {
        // The other node goes on alone.
        until("a world of one", || {
            let line = fs::read_to_string(matrix.path("1.0.up")).unwrap_or_default();
            line.trim_end().ends_with(" 1")
        });
    }
    matrix.write("end");
    let (code, log) = node.end();
    let expected_code = match expected {
        Outcome::Succeeds | Outcome::Restarts => 0,
        Outcome::Fails => 1,
        Outcome::Killed => -9,
    };
    assert_eq!(code, expected_code, "{victim:?} {phase:?}: {log}");
    for other in others {
        let (code, log) = other.end();
        assert_eq!(code, 0, "the other node: {victim:?} {phase:?}: {log}");
    }
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_process_that_is_killed_in_any_phase_leaves_nothing_behind() {
    use Outcome::{Fails, Killed, Restarts, Succeeds};
    let _watchdog = Watchdog::start("kill_matrix", LIMIT);
    for (victim, phase, expected) in [
        (Victim::Template, Phase::Starting, Succeeds),
        (Victim::Agent, Phase::Starting, Killed),
        (Victim::Node, Phase::Starting, Killed),
        (Victim::Template, Phase::Rendezvous, Succeeds),
        (Victim::Agent, Phase::Rendezvous, Killed),
        (Victim::Node, Phase::Rendezvous, Killed),
        (Victim::Worker, Phase::Running, Restarts),
        (Victim::Template, Phase::Running, Succeeds),
        (Victim::Guardian, Phase::Running, Succeeds),
        (Victim::Agent, Phase::Running, Killed),
        (Victim::Node, Phase::Running, Killed),
        (Victim::Worker, Phase::Stopping, Fails),
        (Victim::Template, Phase::Stopping, Fails),
        (Victim::Guardian, Phase::Stopping, Fails),
        (Victim::Agent, Phase::Stopping, Killed),
        (Victim::Node, Phase::Stopping, Killed),
    ] {
        check(victim, phase, expected);
    }
}
