//! Judges a measure by its samples: is it flat, within its bound, or does it grow?

use crate::report::Samples;

/// One sample of a measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Jobs that have ended by then.
    pub(super) jobs: f64,
    /// Counts the restarts of the measured process: its memory begins anew with each.
    pub(super) incarnation: u32,
    pub(super) value: f64,
}

/// What a measure must fulfil.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// It does not grow by more than `rise`, and `per_thousand` for each 1,000 jobs.
    Flat { rise: f64, per_thousand: f64 },
    /// No sample exceeds this.
    AtMost(f64),
    /// Data that is kept by design: at most this for each job.
    PerJob(f64),
}

/// What became of a measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// The median of the first and of the last quarter of the samples.
    pub(super) first: f64,
    pub(super) last: f64,
    /// The trend per 1,000 jobs within an incarnation; `None` if no incarnation has two samples far enough apart.
    pub(super) per_thousand: Option<f64>,
    /// The growth over the run, the highest sample, or the trend per job: whatever the rule limits.
    pub(super) judged: f64,
    pub(super) allowed: f64,
}

impl Verdict {
    pub(super) fn holds(&self) -> bool {
        self.judged <= self.allowed
    }
}

/// `None` without samples. Samples are in the order in which they were taken.
pub(super) fn judge(rule: Rule, points: &[Point]) -> Option<Verdict> {
    let quarter = points.len().div_ceil(4);
    let of = |points: &[Point]| median(points.iter().map(|point| point.value));
    let first = of(points.get(..quarter)?)?;
    let last = of(points.get(points.len() - quarter..)?)?;
    let slope = slope(points);
    let span = points.last()?.jobs - points.first()?.jobs;
    let (judged, allowed) = match rule {
        Rule::Flat { rise, per_thousand } => {
            let was_restarted = points.first()?.incarnation != points.last()?.incarnation;
            // Each restart hides in the medians what has leaked before.
            let trend = slope.filter(|_| was_restarted).map(|slope| slope * span);
            let growth = trend.unwrap_or(f64::NEG_INFINITY).max(last - first);
            (growth, rise + per_thousand * span / 1000.0)
        }
        Rule::AtMost(most) => {
            let values = points.iter().map(|point| point.value);
            (values.fold(f64::NEG_INFINITY, f64::max), most)
        }
        Rule::PerJob(most) => (slope.unwrap_or(0.0), most),
    };
    Some(Verdict {
        first,
        last,
        per_thousand: slope.map(|slope| slope * 1000.0),
        judged,
        allowed,
    })
}

/// The change per job: the median of the slopes between samples of one incarnation (Theil and Sen), of pairs that are at
/// least a quarter of its samples apart, so that the teeth of a sawtooth do not count as a trend.
fn slope(points: &[Point]) -> Option<f64> {
    let mut slopes = Vec::new();
    for life in points.chunk_by(|a, b| a.incarnation == b.incarnation) {
        let apart = life.len().div_ceil(4).max(1);
        for (index, early) in life.iter().enumerate() {
            for late in life.iter().skip(index + apart) {
                if late.jobs > early.jobs {
                    slopes.push((late.value - early.value) / (late.jobs - early.jobs));
                }
            }
        }
    }
    median(slopes)
}

fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut samples = Samples::default();
    samples.extend(values);
    samples.median()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTORS: Rule = Rule::Flat {
        rise: 2.0,
        per_thousand: 0.0,
    };
    const MEMORY: Rule = Rule::Flat {
        rise: 500.0,
        per_thousand: 10.0,
    };

    /// 100 samples, one each 100 jobs.
    fn series(value: impl Fn(f64) -> f64) -> Vec<Point> {
        (0..100).map(|index| point(index, 0, &value)).collect()
    }

    fn point(index: u32, incarnation: u32, value: impl Fn(f64) -> f64) -> Point {
        Point {
            jobs: f64::from(index) * 100.0,
            incarnation,
            value: value(f64::from(index)),
        }
    }

    fn judged(rule: Rule, points: &[Point]) -> Verdict {
        judge(rule, points).unwrap()
    }

    /// The same in each run, between -1 and 1.
    fn noise(index: f64) -> f64 {
        (index * 12.9898).sin()
    }

    #[test]
    fn a_flat_measure_is_flat_also_with_noise_and_outliers() {
        let verdict = judged(DESCRIPTORS, &series(|_| 17.0));
        assert_eq!((verdict.first, verdict.last), (17.0, 17.0));
        assert_eq!((verdict.per_thousand, verdict.judged), (Some(0.0), 0.0));
        assert!(verdict.holds());
        let noisy = series(|index| noise(index).mul_add(400.0, 9000.0));
        assert!(judged(MEMORY, &noisy).holds());
        let outliers = series(|index| if index % 7.0 == 0.0 { 90.0 } else { 17.0 });
        assert!(judged(DESCRIPTORS, &outliers).holds());
    }

    #[test]
    fn a_slow_leak_grows_also_in_noise() {
        // 1 byte per 10 jobs: 990 in the run, of which 500 + 99 are allowed.
        let leak = series(|index| noise(index).mul_add(200.0, 9000.0 + index * 10.0));
        let verdict = judged(MEMORY, &leak);
        assert!(!verdict.holds(), "{verdict:?}");
        let per_thousand = verdict.per_thousand.unwrap();
        assert!((per_thousand - 100.0).abs() < 10.0, "{verdict:?}");
        // A descriptor per 2,000 jobs.
        let leak = series(|index| 17.0 + (index / 20.0).floor());
        assert!(!judged(DESCRIPTORS, &leak).holds());
    }

    #[test]
    fn a_step_grows_if_it_is_higher_than_the_tolerance() {
        for at in [30.0, 50.0, 70.0] {
            let step = |height| series(move |index| if index < at { 9000.0 } else { height });
            assert!(judged(MEMORY, &step(9500.0)).holds());
            assert!(!judged(MEMORY, &step(9700.0)).holds());
        }
        let falls = series(|index| if index < 50.0 { 9000.0 } else { 1000.0 });
        assert!(judged(MEMORY, &falls).holds());
    }

    #[test]
    fn a_sawtooth_is_flat_and_has_a_bound() {
        // As a log of writes that is taken over into the database now and then.
        // Its teeth are higher than what it may grow.
        let sawtooth = series(|index| (index % 10.0) * 100.0);
        let verdict = judged(MEMORY, &sawtooth);
        assert!(verdict.holds() && verdict.allowed < 900.0, "{verdict:?}");
        assert!(judged(Rule::AtMost(900.0), &sawtooth).holds());
        assert!(!judged(Rule::AtMost(899.0), &sawtooth).holds());
    }

    #[test]
    fn a_leak_shows_through_restarts_of_its_process() {
        let leak = |index: u32| point(index, index / 10, |index| (index % 10.0) * 100.0);
        let points: Vec<_> = (0..100).map(leak).collect();
        let verdict = judged(MEMORY, &points);
        assert!(!verdict.holds(), "{verdict:?}");
        assert_eq!(verdict.per_thousand, Some(1000.0));
        // The same samples of one process are a sawtooth.
        let one = points.into_iter().map(|point| Point {
            incarnation: 0,
            ..point
        });
        assert!(judged(MEMORY, &one.collect::<Vec<_>>()).holds());
    }

    #[test]
    fn kept_data_is_judged_by_its_trend_per_job() {
        let kept = series(|index| index * 900.0);
        let verdict = judged(Rule::PerJob(9.0), &kept);
        assert_eq!((verdict.judged, verdict.holds()), (9.0, true));
        assert!(!judged(Rule::PerJob(8.9), &kept).holds());
    }

    #[test]
    fn few_samples_have_a_verdict_and_none_has_not() {
        assert_eq!(judge(DESCRIPTORS, &[]), None);
        let verdict = judged(DESCRIPTORS, &[point(0, 0, |_| 5.0)]);
        assert_eq!((verdict.first, verdict.per_thousand), (5.0, None));
        assert!(verdict.holds());
        let two = [point(0, 0, |_| 5.0), point(1, 0, |_| 9.0)];
        assert!(!judged(DESCRIPTORS, &two).holds());
    }
}
