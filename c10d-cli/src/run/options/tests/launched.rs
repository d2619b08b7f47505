//! The launcher's options for each option, compared as a whole, so that an option changes nothing
//! else.

use c10d_inspect::http::StatusOptions;
use c10d_store::recommended_memory_max;
use elastic_agent::{
    Entrypoint, ExitLimits, HealthCheck, KeepOptions, LogOptions, PreloadOptions, ProgressOptions,
    RestartBudget, RestartRules, SignalTarget, StreamMap, Streams,
};
use elastic_rendezvous::RendezvousParameters;

use super::*;

const SIGNALS: &str = "TORCHELASTIC_SIGNALS_TO_HANDLE";

fn rendezvous() -> RendezvousParameters {
    RendezvousParameters::new("c10d", "localhost:0", random_id(1), 1, 1)
        .unwrap()
        .with_config(parse_config("timeout=900").unwrap())
}

/// One worker that runs `s.py`, with these changes.
fn launcher(change: impl FnOnce(&mut LauncherOptions)) -> LauncherOptions {
    let command = elastic_agent::CommandLine::new("python3", ["-u", "s.py"]);
    let mut agent = AgentOptions::new(command, 1);
    agent.name = "s.py".to_owned();
    agent.signal_target = SignalTarget::Worker;
    let mut launcher = LauncherOptions::new(agent, rendezvous());
    launcher.entrypoint = Some(Entrypoint::Script("s.py".into()));
    handle_signals(&mut launcher, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    change(&mut launcher);
    launcher
}

fn agent(change: impl FnOnce(&mut AgentOptions)) -> LauncherOptions {
    launcher(|it| change(&mut it.agent))
}

/// Sets the signals, and the only variable of the workers.
fn handle_signals(launcher: &mut LauncherOptions, names: &str) {
    launcher.agent.environment = vec![(SIGNALS.into(), names.into())];
    let names = names.split(',').filter(|name| !name.is_empty());
    launcher.signals = Some(names.map(str::to_owned).collect());
}

#[track_caller]
fn assert_launches(line: &str, variables: Variables<'_>, expected: LauncherOptions) {
    let mut given = plan(line, variables).launcher;
    given.start_warnings = Vec::new();
    assert_eq!(format!("{given:#?}"), format!("{expected:#?}"), "{line}");
}

#[test]
fn a_script_alone_has_torchruns_defaults() {
    assert_launches("s.py", &[], launcher(|_| ()));
    let plan = plan("s.py", &[]);
    assert_eq!((plan.scheduler, plan.node_rank), (None, None));
    assert_eq!(plan.origins, []);
    assert!(!plan.dry_run && !plan.json && plan.grace_period.is_none());
    assert_eq!(plan.warning_texts(), Vec::<String>::new());
}

#[test]
fn other_options_are_parsed_as_by_torchrun() {
    let variables = [("OMP_NUM_THREADS", "")];
    let mut logs = LogOptions::default();
    logs.log_dir = Some("/l".into());
    logs.redirects = StreamMap::All(Streams::BOTH);
    logs.tee = "0:1".parse().unwrap();
    logs.local_ranks_filter = [0, 2].into();
    logs.stdout_filters = vec!["a,b".to_owned(), "c".to_owned()];
    logs.stderr_filters = vec!["-e".to_owned()];
    let expected = launcher(|it| {
        it.agent.local_world_size = 2;
        it.agent.role = "eval".to_owned();
        it.agent.restarts.max_restarts = Some(3);
        it.agent.logs = logs;
        it.agent.line_prefix_template = Some("[${rank}]".to_owned());
        it.agent.shutdown_timeout = Some(Duration::ZERO);
        it.agent.has_virtual_local_rank = true;
        it.rendezvous = rendezvous().with_local_addr("1.2.3.4");
        handle_signals(it, "SIGTERM,SIGUSR1");
    });
    let line = "--nproc_per_node 2 --max-r=3 --rol=eval -r 3 -t 0:1 --log-dir=/l \
                --log-line-prefix-template=[${rank}] --local-ranks-filter=2,0,2 --local-addr=1.2.3.4 \
                --duplicate-stdout-filters=a,,b,c --duplicate-stderr-filters=-e \
                --signals-to-handle=SIGTERM,SIGUSR1 --shutdown-timeout=0 --virtual-local-rank \
                --numa-binding=none --event-log-handler=null --logs-specs=default s.py";
    assert_launches(line, &variables, expected);
    assert_eq!(plan(line, &variables).warning_texts(), Vec::<String>::new());

    let logs = agent(|it| {
        it.logs.redirects = "3".parse().unwrap();
        it.logs.tee = "1".parse().unwrap();
    });
    assert_launches("-r3 -t=1 s.py", &[], logs);
    assert_launches(
        "--local-addr= --local-ranks-filter= --log-dir= --signals-to-handle= --log-line-prefix-template= s.py",
        &[],
        launcher(|it| handle_signals(it, "")),
    );
}

#[test]
fn variables_are_defaults_of_these_options_too() {
    let expected = launcher(|it| {
        it.agent.restarts.max_restarts = Some(2);
        it.agent.role = "z".to_owned();
        it.agent.logs.tee = "3".parse().unwrap();
        it.agent.has_virtual_local_rank = true;
        it.rendezvous = rendezvous().with_local_addr("q");
    });
    assert_launches(
        "s.py",
        &[
            ("PET_MAX_RESTARTS", "2"),
            ("PET_ROLE", "z"),
            ("PET_TEE", "3"),
            ("PET_VIRTUAL_LOCAL_RANK", " 1 "),
            ("PET_LOCAL_ADDR", "q"),
            ("PET_LOGS_SPECS", "ignored"),
            ("PET_NUMA_BINDING", "ignored"),
            ("PET_SECRET_FILE", "ignored"),
        ],
        expected,
    );
}

#[test]
fn streams_are_named_with_the_option_or_the_variable() {
    assert_eq!(
        refusal("--tee=4 s.py", &[]),
        "--tee: \"4\" is neither a number from 0 to 3 nor a list such as 0:1,1:2 (local rank:number)"
    );
    let refused = refusal("s.py", &[("PET_REDIRECTS", "x")]);
    assert!(refused.starts_with("PET_REDIRECTS: \"x\" is"), "{refused}");
}

#[test]
fn some_options_have_a_second_variable() {
    let timeout = |line, variables: Variables<'_>| {
        let timeout = plan(line, variables).launcher.agent.shutdown_timeout;
        timeout.map(|timeout| timeout.as_secs())
    };
    let second = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8");
    assert_eq!(timeout("s.py", &[second]), Some(8));
    let both = [("PET_SHUTDOWN_TIMEOUT", "7"), second];
    assert_eq!(timeout("s.py", &both), Some(7));
    let broken = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x");
    assert_eq!(timeout("--shutdown-timeout=4 s.py", &[broken]), Some(4));

    let second = ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "t");
    for (line, template) in [
        ("s.py", "t"),
        ("--log-line-prefix-template=o s.py", "o"),
        ("--log-line-prefix-template= s.py", "t"),
    ] {
        let expected = agent(|it| it.line_prefix_template = Some(template.to_owned()));
        assert_launches(line, &[second], expected);
    }
}

