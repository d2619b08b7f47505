//! What a run has found: as a table, as JSON, and as JUnit's XML.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use c10d_socket::printable;
use serde::Serialize;

use crate::cases::VERSION;
use crate::verdict::{Outcome, Verdict};

/// The outcomes of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The address of a server, the command of a client.
    subject: String,
    /// Which of them it is.
    kind: &'static str,
    #[serde(rename = "as")]
    column: &'static str,
    cases_version: &'static str,
    seconds: f64,
    is_conforming: bool,
    outcomes: Vec<Outcome>,
}

/// The columns of the table.
const KINDS: [(&str, &str); 7] = [
    ("same", "same"),
    ("fixed", "better"),
    ("differs", "differs"),
    ("hangs", "hangs"),
    ("wrong", "wrong"),
    ("not_run", "not run"),
    ("not_asked", "not asked"),
];

impl Report {
    pub(crate) fn new(
        subject: String,
        kind: &'static str,
        column: &'static str,
        outcomes: Vec<Outcome>,
        took: Duration,
    ) -> Self {
        Self {
            subject,
            kind,
            column,
            cases_version: VERSION,
            seconds: took.as_secs_f64(),
            is_conforming: outcomes.iter().all(|outcome| outcome.verdict.is_pass()),
            outcomes,
        }
    }

    /// Whether every case passes.
    #[must_use]
    pub fn is_conforming(&self) -> bool {
        self.is_conforming
    }

    /// The outcomes, in the order of the cases.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// A table by command, the cases that do not pass, and a sentence.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} as {}, cases {VERSION}, {:.1} s\n\n",
            printable(&self.subject, 200),
            self.column,
            self.seconds
        );
        let mut counts: BTreeMap<&str, [usize; KINDS.len()]> = BTreeMap::new();
        let mut total = [0; KINDS.len()];
        for outcome in &self.outcomes {
            let kind = outcome.verdict.kind();
            if let Some(index) = KINDS.iter().position(|(name, _)| *name == kind) {
                counts.entry(&outcome.operation).or_default()[index] += 1;
                total[index] += 1;
            }
        }
        // Kinds that no case has are left out.
        let shown: Vec<usize> = (0..KINDS.len()).filter(|kind| total[*kind] > 0).collect();
        let mut row = |name: &str, cell: &dyn Fn(usize) -> String| {
            let _ = write!(text, "{name:12}");
            for kind in &shown {
                let _ = write!(text, "{:>11}", cell(*kind));
            }
            text.push('\n');
        };
        row("command", &|kind| KINDS[kind].1.to_owned());
        let number = |count: usize| match count {
            0 => "-".to_owned(),
            count => count.to_string(),
        };
        for (operation, counts) in &counts {
            row(operation, &|kind| number(counts[kind]));
        }
        row("all", &|kind| number(total[kind]));
        text.push('\n');
        for outcome in self.outcomes.iter().filter(|it| !it.verdict.is_pass()) {
            let (kind, sentence) = (
                outcome.verdict.kind(),
                outcome.verdict.sentence(who_of(self.column)),
            );
            let kind = kind.replace('_', " ");
            let _ = writeln!(text, "{kind}: {}: {sentence}", outcome.name);
        }
        let failed = self.outcomes.iter().filter(|it| !it.verdict.is_pass());
        let _ = match failed.count() {
            0 => writeln!(
                text,
                "The {} conforms: it behaves as {}.",
                self.kind, self.column
            ),
            1 => writeln!(text, "1 case does not pass."),
            count => writeln!(text, "{count} cases do not pass."),
        };
        text
    }

    /// A test suite for each command, as CI systems read it.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let mut suites: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
        for outcome in &self.outcomes {
            suites.entry(&outcome.operation).or_default().push(outcome);
        }
        let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
        for (operation, outcomes) in suites {
            let failed = outcomes.iter().filter(|it| !it.verdict.is_pass()).count();
            let asked = |it: &&&Outcome| matches!(it.verdict, Verdict::NotAsked { .. });
            let skipped = outcomes.iter().filter(asked).count();
            let _ = writeln!(
                xml,
                "<testsuite name=\"c10d conform {}, as {}: {}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\">",
                self.kind,
                self.column,
                escaped(operation),
                outcomes.len()
            );
            for outcome in outcomes {
                let name = escaped(&outcome.name);
                let _ = write!(
                    xml,
                    "<testcase classname=\"{}\" name=\"{name}\"",
                    escaped(operation)
                );
                let sentence = escaped(&outcome.verdict.sentence(who_of(self.column)));
                let _ = match &outcome.verdict {
                    Verdict::Same | Verdict::Fixed => writeln!(xml, "/>"),
                    Verdict::NotAsked { .. } => {
                        writeln!(xml, "><skipped message=\"{sentence}\"/></testcase>")
                    }
                    verdict => {
                        let kind = verdict.kind();
                        writeln!(
                            xml,
                            "><failure type=\"{kind}\" message=\"{sentence}\"/></testcase>"
                        )
                    }
                };
            }
            xml += "</testsuite>\n";
        }
        xml + "</testsuites>\n"
    }
}

/// Whose answers a column has, in a sentence.
fn who_of(column: &'static str) -> &'static str {
    match column.starts_with("torch") {
        true => "PyTorch",
        false => column,
    }
}

/// Text inside an attribute of XML.
fn escaped(text: &str) -> String {
    let text = printable(text, usize::MAX).to_string();
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
