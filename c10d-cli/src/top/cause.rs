//! The cause above the ranks, in as many lines as it needs and the screen has.

use c10d_inspect::http::StatusOverview;
use c10d_inspect::report_text::wrapped;
use c10d_socket::printable;

/// Always kept for the headline, so that the ranks below stay where they are while it changes.
const HEADLINE_LINES_MIN: usize = 2;

/// The headline takes at most this part of the screen.
const HEADLINE_SHARE: usize = 3;

/// The shown findings below the headline; `c10d why` has the others.
const FINDINGS_MAX: usize = 3;

/// The same of groups whose members agree through the server.
const MEMBERSHIPS_MAX: usize = 2;

/// The lines of one finding on a screen of so many lines, and on a smaller one.
const TALL: usize = 30;
const FINDING_LINES_MAX: usize = 3;
const FINDING_LINES_MIN: usize = 1;

/// What a finding is to the headline, as a mark in front of it.
const ALSO: &str = "  also: ";
const THEN: &str = "  then: ";
const GROUP: &str = " group: ";

/// One line of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CauseLine {
    /// In front of the first line of a finding, and as wide in front of the others.
    pub(super) mark: String,
    pub(super) text: String,
    pub(super) is_headline: bool,
    pub(super) is_consequence: bool,
}

/// The lines for a screen of this size, without characters that change the terminal.
pub(super) fn cause_lines(status: &StatusOverview, columns: usize, rows: usize) -> Vec<CauseLine> {
    let headline = &status.headline;
    let lines_max = HEADLINE_LINES_MIN.max(rows / HEADLINE_SHARE);
    let mut headline_lines = cut(headline, columns, lines_max);
    if headline_lines.len() < HEADLINE_LINES_MIN {
        headline_lines.resize(HEADLINE_LINES_MIN, String::new());
    }
    let headline_line = |text| CauseLine {
        mark: String::new(),
        text,
        is_headline: true,
        is_consequence: false,
    };
    let mut lines: Vec<CauseLine> = headline_lines.into_iter().map(headline_line).collect();
    let others = status.findings.iter().filter(|it| it.text != *headline);
    for finding in others.take(FINDINGS_MAX) {
        let mark = if finding.is_consequence { THEN } else { ALSO };
        lines.extend(lines_of(mark, &finding.text, columns, rows));
    }
    for membership in status.memberships.iter().take(MEMBERSHIPS_MAX) {
        lines.extend(lines_of(GROUP, membership, columns, rows));
    }
    lines
}

fn lines_of(mark: &str, text: &str, columns: usize, rows: usize) -> Vec<CauseLine> {
    let lines_max = match rows >= TALL {
        true => FINDING_LINES_MAX,
        false => FINDING_LINES_MIN,
    };
    let texts = cut(text, columns.saturating_sub(mark.len()), lines_max);
    let line = |(at, text)| CauseLine {
        mark: match at {
            0 => mark.to_owned(),
            _ => " ".repeat(mark.len()),
        },
        text,
        is_headline: false,
        is_consequence: mark == THEN,
    };
    texts.into_iter().enumerate().map(line).collect()
}

/// The first lines of a text. What is left out leaves a mark.
fn cut(text: &str, columns: usize, lines_max: usize) -> Vec<String> {
    let mut lines = wrapped(&printable(text, usize::MAX).to_string(), columns);
    if lines.len() > lines_max {
        lines.truncate(lines_max);
        if let Some(last) = lines.last_mut() {
            while last.chars().count() >= columns.max(1) {
                last.pop();
            }
            last.push('…');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use c10d_inspect::http::FindingSummary;

    use super::*;

    fn status(headline: &str) -> StatusOverview {
        let mut status = StatusOverview::default();
        status.headline = headline.to_owned();
        status
    }

    fn texts(headline: &str, findings: &[&str], columns: usize, rows: usize) -> Vec<String> {
        let finding = |text: &&str| {
            let mut finding = FindingSummary::default();
            finding.text = (*text).to_owned();
            finding.is_consequence = true;
            finding
        };
        let mut status = status(headline);
        status.findings = findings.iter().map(finding).collect();
        let lines = cause_lines(&status, columns, rows).into_iter();
        lines.map(|line| line.mark + &line.text).collect()
    }

    #[test]
    fn a_long_cause_is_shown_whole_where_there_is_room() {
        let long = "Waiting for rank 2 (1 of 4) for 31 s: it has never connected. ".repeat(4);
        let (long, also) = (
            long.trim_end(),
            ["A barrier waits as well, for all of these ranks."],
        );
        let shown = texts(long, &also, 40, 40);
        assert_eq!(shown[..7].join(" "), long);
        let follows = [
            "  then: A barrier waits as well, for all",
            "        of these ranks.",
        ];
        assert_eq!(shown[7..], follows);
        // On a small screen the ranks need the lines.
        let shown = texts(long, &also, 40, 12);
        assert_eq!(shown.len(), 5);
        assert!(
            shown[3].ends_with('…') && shown[4].ends_with('…'),
            "{shown:?}"
        );
        assert!(shown.iter().all(|line| line.chars().count() <= 40));
    }

    #[test]
    fn a_short_cause_leaves_the_ranks_where_they_are() {
        assert_eq!(texts("Fine.", &[], 80, 24), ["Fine.", ""]);
        assert_eq!(cause_lines(&status(""), 80, 24).len(), 2);
        assert_eq!(texts("Fine.", &[], 0, 0).len(), 2);
    }

    #[test]
    fn a_group_is_below_the_cause() {
        let group = ["job/0: generation 2 of 4 members; committed".to_owned()];
        let mut status = status("Fine.");
        status.memberships = group.to_vec();
        let lines = cause_lines(&status, 80, 24);
        let shown = lines.last().expect("a line");
        assert_eq!((lines.len(), shown.mark.as_str()), (3, " group: "));
        assert_eq!(shown.text, group[0]);
    }
}
