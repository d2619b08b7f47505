//! `c10d run --tee` with a file system that has no space for the log files: workers and console
//! continue.
//!
//! A limit of the launcher's file sizes simulates the file system.

use std::io::{self, Read};
use std::path::Path;
use std::thread::JoinHandle;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use super::*;
use crate::process::full_pipe;

const NOTICE: &str = " bytes of output are missing here";

/// Writes 20,000 numbered lines when it may, and a last line when it may continue.
const SCRIPT: &str = "
    cd $C10D_TEST_FOLDER
    echo $$ > up
    until [ -e go ]; do sleep 0.02; done
    i=0
    while [ $i -lt 20000 ]; do
        i=$((i + 1))
        echo line $i || echo > failed
    done
    echo > written
    until [ -e on ]; do sleep 0.02; done
    echo after || echo > failed";

/// A launcher that keeps and shows standard output.
struct Teed {
    job: Job,
    running: Running,
}

impl Teed {
    /// Starts it, with its standard output if one is given, and waits until the worker runs.
    fn start(script: &str, stdout: Option<io::PipeWriter>) -> Self {
        let job = Job::new();
        let logs = format!("--log-dir={}", job.path("logs").display());
        let mut command = job.command(&["--standalone", "--tee=1", &logs], script);
        if let Some(stdout) = stdout {
            command.stdout(stdout);
        }
        let running = Running::start(command);
        job.line("up");
        Self { job, running }
    }

    /// Limits the length of the launcher's files from now on.
    fn limit_files(&self, bytes_max: Option<u64>) {
        let pid = i32::try_from(self.running.id()).unwrap();
        let limit = Rlimit {
            current: bytes_max,
            ..getrlimit(Resource::Fsize)
        };
        prlimit(Pid::from_raw(pid), Resource::Fsize, limit).unwrap();
    }

    fn touch(&self, name: &str) {
        fs::write(self.job.path(name), "").unwrap();
    }

    fn log(&self) -> String {
        read_log(&self.job.path("logs"))
    }

    /// Waits for the end; returns the log file.
    fn end(self) -> String {
        let (log_dir, Self { job, running }) = (self.job.path("logs"), self);
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let warnings = ended
            .stderr
            .matches("the console still gets the output")
            .count();
        assert!(warnings <= 1, "{ended:?}");
        assert!(!job.exists("failed"));
        job.assert_nothing_runs();
        read_log(&log_dir)
    }
}

fn read_log(log_dir: &Path) -> String {
    let [run] = &children(log_dir)[..] else {
        panic!("one directory")
    };
    fs::read_to_string(run.join("attempt_0/0/stdout.log")).unwrap()
}

fn read_all(mut console: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        console.read_to_string(&mut text).unwrap();
        text
    })
}

/// The output of the worker.
fn written() -> String {
    let lines = (1..=20_000).map(|line| format!("line {line}\n"));
    lines.collect::<String>() + "after\n"
}

fn with_prefix(text: &str) -> String {
    let lines = text.lines().map(|line| format!("[default0]:{line}\n"));
    lines.collect()
}

#[test]
fn a_full_file_system_fails_no_write_and_leaves_the_console_whole() {
    let mut teed = Teed::start(SCRIPT, None);
    let console = read_all(teed.running.stdout());
    teed.limit_files(Some(10_000));
    teed.touch("go");
    teed.job.line("written");
    until("the file is full", || teed.log().len() == 10_000);
    // There is space again: the file reports its missing lines, although the worker writes nothing
    // now.
    teed.limit_files(getrlimit(Resource::Fsize).current);
    until("a notice", || teed.log().contains(NOTICE));
    teed.touch("on");

    let log = teed.end();
    assert_eq!(console.join().unwrap(), with_prefix(&written()));
    let missing = written().len() - 10_000 - "after\n".len();
    let notice = format!("[c10d: {missing}{NOTICE}: File too large (os error 27)]\n");
    let (before, after) = log.split_once(&notice).expect("the notice");
    assert_eq!(before.trim_end(), written()[..10_000].trim_end());
    assert_eq!(after, "after\n");
}

#[test]
fn a_console_that_accepts_nothing_delays_no_worker_and_the_file_is_its_backlog() {
    let (reader, stdout) = full_pipe();
    let teed = Teed::start(SCRIPT, Some(stdout));
    teed.touch("go");
    teed.touch("on");
    teed.job.line("written");
    let console = read_all(reader);
    assert_eq!(teed.end(), written());
    let shown = console.join().unwrap();
    assert_eq!(shown.trim_start_matches('x'), with_prefix(&written()));
}

/// The worker writes more than the pipe holds, and waits.
#[test]
#[cfg(target_os = "linux")]
fn a_launcher_that_was_stopped_loses_no_output() {
    let mut teed = Teed::start(SCRIPT, None);
    let console = read_all(teed.running.stdout());
    teed.running.signal(Signal::STOP);
    teed.touch("go");
    teed.touch("on");
    let io = format!("/proc/{}/io", teed.job.line("up"));
    until("the pipe is full", || {
        let text = fs::read_to_string(&io).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("wchar: "));
        count.unwrap().parse::<usize>().unwrap() > 60_000
    });
    assert!(!teed.job.exists("written"));
    teed.running.signal(Signal::CONT);
    assert_eq!(teed.end(), written());
    assert_eq!(console.join().unwrap(), with_prefix(&written()));
}
