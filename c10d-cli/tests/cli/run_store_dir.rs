//! `c10d run --store-dir` and `--workers-store`: stores that outlive their launcher.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Running, Server, after, command, free_port, run, until};

/// Nodes of two that meet at this port, with one worker each.
fn node(port: u16, options: &[&str], script: &str) -> Command {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
    let own = [
        "run",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--local-addr=127.0.0.1",
        &endpoint,
    ];
    let worker = ["--no-python", "sh", "-c", script];
    let mut command = command(own.iter().chain(options).chain(&worker));
    command.env("C10D", env!("CARGO_BIN_EXE_c10d"));
    command
}

fn in_directory(directory: &Path) -> String {
    format!("--store-dir={}", directory.display())
}

fn store(port: u16, words: &[&str]) -> crate::process::Ended {
    let connect = format!("--connect=127.0.0.1:{port}");
    run(["store"].iter().chain(words).chain(&[connect.as_str()]))
}

#[test]
fn a_job_whose_journal_fails_ends_with_code_5() {
    let folder = tempfile::tempdir().unwrap();
    let directory = in_directory(folder.path());
    let mut launcher = command([
        "run",
        "--standalone",
        &directory,
        "--no-python",
        "sh",
        "-c",
        "while $C10D store add sum 1 > /dev/null; do :; done; exec sleep 1000",
    ]);
    launcher.env("C10D", env!("CARGO_BIN_EXE_c10d"));
    let ended = Running::start(after("trap '' XFSZ; ulimit -f 400", &launcher)).end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let why = "the store that this launcher serves has ended: cannot append to the journal";
    assert!(ended.stderr.contains(why), "{ended:?}");
    let exported = run(["store", "export", folder.path().to_str().unwrap()]);
    let lines = exported.stdout_text().lines();
    let mut lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let sum = lines.find(|line| line["key"].as_str().is_some_and(|key| key.ends_with("sum")));
    let sum: u64 = sum.expect("the sum")["value"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(sum > 10, "{sum}");
}

/// The rendezvous' own keys stay when the keys of an earlier round's workers are removed.
#[test]
fn workers_use_an_external_store_for_each_round_anew() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    let port = server.address.port();
    let script = "
        set -e
        test $MASTER_PORT = $STORE_PORT
        if mkdir $FOLDER/$RANK; then
            $C10D store set old-$RANK 1
            $C10D store wait old-0 old-1 --timeout 60s
            exit 3
        fi
        ! $C10D store get old-$RANK --timeout 0s
        $C10D store set new-$RANK 1
        $C10D store wait new-0 new-1 --timeout 60s";
    let options = [
        "--rdzv-conf=is_host=0",
        "--workers-store=rendezvous",
        "--max-restarts=3",
    ];
    let start = || {
        let mut node = node(port, &options, script);
        node.env("STORE_PORT", port.to_string());
        node.env("FOLDER", folder.path());
        Running::start(node)
    };
    let nodes = [start(), start()];
    for node in nodes {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let keys = server.store(&["keys"]);
    assert!(
        keys.stdout_text().contains("torch.rendezvous.job\n"),
        "{keys:?}"
    );

    // The job has ended, so that a second job may use the store; while the second job runs, a third job may
    // not.
    let other = |id| {
        let mut options = options.to_vec();
        options.extend(["--nnodes=1", id]);
        node(port, &options, "$C10D store set second 1; exec sleep 1000")
    };
    let second = Running::start(other("--rdzv-id=second"));
    until("the second job runs", || {
        store(port, &["get", "second", "--timeout=0s"]).code == Some(0)
    });
    let ended = Running::start(other("--rdzv-id=third")).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("the workers of run \"second\" still use it"),
        "{ended:?}"
    );
    drop(second);
}

/// A launcher that serves and has no workers in the round, such as a spare or a launcher whose health check
/// fails.
#[test]
fn workers_behind_relays_outlive_the_launcher_that_serves_their_store() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, port) = (in_directory(folder.path()), free_port());
    let host_options = [
        "--rdzv-conf=is_host=1",
        "--health-check=false",
        "--relay",
        &directory,
    ];
    let start_host = || Running::start(node(port, &host_options, "false"));
    let host = start_host();
    let script = "
        set -e
        $C10D store set rank-$RANK $$$$
        $C10D store wait go --timeout 300s
        echo $RANK $$$$ $($C10D store add after 1)";
    let options = ["--rdzv-conf=is_host=0", "--relay", &directory];
    let nodes = [0, 1].map(|_| Running::start(node(port, &options, script)));
    let pid_of = |rank: usize| {
        let key = format!("rank-{rank}");
        let ended = store(port, &["get", &key, "--timeout=60s"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout_text().parse::<u32>().unwrap()
    };
    let pids = [pid_of(0), pid_of(1)];

    host.signal(Signal::KILL);
    host.end();
    let host = start_host();
    assert_eq!([pid_of(0), pid_of(1)], pids);
    store(port, &["set", "go", "1"]).assert_prints("");
    let mut lines = Vec::new();
    for node in nodes {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        lines.push(ended.stdout_text().trim().to_owned());
    }
    lines.sort();
    let mut sums = Vec::new();
    for (rank, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let [number, pid, sum] = words[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(number, rank.to_string(), "{lines:?}");
        assert_eq!(pid, pids[rank].to_string(), "{lines:?}");
        sums.push(sum);
    }
    sums.sort_unstable();
    assert_eq!(sums, ["1", "2"]);
    drop(host);
}

/// A launcher that serves and has workers: its workers and all other workers start in a new round, and the
/// job continues.
#[test]
fn a_job_goes_on_when_the_launcher_that_serves_is_killed_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let firsts = tempfile::tempdir().unwrap();
    let (directory, port) = (in_directory(folder.path()), free_port());
    // A worker of the first round waits until it is stopped.
    let script = "
        set -e
        if mkdir $FOLDER/$RANK; then
            $C10D store set first-$RANK 1
            exec sleep 1000
        fi
        ! $C10D store get first-$RANK --timeout 0s
        $C10D store set second-$RANK 1
        $C10D store wait second-0 second-1 --timeout 300s";
    let start = |conf: &str| {
        let mut node = node(port, &[conf, "--relay", &directory], script);
        node.env("FOLDER", firsts.path());
        Running::start(node)
    };
    let host_conf = "--rdzv-conf=is_host=1,keep_alive_interval=1";
    let host = start(host_conf);
    let other = start("--rdzv-conf=is_host=0,keep_alive_interval=1");
    until("both workers run", || {
        ["first-0", "first-1"]
            .iter()
            .all(|key| store(port, &["get", key, "--timeout=0s"]).code == Some(0))
    });
    host.signal(Signal::KILL);
    host.end();
    let host = start(host_conf);
    for node in [host, other] {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}
