//! A comparison of collectives as text: the answer in the first line, then each rank.

use std::fmt::Write as _;

use super::report::FlightReport;

/// How many ranks are listed.
const LISTED_MAX: usize = 64;

impl FlightReport {
    /// The comparison as lines for a terminal or a log, with 64 ranks at most. `clock` makes a text of a time in nanoseconds
    /// since 1970.
    #[must_use]
    pub fn to_text(&self, clock: &dyn Fn(u64) -> String) -> String {
        let mut text = format!("{}\n", self.headline);
        for finding in &self.findings {
            if !self.headline.starts_with(&finding.text) {
                let note = if finding.is_consequence {
                    " (a consequence)"
                } else {
                    ""
                };
                _ = writeln!(text, "{}{note}", finding.text);
            }
        }
        text.push('\n');
        for rank in self.ranks.iter().take(LISTED_MAX) {
            _ = match (&rank.error, &rank.current) {
                (Some(error), _) => writeln!(text, "rank {}: {}", rank.rank, error),
                (None, Some(current)) => writeln!(
                    text,
                    "rank {}: in collective {} of group {} since {}: {current}",
                    rank.rank,
                    current.number,
                    current.group,
                    clock(current.entered_unix_ns),
                ),
                (None, None) => {
                    let progress: Vec<String> = rank
                        .groups
                        .iter()
                        .map(|group| format!("{} of group {}", group.entered, group.group))
                        .collect();
                    let entered = match progress.len() {
                        0 => "nothing recorded".to_owned(),
                        _ => format!("has entered {}", progress.join(", ")),
                    };
                    writeln!(text, "rank {}: in no collective; {entered}", rank.rank)
                }
            };
        }
        if self.ranks.len() > LISTED_MAX {
            let more = self.ranks.len() - LISTED_MAX;
            _ = writeln!(text, "and {more} more ranks: --json shows all");
        }
        text
    }
}
