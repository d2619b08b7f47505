//! Workers that are shell scripts, and helpers that observe them.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use elastic_agent::{CommandLine, Console, GroupPlan, WorkerExit, WorkerGroup, WorkerPlan};

/// Far longer than any step takes: ends a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A time that a passing test never reaches: a test that waits for this long fails.
pub(crate) const NEVER_REACHED: Option<Duration> = Some(Duration::from_secs(3600));

/// A worker that runs a shell script, with its output on the console.
pub(crate) fn shell(local_rank: usize, script: &str) -> WorkerPlan {
    // Under `nohup cargo test`, or `cargo test &` in a script, workers inherit ignored signals that a shell
    // cannot restore.
    let command = CommandLine::new("env", ["--default-signal", "sh", "-c", script]);
    let mut worker = WorkerPlan::new(10 + local_rank, local_rank, command);
    worker.environment = own_environment();
    worker.line_prefix = format!("[default{local_rank}]:");
    worker
}

pub(crate) fn own_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Workers that run these scripts, with `$DIR` as a directory for files.
pub(crate) fn shells(directory: &Path, scripts: &[&str]) -> Vec<WorkerPlan> {
    let workers = scripts.iter().enumerate().map(|(local_rank, script)| {
        let mut worker = shell(local_rank, script);
        worker.environment.push(("DIR".into(), directory.into()));
        worker
    });
    workers.collect()
}

/// Starts workers whose output is dropped, and returns a channel with their exits.
pub(crate) fn start(workers: Vec<WorkerPlan>) -> (WorkerGroup, Receiver<WorkerExit>) {
    let console = Console::new(Box::new(io::sink()), Box::new(io::sink()));
    start_on(GroupPlan::new(workers), console)
}

pub(crate) fn start_on(plan: GroupPlan, console: Console) -> (WorkerGroup, Receiver<WorkerExit>) {
    let (exits, seen) = unbounded();
    let on_exit = move |exit| {
        let _ = exits.send(exit);
    };
    (WorkerGroup::start(plan, console, on_exit).unwrap(), seen)
}

/// Waits for the exit of one worker.
#[track_caller]
pub(crate) fn next(exits: &Receiver<WorkerExit>) -> WorkerExit {
    exits.recv_timeout(PATIENCE).expect("no worker exited")
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a script has written a whole line to a file, and returns it.
#[track_caller]
pub(crate) fn line_of(path: &Path) -> String {
    let mut line = None;
    eventually("the file has a line", || {
        let text = fs::read_to_string(path).unwrap_or_default();
        line = text.split_once('\n').map(|(line, _)| line.to_owned());
        line.is_some()
    });
    line.unwrap()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        !matches!(after_name.trim_start().chars().next(), Some('Z' | 'X'))
    })
}

/// A writer that keeps the bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
