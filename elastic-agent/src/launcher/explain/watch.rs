//! When a launcher reports why its job makes no progress. Pure.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use c10d_inspect::flight::FlightReport;
use c10d_inspect::{Finding, FindingKind, Report, ReportState};

use super::requests::is_observed;

/// When an unchanged explanation is repeated, counted from the last progress of the job.
const REPEATED: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(600)];

/// A report that changes is printed again after this time at the earliest, or after the time until the first report if
/// that is shorter.
const CHANGE_INTERVAL: Duration = Duration::from_secs(10);

/// How long observed ranks must make progress before a launcher reports that. It is longer than the pause between two
/// samples, because a sample may come late, and a waiting process may use the CPU for a moment.
const CONTINUES_AFTER: Duration = Duration::from_secs(10);

/// A problem that cannot resolve itself is reported after this time. It is not reported at once, because the store's
/// keys are written one after the other, so that a first look may be wrong.
const URGENT_AFTER: Duration = Duration::from_secs(2);

/// How often a job is checked while it makes no progress, and while it does.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_IDLE: Duration = Duration::from_secs(5);

/// How often a store on another host is asked at the earliest: many launchers do so. While the job makes no progress, it
/// is asked often enough to notice a change.
const REMOTE_INTERVAL_MIN: Duration = Duration::from_secs(5);
const REMOTE_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// A job that makes no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standstill {
    /// Differs if something else, or less, is waited for.
    fingerprint: u64,
    /// How long it has lasted already, if known.
    age: Option<Duration>,
    /// Whether waiting cannot help.
    is_urgent: bool,
    /// Whether ranks have been observed for all of this time, so that no further wait is needed.
    is_observed: bool,
    /// Whether ranks that are not observed may make progress.
    is_partial: bool,
}

/// The report to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    Nothing,
    /// Explain why the job has made no progress for this time.
    All(Duration),
    /// Report that the job has still made no progress, for this time.
    Unchanged(Duration),
    /// Report that the job continues after such a report, or only the observed ranks if the report was about them
    /// alone.
    Continues {
        is_partial: bool,
    },
}

/// Decides when to speak. Times are counted from any moment.
#[derive(Debug)]
pub(super) struct Watch {
    after: Duration,
    is_remote: bool,
    still: Option<Still>,
}

#[derive(Debug)]
struct Still {
    /// When it began.
    since: Duration,
    /// When what is waited for changed last.
    changed: Duration,
    fingerprint: u64,
    /// The time since which the observed ranks seem to make progress.
    continues: Option<Duration>,
    said: Option<Said>,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    at: Duration,
    fingerprint: u64,
    is_observed: bool,
    is_partial: bool,
}

impl Standstill {
    /// Returns the state in a report of a job that makes no progress; `None` if no rank waits.
    pub(super) fn of(report: &Report) -> Option<Self> {
        if !report.is_stuck && report.state != ReportState::PartlyObserved {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        let causes = || {
            report
                .findings
                .iter()
                .filter(|finding| !finding.is_consequence)
        };
        for cause in causes() {
            // The waiting ranks are not part of the hash, because their number only grows.
            (cause.kind, &cause.culprits.0, cause.hosts.is_empty()).hash(&mut hasher);
        }
        // The text of observed ranks has their age, not the age of a wait in the store.
        let is_observed = causes().any(|cause| is_observed(cause.kind));
        let counts = |cause: &&Finding| !is_observed || self::is_observed(cause.kind);
        let waits = report.waits.iter().filter(|_| !is_observed);
        Some(Self {
            fingerprint: hasher.finish(),
            age: causes()
                .filter(counts)
                .filter_map(|cause| cause.age_ms)
                .chain(waits.map(|wait| wait.age_ms))
                .map(Duration::from_millis)
                .max(),
            is_urgent: causes().any(|cause| is_urgent(cause.kind)),
            is_observed,
            is_partial: !report.is_stuck,
        })
    }

    /// Returns this state with another explanation.
    pub(super) const fn explained_by(self, other: Self) -> Self {
        Self {
            fingerprint: other.fingerprint,
            ..self
        }
    }

    /// Returns the state of ranks that have hung in collectives for `lasted`.
    pub(super) fn of_collectives(report: &FlightReport, lasted: Duration) -> Self {
        let mut hasher = DefaultHasher::new();
        for cause in report.findings.iter().filter(|it| !it.is_consequence) {
            (cause.kind, &cause.group, cause.number, &cause.culprits.0).hash(&mut hasher);
        }
        Self {
            fingerprint: hasher.finish(),
            age: Some(lasted),
            // The time has passed already.
            is_urgent: true,
            is_observed: false,
            is_partial: false,
        }
    }
}

const fn is_urgent(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::LostInInit
            | FindingKind::SameRank
            | FindingKind::TwoJobs
            | FindingKind::StaleAddresses
            | FindingKind::GlooLoopback
            | FindingKind::WorldSizeDiffers
    )
}

