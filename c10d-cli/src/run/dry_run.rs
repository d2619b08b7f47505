//! `--dry-run`: the plan of a launcher, and where each value is from.

use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::time::Duration;

use elastic_agent::Replacement;
use elastic_rendezvous::{DEFAULT_PORT, Endpoint, EndpointError, ParametersError};
use serde_json::{Value, json};

use super::options::{Origin, RunPlan};

/// One line about the scheduler that was found; `None` without one.
pub(super) fn line(plan: &RunPlan) -> Option<String> {
    let scheduler = plan.scheduler?;
    let values = plan.origins.iter().map(|origin| {
        let Origin { name, value, from } = origin;
        format!("{name} {value} ({from})")
    });
    let values = values.collect::<Vec<_>>().join(", ");
    Some(format!("found {scheduler}: {values}"))
}

/// Whether this node serves the store of the rendezvous. `is_this_host` tells whether a name is this machine's, which
/// decides without a setting.
pub(super) fn is_host(
    plan: &RunPlan,
    is_this_host: &dyn Fn(&str) -> bool,
) -> Result<bool, ParametersError> {
    let parameters = &plan.launcher.rendezvous;
    if parameters.backend() == elastic_rendezvous::STATIC_BACKEND {
        return Ok(plan.node_rank == Some(0));
    }
    let is_file = parameters
        .get("store_type")
        .is_some_and(|store| store.eq_ignore_ascii_case("file"));
    if is_file || plan.store_candidates.is_some() {
        return Ok(false);
    }
    match parameters.get_as_bool("is_host")? {
        Some(is_host) => Ok(is_host),
        None => Ok(is_this_host(endpoint(plan)?.host())),
    }
}

/// The plan as lines of a name and a value.
pub(super) fn text(plan: &RunPlan, is_host: bool) -> String {
    let (agent, parameters) = (&plan.launcher.agent, &plan.launcher.rendezvous);
    let mut lines = Lines::default();
    lines.add("scheduler", plan.scheduler.unwrap_or("none"), None);
    lines.add("nodes", nodes(plan), origin(plan, "nodes"));
    let rank = plan.node_rank.map_or_else(
        || "chosen when the nodes meet".to_owned(),
        |rank| rank.to_string(),
    );
    lines.add("node rank", rank, origin(plan, "node rank"));
    lines.add("backend", parameters.backend(), None);
    lines.add("endpoint", shown_endpoint(plan), origin(plan, "endpoint"));
    lines.add("is host", if is_host { "yes" } else { "no" }, None);
    lines.add("run id", parameters.run_id(), origin(plan, "run id"));
    let workers = agent.local_world_size;
    lines.add("workers", workers, origin(plan, "workers"));
    lines.add("command", command(plan).join(" "), None);
    lines.add("log dir", log_dir(plan), None);
    let logs = &agent.logs;
    for (name, streams) in [("redirects", &logs.redirects), ("tee", &logs.tee)] {
        if !streams.is_empty() {
            lines.add(name, streams, None);
        }
    }
    if let Some(preload) = &agent.preload {
        let how = match (preload.is_required, preload.has_standbys) {
            (false, false) => "",
            (true, false) => ", required",
            (false, true) => ", with standbys",
            (true, true) => ", required, with standbys",
        };
        let modules = preload.modules.join(",");
        lines.add("preload", format!("{modules}{how}"), None);
    }
    let store_dir = plan.store_dir.as_ref();
    let shares_store = parameters.shares_store().unwrap_or(false);
    lines.add_given("store dir", store_dir.map(|path| path.display()));
    lines.add_given("store candidates", plan.store_candidates);
    lines.add_given("store port", plan.store_port);
    lines.add_given(
        "workers' store",
        shares_store.then_some("the store of the rendezvous"),
    );
    lines.add_given("relay", parameters.has_relays().then_some("yes"));
    for (name, value) in environment(plan) {
        lines.add("environment", format!("{name}={value}"), None);
    }
    // Without a limit if only other rules limit the restarts.
    let max = agent.restarts.restarts_max();
    let max = max.map_or_else(|| "no limit".to_owned(), |max| max.to_string());
    lines.add("max restarts", max, None);
    for (name, rule) in restart_rules(plan) {
        lines.add(name, rule, None);
    }
    let check = agent.health_check.as_ref();
    lines.add_given(
        "health check",
        check.map(|it| it.command().to_string_lossy()),
    );
    lines.add_given("shutdown timeout", time(agent.shutdown_timeout));
    lines.add_given("grace period", time(plan.grace_period));
    lines.add_given("debug rank", agent.debug_rank);
    for (name, time) in plan.timeouts() {
        lines.add("timeout", format!("{time:?} ({name})"), None);
    }
    for warning in plan.warnings() {
        lines.add("warning", warning, None);
    }
    lines.0.trim_end().to_owned()
}

