//! Computes how long a worker has been quiet, from readings of its CPU time and I/O. Pure: times are counted from any
//! moment.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A waiting main thread uses less than this part of a CPU, in percent.
const QUIET_PERCENT_MAX: u64 = 1;

/// Descendants and other threads that use less than this part of a CPU make no progress, in percent: PyTorch's own threads
/// poll.
const IDLE_PERCENT_MAX: u64 = 10;

/// Less I/O than this is no progress, in bytes per second: a thread that logs or reports metrics does less, and so does
/// a shell that starts `sleep` ten times a second.
const IDLE_IO_BYTES_MAX: u64 = 32 << 10;

/// CPU time is counted in ticks of 10 ms, and a worker may log a line at any time.
const QUIET_SLACK_MS: u64 = 20;
const IDLE_SLACK_MS: u64 = 100;
const IDLE_IO_SLACK_BYTES: u64 = 16 << 10;

/// A main thread that waits in a system call does not run at all. The smallest step of training takes some 200
/// microseconds.
const BLOCKED_RUN_US_MAX: u64 = 20;

/// The percentages of the last seconds are counted from the newest reading that is at least this old.
const RECENT: Duration = Duration::from_millis(1500);

/// The most readings that are kept: 5 min of the usual interval.
const READINGS_MAX: usize = 64;

/// The counters of a worker in /proc at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The CPU time of the main thread of the observed process, in milliseconds.
    pub(super) main_cpu_ms: u64,
    /// The run time of the main thread in microseconds; `None` if the kernel does not count it.
    pub(super) main_run_us: Option<u64>,
    /// When the processes were read, in milliseconds since the system started.
    pub(super) at_ms: u64,
    /// The worker's processes by their ids.
    pub(super) processes: BTreeMap<u32, ProcessCounters>,
}

/// The CPU time and the bytes of a process since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessCounters {
    /// When it started, in milliseconds since the system started.
    pub(super) started_ms: u64,
    pub(super) cpu_ms: u64,
    /// The bytes that it has read and written.
    pub(super) io_bytes: u64,
}

impl ProcessCounters {
    /// Returns the counters at the reading of `at_ms`, which found this process, another with its id, or neither.
    fn before(&self, found: Option<&Self>, at_ms: u64) -> Self {
        let is_same = |it: &&Self| it.started_ms == self.started_ms;
        match found.filter(is_same) {
            Some(found) => *found,
            None if self.started_ms >= at_ms => Self::default(),
            // Not all processes of a worker with many processes are read each time. The earlier counters are unknown.
            None => *self,
        }
    }
}

/// The readings of one worker.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// The last reading.
    last: Option<(Duration, Reading)>,
    /// The usage in the intervals between readings, the newest last.
    intervals: VecDeque<Interval>,
    /// The time for which the worker was quiet and idle when the oldest of these intervals began.
    quiet_before: Duration,
    idle_before: Duration,
    blocked: Option<Duration>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    lasted: Duration,
    main_ms: u64,
    others_ms: u64,
    io_bytes: u64,
    /// Whether the worker reported a step.
    has_step: bool,
}

/// The recent activity of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// The time for which the main thread has used less than 1 % of a CPU.
    pub(super) quiet: Duration,
    /// The time for which the main thread has not run, so that its stack is unchanged; `None` if the kernel does not
    /// count it.
    pub(super) blocked: Option<Duration>,
    /// The time for which the worker has neither computed elsewhere nor read or written.
    pub(super) idle: Duration,
    /// The CPU time of the main thread in the last seconds, in percent of a CPU.
    pub(super) main_percent: u32,
    /// The CPU time of all other threads and processes in the last seconds, in percent of a CPU.
    pub(super) others_percent: u32,
    /// The bytes that were read and written in the last seconds, per second.
    pub(super) io_bytes_per_second: u64,
}

impl Activity {
    /// Takes a reading of `now`, which is later than the last one.
    pub(super) fn note(&mut self, now: Duration, reading: Reading) {
        let Some((at, before)) = self.last.replace((now, reading)) else {
            return;
        };
        let Some((_, after)) = &self.last else {
            return;
        };
        let interval = Interval::between(now.saturating_sub(at), &before, after);
        self.blocked = before
            .main_run_us
            .zip(after.main_run_us)
            .map(
                |(before, after)| match after.saturating_sub(before) <= BLOCKED_RUN_US_MAX {
                    true => self.blocked.unwrap_or_default() + interval.lasted,
                    false => Duration::ZERO,
                },
            );
        self.intervals.push_back(interval);
        if self.intervals.len() > READINGS_MAX
            && let Some(oldest) = self.intervals.pop_front()
        {
            self.quiet_before = continued(self.quiet_before, &oldest, oldest.is_quiet());
            self.idle_before = continued(self.idle_before, &oldest, oldest.is_idle());
        }
    }

