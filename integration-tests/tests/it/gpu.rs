//! `gpu/check` on a machine without a GPU: the script itself, its results and its exit codes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use integration_tests::launcher::c10d;
use integration_tests::torch::{Feature, Release, python};
use serde_json::Value;

fn check(c10d: &Path, out: &Path, words: &[&str]) -> (Output, Value) {
    let mut command: Command = python();
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/check"));
    command.arg("--c10d").arg(c10d).arg("--out").arg(out);
    // A GPU of this machine is not used.
    command.args(words).env("CUDA_VISIBLE_DEVICES", "");
    let output = command.output().expect("the script can be run");
    let result = fs::read(out.join("result.json")).expect("the script writes its result");
    let result = serde_json::from_slice(&result).expect("the result is JSON");
    (output, result)
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn without_a_gpu_the_check_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    // Copied to another machine, the command has often lost the permission to be executed.
    let copy = folder.path().join("c10d");
    fs::copy(c10d(), &copy).expect("a copy of the command");
    fs::set_permissions(&copy, Permissions::from_mode(0o644)).expect("its permissions");
    let (output, result) = check(&copy, folder.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let version = result["machine"]["c10d"].as_str().expect("a version");
    assert!(version.starts_with("c10d "), "{version}");
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
    let (output, result) = check(c10d(), folder.path(), &["--rehearse", "--parts", "2,6"]);
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
