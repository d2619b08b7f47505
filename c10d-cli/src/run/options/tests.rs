//! The tables hold what torchrun 2.15 does with the same command lines and variables, except where a
//! comment says otherwise.

mod under_scheduler;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};
use elastic_agent::devices::{DeviceKind, DevicesError};
use elastic_agent::parse_line_filters;
use elastic_agent::scheduler::Site;
use elastic_rendezvous::parse_config;

use super::rendezvous::random_id;
use super::*;

#[derive(Debug, Parser)]
#[command(name = "run", mut_args = crate::with_underscore)]
struct CommandLine {
    #[command(flatten)]
    options: RunOptions,
}

type Variables<'a> = &'a [(&'a str, &'a str)];

/// The plan for a command line, or the error message.
fn plan_of<'a>(
    words: impl IntoIterator<Item = &'a str>,
    variables: Variables<'_>,
) -> Result<RunPlan, String> {
    let words = ["run"].into_iter().chain(words);
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let matches = with_variables(CommandLine::command(), &variable).try_get_matches_from(words);
    let line = matches.and_then(|matches| CommandLine::from_arg_matches(&matches));
    let line = line.map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })?;
    let surroundings = Surroundings {
        variable: &variable,
        count_devices: &|kind| match kind {
            DeviceKind::Cpu | DeviceKind::Auto => Ok(6),
            DeviceKind::Gpu => Err(DevicesError::NoGpu {
                variables: Vec::new(),
            }),
            DeviceKind::Xpu => Err(DevicesError::NoXpu {
                variables: Vec::new(),
            }),
        },
        seed: 1,
        site: &Site {
            host_name: &|| "n1".to_owned(),
            full_name: &|| "n1.site".to_owned(),
            read_file: &|_| Err(std::io::ErrorKind::NotFound.into()),
            has_address: &|_| false,
            is_interactive: false,
        },
    };
    line.options
        .resolve(&surroundings)
        .map_err(|error| error.to_string())
}