impl Watch {
    /// Speaks when a job has made no progress for `after`. With `is_remote` each look asks another host.
    pub(super) const fn new(after: Duration, is_remote: bool) -> Self {
        Self {
            after,
            is_remote,
            still: None,
        }
    }

    /// How long after a look at `now` the next one follows.
    pub(super) fn next_look(&self, now: Duration) -> Duration {
        let Some(still) = &self.still else {
            let remote = self.after.max(REMOTE_INTERVAL_MIN);
            return if self.is_remote {
                remote
            } else {
                LOOK_INTERVAL_IDLE.min(self.after)
            };
        };
        if !self.is_remote {
            return LOOK_INTERVAL;
        }
        let next = self.next_time(still, now);
        next.map_or(Duration::MAX, |next| next.saturating_sub(now))
            .clamp(REMOTE_INTERVAL_MIN, REMOTE_INTERVAL_MAX)
    }

    /// Returns for how long the ranks have waited for the same thing; `None` if no rank waits.
    pub(super) fn unchanged_for(&self, now: Duration) -> Option<Duration> {
        let still = self.still.as_ref()?;
        Some(now.saturating_sub(still.changed))
    }

    /// Takes the state of the job at `now`, and decides what to report.
    pub(super) fn look(&mut self, now: Duration, seen: Option<Standstill>) -> Say {
        let Some(seen) = seen else {
            return self.note_progress(now);
        };
        let began = now.saturating_sub(seen.age.unwrap_or_default());
        let still = self.still.get_or_insert(Still {
            since: began,
            // A host that is asked rarely sees no changes, so it must rely on the age.
            changed: if self.is_remote { began } else { now },
            fingerprint: seen.fingerprint,
            continues: None,
            said: None,
        });
        still.continues = None;
        if still.fingerprint != seen.fingerprint {
            still.fingerprint = seen.fingerprint;
            still.changed = now;
            if still.said.is_none() {
                still.since = now;
            }
        }
        let lasted = match seen.age {
            Some(age) if seen.is_observed => age,
            _ => now.saturating_sub(still.since),
        };
        let unchanged = now.saturating_sub(still.changed);
        let say = match still.said {
            None if seen.is_observed && (seen.age.is_none() || lasted < self.after) => Say::Nothing,
            None if seen.is_observed => Say::All(lasted),
            None if unchanged >= self.after => Say::All(lasted),
            None if seen.is_urgent && unchanged >= URGENT_AFTER.min(self.after) => Say::All(lasted),
            None => Say::Nothing,
            Some(said) if said.fingerprint != still.fingerprint => {
                if now.saturating_sub(said.at) >= change_interval(self.after) {
                    Say::All(lasted)
                } else {
                    Say::Nothing
                }
            }
            Some(said) if repeated(still.since, said.at).is_some_and(|at| at <= now) => {
                Say::Unchanged(lasted)
            }
            Some(_) => Say::Nothing,
        };
        if say != Say::Nothing {
            still.said = Some(Said {
                at: now,
                fingerprint: still.fingerprint,
                is_observed: seen.is_observed,
                is_partial: seen.is_partial,
            });
        }
        say
    }

    fn note_progress(&mut self, now: Duration) -> Say {
        if let Some(still) = &mut self.still
            && still.said.is_some_and(|said| said.is_observed)
            && now < *still.continues.get_or_insert(now) + CONTINUES_AFTER
        {
            return Say::Nothing;
        }
        match self.still.take().and_then(|still| still.said) {
            Some(Said { is_partial, .. }) => Say::Continues { is_partial },
            None => Say::Nothing,
        }
    }

