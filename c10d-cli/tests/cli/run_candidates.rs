//! `c10d run --rdzv-endpoint etcd://..`: any launcher serves, or servers elsewhere. Needs etcd: `C10D_ETCD`.

use std::io::{BufRead, BufReader};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::candidates::Candidate;
use crate::etcd::Etcd;
use crate::process::{Ended, Running, command, run, until};

/// Prints the worker's rank and world size, and waits for the key `done`.
const WORKER: &str = "\
    c10d() { \"$C10D\" store \"$@\" --connect=$MASTER_ADDR:$MASTER_PORT; }
    c10d set $WORLD_SIZE-$RANK here && c10d get done --timeout=10m";

/// A launcher of two workers.
pub(crate) fn launcher(place: &str, options: &[&str]) -> Command {
    launcher_of(WORKER, place, options)
}

fn launcher_of(script: &str, place: &str, options: &[&str]) -> Command {
    let endpoint = format!("--rdzv-endpoint={place}");
    let own = [
        "run",
        "--nproc-per-node=2",
        "--rdzv-id=job",
        // Of a job on one machine.
        "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=6",
        &endpoint,
    ];
    let worker = ["--no-python", "sh", "-c", script];
    let mut command = command(own.iter().chain(options).chain(&worker));
    command.env("C10D", env!("CARGO_BIN_EXE_c10d"));
    command
}

/// Waits until workers have set these keys.
fn await_keys(place: &str, keys: &[&str]) {
    await_keys_with(place, &[], keys);
}

/// Waits for keys, with these options of all commands that use the store.
pub(crate) fn await_keys_with(place: &str, options: &[&str], keys: &[&str]) {
    until("the workers run", || {
        let has = |key: &&str| store(place, options, &["get", key, "--timeout=0s"]).code == Some(0);
        keys.iter().all(has)
    });
}

fn finish(place: &str) {
    finish_with(place, &[]);
}

pub(crate) fn finish_with(place: &str, options: &[&str]) {
    store(place, options, &["set", "done", "yes"]).assert_prints("");
}

pub(crate) fn store(place: &str, options: &[&str], words: &[&str]) -> Ended {
    let connect = format!("--connect={place}");
    run([&["store"], words, &[connect.as_str()], options].concat())
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_others_form_the_next_round_when_the_launcher_that_serves_is_killed() {
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let options = ["--nnodes=1:2", "--max-restarts=3"];
    let mut first = Running::start(launcher(&place, &options));
    let mut stderr = BufReader::new(first.stderr());
    let mut line = String::new();
    while !line.contains("this process serves the store") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it has ended");
    }
    let second = Running::start(launcher(&place, &options));
    await_keys(&place, &["4-0", "4-1", "4-2", "4-3"]);
    first.signal(Signal::KILL);
    first.end();
    await_keys(&place, &["2-0", "2-1"]);
    finish(&place);
    let ended = second.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("this process serves the store"),
        "{ended:?}"
    );
    // It has released the store at once: no candidate is left.
    let connect = format!("--connect={place}");
    let nobody = run(["store", "get", "done", &connect]);
    nobody.assert_fails(3, "no process serves the store");
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn workers_do_not_notice_that_another_server_takes_over() {
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let mut first = Candidate::start(&etcd);
    first.store();
    let mut second = Candidate::start(&etcd);
    let options = ["--nnodes=2", "--max-restarts=0", "--store-candidates=0"];
    let launchers = [(); 2].map(|()| Running::start(launcher(&place, &options)));
    await_keys(&place, &["4-0", "4-1", "4-2", "4-3"]);
    // SIGKILL, while all workers wait.
    drop(first);
    second.store();
    finish(&place);
    for launcher in launchers {
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.stderr.contains("restarting"), "{ended:?}");
    }
}

/// Workers find the server in `C10D_MASTER_ADDR`, and commands find it in a worker that is older than the
/// server.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn workers_find_the_server_that_has_taken_over() {
    let script = "
        c10d() { \"$C10D\" store \"$@\" --connect=$MASTER_ADDR:$MASTER_PORT; }
        if mkdir $FOLDER/$RANK 2> $FOLDER/known; then
            c10d set first-$RANK here
            c10d get go --timeout=10m
            unset RUST_LOG
            \"$C10D\" why > $FOLDER/$RANK/why
            [ $? = 3 ] && c10d set failed yes
            exit 1
        fi
        c10d set second-$RANK $C10D_MASTER_ADDR:$C10D_MASTER_PORT
        c10d get done --timeout=10m";
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let mut first = Candidate::start(&etcd);
    first.store();
    let mut second = Candidate::start(&etcd);
    let options = ["--nnodes=2", "--max-restarts=9", "--store-candidates=0"];
    let launchers = [(); 2].map(|()| {
        let mut launcher = launcher_of(script, &place, &options);
        launcher.env("FOLDER", folder.path());
        Running::start(launcher)
    });
    let keys = |round: &str| [0, 1, 2, 3].map(|rank| format!("{round}-{rank}"));
    let await_all = |keys: [String; 4]| await_keys(&place, &keys.each_ref().map(String::as_str));
    await_all(keys("first"));
    drop(first);
    second.store();
    store(&place, &[], &["set", "go", "yes"]).assert_prints("");
    await_all(keys("second"));
    for key in keys("second") {
        store(&place, &[], &["get", &key]).assert_prints(second.address());
    }
    for rank in 0..4 {
        let why = folder.path().join(format!("{rank}/why"));
        // Workers stopped before their first request have written nothing.
        let why = std::fs::read_to_string(why).unwrap_or_default();
        let is_answer = why.is_empty() || why.contains("rank");
        assert!(is_answer, "{why}");
    }
    finish(&place);
    for launcher in launchers {
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn a_store_in_etcd_implies_relays_and_that_workers_use_it() {
    let place = "--rdzv-endpoint=etcd://node1:2379,node2:2379/job";
    let run_with = |options: &[&str]| {
        let words = ["run", "--dry-run", "--json", "--nnodes=2", place];
        run(words.iter().chain(options).chain(&["--no-python", "true"]))
    };
    let plan: Value = serde_json::from_slice(&run_with(&[]).stdout).unwrap();
    for (name, value) in [
        ("backend", Value::from("c10d")),
        ("endpoint", "etcd://node1:2379,node2:2379/job".into()),
        ("is_host", false.into()),
        ("relay", true.into()),
        ("store_candidates", 3.into()),
        ("store_port", Value::Null),
        ("workers_store", "rendezvous".into()),
    ] {
        assert_eq!(plan[name], value, "{name}");
    }
    for (options, text) in [
        (&["--rdzv-backend=static"][..], "use --rdzv-backend c10d"),
        (&["--workers-store=agent"], "would be lost with the node"),
        (&["--store-dir=d"], "kept in etcd"),
        (&["--store-candidates=all"], "expected a whole number"),
        (&["--store-port=0"], "expected a port"),
    ] {
        run_with(options).assert_fails(2, text);
    }
    let words = [
        "run",
        "--dry-run",
        "--store-candidates=2",
        "--no-python",
        "true",
    ];
    let elsewhere = run(words);
    assert!(
        elsewhere
            .stdout_text()
            .contains("the endpoint is not etcd://..")
    );
    let no_prefix = [
        "run",
        "--dry-run",
        "--rdzv-endpoint=etcd://node1:2379",
        "--no-python",
        "true",
    ];
    run(no_prefix).assert_fails(2, "the prefix has 0 bytes");
}
