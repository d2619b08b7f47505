//! `c10d run`: command lines that are rejected before anything starts.

use crate::process::{command, run};

#[test]
fn an_invalid_value_is_reported_in_one_line_with_exit_code_2() {
    for (arguments, text) in [
        (&["--nnodes=2:1", "s.py"][..], "--nnodes is \"2:1\""),
        (
            &["--nproc-per-node=many", "s.py"],
            "--nproc-per-node is \"many\"",
        ),
        (
            &["--monitor_interval=0", "s.py"],
            "--monitor-interval is \"0\"",
        ),
        (
            &["--rdzv-backend=etcd", "s.py"],
            "--rdzv-backend is \"etcd\"",
        ),
        (
            &["--rdzv-endpoint=node0", "s.py"],
            "--rdzv-endpoint is \"node0\"",
        ),
        (
            &["--numa-binding=node", "s.py"],
            "--numa-binding node is not supported",
        ),
        (&["-m", "--no-python", "mod"], "--module and --no-python"),
        (
            &["--standalone"],
            "no SCRIPT given: name a script or program to run",
        ),
    ] {
        let ended = run(["run"].iter().chain(arguments));
        ended.assert_fails(2, text);
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
}

#[test]
fn an_invalid_variable_is_reported_by_its_name() {
    for (name, value) in [
        ("PET_NNODES", "x"),
        ("PET_STANDALONE", "yes"),
        ("PET_MASTER_PORT", "65536"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"),
    ] {
        let output = command(["run", "s.py"]).env(name, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.starts_with(&format!("c10d: {name} is \"{value}\"")),
            "{stderr}"
        );
    }
}

#[test]
fn an_unknown_option_has_exit_code_2() {
    for arguments in [
        &["run", "--unknown", "s.py"][..],
        &["run", "--nnodes"],
        &["run", "--standalone=1", "s.py"],
        &["run", "--rdzv-id", "-j", "s.py"],
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
}

#[test]
fn the_help_names_every_option_and_the_source_of_defaults() {
    let ended = run(["run", "--help"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let help = ended.stdout_text();
    for text in [
        "SCRIPT",
        "--nproc-per-node",
        "--rdzv-endpoint",
        "--virtual-local-rank",
        "PET_",
    ] {
        assert!(help.contains(text), "{text}");
    }
    assert!(!help.contains("--logs-specs"), "{help}");
}
