//! `c10d run` with a standard output and error that accept nothing, for example after Ctrl-S or with a stopped reader:
//! every way to stop it works.

use std::io::PipeReader;
use std::time::{Duration, Instant};

use super::*;
use crate::process::full_pipe;

/// Shorter than the default shutdown timeout, and far longer than the times of the tests.
const WITHOUT_THE_DEFAULT: Duration = Duration::from_secs(25);

/// Runs until it is killed.
const STUBBORN: &str = "\
trap 'echo term > $C10D_TEST_FOLDER/term' TERM
echo up > $C10D_TEST_FOLDER/up
while :; do sleep 0.02; done";

/// A launcher that can write nothing.
struct Mute {
    running: Running,
    _readers: [PipeReader; 2],
}

impl Mute {
    fn start(job: &Job, arguments: &[&str], script: &str) -> Self {
        let (stdout_reader, stdout) = full_pipe();
        let (stderr_reader, stderr) = full_pipe();
        let mut command = job.command(arguments, script);
        command
            .env("RUST_LOG", "debug")
            .stdout(stdout)
            .stderr(stderr);
        Self {
            running: Running::start(command),
            _readers: [stdout_reader, stderr_reader],
        }
    }

    /// Returns the exit code of the launcher.
    fn end(self) -> Option<i32> {
        self.running.end().code
    }
}

#[test]
fn a_second_signal_kills_the_workers() {
    let job = Job::new();
    let mute = Mute::start(&job, &["--standalone", "--json"], STUBBORN);
    job.line("up");
    let start = Instant::now();
    mute.running.signal(Signal::TERM);
    job.line("term");
    mute.running.signal(Signal::TERM);
    assert_eq!(mute.end(), Some(1));
    assert!(start.elapsed() < WITHOUT_THE_DEFAULT);
    job.assert_nothing_runs();
}

#[test]
fn the_grace_period_ends_the_launcher_even_if_the_store_does_not_answer() {
    let job = Job::with_server();
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let arguments = [
        "--nnodes=1",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--local-addr=127.0.0.1",
        "--grace-period=3s",
        "--json",
        &endpoint,
    ];
    let mute = Mute::start(&job, &arguments, STUBBORN);
    job.line("up");
    job.server().running.signal(Signal::STOP);
    let start = Instant::now();
    mute.running.signal(Signal::TERM);
    let code = mute.end();
    job.server().running.signal(Signal::CONT);
    assert_eq!(code, Some(1));
    assert!(start.elapsed() < WITHOUT_THE_DEFAULT);
    until("all workers are killed", || job.processes().is_empty());
}

#[test]
fn failures_of_workers_are_handled() {
    let job = Job::new();
    let script = "echo >> $C10D_TEST_FOLDER/starts; exit 3";
    let mute = Mute::start(&job, &["--standalone", "--max-restarts=1"], script);
    assert_eq!(mute.end(), Some(1));
    assert_eq!(fs::read_to_string(job.path("starts")).unwrap(), "\n\n");
    job.assert_nothing_runs();
}

#[test]
fn output_of_workers_that_is_shown_does_not_delay_the_end() {
    let job = Job::new();
    let script = format!("echo text >&2\necho text\n{STUBBORN}");
    let arguments = [
        "--standalone",
        "--json",
        "--tee=3",
        "--shutdown-timeout=1",
        &format!("--log-dir={}", job.path("logs").display()),
    ];
    let mute = Mute::start(&job, &arguments, &script);
    job.line("up");
    let start = Instant::now();
    mute.running.signal(Signal::TERM);
    assert_eq!(mute.end(), Some(1));
    assert!(start.elapsed() < WITHOUT_THE_DEFAULT);
    job.assert_nothing_runs();
}

#[test]
#[cfg(target_os = "linux")]
fn a_report_that_nobody_reads_is_given_up_after_a_signal() {
    let job = Job::new();
    // The workers have ended: the launcher waits for the reader of its report.
    let mute = Mute::start(&job, &["--standalone", "--json"], "exit 0");
    until("only the launcher is left", || {
        let processes = job.processes();
        processes.len() == 1 && is_printing(mute.running.id())
    });
    mute.running.signal(Signal::TERM);
    assert_eq!(mute.end(), Some(4));
}

/// Whether the process has a thread that prints a report.
#[cfg(target_os = "linux")]
fn is_printing(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().any(|task| {
        let name = fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == "print")
    })
}
