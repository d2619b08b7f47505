//! `c10d store lease`: a key that one process holds, alone or around a command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use c10d_inspect::http::{HttpRequest, Target, fetch};
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

use crate::process::{Ended, PATIENCE, Running, Server, command, until};

fn start(server: &Server, words: &[&str]) -> Running {
    let words = [&["lease", "--timeout=1m"], words].concat();
    Running::start(command(server.arguments(&words)))
}

fn first_line(running: &mut Running) -> (String, BufReader<ChildStdout>) {
    let mut stdout = BufReader::new(running.stdout());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    (line, stdout)
}

/// Starts a command in the shell, and waits for its first line.
fn start_shell(server: &Server, options: &[&str], script: &str) -> (Running, String) {
    let mut running = start(
        server,
        &[options, &["k", "--", "sh", "-c", script]].concat(),
    );
    // The reader stays: the script may write more.
    let (line, stdout) = first_line(&mut running);
    std::mem::forget(stdout);
    (running, line)
}

#[track_caller]
fn assert_lost(ended: &Ended) {
    ended.assert_fails(3, "lease \"k\" lost: ");
}

#[test]
fn a_command_runs_while_the_key_is_held() {
    let server = Server::start();
    let binary = env!("CARGO_BIN_EXE_c10d");
    let address = server.address.to_string();
    let get = ["store", "get", "k", "--connect", &address];
    let words = [&["k", "--value", "-5", "--", binary], &get[..]].concat();
    start(&server, &words).end().assert_prints("-5");
    // It has ended when the command returns.
    assert_eq!(server.store(&["check", "k"]).code, Some(1));

    // By default the value says who holds it.
    let words = [
        &["k", "--prefix=p", "--", binary],
        &get[..],
        &["--prefix=p"],
    ]
    .concat();
    let holder = start(&server, &words);
    let id = holder.id();
    let ended = holder.end();
    let value = ended.stdout_text();
    assert!(value.ends_with(&format!(":{id}")), "{value}");

    for (script, code) in [("exit 7", 7), ("kill -s KILL $$", 137)] {
        let ended = server.store(&["lease", "k", "--", "sh", "-c", script]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(code), ""));
    }
    server
        .store(&["lease", "k", "--", "/no/such/program"])
        .assert_fails(2, "cannot start /no/such/program");
    let refused = server.store(&["lease", "k", "--ttl=999ms"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("must be at least 1s"),
        "{refused:?}"
    );
}

#[test]
fn without_a_command_the_key_is_held_until_a_signal() {
    let server = Server::start();
    for (signal, options) in [(Signal::TERM, &[][..]), (Signal::INT, &["--json"])] {
        let words = [&["k", "--value=v", "--will", "left", "-1"], options].concat();
        let mut holder = start(&server, &words);
        let (line, _stdout) = first_line(&mut holder);
        match options {
            [] => assert_eq!(line, "k\n"),
            _ => {
                let line: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(line, json!({ "key": "k", "value": "v" }));
            }
        }
        server.store(&["get", "k"]).assert_prints("v");
        server.store(&["lease", "k", "--timeout=0"]).assert_fails(
            1,
            "lease \"k\" timed out: another process holds the key, whose value is \"v\"",
        );
        holder.signal(signal);
        let ended = holder.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert_eq!(server.store(&["check", "k"]).code, Some(1));
        server.store(&["get", "left"]).assert_prints("-1");
        server.store(&["delete", "left"]).assert_prints("");
    }
}

