//! A watchdog with processes that write timers as PyTorch's client does.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use super::*;
use crate::sys;

fn worker() -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000");
    sys::lead_own_session(&mut command, rustix::process::getpid(), None);
    command.spawn().unwrap()
}

fn line(pid: u32, scope: &str, expires_at: f64, signal: i32) -> String {
    format!(
        "{{\"version\": 1, \"pid\": {pid}, \"scope_id\": \"{scope}\", \"expiration_time\": {expires_at}, \
         \"signal\": {signal}}}\n"
    )
}

fn write(path: &Path, pid: u32, scope: &str, expires_at: f64, signal: i32) {
    let mut pipe = OpenOptions::new().write(true).open(path).unwrap();
    let line = line(pid, scope, expires_at, signal);
    pipe.write_all(line.as_bytes()).unwrap();
}

fn start(workers: &[&Child]) -> Watchdog {
    let watchdog = Watchdog::start(None, Arc::default()).unwrap();
    let pids: Vec<u32> = workers.iter().map(|worker| worker.id()).collect();
    watchdog.watch(&pids);
    watchdog
}

#[test]
fn a_worker_whose_timer_expires_gets_its_signal_and_another_does_not() {
    let (mut late, mut early) = (worker(), worker());
    let watchdog = start(&[&late, &early]);
    let now = seconds_since_epoch();
    // In one piece, so that this process cannot be stopped in between.
    let begins_and_ends = line(early.id(), "a", now, 9) + &line(early.id(), "a", -1.0, 0);
    let mut pipe = OpenOptions::new()
        .write(true)
        .open(watchdog.path())
        .unwrap();
    pipe.write_all(begins_and_ends.as_bytes()).unwrap();
    write(
        watchdog.path(),
        late.id(),
        "overruns",
        now + 0.1,
        Signal::USR1.as_raw(),
    );
    assert_eq!(late.wait().unwrap().signal(), Some(Signal::USR1.as_raw()));
    assert!(seconds_since_epoch() >= now + 0.1);
    assert!(early.try_wait().unwrap().is_none());
    early.kill().unwrap();
    early.wait().unwrap();
}

#[test]
fn a_process_that_is_no_workers_gets_no_signal() {
    let (mut stranger, mut worker) = (worker(), worker());
    let watchdog = start(&[&worker]);
    for pid in [stranger.id(), std::process::id()] {
        write(watchdog.path(), pid, "a", 1.0, 9);
    }
    // Requests are handled in order.
    write(watchdog.path(), worker.id(), "a", 1.0, 9);
    assert_eq!(worker.wait().unwrap().signal(), Some(9));
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn timers_that_are_written_before_the_workers_are_known_count() {
    let mut worker = worker();
    let watchdog = Watchdog::start(None, Arc::default()).unwrap();
    write(watchdog.path(), worker.id(), "a", 1.0, 9);
    watchdog.watch(&[worker.id()]);
    assert_eq!(worker.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_dropped_watchdog_removes_its_pipe_whether_or_not_there_were_workers() {
    let idle = Watchdog::start(None, Arc::default()).unwrap();
    let busy = start(&[]);
    for watchdog in [idle, busy] {
        let path = watchdog.path().to_owned();
        assert!(path.exists());
        drop(watchdog);
        assert!(!path.exists());
    }
}

#[test]
fn an_error_names_the_path() {
    let path = Path::new("/nonexistent/pipe");
    let error = Watchdog::start(Some(path), Arc::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot make the watchdog's pipe /nonexistent/pipe: "),
        "{text}"
    );
}
