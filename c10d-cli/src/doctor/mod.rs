//! `c10d doctor`: checks the machines of a job before it occupies them.
//!
//! Its nodes meet in the same way as the nodes of `c10d run`. [`findings`] finds the problems.

mod exchange;
mod facts;
mod findings;
mod report;

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use clap::{Arg, Args};
use elastic_rendezvous::{BoardError, RendezvousError, open_check_store};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::quantity::parse_duration;
use crate::run::options::RunOptions;
use crate::run::plan_of;
use exchange::{Exchange, Failed, Reported};
use findings::findings;
use report::Report;

pub(crate) const EXIT_CODES: &str = "\
Give it the options of `c10d run`. Those that are not about the rendezvous, and a script, are accepted and have no effect:
replace `run` by `doctor` in the command line of a job.

Exit codes:
  0    every check of this node passed, and all nodes have reported
  1    a check of this node failed
  2    invalid arguments
  3    not all nodes have reported within --timeout";

/// The options of `c10d run` that are shown.
const SHOWN: [&str; 16] = [
    "nnodes",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
    "no_scheduler",
    "workers_port",
    "secret_file",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "json",
];

#[derive(Debug, Args)]
#[command(mut_args = show_some, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
pub(crate) struct DoctorOptions {
    /// Wait this long for the other nodes to report. [default: 30s] Example: --timeout 5m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s", hide_default_value = true)]
    timeout: Duration,

    #[command(flatten)]
    run: RunOptions,
}

fn show_some(arg: Arg) -> Arg {
    let name = arg.get_id().as_str();
    let is_shown = SHOWN.contains(&name) || ["timeout", "help"].contains(&name);
    let arg = match name {
        "json" => (arg.help("Print the report as one JSON object instead of text"))
            .help_heading(None::<&str>),
        _ => arg,
    };
    arg.hide(!is_shown).hide_short_help(false)
}

/// Checks this machine and its links to the other machines, and prints the report.
pub(crate) fn run(options: DoctorOptions) -> Result<(), Failure> {
    let plan = plan_of(options.run.without_script())?;
    let parameters = plan.launcher.rendezvous.clone();
    let is_file = (parameters.get("store_type")).is_some_and(|it| it.eq_ignore_ascii_case("file"));
    if plan.store_candidates.is_some() || is_file {
        return Err(Failure::Usage(
            "c10d doctor checks nodes that meet at HOST:PORT, not in etcd or at a file".to_owned(),
        ));
    }
    let deadline = Deadline::after(Instant::now(), options.timeout);
    let check = match open_check_store(&parameters, deadline) {
        Ok(check) => check,
        Err(error) => return no_store(&error, plan.json),
    };
    let nodes = parameters.max_nodes();
    if nodes > 1 {
        let (endpoint, timeout) = (&check.endpoint, options.timeout);
        log::info!("waiting for {nodes} nodes at {endpoint} for up to {timeout:?}");
    }
    let lost = |error| unfinished(&error, plan.json);
    let mut exchange = match Exchange::arrive(&check, &parameters) {
        Ok(exchange) => exchange,
        Err(error) => return lost(error),
    };
    let reported = match exchange.run(nodes, deadline) {
        Ok(reported) => reported,
        Err(error) => return lost(error),
    };
    let Reported { nodes, left_out } = reported;
    if left_out {
        return Err(Failure::No(format!(
            "the check began without this node, which is number {} to arrive, because {} nodes had reported or the other \
             nodes no longer waited: give all nodes the same --nnodes and --timeout, and start them together",
            exchange.number + 1,
            nodes.len(),
        )));
    }
    let report = Report {
        run_id: parameters.run_id(),
        endpoint: check.endpoint.to_string(),
        own: exchange.number,
        nodes: &nodes,
        findings: &findings(&nodes),
        expected: parameters.min_nodes(),
    };
    match plan.json {
        true => print_json(report.to_json())?,
        false => print(report.to_text().as_bytes())?,
    }
    match report.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Command(code)),
    }
}

/// The exchange with the other nodes has failed. A node that has left, or a host that has not begun, is a missing node.
fn unfinished(error: &Failed, is_json: bool) -> Result<(), Failure> {
    let code = match error.downcast_ref() {
        Some(BoardError::Missing { .. }) => 3,
        _ => 1,
    };
    failed(code, &format!("cannot finish the check: {error}"), is_json)
}

/// This node can neither serve nor reach the store of the check.
fn no_store(error: &RendezvousError, is_json: bool) -> Result<(), Failure> {
    let (code, problem) = match error {
        RendezvousError::OtherListener {
            endpoint, found, ..
        } => (
            1,
            format!(
                "{found} listens at {endpoint}; stop it, or choose another port in --rdzv-endpoint (or --master-port)"
            ),
        ),
        // The node that the endpoint names has not started.
        RendezvousError::Connection { source, .. } if is_refused(source) => {
            (3, format!("no node serves the check yet: {source}"))
        }
        error => (1, error.to_string()),
    };
    failed(code, &problem, is_json)
}

fn failed(code: u8, problem: &str, is_json: bool) -> Result<(), Failure> {
    if is_json {
        print_json(json!({ "nodes": [], "error": problem, "exit_code": code }))?;
    } else {
        crate::failure::complain(problem);
    }
    Err(Failure::Command(code))
}

fn is_refused(error: &c10d_store::StoreError) -> bool {
    matches!(error, c10d_store::StoreError::Connect { source, .. } if source.is_refused())
}
