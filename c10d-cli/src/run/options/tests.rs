//! The tables hold what torchrun 2.15 does with the same command lines and variables, except where a
//! comment says otherwise.

mod launched;
mod meeting;
mod refused;
mod timeouts;
mod under_scheduler;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};
use elastic_agent::devices::{Cpus, DeviceKind, DevicesError};
use elastic_agent::scheduler::Site;
use elastic_rendezvous::parse_config;

use super::rendezvous::random_id;
use super::*;
use crate::ephemeral_ports::EphemeralPorts;
use crate::run::interpreter;

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
        count_cpus: &|| {
            let quota = variable("TEST_CPU_QUOTA")?.parse().ok();
            Some(Cpus { allowed: 64, quota })
        },
        environment: Vec::new(),
        interpreter: interpreter::find(None, &|name| variable(name).map(Into::into)),
        credentials: None,
        ephemeral_ports: EphemeralPorts::parse("32768\t60999\n", "40000-40009,50000\n"),
        seed: 1,
        site: &Site {
            host_name: &|| "n1".to_owned(),
            full_name: &|| "n1.site".to_owned(),
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
    let plan = plan(line, variables).launcher;
    let plan = plan.rendezvous;
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
    let command = plan.launcher.agent.command;
    let program = std::iter::once(command.program());
    let words = program.chain(command.arguments().iter().map(OsString::as_os_str));
    words
        .map(|word| word.to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_option_definitions_are_consistent() {
    CommandLine::command().debug_assert();
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
    let module = format!("{:?}", plan("-m mod --a", &[]).launcher);
    assert!(module.contains("Module(\"mod\")"), "{module}");
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
    assert_eq!(
        empty.launcher.agent.command,
        elastic_agent::CommandLine::new("", ["a"])
    );
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
        "etcd_user",
        "etcd_password_file",
        "etcd_cert",
        "etcd_key",
        "etcd_ca",
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
fn workers_are_counted_by_number_or_by_device() {
    for (line, count) in [
        ("--nproc-per-node=4 s.py", 4),
        ("--nproc-per-node=cpu s.py", 6),
        ("--nproc-per-node=auto s.py", 6),
    ] {
        assert_eq!(
            plan(line, &[]).launcher.agent.local_world_size,
            count,
            "{line}"
        );
    }
    assert_eq!(
        refusal("--nproc-per-node=gpu s.py", &[]),
        "--nproc-per-node is \"gpu\", but no NVIDIA or AMD GPU is visible on this machine"
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
        assert!(
            plan.warning_texts().is_empty(),
            "{:?}",
            plan.warning_texts()
        );
    }
}
