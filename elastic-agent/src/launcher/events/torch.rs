//! PyTorch's events and metrics, with its names and fields. Pure.
//!
//! In PyTorch: `torch/distributed/elastic/events/api.py`, and `_construct_event` and `_record_metrics` in
//! `torch/distributed/elastic/agent/server/api.py`. Two differences: `timestamp` is the time, where PyTorch writes 0;
//! and a missing number is `null` inside `metadata` as well.

use std::time::Duration;

use crate::agent::{RoundRecord, StartedWorker, StartedWorkers};
use crate::failure::ProcessFailure;
use crate::launcher::options::LauncherOptions;
use crate::round::{AgentError, AgentOutcome};
use crate::worker::ExitKind;
use elastic_rendezvous::{RecordedEvent, this_host};
use serde_json::{Value, json};

/// The names that stay the same during a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::launcher) struct JobNames {
    pub(in crate::launcher) run_id: String,
    pub(in crate::launcher) host: String,
    pub(in crate::launcher) role: String,
    /// The rendezvous backend.
    pub(in crate::launcher) backend: String,
    /// The script.
    pub(in crate::launcher) entry_point: String,
}

/// When an event happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) epoch_ms: u64,
    /// The time for which the launcher has run.
    pub(super) run_seconds: u64,
    /// The number of restarts after failures.
    pub(super) restarts: usize,
}

/// One worker and its ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerPlace<'a> {
    started: &'a StartedWorkers,
    worker: &'a StartedWorker,
}

impl JobNames {
    pub(in crate::launcher) fn of(options: &LauncherOptions) -> Self {
        let (agent, rendezvous) = (&options.agent, &options.rendezvous);
        Self {
            run_id: rendezvous.run_id().to_owned(),
            host: this_host::full_name(),
            role: agent.role.clone(),
            backend: rendezvous.backend().to_owned(),
            entry_point: agent.name.clone(),
        }
    }
}

impl<'a> WorkerPlace<'a> {
    pub(super) const fn of(started: &'a StartedWorkers, worker: &'a StartedWorker) -> Self {
        Self { started, worker }
    }
}

/// An event of the agent. `duration` is the length of a phase.
pub(super) fn agent_event(
    names: &JobNames,
    state: &str,
    moment: Moment,
    started: Option<&StartedWorkers>,
    duration: Option<Duration>,
    error: Option<String>,
) -> Value {
    let details = details(names, started);
    let mut event = event(names, "AGENT", state, moment, started, &details);
    let metadata = &mut event["metadata"];
    metadata["duration_ms"] = duration.map(|it| it.as_secs_f64() * 1000.0).into();
    metadata["raw_error"] = error.into();
    event
}

pub(super) fn worker_event(
    names: &JobNames,
    state: &str,
    moment: Moment,
    place: &WorkerPlace<'_>,
    failure: Option<&ProcessFailure>,
) -> Value {
    let WorkerPlace { started, worker } = place;
    let mut details = details(names, Some(started));
    // PyTorch's are lists of one number.
    details["local_rank"] = json!([worker.local_rank]);
    details["role_rank"] = json!([started.first_role_rank + worker.local_rank]);
    details["role_world_size"] = json!([started.role_world_size]);
    details["exit_code"] = json!([failure.map(|it| it.exit.code())]);
    details["worker_pid"] = json!([failure.map(|it| it.pid)]);
    let mut event = event(names, "WORKER", state, moment, Some(started), &details);
    let metadata = &mut event["metadata"];
    metadata["global_rank"] = worker.rank.into();
    metadata["worker_id"] = worker.pid.to_string().into();
    metadata["raw_error"] = failure.map(raw_error).into();
    event
}

/// The error file, or PyTorch's replacement for a missing error file.
fn raw_error(failure: &ProcessFailure) -> String {
    failure.error_json().unwrap_or_else(|| {
        let mut error = json!({ "message": "<NONE>" });
        if matches!(failure.exit, ExitKind::Code(_)) {
            error["errorTraits"] =
                json!({ "category": "system_terminated_error", "retryability": "False" });
        }
        error.to_string()
    })
}

