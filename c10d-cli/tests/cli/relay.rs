//! `c10d relay`, and `c10d run --relay`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use c10d_inspect::http::{HttpRequest, Target, fetch};
use rustix::process::Signal;

use crate::process::{Ended, PATIENCE, Running, Server, command, free_port, run, until};
use crate::secret::{new_secret, option};

/// Every rank sets a key and waits for the keys of all other ranks, through the store at MASTER_ADDR and
/// MASTER_PORT.
const MEET: &str = "
    set -e
    $C10D store set met/$TORCHELASTIC_RESTART_COUNT/$RANK 1 --timeout 60s
    for rank in $(seq 0 $((WORLD_SIZE - 1))); do
        $C10D store wait met/$TORCHELASTIC_RESTART_COUNT/$rank --timeout 60s
    done";

/// The addresses that a worker knows.
const ADDRESSES: &str = "
    echo $RANK $MASTER_ADDR $MASTER_PORT $C10D_MASTER_ADDR $C10D_MASTER_PORT \
        $TORCHELASTIC_USE_AGENT_STORE $DCP_USE_PREFIX_STORE";

/// Starts a relay to a store, on a free port.
fn start_relay(upstream: &Server, options: &[&str]) -> Server {
    let upstream = format!("--upstream={}", upstream.address);
    let own = ["relay", "--listen=127.0.0.1:0", upstream.as_str()];
    Server::start_with([&own, options].concat())
}

/// `c10d run OPTIONS --no-python sh -c SCRIPT`.
fn launch(options: &[&str], script: &str) -> Command {
    let mut launcher = command(["run"].iter().chain(options));
    launcher.args(["--no-python", "sh", "-c", script]);
    with_c10d(launcher)
}

/// A launcher whose workers find the command, and nothing of an outer launcher.
fn with_c10d(mut launcher: Command) -> Command {
    launcher
        .env("C10D", env!("CARGO_BIN_EXE_c10d"))
        .env("OMP_NUM_THREADS", "1");
    for name in [
        "C10D_MASTER_ADDR",
        "C10D_SECRET_FILE",
        "DCP_USE_PREFIX_STORE",
    ] {
        launcher.env_remove(name);
    }
    launcher
}

/// Two nodes of two workers each, to which these options are given.
fn two_nodes(options: [&[&str]; 2], script: &str) -> [Ended; 2] {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let common = [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--local-addr=127.0.0.1",
        &endpoint,
    ];
    let nodes = options.map(|options| Running::start(launch(&[&common, options].concat(), script)));
    nodes.map(Running::end)
}

#[track_caller]
fn assert_succeeded(nodes: &[Ended]) {
    for ended in nodes {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!ended.stderr.contains("ERROR"), "{ended:?}");
        assert!(!ended.stderr.contains("WARN"), "{ended:?}");
    }
}

/// The words of each line that the workers wrote, sorted by rank.
fn words(nodes: &[Ended]) -> Vec<Vec<&str>> {
    let lines = nodes.iter().flat_map(|ended| ended.stdout_text().lines());
    let mut lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn clients_of_a_relay_need_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let store = Server::start_with(["store", "serve", "--port=0", &secret]);
    let relay = start_relay(&store, &[&secret]);
    assert!(relay.address.ip().is_loopback());
    relay.store(&["set", "k", "v"]).assert_prints("");
    store.store(&["get", "k", &secret]).assert_prints("v");
    relay.store(&["add", "n", "5"]).assert_prints("5\n");
    relay.store(&["get", "k"]).assert_prints("v");
    let refused = store.store(&["get", "k", "--timeout=300ms"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    relay.running.signal(Signal::TERM);
    let ended = relay.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("received SIGTERM"), "{ended:?}");
    store.store(&["get", "k", &secret]).assert_prints("v");
}

#[test]
fn the_pages_of_the_store_are_reached_through_a_relay() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let store = Server::start_with(["store", "serve", "--port=0", &secret]);
    let relay = start_relay(&store, &[&secret]);
    relay.store(&["set", "k", "v"]).assert_prints("");
    let token = run(["secret", "token", &secret]);
    let token = token.stdout_text().trim_end();
    let get = |path: &str, token: Option<&str>| {
        let request = HttpRequest::get(Target::Tcp(relay.address), path).with_token(token);
        fetch(&request, PATIENCE).unwrap()
    };
    for (path, text) in [
        ("/", "<html"),
        ("/why.json", "\"is_stuck\":false"),
        ("/keys.json", "\"/k\""),
        ("/metrics", "c10d_store_keys 1"),
    ] {
        let answer = get(path, Some(token));
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 200, "{path}: {body}");
        assert!(body.contains(text), "{path}: {body}");
        assert_eq!(answer.answered_at, Some(store.address), "{path}");
        assert_eq!(get(path, None).status, 401, "{path}");
    }
    let through = format!("--connect={}", relay.address);
    let ended = run(["why", &through, &secret]);
    assert_eq!(ended.code, Some(0), "{ended:?}");

    // In a worker, the store has moved since its environment was made.
    let in_worker = |words: &[&str]| {
        let mut command = command([words, &[&secret]].concat());
        command
            .env("MASTER_ADDR", relay.address.ip().to_string())
            .env("MASTER_PORT", relay.address.port().to_string())
            .env("C10D_MASTER_ADDR", "127.0.0.1")
            .env("C10D_MASTER_PORT", free_port().to_string());
        Running::start(command).end()
    };
    let ended = in_worker(&["why"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    in_worker(&["store", "get", "k"]).assert_prints("v");

    let address = store.address.to_string();
    store.running.signal(Signal::KILL);
    store.running.end();
    let expected = format!("this is a relay of the store at {address}, and it ");
    until("the relay has noticed", || {
        let ended = run(["why", &through, &secret]);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        ended.stderr.contains(&expected)
    });
}

/// The relay names the server of the store and not its epoch.
#[test]
fn a_lock_in_a_worker_that_has_the_secret_survives_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let directory = format!("--dir={}", folder.path().join("store").display());
    let serve = |port: u16| {
        let port = format!("--port={port}");
        Server::start_with(["store", "serve", &port, &directory, &secret])
    };
    let store = serve(0);
    let relay = start_relay(&store, &[&secret]);
    relay.store(&["set", "k", "v"]).assert_prints("");
    let over = folder.path().join("over");
    let mut lease = command(["store", "lease", "lock", &secret, "--", "sh", "-c"]);
    lease
        .arg("until [ -e \"$OVER\" ]; do sleep 0.05; done; exit 7")
        .env("OVER", &over)
        // Its reconnections.
        .env("RUST_LOG", "info")
        .env("MASTER_ADDR", relay.address.ip().to_string())
        .env("MASTER_PORT", relay.address.port().to_string())
        .env("C10D_MASTER_ADDR", "127.0.0.1")
        .env("C10D_MASTER_PORT", free_port().to_string());
    let mut lease = Running::start(lease);
    until("it holds the lock", || {
        store.store(&["get", "lock", &secret]).code == Some(0)
    });
    store.running.signal(Signal::KILL);
    let port = store.address.port();
    store.end();
    let _store = serve(port);
    let lines = BufReader::new(lease.stderr()).lines().map(Result::unwrap);
    // Both of its sessions reconnect, and one of them holds the key.
    let mut seen = Vec::new();
    for line in lines {
        seen.push(line);
        if seen
            .iter()
            .filter(|it| it.contains("nothing is lost"))
            .count()
            == 2
        {
            break;
        }
    }
    fs::write(&over, "").unwrap();
    assert_eq!(lease.end().code, Some(7), "{seen:#?}");
}

