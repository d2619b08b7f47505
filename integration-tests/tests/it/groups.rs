//! Groups of the crate `c10d` whose ranks are processes: Rust programs, PyTorch by the documented keys alone, workers of
//! torchrun and of `c10d run`, and stores with a secret.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use c10d_store::Secret;
use integration_tests::launcher::{c10d, free_address};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release, python, script};
use integration_tests::watchdog::Watchdog;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);
const WORKER: &str = env!("CARGO_BIN_EXE_group-worker");

/// A rank that is a Rust program, without a launcher.
fn rust_rank(address: SocketAddr, rank: usize, world_size: usize) -> ChildProcess {
    let mut command = Command::new(WORKER);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("MASTER_ADDR", address.ip().to_string())
        .env("MASTER_PORT", address.port().to_string());
    ChildProcess::start(format!("rank {rank}"), &mut command)
}

/// A rank that is PyTorch's `TCPStore` and `python/group_member.py`.
fn torch_rank(address: SocketAddr, rank: usize, world_size: usize) -> ChildProcess {
    let role = if rank == 0 { "host" } else { "guest" };
    let mut command = python();
    command
        .arg(script("group_member.py"))
        .args(["torch.distributed", &address.to_string(), role])
        .args([rank, world_size].map(|number| number.to_string()));
    ChildProcess::start(format!("rank {rank}, PyTorch"), &mut command)
}

#[track_caller]
fn expect_all(ranks: Vec<ChildProcess>) {
    let world_size = ranks.len();
    let values = (0..world_size).map(|rank| format!("value of {rank}"));
    let parts = (0..world_size).map(|rank| format!("part of {rank}"));
    let expected = json!({ "got": values.chain(parts).collect::<Vec<_>>() });
    for mut rank in ranks {
        assert_eq!(rank.read_json(), expected, "{}", rank.stderr());
        assert!(rank.wait(LIMIT).success(), "{}", rank.stderr());
    }
}

#[test]
fn processes_form_a_group_and_pass_values_around() {
    let _watchdog = Watchdog::start("processes_form_a_group", LIMIT);
    let address = free_address();
    expect_all((0..4).map(|rank| rust_rank(address, rank, 4)).collect());
}

#[test]
fn a_rank_that_is_not_started_is_named() {
    let _watchdog = Watchdog::start("a_rank_that_is_not_started", LIMIT);
    let variables = [
        ("RANK", "0"),
        ("WORLD_SIZE", "3"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ];
    let error = c10d::GroupOptions::default()
        .with_timeout(Duration::from_secs(3))
        .init_from(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap_err();
    assert!(
        error.to_string().contains("2 of 3 ranks are missing: 1-2"),
        "{error}"
    );
}

#[test]
fn a_store_with_a_secret_admits_only_ranks_that_have_it() {
    let _watchdog = Watchdog::start("a_store_with_a_secret", LIMIT);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, Secret::random().unwrap().to_text()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (right, wrong) = (write("right"), write("wrong"));
    let address = free_address();
    let start = |rank: usize, secret| {
        let mut command = Command::new(WORKER);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", address.ip().to_string())
            .env("MASTER_PORT", address.port().to_string())
            .env("C10D_SECRET_FILE", secret);
        ChildProcess::start(format!("rank {rank}"), &mut command)
    };
    let first = start(0, &right);
    let mut stranger = start(1, &wrong);
    assert!(!stranger.wait(LIMIT).success());
    expect_all(vec![first, start(1, &right)]);
}

#[test]
fn workers_of_c10d_run_form_a_group_again_after_a_restart() {
    let mut command = Command::new(c10d());
    let _watchdog = Watchdog::start("workers_of_c10d_run_form_a_group", LIMIT);
    command
        .args([
            "run",
            "--no-scheduler",
            "--standalone",
            "--nproc-per-node=4",
            "--max-restarts=1",
        ])
        .args([WORKER, "fail-once"]);
    expect_lines(ChildProcess::start("c10d run", &mut command), 4);
}

#[track_caller]
fn expect_lines(mut launcher: ChildProcess, world_size: usize) {
    let status = launcher.wait(LIMIT);
    assert!(status.success(), "{}", launcher.stderr());
    for _ in 0..world_size {
        let got = launcher.read_json();
        assert_eq!(
            got["got"].as_array().unwrap().len(),
            2 * world_size,
            "{got}"
        );
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_of_torchrun_form_a_group_again_in_the_store_that_it_shares_between_restarts() {
    let _watchdog = Watchdog::start("workers_of_torchrun_form_a_group", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let mut command = python();
    command
        .args([
            "-m",
            "torch.distributed.run",
            "--no-python",
            "--nproc-per-node=4",
        ])
        .args([
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--max-restarts=1",
        ])
        .args([WORKER, "fail-once"]);
    expect_lines(ChildProcess::start("torchrun", &mut command), 4);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorch_takes_part_by_the_documented_keys() {
    let _watchdog = Watchdog::start("pytorch_takes_part", LIMIT);
    let address = free_address();
    let mut ranks = vec![rust_rank(address, 0, 3), torch_rank(address, 1, 3)];
    ranks.push(rust_rank(address, 2, 3));
    expect_all(ranks);
    // Over PyTorch's server.
    let address = free_address();
    let mut ranks = vec![torch_rank(address, 0, 3), rust_rank(address, 1, 3)];
    ranks.push(torch_rank(address, 2, 3));
    expect_all(ranks);
}