#[test]
fn preloaded_modules_come_from_the_option_or_its_variable() {
    let expected = PreloadOptions::new(["torch", "torch._dynamo"]);
    assert_launches(
        "--preload=torch,,torch._dynamo, s.py",
        &[],
        agent(|it| it.preload = Some(expected.clone())),
    );
    let variables = [
        ("PET_PRELOAD", "torch,torch._dynamo"),
        ("PET_PRELOAD_REQUIRED", "1"),
    ];
    let mut required = expected;
    required.is_required = true;
    required.has_standbys = true;
    assert_launches(
        "--preload_standby s.py",
        &variables,
        agent(|it| it.preload = Some(required)),
    );
    assert_launches("--preload= s.py", &[], launcher(|_| ()));
    assert_eq!(
        plan("--preload-required s.py", &[]).warning_texts(),
        ["--preload-required and --preload-standby have no effect: --preload is not given"]
    );
}

#[test]
fn a_relay_has_a_port_of_the_nodes_or_of_the_user() {
    for (line, variables, has_relay, port) in [
        ("s.py", &[][..], false, None),
        ("--relay s.py", &[], true, None),
        ("--relay --relay_port=31000 s.py", &[], true, Some(31000)),
        (
            "s.py",
            &[("PET_RELAY", "1"), ("PET_RELAY_PORT", "7")],
            true,
            Some(7),
        ),
        ("--relay-port=x s.py", &[], false, None),
    ] {
        let expected = launcher(|it| {
            it.agent.has_relay = has_relay;
            it.agent.relay_port = port;
            it.rendezvous = rendezvous().with_relays(has_relay);
        });
        assert_launches(line, variables, expected);
    }
    for port in ["0", "65536", "-1", "x"] {
        let refused = refusal(&format!("--relay --relay-port={port} s.py"), &[]);
        let expected = format!("--relay-port is \"{port}\"; expected a port, 1 to 65535");
        assert_eq!(refused, expected);
    }
}

