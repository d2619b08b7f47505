//! The first minutes with `c10d run`: its messages before the job's output, its checks before it joins, and the files
//! that it leaves behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Ended, Running, Server, command, free_port};

/// `c10d run WORDS` with a separate temporary directory.
fn launcher<'w>(folder: &TempDir, words: impl IntoIterator<Item = &'w str>) -> Command {
    let mut command = command(["run"].into_iter().chain(words));
    command
        .env("TMPDIR", folder.path())
        .env_remove("OMP_NUM_THREADS")
        .env_remove("TORCHELASTIC_ERROR_FILE")
        .current_dir(folder.path());
    command
}

fn run(folder: &TempDir, words: &[&str]) -> Ended {
    Running::start(launcher(folder, words.iter().copied())).end()
}

fn entries(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[track_caller]
fn assert_matches(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line:?}");
    }
}

#[test]
fn a_chosen_log_level_shows_the_modules_that_log() {
    let folder = TempDir::new().unwrap();
    let mut command = launcher(&folder, ["--standalone", "true"]);
    command.env("RUST_LOG", "debug");
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_matches(
        &ended.stderr,
        &[
            "open_store] this process hosts the rendezvous store",
            "elastic_agent::agent] world size 1: rank 0 = local rank 0, pid ",
        ],
    );
}

#[test]
fn a_directory_of_logs_stays_if_a_worker_has_written_to_it() {
    let folder = TempDir::new().unwrap();
    let ended = run(&folder, &["--standalone", "-t3", "sh", "-c", "echo here"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_matches(&ended.stderr, &["logs of this node's workers are in "]);
    let left = entries(&folder);
    assert!(
        matches!(&left[..], [it] if it.starts_with("torchelastic_")),
        "{left:?}"
    );

    let folder = TempDir::new().unwrap();
    let script = "echo '{}' > \"$TORCHELASTIC_ERROR_FILE\"; exit 3";
    let ended = run(&folder, &["--standalone", "sh", "-c", script]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_matches(&ended.stderr, &["logs of this node's workers are in "]);
    assert_eq!(entries(&folder).len(), 1);

    // The run writes no file, even if a worker fails.
    let folder = TempDir::new().unwrap();
    let ended = run(&folder, &["--standalone", "sh", "-c", "exit 3"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(!ended.stderr.contains("logs of"), "{ended:?}");
    assert_eq!(entries(&folder), [""; 0]);
}

/// There is no server at the endpoint, so a node that joined would wait for it.
#[test]
fn what_keeps_workers_from_starting_is_noticed_before_the_join() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let port = free_port();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{port}");
    let common = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        &endpoint,
    ];
    for (words, text) in [
        (
            &["./missing.sh"][..],
            "cannot start ./missing.sh: No such file",
        ),
        (&["./file"], "./file is not executable: chmod +x ./file"),
        (&["missing-program"], "cannot start missing-program: "),
        (&["missing.py"], "cannot read the script missing.py (in "),
        (
            &["--run-path", "missing"],
            "cannot read the script missing (in ",
        ),
        (
            &["--log-dir=file", "true"],
            "cannot create the log directory file: ",
        ),
        (
            &["--log-dir=file/x", "-t3", "true"],
            "cannot create the log directory file/x: ",
        ),
    ] {
        let ended = run(&folder, &[&common, words].concat());
        ended.assert_fails(1, text);
    }
    assert_eq!(entries(&folder), ["file"]);

    let mut command = launcher(&folder, common);
    command.args(["-t3", "true"]).env("TMPDIR", "/nonexistent");
    let ended = Running::start(command).end();
    ended.assert_fails(
        1,
        "cannot create the log directory /nonexistent: No such file",
    );

    // A run without a round also writes a report.
    let report = folder.path().join("error.json");
    let mut command = launcher(&folder, common);
    command
        .arg("missing.py")
        .env("TORCHELASTIC_ERROR_FILE", &report);
    assert_eq!(Running::start(command).end().code, Some(1));
    assert!(fs::read_to_string(report).unwrap().contains("missing.py"));
}

#[test]
fn a_dry_run_warns_of_a_missing_script() {
    let folder = TempDir::new().unwrap();
    let ended = run(&folder, &["--dry-run", "missing.py"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_matches(
        ended.stdout_text(),
        &["warning           cannot read the script missing.py (in "],
    );
}

/// A golden log has the line of a job without a minimum.
#[test]
fn a_node_of_an_elastic_job_says_when_it_starts() {
    let folder = TempDir::new().unwrap();
    let server = Server::start();
    let endpoint = format!("--rdzv-endpoint={}", server.address);
    let words = [
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--nnodes=1:3",
        &endpoint,
        "true",
    ];
    let mut node = Running::start(launcher(&folder, words));
    let parts = [
        "INFO",
        "1 of 1 to 3 nodes at 127.0.0.1:",
        " s (last_call_timeout)",
        ", or when 2 more have joined",
    ];
    assert_matches(&node.line_of_stderr(), &parts);
}

#[test]
fn a_signal_while_nodes_meet_leaves_a_line() {
    let folder = TempDir::new().unwrap();
    let server = Server::start();
    let endpoint = format!("--rdzv-endpoint={}", server.address);
    let words = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        &endpoint,
        "true",
    ];
    let mut node = Running::start(launcher(&folder, words));
    let mut lines = BufReader::new(node.stderr()).lines().map(Result::unwrap);
    let waiting = lines.next().unwrap();
    assert_matches(&waiting, &["waiting up to"]);
    node.signal(Signal::TERM);
    let last = lines.last().unwrap();
    assert_matches(
        &last,
        &["WARN", "stopped by SIGTERM before workers were started"],
    );
    assert_eq!(node.end().code, Some(143));
}

#[test]
fn a_dry_run_shows_logs_restarts_and_preloading() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.py"), "").unwrap();
    let default = run(&folder, &["--dry-run", "s.py"]);
    let temporary = format!(
        "log dir           a new directory in {}\n",
        folder.path().display()
    );
    assert_matches(
        default.stdout_text(),
        &[&temporary, "max restarts      0\n"],
    );
    let words = [
        "--dry-run",
        "--log-dir=/var/log/job",
        "-t3",
        "--preload=torch",
        "--preload-required",
        "--restart-budget=10/1h",
        "--max-restarts-without-progress=3",
        "--no-restart-exit-codes=93,-6",
        "--progress-timeout=10m",
        "--health-check=nvidia-smi",
        "s.py",
    ];
    let ended = run(&folder, &words);
    assert_matches(
        ended.stdout_text(),
        &[
            "log dir           /var/log/job\n",
            "tee               3\n",
            "preload           torch, required\n",
            "max restarts      no limit\n",
            "restart budget    10 in any 3600s\n",
            "without progress  3\n",
            "no restart after  -6,93\n",
            "progress timeout  600s\n",
            "health check      nvidia-smi\n",
        ],
    );
    let json = run(&folder, &[&words[..1], &["--json"], &words[1..]].concat());
    let plan: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(plan["log_dir"], "/var/log/job");
    assert_eq!(plan["restart_rules"]["without_progress"], "3");
    assert!(!Path::new("/var/log/job").exists());
}

#[test]
fn the_first_example_finds_the_command_that_has_started_it() {
    let folder = TempDir::new().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/meet.sh");
    let script = script.to_str().unwrap();
    let words = ["--standalone", "--nproc-per-node=2", script];
    let mut command = launcher(&folder, words);
    command.env("PATH", "/usr/bin:/bin");
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(stdout.matches("met all others").count(), 2, "{stdout}");
}
