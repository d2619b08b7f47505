//! `gpu/check` on a machine without a GPU: the script itself, its results and its exit codes.

use std::path::Path;
use std::process::{Command, Output};

use integration_tests::launcher::c10d;
use integration_tests::torch::{Feature, Release, python};
use serde_json::Value;

fn check(out: &Path, words: &[&str]) -> (Output, Value) {
    let mut command: Command = python();
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/check"));
    command.arg("--c10d").arg(c10d()).arg("--out").arg(out);
    // A GPU of this machine is not used.
    command.args(words).env("CUDA_VISIBLE_DEVICES", "");
    let output = command.output().expect("the script can be run");
    let result = std::fs::read(out.join("result.json")).expect("the script writes its result");
    let result = serde_json::from_slice(&result).expect("the result is JSON");
    (output, result)
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn without_a_gpu_the_check_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let (output, result) = check(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(result["machine"]["gpus"], 0);
    assert_eq!(result["parts"], serde_json::json!([]));
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_rehearsal_of_the_check_has_the_results_of_its_parts() {
    // Restarts of one worker need no group, but the health check trains with gloo.
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (output, result) = check(folder.path(), &["--rehearse", "--parts", "2,6"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let parts = result["parts"].as_array().expect("parts");
    let statuses: Vec<_> = parts.iter().map(|part| &part["status"]).collect();
    assert_eq!(statuses, ["done", "done"], "{text}");
    let restarts = &parts[0]["figures"]["preload_restart_to_step"];
    assert_eq!(restarts["count"], 5, "{result}");
    assert!(restarts["median_s"].as_f64() > Some(0.0), "{result}");
    let refused = &parts[1]["figures"]["refused"]["said"];
    let refused = refused.as_str().expect("a text");
    assert!(refused.contains("exit code 3"), "{refused}");
}