    /// The next time to speak if nothing changes.
    fn next_time(&self, still: &Still, now: Duration) -> Option<Duration> {
        if let Some(continues) = still.continues {
            return Some(continues + CONTINUES_AFTER);
        }
        match still.said {
            None => Some(still.changed + self.after),
            Some(said) if said.fingerprint != still.fingerprint => {
                Some(said.at + change_interval(self.after))
            }
            Some(_) => repeated(still.since, now),
        }
    }
}

fn change_interval(after: Duration) -> Duration {
    CHANGE_INTERVAL.min(after.max(LOOK_INTERVAL))
}

/// The first time after `at` at which an explanation is repeated for a job without progress since `since`.
fn repeated(since: Duration, at: Duration) -> Option<Duration> {
    let lasted = at.saturating_sub(since);
    let next = REPEATED.into_iter().find(|time| *time > lasted)?;
    Some(since + next)
}

#[cfg(test)]
mod tests {
    use c10d_inspect::WaitFor;

    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn report(kind: FindingKind, culprits: &[usize], age_s: u64) -> Report {
        let mut cause = Finding::new(kind, String::new());
        cause.culprits.0.extend(culprits);
        cause.age_ms = Some(age_s * 1000);
        let mut report = Report::default();
        report.is_stuck = true;
        report.findings = vec![cause];
        report
    }

    fn missing(culprits: &[usize], age_s: u64) -> Option<Standstill> {
        Standstill::of(&report(FindingKind::NeverConnected, culprits, age_s))
    }

    /// Returns the reports by second, when the job is checked once a second.
    fn said(
        watch: &mut Watch,
        seconds: std::ops::Range<u64>,
        seen: impl Fn(u64) -> Option<Standstill>,
    ) -> Vec<(u64, Say)> {
        let looks = seconds.map(|s| (s, watch.look(Duration::from_secs(s), seen(s))));
        looks.filter(|(_, say)| *say != Say::Nothing).collect()
    }

    fn all(seconds: u64) -> (u64, Say) {
        (seconds, Say::All(Duration::from_secs(seconds)))
    }

    fn unchanged(seconds: u64) -> (u64, Say) {
        (seconds, Say::Unchanged(Duration::from_secs(seconds)))
    }

    #[test]
    fn a_standstill_is_reported_after_30_s_and_again_after_2_and_10_minutes() {
        let mut watch = Watch::new(AFTER, false);
        assert_eq!(
            said(&mut watch, 0..2000, |s| missing(&[2], s)),
            [all(30), unchanged(120), unchanged(600)]
        );
        let continues = Say::Continues { is_partial: false };
        assert_eq!(watch.look(Duration::from_secs(2000), None), continues);
        assert_eq!(watch.look(Duration::from_secs(2001), None), Say::Nothing);
    }

    #[test]
    fn ranks_that_arrive_one_by_one_are_progress() {
        let mut watch = Watch::new(AFTER, false);
        let ranks: Vec<usize> = (0..10).collect();
        // A rank arrives every 20 s; the longest wait is long all the same.
        let seen = |s: u64| missing(&ranks[(s / 20) as usize..], s);
        assert_eq!(said(&mut watch, 0..200, seen), []);
        // The last one does not.
        let seen = |s: u64| missing(&[9], s);
        let (at, say) = said(&mut watch, 200..300, seen)[0];
        assert_eq!((at, say), (210, Say::All(Duration::from_secs(30))));
    }

    #[test]
    fn a_change_is_reported_again_but_not_more_often_than_every_10_s() {
        let mut watch = Watch::new(AFTER, false);
        let ranks: Vec<usize> = (0..20).collect();
        let seen = |s: u64| match s {
            0..31 => missing(&ranks, s),
            31..45 => missing(&ranks[(s - 30) as usize..], s),
            _ => missing(&ranks[15..], s),
        };
        assert_eq!(said(&mut watch, 0..59, seen), [all(30), all(40), all(50)]);
        // A user with early reports gets a better report equally early.
        let mut watch = Watch::new(Duration::from_secs(5), false);
        let seen = |s: u64| missing(if s < 7 { &[] } else { &[2] }, s);
        assert_eq!(said(&mut watch, 0..30, seen), [all(5), all(10)]);
        // Two samples show that data is not acknowledged.
        let mut watch = Watch::new(Duration::from_secs(5), false);
        let seen = |s: u64| {
            let mut report = report(FindingKind::TransportStalled, &[], s);
            let host = (s >= 12).then(|| "node1".to_owned());
            report.findings[0].hosts.extend(host);
            Standstill::of(&report)
        };
        assert_eq!(said(&mut watch, 0..30, seen), [all(5), all(12)]);
    }