    /// A step that the worker has reported is progress.
    pub(super) fn note_step(&mut self) {
        self.idle_before = Duration::ZERO;
        if let Some(last) = self.intervals.back_mut() {
            last.has_step = true;
        }
    }

    /// Returns the activity of the worker up to the last reading.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage {
            blocked: self.blocked,
            quiet: self.lasted(self.quiet_before, Interval::is_quiet),
            idle: self.lasted(self.idle_before, Interval::is_idle),
            ..Usage::default()
        };
        let mut recent = Interval::default();
        for interval in self.intervals.iter().rev() {
            recent = recent.with(interval);
            if recent.lasted >= RECENT {
                break;
            }
        }
        usage.main_percent = percent(recent.main_ms, recent.lasted);
        usage.others_percent = percent(recent.others_ms, recent.lasted);
        let ms = milliseconds(recent.lasted).max(1);
        usage.io_bytes_per_second = recent.io_bytes.saturating_mul(1000) / ms;
        usage
    }

    /// The longest time up to the last reading for which `holds`: in the whole of each later part of it, and in each
    /// interval alone.
    fn lasted(&self, before: Duration, holds: impl Fn(&Interval) -> bool) -> Duration {
        let mut sum = Interval::default();
        for interval in self.intervals.iter().rev() {
            let longer = sum.with(interval);
            if !holds(interval) || !holds(&longer) {
                return sum.lasted;
            }
            sum = longer;
        }
        sum.lasted + before
    }
}

fn continued(before: Duration, interval: &Interval, holds: bool) -> Duration {
    if holds {
        before + interval.lasted
    } else {
        Duration::ZERO
    }
}

impl Interval {
    fn between(lasted: Duration, before: &Reading, after: &Reading) -> Self {
        let main_ms = after.main_cpu_ms.saturating_sub(before.main_cpu_ms);
        let (mut all_ms, mut io_bytes) = (0u64, 0u64);
        for (pid, process) in &after.processes {
            let then = process.before(before.processes.get(pid), before.at_ms);
            let (cpu_ms, io) = (
                process.cpu_ms.saturating_sub(then.cpu_ms),
                process.io_bytes.saturating_sub(then.io_bytes),
            );
            all_ms = all_ms.saturating_add(cpu_ms);
            io_bytes = io_bytes.saturating_add(io);
        }
        Self {
            lasted,
            main_ms,
            others_ms: all_ms.saturating_sub(main_ms),
            io_bytes,
            has_step: false,
        }
    }

    /// This and an interval beside it.
    fn with(self, other: &Self) -> Self {
        Self {
            lasted: self.lasted + other.lasted,
            main_ms: self.main_ms + other.main_ms,
            others_ms: self.others_ms + other.others_ms,
            io_bytes: self.io_bytes.saturating_add(other.io_bytes),
            has_step: self.has_step || other.has_step,
        }
    }

    fn is_quiet(&self) -> bool {
        let allowed = milliseconds(self.lasted) * QUIET_PERCENT_MAX + QUIET_SLACK_MS * 100;
        self.main_ms * 100 < allowed
    }

    fn is_idle(&self) -> bool {
        let ms = milliseconds(self.lasted);
        !self.has_step
            && self.others_ms * 100 < ms * IDLE_PERCENT_MAX + IDLE_SLACK_MS * 100
            && self.io_bytes < ms * IDLE_IO_BYTES_MAX / 1000 + IDLE_IO_SLACK_BYTES
    }
}

