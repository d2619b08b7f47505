//! Simulates the scheduler of a cluster: restarts exited processes, and resubmits a job after all of its
//! processes have exited.

/// The time from the exit of a process to its next start.
const RESTART_MS: u64 = 2000;

/// A supervised process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Due {
        at_ms: u64,
    },
    Running,
    /// The process has done its work.
    Succeeded,
}

/// Times are milliseconds of any clock.
#[derive(Debug)]
pub(super) struct Scheduler {
    states: Vec<State>,
    /// The number of the first processes, which make up the job.
    launchers: usize,
    /// The number of the job's submission.
    submission: usize,
}

impl Scheduler {
    /// All start at once.
    pub(super) fn new(processes: usize, launchers: usize) -> Self {
        Self {
            states: vec![State::Due { at_ms: 0 }; processes],
            launchers,
            submission: 0,
        }
    }

    pub(super) const fn submission(&self) -> usize {
        self.submission
    }

    pub(super) fn is_running(&self, index: usize) -> bool {
        self.states[index] == State::Running
    }

    /// The processes to start now.
    pub(super) fn start(&mut self, now_ms: u64) -> Vec<usize> {
        let mut due = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            if matches!(state, State::Due { at_ms } if *at_ms <= now_ms) {
                *state = State::Running;
                due.push(index);
            }
        }
        due
    }

    /// A process has ended, or could not start. If it is the last launcher, the job is submitted again.
    pub(super) fn ended(&mut self, index: usize, now_ms: u64, has_succeeded: bool) {
        let due = State::Due {
            at_ms: now_ms + RESTART_MS,
        };
        self.states[index] = if has_succeeded { State::Succeeded } else { due };
        let launchers = &mut self.states[..self.launchers];
        let is_last =
            index < self.launchers && launchers.iter().all(|it| matches!(it, State::Due { .. }));
        if is_last {
            for index in 0..self.launchers {
                self.hold(index, now_ms + RESTART_MS);
            }
            self.submission += 1;
        }
    }

    /// Delays the start of a process on an absent host until the host is back.
    pub(super) fn hold(&mut self, index: usize, until_ms: u64) {
        if let State::Due { at_ms } = &mut self.states[index] {
            *at_ms = (*at_ms).max(until_ms);
        }
    }

    /// Whether all launchers have succeeded.
    pub(super) fn is_over(&self) -> bool {
        let mut launchers = self.states[..self.launchers].iter();
        launchers.all(|it| *it == State::Succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_starts_again_two_seconds_after_its_end() {
        let mut scheduler = Scheduler::new(3, 2);
        assert_eq!(scheduler.start(0), [0, 1, 2]);
        scheduler.ended(1, 1000, false);
        scheduler.ended(2, 1500, false);
        assert!(scheduler.start(2999).is_empty());
        assert_eq!(scheduler.start(3000), [1]);
        scheduler.hold(2, 6000);
        assert!(scheduler.start(5999).is_empty());
        assert_eq!(scheduler.start(6000), [2]);
        assert_eq!(scheduler.submission(), 0);
    }

    #[test]
    fn a_job_without_launchers_is_submitted_again_as_a_whole() {
        let mut scheduler = Scheduler::new(3, 2);
        scheduler.start(0);
        scheduler.ended(0, 100, false);
        scheduler.ended(1, 1000, false);
        assert_eq!(scheduler.submission(), 1);
        assert!(scheduler.start(2999).is_empty());
        assert_eq!(scheduler.start(3000), [0, 1]);
    }

    #[test]
    fn a_host_that_is_away_is_waited_for_when_a_job_is_submitted_again() {
        let mut scheduler = Scheduler::new(2, 2);
        scheduler.start(0);
        scheduler.ended(0, 100, false);
        scheduler.hold(0, 9000);
        scheduler.ended(1, 1000, false);
        assert_eq!(scheduler.start(8999), [1]);
        assert_eq!(scheduler.start(9000), [0]);
    }

    #[test]
    fn a_launcher_that_has_succeeded_does_not_start_again() {
        let mut scheduler = Scheduler::new(2, 2);
        scheduler.start(0);
        scheduler.ended(0, 100, true);
        assert!(!scheduler.is_over());
        scheduler.ended(1, 200, false);
        assert_eq!(
            (scheduler.start(9000), scheduler.submission()),
            (vec![1], 0)
        );
        scheduler.ended(1, 9100, true);
        assert!(scheduler.is_over());
    }
}
