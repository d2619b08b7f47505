//! A report about a job as text: the answer in the first line, details below. A log and a terminal have the same lines.

use c10d_socket::printable;

use crate::report::{
    Finding, FindingKind, Group, MembershipReport, NodeReport, RankReport, RankSet, Report, WaitFor,
};
use crate::text::{count, joined};

/// The width of [`TextStyle::PLAIN`]: longer lines of a log are hard to read.
const COLUMNS_DEFAULT: usize = 100;

/// The most entries of one list: more would push the first line off the screen.
const ENTRIES_MAX: usize = 8;

/// The most departures of a group that its line names.
const DEPARTURES_MAX: usize = 3;

/// The style of a report's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextStyle {
    columns: usize,
    has_colors: bool,
}

impl TextStyle {
    /// Lines of at most 100 characters without colors, for a log.
    pub const PLAIN: Self = Self::new(COLUMNS_DEFAULT, false);

    /// Wraps lines after `columns` characters, `usize::MAX` for never, and colors them by escape sequences of terminals.
    #[must_use]
    pub const fn new(columns: usize, has_colors: bool) -> Self {
        Self {
            columns,
            has_colors,
        }
    }
}

impl Report {
    /// Returns the report as lines for a terminal or a log, with the answer in the first line and details below. The
    /// text is safe to print even if the sender of the report is not trusted, because unprintable characters are
    /// escaped. Lists are cut to 8 entries.
    #[must_use]
    pub fn to_text(&self, style: TextStyle) -> String {
        let mut lines = Lines {
            style,
            text: String::new(),
        };
        write_report(self, &mut lines);
        lines.text
    }

    /// The first line of [`to_text`](Self::to_text), not wrapped.
    #[must_use]
    pub fn headline_text(&self) -> String {
        safe(&self.headline)
    }
}

fn write_report(report: &Report, lines: &mut Lines) {
    let tone = match report.is_stuck {
        true => Tone::Bad,
        false => Tone::Good,
    };
    lines.paragraph("", tone, &report.headline);
    write_findings(report, lines);
    write_suspects(report, lines);

    let forming: Vec<&Group> = report.groups.iter().filter(|g| !g.is_complete).collect();
    lines.list("Groups that are not complete", &forming, |group| {
        group_text(group)
    });
    lines.list("Memberships", &report.memberships, membership_text);
    lines.list("Waited for", &report.waits, wait_text);
    let lost: Vec<&NodeReport> = report.nodes.iter().filter(|n| !n.is_connected).collect();
    lines.list("Nodes without a connection", &lost, |node| node_text(node));
    lines.list(
        "Processes of unknown rank",
        &report.unknown_processes,
        |process| {
            let mut parts = vec![process.name.clone()];
            parts.extend(process.last_request.as_ref().map(|r| format!("last: {r}")));
            parts.extend(process.waits_for.as_ref().map(|k| format!("waits for {k}")));
            parts.join(", ")
        },
    );
}

fn write_findings(report: &Report, lines: &mut Lines) {
    let mut findings = report.findings.as_slice();
    if let [first, rest @ ..] = findings
        && first.text == report.headline
    {
        if let Some(ranks) = ranks_of(first) {
            lines.paragraph("  ", Tone::Dim, &ranks);
        }
        findings = rest;
    }
    if !findings.is_empty() {
        lines.blank();
    }
    for finding in findings.iter().take(ENTRIES_MAX) {
        let (label, tone) = label_of(finding);
        lines.labelled(label, tone, &finding.text);
        if let Some(ranks) = ranks_of(finding) {
            lines.paragraph(LABEL_INDENT, Tone::Dim, &ranks);
        }
    }
    lines.rest(findings.len());
}

/// The label of a finding for the reader.
fn label_of(finding: &Finding) -> (&'static str, Tone) {
    match finding.kind {
        _ if finding.is_consequence => ("consequence", Tone::Dim),
        FindingKind::NotInTheStore
        | FindingKind::ConnectedDirectly
        | FindingKind::WaitsForBusyRank
        | FindingKind::PartlyObserved => ("note", Tone::Dim),
        _ => ("cause", Tone::Bad),
    }
}

/// The ranks of a finding, and how long it has lasted. `None` if it names no rank.
fn ranks_of(finding: &Finding) -> Option<String> {
    let culprits = labelled("because of: ", &finding.culprits);
    let waiting = labelled("waiting: ", &finding.waiting);
    let mut parts: Vec<String> = culprits.into_iter().chain(waiting).collect();
    if parts.is_empty() {
        return None;
    }
    parts.extend(finding.age_ms.map(|age| format!("for {}", age_text(age))));
    Some(parts.join("; "))
}

