//! The root cause of a failed job: the same rank in the text, the report, the JSON and the error file, on every node.
//!
//! Without PyTorch, workers are shell scripts that write what ranks of PyTorch 2.15 write when they lose a connection.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use integration_tests::hosts::{HostSetup, Hosts};
use integration_tests::launcher::c10d;
use integration_tests::torch::{Feature, Release, print_skipped};
use integration_tests::watchdog::Watchdog;
use serde_json::Value;

use crate::run_torch::STEP_LIMIT;

const LIMIT: Duration = Duration::from_secs(600);

/// The last line of a rank of gloo that has lost its connection.
const LOST: &str = "RuntimeError: [/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:49804. This is \
                    typically caused by a remote worker crashing.";

/// Functions of a worker's script, about files in `$FOLDER`: whether a rank runs, and whether its process has exited.
const ORDER: &str = "runs() { echo $$$$ > $FOLDER/new.$RANK; mv $FOLDER/new.$RANK $FOLDER/pid.$RANK; }; \
    await() { while [ ! -e $FOLDER/pid.$1 ]; do sleep 0.02; done; }; \
    await_exit() { await $1; while grep -q . /proc/$(cat $FOLDER/pid.$1)/cmdline; do sleep 0.02; done; }; ";

/// The reports of a failed job.
struct Told {
    text: String,
    json: Value,
    error: Value,
}

impl Told {
    /// Runs workers of one node with this script; `$FOLDER` is an empty directory.
    fn of(workers: usize, script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(c10d());
        command
            .args(["run", "--standalone", "--json", "--no-python"])
            .arg(format!("--nproc-per-node={workers}"))
            .args(["sh", "-c", script])
            .env("FOLDER", folder.path())
            .env("TORCHELASTIC_ERROR_FILE", folder.path().join("error.json"));
        let ended = command.output().expect("the command runs");
        Self::read(&ended, folder.path())
    }

    fn read(ended: &Output, folder: &Path) -> Self {
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{text}");
        let stdout = String::from_utf8_lossy(&ended.stdout);
        let json = serde_json::from_str(stdout.lines().last().expect("a line"));
        let error = fs::read(folder.join("error.json")).expect("the error file");
        Self {
            json: json.expect("JSON"),
            error: serde_json::from_slice(&error).expect("JSON"),
            text,
        }
    }

    /// Asserts that everything names this rank, with a sentence of these parts; returns the sentence.
    #[track_caller]
    fn names(&self, rank: usize, parts: &[&str]) -> String {
        let Self { text, json, error } = self;
        let cause = json["root_cause"]["cause"].as_str().unwrap_or_default();
        assert_eq!(json["root_cause"]["rank"], rank, "{json}\n{text}");
        for part in parts {
            assert!(cause.contains(part), "no {part:?} in {cause:?}\n{text}");
        }
        let (before, report) = text.split_once("Root Cause (").expect("a report");
        let sentence = format!("R{}", &cause[1..]);
        assert!(unwrapped(before).contains(&sentence), "{text}");
        assert!(report.contains(&format!("  rank      : {rank}")), "{text}");
        assert!(
            report.contains(&format!("  cause     : {cause}\n")),
            "{text}"
        );
        let headline = json["why"]["headline"].as_str().unwrap_or_default();
        assert!(headline.starts_with(&sentence), "{json}");
        let message = error["message"]["message"].as_str().unwrap_or_default();
        let expected = format!("worker with rank {rank} is the root cause: {cause}");
        assert_eq!(message, expected);
        cause.to_owned()
    }
}

/// Text without the line breaks of a wrapped paragraph.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The launcher notices the exit some milliseconds after the process has ended, which nothing shows before rank 0 fails.
#[test]
fn a_rank_that_left_with_0_is_named_everywhere() {
    let _watchdog = Watchdog::start("a_rank_that_left_with_0_is_named_everywhere", LIMIT);
    let script = format!(
        "{ORDER} runs; [ $RANK != 1 ] || exit 0; [ $RANK != 2 ] || exec sleep 1000; \
         await_exit 1; sleep 0.5; echo '{LOST}' >&2; exit 1"
    );
    let told = Told::of(3, &script);
    told.names(
        1,
        &[
            "rank 1 exited with code 0, ",
            " before rank 0 lost its connection to it",
        ],
    );
    let failures = told.json["failures"].as_array().expect("a list");
    assert!(
        failures.iter().all(|it| it["is_root_cause"] == false),
        "{}",
        told.json
    );
    assert_eq!(told.json["root_cause"]["is_certain"], true);
}

