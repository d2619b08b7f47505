//! Makes a report from a snapshot.

use std::time::UNIX_EPOCH;

use c10d_store::Snapshot;

use crate::identity::Identities;
use crate::index::Index;
use crate::job::Job;
use crate::launched::Launched;
use crate::parts::{groups, memberships, nodes, unknown_processes, waits};
use crate::ranks::ranks;
use crate::report::{Finding, Report, ReportState, milliseconds};
use crate::text;
use crate::why::{self, meetings};

/// Explains what the job waits for. `world_size` is the number of its ranks, if the caller knows it.
#[must_use]
pub fn explain(snapshot: &Snapshot, world_size: Option<usize>) -> Report {
    let index = Index::new(snapshot);
    let launched = Launched::new(&index);
    let who = Identities::new(&index, &launched);
    let job = Job::new(&index, &launched, &who, world_size);
    let (mut findings, is_stuck) = why::find(&job);
    let verdict = why::observed(&job);
    let state = match &verdict {
        Some(verdict) => why::combine(&job, verdict, &mut findings, is_stuck),
        None if is_stuck => ReportState::NoProgress,
        None => ReportState::Running,
    };
    if findings.is_empty() {
        let is_at_work = verdict.as_ref().is_some_and(|verdict| verdict.is_at_work);
        findings.extend(why::nothing_waits(&job, is_at_work));
    }
    let headline = headline(&job, &findings);
    findings.extend(why::connected_directly(&job));
    let started = snapshot
        .started
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Report {
        taken_unix_ms: started.map_or(0, |started| {
            milliseconds(started.saturating_add(snapshot.now))
        }),
        uptime_ms: milliseconds(snapshot.now),
        headline,
        is_stuck: state == ReportState::NoProgress,
        state,
        world_size: job.world_size,
        ranks: ranks(&job, &findings, verdict.as_ref()),
        unknown_processes: unknown_processes(&job),
        nodes: nodes(&job),
        groups: groups(&job),
        memberships: memberships(&job),
        waits: waits(&job),
        workers_stores: match meetings(&job).is_empty() {
            true => job.workers_stores.clone(),
            false => Vec::new(),
        },
        findings,
    }
}

fn headline(job: &Job<'_>, findings: &[Finding]) -> String {
    match findings.first() {
        Some(first) => first.text.clone(),
        None => meeting(job)
            .or_else(|| elsewhere(job))
            .unwrap_or_else(|| progress(job)),
    }
}

/// Which nodes have joined, while nodes meet.
fn meeting(job: &Job<'_>) -> Option<String> {
    let meetings = meetings(job);
    Some(format!("The nodes meet: {}.", meetings.first()?.text()))
}

/// Returns where the workers are, if they use another store.
fn elsewhere(job: &Job<'_>) -> Option<String> {
    let latest = job.workers_stores.first()?;
    Some(format!(
        "The workers of run \"{}\" use another store, {}. Their nodes only meet at this one.",
        latest.run_id, latest.address
    ))
}

/// Returns the progress of the job, while there is no problem.
fn progress(job: &Job<'_>) -> String {
    let connected = job
        .who
        .seen()
        .filter(|&rank| job.is_connected(rank))
        .count();
    let seen = job.who.seen().count();
    // Members of a group that takes others in may be more.
    match job.world_size.filter(|&size| connected <= size) {
        Some(size) if connected == 0 && seen >= size && size > 0 => {
            format!("All {} have left.", text::count(size, "rank"))
        }
        Some(size) => format!(
            "{connected} of {} are connected.",
            text::count(size, "rank")
        ),
        None if seen > 0 => format!("{} are connected.", text::count(connected, "rank")),
        None => {
            let unknown = (0..job.index.snapshot.connections.len())
                .filter(|&slot| job.index.process(slot).is_some())
                .count();
            format!(
                "Ranks have not joined a group yet; {} open.",
                match unknown {
                    1 => "1 connection is".to_owned(),
                    count => format!("{count} connections are"),
                }
            )
        }
    }
}
