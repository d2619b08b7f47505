//! The launcher's options, as the plan of this node says.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use c10d_inspect::http::StatusOptions;
use elastic_agent::{
    AgentOptions, EventOptions, ExitLimits, LauncherOptions, LogOptions, ProgressOptions, StreamMap,
};
use elastic_rendezvous::RendezvousParameters;

use super::options::RunPlan;
use crate::failure::Failure;

/// Names the file in which the launcher writes why it failed, as in PyTorch.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// `1` on all nodes: the worker with rank 0 serves the workers' store, instead of an agent.
const DISABLE_SHARED_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// `1` on all nodes: all nodes have the same number of workers, so ranks need no exchange.
const IDENTICAL_WORKERS: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";

/// The options of the launcher. Reads this process's environment, and the files of a secret.
pub(super) fn of(plan: &RunPlan) -> Result<LauncherOptions, Failure> {
    let status = plan
        .has_status
        .then(|| StatusOptions::default().with_host_names(plan.status_hosts.iter().cloned()));
    let mut events = EventOptions::default();
    events.file.clone_from(&plan.restarts.events);
    events.has_console = plan.restarts.has_console_events;
    events.has_summary = plan.restarts.has_summary;
    let limits = plan.exit_limits;
    Ok(
        LauncherOptions::new(agent_options(plan)?, rendezvous(plan)?)
            .with_entrypoint(plan.entrypoint.clone())
            .with_signals(plan.signals.iter().cloned())
            .with_exit_limits(limits.map(|limits| ExitLimits::new(limits.leave, limits.exit)))
            .with_explain_after(plan.explain_after)
            .with_debug_servers(plan.debug_server)
            .with_status_page(status)
            .with_health_port(plan.health_port)
            .with_events(events)
            .with_error_file(error_file_path()),
    )
}

fn is_on(name: &str) -> bool {
    env::var(name).is_ok_and(|value| value == "1")
}

fn rendezvous(plan: &RunPlan) -> Result<RendezvousParameters, Failure> {
    let parameters = with_shared_store(plan.rendezvous.clone(), !is_on(DISABLE_SHARED_STORE));
    Ok(match plan.secret.credentials()? {
        Some(credentials) => parameters.with_credentials(credentials),
        None => parameters,
    })
}

fn log_options(plan: &RunPlan) -> Result<LogOptions, Failure> {
    let streams = |option: &str, text: &str| -> Result<StreamMap, Failure> {
        text.parse()
            .map_err(|error| Failure::Usage(format!("--{option}: {error}")))
    };
    let ranks = plan.local_ranks_filter.iter().flatten();
    let mut logs = LogOptions::new()
        .with_redirects(streams("redirects", &plan.redirects)?)
        .with_tee(streams("tee", &plan.tee)?)
        .with_local_ranks_filter(ranks.filter_map(|rank| usize::try_from(*rank).ok()))
        .with_stdout_filters(plan.duplicate_stdout_filters.iter().cloned())
        .with_stderr_filters(plan.duplicate_stderr_filters.iter().cloned());
    if let Some(path) = &plan.log_dir {
        logs = logs.with_log_dir(path);
    }
    Ok(logs)
}

fn agent_options(plan: &RunPlan) -> Result<AgentOptions, Failure> {
    let mut options = AgentOptions::new(plan.command.clone(), plan.worker_count)
        .with_name(plan.entrypoint.name().to_string_lossy())
        .with_role(&plan.role)
        .with_restart_rules(plan.restarts.rules.clone())
        .with_shutdown_timeout(plan.shutdown_timeout)
        .with_logs(log_options(plan)?)
        .with_virtual_local_rank(plan.virtual_local_rank)
        .with_identical_nodes(is_on(IDENTICAL_WORKERS))
        .with_relay(plan.has_relay)
        .with_relay_port(plan.relay_port)
        .with_preload(plan.preload.clone())
        .with_progress(progress_options(plan))
        .with_health_check(plan.health_check.clone())
        .with_watchdog(plan.has_watchdog)
        .with_timer_file(plan.timer_file.clone())
        .with_environment(worker_environment(plan));
    if let Some(template) = &plan.log_line_prefix_template {
        options = options.with_line_prefix_template(template);
    }
    Ok(options)
}

/// Where workers report progress; `None` if nothing depends on it.
fn progress_options(plan: &RunPlan) -> Option<ProgressOptions> {
    let restarts = &plan.restarts;
    if !restarts.watches_progress() {
        return None;
    }
    let mut options = ProgressOptions::default();
    options.file.clone_from(&restarts.progress_file);
    options.timeout = restarts.progress_timeout;
    options.first_timeout = restarts.first_progress_timeout;
    Some(options)
}

/// What workers inherit.
fn worker_environment(plan: &RunPlan) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
    for (name, value) in &plan.environment {
        environment.insert((*name).into(), value.into());
    }
    environment
}

fn with_shared_store(parameters: RendezvousParameters, is_shared: bool) -> RendezvousParameters {
    if is_shared || parameters.backend() != elastic_rendezvous::C10D_BACKEND {
        return parameters;
    }
    let mut config = parameters.config().clone();
    config.insert("share_store".to_owned(), "0".to_owned());
    parameters.with_config(config)
}

fn error_file_path() -> Option<PathBuf> {
    let path = env::var_os(ERROR_FILE)?;
    (!path.is_empty()).then(|| PathBuf::from(path))
}
