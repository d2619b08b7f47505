//! When the stacks of a node's workers are read, and which samples are announced. Pure: times are counted from any
//! moment.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use c10d_inspect::AnnouncedSample;
use c10d_inspect::stacks::Stacks;

use crate::launcher::observer::activity::{Activity, Reading, milliseconds};
use crate::launcher::observer::observations::Observations;
use crate::launcher::observer::readings::still_unacknowledged;
use crate::launcher::processes::TcpSocket;

/// How often the counters of workers are read. A shorter time until an explanation needs more readings.
const INTERVAL: Duration = Duration::from_secs(5);
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const READINGS_UNTIL_EXPLAINED: u32 = 5;

/// Two observations of a rank are 5 s apart, so that a rank which only passes is not named. Timers are not exact.
const APART_MIN: Duration = Duration::from_millis(4500);

/// An older observation confirms nothing.
const APART_MAX: Duration = Duration::from_secs(15);

/// For how long stacks are read after a request.
const ASKED_FOR: Duration = Duration::from_secs(15);

/// The shortest time between two readings of stacks on request.
const ASKED_INTERVAL: Duration = Duration::from_secs(1);

/// The observations of a node's workers.
#[derive(Debug)]
pub(super) struct Sampling {
    /// The time without progress until a job is explained; `None` for never.
    after: Option<Duration>,
    workers: HashMap<u32, Worker>,
    progress: Option<Duration>,
    asked: Option<Duration>,
    /// When stacks were read last.
    sampled: Option<Duration>,
    /// Whether the last announcement had samples.
    was_announced: bool,
}

#[derive(Debug, Default)]
struct Worker {
    observed: u32,
    activity: Activity,
    state: Option<char>,
    /// The samples of the last 15 s, the newest last.
    samples: VecDeque<Sample>,
}

/// The result of reading the stacks of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) stacks: Option<Stacks>,
    /// The reason why there are no stacks.
    pub(super) error: Option<String>,
    pub(super) waits_in: Option<String>,
    pub(super) system_call: Option<String>,
    pub(super) command_line: Option<String>,
    pub(super) dead_children: Vec<u32>,
    /// The connections whose data has not been acknowledged.
    pub(super) unacknowledged: Vec<TcpSocket>,
}

/// A worker as the announcer has it, with a reading of its counters.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) pid: u32,
    pub(super) observed: u32,
    /// `None` if the observed process has exited.
    pub(super) reading: Option<(Reading, char)>,
}

impl Sampling {
    pub(super) fn new(after: Option<Duration>) -> Self {
        Self {
            after,
            workers: HashMap::new(),
            progress: None,
            asked: None,
            sampled: None,
            was_announced: false,
        }
    }

    /// How often the counters are read.
    pub(super) fn interval(&self) -> Duration {
        let after = self.after.unwrap_or(INTERVAL * READINGS_UNTIL_EXPLAINED);
        (after / READINGS_UNTIL_EXPLAINED).clamp(INTERVAL_MIN, INTERVAL)
    }

    /// Takes the running workers at `now`. `progress` is when a worker last reported a step, by another clock. It
    /// counts for all workers, because often one rank reports for all ranks.
    pub(super) fn note(&mut self, now: Duration, seen: Vec<Seen>, progress: Option<Duration>) {
        let running: HashSet<u32> = seen.iter().map(|worker| worker.pid).collect();
        self.workers.retain(|pid, _| running.contains(pid));
        for Seen {
            pid,
            observed,
            reading,
        } in seen
        {
            let worker = self.workers.entry(pid).or_default();
            if worker.observed != observed {
                *worker = Worker {
                    observed,
                    ..Worker::default()
                };
            }
            worker.state = reading.as_ref().map(|(_, state)| *state);
            if let Some((reading, _)) = reading {
                worker.activity.note(now, reading);
            }
        }
        if self.progress != progress {
            self.progress = progress;
            for worker in self.workers.values_mut() {
                worker.activity.note_step();
            }
        }
    }

    /// Notes a request. Returns whether the workers are to be read now.
    pub(super) fn note_asked(&mut self, now: Duration) -> bool {
        self.asked = Some(now);
        self.sampled.is_none_or(|at| now >= at + ASKED_INTERVAL)
    }

