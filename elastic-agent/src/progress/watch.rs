//! Decides when the workers of a node count as stuck. Pure: times are counted from the start of the workers.

use std::time::{Duration, SystemTime};

use c10d_socket::Silence;

use crate::restart_policy::RoundProgress;

/// The content of a progress file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Step(u64),
    /// The time of the last change of a file without a number.
    Modified(SystemTime),
}

/// The state of the workers at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The workers are not stuck before this time; `None` for never.
    Until(Option<Duration>),
    /// The workers have reported no progress for this long. Returned once.
    Stuck(Duration),
}

/// The progress of one round, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ProgressSeen {
    /// The last step of each source; `None` without a number. The sources are the files of the workers in the order of
    /// their local ranks, and the common file.
    pub(crate) steps: Vec<Option<u64>>,
    /// The progress that counts for restarts.
    pub(crate) round: RoundProgress,
    /// When the first and the last progress were seen.
    pub(crate) first: Option<Duration>,
    pub(crate) last: Option<Duration>,
}

/// Watches the sources of one round. Any source's progress is the node's: often one rank reports for all.
#[derive(Debug)]
pub(super) struct ProgressWatch {
    timeout: Option<Duration>,
    first_timeout: Option<Duration>,
    marks: Vec<Option<Mark>>,
    seen: ProgressSeen,
    was_stuck: bool,
}

impl ProgressWatch {
    /// `marks` are those from before the start: they are no progress of this round.
    pub(super) fn new(
        timeout: Option<Duration>,
        first_timeout: Option<Duration>,
        marks: Vec<Option<Mark>>,
    ) -> Self {
        let steps = vec![None; marks.len()];
        Self {
            timeout,
            first_timeout,
            marks,
            seen: ProgressSeen {
                steps,
                ..ProgressSeen::default()
            },
            was_stuck: false,
        }
    }

    /// Takes what the sources from the number `first` on said before the start, if that becomes known only now.
    pub(super) fn start_from(&mut self, first: usize, marks: Vec<Option<Mark>>) {
        for (known, mark) in self.marks.iter_mut().skip(first).zip(marks) {
            *known = mark;
        }
    }

    /// Takes what the sources from the number `first` on say at `now`.
    pub(super) fn observe(
        &mut self,
        now: Duration,
        first: usize,
        marks: impl IntoIterator<Item = Option<Mark>>,
    ) {
        for (index, mark) in (first..self.marks.len()).zip(marks) {
            let Some(mark) = mark.filter(|mark| is_new(self.marks[index], *mark)) else {
                continue;
            };
            self.marks[index] = Some(mark);
            match mark {
                Mark::Step(step) => {
                    self.seen.steps[index] = Some(step);
                    self.seen.round.step = self.seen.round.step.max(Some(step));
                }
                Mark::Modified(_) => self.seen.round.has_unnumbered = true,
            }
            self.seen.first.get_or_insert(now);
            self.seen.last = Some(now);
        }
    }

    /// Whether the workers are stuck at `now`, or from when on they would be.
    pub(super) fn check(&mut self, now: Duration) -> Verdict {
        if self.was_stuck {
            return Verdict::Until(None);
        }
        let (since, timeout) = match self.seen.last {
            None => (Duration::ZERO, self.first_timeout),
            Some(last) => (last, self.timeout),
        };
        let silence = Silence::new(since, timeout);
        if silence.is_lost(now) {
            self.was_stuck = true;
            return Verdict::Stuck(now.saturating_sub(since));
        }
        Verdict::Until(silence.lost_at())
    }

    pub(super) const fn seen(&self) -> &ProgressSeen {
        &self.seen
    }
}

/// A file that is empty while its writer replaces a number does not count as progress, and neither does the same
/// number again.
fn is_new(old: Option<Mark>, new: Mark) -> bool {
    match (old, new) {
        (Some(Mark::Step(_)), Mark::Modified(_)) => false,
        (old, new) => old != Some(new),
    }
}

#[cfg(test)]
mod tests {
    use c10d_sim::Seeds;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const FIRST: Duration = Duration::from_secs(600);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn modified(second: u64) -> Mark {
        Mark::Modified(SystemTime::UNIX_EPOCH + seconds(second))
    }

    fn watch(marks: Vec<Option<Mark>>) -> ProgressWatch {
        ProgressWatch::new(Some(TIMEOUT), Some(FIRST), marks)
    }

    fn until(second: u64) -> Verdict {
        Verdict::Until(Some(seconds(second)))
    }

    #[test]
    fn the_first_step_has_an_allowance_of_its_own() {
        let mut watch = watch(vec![None, None]);
        assert_eq!(watch.check(seconds(599)), until(600));
        watch.observe(seconds(599), 0, [None, Some(Mark::Step(0))]);
        assert_eq!(watch.check(seconds(600)), until(659));
        assert_eq!(watch.check(seconds(661)), Verdict::Stuck(seconds(62)));
        // Said once.
        assert_eq!(watch.check(seconds(700)), Verdict::Until(None));
        assert_eq!(watch.seen().steps, [None, Some(0)]);
    }

