//! Values that are refused or have no effect, and how the messages name them.

use super::*;

#[test]
fn an_invalid_value_is_named_with_its_option() {
    for (line, message) in [
        (
            "--nnodes=0 s.py",
            "--nnodes is \"0\"; expected N or MIN:MAX with 1 <= MIN <= MAX",
        ),
        ("--nnodes=3:1 s.py", "--nnodes is \"3:1\""),
        ("--nnodes=1:2:3 s.py", "--nnodes is \"1:2:3\""),
        ("--nnodes=x s.py", "--nnodes is \"x\""),
        ("--nnodes= s.py", "--nnodes is \"\""),
        ("--nnodes=:2 s.py", "--nnodes is \":2\""),
        ("--nnodes -1 s.py", "--nnodes is \"-1\""),
        // torchrun continues with no worker, or fewer.
        ("--nproc-per-node=0 s.py", "--nproc-per-node is \"0\""),
        ("--nproc-per-node -1 s.py", "--nproc-per-node is \"-1\""),
        ("--nproc-per-node=CPU s.py", "--nproc-per-node is \"CPU\""),
        ("--nproc-per-node= s.py", "--nproc-per-node is \"\""),
        ("--max-restarts -1 s.py", "--max-restarts is \"-1\""),
        (
            "--max_restarts=x s.py",
            "--max-restarts is \"x\"; expected a whole number, 0 or more",
        ),
        // torchrun spins, or sleeps for no time.
        ("--monitor-interval=0 s.py", "--monitor-interval is \"0\""),
        ("--monitor-interval=-1 s.py", "--monitor-interval is \"-1\""),
        (
            "--monitor-interval=nan s.py",
            "--monitor-interval is \"nan\"",
        ),
        (
            "--monitor-interval=1e99 s.py",
            "--monitor-interval is \"1e99\"",
        ),
        ("--min-workers=0 s.py", "--min-workers is \"0\""),
        (
            "--replace=node s.py",
            "--replace is \"node\"; expected fork or none",
        ),
        ("--replace-after=-1 s.py", "--replace-after is \"-1\""),
        ("--shutdown-timeout -1 s.py", "--shutdown-timeout is \"-1\""),
        (
            "--shutdown-timeout=1.5 s.py",
            "--shutdown-timeout is \"1.5\"",
        ),
        (
            "--local-ranks-filter=0, s.py",
            "--local-ranks-filter is \"0,\"",
        ),
        (
            "--local-ranks-filter=-1 s.py",
            "--local-ranks-filter is \"-1\"",
        ),
        (
            "--master-port=x s.py",
            "--master-port is \"x\"; expected a port, 0 to 65535",
        ),
        ("--master-port=70000 s.py", "--master-port is \"70000\""),
        ("--node-rank=-1 s.py", "--node-rank is \"-1\""),
        (
            "--nnodes=2 --node-rank=2 s.py",
            "--node-rank is 2, but with 2 nodes the highest rank is 1",
        ),
        (
            "--rdzv-backend=etcd s.py",
            "--rdzv-backend is \"etcd\"; expected c10d or static",
        ),
        ("--rdzv-backend= s.py", "--rdzv-backend is \"\""),
        (
            "--rdzv-conf=a s.py",
            "--rdzv-conf: the rendezvous setting \"a\" has no value",
        ),
        (
            "--rdzv-endpoint=h s.py",
            "--rdzv-endpoint is \"h\"; expected a host and a port",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=::1 s.py",
            "--rdzv-endpoint: the endpoint \"::1\" needs brackets, for example [::1]:29400",
        ),
        (
            "--nnodes=2 --master-addr=a/b s.py",
            "--master-addr: invalid host \"a/b\" in the endpoint \"a/b:29500\"",
        ),
        (
            "--store-memory-max=8GB s.py",
            "--store-memory-max is \"8GB\"; expected a number of bytes, for example 8GiB",
        ),
        (
            "--workers-store=worker s.py",
            "--workers-store is \"worker\"; expected agent or rendezvous",
        ),
        (
            "--workers-port=9-8 s.py",
            "--workers-port is \"9-8\"; expected a port, 1 to 65535, or a range of ports, for example 29600-29609",
        ),
        (
            "--workers-store=rendezvous --rdzv-conf=share_store=0 s.py",
            "--workers-store: the rendezvous setting workers_store is \"rendezvous\"; expected agent, ",
        ),
        ("--start-method=x s.py", "--start-method is \"x\""),
        (
            "-m --no-python x",
            "--module and --no-python cannot be combined",
        ),
        (
            "--numa-binding=node s.py",
            "--numa-binding node is not supported: ",
        ),
        ("--redirects=9 s.py", "--redirects: "),
        ("--logs-specs=x s.py", "--logs-specs x is not supported: "),
        (
            "--run-path --preload torch s.py",
            "--preload cannot be combined with --run-path",
        ),
        (
            "--print-completion=bash s.py",
            "--print-completion bash is not supported: `c10d completions SHELL` prints the script",
        ),
    ] {
        let error = refusal(line, &[]);
        assert!(error.starts_with(message), "{line}: {error}");
        assert!(!error.contains('\n'), "{line}: {error}");
    }
    assert_eq!(
        refusal("--nnodes=2", &[]),
        "no SCRIPT given: name a script or program to run"
    );
    assert_eq!(
        plan_of([], &[]).unwrap_err(),
        "no SCRIPT given: name a script or program to run"
    );
}

