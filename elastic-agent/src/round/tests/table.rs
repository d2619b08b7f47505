//! The rules of docs/reference/restarts.md, "When to restart", one by one.

use std::time::Duration;

use super::super::Settings;
use super::super::input::Facts;
use super::super::machine::{Failure, Known, Stall};
use super::workers::failure;
use super::world::FINAL;
use crate::failure::Failures;
use crate::job_end::{EndNotice, OwnEnd};
use crate::progress::ProgressSeen;
use crate::restart_policy::{RestartPolicy, RestartRules};
use crate::round::machine::failed_workers;
use crate::round::verdict::{Verdict, verdict};

struct Row {
    what: &'static str,
    failure: Failure,
    facts: Facts,
    restarts: usize,
    expected: Verdict,
    /// How many restarts are left afterwards.
    left: usize,
}

fn failed(code: i32) -> Failure {
    let failures = Failures::new(vec![failure(0, 0, code, false)]);
    Failure {
        stall: None,
        failed: failed_workers(failures.as_ref()),
        failures,
        has_abandoned: false,
        known: Known::Nothing,
        progress: ProgressSeen::default().round,
    }
}

fn stuck(is_first: bool) -> Failure {
    let failures = Failures::new(vec![failure(0, 0, 1, true)]);
    Failure {
        stall: Some(Stall {
            silent_for: Duration::from_secs(9),
            is_first,
        }),
        failed: failed_workers(failures.as_ref()),
        failures,
        ..failed(1)
    }
}

fn abandoned(failure: Failure) -> Failure {
    Failure {
        has_abandoned: true,
        ..failure
    }
}

fn facts(job_end: Option<&str>, is_any_stuck: bool, finished: usize) -> Facts {
    Facts {
        job_end: job_end.map(|host| Box::new(notice(host))),
        is_any_stuck,
        finished,
    }
}

fn notice(host: &str) -> EndNotice {
    OwnEnd::of("why".to_owned(), None).notice(host, None, None)
}

fn final_exit() -> Verdict {
    let reason = format!(
        "worker with rank 0 ended with exit code {FINAL}, after which the job is not to be restarted"
    );
    Verdict::EndJob(reason)
}

#[test]
fn each_row_of_the_table() {
    let elsewhere = || Verdict::Ended(Box::new(notice("b")));
    let job_end = Some("b");
    let row = |what, failure, facts, restarts, expected, left| Row {
        what,
        failure,
        facts,
        restarts,
        expected,
        left,
    };
    let none = || facts(None, false, 0);
    let all = || facts(job_end, true, 1);
    let rows = [
        row("final code", failed(FINAL), none(), 3, final_exit(), 3),
        row(
            "final code, none left",
            failed(FINAL),
            none(),
            0,
            final_exit(),
            0,
        ),
        row(
            "final code before all",
            abandoned(failed(FINAL)),
            all(),
            3,
            final_exit(),
            3,
        ),
        row(
            "not killed",
            abandoned(failed(1)),
            all(),
            3,
            Verdict::GiveUp,
            3,
        ),
        row(
            "stuck and not killed",
            abandoned(stuck(false)),
            all(),
            3,
            Verdict::GiveUp,
            3,
        ),
        row("ended elsewhere", failed(1), all(), 3, elsewhere(), 3),
        row(
            "stuck, ended elsewhere",
            stuck(false),
            all(),
            3,
            elsewhere(),
            3,
        ),
        row(
            "ended elsewhere, none left",
            failed(1),
            facts(job_end, false, 1),
            0,
            elsewhere(),
            0,
        ),
        row(
            "ended elsewhere, as known before",
            Failure {
                known: Known::Ended(Box::new(notice("b"))),
                ..failed(1)
            },
            none(),
            3,
            elsewhere(),
            3,
        ),
        row(
            "ended by this node",
            Failure {
                known: Known::Published,
                ..failed(1)
            },
            all(),
            0,
            Verdict::GiveUp,
            0,
        ),
        row(
            "others were stuck first",
            failed(1),
            facts(None, true, 1),
            3,
            Verdict::JoinUncounted,
            3,
        ),
        row(
            "the same, none left",
            failed(1),
            facts(None, true, 0),
            0,
            Verdict::JoinUncounted,
            0,
        ),
        row(
            "stuck, others first",
            stuck(false),
            none(),
            3,
            Verdict::JoinUncounted,
            3,
        ),
        row(
            "none left",
            failed(1),
            facts(None, false, 1),
            0,
            Verdict::GiveUp,
            0,
        ),
        row(
            "stuck, none left",
            stuck(true),
            none(),
            0,
            Verdict::GiveUp,
            0,
        ),
        row(
            "others finished",
            failed(1),
            facts(None, false, 1),
            3,
            Verdict::OthersFinished(1),
            2,
        ),
        row(
            "stuck, others finished",
            stuck(true),
            facts(None, true, 2),
            3,
            Verdict::OthersFinished(2),
            2,
        ),
        row("a failure", failed(1), none(), 3, Verdict::Restart, 2),
        row(
            "stuck first",
            stuck(true),
            facts(None, true, 0),
            3,
            Verdict::Restart,
            2,
        ),
    ];
    for row in rows {
        let mut policy = RestartPolicy::new(rules(row.restarts));
        let now = Duration::from_secs(1);
        let verdict = verdict(&mut policy, &row.failure, row.facts, now);
        assert_eq!(verdict, row.expected, "{}", row.what);
        assert_eq!(policy.left(now), row.left, "{}", row.what);
    }
}

fn rules(restarts: usize) -> RestartRules {
    let settings: Settings = super::world::settings(restarts, 1);
    settings.restarts
}
