//! `c10d doctor` on one machine: its exit codes and reports.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Ended, Running, Server, command, free_port};

fn start(words: &[&str]) -> Running {
    Running::start(command(["doctor"].iter().chain(words)))
}

/// Two nodes at one endpoint of this machine, with these additional options.
fn two_nodes(options: &[&str]) -> [Ended; 2] {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        &endpoint,
        "--rdzv-id=7",
    ];
    let words = [&words[..], options].concat();
    [start(&words), start(&words)].map(Running::end)
}

#[test]
fn the_only_node_of_a_job_is_checked_alone() {
    let ended = start(&["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = ended.stdout_text();
    assert!(
        text.contains("1 of 1 nodes of run \"none\" have reported"),
        "{text}"
    );
    assert!(ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn the_report_can_be_json() {
    let folder = TempDir::new().unwrap();
    let secret = folder.path().join("secret");
    let new = Running::start(command(["secret", "new"])).end();
    fs::write(&secret, &new.stdout).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let secret = secret.to_str().unwrap();
    for ended in two_nodes(&["--json", "--secret-file", secret]) {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(report["exit_code"], 0, "{report}");
        let nodes = report["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2, "{report}");
        for (number, node) in nodes.iter().enumerate() {
            let links = node["measured"]["links"].as_array().unwrap();
            assert_eq!(links.len(), 1, "{report}");
            assert_eq!(links[0]["to"], 1 - number, "{report}");
            assert!(links[0]["took_us"]["Ok"].is_u64(), "{report}");
        }
    }
}

#[test]
fn the_command_line_of_a_job_is_accepted() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let of_run = [
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--preload=torch",
        "train.py",
        "--lr",
        "0.1",
    ];
    let words = |rank| {
        let words = [
            "--nnodes=2",
            "--rdzv-endpoint",
            &endpoint,
            "--node-rank",
            rank,
        ];
        [&words[..], &of_run].concat()
    };
    for ended in [start(&words("0")), start(&words("1"))].map(Running::end) {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    // The same rank twice.
    let twice = [start(&words("0")), start(&words("0"))].map(Running::end);
    for ended in twice {
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(
            ended.stdout_text().contains("have the same --node-rank 0"),
            "{ended:?}"
        );
    }
}

#[test]
fn missing_nodes_are_another_exit_code() {
    // Nodes with given ranks have names for the missing ones.
    let endpoint = format!("127.0.0.1:{}", free_port());
    let of_rank = |rank| {
        [
            "--nnodes=3",
            "--rdzv-endpoint",
            &endpoint,
            "--node-rank",
            rank,
            "--timeout=8s",
        ]
    };
    for ended in [start(&of_rank("0")), start(&of_rank("2"))].map(Running::end) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let missing = "1 of 3 nodes did not report in time: node rank 1\n";
        assert!(ended.stdout_text().contains(missing), "{ended:?}");
    }
    // The node that serves has not started.
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = [
        "--nnodes=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        &endpoint,
        "--rdzv-conf=is_host=0",
        "--timeout=8s",
    ];
    let ended = start(&words).end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("no node serves the check yet"),
        "{ended:?}"
    );
}

#[test]
fn fewer_nodes_than_the_maximum_are_enough_for_an_elastic_job() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        &endpoint,
    ];
    let ended = start(&[&words[..], &["--timeout=8s"]].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_server_that_answers_already_is_reported_and_left_alone() {
    let server = Server::start();
    let endpoint = server.address.to_string();
    let keys = || {
        let ended = Running::start(command(["store", "keys", "--connect", &endpoint])).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    };
    let before = keys();
    for host in ["1", "0"] {
        let conf = format!("--rdzv-conf=is_host={host}");
        let words = [
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint",
            &endpoint,
            &conf,
        ];
        let started = Instant::now();
        let ended = start(&words).end();
        ended.assert_fails(1, "a store");
        assert!(ended.stderr.contains(&endpoint), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(25), "{ended:?}");
    }
    assert_eq!(keys(), before);
}

#[test]
fn a_program_that_is_not_a_store_is_reported() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let ended = start(&[
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        &endpoint,
    ])
    .end();
    ended.assert_fails(1, "a program that never answers (process ");
}

#[test]
fn nodes_without_an_endpoint_of_host_and_port_are_refused() {
    let file = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=/x",
        "--rdzv-conf=store_type=file",
    ];
    start(&file).end().assert_fails(2, "HOST:PORT");
    #[cfg(feature = "etcd")]
    {
        let etcd = [
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=etcd://127.0.0.1:1/x",
        ];
        start(&etcd).end().assert_fails(2, "etcd");
    }
}