#[test]
fn a_mistyped_option_is_not_taken_for_a_script_or_a_value() {
    for (line, word) in [
        ("--foo s.py", "--foo"),
        ("-x s.py", "-x"),
        ("--foo --nnodes=2 s.py", "--foo"),
        ("--rdzv-id -j s.py", "-j"),
        ("--standalone=1 s.py", "--standalone"),
        ("--rdzv s.py", "--rdzv"),
        ("-mmod", "-o"),
        ("--nnodes", "--nnodes"),
    ] {
        let error = refusal(line, &[]);
        assert!(
            error.starts_with("error: ") && error.contains(word),
            "{line}: {error}"
        );
    }
}

#[test]
fn an_invalid_variable_is_named() {
    for (name, value, message) in [
        ("PET_NNODES", "", "PET_NNODES is \"\""),
        ("PET_STANDALONE", "true", "PET_STANDALONE is \"true\""),
        ("PET_STANDALONE", "", "PET_STANDALONE is \"\""),
        ("PET_MASTER_PORT", "", "PET_MASTER_PORT is \"\""),
        (
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            "-8",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is \"-8\"",
        ),
    ] {
        for line in ["s.py", "-r 3 s.py"] {
            let error = refusal(line, &[(name, value)]);
            assert!(error.starts_with(message), "{name}={value}: {error}");
        }
    }
    let broken = [("PET_STANDALONE", "x")];
    assert!(refusal("--standalone s.py", &broken).starts_with("PET_STANDALONE is"));
    let both = [("PET_MODULE", "1"), ("PET_NO_PYTHON", "1")];
    assert!(refusal("s.py", &both).starts_with("--module and --no-python"));
}

#[test]
fn options_without_effect_cause_a_warning() {
    for (line, variables, warning) in [
        (
            "--rdzv-id=j s.py",
            &[][..],
            "--rdzv-id is \"j\", which has no effect",
        ),
        (
            "s.py",
            &[("PET_RDZV_ID", "j")],
            "PET_RDZV_ID is \"j\", which has no effect",
        ),
        (
            "--master-addr=h s.py",
            &[],
            "--master-addr is \"h\", which has no effect",
        ),
        (
            "--rdzv-endpoint=h:1 --master-port=5 s.py",
            &[],
            "--master-port is \"5\", which has no effect",
        ),
        (
            "--rdzv-backend=c10d --node-rank=1 s.py",
            &[],
            "--node-rank is \"1\", which has no effect",
        ),
        (
            "--relay-port=31000 s.py",
            &[],
            "--relay-port is \"31000\", which has no effect: --relay is not given",
        ),
        (
            "--start-method=fork s.py",
            &[],
            "--start-method is \"fork\", which has no effect: workers are started as programs",
        ),
        (
            "--event=console s.py",
            &[],
            "--event-log-handler is \"console\", which has no effect: --events writes PyTorch's events",
        ),
        (
            "s.py",
            &[("PET_MONITOR_INTERVAL", "5")],
            "PET_MONITOR_INTERVAL is \"5\", which has no effect: exits of workers",
        ),
        (
            "s.py",
            &[("TORCHELASTIC_HEALTH_CHECK_PORT", "http")],
            "TORCHELASTIC_HEALTH_CHECK_PORT is \"http\", which has no effect: it is not a port, 1 to 65535",
        ),
    ] {
        let warnings = plan(line, variables).warning_texts();
        assert_eq!(warnings.len(), 1, "{line}: {warnings:?}");
        assert!(warnings[0].starts_with(warning), "{line}: {warnings:?}");
    }
    for line in [
        "--standalone --rdzv-id=j s.py",
        "--nnodes=2 --node-rank=1 --master-addr=h --master-port=5 s.py",
        "--rdzv-backend=c10d --node-rank=0 s.py",
    ] {
        assert_eq!(
            plan(line, &[]).warning_texts(),
            Vec::<String>::new(),
            "{line}"
        );
    }
}

#[test]
fn an_invalid_rule_for_restarts_is_named() {
    for (line, message) in [
        (
            "--no-restart-exit-codes=0 s.py",
            "--no-restart-exit-codes is \"0\"",
        ),
        (
            "--no-restart-exit-codes=x s.py",
            "--no-restart-exit-codes is \"x\"",
        ),
        (
            "--no-restart-exit-codes=256 s.py",
            "--no-restart-exit-codes is \"256\"",
        ),
        (
            "--no-restart-exit-codes=1,,2 s.py",
            "--no-restart-exit-codes is \"1,,2\"",
        ),
        (
            "--no-restart-exit-codes=93, s.py",
            "--no-restart-exit-codes is \"93,\"",
        ),
        (
            "--restart-budget=10 s.py",
            "--restart-budget is \"10\"; expected N/TIME",
        ),
        ("--restart-budget=1/0s s.py", "--restart-budget is \"1/0s\""),
        (
            "--restart-budget=-1/1h s.py",
            "--restart-budget is \"-1/1h\"",
        ),
        (
            "--max-restarts-without-progress=-1 s.py",
            "--max-restarts-without-progress is \"-1\"",
        ),
        ("--progress-timeout=0 s.py", "--progress-timeout is \"0\""),
        (
            "--first-progress-timeout=x s.py",
            "--first-progress-timeout is \"x\"",
        ),
    ] {
        let text = refusal(line, &[]);
        assert!(text.starts_with(message), "{line}: {text}");
    }
    let text = refusal("s.py", &[("PET_JSON", "yes")]);
    assert!(text.starts_with("PET_JSON is \"yes\""), "{text}");
}