fn percent(used_ms: u64, of: Duration) -> u32 {
    let ms = milliseconds(of).max(1);
    u32::try_from((used_ms * 100 + ms / 2) / ms).unwrap_or(u32::MAX)
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::launcher::observer::activity::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A worker with one child whose counters are read every second.
    struct Worker {
        activity: Activity,
        now: Duration,
        reading: Reading,
    }

    impl Worker {
        fn new() -> Self {
            let mut reading = Reading::default();
            reading.processes.insert(10, ProcessCounters::default());
            let mut worker = Self {
                activity: Activity::default(),
                now: Duration::ZERO,
                reading,
            };
            worker.activity.note(worker.now, worker.reading.clone());
            worker
        }

        fn run(&mut self, seconds: u64, main_ms: u64, others_ms: u64, io_bytes: u64) -> Usage {
            for _ in 0..seconds {
                self.now += SECOND;
                self.reading.main_cpu_ms += main_ms;
                let process = self.reading.processes.get_mut(&10).unwrap();
                process.cpu_ms += main_ms + others_ms;
                process.io_bytes += io_bytes;
                self.reading.at_ms = milliseconds(self.now);
                self.activity.note(self.now, self.reading.clone());
            }
            self.activity.usage()
        }
    }

    #[test]
    fn a_worker_is_quiet_from_its_last_work_on() {
        let mut worker = Worker::new();
        let busy = worker.run(20, 990, 10, 0);
        assert_eq!((busy.quiet, busy.main_percent), (Duration::ZERO, 99));
        let quiet = worker.run(30, 0, 0, 0);
        assert_eq!((quiet.quiet, quiet.main_percent), (30 * SECOND, 0));
        // Polls of a DataLoader and single ticks do not count.
        let polls = worker.run(30, 9, 0, 0);
        assert_eq!(polls.quiet, 60 * SECOND);
        // Longer than all readings that are kept.
        assert_eq!(worker.run(300, 0, 0, 0).quiet, 360 * SECOND);
        assert_eq!(worker.run(1, 500, 0, 0).quiet, Duration::ZERO);
        assert_eq!(worker.run(100, 0, 0, 0).quiet, 100 * SECOND);
    }

    #[test]
    fn work_of_other_threads_and_io_are_progress() {
        let mut worker = Worker::new();
        assert_eq!(worker.run(10, 0, 500, 0).idle, Duration::ZERO);
        assert_eq!(worker.run(10, 0, 500, 0).others_percent, 50);
        assert_eq!(worker.run(10, 0, 20, 100).idle, 10 * SECOND);
        let writing = worker.run(5, 0, 0, 1 << 20);
        assert_eq!((writing.idle, writing.quiet), (Duration::ZERO, 35 * SECOND));
        assert_eq!(writing.io_bytes_per_second, 1 << 20);
        assert_eq!(worker.run(8, 0, 0, 0).idle, 8 * SECOND);
        worker.activity.note_step();
        let stepped = worker.activity.usage();
        assert_eq!(stepped.idle, Duration::ZERO);
        assert_eq!(stepped.io_bytes_per_second, 0);
        assert_eq!(worker.run(3, 0, 0, 0).idle, 3 * SECOND);
    }

    #[test]
    fn a_main_thread_that_runs_for_a_moment_is_quiet_and_not_blocked() {
        let mut worker = Worker::new();
        assert_eq!(worker.run(5, 0, 0, 0).blocked, None);
        worker.reading.main_run_us = Some(0);
        worker.run(1, 0, 0, 0);
        assert_eq!(worker.run(20, 0, 0, 0).blocked, Some(20 * SECOND));
        worker.reading.main_run_us = Some(200);
        let stepped = worker.run(1, 0, 0, 0);
        assert_eq!(
            (stepped.quiet, stepped.blocked),
            (27 * SECOND, Some(Duration::ZERO))
        );
        assert_eq!(worker.run(3, 0, 0, 0).blocked, Some(3 * SECOND));
    }

    #[test]
    fn a_new_process_counts_and_one_that_has_ended_takes_nothing_back() {
        let mut worker = Worker::new();
        worker.run(10, 0, 0, 0);
        worker.reading.processes.insert(11, used_since(10_000));
        assert_eq!(worker.run(1, 0, 0, 0).idle, Duration::ZERO);
        worker.reading.processes.remove(&11);
        assert_eq!(worker.run(5, 0, 0, 0).idle, 5 * SECOND);
        // Another process with the same id.
        worker.reading.processes.insert(11, used_since(16_000));
        assert_eq!(worker.run(1, 0, 0, 0).idle, Duration::ZERO);
        worker.reading.processes.insert(11, used_since(17_000));
        assert_eq!(worker.run(1, 0, 0, 0).idle, Duration::ZERO);
    }

    #[test]
    fn an_old_process_that_was_not_read_before_is_not_new() {
        let mut worker = Worker::new();
        worker.run(10, 0, 0, 0);
        worker.reading.processes.insert(11, used_since(9000));
        let usage = worker.run(1, 0, 0, 0);
        assert_eq!((usage.idle, usage.others_percent), (11 * SECOND, 0));
        let process = worker.reading.processes.get_mut(&11).unwrap();
        process.cpu_ms += 500;
        let usage = worker.run(1, 0, 0, 0);
        assert_eq!((usage.idle, usage.others_percent), (Duration::ZERO, 25));
    }

    /// A process that started at this time, and has computed for a while.
    fn used_since(started_ms: u64) -> ProcessCounters {
        ProcessCounters {
            started_ms,
            cpu_ms: 800,
            io_bytes: 1 << 20,
        }
    }
}