#[test]
fn the_time_until_the_launcher_explains_a_standstill_is_an_option() {
    for (line, variables, after) in [
        (
            "--explain-after 2m s.py",
            &[][..],
            Some(Duration::from_secs(120)),
        ),
        ("--explain_after=0 s.py", &[], Some(Duration::ZERO)),
        ("--explain-after never s.py", &[], None),
        (
            "s.py",
            &[("PET_EXPLAIN_AFTER", "5s")],
            Some(Duration::from_secs(5)),
        ),
        ("s.py", &[], Some(LauncherOptions::DEFAULT_EXPLAIN_AFTER)),
    ] {
        let expected = launcher(|it| it.explain_after = after);
        assert_launches(line, variables, expected);
    }
    assert_eq!(
        refusal("--explain-after soon s.py", &[]),
        "--explain-after is \"soon\"; expected a time, for example 30s or 2m, or `never`"
    );
}

#[test]
fn the_variables_of_pytorch_have_no_options() {
    for (name, value, expected) in [
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "8080", Some(8080)),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "0", None),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "65536", None),
    ] {
        let expected = launcher(|it| it.health_port = expected);
        assert_launches("s.py", &[(name, value)], expected);
    }
    let enabled = ("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    assert_launches("s.py", &[enabled], agent(|it| it.has_watchdog = true));
    for other in ["0", "", "true"] {
        let variables = [("TORCHELASTIC_ENABLE_FILE_TIMER", other)];
        assert_launches("s.py", &variables, launcher(|_| ()));
    }
    let file = ("TORCHELASTIC_TIMER_FILE", "/run/timers");
    let expected = agent(|it| {
        it.has_watchdog = true;
        it.timer_file = Some(PathBuf::from("/run/timers"));
    });
    assert_launches("s.py", &[enabled, file], expected);
    let identical = ("TORCH_ELASTIC_WORKER_IDENTICAL", "1");
    let expected = agent(|it| it.are_nodes_identical = true);
    assert_launches("s.py", &[identical], expected);
    let own_store = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
    let config = parse_config("timeout=900,share_store=0").unwrap();
    let expected = launcher(|it| it.rendezvous = rendezvous().with_config(config));
    assert_launches("s.py", &[own_store], expected);
}

#[test]
fn a_health_check_has_a_command_and_a_timeout() {
    let check = |words: &[&str], variables: Variables<'_>| {
        let plan = plan_of(words.iter().copied(), variables).unwrap();
        let check = plan.launcher.agent.health_check.clone();
        (check, plan.warning_texts())
    };
    let wanted = Some(HealthCheck::new("a b"));
    assert_eq!(check(&["--health-check", "a b", "s.py"], &[]).0, wanted);
    assert_eq!(check(&["--health_check=a b", "s.py"], &[]).0, wanted);
    assert_eq!(check(&["s.py"], &[("PET_HEALTH_CHECK", "a b")]).0, wanted);
    assert_eq!(check(&["s.py"], &[("PET_HEALTH_CHECK", "")]).0, None);
    let variables = [
        ("PET_HEALTH_CHECK", "a b"),
        ("PET_HEALTH_CHECK_TIMEOUT", "2m"),
    ];
    let limited = wanted.map(|check| check.with_timeout(Duration::from_secs(120)));
    assert_eq!(check(&["s.py"], &variables).0, limited);
    assert_eq!(
        check(&["--health-check-timeout=1s", "s.py"], &[]),
        (
            None,
            vec![
                "--health-check-timeout is \"1s\", which has no effect: --health-check is not given"
                    .to_owned()
            ]
        )
    );
    assert_eq!(
        refusal("--health-check a --health-check-timeout 0 s.py", &[]),
        "--health-check-timeout is \"0\"; expected a time above 0, for example 30s or 2m"
    );
}

