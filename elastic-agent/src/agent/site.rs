//! The parts of a round that exist on this node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::event::{RoundRecord, StartedWorkers};
use super::group_link::GroupLink;
use crate::failure::ExitRecord;
use crate::progress::{Poller, ProgressSeen};
use crate::ranks::RankBlock;
use crate::relay::NodeRelay;
use crate::round::{RoundSummary, StuckWorkers};
use crate::watchdog::Watchdog;
use crate::worker::{GroupPlan, StopReport, WorkerOutcome, WorkerSlots};

/// The existing parts of the current round, from its preparation until it is reported.
#[derive(Debug, Default)]
pub(super) enum Site {
    #[default]
    Empty,
    Prepared(Box<Prepared>),
    Running(Box<Running>),
    Ended(Box<Ended>),
}

/// Everything except the processes.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) relay: Option<NodeRelay>,
    pub(super) ranks: RankBlock,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) plan: GroupPlan,
    pub(super) members: Option<GroupLink>,
}

/// The running workers, with everything that accompanies them.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) workers: WorkerSlots,
    pub(super) members: Option<GroupLink>,
    pub(super) due: Vec<(Instant, Due)>,
    pub(super) ranks: RankBlock,
    pub(super) relay: Option<NodeRelay>,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) progress: Option<Poller>,
    pub(super) started: StartedWorkers,
    pub(super) started_at: Instant,
    /// Whether the signal that begins the stop was sent.
    pub(super) is_stopping: bool,
    pub(super) first_write: FirstWrite,
}

/// An action that is due later, while the workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A new worker starts in the place of the dead worker with this local rank.
    Replacement(usize),
    /// The service is asked whether the workers are members.
    Members,
    /// Whether there is a first output or step after a restart.
    FirstSign,
    /// Workers are stopped that are still running although other workers have failed at the end of their program.
    Exits,
    /// The wait for the news that another node was lost is over.
    Loss,
}

/// The results of the workers.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) started: StartedWorkers,
    pub(super) started_at: Instant,
    pub(super) report: StopReport,
    /// The workers that died and were replaced.
    pub(super) replaced: Vec<WorkerOutcome>,
    pub(super) seen: ProgressSeen,
}

impl Running {
    /// How long after the start the first output or step was seen. Reads `/proc` for each worker.
    pub(super) fn first_sign(&mut self, program: &Path) -> Option<Duration> {
        let output = self.workers.first_output();
        let output = output.map(|at| at.saturating_duration_since(self.started_at));
        let step = self.progress.as_ref().and_then(|it| it.seen().first);
        let seen = output.into_iter().chain(step).min();
        // Output that goes to the terminal does not pass through this process.
        seen.or_else(|| {
            let mut pids = self.workers.pids().into_iter();
            let has_written = pids.any(|pid| self.first_write.has_written(pid, program));
            has_written.then(|| self.started_at.elapsed())
        })
    }

    /// The workers, which have made no progress for this long.
    pub(super) fn stuck(&self, silent_for: Duration) -> StuckWorkers {
        let seen = self.progress.as_ref().map(Poller::seen).unwrap_or_default();
        let workers = &self.started.workers;
        StuckWorkers {
            silent_for,
            steps: workers
                .iter()
                .zip(&seen.steps)
                .map(|(worker, step)| (worker.rank, *step))
                .collect(),
            // It follows the steps of the workers.
            shared_step: seen.steps.get(workers.len()).copied().flatten(),
        }
    }
}

impl Site {
    /// Schedules an action for later. It is dropped if the workers are no longer running at that time.
    pub(super) fn remind(&mut self, due: Due, pause: Duration) {
        if let Self::Running(running) = self {
            running.due.push((Instant::now() + pause, due));
        }
    }

    /// A worker of this rank that has exited, as the other nodes are told of it.
    pub(super) fn exit_record(&mut self, rank: usize, host: &str) -> Option<ExitRecord> {
        let outcome = match self {
            Self::Running(running) => running.workers.outcome_of(rank)?,
            Self::Ended(ended) => {
                let mut outcomes = ended.report.outcomes.iter();
                outcomes.find(|it| it.rank == rank)?.clone()
            }
            Self::Empty | Self::Prepared(_) => return None,
        };
        Some(ExitRecord::of(&outcome, host))
    }

    /// Returns the next action, and when it is due.
    pub(super) fn next_due(&self) -> Option<(Instant, Due)> {
        match self {
            Self::Running(running) => running.due.iter().min().copied(),
            _ => None,
        }
    }

    pub(super) fn remove_due(&mut self, done: Due) {
        if let Self::Running(running) = self {
            running.due.retain(|(_, due)| *due != done);
        }
    }

    /// The record of a round that is over; nothing of it is left here.
    pub(super) fn record(&mut self, summary: RoundSummary, began_at: SystemTime) -> RoundRecord {
        let ended = match std::mem::take(self) {
            Self::Ended(ended) => Some(ended),
            _ => None,
        };
        let (started, report, seen) = match ended {
            None => (None, StopReport::default(), ProgressSeen::default()),
            Some(mut ended) => {
                let started = Some((ended.started, ended.started_at));
                ended.report.outcomes.splice(0..0, ended.replaced);
                (started, ended.report, ended.seen)
            }
        };
        let first_output = report.first_output.zip(started.as_ref());
        RoundRecord {
            first_output: first_output
                .map(|(first, (_, started_at))| first.saturating_duration_since(*started_at)),
            started: started.map(|(started, _)| started),
            began_at,
            cause: summary.cause,
            ending: summary.ending,
            reason: summary.reason,
            phases: summary.phases,
            first_progress: seen.first,
            last_progress: seen.last,
            last_step: seen.round.step,
            outcomes: report.outcomes,
            restarts: summary.restarts,
            restarts_left: summary.restarts_left,
        }
    }
}

/// The system's counts of what processes have written, of Linux only.
#[derive(Debug, Default)]
pub(super) struct FirstWrite {
    /// Workers that began as a script, such as a shim of pyenv, and the bytes that the script had written.
    shims: BTreeMap<u32, Option<u64>>,
}

impl FirstWrite {
    /// Whether a worker has written to any file. An import writes only when it compiles a module for the first time. `false` if
    /// the system does not report it.
    fn has_written(&mut self, pid: u32, program: &Path) -> bool {
        let Some(written) = written(pid) else {
            return false;
        };
        let runs = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if is_python(program) && !is_python(&runs) {
            self.shims.insert(pid, None);
            return false;
        }
        match self.shims.get_mut(&pid) {
            Some(of_shim) => written > *of_shim.get_or_insert(written),
            None => written > 0,
        }
    }
}

fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"python")
}

/// The bytes that a process has written so far.
fn written(pid: u32) -> Option<u64> {
    let counts = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let mut lines = counts.lines();
    let written = lines.find_map(|line| line.strip_prefix("wchar: "));
    written?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_output_of_a_script_that_starts_python_does_not_count() {
        let mut child = Command::new("sh")
            .args(["-c", "echo shim; read line; echo out; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "shim");
        let (pid, program) = (child.id(), Path::new("train"));
        assert!(FirstWrite::default().has_written(pid, program));
        let mut writes = FirstWrite::default();
        assert!(!writes.has_written(pid, Path::new("/v/bin/python3")));
        // As if Python ran from now on.
        assert!(!writes.has_written(pid, program));
        assert!(!writes.has_written(pid, program));
        input.write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "out");
        assert!(writes.has_written(pid, program));
        drop(input);
        child.wait().unwrap();
        assert!(!writes.has_written(pid, program));
    }
}
