//! `--json`: the outcome of a run as one object.

use c10d_inspect::Report;
use elastic_agent::{AgentError, AgentOutcome, ElasticAgent, ExitKind, Failures, ProcessFailure};
use serde_json::{Value, json};

use super::signals::name_of;

/// The outcome, the log directory, the failed workers, and what the job waited for when one failed. The caller adds `exit_code` and `error`.
pub(super) fn json(
    agent: &ElasticAgent,
    result: &Result<AgentOutcome, AgentError>,
    why: Option<&Report>,
) -> Value {
    let (outcome, failures) = match result {
        Ok(AgentOutcome::Succeeded) => ("succeeded", None),
        Ok(AgentOutcome::NotNeeded) => ("not_needed", None),
        Ok(AgentOutcome::Failed(failures)) => ("failed", Some(failures)),
        Ok(AgentOutcome::Ended { failures, .. }) => ("failed", failures.as_ref()),
        Ok(AgentOutcome::Signalled { .. }) => ("signalled", None),
        Err(AgentError::NotRestarted { failures, .. }) => ("failed", Some(failures)),
        Ok(_) | Err(_) => ("error", None),
    };
    let mut report = json!({
        "outcome": outcome,
        "log_directory": agent.log_directory().map(|path| path.to_string_lossy().into_owned()),
        "failures": failures.map_or_else(Vec::new, of_failures),
    });
    if let Some(why) = why {
        report["why"] = json!({ "headline": why.headline, "findings": why.findings });
    }
    if let Ok(AgentOutcome::Ended { reason, .. }) = result {
        report["reason"] = reason.as_str().into();
    }
    if let Ok(AgentOutcome::Signalled { signal, .. }) = result {
        report["signal"] = name_of(*signal).into();
    }
    report
}

fn of_failures(failures: &Failures) -> Vec<Value> {
    let root = failures.first();
    let all = failures.all().iter();
    all.map(|failure| {
        let is_root = std::ptr::eq(failure, root);
        let cause = failures.blame_reason().filter(|_| is_root);
        of_failure(failure, is_root, cause)
    })
    .collect()
}

/// `cause` tells why it is the root cause although another worker failed first. `time` is in seconds since the
/// epoch; `exit_code` is negative for a signal, as in PyTorch.
fn of_failure(failure: &ProcessFailure, is_root_cause: bool, cause: Option<&str>) -> Value {
    let signal = match failure.exit {
        ExitKind::Signal { number, .. } => Some(name_of(number)),
        _ => None,
    };
    let error_file = failure.error_file.as_ref();
    json!({
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exit.code(),
        "signal": signal,
        "time": failure.timestamp,
        "error_file": error_file.map(|path| path.to_string_lossy().into_owned()),
        "message": failure.message,
        "stderr": failure.stderr_lines(),
        "meaning": failure.meaning,
        "is_root_cause": is_root_cause,
        "cause": cause,
    })
}