/// Several commands request the key, and one at a time has it.
#[test]
fn commands_under_one_key_exclude_each_other() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("held");
    // It fails if another process is inside.
    let script = "set -e; mkdir \"$1\"; sleep 0.05; rmdir \"$1\"";
    let path = path.to_str().unwrap();
    let words = ["k", "--", "sh", "-c", script, "sh", path];
    let running: Vec<_> = (0..4).map(|_| start(&server, &words)).collect();
    for one in running {
        one.end().assert_prints("");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The end of a key wakes no process. A waiting process therefore asks the server, even after a long time.
#[test]
fn a_waiting_process_notices_soon_that_the_key_is_free() {
    let server = Server::start();
    server.store(&["set", "k", "other"]).assert_prints("");
    let next = start(&server, &["k", "--", "true"]);
    let asked = || {
        let request = HttpRequest::get(Target::Tcp(server.address), "/stats.json");
        let stats: Value =
            serde_json::from_slice(&fetch(&request, PATIENCE).unwrap().body).unwrap();
        let requests = stats["requests"].as_array().unwrap().iter();
        let mut counts = requests.filter(|it| it[0] == "SET_EPHEMERAL");
        counts.next().map_or(0, |it| it[1].as_u64().unwrap())
    };
    // The pauses do not grow any more.
    until("it has waited", || asked() >= 15);
    let since = Instant::now();
    until("it asks", || asked() >= 25);
    assert!(since.elapsed() < Duration::from_secs(5), "{since:?}");
    server.store(&["delete", "k"]).assert_prints("");
    next.end().assert_prints("");
}

#[test]
fn signals_reach_the_command_and_what_it_leaves_behind_ends() {
    let server = Server::start();
    let script = "sleep 1000 & trap 'exit 9' TERM; echo $!; while :; do wait; done";
    let (holder, line) = start_shell(&server, &[], script);
    holder.signal(Signal::TERM);
    let ended = holder.end();
    assert_eq!(ended.code, Some(9), "{ended:?}");
    assert!(!runs(&line));

    let (holder, line) = start_shell(&server, &[], "sleep 1000 & echo $!");
    let ended = holder.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!runs(&line));
}

/// Whether a process of these runs.
fn runs(ids: &str) -> bool {
    let ids = ids.split_whitespace().map(|id| id.parse().unwrap());
    ids.filter_map(Pid::from_raw).any(is_running)
}

/// Whether it has not ended. A container without an init process keeps those that have.
fn is_running(id: Pid) -> bool {
    let stat = format!("/proc/{}/stat", id.as_raw_nonzero());
    match fs::read_to_string(stat) {
        Ok(stat) => !stat.rsplit_once(')').unwrap().1.starts_with(" Z"),
        Err(_) => cfg!(not(target_os = "linux")) && test_kill_process(id).is_ok(),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_lease_ends_its_command_and_its_key() {
    let server = Server::start();
    let script = "sleep 1000 & echo $$ $!; wait";
    let (holder, line) = start_shell(&server, &["--will", "left", "dead"], script);
    assert!(runs(&line), "{line}");
    holder.signal(Signal::KILL);
    server
        .store(&["get", "left", "--timeout=1m"])
        .assert_prints("dead");
    until("the processes end", || !runs(&line));
    assert_eq!(server.store(&["check", "k"]).code, Some(1));
}

/// Another client can have the key now, so the command must not continue.
#[test]
fn a_command_ends_when_the_key_is_deleted_even_if_it_ignores_sigterm() {
    let server = Server::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let (holder, line) = start_shell(&server, &["--ttl=6s"], script);
    server.store(&["delete", "k"]).assert_prints("");
    let ended = holder.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for text in [
        "sent SIGKILL to",
        "lost: another client has deleted or changed the key",
    ] {
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
    assert!(!runs(&line));
}

#[test]
fn a_command_ends_when_the_server_does() {
    let server = Server::start();
    let (holder, line) = start_shell(&server, &[], "echo $$; exec sleep 1000");
    drop(server);
    assert_lost(&holder.end());
    assert!(!runs(&line));
}

#[test]
fn a_lease_that_is_silent_is_lost() {
    let server = Server::start();
    let (holder, line) = start_shell(&server, &["--ttl=1s"], "echo $$; exec sleep 1000");
    holder.signal(Signal::STOP);
    server
        .store(&["lease", "k", "--timeout=1m", "--", "true"])
        .assert_prints("");
    holder.signal(Signal::CONT);
    assert_lost(&holder.end());
    assert!(!runs(&line));
}