/// The plan as one object.
pub(super) fn json(plan: &RunPlan, is_host: bool) -> Value {
    let (agent, parameters) = (&plan.launcher.agent, &plan.launcher.rendezvous);
    let origins = plan.origins.iter();
    let origins = origins.map(|origin| (origin.name.replace(' ', "_"), &*origin.from));
    let rules = restart_rules(plan).into_iter();
    let rules = rules.map(|(name, rule)| (name.replace(' ', "_"), rule));
    let timeouts = plan.timeouts().into_iter();
    let timeouts = timeouts.map(|(name, time)| (name, time.as_secs_f64()));
    json!({
        "scheduler": plan.scheduler,
        "sources": origins.collect::<Value>(),
        "min_nodes": parameters.min_nodes(),
        "max_nodes": parameters.max_nodes(),
        "node_rank": plan.node_rank,
        "backend": parameters.backend(),
        "endpoint": shown_endpoint(plan),
        "is_host": is_host,
        "run_id": parameters.run_id(),
        "workers": agent.local_world_size,
        "command": command(plan),
        "preload": agent.preload.as_ref().map_or(&[][..], |preload| &*preload.modules),
        "log_dir": agent.logs.log_dir,
        "redirects": agent.logs.redirects.to_string(),
        "tee": agent.logs.tee.to_string(),
        "health_check": agent.health_check.as_ref().map(|it| it.command().to_string_lossy()),
        "restart_rules": rules.collect::<Value>(),
        "store_dir": plan.store_dir,
        "store_candidates": plan.store_candidates,
        "store_port": plan.store_port,
        "workers_store": if parameters.shares_store().unwrap_or(false) { "rendezvous" } else { "agent" },
        "relay": parameters.has_relays(),
        "environment": environment(plan).into_iter().collect::<Value>(),
        "max_restarts": agent.restarts.restarts_max(),
        "shutdown_timeout": agent.shutdown_timeout.map(|timeout| timeout.as_secs_f64()),
        "grace_period": plan.grace_period.map(|period| period.as_secs_f64()),
        "debug_rank": agent.debug_rank,
        "timeouts": timeouts.collect::<Value>(),
        "warnings": plan.warning_texts(),
    })
}

#[derive(Debug, Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl Display, from: Option<&str>) {
        let from = from.map_or_else(String::new, |from| format!(" ({from})"));
        // Writing to memory does not fail.
        let _ = writeln!(self.0, "{name:16}  {value}{from}");
    }

    fn add_given(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(name, value, None);
        }
    }
}

fn origin<'p>(plan: &'p RunPlan, name: &str) -> Option<&'p str> {
    let mut origins = plan.origins.iter();
    let origin = origins.find(|origin| origin.name == name);
    origin.map(|origin| origin.from.as_str())
}

fn nodes(plan: &RunPlan) -> String {
    let parameters = &plan.launcher.rendezvous;
    format!("{}:{}", parameters.min_nodes(), parameters.max_nodes())
}

fn endpoint(plan: &RunPlan) -> Result<Endpoint, EndpointError> {
    plan.launcher.rendezvous.endpoint().parse()
}

/// The endpoint with its port; a path as it is.
pub(super) fn shown_endpoint(plan: &RunPlan) -> String {
    match endpoint(plan) {
        Ok(endpoint) => endpoint.with_default_port(DEFAULT_PORT).to_string(),
        Err(_) => plan.launcher.rendezvous.endpoint().to_owned(),
    }
}

fn command(plan: &RunPlan) -> Vec<String> {
    let command = &plan.launcher.agent.command;
    let program = std::iter::once(command.program());
    let words = program.chain(command.arguments().iter().map(OsString::as_os_str));
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

fn log_dir(plan: &RunPlan) -> String {
    match &plan.launcher.agent.logs.log_dir {
        Some(path) => path.display().to_string(),
        None => format!("a new directory in {}", std::env::temp_dir().display()),
    }
}

fn time(time: Option<Duration>) -> Option<String> {
    time.map(|time| format!("{time:?}"))
}

/// The rules for restarts besides their number.
fn restart_rules(plan: &RunPlan) -> Vec<(&'static str, String)> {
    let agent = &plan.launcher.agent;
    let rules = &agent.restarts;
    let progress = agent.progress.clone().unwrap_or_default();
    let path = |path: Option<&PathBuf>| path.map(|path| path.display().to_string());
    let codes = rules.final_exit_codes.iter().map(i32::to_string);
    let codes = codes.collect::<Vec<_>>().join(",");
    let keep = agent.keep_workers.as_ref().map(|keep| {
        let dead = match keep.replacement {
            Replacement::Fork => format!("dead ones are replaced after {:?}", keep.replace_after),
            Replacement::None => "dead ones are not replaced".to_owned(),
        };
        format!("{} at least, {dead}", keep.members_min)
    });
    let continues = !agent.stops_on_job_failure;
    let budget = rules.budget;
    let budget = budget.map(|it| format!("{} in any {:?}", it.restarts, it.window));
    let without_progress = rules.max_without_progress.map(|max| max.to_string());
    let all = [
        ("on job failure", continues.then(|| "continue".to_owned())),
        ("keep workers", keep),
        ("restart budget", budget),
        ("without progress", without_progress),
        ("no restart after", Some(codes).filter(|it| !it.is_empty())),
        ("progress file", path(progress.file.as_ref())),
        ("progress timeout", time(progress.timeout)),
        ("first progress", time(progress.first_timeout)),
        ("events", path(plan.launcher.events_file.as_ref())),
    ];
    let given = all
        .into_iter()
        .filter_map(|(name, rule)| Some((name, rule?)));
    given.collect()
}

/// The variables of workers that do not depend on the round.
fn environment(plan: &RunPlan) -> Vec<(&'static str, String)> {
    let agent = &plan.launcher.agent;
    let mut variables = vec![
        ("LOCAL_WORLD_SIZE", agent.local_world_size.to_string()),
        ("ROLE_NAME", agent.role.clone()),
        (
            "TORCHELASTIC_RUN_ID",
            plan.launcher.rendezvous.run_id().to_owned(),
        ),
    ];
    variables.extend(plan.environment.iter().cloned());
    variables
}
