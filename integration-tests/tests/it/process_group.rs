//! PyTorch processes that form process groups through our server.
//!
//! By default rank 0 of an `env://` or `tcp://` group hosts the store itself, and its bind would fail because our
//! server uses the port. As with torchrun, `TORCHELASTIC_USE_AGENT_STORE` makes rank 0 a client: see
//! [`env_of_rank`].

use std::process::Command;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{python, script};
use integration_tests::watchdog::Watchdog;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(300);

/// Longer than a group on loopback takes, including the start of Python.
const GROUP_TIMEOUT: Duration = Duration::from_secs(120);

const WORLD_SIZE: usize = 4;

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server")
}

/// How a rank finds the store: the first argument of `process_group.py`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Env,
    Tcp,
    Store,
}

fn start_rank(mode: Mode, rank: usize, server: &TcpStoreServer, timeout: Duration) -> ChildProcess {
    let port = server.local_addr().port();
    let mode_name = match mode {
        Mode::Env => "env",
        Mode::Tcp => "tcp",
        Mode::Store => "store",
    };
    let mut command = python();
    command
        .arg(script("process_group.py"))
        .args([mode_name, &rank.to_string(), &WORLD_SIZE.to_string()])
        .args([port.to_string(), timeout.as_secs().to_string()])
        // The interface that gloo connects on.
        .env("GLOO_SOCKET_IFNAME", "lo");
    if mode != Mode::Store {
        env_of_rank(&mut command, rank, port);
    }
    ChildProcess::start(format!("rank {rank}"), &mut command)
}

/// Sets the variables with which a rank uses an existing store.
fn env_of_rank(command: &mut Command, rank: usize, port: u16) {
    command
        // The variables that `env://` reads.
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", WORLD_SIZE.to_string())
        // A server runs at MASTER_ADDR:MASTER_PORT: rank 0 is a client too. The value must be "True". The host
        // and port in a `tcp://` URL must have the same spelling as these two variables.
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        // PyTorch 2.4 requires it together with TORCHELASTIC_USE_AGENT_STORE.
        .env("TORCHELASTIC_RESTART_COUNT", "0");
}

fn expect_results(ranks: Vec<ChildProcess>) {
    // Count, sum, and sum of squares of the ranks 0, 1, 2, 3.
    let sum = json!([4, 6, 14]);
    for (rank, mut process) in ranks.into_iter().enumerate() {
        let result: Value = process.read_json();
        let expected = json!({
            "rank": rank,
            "sum": sum,
            "gathered": [0, 10, 20, 30],
            "object": {"from": 0, "text": "hello"},
            "evens": if rank % 2 == 0 { 2 } else { rank },
        });
        assert_eq!(result, expected, "{}", process.stderr());
        assert!(process.wait(GROUP_TIMEOUT).success(), "rank {rank}");
    }
}

fn run_group(mode: Mode) {
    let server = serve();
    let ranks = (0..WORLD_SIZE)
        .map(|rank| start_rank(mode, rank, &server, GROUP_TIMEOUT))
        .collect();
    expect_results(ranks);
    // The ranks registered and exchanged their addresses through our server.
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    let keys = store.list_keys().expect("list_keys");
    assert!(keys.len() >= WORLD_SIZE, "{keys:?}");
    assert_eq!(
        store.num_keys().expect("num_keys"),
        keys.len() as u64 + 1,
        "list_keys omits only the count of workers"
    );
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_gloo_group_with_env_init_method() {
    let _watchdog = Watchdog::start("a_gloo_group_with_env_init_method", LIMIT);
    run_group(Mode::Env);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_gloo_group_with_tcp_init_method() {
    let _watchdog = Watchdog::start("a_gloo_group_with_tcp_init_method", LIMIT);
    run_group(Mode::Tcp);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_gloo_group_with_an_explicit_store() {
    let _watchdog = Watchdog::start("a_gloo_group_with_an_explicit_store", LIMIT);
    run_group(Mode::Store);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_missing_rank_makes_the_others_time_out() {
    let _watchdog = Watchdog::start("a_missing_rank_makes_the_others_time_out", LIMIT);
    let server = serve();
    let timeout = Duration::from_secs(5);
    let started = Instant::now();
    let mut ranks: Vec<ChildProcess> = (0..WORLD_SIZE - 1)
        .map(|rank| start_rank(Mode::Env, rank, &server, timeout))
        .collect();
    for rank in &mut ranks {
        let status = rank.wait(GROUP_TIMEOUT);
        let text = rank.stderr();
        assert!(!status.success(), "{text}");
        assert!(text.to_lowercase().contains("timeout"), "{text}");
    }
    assert!(started.elapsed() >= timeout);
    // The server still works.
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    assert_eq!(store.add("counter", 1).expect("add"), 1);
}
