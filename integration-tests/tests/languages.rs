//! One group of ranks in Rust, C++, Python without PyTorch, and PyTorch.
//!
//! Needs what the bindings install: `C10D_C_PREFIX` names the prefix of the C library, `C10D_WHEEL_PYTHON` a Python with
//! the wheel and without PyTorch, `C10D_TORCH_PYTHON` one with PyTorch. A program of its own, because the other tests need
//! less.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration_tests::launcher::free_address;
use integration_tests::process::ChildProcess;
use integration_tests::torch::{python, script};
use integration_tests::watchdog::Watchdog;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);

#[track_caller]
fn variable(name: &str) -> PathBuf {
    let value = env::var_os(name);
    PathBuf::from(value.unwrap_or_else(|| panic!("set {name}, see integration-tests/README.md")))
}

/// Compiles the program of a rank in C++ against the installed library.
fn compile(folder: &Path) -> PathBuf {
    let prefix = variable("C10D_C_PREFIX").join("lib");
    let program = folder.join("group_worker");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cpp/group_worker.cpp");
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "c10d"])
        .env("PKG_CONFIG_PATH", prefix.join("pkgconfig"))
        .output()
        .expect("pkg-config can be run");
    assert!(output.status.success(), "{output:?}");
    let flags = String::from_utf8(output.stdout).unwrap();
    let status = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .args(flags.split_whitespace())
        .arg(format!("-Wl,-rpath,{}", prefix.display()))
        .status();
    assert!(status.expect("a C++ compiler").success());
    program
}

/// A rank that reads the variables of a launcher.
fn rank(mut command: Command, address: SocketAddr, rank: usize, world_size: usize) -> ChildProcess {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("MASTER_ADDR", address.ip().to_string())
        .env("MASTER_PORT", address.port().to_string());
    ChildProcess::start(format!("rank {rank}"), &mut command)
}

/// A rank that takes part by the documented keys alone, with the `TCPStore` of a Python module.
fn rank_by_keys(
    mut python: Command,
    module: &str,
    address: SocketAddr,
    rank: usize,
    world_size: usize,
) -> ChildProcess {
    let role = if rank == 0 { "host" } else { "guest" };
    python
        .arg(script("group_member.py"))
        .args([module, &address.to_string(), role])
        .args([rank, world_size].map(|number| number.to_string()));
    ChildProcess::start(format!("rank {rank}, {module}"), &mut python)
}

#[test]
#[ignore = "needs the bindings: see the head of the file"]
fn ranks_in_four_languages_form_one_group() {
    const WORLD_SIZE: usize = 5;
    let folder = tempfile::tempdir().unwrap();
    let in_cpp = compile(folder.path());
    let wheel = || {
        let mut command = Command::new(variable("C10D_WHEEL_PYTHON"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let _watchdog = Watchdog::start("ranks_in_four_languages", LIMIT);
    // Each of them hosts the store once.
    for first in 0..WORLD_SIZE {
        let address = free_address();
        let mut ranks: Vec<ChildProcess> = Vec::new();
        for language in 0..WORLD_SIZE {
            let number = (language + WORLD_SIZE - first) % WORLD_SIZE;
            ranks.push(match language {
                0 => {
                    let command = Command::new(env!("CARGO_BIN_EXE_group-worker"));
                    rank(command, address, number, WORLD_SIZE)
                }
                1 => rank(Command::new(&in_cpp), address, number, WORLD_SIZE),
                2 => {
                    let mut command = wheel();
                    command.arg(script("wheel_member.py"));
                    rank(command, address, number, WORLD_SIZE)
                }
                3 => rank_by_keys(wheel(), "c10d_rs", address, number, WORLD_SIZE),
                _ => rank_by_keys(python(), "torch.distributed", address, number, WORLD_SIZE),
            });
        }
        let values = (0..WORLD_SIZE).map(|rank| format!("value of {rank}"));
        let parts = (0..WORLD_SIZE).map(|rank| format!("part of {rank}"));
        let expected = json!({ "got": values.chain(parts).collect::<Vec<_>>() });
        for mut rank in ranks {
            assert_eq!(rank.read_json(), expected, "{}", rank.what());
            assert!(rank.wait(LIMIT).success(), "{}", rank.stderr());
        }
    }
}