#[test]
fn workers_of_two_nodes_meet_through_relays_on_one_port() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let options: &[&str] = &["--relay", &secret];
    let nodes = two_nodes([options, options], &format!("{MEET}{ADDRESSES}"));
    assert_succeeded(&nodes);
    let words = words(&nodes);
    assert_eq!(words.len(), 4, "{nodes:?}");
    let (port, store) = (words[0][2], words[0][4]);
    assert_ne!(port, store);
    for line in &words {
        assert_eq!(
            line[2..],
            [port, "127.0.0.1", store, "True", "1"],
            "{words:?}"
        );
    }
    // Both nodes are on this machine, and each takes a loopback address whose port is free.
    let hosts: BTreeSet<&str> = words.iter().map(|line| line[1]).collect();
    assert_eq!(hosts.len(), 2, "{words:?}");
    assert!(hosts.iter().all(|it| it.starts_with("127.0.0.")));
    assert_eq!(words[0][1], words[1][1]);
}

/// PyTorch's clients do not wait for an answer to SET.
#[test]
fn what_a_worker_sends_before_it_exits_reaches_the_store() {
    // VALIDATE and PING, as PyTorch's clients connect, and SET of the key `/last` with a value of 100,000 bytes.
    const LAST: &str = r"
        [ $RANK = 1 ] || exec $C10D store wait last --timeout 20s
        exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
        printf '\x00\xce\xf7\x85\x3c\x0d1234' >&3
        [ $(head -c 4 <&3) = 1234 ]
        { printf '\x01\x05\0\0\0\0\0\0\0/last\xa0\x86\x01\0\0\0\0\0'
          head -c 100000 /dev/zero; } >&3";
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let nodes = [0, 1].map(|_| {
        let options = [
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--local-addr=127.0.0.1",
            &endpoint,
            "--relay",
        ];
        let mut launcher = command(["run"].iter().chain(&options));
        launcher.args(["--no-python", "bash", "-c", LAST]);
        Running::start(with_c10d(launcher))
    });
    assert_succeeded(&nodes.map(Running::end));
}

#[test]
fn the_nodes_of_a_static_rendezvous_have_relays_and_restart_alone() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let (store, port) = (free_port().to_string(), free_port().to_string());
    let script = format!("[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 1\n{MEET}{ADDRESSES}");
    let nodes = ["1", "0"].map(|rank| {
        let options = [
            "--nnodes=2",
            "--node-rank",
            rank,
            "--max-restarts=1",
            "--master-addr=127.0.0.1",
            "--master-port",
            &store,
            "--relay",
            "--relay-port",
            &port,
            &secret,
        ];
        Running::start(launch(&options, &script))
    });
    let nodes = nodes.map(Running::end);
    for ended in &nodes {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let words = words(&nodes);
    assert_eq!(words.len(), 2, "{nodes:?}");
    for line in &words {
        assert_eq!(line[2..5], [&port, "127.0.0.1", &store], "{words:?}");
    }
}

#[test]
fn a_secret_in_the_environment_of_workers_leads_to_the_store_itself() {
    let folder = tempfile::tempdir().unwrap();
    let secret: &Path = &new_secret(folder.path(), "secret");
    let mut launcher = launch(&["--standalone", "--nproc-per-node=2", "--relay"], MEET);
    launcher.env("C10D_SECRET_FILE", secret);
    assert_succeeded(&[Running::start(launcher).end()]);
}
