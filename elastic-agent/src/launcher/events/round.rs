//! The line about one round. Pure.

use std::time::{Duration, UNIX_EPOCH};

use crate::agent::RoundRecord;
use crate::round::{RoundCause, RoundEnding};
use serde_json::{Map, Value, json};

use super::torch::JobNames;

/// The fields that docs/reference/restarts.md describes. The phases add up to the total, in milliseconds.
pub(super) fn line(names: &JobNames, record: &RoundRecord) -> Value {
    let (began, began_why) = cause(&record.cause);
    let (ended, ended_why) = ending(&record.ending);
    let began_at = record
        .began_at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut line = json!({
        "event": "round",
        "run_id": names.run_id,
        "host": names.host,
        "time": seconds(began_at),
        "began": began,
        "began_why": began_why,
        "ended": ended,
        "ended_why": record.reason.as_deref().or(ended_why),
        "seconds": phases(record),
        "last_step": record.last_step,
        "restarts_used": record.restarts,
        "restarts_left": record.restarts_left,
    });
    if let Some(started) = &record.started {
        let ranks: Vec<usize> = started.workers.iter().map(|worker| worker.rank).collect();
        line["round"] = started.round.into();
        line["nodes"] = started.nodes.into();
        line["node_rank"] = started.node_rank.into();
        line["ranks"] = ranks.into();
        line["preloaded"] = started.are_preloaded.into();
        line["world_size"] = started.world_size.into();
        let codes = record.outcomes.iter();
        line["exit_codes"] = codes
            .map(|end| (end.rank.to_string(), Value::from(end.exit.code())))
            .collect::<Map<_, _>>()
            .into();
        let is_replaced = |pid| started.workers.iter().all(|worker| worker.pid != pid);
        let replaced = record.outcomes.iter().filter(|it| is_replaced(it.pid));
        let replaced: Vec<usize> = replaced.map(|end| end.rank).collect();
        if !replaced.is_empty() {
            line["replaced"] = replaced.into();
        }
    }
    line
}

fn phases(record: &RoundRecord) -> Value {
    let phases = &record.phases;
    let parts = [
        ("rendezvous", phases.rendezvous),
        ("ranks", phases.ranks),
        ("start", phases.start),
        ("run", phases.run),
        ("stop", phases.stop),
    ];
    let total: u128 = parts.iter().map(|(_, time)| time.as_millis()).sum();
    let mut object: Map<String, Value> = parts
        .into_iter()
        .map(|(name, time)| (name.to_owned(), seconds(time)))
        .collect();
    object.insert("total".to_owned(), thousandths(total));
    let progress = [
        ("first_output", record.first_output),
        ("first_progress", record.first_progress),
        ("last_progress", record.last_progress),
    ];
    for (name, time) in progress {
        if let Some(time) = time {
            object.insert(name.to_owned(), seconds(time));
        }
    }
    object.into()
}

fn seconds(time: Duration) -> Value {
    thousandths(time.as_millis())
}

fn thousandths(ms: u128) -> Value {
    Value::from(ms as f64 / 1000.0)
}

fn cause(cause: &RoundCause) -> (&'static str, Option<&str>) {
    match cause {
        RoundCause::Start => ("start", None),
        RoundCause::Failure => ("failure", None),
        RoundCause::Stuck => ("stuck", None),
        RoundCause::MembersChanged(why) => ("members_changed", Some(why)),
    }
}

/// A word for programs, and a text for people.
fn ending(ending: &RoundEnding) -> (&'static str, Option<&str>) {
    match ending {
        RoundEnding::Succeeded => ("succeeded", None),
        RoundEnding::Failed => ("failed", None),
        RoundEnding::Stuck => ("stuck", None),
        RoundEnding::MembersChanged(why) => ("members_changed", Some(why)),
        RoundEnding::JobEnded(why) => ("job_ended", Some(why)),
        RoundEnding::Signalled => ("signalled", None),
        RoundEnding::NotStarted(why) => ("not_started", Some(why)),
    }
}
