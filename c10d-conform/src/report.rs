//! The result of a run.

use std::fmt::Write as _;
use std::time::Duration;

use c10d_socket::printable;

use crate::verdict::Outcome;

/// The outcomes of all cases of a run, from [`ServerRun::run`](crate::ServerRun::run).
#[derive(Debug, Clone)]
pub struct Report {
    /// The address of the server.
    server: String,
    column: &'static str,
    took: Duration,
    outcomes: Vec<Outcome>,
}

impl Report {
    pub(crate) fn new(
        server: String,
        column: &'static str,
        outcomes: Vec<Outcome>,
        took: Duration,
    ) -> Self {
        Self {
            server,
            column,
            took,
            outcomes,
        }
    }

    /// Returns whether every case passes.
    #[must_use]
    pub fn is_conforming(&self) -> bool {
        self.failed().next().is_none()
    }

    /// Returns the outcomes, in the order of the cases.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Returns the cases that do not pass, one a line, below a line with the server and the number of cases.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} as {}: {} of {} cases do not pass, {:.1} s\n",
            printable(&self.server, 200),
            self.column,
            self.failed().count(),
            self.outcomes.len(),
            self.took.as_secs_f64(),
        );
        for outcome in self.failed() {
            let kind = outcome.verdict.kind();
            let sentence = outcome.verdict.sentence(who_of(self.column));
            let _ = writeln!(text, "{kind}: {}: {sentence}", outcome.name);
        }
        text
    }

    fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|it| !it.verdict.is_pass())
    }
}

/// Whose answers a column has, in a sentence.
fn who_of(column: &'static str) -> &'static str {
    match column.starts_with("torch") {
        true => "PyTorch",
        false => column,
    }
}