/// A script in which rank 0 loses its connection, and rank 1 exits with 0 this many seconds after rank 0. The other ranks keep
/// running.
fn leaves_late(seconds: &str) -> String {
    format!(
        "{ORDER} runs; [ $RANK -lt 2 ] || exec sleep 1000; \
         if [ $RANK = 0 ]; then await 1; echo '{LOST}' >&2; exit 1; fi; \
         await_exit 0; sleep {seconds}; exit 0"
    )
}

/// docs/spec/rendezvous.md, EXITS 7. Python may need longer than half a second to exit after the process group has closed
/// its connections. The address of the lost connection is of this host, so the lost rank is as well.
#[test]
fn a_rank_that_exits_long_after_it_closed_its_connections_is_named() {
    let _watchdog = Watchdog::start(
        "a_rank_that_exits_long_after_it_closed_its_connections_is_named",
        LIMIT,
    );
    let told = Told::of(2, &leaves_late("0.8"));
    let end = " before that was noticed, rank 0 lost its connection to it";
    told.names(1, &["rank 1 exited with code 0; ", end]);
    assert_eq!(told.json["root_cause"]["is_certain"], true);
}

/// The wait for such a rank is bounded, and the report does not accuse a rank that runs.
#[test]
fn a_rank_that_keeps_running_after_it_closed_its_connections_is_stopped() {
    let _watchdog = Watchdog::start(
        "a_rank_that_keeps_running_after_it_closed_its_connections_is_stopped",
        LIMIT,
    );
    let told = Told::of(2, &leaves_late("1000"));
    let part = "it lost its connection to another rank, and no other had exited";
    told.names(0, &["rank 0 exited with code 1: ", part]);
}

#[test]
fn an_abort_at_the_end_of_a_program_has_a_cure() {
    let _watchdog = Watchdog::start("an_abort_at_the_end_of_a_program_has_a_cure", LIMIT);
    let script = format!(
        "{ORDER} runs; [ $RANK = 1 ] || exit 0; await_exit 0; \
         echo 'terminate called without an active exception' >&2; kill -ABRT $$$$"
    );
    let told = Told::of(2, &script);
    told.names(
        1,
        &["rank 1 was ended by SIGABRT at the end of its program"],
    );
    let cure = "call torch.distributed.destroy_process_group() at the end of the program";
    assert_eq!(told.json["root_cause"]["cure"], cure);
    assert!(
        told.text.contains(&format!("  cure      : {cure}\n")),
        "{}",
        told.text
    );
}

/// The reports of two nodes. Rank 1 on the other node gives its reason and exits with 3; rank 0 loses its connection to it.
fn reports_of_two_nodes(
    hosts: &Hosts,
    worker: &[String],
    variables: &[(&str, &str)],
) -> [String; 2] {
    let processes = [0, 1].map(|host| {
        let mut command = hosts.command(host, c10d());
        command
            .args(["run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=5"])
            .args(["--rdzv-endpoint=10.8.8.1:29500", "--max-restarts=2"])
            .args(worker)
            .envs(variables.iter().copied())
            .env("FOLDER", hosts.folder());
        // The order of the names decides about the ranks.
        hosts.start_process(&format!("node{host}"), &mut command)
    });
    processes.map(|mut process| {
        let code = process.wait(STEP_LIMIT);
        let output = process.output();
        assert_eq!(code, 1, "{output}");
        output
    })
}

fn two_hosts() -> Option<Hosts> {
    let names = "127.0.0.1 localhost\n10.8.8.1 node0\n10.8.8.2 node1\n";
    Hosts::start(["node0", "node1"].map(|name| HostSetup::new(name, names)))
}

/// Asserts that a report names rank 1, its host, its exit code and its last line: in the report on failures, or in the line of
/// a node whose own workers were stopped because of that.
#[track_caller]
fn expect_rank_1(report: &str, line: &str) {
    let parts = match report.rsplit_once("Root Cause (") {
        Some(_) => [
            "  host      : node1\n",
            "  rank      : 1",
            "  exitcode  : 3 (",
            line,
        ],
        None => [
            "root cause: rank 1 on node1 ",
            " code 3",
            "stopping the workers: ",
            line,
        ],
    };
    for part in parts {
        assert!(report.contains(part), "no {part:?} in {report}");
    }
}