fn details(names: &JobNames, started: Option<&StartedWorkers>) -> Value {
    json!({
        "group_world_size": started.map(|it| it.nodes),
        "entry_point": names.entry_point,
    })
}

fn event(
    names: &JobNames,
    source: &str,
    state: &str,
    moment: Moment,
    started: Option<&StartedWorkers>,
    details: &Value,
) -> Value {
    json!({
        "name": format!("torchelastic.worker.status.{state}"),
        "source": source,
        "timestamp": moment.epoch_ms,
        "metadata": {
            "run_id": names.run_id,
            "global_rank": null,
            "group_rank": started.map(|it| it.node_rank),
            "worker_id": null,
            "role": names.role,
            "hostname": names.host,
            "state": state,
            "total_run_time": moment.run_seconds,
            "rdzv_backend": names.backend,
            "raw_error": null,
            "metadata": details.to_string(),
            "agent_restarts": moment.restarts,
            "duration_ms": null,
        },
    })
}

/// A step of the rendezvous that changes what this node is a part of, or fails.
pub(super) fn rendezvous_event(event: &RecordedEvent) -> Value {
    json!({
        "name": event.name,
        "run_id": event.run_id,
        "message": event.message,
        "hostname": event.hostname,
        "pid": event.pid,
        "node_state": event.node_state.as_str(),
        "master_endpoint": event.master_endpoint,
        "rank": event.rank,
        "local_id": event.local_id,
        "error_trace": event.error_trace,
    })
}

/// Whether the workers failed; `None` if PyTorch's agent has no result for them.
pub(super) const fn has_failed(result: &Result<AgentOutcome, AgentError>) -> Option<bool> {
    match result {
        Ok(AgentOutcome::Succeeded) => Some(false),
        Ok(AgentOutcome::Failed(_) | AgentOutcome::Ended { .. }) => Some(true),
        _ => None,
    }
}

/// The last state of a worker. A worker that exited in order, although other workers failed, is `TERMINATED`.
pub(super) const fn state_of(
    result: &Result<AgentOutcome, AgentError>,
    has_worker_failed: bool,
) -> &'static str {
    match has_failed(result) {
        _ if has_worker_failed => "FAILED",
        Some(true) => "TERMINATED",
        _ => "SUCCEEDED",
    }
}

/// The last state of the agent, and its error. As in PyTorch it succeeds if it ends in order, even if workers failed.
pub(super) fn agent_state(
    result: &Result<AgentOutcome, AgentError>,
) -> (&'static str, Option<String>) {
    match result {
        Ok(AgentOutcome::Signalled { signal, .. }) => ("FAILED", Some(format!("signal {signal}"))),
        Ok(_) => ("SUCCEEDED", None),
        Err(error) => ("FAILED", Some(error.to_string())),
    }
}

/// PyTorch's metrics of a run.
pub(super) fn metrics(names: &JobNames, has_failed: bool, last: &RoundRecord) -> Value {
    let had_restarts = last.restarts > 0;
    let remaining = last.restarts_left;
    let all = last.restarts.saturating_add(remaining);
    let flakiness = if has_failed {
        100
    } else {
        // 100 - 100 * (remaining + 1) / (all + 1), rounded down as PyTorch does.
        let used = all.saturating_sub(remaining) as f64;
        (100.0 * used / (all as f64 + 1.0)) as u64
    };
    let values = [
        ("run_total", 1),
        (
            "run_success_with_retries",
            u64::from(!has_failed && had_restarts),
        ),
        (
            "run_success_no_retries",
            u64::from(!has_failed && !had_restarts),
        ),
        (
            "run_failed_with_retries",
            u64::from(has_failed && had_restarts),
        ),
        (
            "run_failed_no_retries",
            u64::from(has_failed && !had_restarts),
        ),
        ("flakiness", flakiness),
        ("remaining_restarts", remaining as u64),
    ];
    let values: serde_json::Map<String, Value> = values
        .into_iter()
        .map(|(name, value)| (format!("workers.{}.{name}", names.role), value.into()))
        .collect();
    json!({ "event": "metrics", "run_id": names.run_id, "host": names.host, "metrics": values })
}
