//! `c10d stacks`, and `c10d flight` with `c10d run --debug-server`, with real workers: they find the rank that does not do
//! what the others do, and a rank that is stopped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::launcher::{Job, Kind, Launcher, c10d, free_address};
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The timeout for each step, including the start of Python on a busy machine.
const STEP_LIMIT: Duration = Duration::from_secs(120);

const LIMIT: Duration = Duration::from_secs(400);

fn start(job: &Job, store: SocketAddr, words: &[&str]) -> Launcher {
    let options = [
        "--debug-server".to_owned(),
        "--nproc-per-node=4".to_owned(),
        format!("--master-addr={}", store.ip()),
        format!("--master-port={}", store.port()),
    ];
    job.start(Kind::C10d, "node", options, words)
}

/// Runs `c10d` with these words against the store.
fn ask(store: SocketAddr, words: &[&str]) -> Output {
    let mut command = Command::new(c10d());
    command.args(words).arg("--connect").arg(store.to_string());
    command.output().expect("c10d can be run")
}

/// Polls, as Python starts slowly on a busy machine.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < STEP_LIMIT,
            "not within {STEP_LIMIT:?}: {what}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

fn text(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{stdout}{stderr}")
}

/// GETs a path of a launcher, as a `c10d stacks` on another host does.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the launcher listens");
    stream.set_read_timeout(Some(STEP_LIMIT)).expect("a time");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_rank_that_skips_a_collective_and_the_one_that_is_stopped_are_named() {
    let _watchdog = Watchdog::start(
        "the_rank_that_skips_a_collective_and_the_one_that_is_stopped_are_named",
        LIMIT,
    );
    // Its debug server has a flight recorder for gloo.
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let store = free_address();
    let launcher = start(&job, store, &["skip", "2"]);
    eventually("all ranks have run the first all-reduce", || {
        job.now().len() == 4
    });

    let mut report = Value::Null;
    eventually("three ranks are in the second all-reduce", || {
        let output = ask(store, &["flight", "--json"]);
        report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        report["findings"][0]["others"] == serde_json::json!([0, 1, 3])
    });
    assert_eq!(report["findings"][0]["kind"], "behind");
    assert_eq!(report["findings"][0]["culprits"], serde_json::json!([2]));
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(1));
    let flight = text(&ask(store, &["flight"]));
    let expected = "Rank 2 is behind: it has entered 1 collective of group 0 (default_pg), the other ranks 2 (all_reduce, [1] \
                    long, since ";
    assert!(flight.starts_with(expected), "{flight}");

    // On a busy machine `why` can suspect another rank for a moment, and then only that rank's stacks are shown.
    let script = "python/elastic_worker.py:";
    let mut seen = Vec::new();
    let stacks = loop {
        let output = ask(store, &["stacks"]);
        let stacks = text(&output);
        assert_eq!(output.status.code(), Some(0), "{stacks}");
        if stacks.lines().any(|line| line.starts_with("Rank 2: ")) {
            break stacks;
        }
        seen.push(stacks);
        assert!(seen.len() < 10, "{}", seen.join("\n----\n"));
        thread::sleep(Duration::from_secs(1));
    };
    let position = stacks.lines().find(|line| line.starts_with("Rank 2: "));
    let position = position.expect("rank 2 is shown");
    assert!(
        position.contains(script) && position.ends_with(" in load_data"),
        "{stacks}"
    );
    assert!(
        stacks.contains("Ranks 0, 1 and 3: torch/distributed/"),
        "{stacks}"
    );

    let pid = |rank: u64| {
        let now = job.now();
        let worker = now.iter().find(|worker| worker["rank"] == rank);
        let pid = worker.and_then(|worker| worker["pid"].as_i64());
        pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
            .expect("a process id")
    };
    let stopped = pid(1);
    kill_process(stopped, Signal::STOP).expect("a running worker");
    // Its debug server does not answer, but its launcher reads it.
    let output = ask(store, &["stacks", "1"]);
    let stacks = text(&output);
    assert_eq!(output.status.code(), Some(0), "{stacks}");
    assert!(stacks.contains("\nRank 1: torch/distributed/"), "{stacks}");
    let flight = text(&ask(store, &["flight"]));
    assert!(flight.contains("Rank 1 does not answer"), "{flight}");
    assert!(flight.contains("Rank 2 is behind"), "{flight}");

    // As from another host.
    let report = get(&store.to_string(), "/why.json");
    let (_, report) = report.split_once("\r\n\r\n").expect("a head");
    let report: Value =
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let node = &report["nodes"][0];
    let address = node["debug_address"]
        .as_str()
        .unwrap_or_else(|| panic!("{report}"));
    let answer = get(address, "/stacks?rank=2");
    assert!(answer.contains("load_data"), "{answer}");
    let answer = get(address, "/flight?rank=0");
    assert!(answer.contains("gloo:all_reduce"), "{answer}");

    kill_process(stopped, Signal::CONT).expect("a stopped worker");
    let sockets = socket_directory(&launcher);
    assert!(sockets.exists());
    launcher.signal(Signal::TERM);
    let mut launcher = launcher;
    assert_eq!(launcher.wait(STEP_LIMIT), Some(1));
    assert!(!sockets.exists(), "{}", sockets.display());
}

/// The directory that a worker finds in its environment.
fn socket_directory(launcher: &Launcher) -> PathBuf {
    let found = launcher.processes().into_iter().find_map(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|it| it.strip_prefix(b"C10D_DEBUG_SOCKET="))?;
        let path = Path::new(std::str::from_utf8(value).ok()?);
        path.parent().map(Path::to_owned)
    });
    found.expect("workers have a debug socket")
}

/// With releases that have no debug server, or an older one, too.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_with_a_debug_server_can_fork() {
    let _watchdog = Watchdog::start("workers_with_a_debug_server_can_fork", LIMIT);
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let mut launcher = start(&job, free_address(), &["fork"]);
    let code = launcher.wait(STEP_LIMIT);
    assert_eq!(code, Some(0), "{}", launcher.process().stderr());
    for rank in 0..4 {
        let done = job
            .read(&format!("done.{rank}"))
            .expect("the worker has finished");
        assert_eq!(done["status"], 0, "{done}");
    }
}
