//! Shows accounts: a Markdown table with one column for each side.

use std::fmt::Write as _;

use super::account::Account;
use super::history::{History, Setting, SideHistory};
use super::plan::Kind;
use crate::report::{Goal, Report, Row, Unit};

/// The minimum goodput of the side that has everything, in percent.
const GOODPUT_MIN: f64 = 97.0;
const RANK_WAIT_MAX_MS: f64 = 1500.0;

/// The factor above which the duration of an undisturbed step does not come from its sleep.
const SLOWER_MAX: f64 = 1.1;

/// The most violations that are printed.
const SHOWN_MAX: usize = 20;

/// The figures of a side.
fn report(setting: &Setting, side: &SideHistory, account: &Account) -> Report {
    let one = |name: &str, unit, value: f64, goal| {
        let mut row = Row::new(name, unit);
        row.samples.push(value);
        row.goal = if side.keeps_ranks { goal } else { None };
        row
    };
    let none = Some(Goal::AtMost(0.0));
    let (begin, end) = side.measured_ms;
    let stalled = 100.0 * account.stalled_ms as f64 / end.saturating_sub(begin) as f64;
    let count = |name, value: usize, goal| one(name, Unit::Count, value as f64, goal);
    let mut rows = vec![
        one(
            "goodput",
            Unit::Percent,
            account.goodput_percent(),
            Some(Goal::AtLeast(GOODPUT_MIN)),
        ),
        one("time in pauses", Unit::Percent, stalled, None),
        count("jobs lost", account.jobs_lost, none),
        count("violations", account.violations.len(), none),
        one(
            "undisturbed step",
            Unit::Milliseconds,
            account.step_ms,
            None,
        ),
        count("steps kept", account.kept as usize, None),
        count("steps redone", account.redone as usize, None),
        count("processes that were ranks", account.processes, None),
    ];
    for kind in Kind::ALL {
        let mut row = Row::new(kind.text(), Unit::Milliseconds);
        row.samples.extend(
            account
                .waits
                .iter()
                .filter(|it| it.0 == kind)
                .map(|it| it.1 as f64),
        );
        rows.push(row);
    }
    let of_one = |kind| matches!(kind, Kind::KillRank | Kind::StopRank);
    let longest = account
        .waits
        .iter()
        .filter(|it| of_one(it.0))
        .map(|it| it.1)
        .max();
    if let Some(longest) = longest {
        let goal = Some(Goal::AtMost(RANK_WAIT_MAX_MS));
        rows.push(one(
            "longest after a fault of one rank",
            Unit::Milliseconds,
            longest as f64,
            goal,
        ));
    }
    Report {
        subject: side.side.clone(),
        notes: notes(setting, side, account),
        rows,
    }
}

/// Facts that a reader must know.
fn notes(setting: &Setting, side: &SideHistory, account: &Account) -> Vec<String> {
    let mut notes = Vec::new();
    if !side.left_out.is_empty() {
        let names: Vec<_> = side.left_out.iter().map(|it| it.text()).collect();
        notes.push(format!("left out: {}", names.join(", ")));
    }
    if account.step_ms > setting.step_ms as f64 * SLOWER_MAX {
        notes.push(format!(
            "an undisturbed step takes {:.1} ms, not {}: goodput depends on the speed of the processors (--step-ms)",
            account.step_ms, setting.step_ms
        ));
    }
    let without_time = side.faults.len() - account.waits.len();
    if without_time > 0 {
        notes.push(format!(
            "{without_time} faults have no time, as the job made no steps when they came"
        ));
    }
    notes
}

/// Returns a table with a column for each side, and below it their notes and violations.
pub(super) fn markdown(history: &History, accounts: &[Account]) -> String {
    let sides = history.sides.iter().zip(accounts);
    let reports: Vec<_> = sides
        .map(|(side, account)| report(&history.setting, side, account))
        .collect();
    let setting = &history.setting;
    let mut text = format!(
        "seed {}, {} minutes a side; {}\n\n|",
        setting.seed,
        setting.minutes,
        setting.notes.join("; ")
    );
    for report in &reports {
        let _ = write!(text, " | {}", report.subject);
    }
    text.push_str(" |\n|---");
    for _ in &reports {
        text.push_str("|---:");
    }
    text.push_str("|\n");
    let mut names: Vec<&String> = reports
        .iter()
        .flat_map(|it| &it.rows)
        .map(|row| &row.name)
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    for name in names {
        let _ = write!(text, "| {name}");
        for report in &reports {
            let row = report.rows.iter().find(|row| row.name == *name);
            let cell = row.map_or_else(String::new, Row::cell);
            let _ = write!(text, " | {cell}");
        }
        text.push_str(" |\n");
    }
    text.push('\n');
    for (report, account) in reports.iter().zip(accounts) {
        for note in &report.notes {
            let _ = writeln!(text, "- {}: {note}", report.subject);
        }
        for violation in account.violations.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "- {}: VIOLATION: {violation}", report.subject);
        }
    }
    text
}