/// The ranks behind a label; `None` if there are none.
fn labelled(label: &str, ranks: &RankSet) -> Option<String> {
    (!ranks.0.is_empty()).then(|| format!("{label}{ranks}"))
}

fn write_suspects(report: &Report, lines: &mut Lines) {
    let suspects: Vec<&RankReport> = report.ranks.iter().filter(|r| r.is_suspect).collect();
    lines.list("Suspects", &suspects, |rank| rank_text(rank));
    let is_asked = |node: &NodeReport| node.is_connected && node.debug_address.is_some();
    let has_stack = |rank: &&RankReport| {
        let mut nodes = report.nodes.iter();
        rank.debug_url.is_some()
            || rank.debug_socket.is_some()
            || nodes.any(|node| {
                rank.node_rank.is_some() && node.node_rank == rank.node_rank && is_asked(node)
            })
    };
    if suspects.iter().any(has_stack) {
        lines.paragraph("  ", Tone::Dim, "their Python stacks: c10d stacks");
    }
}

/// A group whose members agree through the server, in one line, as in "workers: generation 3 of 4 members; members leave their
/// mesh; waits for member 2.1 (rank 0), for 4 s at most; left last: member 3.1 (its process has ended)".
pub(crate) fn membership_text(group: &MembershipReport) -> String {
    let mut text = match group.generation {
        0 => format!("{}: no generation", group.name),
        generation => {
            let size = count(group.size, "member");
            format!("{}: generation {generation} of {size}", group.name)
        }
    };
    text.push_str(&format!("; {}", group.stage));
    if group.waits_for_count > 0 {
        let mut names = group.waits_for.clone();
        if group.waits_for_count > names.len() {
            names.push(format!("{} more", group.waits_for_count - names.len()));
        }
        text.push_str(&format!("; waits for {}", joined(&names)));
        if let Some(left) = group.time_left_ms {
            text.push_str(&format!(", for {} at most", age_text(left)));
        }
    }
    if !group.departures.is_empty() {
        let last = group.departures.iter().take(DEPARTURES_MAX);
        let last: Vec<&str> = last.map(String::as_str).collect();
        text.push_str(&format!("; left last: {}", last.join(", ")));
    }
    text
}

/// One rank in one line, as in "rank 2 on vm, pid 4711: has not connected; last request 25 s ago: Add /init/".
fn rank_text(rank: &RankReport) -> String {
    let place = match (&rank.host, rank.node_rank) {
        (Some(host), _) => format!(" on {host}"),
        (None, Some(node)) => format!(" on node {node}"),
        (None, None) => String::new(),
    };
    let pid = rank.pid.map(|pid| format!(", pid {pid}"));
    let name = format!("rank {}{place}{}", rank.rank, pid.unwrap_or_default());
    let age = rank
        .last_request_ms
        .map(|age| format!(" {} ago", age_text(age)));
    let age = age.unwrap_or_default();
    let last = rank.last_request.as_ref();
    let last = last.map(|request| format!("last request{age}: {request}"));
    let doing = Some(rank.doing.clone()).filter(|doing| !doing.is_empty());
    let facts: Vec<String> = doing.into_iter().chain(last).collect();
    match facts.is_empty() {
        true => name,
        false => format!("{name}: {}", facts.join("; ")),
    }
}

fn group_text(group: &Group) -> String {
    let (name, kind, arrived) = (&group.name, &group.kind, group.arrived);
    let size = group.size.map(|size| format!(" of {size}"));
    let size = size.unwrap_or_default();
    let missing = labelled("; missing of the group: ", &group.missing);
    let missing = missing.unwrap_or_default();
    format!("group {name} ({kind}): {arrived}{size} arrived{missing}")
}

fn wait_text(wait: &WaitFor) -> String {
    let is_told = wait.meaning.is_empty() || wait.meaning.contains(&wait.key);
    let meaning = (!is_told).then(|| format!(" ({})", wait.meaning));
    format!(
        "{}{}: {} for {}{}",
        wait.key,
        meaning.unwrap_or_default(),
        count(wait.connections, "connection"),
        age_text(wait.age_ms),
        labelled(", ", &wait.ranks).unwrap_or_default()
    )
}

fn node_text(node: &NodeReport) -> String {
    let rank = node.node_rank.map(|rank| format!("node {rank}, "));
    format!(
        "{}{}: launcher pid {}{}; last heard of {} ago",
        rank.unwrap_or_default(),
        node.host,
        node.pid,
        labelled(", ", &node.ranks).unwrap_or_default(),
        age_text(node.announced_ms)
    )
}