    /// Returns whether stacks are to be read now.
    pub(super) fn is_due(&self, now: Duration, is_asked_now: bool) -> bool {
        let is_wanted = self.is_wanted(now);
        let pause = if is_asked_now {
            ASKED_INTERVAL
        } else {
            APART_MIN
        };
        is_wanted && self.sampled.is_none_or(|at| now >= at + pause)
    }

    /// Returns the processes to read, as pairs of a worker and its observed process.
    pub(super) fn targets(&self) -> Vec<(u32, u32)> {
        let mut targets: Vec<_> = self
            .workers
            .iter()
            .map(|(pid, worker)| (*pid, worker.observed))
            .collect();
        targets.sort_unstable();
        targets
    }

    /// Takes the samples of [`targets`](Self::targets), in their order.
    pub(super) fn note_samples(&mut self, now: Duration, samples: Vec<(u32, Sample)>) {
        self.sampled = Some(now);
        for (pid, sample) in samples {
            let Some(worker) = self.workers.get_mut(&pid) else {
                continue;
            };
            worker.samples.push_back(sample);
            worker.samples.retain(|it| now <= it.at + APART_MAX);
        }
    }

    /// Returns the observations to announce at `now`; `None` if there are none, and there were none before.
    pub(super) fn announced(&mut self, now: Duration) -> Option<Observations> {
        let is_wanted = self.is_wanted(now);
        let was_announced = std::mem::replace(&mut self.was_announced, is_wanted);
        if !is_wanted {
            for worker in self.workers.values_mut() {
                worker.samples.clear();
            }
            self.sampled = None;
            return was_announced.then(Observations::default);
        }
        let mut found = Observations::default();
        for (pid, worker) in &self.workers {
            if let Some(sample) = worker.announced(now, &mut found.stacks) {
                found.samples.insert(*pid, sample);
            }
        }
        found.shorten();
        Some(found)
    }

    /// Returns whether observations are announced: after a request, or while a worker is quiet.
    pub(super) fn is_wanted(&self, now: Duration) -> bool {
        self.is_asked(now) || self.any_quiet()
    }

    fn is_asked(&self, now: Duration) -> bool {
        self.asked.is_some_and(|at| now < at + ASKED_FOR)
    }

    /// Returns whether a worker has been quiet for long enough that the job may make no progress.
    fn any_quiet(&self) -> bool {
        let Some(after) = self.after else {
            return false;
        };
        let mut workers = self.workers.values();
        workers.any(|worker| worker.activity.usage().quiet >= (after / 2).max(INTERVAL_MIN))
    }
}

impl Worker {
    /// `None` if the worker was not sampled, or its counters cannot be read.
    fn announced(&self, now: Duration, stacks: &mut Vec<Stacks>) -> Option<AnnouncedSample> {
        let sample = self.samples.back()?;
        self.state?;
        let usage = self.activity.usage();
        let mut place_of = |sample: &Sample| {
            let wanted = sample.stacks.as_ref()?;
            let known = stacks.iter().position(|it| it == wanted);
            Some(known.unwrap_or_else(|| {
                stacks.push(wanted.clone());
                stacks.len() - 1
            }))
        };
        let mut announced = AnnouncedSample::default();
        announced.stacks = place_of(sample);
        let mut before = self.samples.iter().rev();
        // A sample whose stacks could not be read in time confirms no stacks, but one before it may.
        let before = before.find(|it| {
            sample.at >= it.at + APART_MIN && (it.stacks.is_some() || sample.stacks.is_none())
        });
        announced.stacks_before = before.and_then(place_of);
        if let Some(before) = before {
            announced.unacknowledged =
                still_unacknowledged(&sample.unacknowledged, &before.unacknowledged);
        }
        announced.taken_ago_ms = milliseconds(now.saturating_sub(sample.at));
        announced.pid = self.observed;
        announced.quiet_ms = milliseconds(usage.quiet);
        announced.blocked_ms = usage.blocked.map(milliseconds);
        announced.idle_ms = milliseconds(usage.idle);
        announced.cpu_percent = usage.main_percent;
        announced.others_cpu_percent = usage.others_percent;
        announced.io_bytes_per_second = usage.io_bytes_per_second;
        announced.state = self.state;
        announced.waits_in.clone_from(&sample.waits_in);
        announced.system_call.clone_from(&sample.system_call);
        announced.command_line.clone_from(&sample.command_line);
        announced.error.clone_from(&sample.error);
        announced.dead_children.clone_from(&sample.dead_children);
        Some(announced)
    }
}

#[cfg(test)]
mod tests;