/// Runs ranks of PyTorch. Rank 1 leaves in this way. `None` if no rank fails.
fn told_by_torch(leaves: &str, workers: usize) -> Option<Told> {
    let folder = tempfile::tempdir().expect("a directory");
    let python = std::env::var_os("C10D_TORCH_PYTHON").expect("C10D_TORCH_PYTHON");
    let mut command = Command::new(c10d());
    command
        .args(["run", "--standalone", "--json"])
        .arg(format!("--nproc-per-node={workers}"))
        .arg(integration_tests::torch::script("leaving_rank.py"))
        .env("LEAVES", leaves)
        .env("PYTHON_EXEC", python)
        .env("TORCHELASTIC_ERROR_FILE", folder.path().join("error.json"));
    // A `ChildProcess` keeps too few lines for the tracebacks of several ranks.
    let ended = command.output().expect("the command runs");
    (!ended.status.success()).then(|| Told::read(&ended, folder.path()))
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_rank_of_pytorch_that_leaves_is_named_everywhere() {
    let _watchdog = Watchdog::start("a_rank_of_pytorch_that_leaves_is_named_everywhere", LIMIT);
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let code_0 = "rank 1 exited with code 0, ";
    for (leaves, start, end) in [
        // gloo may abort it at its end.
        ("return", "rank 1 ", " lost its connection to it"),
        ("exit", code_0, " lost its connection to it"),
        (
            "wait",
            code_0,
            " gave up waiting for the key /default_pg/0//result/1",
        ),
    ] {
        let told = told_by_torch(leaves, 3).expect("a failure");
        told.names(1, &[start, " before rank ", end]);
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_rank_of_pytorch_that_is_about_to_exit_is_waited_for() {
    // The texts of other releases differ.
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let _watchdog = Watchdog::start(
        "a_rank_of_pytorch_that_is_about_to_exit_is_waited_for",
        LIMIT,
    );
    let told = told_by_torch("destroy", 3).expect("a failure");
    match told.json["root_cause"]["rank"].as_u64() {
        Some(1) => {
            let end = " before that was noticed, rank ";
            told.names(1, &["rank 1 exited with code 0; ", end]);
        }
        // Rank 1 had opened the lost connection, so its address tells nothing, and one rank had not yet failed.
        rank => {
            let rank = usize::try_from(rank.expect("a rank")).expect("a rank");
            let end = "perhaps to rank 1, which exited with code 0 soon after";
            told.names(rank, &["it lost its connection to another rank", end]);
        }
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn an_abort_of_gloo_at_exit_has_a_cure() {
    // The texts of other releases differ.
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let _watchdog = Watchdog::start("an_abort_of_gloo_at_exit_has_a_cure", LIMIT);
    // It happens in about half of the runs on a busy machine, and seldom on an idle one.
    let Some(told) = (0..20).find_map(|_| told_by_torch("end", 3)) else {
        return print_skipped("gloo's abort, which did not happen in 20 runs (LEFT OUT)");
    };
    let rank = told.json["root_cause"]["rank"].as_u64().expect("a rank");
    let rank = usize::try_from(rank).expect("a rank");
    told.names(rank, &["was ended by SIGABRT at the end of its program"]);
    let cure = told.json["root_cause"]["cure"].as_str().expect("a cure");
    assert!(cure.contains("destroy_process_group()"), "{cure}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_rank_of_pytorch_on_another_node_is_named_with_its_last_line() {
    // The texts of other releases differ.
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let _watchdog = Watchdog::start(
        "a_rank_of_pytorch_on_another_node_is_named_with_its_last_line",
        LIMIT,
    );
    let Some(hosts) = two_hosts() else {
        return;
    };
    let python = std::env::var("C10D_TORCH_PYTHON").expect("C10D_TORCH_PYTHON");
    let script = integration_tests::torch::script("leaving_rank.py");
    let worker = [script.to_string_lossy().into_owned()];
    let variables = [("LEAVES", "reason"), ("PYTHON_EXEC", &*python)];
    let reports = reports_of_two_nodes(&hosts, &worker, &variables);
    for report in reports {
        expect_rank_1(&report, "cannot read /data/shard-17: Input/output error");
    }
}