    #[test]
    fn workers_that_report_nothing_are_stuck_only_if_a_time_is_given_for_it() {
        assert_eq!(
            watch(vec![None]).check(seconds(600)),
            Verdict::Stuck(seconds(600))
        );
        let mut silent = ProgressWatch::new(Some(TIMEOUT), None, vec![None]);
        assert_eq!(silent.check(seconds(10_000)), Verdict::Until(None));
        silent.observe(seconds(10_000), 0, [Some(Mark::Step(3))]);
        assert_eq!(silent.check(seconds(10_000)), until(10_060));
        let mut never = ProgressWatch::new(None, None, vec![None]);
        never.observe(seconds(1), 0, [Some(Mark::Step(3))]);
        assert_eq!(never.check(seconds(10_000)), Verdict::Until(None));
    }

    #[test]
    fn one_worker_that_reports_is_enough() {
        let mut watch = watch(vec![None, None]);
        for second in 1..1000 {
            watch.observe(
                seconds(second),
                0,
                [Some(Mark::Step(5)), Some(Mark::Step(second / 50))],
            );
            assert!(
                matches!(watch.check(seconds(second)), Verdict::Until(_)),
                "{second}"
            );
        }
        let seen = watch.seen();
        assert_eq!(
            (seen.round.step, seen.first, seen.last),
            (Some(19), Some(seconds(1)), Some(seconds(950)))
        );
    }

    #[test]
    fn what_an_earlier_round_left_is_no_progress() {
        let mut watch = watch(vec![Some(Mark::Step(100)), Some(modified(7))]);
        watch.observe(seconds(1), 0, [Some(Mark::Step(100)), Some(modified(7))]);
        assert_eq!(watch.seen().round, RoundProgress::default());
        // Going on from a checkpoint.
        watch.observe(seconds(2), 0, [Some(Mark::Step(90)), None]);
        assert_eq!(watch.seen().round.step, Some(90));
        assert_eq!(watch.check(seconds(3)), until(62));
    }

    #[test]
    fn a_number_that_stays_or_is_half_written_is_no_progress() {
        let mut watch = watch(vec![None]);
        watch.observe(seconds(1), 0, [Some(Mark::Step(12))]);
        for second in 2..61 {
            watch.observe(seconds(second), 0, [Some(modified(second))]);
            watch.observe(seconds(second), 0, [Some(Mark::Step(12))]);
            watch.observe(seconds(second), 0, [None]);
        }
        assert!(!watch.seen().round.has_unnumbered);
        assert_eq!(watch.check(seconds(61)), Verdict::Stuck(TIMEOUT));
    }

    #[test]
    fn without_a_number_each_change_is_progress() {
        let mut watch = watch(vec![None]);
        for second in 0..300 {
            watch.observe(seconds(second), 0, [Some(modified(second / 50))]);
            assert!(
                matches!(watch.check(seconds(second)), Verdict::Until(_)),
                "{second}"
            );
        }
        assert_eq!(
            watch.seen().round,
            RoundProgress {
                step: None,
                has_unnumbered: true
            }
        );
        assert_eq!(watch.check(seconds(310)), Verdict::Stuck(TIMEOUT));
    }

    #[test]
    fn more_marks_than_sources_are_ignored() {
        let mut watch = watch(vec![None]);
        watch.observe(seconds(1), 0, [None, Some(Mark::Step(1))]);
        assert_eq!(watch.seen().first, None);
    }

    /// Random reports and checks. Workers count as stuck once, and exactly when the time since the last change, or
    /// since the start, has reached the limit.
    #[test]
    fn random_reports_are_stuck_exactly_after_the_timeout() {
        Seeds::fresh(500).for_each(random_reports);
    }

    fn random_reports(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let timeout = random.bool().then(|| seconds(random.u64(1..20)));
        let first_timeout = random.bool().then(|| seconds(random.u64(1..40)));
        let mut watch = ProgressWatch::new(timeout, first_timeout, vec![None; 3]);
        let (mut last, mut steps, mut was_stuck) = (None, [None; 3], false);
        for second in 0..200 {
            let now = seconds(second);
            if random.u8(..12) == 0 {
                let (source, step) = (random.usize(..3), random.u64(..4));
                if steps[source] != Some(step) {
                    steps[source] = Some(step);
                    last = Some(now);
                }
            }
            // Seen again at each look.
            watch.observe(now, 0, steps.map(|step| step.map(Mark::Step)));
            let limit = if last.is_some() {
                timeout
            } else {
                first_timeout
            };
            let silent = now - last.unwrap_or_default();
            let is_due = !was_stuck && limit.is_some_and(|limit| silent >= limit);
            match watch.check(now) {
                Verdict::Stuck(told) => assert!(is_due && told == silent),
                Verdict::Until(end) => {
                    assert!(!is_due);
                    assert!(end.is_none_or(|end| end > now));
                }
            }
            was_stuck |= is_due;
        }
        assert_eq!(watch.seen().steps, steps);
        assert_eq!(watch.seen().last, last);
    }
}