fn plan(line: &str, variables: Variables<'_>) -> RunPlan {
    plan_of(line.split(' '), variables).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn refusal(line: &str, variables: Variables<'_>) -> String {
    match plan_of(line.split(' '), variables) {
        Ok(plan) => panic!("{line} was taken: {plan:?}"),
        Err(error) => error,
    }
}

fn rendezvous(line: &str, variables: Variables<'_>) -> String {
    let plan = plan(line, variables).rendezvous;
    let config = plan
        .config()
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    format!(
        "{}:{} {} {:?} {} {}",
        plan.min_nodes(),
        plan.max_nodes(),
        plan.backend(),
        plan.endpoint(),
        if plan.run_id() == random_id(1) {
            "random"
        } else {
            plan.run_id()
        },
        config.collect::<Vec<_>>().join(",")
    )
}

/// The program and its arguments.
fn command(line: &str, variables: Variables<'_>) -> Vec<String> {
    let plan = plan(line, variables);
    let program = std::iter::once(plan.command.program());
    let words = program.chain(plan.command.arguments().iter().map(OsString::as_os_str));
    words
        .map(|word| word.to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_option_definitions_are_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn a_script_alone_has_torchruns_defaults() {
    assert_eq!(
        plan("s.py", &[]),
        RunPlan {
            rendezvous: RendezvousParameters::new("c10d", "localhost:0", random_id(1), 1, 1)
                .unwrap()
                .with_config(parse_config("timeout=900").unwrap()),
            worker_count: 1,
            role: "default".to_owned(),
            restarts: RestartPlan::default(),
            scheduler: None,
            origins: Vec::new(),
            node_rank: None,
            dry_run: false,
            shutdown_timeout: Duration::from_secs(30),
            exit_limits: None,
            signals: ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
                .map(str::to_owned)
                .to_vec(),
            log_dir: None,
            redirects: "0".to_owned(),
            tee: "0".to_owned(),
            log_line_prefix_template: None,
            local_ranks_filter: None,
            duplicate_stdout_filters: Vec::new(),
            duplicate_stderr_filters: Vec::new(),
            virtual_local_rank: false,
            command: elastic_agent::CommandLine::new("python3", ["-u", "s.py"]),
            json: false,
            explain_after: Some(Duration::from_secs(30)),
            health_check: None,
            health_port: None,
            has_watchdog: false,
            timer_file: None,
            has_status: true,
            secret: SecretArgs::default(),
            has_relay: false,
            relay_port: None,
            preload: None,
            status_hosts: Vec::new(),
            debug_server: false,
            entrypoint: Entrypoint::Script("s.py".into()),
            environment: vec![(
                "TORCHELASTIC_SIGNALS_TO_HANDLE",
                "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned()
            )],
            warnings: Vec::new(),
        }
    );
}

#[test]
fn the_rendezvous_is_torchruns() {
    let alone = "1:1 c10d \"localhost:0\" random timeout=900";
    for (line, expected) in [
        ("s.py", alone),
        ("--master-addr=h s.py", alone),
        ("--rdzv-id=j s.py", alone),
        ("--rdzv-backend=static s.py", alone),
        (
            "--standalone --rdzv-backend=static --rdzv-endpoint=q:1 s.py",
            alone,
        ),
        ("--standalone --rdzv-backend=etcd s.py", alone),
        ("--standalone --standalone s.py", alone),
        ("--stand s.py", alone),
        (
            "--standalone --rdzv-id=j --nnodes=2 s.py",
            "2:2 c10d \"localhost:0\" random timeout=900",
        ),
        (
            "--nnodes=2 s.py",
            "2:2 static \"127.0.0.1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes 1:3 s.py",
            "1:3 static \"127.0.0.1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes=2 --node-rank=1 --master_addr h s.py",
            "2:2 static \"h:29500\" none rank=1,timeout=900",
        ),
        (
            "--nnodes=2 --master-addr=::1 s.py",
            "2:2 static \"::1:29500\" none rank=0,timeout=900",
        ),
        (
            "--nnodes=1:2 --master-port=5 s.py",
            "1:2 static \"127.0.0.1:5\" none rank=0,timeout=900",
        ),
        (
            "--rdzv-id=j --master-port=0 s.py",
            "1:1 static \"127.0.0.1:0\" j rank=0,timeout=900",
        ),
        (
            "--rdzv-endpoint=h:5 --rdzv-conf=rank=7 s.py",
            "1:1 static \"h:5\" none rank=0,timeout=900",
        ),
        (
            "--nnodes 2 --nnodes 3 --rdzv-endpoint=h:1 s.py",
            "3:3 static \"h:1\" none rank=0,timeout=900",
        ),
        ("--rdzv-backend=c10d s.py", "1:1 c10d \"\" none timeout=900"),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=j s.py",
            "1:1 c10d \"h:1\" j timeout=900",
        ),
        (
            "--rdzv_backend c10d --rdzv_endpoint h --rdzv_id j --rdzv_conf a=1,timeout=5 s.py",
            "1:1 c10d \"h\" j a=1,timeout=5",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=/tmp/f --rdzv-conf=store_type=File s.py",
            "1:1 c10d \"/tmp/f\" none store_type=File,timeout=900",
        ),
    ] {
        assert_eq!(rendezvous(line, &[]), expected, "{line}");
    }
}

#[test]
fn a_scripts_name_decides_how_it_is_run() {
    // torchrun runs all scripts with python without --no-python, even x.sh; and PYTHON_EXEC= runs "".
    let python_exec = [("PYTHON_EXEC", "/opt/py")];
    for (line, variables, expected) in [
        ("s.py --x", &[][..], &["python3", "-u", "s.py", "--x"][..]),
        ("s.py", &python_exec, &["/opt/py", "-u", "s.py"]),
        ("s.py", &[("PYTHON_EXEC", "")], &["python3", "-u", "s.py"]),
        ("-m mod --a", &[], &["python3", "-u", "-m", "mod", "--a"]),
        (
            "--module mod",
            &python_exec,
            &["/opt/py", "-u", "-m", "mod"],
        ),
        ("-mr3 -t=1 mod", &[], &["python3", "-u", "-m", "mod"]),
        ("--nnodes=1 help x", &[], &["help", "x"]),
        ("--no-python ./x.py a", &python_exec, &["./x.py", "a"]),
        ("--no_python ./x", &[], &["./x"]),
        ("./x.sh a", &[], &["./x.sh", "a"]),
        (
            "s.py",
            &[("PET_MODULE", "1")],
            &["python3", "-u", "-m", "s.py"],
        ),
        ("s.py", &[("PET_NO_PYTHON", "1")], &["s.py"]),
    ] {
        assert_eq!(command(line, variables), expected, "{line}");
    }
    assert_eq!(plan("-m mod --a", &[]).entrypoint.name(), "mod");
}

#[test]
fn all_arguments_after_the_script_are_the_scripts() {
    // With torchrun the Python version decides whether `--` is passed on; here it always is.
    for line in [
        "s.py -m --help --nnodes=3 --standalone -h --version --unknown",
        "s.py --",
        "s.py -- a --nnodes 2 -- b",
        "s.py ${local_rank} --lr -1",
    ] {
        let words: Vec<&str> = ["python3", "-u"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        assert_eq!(command(line, &[]), words);
        assert_eq!(command(&format!("-- {line}"), &[]), words);
    }
    let empty = plan_of(["", "a"], &[]).unwrap();
    assert_eq!(empty.command, elastic_agent::CommandLine::new("", ["a"]));
}

#[test]
fn every_option_of_the_help_is_under_a_heading() {
    let command = CommandLine::command();
    let mut headings = Vec::new();
    for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
        let heading = argument.get_help_heading();
        let heading = heading.unwrap_or_else(|| panic!("{}", argument.get_id()));
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    assert_eq!(headings.first(), Some(&"Nodes and workers"));
    assert_eq!(headings.len(), 9, "{headings:?}");
}

#[test]
fn the_help_names_the_default_of_an_option() {
    let mut defaults = 0;
    for argument in CommandLine::command().get_arguments() {
        let default = argument.get_default_values().first();
        let Some(default) = default.filter(|it| !it.is_empty()) else {
            continue;
        };
        let help = argument.get_help().unwrap_or_default().to_string();
        let named = format!("[default: {}]", default.display());
        assert!(help.contains(&named), "{argument}: {help}");
        defaults += 1;
    }
    assert!(defaults > 5, "{defaults}");
}

#[test]
fn a_variable_has_the_name_of_its_option() {
    let without: &[&str] = &[
        "secret_file",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "numa_binding",
        "logs_specs",
        "print_completion",
    ];
    let command = CommandLine::command();
    let ids = |command: &Command, is_changed: &dyn Fn(&Arg) -> bool| {
        let changed = command.get_arguments().filter(|arg| is_changed(arg));
        let ids = changed.map(|arg| arg.get_id().to_string());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    let mut expected = ids(&command, &|arg| arg.get_long().is_some());
    expected.retain(|id| !without.contains(&id.as_str()));
    let named = |name: &str| name.starts_with("PET_").then(|| name.to_owned());
    let given = with_variables(command, &named);
    let found = ids(&given, &|arg| {
        let default = arg.get_default_values().first();
        let name = format!("PET_{}", arg.get_long().unwrap_or_default());
        let name = name.to_uppercase().replace('-', "_");
        default.is_some_and(|it| **it == *name || *it == "false")
    });
    assert_eq!(found, expected);
    assert!(found.len() > 45, "{found:?}");
}

#[test]
fn other_options_are_parsed_as_by_torchrun() {
    let given = plan(
        "--nproc_per_node 2 --max-r=3 --rol=eval -r 3 -t 0:1 --log-dir=/l \
         --log-line-prefix-template=[${rank}] --local-ranks-filter=2,0,2 --local-addr=1.2.3.4 \
         --duplicate-stdout-filters=a,,b,c --duplicate-stderr-filters=-e \
         --signals-to-handle=SIGTERM,SIGUSR1 --shutdown-timeout=0 --virtual-local-rank \
         --numa-binding=none --event-log-handler=null s.py",
        &[("OMP_NUM_THREADS", "")],
    );
    assert_eq!(given.worker_count, 2);
    assert_eq!(given.restarts.rules.max_restarts, Some(3));
    assert_eq!(given.role, "eval");
    assert_eq!((given.redirects.as_str(), given.tee.as_str()), ("3", "0:1"));
    assert_eq!(given.log_dir, Some("/l".into()));
    assert_eq!(given.log_line_prefix_template.as_deref(), Some("[${rank}]"));
    assert_eq!(given.local_ranks_filter, Some(vec![0, 2]));
    assert_eq!(given.rendezvous.local_addr(), Some("1.2.3.4"));
    assert_eq!(given.duplicate_stdout_filters, ["a,b", "c"]);
    assert_eq!(given.duplicate_stderr_filters, ["-e"]);
    assert_eq!(given.signals, ["SIGTERM", "SIGUSR1"]);
    assert_eq!(given.shutdown_timeout, Duration::ZERO);
    assert!(given.virtual_local_rank);
    let exported = (
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "SIGTERM,SIGUSR1".to_owned(),
    );
    assert_eq!(given.environment, [exported]);
    assert_eq!(given.warnings, Vec::<String>::new());

    let short = plan("-r3 -t=1 s.py", &[]);
    assert_eq!((short.redirects.as_str(), short.tee.as_str()), ("3", "1"));
    let empty = plan(
        "--local-addr= --local-ranks-filter= --log-dir= --signals-to-handle= \
         --log-line-prefix-template= s.py",
        &[],
    );
    assert_eq!(empty.rendezvous.local_addr(), None);
    assert_eq!(empty.local_ranks_filter, None);
    assert_eq!(empty.log_dir, None);
    assert_eq!(empty.signals, Vec::<String>::new());
    assert_eq!(empty.log_line_prefix_template, None);
}

#[test]
fn filters_are_split_at_single_commas() {
    // torchrun keeps empty texts, which match every line.
    for (text, expected) in [
        ("", &[][..]),
        ("a,b", &["a", "b"]),
        ("a,,b,c", &["a,b", "c"]),
        (",,,", &[","]),
        ("a,", &["a"]),
        (" a , b", &[" a ", " b"]),
    ] {
        assert_eq!(parse_line_filters(text), expected, "{text:?}");
    }
}

#[test]
fn workers_are_counted_by_number_or_by_device() {
    for (line, count) in [
        ("--nproc-per-node=4 s.py", 4),
        ("--nproc-per-node=cpu s.py", 6),
        ("--nproc-per-node=auto s.py", 6),
    ] {
        assert_eq!(plan(line, &[]).worker_count, count, "{line}");
    }
    assert_eq!(
        refusal("--nproc-per-node=gpu s.py", &[]),
        "--nproc-per-node is \"gpu\", but this machine has no visible GPU of NVIDIA or AMD"
    );
}

#[test]
fn several_workers_get_one_thread_each_by_default() {
    let threads = |line, variables: Variables<'_>| {
        let environment = plan(line, variables).environment;
        let found = environment
            .into_iter()
            .find(|(name, _)| *name == "OMP_NUM_THREADS");
        found.map(|(_, value)| value)
    };
    assert_eq!(threads("s.py", &[]), None);
    assert_eq!(
        threads("--nproc-per-node=2 s.py", &[]).as_deref(),
        Some("1")
    );
    assert_eq!(
        threads("--nproc-per-node=2 s.py", &[("OMP_NUM_THREADS", "4")]),
        None
    );
    assert_eq!(
        threads("--nproc-per-node=2 s.py", &[("OMP_NUM_THREADS", "")]),
        None
    );
    let given = [("OMP_NUM_THREADS", "4")];
    for (variables, is_default) in [(&[][..], true), (&given, false)] {
        let plan = plan("--nproc-per-node=2 s.py", variables);
        let is_set = plan.environment.iter().any(|(name, _)| *name == THREADS);
        assert_eq!(is_set, is_default);
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }
}

#[test]
fn the_environment_provides_defaults() {
    let static_pair = "2:3 static \"127.0.0.1:29500\" none rank=0,timeout=900";
    let standalone_pair = "2:2 c10d \"localhost:0\" random timeout=900";
    for (line, variables, expected) in [
        ("s.py", &[("PET_NNODES", "2:3")][..], static_pair),
        ("--nnodes=2:3 s.py", &[("PET_NNODES", "5")], static_pair),
        (
            "s.py",
            &[("PET_STANDALONE", "1"), ("PET_NNODES", "2")],
            standalone_pair,
        ),
        (
            "s.py",
            &[("PET_STANDALONE", "-1"), ("PET_NNODES", "2")],
            standalone_pair,
        ),
        ("--nnodes=2:3 s.py", &[("PET_STANDALONE", "0")], static_pair),
        (
            "--nnodes=2 --standalone s.py",
            &[("PET_STANDALONE", "0")],
            standalone_pair,
        ),
        (
            "s.py",
            &[("PET_MASTER_PORT", "5")],
            "1:1 static \"127.0.0.1:5\" none rank=0,timeout=900",
        ),
    ] {
        assert_eq!(
            rendezvous(line, variables),
            expected,
            "{line} {variables:?}"
        );
    }
    let variables = [
        ("PET_MAX_RESTARTS", "2"),
        ("PET_ROLE", "z"),
        ("PET_TEE", "3"),
        ("PET_VIRTUAL_LOCAL_RANK", " 1 "),
        ("PET_LOCAL_ADDR", "q"),
        ("PET_LOGS_SPECS", "ignored"),
        ("PET_NUMA_BINDING", "ignored"),
    ];
    let from_environment = plan("s.py", &variables);
    assert_eq!(from_environment.restarts.rules.max_restarts, Some(2));
    assert_eq!(from_environment.role, "z");
    assert_eq!(from_environment.tee, "3");
    assert!(from_environment.virtual_local_rank);
    assert_eq!(from_environment.rendezvous.local_addr(), Some("q"));
}

#[test]
fn some_options_have_a_second_variable() {
    let timeout = |line, variables: Variables<'_>| plan(line, variables).shutdown_timeout.as_secs();
    let second = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8");
    assert_eq!(timeout("s.py", &[second]), 8);
    assert_eq!(timeout("s.py", &[("PET_SHUTDOWN_TIMEOUT", "7"), second]), 7);
    let broken = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x");
    assert_eq!(timeout("--shutdown-timeout=4 s.py", &[broken]), 4);

    let second = ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "t");
    for (line, template) in [
        ("s.py", "t"),
        ("--log-line-prefix-template=o s.py", "o"),
        ("--log-line-prefix-template= s.py", "t"),
    ] {
        let plan = plan(line, &[second]);
        assert_eq!(
            plan.log_line_prefix_template.as_deref(),
            Some(template),
            "{line}"
        );
    }
}

#[test]
fn an_invalid_value_is_named_with_its_option() {
    for (line, message) in [
        (
            "--nnodes=0 s.py",
            "--nnodes is \"0\", which is not N or MIN:MAX with 1 <= MIN <= MAX",
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
            "--max-restarts is \"x\", which is not a whole number, 0 or more",
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
            "--master-port is \"x\", which is not a port, 0 to 65535",
        ),
        ("--master-port=70000 s.py", "--master-port is \"70000\""),
        ("--node-rank=-1 s.py", "--node-rank is \"-1\""),
        (
            "--nnodes=2 --node-rank=2 s.py",
            "--node-rank is 2, but with 2 nodes the highest rank is 1",
        ),
        (
            "--rdzv-backend=etcd s.py",
            "--rdzv-backend is \"etcd\", which is not c10d or static",
        ),
        ("--rdzv-backend= s.py", "--rdzv-backend is \"\""),
        (
            "--rdzv-conf=a s.py",
            "--rdzv-conf: the rendezvous setting \"a\" has no value",
        ),
        (
            "--rdzv-endpoint=h s.py",
            "--rdzv-endpoint is \"h\", which is not a host and a port",
        ),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=::1 s.py",
            "--rdzv-endpoint: the endpoint \"::1\" needs brackets, as in [::1]:29400",
        ),
        (
            "--nnodes=2 --master-addr=a/b s.py",
            "--master-addr: invalid host \"a/b\" in the endpoint \"a/b:29500\"",
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
fn preloaded_modules_come_from_the_option_or_its_variable() {
    let modules = |line: &str, variables: Variables<'_>| plan(line, variables).preload;
    let expected = PreloadOptions::new(["torch", "torch._dynamo"]);
    let line = "--preload=torch,,torch._dynamo, s.py";
    assert_eq!(modules(line, &[]), Some(expected.clone()));
    let variables = [
        ("PET_PRELOAD", "torch,torch._dynamo"),
        ("PET_PRELOAD_REQUIRED", "1"),
    ];
    let required = expected.with_required(true).with_standbys(true);
    assert_eq!(
        modules("--preload_standby -m s", &variables),
        Some(required)
    );
    assert_eq!(modules("--preload= s.py", &[]), None);
    assert_eq!(
        plan("--preload-required s.py", &[]).warnings,
        ["--preload-required and --preload-standby have no effect: --preload is not given"]
    );
}

#[test]
fn a_relay_has_a_port_of_the_nodes_or_of_the_user() {
    for (line, variables, expected) in [
        ("s.py", &[][..], (false, None)),
        ("--relay s.py", &[], (true, None)),
        ("--relay --relay_port=31000 s.py", &[], (true, Some(31000))),
        (
            "s.py",
            &[("PET_RELAY", "1"), ("PET_RELAY_PORT", "7")],
            (true, Some(7)),
        ),
        ("--relay-port=x s.py", &[], (false, None)),
    ] {
        let plan = plan(line, variables);
        assert_eq!((plan.has_relay, plan.relay_port), expected, "{line}");
        assert_eq!(plan.rendezvous.has_relays(), plan.has_relay, "{line}");
    }
    for port in ["0", "65536", "-1", "x"] {
        let refused = refusal(&format!("--relay --relay-port={port} s.py"), &[]);
        let expected = format!("--relay-port is \"{port}\", which is not a port, 1 to 65535");
        assert_eq!(refused, expected);
    }
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
        let warnings = plan(line, variables).warnings;
        assert_eq!(warnings.len(), 1, "{line}: {warnings:?}");
        assert!(warnings[0].starts_with(warning), "{line}: {warnings:?}");
    }
    for line in [
        "--standalone --rdzv-id=j s.py",
        "--nnodes=2 --node-rank=1 --master-addr=h --master-port=5 s.py",
        "--rdzv-backend=c10d --node-rank=0 s.py",
    ] {
        assert_eq!(plan(line, &[]).warnings, Vec::<String>::new(), "{line}");
    }
}

#[test]
fn a_random_id_is_a_uuid_of_version_4() {
    for seed in 0..64 {
        let id = random_id(seed);
        let groups: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
        let is_hex = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
        assert!(id.chars().all(is_hex), "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
    }
    assert_ne!(random_id(1), random_id(2));
}

#[test]
fn the_time_until_the_launcher_explains_a_standstill_is_an_option() {
    let after = |line: &str, variables: Variables<'_>| plan(line, variables).explain_after;
    assert_eq!(
        after("--explain-after 2m s.py", &[]),
        Some(Duration::from_secs(120))
    );
    assert_eq!(after("--explain_after=0 s.py", &[]), Some(Duration::ZERO));
    assert_eq!(after("--explain-after never s.py", &[]), None);
    assert_eq!(
        after("s.py", &[("PET_EXPLAIN_AFTER", "5s")]),
        Some(Duration::from_secs(5))
    );
    assert_eq!(
        refusal("--explain-after soon s.py", &[]),
        "--explain-after is \"soon\", which is not a time as in 30s or 2m, or `never`"
    );
}

#[test]
fn the_precedence_of_members_over_spares_is_a_setting_of_the_rendezvous() {
    let c10d = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=a";
    let wait = |options: &str, variables: Variables<'_>| {
        let plan = plan(&format!("{c10d} {options}s.py"), variables).rendezvous;
        plan.get("spare_wait").map(str::to_owned)
    };
    assert_eq!(wait("", &[]), None);
    assert_eq!(wait("--spare-wait 1m ", &[]).as_deref(), Some("60"));
    assert_eq!(wait("--spare_wait=0 ", &[]).as_deref(), Some("0"));
    assert_eq!(
        wait("", &[("PET_SPARE_WAIT", "1.5")]).as_deref(),
        Some("1.5")
    );
    assert_eq!(wait("--rdzv-conf=spare_wait=7 ", &[]).as_deref(), Some("7"));
    assert_eq!(
        wait("--rdzv-conf=spare_wait=7 --spare-wait=8s ", &[]).as_deref(),
        Some("8")
    );
    assert_eq!(
        refusal(&format!("{c10d} --spare-wait soon s.py"), &[]),
        "--spare-wait is \"soon\", which is not a time as in 15s or 1m, or 0"
    );
    let warned = plan("--nnodes=2 --rdzv-endpoint=a:1 --spare-wait=1s s.py", &[]).warnings;
    assert_eq!(
        warned,
        ["--spare-wait is \"1s\", which has no effect: the static backend has no spares"]
    );
}

#[test]
fn the_health_port_is_pytorchs() {
    let port = |value| plan("s.py", &[("TORCHELASTIC_HEALTH_CHECK_PORT", value)]).health_port;
    assert_eq!(plan("s.py", &[]).health_port, None);
    assert_eq!(port("8080"), Some(8080));
    assert_eq!(port("0"), None);
    assert_eq!(port("65536"), None);
}

#[test]
fn the_watchdog_has_pytorchs_variables() {
    let watchdog = |variables: Variables<'_>| {
        let plan = plan("s.py", variables);
        (plan.has_watchdog, plan.timer_file)
    };
    let enabled = ("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    assert_eq!(watchdog(&[]), (false, None));
    assert_eq!(watchdog(&[enabled]), (true, None));
    for other in ["0", "", "true"] {
        let variables = [("TORCHELASTIC_ENABLE_FILE_TIMER", other)];
        assert_eq!(watchdog(&variables), (false, None), "{other}");
    }
    let file = ("TORCHELASTIC_TIMER_FILE", "/run/timers");
    assert_eq!(
        watchdog(&[enabled, file]),
        (true, Some("/run/timers".into()))
    );
}

#[test]
fn a_health_check_has_a_command_and_a_timeout() {
    let check = |words: &[&str], variables: Variables<'_>| {
        let plan = plan_of(words.iter().copied(), variables).unwrap();
        (plan.health_check, plan.warnings)
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
        "--health-check-timeout is \"0\", which is not a time above 0, as in 30s or 2m"
    );
}

#[test]
fn the_status_page_can_be_turned_off() {
    assert!(!plan("--no-status s.py", &[]).has_status);
    assert!(!plan("s.py", &[("PET_NO_STATUS", "1")]).has_status);
    let hosts = plan("--status-host=a.example.org,b s.py", &[]).status_hosts;
    assert_eq!(hosts, ["a.example.org", "b"]);
}

#[test]
fn restarts_progress_and_events_have_options() {
    let given = plan(
        "--no-restart-exit-codes=93,-6 --restart-budget=10/1h --max-restarts-without-progress=3 \
         --restart-on-fatal-errors --progress-file=/p --progress-timeout=5m --first-progress-timeout=1h \
         --events=/e --summary --event-log-handler=console s.py",
        &[],
    );
    let restarts = given.restarts;
    assert_eq!(
        Vec::from_iter(restarts.rules.final_exit_codes.clone()),
        [-6, 93]
    );
    let budget = restarts.rules.budget.unwrap();
    assert_eq!((budget.restarts, budget.window.as_secs()), (10, 3600));
    assert_eq!(
        (
            restarts.rules.max_restarts,
            restarts.rules.max_without_progress
        ),
        (None, Some(3))
    );
    assert!(restarts.rules.restarts_on_fatal_errors && restarts.has_summary);
    assert_eq!(restarts.progress_timeout, Some(Duration::from_secs(300)));
    assert_eq!(
        restarts.first_progress_timeout,
        Some(Duration::from_secs(3600))
    );
    assert_eq!(
        (restarts.progress_file, restarts.events),
        (Some("/p".into()), Some("/e".into()))
    );
    assert!(restarts.has_console_events);
    let from_environment = plan(
        "--progress-timeout=never s.py",
        &[
            ("PET_SUMMARY", "1"),
            ("PET_RESTART_BUDGET", "1/2m"),
            ("PET_EVENTS", ""),
        ],
    );
    let restarts = from_environment.restarts;
    assert!(restarts.has_summary && restarts.rules.budget.is_some());
    assert_eq!((restarts.progress_timeout, restarts.events), (None, None));
    assert!(
        !plan("--max-restarts=3 s.py", &[])
            .restarts
            .watches_progress()
    );
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
            "--restart-budget=10 s.py",
            "--restart-budget is \"10\", which is not a number and a period",
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
        (
            "--event-log-handler=mine s.py",
            "--event-log-handler is \"mine\", which is not console, null",
        ),
    ] {
        let text = refusal(line, &[]);
        assert!(text.starts_with(message), "{line}: {text}");
    }
    let text = refusal("s.py", &[("PET_SUMMARY", "yes")]);
    assert!(text.starts_with("PET_SUMMARY is \"yes\""), "{text}");
}