#[test]
fn the_status_page_can_be_turned_off() {
    let none = || launcher(|it| it.status_page = None);
    assert_launches("--no-status s.py", &[], none());
    assert_launches("s.py", &[("PET_NO_STATUS", "1")], none());
    let hosts = ["a.example.org", "b"].map(str::to_owned);
    let named = StatusOptions::default().with_host_names(hosts);
    assert_launches(
        "--status-host=a.example.org,b s.py",
        &[],
        launcher(|it| it.status_page = Some(named)),
    );
}

#[test]
fn the_memory_of_hosted_stores_is_limited_unless_the_limit_is_0() {
    let limited = |bytes| launcher(|it| it.store_memory_max = bytes);
    assert_launches("s.py", &[], limited(recommended_memory_max()));
    assert_launches("--store-memory-max=3MiB s.py", &[], limited(Some(3 << 20)));
    assert_launches("--store-memory-max=0 s.py", &[], limited(None));
    let variable = [("PET_STORE_MEMORY_MAX", "4096")];
    assert_launches("s.py", &variable, limited(Some(4096)));
}

#[test]
fn a_grace_period_limits_the_end() {
    let seconds = Duration::from_secs;
    let limits = ExitLimits::new(Duration::from_millis(500), Duration::from_millis(9750));
    let expected = launcher(|it| {
        it.agent.shutdown_timeout = Some(seconds(9));
        it.exit_limits = Some(limits);
    });
    assert_launches("--grace-period=10s s.py", &[], expected);
    let plan = plan("--grace-period=10s s.py", &[]);
    assert_eq!(plan.grace_period, Some(seconds(10)));
}

#[test]
fn restarts_progress_and_events_have_options() {
    let mut rules = RestartRules::default();
    rules.final_exit_codes = [-6, 93].into();
    rules.budget = Some(RestartBudget {
        restarts: 10,
        window: Duration::from_secs(3600),
    });
    rules.max_without_progress = Some(3);
    rules.restarts_on_fatal_errors = true;
    let mut progress = ProgressOptions::default();
    progress.file = Some("/p".into());
    progress.timeout = Some(Duration::from_secs(300));
    progress.first_timeout = Some(Duration::from_secs(3600));
    let expected = launcher(|it| {
        it.agent.restarts = rules;
        it.agent.progress = Some(progress);
        it.events_file = Some(PathBuf::from("/e"));
    });
    assert_launches(
        "--no-restart-exit-codes=93,-6 --restart-budget=10/1h --max-restarts-without-progress=3 \
         --restart-on-fatal-errors --progress-file=/p --progress-timeout=5m --first-progress-timeout=1h \
         --events=/e s.py",
        &[],
        expected,
    );

    let budget = RestartBudget {
        restarts: 1,
        window: Duration::from_secs(120),
    };
    assert_launches(
        "--progress-timeout=never s.py",
        &[("PET_RESTART_BUDGET", "1/2m"), ("PET_EVENTS", "")],
        agent(|it| it.restarts.budget = Some(budget)),
    );
    for (line, is_watched) in [
        ("--max-restarts=3 s.py", false),
        ("--max-restarts-without-progress=3 s.py", true),
        ("--events=/e s.py", true),
    ] {
        let plan = plan(line, &[]);
        let progress = plan.launcher.agent.progress;
        assert_eq!(progress.is_some(), is_watched, "{line}");
    }
}

