//! The workers of one round in groups: one group, whose workers end together, or one for each worker that may be replaced.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use rustix::process::Signal;

use super::group::{StopReport, WorkerGroup};
use super::outcome::WorkerOutcome;
use super::process_group::KillSwitch;

/// The groups of a round. Dropping it kills their processes.
#[derive(Debug)]
pub(crate) struct WorkerSlots {
    slots: Vec<Slot>,
    /// The replaced workers.
    replaced: Vec<WorkerOutcome>,
}

#[derive(Debug)]
enum Slot {
    Runs(Box<WorkerGroup>),
    Ended(Box<StopReport>),
}

impl WorkerSlots {
    pub(crate) fn new(groups: Vec<WorkerGroup>) -> Self {
        let slots = groups.into_iter().map(|it| Slot::Runs(Box::new(it)));
        Self {
            slots: slots.collect(),
            replaced: Vec::new(),
        }
    }

    /// The process ids of the workers that have not ended apart, in the order of their slots.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let running = self.slots.iter().filter_map(Slot::group);
        running.flat_map(WorkerGroup::pids).collect()
    }

    pub(crate) fn are_forked(&self) -> bool {
        let mut groups = self.slots.iter().filter_map(Slot::group);
        groups.all(WorkerGroup::are_forked)
    }

    /// When the first output of a worker passed through this process.
    pub(crate) fn first_output(&self) -> Option<Instant> {
        let groups = self.slots.iter().filter_map(Slot::group);
        groups.filter_map(WorkerGroup::first_output).min()
    }

    /// Sends a signal, like [`WorkerGroup::signal`].
    pub(crate) fn signal(&mut self, signal: Signal) {
        self.groups().for_each(|group| group.signal(signal));
    }

    /// Kills the worker of this slot if it runs.
    pub(crate) fn kill(&mut self, slot: usize) {
        if let Some(Slot::Runs(group)) = self.slots.get_mut(slot) {
            group.signal(Signal::KILL);
        }
    }

    /// Whether the worker of this slot has not been ended.
    pub(crate) fn runs(&self, slot: usize) -> bool {
        matches!(self.slots.get(slot), Some(Slot::Runs(_)))
    }

    /// Returns the outcome of a worker, like [`WorkerGroup::outcome_of`].
    pub(crate) fn outcome_of(&mut self, rank: usize) -> Option<WorkerOutcome> {
        self.slots.iter_mut().find_map(|slot| match slot {
            Slot::Runs(group) => group.outcome_of(rank),
            Slot::Ended(report) => report.outcomes.iter().find(|it| it.rank == rank).cloned(),
        })
    }

    /// Ends what the worker of this slot has left behind, as [`WorkerGroup::stop`].
    pub(crate) fn end(
        &mut self,
        slot: usize,
        grace: Duration,
        kill_switch: &KillSwitch,
    ) -> Option<&StopReport> {
        let slot = self.slots.get_mut(slot)?;
        let before = std::mem::replace(slot, Slot::Ended(Box::default()));
        *slot = match before {
            Slot::Runs(group) => {
                Slot::Ended(Box::new(group.stop(Signal::TERM, grace, kill_switch)))
            }
            ended @ Slot::Ended(_) => ended,
        };
        match slot {
            Slot::Ended(report) => Some(report),
            Slot::Runs(_) => None,
        }
    }

    /// Puts a group in the place of a group that has [ended](Self::end).
    pub(crate) fn replace(&mut self, slot: usize, group: WorkerGroup) {
        let Some(slot) = self.slots.get_mut(slot) else {
            return;
        };
        if let Slot::Ended(report) = std::mem::replace(slot, Slot::Runs(Box::new(group))) {
            self.replaced.extend(report.outcomes.into_iter().map(kept));
        }
    }

    /// Sends the signal that begins a stop, like [`WorkerGroup::send_stop`].
    pub(crate) fn send_stop(&mut self, signal: Signal) {
        self.groups().for_each(|group| group.send_stop(signal));
    }

    /// Stops all groups, as [`WorkerGroup::stop`], within one grace period. Also returns the workers that were replaced,
    /// which are not in the report.
    pub(crate) fn stop(
        mut self,
        signal: Signal,
        grace: Option<Duration>,
        kill_switch: &KillSwitch,
    ) -> (StopReport, Vec<WorkerOutcome>) {
        self.send_stop(signal);
        let deadline = Deadline::after(Instant::now(), grace);
        let mut all = StopReport::default();
        for slot in self.slots {
            let report = match slot {
                Slot::Runs(group) => {
                    group.stop(signal, deadline.remaining(Instant::now()), kill_switch)
                }
                Slot::Ended(report) => *report,
            };
            all.outcomes.extend(report.outcomes);
            all.killed.extend(report.killed);
            all.abandoned.extend(report.abandoned);
            let outputs = [all.first_output, report.first_output];
            all.first_output = outputs.into_iter().flatten().min();
        }
        all.sort();
        (all, self.replaced)
    }

    fn groups(&mut self) -> impl Iterator<Item = &mut WorkerGroup> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Runs(group) => Some(&mut **group),
            Slot::Ended(_) => None,
        })
    }
}

/// Drops the last words of a replaced worker: they were reported, and a job may replace workers for months.
fn kept(outcome: WorkerOutcome) -> WorkerOutcome {
    WorkerOutcome {
        stderr_tail: Vec::new(),
        ..outcome
    }
}

impl Slot {
    fn group(&self) -> Option<&WorkerGroup> {
        match self {
            Self::Runs(group) => Some(group),
            Self::Ended(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::{WorkerOutcome, WorkerSlots, kept, *};
    use crate::worker::ExitKind;

    #[test]
    fn a_launcher_keeps_few_bytes_of_each_replaced_worker() {
        let mut slots = WorkerSlots::new(Vec::new());
        let died = |pid| WorkerOutcome {
            error_file: Some(format!("/tmp/job/attempt_0/1/error-{pid}.json").into()),
            ..WorkerOutcome::for_test(9, ExitKind::Code(1), 0, &"x".repeat(4096))
        };
        slots.replaced.extend((1..=200).map(died).map(kept));
        let bytes = |it: &WorkerOutcome| {
            let path = it
                .error_file
                .as_ref()
                .map_or(0, |path| path.as_os_str().len());
            size_of::<WorkerOutcome>() + path + it.stderr_tail.capacity()
        };
        let all: usize = slots.replaced.iter().map(bytes).sum();
        assert!(all < 200 * 300, "{all} bytes of 200 replaced workers");
    }

    #[test]
    fn exits_of_one_millisecond_are_in_the_order_of_their_ranks() {
        let outcome = |rank, at_us, was_stopped| WorkerOutcome {
            ended_at: SystemTime::UNIX_EPOCH + Duration::from_micros(at_us),
            was_stopped,
            ..WorkerOutcome::for_test(rank, ExitKind::Code(3), 0, "")
        };
        let mut report = StopReport {
            outcomes: vec![
                outcome(2, 7100, false),
                outcome(1, 7900, false),
                outcome(0, 7950, true),
                outcome(3, 6900, false),
            ],
            ..StopReport::default()
        };
        report.sort();
        let ranks: Vec<usize> = report.outcomes.iter().map(|end| end.rank).collect();
        assert_eq!(ranks, [3, 1, 2, 0]);
    }
}