/// A time as text: "0.4 s", "31 s", "5 min 2 s", "3 h 20 min".
#[must_use]
pub fn age_text(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..10 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The role of a part of a line, which decides its color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    /// The text itself.
    Plain,
    /// A cause, or the answer for a job that makes no progress.
    Bad,
    /// The answer for any other job.
    Good,
    /// Less important than the text itself.
    Dim,
}

impl Tone {
    /// The escape sequence that begins its color.
    const fn escape(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Bad => Some("\x1b[1;31m"),
            Self::Good => Some("\x1b[32m"),
            Self::Dim => Some("\x1b[2m"),
        }
    }
}

const LABEL_INDENT: &str = "               ";

/// Collects wrapped lines. Every text that is written here is made printable.
struct Lines {
    style: TextStyle,
    text: String,
}

impl Lines {
    fn blank(&mut self) {
        self.text.push('\n');
    }

    /// A text in lines that start with `indent`.
    fn paragraph(&mut self, indent: &str, tone: Tone, text: &str) {
        for line in wrapped(&safe(text), self.style.columns.saturating_sub(indent.len())) {
            self.line(indent, tone, line);
        }
    }

    /// A text beside a label.
    fn labelled(&mut self, label: &str, tone: Tone, text: &str) {
        let width = LABEL_INDENT.len() - 3;
        let room = self.style.columns.saturating_sub(LABEL_INDENT.len());
        for (index, line) in wrapped(&safe(text), room).into_iter().enumerate() {
            let shown = if index == 0 { label } else { "" };
            self.part(Tone::Plain, "  ");
            self.part(tone, &format!("{shown:<width$} "));
            self.part(Tone::Plain, &line);
            self.blank();
        }
    }

    /// A list under a heading; nothing for an empty list.
    fn list<T>(&mut self, heading: &str, items: &[T], text: impl Fn(&T) -> String) {
        if items.is_empty() {
            return;
        }
        self.blank();
        self.line("", Tone::Plain, format!("{heading}:"));
        for item in items.iter().take(ENTRIES_MAX) {
            let room = self.style.columns.saturating_sub(4);
            for (index, line) in wrapped(&safe(&text(item)), room).into_iter().enumerate() {
                let indent = if index == 0 { "  " } else { "    " };
                self.line(indent, Tone::Plain, line);
            }
        }
        self.rest(items.len());
    }

    /// Writes how many of `count` entries are omitted.
    fn rest(&mut self, count: usize) {
        match count.checked_sub(ENTRIES_MAX) {
            None | Some(0) => {}
            Some(more) => self.line("  ", Tone::Dim, format!("and {more} more: see --json")),
        }
    }

    fn line(&mut self, indent: &str, tone: Tone, text: String) {
        self.part(Tone::Plain, indent);
        self.part(tone, &text);
        self.blank();
    }

    fn part(&mut self, tone: Tone, text: &str) {
        match tone.escape().filter(|_| self.style.has_colors) {
            Some(escape) => self.text.push_str(&format!("{escape}{text}\x1b[0m")),
            None => self.text.push_str(text),
        }
    }
}

/// A text that may hold the words of others, of any length.
fn safe(text: &str) -> String {
    printable(text, usize::MAX).to_string()
}