#[test]
fn workers_are_kept_as_the_options_say() {
    let mut keep = KeepOptions::new(6);
    keep.replace_after = Duration::from_secs(9);
    let line = "--keep-workers --min-workers=6 --replace-after=9s --max-restarts=2 s.py";
    let kept = agent(|it| {
        it.restarts.max_restarts = Some(2);
        it.keep_workers = Some(keep);
    });
    assert_launches(line, &[], kept);
    for (line, warning) in [
        (
            "--keep-workers s.py",
            "--keep-workers does not replace dead workers, because no restart is allowed; see --max-restarts",
        ),
        (
            "--replace=none s.py",
            "--replace is \"none\", which has no effect: --keep-workers is not given",
        ),
    ] {
        assert_eq!(plan(line, &[]).warning_texts(), [warning]);
    }
    let silent = "--keep-workers --replace=none s.py";
    assert_eq!(plan(silent, &[]).warning_texts(), Vec::<String>::new());
}

#[test]
fn a_cpu_quota_limits_counted_workers_and_leaves_a_given_number_with_a_warning() {
    let at = |quota: &str, line: &str| {
        let plan = plan(line, &[("TEST_CPU_QUOTA", quota), ("OMP_NUM_THREADS", "1")]);
        (plan.launcher.agent.local_world_size, plan.warning_texts())
    };
    let counted = |value| {
        format!(
            "--nproc-per-node is {value:?}: 6 for the control group's CPU quota, although 64 processors are visible"
        )
    };
    let given = |number| {
        format!(
            "--nproc-per-node is {number}, but the control group's CPU quota is 2: the workers will wait for processors"
        )
    };
    for (quota, value, workers, warning) in [
        ("6", "cpu", 6, Some(counted("cpu"))),
        ("6", "auto", 6, Some(counted("auto"))),
        ("none", "cpu", 6, None),
        ("64", "cpu", 6, None),
        ("2", "64", 64, Some(given(64))),
        ("2", "5", 5, Some(given(5))),
        // Training on GPUs does with less than a processor for each.
        ("2", "4", 4, None),
        ("1", "1", 1, None),
        ("none", "64", 64, None),
    ] {
        let found = at(quota, &format!("--nproc-per-node={value} s.py"));
        assert_eq!(
            found,
            (workers, warning.into_iter().collect()),
            "{quota} {value}"
        );
    }
}

#[test]
fn signals_go_to_python_workers_alone_and_to_the_groups_of_programs() {
    for (line, expected) in [
        ("s.py", SignalTarget::Worker),
        ("-m s", SignalTarget::Worker),
        ("--run-path s", SignalTarget::Worker),
        ("--preload=json s.py", SignalTarget::Worker),
        ("--no-python s.py", SignalTarget::Group),
        ("s.sh", SignalTarget::Group),
        ("--stop-signal-to=group s.py", SignalTarget::Group),
        ("--stop-signal-to=worker s.sh", SignalTarget::Worker),
    ] {
        let target = plan(line, &[]).launcher.agent.signal_target;
        assert_eq!(target, expected, "{line}");
    }
}

#[test]
fn a_rank_that_a_person_debugs_turns_off_what_would_end_the_job() {
    let line = "--debug-rank=1 --nproc-per-node=2 --preload=json --progress-timeout=5s --explain-after=5s s.py";
    let timers = ("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let debugged = plan(line, &[timers, ("OMP_NUM_THREADS", "1")]);
    assert_eq!(
        debugged.warning_texts(),
        [
            "--preload has no effect with --debug-rank",
            "rank 1 has the terminal (--debug-rank); off: explanations, and timeouts of progress, joins and exits"
        ]
    );
    let (launcher, agent) = (&debugged.launcher, &debugged.launcher.agent);
    assert_eq!(agent.debug_rank, Some(1));
    assert!(agent.preload.is_none() && agent.progress.is_none() && !agent.has_watchdog);
    assert_eq!(launcher.explain_after, None);
    assert_eq!(launcher.rendezvous.get("timeout"), Some("900"));
    // A given timeout stays.
    let nodes = "--debug-rank=9 --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h";
    for (options, expected) in [("", "31536000"), ("--rdzv-conf=join_timeout=7", "7")] {
        let line = format!("{nodes} {options} s.py").replace("  ", " ");
        let plan = plan(&line, &[]);
        assert_eq!(plan.launcher.rendezvous.get("join_timeout"), Some(expected));
    }
}
