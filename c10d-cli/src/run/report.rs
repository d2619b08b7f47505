//! `--json`: the outcome of a run as one object.

use std::time::Duration;

use elastic_agent::{
    AgentOutcome, ExitKind, ExitRecord, Failures, LauncherReport, ProcessFailure, RootExit,
};
use serde_json::{Value, json};
use signal_hook::low_level::signal_name;

use crate::failure::Failure;
use crate::output;

/// How long an output that accepts nothing is waited for after a signal.
const STUCK_STOPPED_MAX: Duration = Duration::from_secs(1);

/// Prints the outcome on standard output. Waits for its reader until a signal arrives.
pub(super) fn print(report: &LauncherReport) -> Result<(), Failure> {
    let line = json(report);
    let print = move || output::print_line(line);
    let Some(stop) = report.stop_control() else {
        return print();
    };
    let printed = stop
        .unless_stopped("print", STUCK_STOPPED_MAX, print)
        .map_err(Failure::system("cannot start a thread"))?;
    printed.unwrap_or_else(|| Err(Failure::Output(std::io::ErrorKind::TimedOut.into())))
}

/// The outcome, the log directory, the failed workers, and the report of the job's waits when a worker failed.
fn json(report: &LauncherReport) -> Value {
    let failures = report.failures();
    let outcome = match &report.result {
        Ok(AgentOutcome::Succeeded) => "succeeded",
        Ok(AgentOutcome::NotNeeded) => "not_needed",
        Ok(AgentOutcome::Failed(_) | AgentOutcome::Ended { .. }) => "failed",
        Ok(AgentOutcome::Signalled { .. }) => "signalled",
        Err(_) if failures.is_some() => "failed",
        Ok(_) | Err(_) => "error",
    };
    let mut json = json!({
        "outcome": outcome,
        "exit_code": report.exit_code(),
        "log_directory": report.log_directory.as_ref().map(|path| path.to_string_lossy()),
        "failures": failures.map_or_else(Vec::new, of_failures),
    });
    let notice = match &report.result {
        Ok(AgentOutcome::Ended { notice, .. }) => notice.as_ref(),
        _ => None,
    };
    let root = failures.and_then(Failures::root_exit);
    if let Some(root) = root.or_else(|| notice?.root.as_ref()) {
        json["root_cause"] = of_root(root);
    }
    if let Some(why) = &report.why {
        json["why"] = json!({ "headline": why.headline, "findings": why.findings });
    }
    if let Some(first) = &report.first_failure {
        json["first_failure"] = of_exit(first);
    }
    match &report.result {
        Ok(AgentOutcome::Ended { reason, .. }) => {
            json["reason"] = reason.as_str().into();
            if let Some(exit) = notice.and_then(|it| it.exit.as_ref()) {
                json["remote_failure"] = of_exit(exit);
            }
        }
        Ok(AgentOutcome::Signalled { signal, .. }) => {
            json["signal"] = name_of(*signal).into();
        }
        Ok(_) => {}
        Err(error) => json["error"] = error.to_string().into(),
    }
    json
}

/// The exit of a worker on any node. `time` is in seconds since the epoch, with a fraction.
fn of_exit(exit: &ExitRecord) -> Value {
    json!({
        "rank": exit.rank,
        "host": exit.host,
        "pid": exit.pid,
        "exit_code": exit.exit.code(),
        "signal": signal_of(exit.exit),
        "time": exit.ended_unix_ms as f64 / 1000.0,
        "last_line": exit.last_line,
    })
}

fn signal_of(exit: ExitKind) -> Option<&'static str> {
    match exit {
        ExitKind::Signal { number, .. } => Some(name_of(number)),
        _ => None,
    }
}

fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

fn of_failures(failures: &Failures) -> Vec<Value> {
    let root = failures.first();
    let all = failures.all().iter();
    all.map(|failure| {
        let is_root = std::ptr::eq(failure, root) && !failures.is_root_elsewhere();
        let cause = failures.blame_reason().filter(|_| is_root);
        of_failure(failure, is_root, cause)
    })
    .collect()
}

/// The exit that is the root cause, perhaps on another node or with code 0.
fn of_root(root: &RootExit) -> Value {
    let mut json = of_exit(&root.record);
    json["cause"] = root.text.as_str().into();
    json["is_certain"] = root.is_certain.into();
    json["cure"] = root.cure.into();
    json
}

/// `cause` is the reason why it is the root cause although another worker failed first. `time` is in seconds
/// since the epoch; `exit_code` is negative for a signal, like in PyTorch.
fn of_failure(failure: &ProcessFailure, is_root_cause: bool, cause: Option<&str>) -> Value {
    let error_file = failure.error_file.as_ref();
    json!({
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exit.code(),
        "signal": signal_of(failure.exit),
        "time": failure.timestamp,
        "error_file": error_file.map(|path| path.to_string_lossy().into_owned()),
        "message": failure.message,
        "stderr": failure.stderr_lines(),
        "meaning": failure.meaning,
        "is_root_cause": is_root_cause,
        "cause": cause,
    })
}