/// The lines of a text, broken at spaces; a longer word is broken anywhere.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if width > 0 && width + 1 + word.len() > columns {
            lines.push(std::mem::take(&mut line));
            width = 0;
        } else if width > 0 {
            line.push(' ');
            width += 1;
        }
        while word.len() > columns {
            lines.push(word.drain(..columns).collect());
        }
        width += word.len();
        line.extend(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::{Process, RankSet, RankState};

    fn ranks(ranks: impl IntoIterator<Item = usize>) -> RankSet {
        RankSet(ranks.into_iter().collect::<BTreeSet<_>>())
    }

    /// Ranks 0, 1 and 3 wait for rank 2.
    fn stuck() -> Report {
        let text = "Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store.";
        let mut cause = Finding::new(FindingKind::NeverConnected, text.to_owned());
        cause.culprits = ranks([2]);
        cause.waiting = ranks([0, 1, 3]);
        cause.age_ms = Some(31_000);
        let mut follows = Finding::new(
            FindingKind::Barrier,
            "Rank 7 waits at a barrier for those that wait for rank 2.".to_owned(),
        );
        follows.is_consequence = true;
        let suspect = RankReport {
            rank: 2,
            state: RankState::Starting,
            is_suspect: true,
            host: Some("vm".to_owned()),
            pid: Some(4711),
            doing: "started 40 s ago, has not connected".to_owned(),
            debug_socket: Some("/run/2".into()),
            ..RankReport::default()
        };
        let group = Group {
            name: "0".to_owned(),
            kind: "gloo".to_owned(),
            size: Some(4),
            arrived: 3,
            missing: ranks([2]),
            ..Group::default()
        };
        let wait = WaitFor {
            key: "/default_pg/0//cpu//0/2".to_owned(),
            meaning: "the address of rank 2, for the default group".to_owned(),
            connections: 3,
            ranks: ranks([0, 1, 3]),
            age_ms: 31_400,
        };
        Report {
            headline: text.to_owned(),
            is_stuck: true,
            findings: vec![cause, follows],
            ranks: vec![suspect],
            groups: vec![group],
            waits: vec![wait],
            ..Report::default()
        }
    }

    #[test]
    fn the_first_line_says_it_all() {
        let expected = "\
Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store.
  because of: rank 2; waiting: ranks 0, 1 and 3; for 31 s

  consequence  Rank 7 waits at a barrier for those that wait for rank 2.

Suspects:
  rank 2 on vm, pid 4711: started 40 s ago, has not connected
  their Python stacks: c10d stacks

Groups that are not complete:
  group 0 (gloo): 3 of 4 arrived; missing of the group: rank 2

Waited for:
  /default_pg/0//cpu//0/2 (the address of rank 2, for the default group): 3 connections for 31 s,
    ranks 0, 1 and 3
";
        assert_eq!(stuck().to_text(TextStyle::PLAIN), expected);
    }

    #[test]
    fn a_report_without_a_problem_is_one_line() {
        let report = Report {
            headline: "Nobody waits for anybody.".to_owned(),
            ..Report::default()
        };
        assert_eq!(
            report.to_text(TextStyle::PLAIN),
            "Nobody waits for anybody.\n"
        );
    }

    #[test]
    fn lines_respect_the_width_and_colors_take_none_of_it() {
        let plain = TextStyle::new(40, false);
        let text = stuck().to_text(plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 40),
            "{text}"
        );
        let colored = TextStyle::new(40, true);
        let mut without = stuck().to_text(colored);
        assert!(without.starts_with("\x1b[1;31mWaiting for rank 2"));
        for color in ["\x1b[1;31m", "\x1b[2m", "\x1b[0m"] {
            without = without.replace(color, "");
        }
        assert_eq!(without, text);
    }

    #[test]
    fn hostile_names_are_escaped() {
        let mut report = stuck();
        let evil = "\x1b]0;evil\x07\u{202e}\n".to_owned();
        report.headline.clone_from(&evil);
        report.findings[0].text.clone_from(&evil);
        report.findings[1].text.clone_from(&evil);
        report.ranks[0].host = Some(evil.clone());
        report.ranks[0].doing.clone_from(&evil);
        report.groups[0].name.clone_from(&evil);
        report.waits[0].key.clone_from(&evil);
        let process = serde_json::json!({
            "name": evil, "connections": [], "last_request": evil, "waits_for": evil
        });
        let process: Process = serde_json::from_value(process).unwrap();
        report.unknown_processes = vec![process];
        let node = NodeReport {
            host: evil,
            ..NodeReport::default()
        };
        report.nodes = vec![node];
        let text = report.to_text(TextStyle::PLAIN);
        assert!(
            text.chars()
                .all(|c| c == '\n' || (!c.is_control() && c != '\u{202e}'))
        );
        assert_eq!(text.matches("\\u{1b}]0;evil").count(), 10, "{text}");
    }

    #[test]
    fn long_lists_are_cut() {
        let mut report = stuck();
        report.waits = vec![report.waits[0].clone(); 11];
        let text = report.to_text(TextStyle::PLAIN);
        assert!(text.ends_with("  and 3 more: see --json\n"), "{text}");
    }

    #[test]
    fn ages_have_two_units_at_most() {
        let table = [
            (0, "0.0 s"),
            (9_999, "9.9 s"),
            (31_400, "31 s"),
            (119_000, "119 s"),
            (302_000, "5 min 2 s"),
            (12_000_000, "3 h 20 min"),
        ];
        for (milliseconds, expected) in table {
            assert_eq!(age_text(milliseconds), expected);
        }
    }

    #[test]
    fn words_wrap_and_long_ones_break() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrapped("a  b", 9), ["a  b"]);
        assert_eq!(wrapped("", 9), [""]);
    }
}
