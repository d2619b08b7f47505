//! The expected reports of a job.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::torch::script;
use serde_json::Value;

/// The script of the ranks.
pub(super) const SCRIPT: &str = "hanging_rank.py";

/// The comment of the lines that reports must name.
const MARKER: &str = "# HERE";

/// A row of the table.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) verdict: Verdict,
    /// The ranks that are named as the cause. Empty if ranks contradict each other, because any of them may be wrong.
    pub(super) culprits: &'static [usize],
    /// The places that are named, as `hanging_rank.py:41`.
    pub(super) places: Vec<String>,
}

/// Whether the job makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// An alarm.
    NoProgress,
    /// Ranks wait for a rank that is busy, which is information.
    Busy,
    /// The ranks of our nodes make no progress, and nothing is known of the other ranks.
    PartlyObserved,
}

impl Verdict {
    /// The exit code of `c10d why`.
    pub(super) const fn exit_code(self) -> i32 {
        match self {
            Self::NoProgress => 4,
            Self::Busy | Self::PartlyObserved => 0,
        }
    }

    /// The field `state` of the report.
    pub(super) const fn state(self) -> &'static str {
        match self {
            Self::NoProgress => "no_progress",
            Self::Busy => "waiting_for_busy_rank",
            Self::PartlyObserved => "partly_observed",
        }
    }
}

impl Expected {
    /// The row of a kind of the script, whose marked lines are named.
    pub(super) fn of(kind: &str, verdict: Verdict, culprits: &'static [usize]) -> Self {
        Self {
            verdict,
            culprits,
            places: lines(kind),
        }
    }

    /// The texts that every full report contains.
    pub(super) fn parts(&self) -> Vec<String> {
        let ranks = self.culprits.iter().map(|rank| format!("ank {rank} "));
        ranks.chain(self.places.iter().cloned()).collect()
    }
}

/// The places in the function `kind` with the marker, as `hanging_rank.py:41`.
fn lines(kind: &str) -> Vec<String> {
    let text = fs::read_to_string(script(SCRIPT)).expect("the script can be read");
    let start = format!("def {kind}(");
    let numbered = text.lines().zip(1..);
    let mut function = numbered.skip_while(|(line, _)| !line.starts_with(&start));
    let first = function.next();
    assert!(first.is_some(), "{SCRIPT} has no {kind}");
    function
        .take_while(|(line, _)| line.is_empty() || line.starts_with(' '))
        .filter(|(line, _)| line.ends_with(MARKER))
        .map(|(_, number)| format!("{SCRIPT}:{number}"))
        .collect()
}

/// The ranks that the findings name as causes.
pub(super) fn culprits(report: &Value) -> BTreeSet<u64> {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings
        .filter(|finding| finding["is_consequence"] == false)
        .flat_map(|finding| finding["culprits"].as_array().into_iter().flatten())
        .filter_map(Value::as_u64)
        .collect()
}

/// The first sentence of a report, without the times in it.
pub(super) fn first_sentence(headline: &str) -> String {
    let end = headline.find(". ").map_or(headline.len(), |end| end + 1);
    without_times(&headline[..end])
}

/// Text with single spaces, in which each duration and each part of a CPU is `#`: they differ between two reports.
pub(super) fn without_times(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_number = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_unit = |word: &&str| {
        let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != '%');
        ["s", "min", "ms", "%"].contains(&word)
    };
    let parts = words.iter().enumerate().map(|(at, word)| {
        let number = word.trim_start_matches('(');
        let is_time = is_number(number) && words.get(at + 1).is_some_and(is_unit);
        if is_time {
            word.replace(number, "#")
        } else {
            (*word).to_owned()
        }
    });
    // A state is observed at intervals.
    parts
        .collect::<Vec<_>>()
        .join(" ")
        .replace(", seen # s ago", "")
}

#[test]
fn times_are_left_out_of_a_sentence() {
    let text = "Rank 2 has been\n blocked for 40 s at a.py:17 (load). It (100 % of a CPU) has 2 s.";
    assert_eq!(
        without_times(text),
        "Rank 2 has been blocked for # s at a.py:17 (load). It (# % of a CPU) has # s."
    );
    assert_eq!(
        first_sentence(text),
        "Rank 2 has been blocked for # s at a.py:17 (load)."
    );
}

#[test]
fn the_marker_finds_the_lines_of_a_function() {
    assert_eq!(lines("skipped_collective").len(), 1);
    assert_eq!(lines("different_orders").len(), 2);
    assert_eq!(lines("exit_before_init").len(), 0);
}