    #[test]
    fn one_sample_without_a_standstill_is_no_progress() {
        for is_partial in [false, true] {
            let mut watch = Watch::new(AFTER, is_partial);
            let seen = |s: u64| {
                let is_still = !(40..46).contains(&s) && s < 60;
                let mut report = report(FindingKind::RankBlocked, &[2], s);
                if is_partial {
                    report.is_stuck = false;
                    report.state = ReportState::PartlyObserved;
                }
                Standstill::of(&report).filter(|_| is_still)
            };
            let continues = (70, Say::Continues { is_partial });
            assert_eq!(said(&mut watch, 0..100, seen), [all(30), continues]);
        }
    }

    #[test]
    fn a_later_explanation_by_recorders_is_reported_once() {
        let mut watch = Watch::new(AFTER, false);
        let recorded = Standstill::of_collectives(&FlightReport::default(), AFTER);
        let seen = |s: u64| {
            let stalled = Standstill::of(&report(FindingKind::TransportStalled, &[], s));
            stalled.map(|it| {
                if s < 35 {
                    it
                } else {
                    it.explained_by(recorded)
                }
            })
        };
        assert_eq!(said(&mut watch, 0..100, seen), [all(30), all(40)]);
    }

    #[test]
    fn what_waiting_cannot_mend_is_reported_after_2_s() {
        for kind in [
            FindingKind::SameRank,
            FindingKind::TwoJobs,
            FindingKind::LostInInit,
        ] {
            let mut watch = Watch::new(AFTER, false);
            let seen = |_| Standstill::of(&report(kind, &[2], 0));
            assert_eq!(said(&mut watch, 0..60, seen), [all(2)]);
        }
    }

    #[test]
    fn a_job_that_waits_for_nobody_is_not_mentioned() {
        let mut watch = Watch::new(AFTER, false);
        assert_eq!(Standstill::of(&Report::default()), None);
        assert_eq!(said(&mut watch, 0..100, |_| None), []);
        // Short waits are normal.
        let seen = |s: u64| missing(&[2], s % 25).filter(|_| !s.is_multiple_of(25));
        assert_eq!(said(&mut watch, 100..300, seen), []);
    }

    #[test]
    fn a_store_on_another_host_is_asked_when_there_may_be_something_to_say() {
        let mut watch = Watch::new(AFTER, true);
        let (mut now, mut looks, mut times) = (Duration::ZERO, 0, Vec::new());
        while now < Duration::from_secs(1300) {
            now += watch.next_look(now);
            looks += 1;
            // The wait began 10 s after the workers.
            let age = now.saturating_sub(Duration::from_secs(10));
            let seen = missing(&[2], age.as_secs());
            if watch.look(now, seen) != Say::Nothing {
                times.push(now.as_secs());
            }
        }
        assert_eq!(times, [40, 130, 610]);
        assert!(looks < 30, "{looks}");
    }

    /// Two ranks of the job wait for a key that a third process sets once a day.
    #[test]
    fn the_time_is_the_age_in_the_text_about_observed_ranks() {
        let mut watch = Watch::new(AFTER, false);
        let seen = |s: u64| {
            let mut report = report(FindingKind::RankBlocked, &[2], s);
            let mut wait = WaitFor::default();
            wait.age_ms = 500_000;
            report.waits = vec![wait];
            // Rank 0 moved once more.
            report.findings[0].age_ms = Some(1000 * if s < 60 { s } else { s - 20 });
            Standstill::of(&report)
        };
        let later = (120, Say::Unchanged(Duration::from_secs(100)));
        assert_eq!(said(&mut watch, 0..200, seen), [all(30), later]);
    }

    #[test]
    fn zero_reports_at_the_first_look() {
        let mut watch = Watch::new(Duration::ZERO, false);
        assert_eq!(
            watch.look(Duration::ZERO, missing(&[1], 0)),
            Say::All(Duration::ZERO)
        );
    }
}
